//! Which queue pair has this number.
//!
//! A number is the process slot in the high eight bits, so that the host's processes find each other's packets, and
//! sixteen random bits, so that nobody guesses it.

use crate::objects::QpCore;
use ferroce_proto::Qpn;
use parking_lot::{Mutex, RwLock};
use rand::Rng;
use std::sync::{Arc, OnceLock};

const CHUNK: usize = 256;
const CHUNKS: usize = 256;

/// Most queue pairs of one NIC: three quarters of the numbers, so that a random free one is found quickly.
pub(crate) const MAX_QP: u64 = 49_152;

type Slot = RwLock<Option<Arc<QpCore>>>;

pub(crate) struct QpTable {
    base: u32,
    chunks: Box<[OnceLock<Box<[Slot]>>]>,
    count: Mutex<u64>,
}

impl QpTable {
    pub(super) fn new(slot: u8) -> Self {
        QpTable {
            base: u32::from(slot) << 16,
            chunks: (0..CHUNKS).map(|_| OnceLock::new()).collect(),
            count: Mutex::new(0),
        }
    }

    fn place(&self, qpn: Qpn) -> Option<&Slot> {
        if qpn.value() & 0xff_0000 != self.base {
            return None;
        }
        let low = (qpn.value() & 0xffff) as usize;
        self.chunks[low / CHUNK].get()?.get(low % CHUNK)
    }

    pub(crate) fn get(&self, qpn: Qpn) -> Option<Arc<QpCore>> {
        self.place(qpn)?.read().clone()
    }

    /// Adds a queue pair under a fresh random number.
    pub(crate) fn insert(&self, make: impl FnOnce(Qpn) -> Arc<QpCore>) -> Option<Arc<QpCore>> {
        let mut count = self.count.lock();
        if *count >= MAX_QP {
            return None;
        }
        let mut rng = rand::rng();
        loop {
            let low = rng.random_range(2..0xffff_u32);
            let chunk = self.chunks[low as usize / CHUNK]
                .get_or_init(|| (0..CHUNK).map(|_| RwLock::new(None)).collect());
            let mut slot = chunk[low as usize % CHUNK].write();
            if slot.is_none() {
                *count += 1;
                return Some(slot.insert(make(Qpn::new(self.base | low))).clone());
            }
        }
    }

    pub(crate) fn remove(&self, qpn: Qpn) {
        if let Some(slot) = self.place(qpn)
            && slot.write().take().is_some()
        {
            *self.count.lock() -= 1;
        }
    }

    /// All of them, for counters.
    pub(crate) fn all(&self) -> Vec<Arc<QpCore>> {
        let chunks = self.chunks.iter().filter_map(OnceLock::get);
        chunks.flat_map(|chunk| chunk.iter().filter_map(|slot| slot.read().clone())).collect()
    }
}
