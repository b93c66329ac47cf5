//! Out-of-order requests, kept until the earlier ones arrive.
//!
//! A kept packet is processed only when it is next in sequence, as if it arrived then. Ordering, checks and visible
//! effects therefore equal those of a lossless network. Middle packets of the current WRITE are an exception: they are
//! placed on arrival, because two more copies of every byte nearly halve the receive rate under loss. The application
//! may not read these bytes before the last packet arrives, and the last packet is kept.

use crate::ids::Psn;
use crate::wire::{Headers, Packet};
use alloc::boxed::Box;
use alloc::vec;

/// Maximum number of packets kept beyond the first missing one. A power of two, so that the ring wraps with the PSN
/// space.
const MAX_KEPT: u32 = 1024;
/// Maximum payload bytes kept per queue pair.
const MAX_KEPT_BYTES: u32 = 1 << 20;
/// The buffers are freed after this many requests in sequence. Under continued loss they stay allocated.
const FREE_AFTER: u32 = 16 * 1024;

/// Bytes of the bitmap of kept packets in a NAK.
pub(in super::super) const REPORT_LEN: usize = MAX_KEPT as usize / 8;

/// A kept packet without its payload.
#[derive(Clone, Copy, Debug)]
struct Early {
    headers: Headers,
    len: u32,
    /// Its payload is already placed in the destination memory.
    is_placed: bool,
}

/// The store. It allocates when the first packet arrives out of order.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// One slot for each PSN.
    ring: Box<[Option<Early>]>,
    /// The payloads, one slot for each PSN.
    payloads: Box<[u8]>,
    /// Bytes per payload slot.
    stride: u32,
    count: u32,
    /// The highest kept PSN.
    highest: Psn,
    /// Requests in sequence since a packet was last kept.
    in_sequence: u32,
}

impl Kept {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether no buffers are allocated.
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.stride == 0
    }

    /// The highest kept PSN, if any packet is kept.
    pub(super) fn highest(&self) -> Option<Psn> {
        (self.count > 0).then_some(self.highest)
    }

    fn slot(&self, psn: Psn) -> usize {
        psn.value() as usize % self.ring.len()
    }

    /// Keeps a packet ahead of `expected` if a slot is free for it. A packet that is already kept stays. `place` tries
    /// to write the payload to its destination; otherwise the payload is copied into the store.
    pub(super) fn keep(
        &mut self,
        expected: Psn,
        pkt: &Packet<'_>,
        mtu: u32,
        place: impl FnOnce(u32) -> bool,
    ) {
        if self.ring.is_empty() {
            let slots = (MAX_KEPT_BYTES / mtu).min(MAX_KEPT);
            self.ring = vec![None; slots as usize].into();
            self.payloads = vec![0; (slots * mtu) as usize].into();
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

    /// Removes and returns the packet with this PSN.
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

    /// Removes the packet with this PSN if its payload is already placed. Returns whether it requests an ACK, or `None`
    /// if it is not kept or not placed.
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

    /// Removes kept packets that `expected` skipped: PSNs inside a READ.
    pub(super) fn pass(&mut self, from: Psn, packets: u32) {
        if self.count > 0 {
            for n in 0..packets.min(MAX_KEPT) {
                let _ = self.take(from.plus(n));
            }
        }
    }

    /// Removes every packet.
    pub(super) fn clear(&mut self) {
        if self.count > 0 {
            self.ring.fill(None);
            self.count = 0;
        }
    }

    /// Counts a request in sequence while no packet is kept. Frees the buffers after many of them.
    #[inline]
    pub(super) fn on_sequence(&mut self) {
        if self.stride > 0 {
            self.in_sequence += 1;
            if self.in_sequence > FREE_AFTER {
                *self = Kept::default();
            }
        }
    }

    /// Writes the bitmap of kept packets: bit k stands for `expected` + 1 + k. Returns its length in bytes, a multiple
    /// of four.
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
    fn kept_packets_are_taken_once_across_the_psn_wrap() {
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
        (0..=FREE_AFTER).for_each(|_| kept.on_sequence());
        assert!(kept.ring.is_empty() && kept.payloads.is_empty());
    }

    #[test]
    fn placed_packets_are_taken_separately() {
        let (mut kept, expected) = (Kept::default(), Psn::new(7));
        let mut asked = alloc::vec::Vec::new();
        for (n, is_placed) in [(1, true), (2, false), (1, true)] {
            kept.keep(expected, &packet(expected.plus(n), &[3; 8]), 4096, |ahead| {
                asked.push(ahead);
                is_placed
            });
        }
        assert_eq!(asked, [1, 2], "a kept packet is not placed again");
        assert_eq!(kept.take_placed(expected.plus(2)), None);
        assert_eq!(kept.take_placed(expected.plus(1)), Some(false));
        assert_eq!(kept.take_placed(expected.plus(1)), None);
        assert!(kept.take(expected.plus(2)).is_some() && kept.is_empty());
    }
}
