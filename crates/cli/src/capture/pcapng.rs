//! Counts the packets of a pcapng file that may be damaged: a killed program leaves half a block behind.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const BYTE_ORDER: u32 = 0x1a2b_3c4d;
/// Obsolete packet block, simple packet block, enhanced packet block.
const PACKET_BLOCKS: [u32; 3] = [2, 3, 6];
/// Type, length in front, length behind.
const SMALLEST_BLOCK: u64 = 12;

/// The content of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Count {
    /// Whole packets.
    pub(super) packets: u64,
    /// The last block is incomplete or malformed.
    pub(super) truncated: bool,
}

/// Counts the packets of a file.
pub(super) fn count_packets(path: &Path) -> io::Result<Count> {
    count(BufReader::new(File::open(path)?))
}

fn count(mut source: impl Read) -> io::Result<Count> {
    let mut packets = 0;
    let mut big_endian = false;
    loop {
        let head = read_up_to(&mut source, 8)?;
        if head.len() < 8 {
            return Ok(Count { packets, truncated: !head.is_empty() });
        }
        let [kind, length] = [&head[..4], &head[4..]].map(|bytes| word(bytes, big_endian));
        let (length, already) = if kind == SECTION_HEADER || word(&head[..4], true) == SECTION_HEADER {
            let order = read_up_to(&mut source, 4)?;
            if order.len() < 4 {
                break;
            }
            big_endian = match (word(&order, false), word(&order, true)) {
                (BYTE_ORDER, _) => false,
                (_, BYTE_ORDER) => true,
                _ => break,
            };
            (word(&head[4..], big_endian), 12)
        } else {
            (length, 8)
        };
        let Some(rest) =
            u64::from(length).checked_sub(already).filter(|_| u64::from(length) >= SMALLEST_BLOCK)
        else {
            break;
        };
        if io::copy(&mut (&mut source).take(rest), &mut io::sink())? < rest {
            break;
        }
        packets += u64::from(PACKET_BLOCKS.contains(&kind));
    }
    Ok(Count { packets, truncated: true })
}

fn read_up_to(source: &mut impl Read, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    source.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn word(bytes: &[u8], big_endian: bool) -> u32 {
    let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn nonsense_ends() {
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
