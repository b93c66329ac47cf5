//! Atomic extended transport header: address, key and operands (IBA 9.3).

use super::malformed::first_bytes;
use super::{Malformed, Reth};
use crate::ids::RKey;

/// Atomic extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicEth {
    /// Address of the 8 bytes.
    pub addr: u64,
    /// Key of the region.
    pub rkey: RKey,
    /// New value of a compare and swap, or the addend of a fetch and add.
    pub swap_or_add: u64,
    /// Value that a compare and swap expects.
    pub compare: u64,
}

impl AtomicEth {
    /// Bytes on the wire.
    pub const LEN: usize = 28;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<AtomicEth, Malformed> {
        let b: &[u8; AtomicEth::LEN] = first_bytes(bytes)?;
        // Address and key have the offsets of an RETH. The operands begin at the offset of its length.
        let Reth { addr, rkey, .. } = Reth::parse(b)?;
        let operand = |at: usize| first_bytes(&b[at..]).map(|b: &[u8; 8]| u64::from_be_bytes(*b));
        Ok(AtomicEth { addr, rkey, swap_or_add: operand(12)?, compare: operand(20)? })
    }

    /// Encodes the header.
    #[inline]
    pub fn to_bytes(&self) -> [u8; AtomicEth::LEN] {
        let mut b = [0; AtomicEth::LEN];
        b[..8].copy_from_slice(&self.addr.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..20].copy_from_slice(&self.swap_or_add.to_be_bytes());
        b[20..].copy_from_slice(&self.compare.to_be_bytes());
        b
    }
}
