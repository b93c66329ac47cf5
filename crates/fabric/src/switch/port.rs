//! An egress port: its queues, their scheduler, and RED.

use super::{Entry, PRIORITIES, Red};
use crate::rng::Pcg32;
use std::collections::VecDeque;

/// A port.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) rate: u64,
    pub(super) tx_bytes: u64,
    red: Option<Red>,
    rng: Pcg32,
    queues: [VecDeque<Entry>; PRIORITIES],
    bytes: [u32; PRIORITIES],
    /// Priorities with packets, as bits.
    occupied: u8,
    /// Priorities that the peer paused, as bits. Never priority 0.
    paused: u8,
    /// The data priority that was served last; 0 before the first one.
    served: u8,
}

impl Port {
    pub(super) fn new(rate: u64, red: Option<Red>, rng: Pcg32) -> Port {
        Port {
            rate,
            tx_bytes: 0,
            red,
            rng,
            queues: Default::default(),
            bytes: [0; PRIORITIES],
            occupied: 0,
            paused: 0,
            served: 0,
        }
    }

    #[inline]
    pub(super) fn push(&mut self, priority: u8, entry: Entry) {
        let at = usize::from(priority);
        self.queues[at].push_back(entry);
        self.bytes[at] += entry.bytes;
        self.occupied |= 1 << priority;
    }

    /// The next packet with its priority, and whether RED marks it.
    #[inline]
    pub(super) fn pop(&mut self) -> Option<(u8, Entry, bool)> {
        let ready = self.occupied & !self.paused;
        if ready == 0 {
            return None;
        }
        let priority = if ready & 1 != 0 {
            0
        } else {
            // Round robin: the first one after the priority that was served last.
            let after = ready & !((2u8 << self.served).wrapping_sub(1));
            let next = if after != 0 { after } else { ready };
            self.served = next.trailing_zeros() as u8;
            self.served
        };
        let at = usize::from(priority);
        let entry = self.queues[at].pop_front()?;
        self.bytes[at] -= entry.bytes;
        if self.queues[at].is_empty() {
            self.occupied &= !(1 << priority);
        }
        self.tx_bytes += u64::from(entry.bytes);
        let mark = priority > 0 && self.chooses(self.bytes[at]);
        Some((priority, entry, mark))
    }

    /// RED on the queue that the packet leaves behind.
    fn chooses(&mut self, queue: u32) -> bool {
        let Some(red) = &self.red else { return false };
        let queue = f64::from(queue);
        if queue <= red.kmin {
            false
        } else if queue > red.kmax {
            true
        } else {
            let share = (queue - red.kmin) / (red.kmax - red.kmin);
            f64::from(self.rng.next_u32()) < red.pmax * share * 4294967296.0
        }
    }

    pub(super) fn can_pop(&self) -> bool {
        self.occupied & !self.paused != 0
    }

    pub(super) fn set_paused(&mut self, priority: u8, stop: bool) {
        let bit = (1u8 << priority) & !1;
        self.paused = if stop { self.paused | bit } else { self.paused & !bit };
    }

    pub(super) fn queue_bytes(&self, priority: u8) -> u32 {
        self.bytes[usize::from(priority)]
    }

    pub(super) fn bytes(&self) -> u32 {
        self.bytes.iter().sum()
    }
}
