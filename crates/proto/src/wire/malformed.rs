//! Errors in the bytes of a packet.

/// Why bytes are not a packet. They are dropped and counted, never answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The bytes end inside a header.
    #[error("a header of {need} bytes is cut off after {have}")]
    TooShort {
        /// Bytes that this header needs.
        need: usize,
        /// Bytes that were left for it.
        have: usize,
    },
    /// Unknown opcode.
    #[error("opcode {0:#04x} names no packet")]
    UnknownOpcode(u8),
    /// The transport header version (TVer) is not 0.
    #[error("transport header version {0}, only 0 exists")]
    BadVersion(u8),
    /// The pad count exceeds the number of bytes behind the headers.
    #[error("pad count {pad}, but {have} bytes follow the headers")]
    BadPad {
        /// Pad count of the BTH.
        pad: u8,
        /// Bytes after the headers.
        have: usize,
    },
    /// The length of payload and pad is not a multiple of four bytes.
    #[error("payload and pad are {len} bytes, no multiple of four")]
    Unaligned {
        /// Bytes after the headers.
        len: usize,
    },
    /// An AETH syndrome that the specification reserves.
    #[error("AETH syndrome {0:#04x} is reserved")]
    ReservedSyndrome(u8),
    /// The IP version is not that of the requested header.
    #[error("unexpected IP version {0}")]
    BadIpVersion(u8),
    /// An IPv4 header with options, or shorter than a header can be; the value is in 32-bit words.
    #[error("IPv4 header of {0} words, RoCEv2 has exactly 5")]
    BadIpHeaderLength(u8),
    /// The IPv4 header checksum is wrong; the value is the one found.
    #[error("IPv4 header checksum {0:#06x} is wrong")]
    BadIpChecksum(u16),
    /// A length field that is shorter than its own header.
    #[error("length field {0} is less than its own header")]
    BadLengthField(u16),
}

/// Returns the first `N` bytes, or the error if there are fewer.
#[inline]
pub(super) fn first_bytes<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], Malformed> {
    bytes.first_chunk().ok_or(Malformed::TooShort { need: N, have: bytes.len() })
}
