//! The body of an immediate data message (RFC 7306, 6).

use super::ddp::first;
use super::{StreamError, u32_at};

/// Immediate data. The verbs have four bytes of it, the message has eight: the other four are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImmediateData(pub u32);

impl ImmediateData {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the body at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<ImmediateData, StreamError> {
        let bytes: &[u8; ImmediateData::LEN] = first(bytes)?;
        Ok(ImmediateData(u32_at(bytes, 0)))
    }

    /// Encodes the body.
    pub fn to_bytes(self) -> [u8; ImmediateData::LEN] {
        (u64::from(self.0) << 32).to_be_bytes()
    }
}
