//! Offsets in a mapping. All mappings of a job have the same layout, so an offset is valid in all of them.

use crate::coherence::MAX_UPDATES;
use crate::{FLAGS, LOCKS, PAGE};

/// Notices in the log of a lock. A process that has missed more invalidates all its copies.
pub(super) const LOCK_NOTICES: usize = 60;
/// Bytes of a lock: its word, three numbers, and its notices.
const LOCK: usize = 8 + LOCK_HEADER + 8 * LOCK_NOTICES;
const LOCK_HEADER: usize = 24;
/// Notices of a barrier that are written to all processes; each process fetches more on demand.
pub(super) const SHORT_NOTICES: usize = 64;
/// Maximum number of notices of a barrier.
pub(super) const LONG_NOTICES: usize = 64 << 10;
/// Bytes of changes that one process packs for another at a barrier.
pub(super) const PARCEL: usize = 1 << 20;
/// Pages that one process sends another at a barrier, behind the number of the barrier and of each page.
pub(super) const UPDATE_HEADER: usize = 8 + 8 * MAX_UPDATES;
const UPDATES: usize = UPDATE_HEADER + MAX_UPDATES * PAGE;
/// Bytes of messages in flight from one process to another.
pub(super) const RING: usize = 64 << 10;

/// Offsets in the mapping of a job of `size` processes.
#[derive(Debug, Clone, Copy)]
pub(super) struct MappingLayout {
    size: usize,
    /// Slots for waiters of each lock; a power of two, so that tickets may wrap around.
    slots: usize,
}

impl MappingLayout {
    pub(super) fn new(size: u32) -> Self {
        let size = size as usize;
        Self { size, slots: size.next_power_of_two() }
    }

    /// Counts the barriers without coherence that process `rank` has passed.
    pub(super) fn wait_count(&self, rank: u32) -> usize {
        rank as usize * 8
    }

    /// The arrival of process `rank` at the last barrier of this parity.
    pub(super) fn arrival(&self, parity: usize, rank: u32) -> usize {
        self.wait_count(self.size as u32) + (parity * self.size + rank as usize) * 8
    }

    /// The last barrier, by parity, for which a child in the tree has gathered all arrivals below it.
    pub(super) fn gathered(&self, parity: usize, child: u32) -> usize {
        self.arrival(2, 0) + (parity * self.size + child as usize) * 8
    }

    /// The last barrier, by parity, for which the parent in the tree has sent all arrivals.
    pub(super) fn spread(&self, parity: usize) -> usize {
        self.gathered(2, 0) + parity * 8
    }

    pub(super) fn flag(&self, id: u32) -> usize {
        self.spread(2) + id as usize * 8
    }

    /// The grant, written by the process that hands a lock over to us.
    pub(super) fn lock_grant(&self, lock: u32) -> usize {
        self.flag(FLAGS) + lock as usize * 8
    }

    /// Local: where the old value of a lock's word arrives.
    pub(super) fn ticket(&self, lock: u32) -> usize {
        self.lock_grant(LOCKS) + lock as usize * 8
    }

    /// Local: where the rank of the next waiter arrives.
    pub(super) fn next_waiter(&self, lock: u32) -> usize {
        self.ticket(LOCKS) + lock as usize * 8
    }

    /// Local: where the old value of a lock's word arrives after a release.
    pub(super) fn released(&self, lock: u32) -> usize {
        self.next_waiter(LOCKS) + lock as usize * 8
    }

    /// A copy of a lock's header and notices, written by ourselves or by the process that hands the lock over to us.
    pub(super) fn lock_copy(&self, lock: u32) -> usize {
        self.released(LOCKS) + lock as usize * (LOCK - 8)
    }

    /// Bytes of that copy.
    pub(super) fn lock_copy_len(&self) -> usize {
        LOCK - 8
    }

    /// The process that has a lock's word.
    pub(super) fn lock_home(&self, lock: u32) -> u32 {
        lock % self.size as u32
    }

    /// At the home: the word of the lock.
    pub(super) fn lock_word(&self, lock: u32) -> usize {
        self.lock_copy(LOCKS) + lock as usize / self.size * LOCK
    }

    /// At the home: header and notices of the lock.
    pub(super) fn lock_log(&self, lock: u32) -> usize {
        self.lock_word(lock) + 8
    }

