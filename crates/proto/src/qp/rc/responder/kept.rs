//! Requests that came too early: kept until those before them have come.
//!
//! A packet is kept as a whole and looked at only when it is next in sequence, as if the network had delivered it then.
//! So nothing about order, checks or what a program can tell differs from a network that loses nothing. One kind is placed
//! early, because two more copies of every byte cost a receiver nearly half its speed where packets are lost: packets from the
//! middle of a WRITE under way. Nobody may look at their bytes before the last packet is there, and that one waits.

use crate::ids::Psn;
use crate::wire::{Headers, Packet};
use alloc::boxed::Box;
use alloc::vec;

/// Most packets that are kept behind the first missing one. A power of two, so that the ring fits the space of sequence
/// numbers.
const MOST_KEPT: u32 = 1024;
/// Most bytes of data among them: what one peer may make us hold.
const MOST_BYTES: u32 = 1 << 20;
/// The memory is given back after so many requests in sequence. Where packets are lost, it will be needed again before.
const RESTS_AFTER: u32 = 16 * 1024;

/// Bytes of a report that says which packets are kept.
pub(in super::super) const REPORT_LEN: usize = MOST_KEPT as usize / 8;

/// What is kept of a packet beside its payload.
#[derive(Clone, Copy, Debug)]
struct Early {
    headers: Headers,
    len: u32,
    /// Its bytes are where they belong; only its turn has not come.
    is_placed: bool,
}

/// The store. It takes no memory until something comes early.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// One place for each number, as many as there is room for.
    ring: Box<[Option<Early>]>,
    /// The payloads, each in the place of its number.
    payloads: Box<[u8]>,
    /// Bytes of such a place.
    stride: u32,
    count: u32,
    /// The highest number that is kept.
    highest: Psn,
    /// Requests in sequence since something was kept.
    in_sequence: u32,
}

