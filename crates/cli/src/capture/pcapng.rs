//! Counts the packets of a pcapng file that may be damaged: a killed program leaves half a block behind.

use crate::capture_file::{Blocks, Damage, is_packet};
use serde::Serialize;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The content of a file.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Count {
    /// Whole packets.
    pub(super) packets: u64,
    /// The last block is incomplete, as after a kill, or malformed.
    pub(super) truncated: bool,
}

/// Counts the packets of a file.
pub(super) fn count_packets(path: &Path) -> io::Result<Count> {
    count(io::BufReader::new(File::open(path)?))
}

fn count(source: impl Read) -> io::Result<Count> {
    let (mut blocks, mut packets) = (Blocks::new(source), 0);
    loop {
        match blocks.next() {
            Ok(Some(block)) => packets += u64::from(is_packet(block.kind)),
            Ok(None) => return Ok(Count { packets, truncated: false }),
            Err(Damage::Io(error)) => return Err(error),
            Err(_) => return Ok(Count { packets, truncated: true }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTION_HEADER: u32 = 0x0a0d_0d0a;
    const BYTE_ORDER: u32 = 0x1a2b_3c4d;

    fn block(kind: u32, body: &[u8], big_endian: bool) -> Vec<u8> {
        let bytes = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
        let length = bytes(12 + body.len() as u32);
        [&bytes(kind)[..], &length, body, &length].concat()
    }

    fn section(big_endian: bool) -> Vec<u8> {
        let order = if big_endian { BYTE_ORDER.to_be_bytes() } else { BYTE_ORDER.to_le_bytes() };
        block(SECTION_HEADER, &[&order[..], &[0; 12]].concat(), big_endian)
    }

    #[test]
    fn both_byte_orders_in_one_file() {
        let mut file = Vec::new();
        for big_endian in [false, true] {
            file.extend(section(big_endian));
            file.extend(block(1, &[0; 8], big_endian));
            file.extend(block(6, &[0; 40], big_endian));
            file.extend(block(3, &[0; 8], big_endian));
        }
        assert_eq!(count(&file[..]).expect("memory"), Count { packets: 4, truncated: false });
    }

    #[test]
    fn a_cut_file_counts_its_whole_packets() {
        let mut file = section(false);
        file.extend(block(6, &[0; 40], false));
        let whole = file.len();
        file.extend(block(6, &[0; 40], false));
        for end in whole + 1..file.len() {
            assert_eq!(count(&file[..end]).expect("memory"), Count { packets: 1, truncated: true }, "{end}");
        }
    }

    #[test]
    fn invalid_files_have_no_packets() {
        for file in [&[][..], &[0; 64], &[0xff; 64], b"hello, this is no capture file at all"] {
            assert_eq!(count(file).expect("memory").packets, 0);
        }
        // A length that would go backwards must not loop.
        let mut file = section(false);
        file.extend(6u32.to_le_bytes());
        file.extend(4u32.to_le_bytes());
        assert_eq!(count(&file[..]).expect("memory"), Count { packets: 0, truncated: true });
    }
}
