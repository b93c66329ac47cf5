//! Which queue pair must be polled when.
//!
//! Deadlines move with every acknowledgement, almost always later. So the heap stores a deadline only if it is earlier than
//! the queue pair's stored one. When that one passes, the queue pair's current deadline is read.

use super::QpCore;
use ferroce_os::lock::Mutex;
use ferroce_proto::{Qpn, Time};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) struct Timers {
    heap: Mutex<BinaryHeap<Reverse<(u64, u32)>>>,
    next_ns: AtomicU64,
}

/// Deadlines that fit without an allocation: a verb that arms a timer should not have to allocate.
const CAPACITY: usize = 1024;

impl Default for Timers {
    fn default() -> Self {
        Timers { heap: Mutex::new(BinaryHeap::with_capacity(CAPACITY)), next_ns: AtomicU64::new(u64::MAX) }
    }
}

impl Timers {
    /// The earliest deadline, `u64::MAX` if none.
    pub(super) fn next_ns(&self) -> u64 {
        self.next_ns.load(Ordering::SeqCst)
    }

    /// Makes sure that `qp` is polled by `deadline`. The caller holds its lock. Returns whether this is now the earliest deadline
    /// of all.
    #[inline]
    pub(super) fn arm(&self, qp: &QpCore, deadline: Time) -> bool {
        deadline.0 < qp.timer_at.load(Ordering::Relaxed) && self.advance(qp, deadline)
    }

    #[inline(never)] // rare: a deadline that moves to a later time is armed when the earlier one passes
    fn advance(&self, qp: &QpCore, deadline: Time) -> bool {
        qp.timer_at.store(deadline.0, Ordering::Relaxed);
        let mut heap = self.heap.lock();
        heap.push(Reverse((deadline.0, qp.qpn.value())));
        self.next_ns.fetch_min(deadline.0, Ordering::SeqCst) > deadline.0
    }

    /// A queue pair whose deadline passed, with that deadline.
    pub(super) fn pop_due(&self, now: Time) -> Option<(Qpn, u64)> {
        let mut heap = self.heap.lock();
        let due = match heap.peek() {
            Some(Reverse((at, _))) if *at <= now.0 => {
                heap.pop().map(|Reverse((at, qpn))| (Qpn::new(qpn), at))
            }
            _ => None,
        };
        let next = heap.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        self.next_ns.store(next, Ordering::SeqCst);
        due
    }
}