impl Kept {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether nothing is kept and no memory waits for it.
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.stride == 0
    }

    /// The highest number kept, if there is any.
    pub(super) fn highest(&self) -> Option<Psn> {
        (self.count > 0).then_some(self.highest)
    }

    fn slot(&self, psn: Psn) -> usize {
        psn.value() as usize % self.ring.len()
    }

    /// Keeps a packet that is ahead of `expected`, if there is room. One that is kept already stays. `place` puts its bytes where they
    /// belong, if it can: then they need not be kept.
    pub(super) fn keep(
        &mut self,
        expected: Psn,
        pkt: &Packet<'_>,
        mtu: u32,
        place: impl FnOnce(u32) -> bool,
    ) {
        if self.ring.is_empty() {
            let places = (MOST_BYTES / mtu).min(MOST_KEPT);
            self.ring = vec![None; places as usize].into();
            self.payloads = vec![0; (places * mtu) as usize].into();
            self.stride = mtu;
        }
        let (psn, len) = (pkt.headers.bth.psn, pkt.payload.len());
        let is_near = (1..self.ring.len() as i32).contains(&psn.distance_from(expected));
        let slot = self.slot(psn);
        if !is_near || len > self.stride as usize || self.ring[slot].is_some() {
            return;
        }
        let is_placed = place(psn.distance_from(expected) as u32);
        if !is_placed {
            let start = slot * self.stride as usize;
            self.payloads[start..start + len].copy_from_slice(pkt.payload);
        }
        self.ring[slot] = Some(Early { headers: pkt.headers, len: len as u32, is_placed });
        if self.count == 0 || psn.is_after(self.highest) {
            self.highest = psn;
        }
        self.count += 1;
        self.in_sequence = 0;
    }

    /// Hands over the packet with this number, whose turn has come.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Packet<'_>> {
        if self.count == 0 {
            return None;
        }
        let slot = self.slot(psn);
        let Early { headers, len, .. } = self.ring[slot].take()?;
        self.count -= 1;
        let start = slot * self.stride as usize;
        Some(Packet { headers, payload: &self.payloads[start..start + len as usize] })
    }

    /// Whether the packet with this number, whose turn has come, is here and was placed; if so, whether it asks for an
    /// acknowledgement. It is not kept any more.
    pub(super) fn take_placed(&mut self, psn: Psn) -> Option<bool> {
        if self.count == 0 {
            return None;
        }
        let slot = self.slot(psn);
        let ack_req = self.ring[slot].as_ref().filter(|early| early.is_placed)?.headers.bth.ack_req;
        self.ring[slot] = None;
        self.count -= 1;
        Some(ack_req)
    }

    /// Forgets what `expected` has passed although it was kept: numbers inside a READ.
    pub(super) fn pass(&mut self, from: Psn, packets: u32) {
        if self.count > 0 {
            for n in 0..packets.min(MOST_KEPT) {
                let _ = self.take(from.plus(n));
            }
        }
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        if self.count > 0 {
            self.ring.fill(None);
            self.count = 0;
        }
    }

    /// A request came in sequence and nothing is kept: after many of them the memory is given back.
    #[inline]
    pub(super) fn on_sequence(&mut self) {
        if self.stride > 0 {
            self.in_sequence += 1;
            if self.in_sequence > RESTS_AFTER {
                *self = Kept::default();
            }
        }
    }

    /// Which of the numbers behind `expected` are kept: bit k of the report stands for `expected` + 1 + k. Returns its
    /// length, a multiple of four.
    pub(super) fn report(&self, expected: Psn, out: &mut [u8; REPORT_LEN]) -> usize {
        let Some(highest) = self.highest() else { return 0 };
        let span = highest.distance_from(expected).clamp(0, self.ring.len() as i32 - 1) as usize;
        for k in 0..span {
            if self.ring[self.slot(expected.plus(1 + k as u32))].is_some() {
                out[k / 8] |= 1 << (k % 8);
            }
        }
        span.div_ceil(32) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Qpn;
    use crate::wire::{Bth, Opcode, Operation, Service};

    fn packet(psn: Psn, payload: &[u8]) -> Packet<'_> {
        let opcode = Opcode::new(Service::Rc, Operation::WriteMiddle);
        Packet { headers: Headers::new(Bth::new(opcode, Qpn::new(2), psn)), payload }
    }

    #[test]
    fn what_came_early_is_there_once_also_where_numbers_start_over() {
        let (mut kept, expected) = (Kept::default(), Psn::new(0xff_fff0));
        assert!(kept.take(expected).is_none() && kept.is_empty());
        for n in [1, 2, 40, 255] {
            for fill in [n as u8, 99] {
                kept.keep(expected, &packet(expected.plus(n), &[fill; 4096][..n as usize]), 4096, |_| false);
            }
        }
        for n in [0, 256, 100_000] {
            kept.keep(expected, &packet(expected.plus(n), &[1]), 4096, |_| false);
        }
        kept.keep(expected, &packet(expected.plus(3), &[1; 4097]), 4096, |_| false);
        let mut report = [0; REPORT_LEN];
        assert_eq!(kept.report(expected, &mut report), 32);
        let set = (0..REPORT_LEN * 8).filter(|k| report[k / 8] >> (k % 8) & 1 != 0);
        assert_eq!(set.collect::<alloc::vec::Vec<_>>(), [0, 1, 39, 254]);
        assert!(kept.take(expected.plus(3)).is_none());
        for n in [1, 2, 40, 255] {
            let early = kept.take(expected.plus(n)).expect("it was kept");
            assert_eq!(early, packet(expected.plus(n), &[n as u8; 4096][..n as usize]));
            assert!(kept.take(expected.plus(n)).is_none());
        }
        assert!(kept.is_empty() && kept.stride > 0);
        (0..=RESTS_AFTER).for_each(|_| kept.on_sequence());
        assert!(kept.ring.is_empty() && kept.payloads.is_empty());
    }

    #[test]
    fn what_was_placed_is_told_apart() {
        let (mut kept, expected) = (Kept::default(), Psn::new(7));
        let mut asked = alloc::vec::Vec::new();
        for (n, is_placed) in [(1, true), (2, false), (1, true)] {
            kept.keep(expected, &packet(expected.plus(n), &[3; 8]), 4096, |ahead| {
                asked.push(ahead);
                is_placed
            });
        }
        assert_eq!(asked, [1, 2], "what is here already is not placed again");
        assert_eq!(kept.take_placed(expected.plus(2)), None);
        assert_eq!(kept.take_placed(expected.plus(1)), Some(false));
        assert_eq!(kept.take_placed(expected.plus(1)), None);
        assert!(kept.take(expected.plus(2)).is_some() && kept.is_empty());
    }
}
