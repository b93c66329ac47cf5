//! Why an access to registered memory was refused.

use super::Access;
use crate::ids::PdId;
use core::fmt;

/// A refused access, with the numbers that explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryFault {
    /// No region has this key.
    NoSuchKey {
        /// The key.
        key: u32,
    },
    /// The region belongs to another protection domain.
    WrongPd {
        /// The key.
        key: u32,
        /// Domain of the region.
        region: PdId,
        /// Domain of the queue pair.
        qp: PdId,
    },
    /// The bytes are not all inside the region.
    OutOfRange {
        /// The key.
        key: u32,
        /// First byte asked for.
        addr: u64,
        /// Number of bytes asked for.
        len: u64,
        /// First byte of the region.
        start: u64,
        /// Length of the region.
        region_len: u64,
    },
    /// The region, or the queue pair, does not grant this right.
    Denied {
        /// The key.
        key: u32,
        /// What was needed.
        need: Access,
        /// What is granted.
        have: Access,
    },
    /// The address of an atomic is not a multiple of 8.
    Misaligned {
        /// The address.
        addr: u64,
    },
}

impl fmt::Display for MemoryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            MemoryFault::NoSuchKey { key } => {
                write!(f, "key {key:#x} names no region (never registered, or freed)")
            }
            MemoryFault::WrongPd { key, region, qp } => {
                write!(f, "key {key:#x} names a region of PD {}, this QP is in PD {}", region.0, qp.0)
            }
            MemoryFault::OutOfRange { key, addr, len, start, region_len } => write!(
                f,
                "{len} bytes at {addr:#x} are not inside the region of key {key:#x}, which has {region_len} bytes at {start:#x}"
            ),
            MemoryFault::Denied { key, need, have } => {
                write!(f, "key {key:#x} grants {have:?}, the operation needs {need:?}")
            }
            MemoryFault::Misaligned { addr } => write!(f, "atomic address {addr:#x} is not a multiple of 8"),
        }
    }
}
