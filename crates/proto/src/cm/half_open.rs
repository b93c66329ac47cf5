//! The limit on half-open connections. A REQ costs its sender one packet and the NIC a connection, so their number is
//! limited in total and per address. A flooding address reaches its own limit first.

use super::{Cm, CommId};
use crate::ids::Gid;
use alloc::collections::BTreeMap;

/// Half-open connections by source address.
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
    /// A half-open connection was established or discarded.
    pub(super) fn no_longer_half_open(&mut self, id: CommId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && core::mem::take(&mut connection.is_half_open)
        {
            self.half_open.remove(connection.path.dgid);
        }
    }

    /// Number of half-open connections.
    pub fn half_open(&self) -> usize {
        self.half_open.total()
    }
}
