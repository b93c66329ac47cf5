//! Peers on this host that die without a word.
//!
//! A kernel ends the connections of a process that is killed, and their peers hear of it. Here nobody is left to do that, so the survivors
//! look: once a second, whether the processes that they have connections with still hold their slots in the registry. Only processes that the
//! registry knew to live at the peer's address when the connection was made are looked after. Another machine's, another user's, another
//! network namespace's are not in it, and nothing is concluded of them.

use super::CmService;
use super::service::Managed;
use ferroce_os::lock::Mutex;
use ferroce_proto::{Gid, Time};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often. The thread that sleeps does not sleep longer anyway.
const EVERY_NS: u64 = 1_000_000_000;
/// When nobody is looked after.
const NEVER: u64 = u64::MAX;

/// Whom we look after, by address and slot. Its lock is held for a moment, also with the manager's.
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
    /// A connection with this process is being made, whose address is one of this host.
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

    /// When the next look is due.
    pub(super) fn next_liveness_check_ns(&self) -> u64 {
        self.watched.next_ns.load(Ordering::Relaxed)
    }

    /// Looks whether they live, if it is time, and ends the connections of those who do not.
    pub(super) fn check_liveness(&self, managed: &mut Managed, now: Time) {
        if self.next_liveness_check_ns() > now.0 {
            return;
        }
        let known: BTreeSet<(Gid, u8)> = managed.cm.peers().into_iter().collect();
        let mut peers = self.watched.peers.lock();
        // The dead stay as long as there are connections with them: one that was answered, and is yet to be confirmed, ends after that.
        peers.retain(|peer| known.contains(peer));
        for peer in peers.iter() {
            self.lives(*peer, managed, now);
        }
        let next_ns = if peers.is_empty() { NEVER } else { now.0 + EVERY_NS };
        self.watched.next_ns.store(next_ns, Ordering::Relaxed);
    }

    /// A message of a new connection came: the process that had the slot before may be another one, whose end nobody has noticed.
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
