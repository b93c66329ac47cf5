//! What leaves for a local peer.

use crate::backlog::Backlog;
use crate::ring::Writer;
use ferroce_os::sync::AtomicU64;

/// The ring to one slot, and what waits for it.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) ring: Writer,
    /// Which life of the slot reads it.
    pub(super) reader: u64,
    pub(super) waiting: Backlog,
}

impl Outgoing {
    /// Moves waiting packets into the ring, as far as there is room. Returns whether none waits any more.
    pub(super) fn flush(&mut self, consumed: &AtomicU64) -> bool {
        while let Some((meta, piece)) = self.waiting.first() {
            // SAFETY: one piece, which lies in the backlog until it is dropped below.
            if !unsafe { self.ring.push(&meta, piece.len, std::iter::once(piece), consumed) } {
                return false;
            }
            self.waiting.drop_first();
        }
        true
    }
}
