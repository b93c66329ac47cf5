//! Extension headers of a single field. [`Headers`](super::Headers) stores the value of the field itself, so each module only
//! parses and encodes it.

use super::Malformed;
use super::malformed::first_bytes;
use crate::ids::{RKey, Srqn};

/// AtomicAckETH: the value before the atomic (IBA 9.3).
pub(super) mod atomic_ack {
    use super::*;

    pub(in super::super) const LEN: usize = 8;

    #[inline]
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<u64, Malformed> {
        first_bytes(bytes).map(|b| u64::from_be_bytes(*b))
    }
    #[inline]
    pub(in super::super) fn to_bytes(original: u64) -> [u8; LEN] {
        original.to_be_bytes()
    }
}

/// ImmDt: immediate data, carried as it is (IBA 9.3).
pub(super) mod imm {
    use super::*;

    pub(in super::super) const LEN: usize = 4;

    #[inline]
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<u32, Malformed> {
        first_bytes(bytes).map(|b| u32::from_be_bytes(*b))
    }
    #[inline]
    pub(in super::super) fn to_bytes(imm: u32) -> [u8; LEN] {
        imm.to_be_bytes()
    }
}

/// IETH: the key to invalidate (IBA 9.3).
pub(super) mod ieth {
    use super::*;

    pub(in super::super) const LEN: usize = 4;

    #[inline]
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<RKey, Malformed> {
        first_bytes(bytes).map(|b| RKey(u32::from_be_bytes(*b)))
    }
    #[inline]
    pub(in super::super) fn to_bytes(rkey: RKey) -> [u8; LEN] {
        rkey.0.to_be_bytes()
    }
}

/// XRCETH: the shared receive queue that the request is for, 24 bits after a reserved byte (IBA annex A14).
pub(super) mod xrceth {
    use super::*;

    pub(in super::super) const LEN: usize = 4;

    #[inline]
    pub(in super::super) fn parse(bytes: &[u8]) -> Result<Srqn, Malformed> {
        first_bytes(bytes).map(|b| Srqn::new(u32::from_be_bytes(*b)))
    }
    #[inline]
    pub(in super::super) fn to_bytes(srq: Srqn) -> [u8; LEN] {
        srq.value().to_be_bytes()
    }
}
