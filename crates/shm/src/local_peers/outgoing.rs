//! Packets to a local peer.

use crate::backlog::Backlog;
use crate::ring::Writer;
use ferroce_os::sync::AtomicU64;

/// The ring to one slot, and the packets that wait for space in it.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) ring: Writer,
    /// The instance of the slot that reads it.
    pub(super) reader: u64,
    pub(super) waiting: Backlog,
}

impl Outgoing {
    /// Moves waiting packets into the ring until it is full. Returns whether all of them fit.
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
