//! A piggybacked ACK on a request packet: a ferroce extension.
//!
//! ```text
//!  0 reserved(7) jumbo | 1..4 PSN | 4..8 AETH
//! ```
//!
//! It follows the other headers of a single-packet SEND or WRITE whose BTH has the extended bit. It is equivalent to an
//! ACK packet with that PSN and AETH. It is sent only to a peer that announced support.

use super::malformed::first_bytes;
use super::{Aeth, Malformed};
use crate::ids::Psn;

const JUMBO: u8 = 0x01;

/// An acknowledgement in a request packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PiggybackedAck {
    /// The PSN that an ACK packet would have.
    pub psn: Psn,
    /// The AETH that it would have.
    pub aeth: Aeth,
    /// The [jumbo bit](super::Bth::jumbo) that it would have.
    pub jumbo: bool,
}

impl PiggybackedAck {
    /// Bytes on the wire.
    pub const LEN: usize = 8;

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<PiggybackedAck, Malformed> {
        let &[flags, p0, p1, p2, a0, a1, a2, a3] = first_bytes(bytes)?;
        let psn = Psn::new(u32::from_be_bytes([0, p0, p1, p2]));
        Ok(PiggybackedAck { psn, aeth: Aeth::parse(&[a0, a1, a2, a3])?, jumbo: flags & JUMBO != 0 })
    }

    /// Encodes the header.
    #[inline]
    pub fn to_bytes(&self) -> [u8; PiggybackedAck::LEN] {
        let ([_, p0, p1, p2], [a0, a1, a2, a3]) = (self.psn.value().to_be_bytes(), self.aeth.to_bytes());
        [if self.jumbo { JUMBO } else { 0 }, p0, p1, p2, a0, a1, a2, a3]
    }
}
