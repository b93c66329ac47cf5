//! RDMA extended transport header: which remote memory (IBA 9.3).

use super::Malformed;
use super::malformed::first_bytes;
use crate::ids::RKey;

/// RDMA extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reth {
    /// Address of the first byte, in the address space of the region's owner.
    pub addr: u64,
    /// Key of the region.
    pub rkey: RKey,
    /// Length of the whole message, not of this packet.
    pub len: u32,
}

impl Reth {
    /// Bytes on the wire.
    pub const LEN: usize = 16;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Reth, Malformed> {
        let &[a0, a1, a2, a3, a4, a5, a6, a7, k0, k1, k2, k3, l0, l1, l2, l3] = first_bytes(bytes)?;
        Ok(Reth {
            addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            rkey: RKey(u32::from_be_bytes([k0, k1, k2, k3])),
            len: u32::from_be_bytes([l0, l1, l2, l3]),
        })
    }

    /// Encodes the header.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Reth::LEN] {
        let mut b = [0; Reth::LEN];
        b[..8].copy_from_slice(&self.addr.to_be_bytes());
        b[8..12].copy_from_slice(&self.rkey.0.to_be_bytes());
        b[12..].copy_from_slice(&self.len.to_be_bytes());
        b
    }
}
