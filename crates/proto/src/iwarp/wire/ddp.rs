//! The DDP header with the RDMAP control field (RFC 5041, 4; RFC 5040, 4.1).

use super::{RdmapOpcode, StreamError, u32_at, u64_at};
use crate::ids::RKey;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const DDP_VERSION: u8 = 1;
const RDMAP_VERSION: u8 = 1;

/// Where the payload of a segment belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DdpBuffer {
    /// Memory that the STag names.
    Tagged {
        /// The STag, on our side an rkey.
        stag: RKey,
        /// Address of the first byte (tagged offset).
        to: u64,
    },
    /// The next buffer of a queue.
    Untagged {
        /// The STag that a SEND invalidates; reserved in other messages.
        invalidate: RKey,
        /// Queue number.
        queue: u32,
        /// Message sequence number: from 1, one per message of a queue.
        msn: u32,
        /// Offset of the payload in the message.
        offset: u32,
    },
}

/// The header of a segment, behind the ULPDU length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdpHeader {
    /// The kind of message.
    pub opcode: RdmapOpcode,
    /// Whether this is the last segment of the message.
    pub last: bool,
    /// Where the payload belongs.
    pub buffer: DdpBuffer,
}

impl DdpHeader {
    /// Bytes of a tagged header.
    pub const TAGGED_LEN: usize = 14;
    /// Bytes of an untagged header.
    pub const UNTAGGED_LEN: usize = 18;

    /// Bytes of the header that begins with this DDP control field.
    pub const fn len_of(control: u8) -> usize {
        if control & TAGGED != 0 { DdpHeader::TAGGED_LEN } else { DdpHeader::UNTAGGED_LEN }
    }

    /// Bytes of this header.
    pub const fn encoded_len(&self) -> usize {
        match self.buffer {
            DdpBuffer::Tagged { .. } => DdpHeader::TAGGED_LEN,
            DdpBuffer::Untagged { .. } => DdpHeader::UNTAGGED_LEN,
        }
    }

    /// Reads the header at the start of `bytes`, and checks versions, opcode, buffer model and queue.
    pub fn parse(bytes: &[u8]) -> Result<DdpHeader, StreamError> {
        let Some(&[control, rdmap]) = bytes.first_chunk() else {
            return Err(StreamError::TooShort { need: 2, have: bytes.len() });
        };
        let tagged = control & TAGGED != 0;
        if control & 0x03 != DDP_VERSION {
            return Err(StreamError::DdpVersion { version: control & 0x03, tagged });
        }
        if rdmap >> 6 != RDMAP_VERSION {
            return Err(StreamError::RdmapVersion(rdmap >> 6));
        }
        let opcode = RdmapOpcode::from_bits(rdmap & 0x0f).ok_or(StreamError::UnknownOpcode(rdmap & 0x0f))?;
        if opcode.is_tagged() != tagged {
            return Err(StreamError::WrongModel { opcode, tagged });
        }
        let buffer = if tagged { Self::tagged(bytes) } else { Self::untagged(bytes) }?;
        match buffer {
            DdpBuffer::Untagged { queue, .. } if queue != opcode.queue() => {
                Err(StreamError::WrongQueue { opcode, queue })
            }
            _ => Ok(DdpHeader { opcode, last: control & LAST != 0, buffer }),
        }
    }

    fn tagged(bytes: &[u8]) -> Result<DdpBuffer, StreamError> {
        let bytes: &[u8; DdpHeader::TAGGED_LEN] = first(bytes)?;
        Ok(DdpBuffer::Tagged { stag: RKey(u32_at(bytes, 2)), to: u64_at(bytes, 6) })
    }

    fn untagged(bytes: &[u8]) -> Result<DdpBuffer, StreamError> {
        let bytes: &[u8; DdpHeader::UNTAGGED_LEN] = first(bytes)?;
        Ok(DdpBuffer::Untagged {
            invalidate: RKey(u32_at(bytes, 2)),
            queue: u32_at(bytes, 6),
            msn: u32_at(bytes, 10),
            offset: u32_at(bytes, 14),
        })
    }

    /// Writes the header to the start of `out`, which must be long enough. Returns the length of the header.
    pub fn write(&self, out: &mut [u8]) -> usize {
        let last = if self.last { LAST } else { 0 };
        out[1] = RDMAP_VERSION << 6 | self.opcode as u8;
        match self.buffer {
            DdpBuffer::Tagged { stag, to } => {
                out[0] = TAGGED | last | DDP_VERSION;
                out[2..6].copy_from_slice(&stag.0.to_be_bytes());
                out[6..14].copy_from_slice(&to.to_be_bytes());
            }
            DdpBuffer::Untagged { invalidate, queue, msn, offset } => {
                out[0] = last | DDP_VERSION;
                for (at, value) in [(2, invalidate.0), (6, queue), (10, msn), (14, offset)] {
                    out[at..at + 4].copy_from_slice(&value.to_be_bytes());
                }
            }
        }
        self.encoded_len()
    }
}

/// The first `N` bytes.
pub(super) fn first<const N: usize>(bytes: &[u8]) -> Result<&[u8; N], StreamError> {
    bytes.first_chunk().ok_or(StreamError::TooShort { need: N, have: bytes.len() })
}
