//! How many offers of strangers are remembered. An offer costs its sender one packet and us a connection, so their number
//! has a bound, in all and for each address: whoever floods finds its offers dropped before the others do.

use super::{Cm, CommId};
use crate::ids::Gid;
use alloc::collections::BTreeMap;

/// Offers that have not become an established connection, by the address they came from.
#[derive(Default)]
pub(super) struct HalfOpen {
    total: usize,
    by_peer: BTreeMap<Gid, usize>,
}

impl HalfOpen {
    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn of(&self, peer: Gid) -> usize {
        self.by_peer.get(&peer).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, peer: Gid) {
        self.total += 1;
        *self.by_peer.entry(peer).or_default() += 1;
    }

    fn remove(&mut self, peer: Gid) {
        self.total = self.total.saturating_sub(1);
        if let Some(count) = self.by_peer.get_mut(&peer) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.by_peer.remove(&peer);
            }
        }
    }
}

impl Cm {
    /// The offer became a connection, or is forgotten.
    pub(super) fn no_longer_half_open(&mut self, id: CommId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && core::mem::take(&mut connection.is_half_open)
        {
            self.half_open.remove(connection.path.dgid);
        }
    }

    /// Offers of others that have not become an established connection.
    pub fn half_open(&self) -> usize {
        self.half_open.total()
    }
}
