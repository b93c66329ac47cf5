//! Offsets in the memory in front of the heap.

use crate::{FLAGS, LOCKS, PAGE};

/// Bytes of a cache line. Words that different processes wait for are on different lines.
const LINE: usize = 64;
/// Bytes of messages in flight to one process.
pub(super) const RING: usize = 256 << 10;
/// A mailbox: a line for senders, a line for the receiver, and the ring.
const MAILBOX: usize = 2 * LINE + RING;

/// Offsets for a job of some size.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    size: u32,
}

/// Offsets of the words of a mailbox.
#[derive(Debug, Clone, Copy)]
pub(super) struct MailboxLayout {
    /// Held by the sender whose message is being written.
    pub(super) sending: usize,
    /// Bytes ever written.
    pub(super) written: usize,
    /// Counts pieces written; receivers wait for it.
    pub(super) arrivals: usize,
    pub(super) arrival_sleepers: usize,
    /// Bytes ever read.
    pub(super) read: usize,
    /// Counts pieces read; senders wait for it if the ring is full.
    pub(super) departures: usize,
    pub(super) ring: usize,
}

impl Layout {
    pub(super) fn new(size: u32) -> Self {
        Self { size }
    }

    pub(super) fn len(self) -> usize {
        (self.mailboxes() + self.size as usize * MAILBOX).next_multiple_of(PAGE)
    }

    /// Count, round, sleepers. The count is on its own line, because every process writes it.
    pub(super) fn barrier(self) -> [usize; 3] {
        [0, LINE, LINE + 4]
    }

    /// For a job of two: the number of barriers at which a process has arrived, and the number of threads that sleep for it.
    pub(super) fn arrived(self, rank: u32) -> [usize; 2] {
        let at = (2 + rank as usize) * LINE;
        [at, at + 4]
    }

    pub(super) fn lock(self, id: u32) -> usize {
        4 * LINE + id as usize * LINE
    }

    /// The flag and its sleepers.
    pub(super) fn flag(self, id: u32) -> [usize; 2] {
        let at = self.lock(LOCKS) + id as usize * LINE;
        [at, at + 4]
    }

    fn mailboxes(self) -> usize {
        self.flag(FLAGS)[0]
    }

    pub(super) fn mailbox(self, rank: u32) -> MailboxLayout {
        let at = self.mailboxes() + rank as usize * MAILBOX;
        MailboxLayout {
            sending: at,
            written: at + 8,
            arrivals: at + 16,
            arrival_sleepers: at + 20,
            read: at + LINE,
            departures: at + LINE + 8,
            ring: at + 2 * LINE,
        }
    }
}
