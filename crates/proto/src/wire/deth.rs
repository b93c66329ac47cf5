//! Datagram extended transport header: source queue pair and Q_Key (IBA 9.3).

use super::Malformed;
use super::malformed::first_bytes;
use crate::ids::{Qkey, Qpn};

/// Datagram extended transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deth {
    /// Must be the key of the receiving queue pair.
    pub qkey: Qkey,
    /// Queue pair that the packet comes from.
    pub src_qpn: Qpn,
}

impl Deth {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Deth, Malformed> {
        let &[k0, k1, k2, k3, _reserved, q0, q1, q2] = first_bytes(bytes)?;
        Ok(Deth {
            qkey: Qkey(u32::from_be_bytes([k0, k1, k2, k3])),
            src_qpn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
        })
    }

    /// Encodes the header.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Deth::LEN] {
        let mut b = [0; Deth::LEN];
        b[..4].copy_from_slice(&self.qkey.0.to_be_bytes());
        b[4..].copy_from_slice(&self.src_qpn.value().to_be_bytes());
        b
    }
}
