//! Errors in the bytes of a stream.

use super::{RdmapOpcode, TerminateCode};

/// Why the bytes are not an FPDU. A stream cannot be resumed, so each of these ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The ULPDU ends inside a header.
    #[error("a header of {need} bytes is cut off after {have}")]
    TooShort {
        /// Bytes that the header needs.
        need: usize,
        /// Bytes that the ULPDU has for it.
        have: usize,
    },
    /// The DDP version is not 1.
    #[error("DDP version {version}, only 1 exists")]
    DdpVersion {
        /// The version.
        version: u8,
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// The RDMAP version is not 1.
    #[error("RDMAP version {0}, only 1 exists")]
    RdmapVersion(u8),
    /// No message has this opcode.
    #[error("opcode {0} names no RDMAP message")]
    UnknownOpcode(u8),
    /// A tagged segment where the opcode needs an untagged one, or the reverse.
    #[error("a {} in {} segment", .opcode.name(), if *.tagged { "a tagged" } else { "an untagged" })]
    WrongModel {
        /// The opcode.
        opcode: RdmapOpcode,
        /// Whether the segment is tagged.
        tagged: bool,
    },
    /// The queue does not belong to the opcode.
    #[error("a {} for queue {queue}, its queue is {}", .opcode.name(), .opcode.queue())]
    WrongQueue {
        /// The opcode.
        opcode: RdmapOpcode,
        /// The queue number.
        queue: u32,
    },
    /// A message of fixed length has another one.
    #[error("a {} with a body of {len} bytes", .opcode.name())]
    BodyLength {
        /// The opcode.
        opcode: RdmapOpcode,
        /// Bytes behind the header.
        len: usize,
    },
    /// A message that must be one segment is divided.
    #[error("a {} that is not one whole segment", .opcode.name())]
    NotWhole {
        /// The opcode.
        opcode: RdmapOpcode,
    },
    /// The checksum is wrong.
    #[error("the CRC of an FPDU is {found:#010x}, its bytes give {computed:#010x}")]
    BadCrc {
        /// The CRC in the FPDU.
        found: u32,
        /// The CRC of its bytes.
        computed: u32,
    },
}

impl StreamError {
    /// The Terminate code for the peer.
    pub const fn code(&self) -> TerminateCode {
        match self {
            StreamError::TooShort { .. } | StreamError::BodyLength { .. } => TerminateCode::LLP_LENGTH,
            StreamError::DdpVersion { tagged: true, .. } => TerminateCode::TAGGED_VERSION,
            StreamError::DdpVersion { tagged: false, .. } => TerminateCode::UNTAGGED_VERSION,
            StreamError::RdmapVersion(_) => TerminateCode::RDMAP_VERSION,
            StreamError::UnknownOpcode(_) | StreamError::WrongModel { .. } => TerminateCode::RDMAP_OPCODE,
            StreamError::WrongQueue { .. } => TerminateCode::UNTAGGED_QUEUE,
            StreamError::NotWhole { .. } => TerminateCode::UNTAGGED_OFFSET,
            StreamError::BadCrc { .. } => TerminateCode::LLP_CRC,
        }
    }
}
