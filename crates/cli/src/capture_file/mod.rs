//! Reads capture files, pcapng and the older pcap, as a stream: one record of each file and a few hundred
//! packets in memory, however long the files are.
//!
//! A file is not trusted and may be damaged anywhere. Reading stops at the first invalid block; the packets before it
//! count. The crate pcap-file, with which the NIC writes captures, ignores the time resolution of an interface when it reads.
//!
//! | file | contents |
//! |---|---|
//! | `blocks` | the blocks of pcapng, in both byte orders |
//! | `records` | packets with time, direction and link type, of both formats |
//! | `merge` | several files as one, in the order of time |

mod blocks;
mod merge;
mod records;

pub(crate) use blocks::{Blocks, is_packet};
pub(crate) use merge::Files;
pub(crate) use records::{Direction, Frame, LinkType, Records};

use std::io;

/// Why a file could not be read to its end.
#[derive(Debug)]
pub(crate) enum Damage {
    /// The file ends inside a block, as after a kill.
    Cut,
    /// These bytes are no capture file, or a field of a block is wrong.
    Malformed(&'static str),
    /// The system refused to read.
    Io(io::Error),
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Damage::Cut => write!(f, "the file ends in the middle of a record, as after a kill"),
            Damage::Malformed(what) => write!(f, "{what}"),
            Damage::Io(error) => write!(f, "{error}"),
        }
    }
}

/// Fills `buffer`. `Ok(false)` if the file ends before its first byte.
fn fill(source: &mut impl io::Read, buffer: &mut [u8]) -> Result<bool, Damage> {
    let mut have = 0;
    while have < buffer.len() {
        match source.read(&mut buffer[have..]) {
            Ok(0) if have == 0 => return Ok(false),
            Ok(0) => return Err(Damage::Cut),
            Ok(more) => have += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Damage::Io(error)),
        }
    }
    Ok(true)
}

/// Fills `buffer` from the middle of a record.
fn fill_rest(source: &mut impl io::Read, buffer: &mut [u8]) -> Result<(), Damage> {
    match fill(source, buffer) {
        Ok(false) if !buffer.is_empty() => Err(Damage::Cut),
        other => other.map(|_| ()),
    }
}

/// The byte order of a file, which its first number shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    fn u16(self, bytes: &[u8]) -> Option<u16> {
        let bytes = *bytes.first_chunk()?;
        Some(if self == ByteOrder::Big { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    fn u32(self, bytes: &[u8]) -> Option<u32> {
        let bytes = *bytes.first_chunk()?;
        Some(if self == ByteOrder::Big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn i64(self, bytes: &[u8]) -> Option<i64> {
        let bytes = *bytes.first_chunk()?;
        Some(if self == ByteOrder::Big { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) })
    }
}
