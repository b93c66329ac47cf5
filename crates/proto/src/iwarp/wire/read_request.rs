//! The body of a READ request (RFC 5040, 4.4).

use super::ddp::first;
use super::{StreamError, u32_at, u64_at};
use crate::ids::RKey;

/// A READ request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// STag that the responses carry: the requester's name for its buffer.
    pub sink_stag: RKey,
    /// First offset in that buffer.
    pub sink_to: u64,
    /// Bytes to read.
    pub len: u32,
    /// Key of the memory to read.
    pub source_stag: RKey,
    /// First address there.
    pub source_to: u64,
}

impl ReadRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the body at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<ReadRequest, StreamError> {
        let bytes: &[u8; ReadRequest::LEN] = first(bytes)?;
        Ok(ReadRequest {
            sink_stag: RKey(u32_at(bytes, 0)),
            sink_to: u64_at(bytes, 4),
            len: u32_at(bytes, 12),
            source_stag: RKey(u32_at(bytes, 16)),
            source_to: u64_at(bytes, 20),
        })
    }

    /// Encodes the body.
    pub fn to_bytes(&self) -> [u8; ReadRequest::LEN] {
        let mut out = [0; ReadRequest::LEN];
        out[..4].copy_from_slice(&self.sink_stag.0.to_be_bytes());
        out[4..12].copy_from_slice(&self.sink_to.to_be_bytes());
        out[12..16].copy_from_slice(&self.len.to_be_bytes());
        out[16..20].copy_from_slice(&self.source_stag.0.to_be_bytes());
        out[20..].copy_from_slice(&self.source_to.to_be_bytes());
        out
    }
}
