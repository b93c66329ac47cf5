//! Requests that came too early: kept until those before them have come.
//!
//! A packet is kept as a whole and looked at only when it is next in sequence, as if the network had delivered it then.
//! So nothing about order, checks or memory differs from a network that loses nothing; no byte is placed early.

use crate::ids::Psn;
use crate::wire::{Headers, Packet};
use alloc::boxed::Box;

/// Most packets that are kept behind the first missing one. A power of two, so that the ring fits the space of sequence
/// numbers.
const MOST_KEPT: u32 = 1024;
/// Most bytes of data among them: what one peer may make us hold.
const MOST_BYTES: usize = 1 << 20;

/// Bytes of a report that says which packets are kept.
pub(in super::super) const REPORT_LEN: usize = MOST_KEPT as usize / 8;

#[derive(Debug)]
pub(super) struct Early {
    pub(super) headers: Headers,
    payload: Box<[u8]>,
}

impl Early {
    pub(super) fn packet(&self) -> Packet<'_> {
        Packet { headers: self.headers, payload: &self.payload }
    }
}

/// The store. It takes no memory until something comes early, and gives it back when nothing is kept any more.
#[derive(Debug, Default)]
pub(super) struct Kept {
    ring: Box<[Option<Box<Early>>]>,
    count: u32,
    bytes: usize,
    /// The highest number that is kept.
    highest: Psn,
}

fn slot(psn: Psn) -> usize {
    (psn.value() % MOST_KEPT) as usize
}

impl Kept {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The highest number kept, if there is any.
    pub(super) fn highest(&self) -> Option<Psn> {
        (self.count > 0).then_some(self.highest)
    }

    /// Keeps a packet that is ahead of `expected`, if there is room. One that is kept already stays.
    pub(super) fn keep(&mut self, expected: Psn, pkt: &Packet<'_>) {
        let psn = pkt.headers.bth.psn;
        let is_near = (1..MOST_KEPT as i32).contains(&psn.distance_from(expected));
        if !is_near || self.bytes + pkt.payload.len() > MOST_BYTES {
            return;
        }
        if self.ring.is_empty() {
            self.ring = (0..MOST_KEPT).map(|_| None).collect();
        }
        let place = &mut self.ring[slot(psn)];
        if place.is_some() {
            return;
        }
        *place = Some(Box::new(Early { headers: pkt.headers, payload: pkt.payload.into() }));
        if self.count == 0 || psn.is_after(self.highest) {
            self.highest = psn;
        }
        self.count += 1;
        self.bytes += pkt.payload.len();
    }

    /// The packet with this number, whose turn has come.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Box<Early>> {
        if self.count == 0 {
            return None;
        }
        let early = self.ring[slot(psn)].take()?;
        self.count -= 1;
        self.bytes -= early.payload.len();
        Some(early)
    }

    /// Forgets what `expected` has passed although it was kept: numbers inside a READ.
    pub(super) fn pass(&mut self, from: Psn, packets: u32) {
        if self.count > 0 {
            (0..packets.min(MOST_KEPT)).for_each(|n| drop(self.take(from.plus(n))));
        }
    }

    /// Forgets everything, and gives the memory back.
    pub(super) fn clear(&mut self) {
        *self = Kept::default();
    }

    /// Which of the numbers behind `expected` are kept: bit k of the report stands for `expected` + 1 + k. Returns its
    /// length, a multiple of four.
    pub(super) fn report(&self, expected: Psn, out: &mut [u8; REPORT_LEN]) -> usize {
        let Some(highest) = self.highest() else { return 0 };
        let span = highest.distance_from(expected).clamp(0, MOST_KEPT as i32) as usize;
        for k in 0..span {
            if self.ring[slot(expected.plus(1 + k as u32))].is_some() {
                out[k / 8] |= 1 << (k % 8);
            }
        }
        span.div_ceil(32) * 4
    }
}