    fn locks_per_home(&self) -> usize {
        (LOCKS as usize).div_ceil(self.size)
    }

    fn lock_slots(&self) -> usize {
        self.lock_copy(LOCKS) + self.locks_per_home() * LOCK
    }

    /// At the home: the slot of the process that waits with this ticket.
    pub(super) fn lock_slot(&self, lock: u32, ticket: u32) -> usize {
        let slot = ticket as usize & (self.slots - 1);
        self.lock_slots() + (lock as usize / self.size * self.slots + slot) * 8
    }

    /// Bytes of messages received from a process.
    pub(super) fn mail_tail(&self, from: u32) -> usize {
        self.lock_slots() + self.locks_per_home() * self.slots * 8 + from as usize * 8
    }

    /// Bytes of our messages that a process has taken.
    pub(super) fn mail_taken(&self, by: u32) -> usize {
        self.mail_tail(self.size as u32) + by as usize * 8
    }

    /// A word that is written and never read.
    pub(super) fn nothing(&self) -> usize {
        self.mail_taken(self.size as u32)
    }

    pub(super) fn short_notices(&self, parity: usize, rank: u32) -> usize {
        self.nothing() + 8 + (parity * self.size + rank as usize) * SHORT_NOTICES * 8
    }

    /// Written by us: all notices of a barrier.
    pub(super) fn long_notices(&self, parity: usize) -> usize {
        self.short_notices(2, 0) + parity * LONG_NOTICES * 8
    }

    /// Local: a copy of the notices of another process.
    pub(super) fn notices_copy(&self) -> usize {
        self.long_notices(2)
    }

    pub(super) fn mail_ring(&self, from: u32) -> usize {
        self.notices_copy() + LONG_NOTICES * 8 + from as usize * RING
    }

    /// Local: messages that we send, at the same offsets as in the receiver's ring.
    pub(super) fn mail_stage(&self, to: u32) -> usize {
        self.mail_ring(self.size as u32) + to as usize * RING
    }

    /// Changes that a process packed for us.
    pub(super) fn parcel(&self, from: u32) -> usize {
        self.mail_stage(self.size as u32) + from as usize * PARCEL
    }

    /// Local: changes that we pack for a process.
    pub(super) fn parcel_stage(&self, to: u32) -> usize {
        self.parcel(self.size as u32) + to as usize * PARCEL
    }

    /// Pages that a process sent us with its arrival at the last barrier of this parity.
    pub(super) fn updates(&self, parity: usize, from: u32) -> usize {
        self.parcel_stage(self.size as u32) + (parity * self.size + from as usize) * UPDATES
    }

    /// Local: pages that we send a process.
    pub(super) fn updates_stage(&self, parity: usize, to: u32) -> usize {
        self.updates(2, 0) + (parity * self.size + to as usize) * UPDATES
    }

    /// Start of the heap.
    pub(super) fn len(&self) -> usize {
        self.updates_stage(2, 0).next_multiple_of(PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap() {
        for size in [1, 2, 3, 64, 1024] {
            let mapping = MappingLayout::new(size);
            let last = size - 1;
            let ends = [
                (mapping.wait_count(last) + 8, mapping.arrival(0, 0)),
                (mapping.arrival(1, last) + 8, mapping.gathered(0, 0)),
                (mapping.spread(1) + 8, mapping.flag(0)),
                (mapping.lock_copy(LOCKS - 1) + mapping.lock_copy_len(), mapping.lock_word(0)),
                (mapping.lock_log(LOCKS - 1) + mapping.lock_copy_len(), mapping.lock_slot(0, 0)),
                (mapping.lock_slot(LOCKS - 1, u32::MAX) + 8, mapping.mail_tail(0)),
                (mapping.mail_taken(last) + 8, mapping.nothing()),
                (mapping.short_notices(1, last) + SHORT_NOTICES * 8, mapping.long_notices(0)),
                (mapping.mail_stage(last) + RING, mapping.parcel(0)),
                (mapping.parcel_stage(last) + PARCEL, mapping.updates(0, 0)),
                (mapping.updates(1, last) + UPDATES, mapping.updates_stage(0, 0)),
                (mapping.updates_stage(1, last) + UPDATES, mapping.len()),
            ];
            for (end, next) in ends {
                assert!(end <= next && end.is_multiple_of(8), "{size} processes: {end} {next}");
            }
        }
    }
}
