//! Detection of killed peers on this host.
//!
//! A kernel ends the connections of a killed process and notifies their peers. A user-space NIC dies with its process, so its peers check:
//! once a second they test whether the processes of their connections still hold their slots in the registry. A process is watched only if
//! the registry listed it as alive at the peer's address when the connection was made. Processes of another machine, user or network
//! namespace are not in the registry, so they are never declared dead.

use super::CmService;
use super::service::Managed;
use ferroce_os::lock::Mutex;
use ferroce_proto::{Gid, Time};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// Interval of the checks. The background thread never sleeps longer than this.
const EVERY_NS: u64 = 1_000_000_000;
/// The time of the next check while no peer is watched.
const NEVER: u64 = u64::MAX;

/// The watched peers, by address and slot. The lock is held only briefly, also while the manager's is held.
pub(super) struct Watched {
    peers: Mutex<BTreeSet<(Gid, u8)>>,
    next_ns: AtomicU64,
}

impl Default for Watched {
    fn default() -> Self {
        Watched { peers: Mutex::default(), next_ns: AtomicU64::new(NEVER) }
    }
}

impl CmService {
    /// Watches the peer process of a new connection. The address is one of this host.
    pub(super) fn watch_peer(&self, peer: (Gid, u8), now: Time) {
        let (address, slot) = peer;
        let Some(ports) = self.ports.as_ref().filter(|_| slot != 0 && slot != self.slot) else { return };
        let mut peers = self.watched.peers.lock();
        if peers.contains(&peer) || !ports.is_alive(slot) || !ports.receives_at(slot, address) {
            return;
        }
        peers.insert(peer);
        let _ = self.watched.next_ns.compare_exchange(
            NEVER,
            now.0 + EVERY_NS,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// When the next check is due.
    pub(super) fn next_liveness_check_ns(&self) -> u64 {
        self.watched.next_ns.load(Ordering::Relaxed)
    }

    /// Checks, if it is time, whether the watched peers live, and ends the connections of those that do not.
    pub(super) fn check_liveness(&self, managed: &mut Managed, now: Time) {
        if self.next_liveness_check_ns() > now.0 {
            return;
        }
        let known: BTreeSet<(Gid, u8)> = managed.cm.peers().into_iter().collect();
        let mut peers = self.watched.peers.lock();
        // A dead peer stays in the list while it has connections: one that was answered but not yet confirmed ends later.
        peers.retain(|peer| known.contains(peer));
        for peer in peers.iter() {
            self.lives(*peer, managed, now);
        }
        let next_ns = if peers.is_empty() { NEVER } else { now.0 + EVERY_NS };
        self.watched.next_ns.store(next_ns, Ordering::Relaxed);
    }

    /// A request arrived from this address and slot. If the watched process is dead, the request came from another one that the registry does not
    /// list, and its connection must not end with those of the dead one.
    pub(super) fn recheck_peer(&self, peer: (Gid, u8), managed: &mut Managed, now: Time) {
        let mut peers = self.watched.peers.lock();
        if peers.contains(&peer) && !self.lives(peer, managed, now) {
            peers.remove(&peer);
        }
    }

    fn lives(&self, (address, slot): (Gid, u8), managed: &mut Managed, now: Time) -> bool {
        let lives = self.ports.as_ref().is_none_or(|ports| ports.is_alive(slot));
        if !lives {
            managed.cm.handle_death(address, slot, now);
        }
        lives
    }
}
