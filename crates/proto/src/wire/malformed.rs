//! What can be wrong with bytes.

use core::fmt;

/// Why bytes are no packet. Such a packet is dropped and counted, never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end inside a header.
    TooShort {
        /// Bytes that this header needs.
        need: usize,
        /// Bytes that were left for it.
        have: usize,
    },
    /// Unknown opcode.
    UnknownOpcode(u8),
    /// The transport header version (TVer) is not 0.
    BadVersion(u8),
    /// The pad count is larger than what follows the headers.
    BadPad {
        /// Pad count of the BTH.
        pad: u8,
        /// Bytes after the headers.
        have: usize,
    },
    /// Payload and pad together are no multiple of four bytes.
    Unaligned {
        /// Bytes after the headers.
        len: usize,
    },
    /// An AETH syndrome that the specification keeps for later.
    ReservedSyndrome(u8),
    /// The IP version is not the one of the header that was asked for.
    BadIpVersion(u8),
    /// An IPv4 header with options, or shorter than a header can be; the value is in 32-bit words.
    BadIpHeaderLength(u8),
    /// The IPv4 header checksum is wrong; the value is the one found.
    BadIpChecksum(u16),
    /// A length field that does not even cover its own header.
    BadLengthField(u16),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Malformed::TooShort { need, have } => {
                write!(f, "a header of {need} bytes is cut off after {have}")
            }
            Malformed::UnknownOpcode(byte) => write!(f, "opcode {byte:#04x} names no packet"),
            Malformed::BadVersion(version) => write!(f, "transport header version {version}, only 0 exists"),
            Malformed::BadPad { pad, have } => {
                write!(f, "pad count {pad}, but {have} bytes follow the headers")
            }
            Malformed::Unaligned { len } => {
                write!(f, "payload and pad are {len} bytes, no multiple of four")
            }
            Malformed::ReservedSyndrome(byte) => write!(f, "AETH syndrome {byte:#04x} is reserved"),
            Malformed::BadIpVersion(version) => write!(f, "unexpected IP version {version}"),
            Malformed::BadIpHeaderLength(words) => {
                write!(f, "IPv4 header of {words} words, RoCEv2 has exactly 5")
            }
            Malformed::BadIpChecksum(sum) => write!(f, "IPv4 header checksum {sum:#06x} is wrong"),
            Malformed::BadLengthField(len) => write!(f, "length field {len} is less than its own header"),
        }
    }
}

impl core::error::Error for Malformed {}

/// Returns the first `N` bytes, or the error if there are fewer.
#[inline]
pub(super) fn first_bytes<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Malformed> {
    bytes.first_chunk().ok_or(Malformed::TooShort { need: N, have: bytes.len() })
}
