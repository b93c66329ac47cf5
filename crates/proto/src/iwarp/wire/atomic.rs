//! The bodies of atomic requests and responses (RFC 7306, 5.2).

use super::ddp::first;
use super::{StreamError, u32_at, u64_at};
use crate::ids::RKey;
use crate::verbs::AtomicOp;

const FETCH_ADD: u8 = 0;
const COMPARE_SWAP: u8 = 2;

/// An atomic request. The masks of RFC 7306 exist on the wire; ferroce sends those of a plain 64-bit operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The operation code, four bits.
    pub code: u8,
    /// The requester's number, which the response repeats.
    pub id: u32,
    /// Key of the memory.
    pub stag: RKey,
    /// Address of the eight bytes.
    pub to: u64,
    /// Addend, or new value.
    pub data: u64,
    /// Bits that are the highest of a field (add), or that change (swap).
    pub data_mask: u64,
    /// The expected value.
    pub compare: u64,
    /// Bits of it that count.
    pub compare_mask: u64,
}

impl AtomicRequest {
    /// Bytes on the wire.
    pub const LEN: usize = 52;

    /// The request for a plain operation.
    pub const fn new(id: u32, stag: RKey, to: u64, op: AtomicOp) -> AtomicRequest {
        match op {
            AtomicOp::FetchAdd { add } => AtomicRequest {
                code: FETCH_ADD,
                id,
                stag,
                to,
                data: add,
                data_mask: 0,
                compare: 0,
                compare_mask: 0,
            },
            AtomicOp::CompareSwap { compare, swap } => AtomicRequest {
                code: COMPARE_SWAP,
                id,
                stag,
                to,
                data: swap,
                data_mask: u64::MAX,
                compare,
                compare_mask: u64::MAX,
            },
        }
    }

    /// The operation. `None` for a reserved code, or for masks that split the eight bytes.
    pub const fn op(&self) -> Option<AtomicOp> {
        match *self {
            AtomicRequest { code: FETCH_ADD, data_mask: 0, data, .. } => {
                Some(AtomicOp::FetchAdd { add: data })
            }
            AtomicRequest {
                code: COMPARE_SWAP,
                data_mask: u64::MAX,
                compare_mask: u64::MAX,
                data,
                compare,
                ..
            } => Some(AtomicOp::CompareSwap { compare, swap: data }),
            _ => None,
        }
    }

    /// Reads the body at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<AtomicRequest, StreamError> {
        let bytes: &[u8; AtomicRequest::LEN] = first(bytes)?;
        Ok(AtomicRequest {
            code: bytes[3] & 0x0f,
            id: u32_at(bytes, 4),
            stag: RKey(u32_at(bytes, 8)),
            to: u64_at(bytes, 12),
            data: u64_at(bytes, 20),
            data_mask: u64_at(bytes, 28),
            compare: u64_at(bytes, 36),
            compare_mask: u64_at(bytes, 44),
        })
    }

    /// Encodes the body.
    pub fn to_bytes(&self) -> [u8; AtomicRequest::LEN] {
        let mut out = [0; AtomicRequest::LEN];
        out[3] = self.code & 0x0f;
        out[4..8].copy_from_slice(&self.id.to_be_bytes());
        out[8..12].copy_from_slice(&self.stag.0.to_be_bytes());
        let words = [self.to, self.data, self.data_mask, self.compare, self.compare_mask];
        for (bytes, value) in out[12..].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&value.to_be_bytes());
        }
        out
    }
}

/// An atomic response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicResponse {
    /// The number of the request.
    pub id: u32,
    /// The value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// Reads the body at the start of `bytes`.
    pub fn parse(bytes: &[u8]) -> Result<AtomicResponse, StreamError> {
        let bytes: &[u8; AtomicResponse::LEN] = first(bytes)?;
        Ok(AtomicResponse { id: u32_at(bytes, 0), original: u64_at(bytes, 4) })
    }

    /// Encodes the body.
    pub fn to_bytes(&self) -> [u8; AtomicResponse::LEN] {
        let mut out = [0; AtomicResponse::LEN];
        out[..4].copy_from_slice(&self.id.to_be_bytes());
        out[4..].copy_from_slice(&self.original.to_be_bytes());
        out
    }
}
