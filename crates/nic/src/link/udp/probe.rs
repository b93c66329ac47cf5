//! Probes: datagrams that reveal the index of a socket in its reuseport group.
//!
//! The steering program delivers a probe to the socket with the index in the probe, so the receiver gets its index independently
//! of the roster.

use super::steer::{PROBE_INDEX_AT, PROBE_MAGIC};
use ferroce_proto::Gid;

const TOKEN_AT: usize = 8;
const ROUND_AT: usize = 24;
const ADDR_AT: usize = 32;
const LEN: usize = 48;

/// A probe to the socket at one index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Probe {
    /// The index.
    pub(super) index: u8,
    /// Proves that a process of this user sent it.
    pub(super) token: u128,
    /// Probes of one round were sent together, lowest index first.
    pub(super) round: u64,
    /// The bound address of the target: a probe to the wildcard address can arrive at a socket bound to one address.
    pub(super) addr: Gid,
}

impl Probe {
    /// Its wire format.
    pub(super) fn to_bytes(self) -> [u8; LEN] {
        let mut b = [0; LEN];
        b[..4].copy_from_slice(&PROBE_MAGIC.to_be_bytes());
        b[PROBE_INDEX_AT] = self.index;
        b[TOKEN_AT..ROUND_AT].copy_from_slice(&self.token.to_be_bytes());
        b[ROUND_AT..ADDR_AT].copy_from_slice(&self.round.to_be_bytes());
        b[ADDR_AT..].copy_from_slice(&self.addr.0);
        b
    }

    /// Reads a datagram that may be one.
    pub(super) fn parse(datagram: &[u8]) -> Option<Probe> {
        let b: &[u8; LEN] = datagram.try_into().ok()?;
        if b[..4] != PROBE_MAGIC.to_be_bytes() {
            return None;
        }
        Some(Probe {
            index: b[PROBE_INDEX_AT],
            token: u128::from_be_bytes(b[TOKEN_AT..ROUND_AT].try_into().ok()?),
            round: u64::from_be_bytes(b[ROUND_AT..ADDR_AT].try_into().ok()?),
            addr: Gid(b[ADDR_AT..].try_into().ok()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_comes_back() {
        let probe = Probe { index: 3, token: 7 << 100, round: 9, addr: Gid([5; 16]) };
        assert_eq!(Probe::parse(&probe.to_bytes()), Some(probe));
        assert_eq!(Probe::parse(&[0; LEN]), None);
        assert_eq!(Probe::parse(&probe.to_bytes()[1..]), None);
    }
}
