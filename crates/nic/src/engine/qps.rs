//! Which queue pair has this number.
//!
//! A number has the process slot in the high eight bits, so that the host's processes can steer packets to each other, and
//! sixteen random bits, so that it cannot be guessed. A freed number stays in quarantine as long as others are free: peers remember
//! it while their end of a connection is in TIMEWAIT, and reject a connection request with it as stale.

use super::{LOCK_PATIENCE, QpCore};
use crate::limits::MAX_QP;
use ferroce_os::lock::{Mutex, RwLock};
use ferroce_proto::Qpn;
use rand::Rng;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const CHUNK: usize = 256;
const CHUNKS: usize = 256;

/// Most numbers that are in use or in quarantine: an eighth is left to choose from. Beyond that, the oldest leave the quarantine.
const NOT_FREE: usize = 57_344;

type Slot = RwLock<Option<Arc<QpCore>>>;

pub(crate) struct QpTable {
    base: u32,
    /// Incremented with every queue pair that is destroyed.
    removals: AtomicU64,
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    numbers: Mutex<NumberPool>,
}

/// Which numbers are free.
struct NumberPool {
    /// How many are in use.
    count: u64,
    /// The freed numbers that are not used again yet, the oldest first.
    quarantine: VecDeque<u16>,
    /// The same as a set, one bit each.
    quarantined: Box<[u64]>,
}

impl NumberPool {
    fn is_quarantined(&self, low: u16) -> bool {
        self.quarantined[usize::from(low) / 64] >> (low % 64) & 1 != 0
    }

    fn toggle(&mut self, low: u16) {
        self.quarantined[usize::from(low) / 64] ^= 1 << (low % 64);
    }

    fn release(&mut self, low: u16) {
        self.count -= 1;
        self.quarantine.push_back(low);
        self.toggle(low);
    }

    fn reuse_oldest(&mut self) {
        while self.count as usize + self.quarantine.len() > NOT_FREE
            && let Some(oldest) = self.quarantine.pop_front()
        {
            self.toggle(oldest);
        }
    }
}

impl QpTable {
    pub(super) fn new(slot: u8) -> Self {
        QpTable {
            base: u32::from(slot) << 16,
            removals: AtomicU64::new(0),
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            numbers: Mutex::new(NumberPool {
                count: 0,
                quarantine: VecDeque::new(),
                quarantined: vec![0; 0x1_0000 / 64].into(),
            }),
        }
    }

    fn slot(&self, qpn: Qpn) -> Option<&Slot> {
        if qpn.value() & 0xff_0000 != self.base {
            return None;
        }
        let low = (qpn.value() & 0xffff) as usize;
        self.chunks[low / CHUNK].get()?.get(low % CHUNK)
    }

    /// A count that changes when a queue pair is destroyed: an earlier look-up may then be stale.
    #[inline]
    pub(super) fn removals(&self) -> u64 {
        self.removals.load(Ordering::Acquire)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<Arc<QpCore>> {
        self.slot(qpn)?.read().clone()
    }

    /// Adds a queue pair under a fresh random number.
    pub(crate) fn insert(&self, make: impl FnOnce(Qpn) -> Arc<QpCore>) -> Option<Arc<QpCore>> {
        let mut numbers = self.numbers.lock();
        if numbers.count >= MAX_QP {
            return None;
        }
        numbers.reuse_oldest();
        let mut rng = ferroce_os::random::generator();
        loop {
            let low = rng.random_range(2..0xffff_u32);
            if numbers.is_quarantined(low as u16) {
                continue;
            }
            let chunk = self.chunks[low as usize / CHUNK]
                .get_or_init(|| (0..CHUNK).map(|_| RwLock::new(None)).collect());
            let mut slot = chunk[low as usize % CHUNK].write();
            if slot.is_none() {
                numbers.count += 1;
                return Some(slot.insert(make(Qpn::new(self.base | low))).clone());
            }
        }
    }

    pub(crate) fn remove(&self, qpn: Qpn) {
        if let Some(slot) = self.slot(qpn)
            && slot.write().take().is_some()
        {
            self.removals.fetch_add(1, Ordering::Release);
            self.numbers.lock().release((qpn.value() & 0xffff) as u16);
        }
    }

    /// All queue pairs, for counters. At the exit of a process the lock of an entry may belong to a thread that no longer runs; that entry is
    /// left out.
    pub(crate) fn all(&self) -> Vec<Arc<QpCore>> {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        let entry = |slot: &Slot| slot.try_read_for(LOCK_PATIENCE)?.clone();
        chunks.flat_map(|chunk| chunk.iter().filter_map(entry)).collect()
    }

    /// Whether the queue pair is in the table.
    pub(super) fn has(&self, qp: &Arc<QpCore>) -> bool {
        self.get(qp.qpn).is_some_and(|found| Arc::ptr_eq(&found, qp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_rests_as_long_as_there_are_others() {
        const LIVE: usize = 9_000;
        let quarantined = vec![0; 0x1_0000 / 64].into();
        let mut numbers =
            NumberPool { count: (NOT_FREE - 1) as u64, quarantine: VecDeque::new(), quarantined };
        numbers.release(5);
        for low in 100..100 + (NOT_FREE - LIVE) as u16 {
            numbers.release(low);
            numbers.reuse_oldest();
            assert!(numbers.is_quarantined(5) && numbers.is_quarantined(low));
        }
        numbers.count += 3;
        numbers.reuse_oldest();
        assert!(!numbers.is_quarantined(5) && !numbers.is_quarantined(100) && numbers.is_quarantined(101));
        const { assert!(MAX_QP < NOT_FREE as u64) };
    }
}
