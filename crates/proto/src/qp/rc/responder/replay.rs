//! Records of executed READs, atomics, flushes and atomic writes, from which duplicates are answered. Only a READ executes
//! again, within the range of the first one.

use crate::ids::{Psn, RKey};
use alloc::collections::VecDeque;

/// An executed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Executed {
    /// A READ of `packets` responses; its data is read again on replay.
    Read { psn: Psn, packets: u32, addr: u64, rkey: RKey, len: u32 },
    /// A flush or an atomic write.
    Placement { psn: Psn },
    /// An atomic and the value it found.
    Atomic { psn: Psn, original: u64 },
}

/// The last `max_dest_rd_atomic` requests. A requester has no more in flight, so older ones cannot be repeated
/// (C9-150).
#[derive(Debug, Default)]
pub(super) struct ReplayStore {
    executed: VecDeque<Executed>,
    depth: usize,
}

impl ReplayStore {
    /// Keeps the newest `depth` records: the requester may repeat only those.
    pub(super) fn resize(&mut self, depth: usize) {
        self.depth = depth;
        self.executed.drain(..self.executed.len().saturating_sub(depth));
        self.executed.shrink_to(depth);
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn remember(&mut self, executed: Executed) {
        if self.executed.len() == self.depth {
            self.executed.pop_front();
        }
        self.executed.push_back(executed);
    }

    /// The original value of the atomic with this PSN.
    pub(super) fn atomic(&self, psn: Psn) -> Option<u64> {
        self.executed.iter().rev().find_map(|e| match *e {
            Executed::Atomic { psn: p, original } if p == psn => Some(original),
            _ => None,
        })
    }

    /// Whether `[addr, addr + len)` from `psn` on lies inside an executed READ at the same offset.
    pub(super) fn covers_read(&self, psn: Psn, addr: u64, rkey: RKey, len: u32, segment: u32) -> bool {
        self.executed.iter().rev().any(|e| match *e {
            Executed::Read { psn: first, packets, addr: start, rkey: key, len: whole } => {
                let skip = psn.distance_from(first);
                if skip < 0 || skip as u32 >= packets || key != rkey {
                    return false;
                }
                let offset = u64::from(skip as u32) * u64::from(segment);
                addr == start.wrapping_add(offset)
                    && u64::from(len) <= u64::from(whole).saturating_sub(offset)
            }
            Executed::Atomic { .. } | Executed::Placement { .. } => false,
        })
    }

    /// Whether a flush or atomic write with this PSN was executed.
    pub(super) fn placement(&self, psn: Psn) -> bool {
        self.executed.contains(&Executed::Placement { psn })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_smaller_store_keeps_the_newest_records() {
        let mut store = ReplayStore::default();
        store.resize(4);
        for n in 1..=4 {
            store.remember(Executed::Atomic { psn: Psn::new(n), original: u64::from(n) });
        }
        store.resize(2);
        assert_eq!([1, 2, 3, 4].map(|n| store.atomic(Psn::new(n))), [None, None, Some(3), Some(4)]);
    }
}
