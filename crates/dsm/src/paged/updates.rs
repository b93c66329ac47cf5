//! Pages that are sent with an arrival at a barrier, to processes that requested them.
//!
//! They are copied first: the program may write a page again before the receiver has acknowledged it. A copy is
//! overwritten at the second barrier after it. By then its receiver has arrived at the barrier between them.

use super::Core;
use super::layout::UPDATE_HEADER;
use crate::PAGE;
use crate::coherence::{MAX_UPDATES, Update};
use crate::transport::Op;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

/// Bits of the first word below the number of the barrier: the number of pages.
const COUNT_BITS: u32 = 8;

impl Core {
    /// Copies the pages, and returns the write that sends them, by receiver.
    pub(super) fn stage_updates(&self, epoch: u64, updates: &[(u32, usize)]) -> BTreeMap<u32, Op> {
        let parity = (epoch & 1) as usize;
        let mut pages: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for &(to, page) in updates {
            pages.entry(to).or_default().push(page);
        }
        let stage = |(to, mut pages): (u32, Vec<usize>)| {
            pages.truncate(MAX_UPDATES);
            let local = self.layout.updates_stage(parity, to);
            let set = |at, value| self.mapping.long(local + 8 * at).store(value, Ordering::Release);
            set(0, epoch << COUNT_BITS | pages.len() as u64);
            for (at, page) in pages.iter().enumerate() {
                set(1 + at, *page as u64);
                let from = self.layout.len() + page * PAGE;
                self.mapping.copy_within(from, local + UPDATE_HEADER + at * PAGE, PAGE);
            }
            let remote = self.layout.updates(parity, self.rank);
            (to, Op::Write { remote, local, len: UPDATE_HEADER + pages.len() * PAGE })
        };
        pages.into_iter().map(stage).collect()
    }

    /// The pages that came with the arrivals at this barrier.
    pub(super) fn received_updates(&self, epoch: u64) -> Vec<Update> {
        let parity = (epoch & 1) as usize;
        let mut received = Vec::new();
        for from in self.others() {
            let place = self.layout.updates(parity, from);
            let word = |at: usize| self.mapping.long(place + 8 * at).load(Ordering::Acquire);
            if word(0) >> COUNT_BITS != epoch {
                continue;
            }
            let count = word(0) as usize & ((1 << COUNT_BITS) - 1);
            received.extend((0..count.min(MAX_UPDATES)).map(|at| Update {
                page: word(1 + at) as usize,
                from,
                at: place + UPDATE_HEADER + at * PAGE,
            }));
        }
        received
    }
}
