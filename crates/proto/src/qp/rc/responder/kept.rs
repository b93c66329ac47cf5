//! Out-of-order requests, kept until the earlier ones arrive.
//!
//! A kept packet is processed only when it is next in sequence, as if it arrived then. Ordering, checks and visible
//! effects therefore equal those of a lossless network. Middle packets of the current WRITE are an exception: they are
//! placed on arrival, because two more copies of every byte nearly halve the receive rate under loss. The application
//! may not read these bytes before the last packet arrives, and the last packet is kept.
//!
//! Anyone with the addresses of both ends can forge such packets. So a packet is checked before memory is allocated
//! for it, and the queue pairs of a NIC share a [budget](ReorderBudget). A packet expires, because the requester resends it
//! within a few timeouts anyway. Two packets with one PSN and different contents are both discarded, because one of them
//! is forged; the PSN must then arrive in sequence. A placed packet has no copy to compare with, so any second packet
//! counts as different.
//!
//! Buffers are reused while losses continue: allocating and freeing one per packet costs a fifth of the receive rate.

use crate::Time;
use crate::ids::Psn;
use crate::qp::ReorderBudget;
use crate::wire::{Bth, Headers, Packet};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Maximum number of packets kept beyond the first missing one.
const MAX_KEPT: u32 = 1024;
/// Maximum payload bytes kept per queue pair.
const MAX_KEPT_BYTES: u32 = 1 << 20;
/// Payload bytes of the largest buffer that is reused: of any packet within the path MTU.
const MAX_REUSED: usize = 4096;
/// A packet expires at the second tick after its arrival: after two to four transport timers with the usual exponent 14.
/// A tick needs no time of arrival, so the receive path does not read the clock for each packet.
const TICK_NS: u64 = 2 * (4096 << 14);

/// Bytes of the bitmap of kept packets in a NAK.
pub const REPORT_LEN: usize = MAX_KEPT as usize / 8;

/// Slots of the smallest ring.
const MIN_SLOTS: usize = 64;
/// Heap bytes of a slot.
const SLOT_BYTES: usize = size_of::<Option<Box<Early>>>();
/// Heap bytes of a kept packet without its payload: the packet, and its entry in the list of unused buffers.
const PACKET_BYTES: usize = size_of::<Early>() + 2 * SLOT_BYTES;

/// A kept packet, or an unused buffer for one.
#[derive(Debug)]
pub(super) struct Early {
    headers: Headers,
    content: Content,
    payload: Vec<u8>,
    /// It arrived before the last tick.
    is_old: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Content {
    /// The payload is in the buffer.
    Stored,
    /// The payload is in the destination memory.
    Placed,
    /// Two different packets had this PSN.
    Conflicting,
}

impl Early {
    /// Whether `pkt` is a retransmission of it. A retransmission may differ in flags that change from try to try.
    fn is_repeated_by(&self, pkt: &Packet<'_>) -> bool {
        let constant = |h: &Headers| Headers {
            bth: Bth { ack_req: false, selective: false, extended: false, fecn: false, becn: false, ..h.bth },
            piggybacked_ack: None,
            ..*h
        };
        self.content == Content::Stored
            && constant(&self.headers) == constant(&pkt.headers)
            && self.payload == pkt.payload
    }

    /// The packet; `None` if its payload is already placed.
    pub(super) fn packet(&self) -> Option<Packet<'_>> {
        (self.content == Content::Stored).then_some(Packet { headers: self.headers, payload: &self.payload })
    }

    pub(super) fn ack_req(&self) -> bool {
        self.headers.bth.ack_req
    }
}

/// The packets kept by one queue pair. It owns memory until the first tick at which it holds no packet.
#[derive(Debug, Default)]
pub(super) struct Kept(Option<Box<Store>>);

#[derive(Debug)]
struct Store {
    /// By PSN. The length is a power of two, so that the ring wraps with the PSN space, and exceeds the distance of every
    /// packet from the expected PSN.
    ring: Vec<Option<Box<Early>>>,
    /// Number of packets in the ring.
    count: usize,
    #[expect(clippy::vec_box, reason = "a packet moves between the ring and this list")]
    unused: Vec<Box<Early>>,
    /// Number of buffers, used or not.
    buffers: usize,
    /// The highest PSN that was kept.
    highest: Psn,
    next_tick: Time,
    budget: Arc<ReorderBudget>,
    /// Bytes taken from the budget.
    heap_bytes: usize,
}

impl Store {
    /// Creates a store without slots if the budget allows.
    fn new(now: Time, budget: &Arc<ReorderBudget>) -> Option<Box<Store>> {
        let heap_bytes = size_of::<Store>();
        budget.take(heap_bytes).then(|| {
            Box::new(Store {
                ring: Vec::new(),
                count: 0,
                unused: Vec::new(),
                buffers: 0,
                highest: Psn::default(),
                next_tick: now + TICK_NS,
                budget: budget.clone(),
                heap_bytes,
            })
        })
    }

    /// Heap bytes of payloads, also of unused buffers.
    fn payload_bytes(&self) -> usize {
        self.heap_bytes - size_of::<Store>() - self.ring.len() * SLOT_BYTES - self.buffers * PACKET_BYTES
    }

    /// Keeps an unused buffer for another packet. That of a jumbo packet is freed: it would take the room of many others.
    fn reuse(&mut self, early: Box<Early>) {
        if early.payload.capacity() <= MAX_REUSED {
            return self.unused.push(early);
        }
        let freed = PACKET_BYTES + early.payload.capacity();
        self.buffers -= 1;
        self.heap_bytes -= freed;
        self.budget.give_back(freed);
    }

    fn slot(&self, psn: Psn) -> usize {
        psn.value() as usize & self.ring.len().wrapping_sub(1)
    }

    /// Takes `bytes` from the budget. Returns whether that many were left.
    fn take_bytes(&mut self, bytes: usize) -> bool {
        let is_taken = bytes == 0 || self.budget.take(bytes);
        self.heap_bytes += if is_taken { bytes } else { 0 };
        is_taken
    }

    /// Grows the ring to at least `slots`. Returns whether the budget allows it.
    fn grow(&mut self, slots: usize) -> bool {
        let (old, new) = (self.ring.len(), slots.next_power_of_two().max(MIN_SLOTS));
        if new <= old {
            return true;
        }
        if !self.take_bytes((new - old) * SLOT_BYTES) {
            return false;
        }
        let packets = core::mem::take(&mut self.ring);
        self.ring.reserve_exact(new);
        self.ring.resize_with(new, || None);
        for early in packets.into_iter().flatten() {
            let slot = self.slot(early.headers.bth.psn);
            self.ring[slot] = Some(early);
        }
        true
    }

    /// An unused buffer, if the budget allows one.
    fn buffer(&mut self, headers: Headers) -> Option<Box<Early>> {
        self.unused.pop().or_else(|| {
            let (content, payload, is_old) = (Content::Placed, Vec::new(), false);
            let is_taken = self.take_bytes(PACKET_BYTES);
            self.buffers += usize::from(is_taken);
            is_taken.then(|| Box::new(Early { headers, content, payload, is_old }))
        })
    }

    fn insert(&mut self, psn: Psn, early: Box<Early>) {
        if self.count == 0 || psn.is_after(self.highest) {
            self.highest = psn;
        }
        self.count += 1;
        let slot = self.slot(psn);
        self.ring[slot] = Some(early);
    }

    fn remove(&mut self, psn: Psn) -> Option<Box<Early>> {
        let slot = self.slot(psn);
        let early = self.ring.get_mut(slot)?.take()?;
        self.count -= 1;
        Some(early)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.budget.give_back(self.heap_bytes);
    }
}

impl Kept {
    /// Whether no packet is kept.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.as_ref().is_none_or(|store| store.count == 0)
    }

    /// Whether [`Self::keep`] needs the time, in order to set the first deadline.
    #[inline]
    pub(super) fn needs_time(&self) -> bool {
        self.0.is_none()
    }

    /// The highest kept PSN, if any packet is kept.
    pub(super) fn highest(&self) -> Option<Psn> {
        self.0.as_ref().filter(|store| store.count > 0).map(|store| store.highest)
    }

    /// When [`Self::expire`] is due.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        self.0.as_ref().map(|store| store.next_tick)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |store| store.heap_bytes)
    }

    /// Keeps a packet ahead of `expected` if it has at most `longest` bytes, is near enough, and the budgets allow. `place` tries to write the payload
    /// to its destination; otherwise the payload is copied into the store.
    pub(super) fn keep(
        &mut self,
        expected: Psn,
        pkt: &Packet<'_>,
        (mtu, longest): (u32, u32),
        now: Time,
        budget: &Arc<ReorderBudget>,
        place: impl FnOnce(u32) -> bool,
    ) {
        let (psn, len) = (pkt.headers.bth.psn, pkt.payload.len());
        let ahead = psn.distance_from(expected);
        let slots = (MAX_KEPT_BYTES / mtu).min(MAX_KEPT);
        if !(1..slots as i32).contains(&ahead) || len > longest as usize {
            return;
        }
        if self.0.is_none() {
            self.0 = Store::new(now, budget);
        }
        let Some(store) = &mut self.0 else { return };
        if !store.grow(ahead as usize + 1) {
            return;
        }
        let slot = store.slot(psn);
        if let Some(first) = &mut store.ring[slot] {
            if !first.is_repeated_by(pkt) {
                first.content = Content::Conflicting;
            }
            return;
        }
        let Some(mut early) = store.buffer(pkt.headers) else { return };
        early.payload.clear();
        let is_placed = place(ahead as u32);
        if !is_placed {
            let more = len.saturating_sub(early.payload.capacity());
            if store.payload_bytes() + more > MAX_KEPT_BYTES as usize || !store.take_bytes(more) {
                store.reuse(early);
                return;
            }
            early.payload.reserve_exact(len);
            early.payload.extend_from_slice(pkt.payload);
        }
        early.content = if is_placed { Content::Placed } else { Content::Stored };
        (early.headers, early.is_old) = (pkt.headers, false);
        store.insert(psn, early);
    }

    /// Removes and returns the packet with this PSN, for [`Self::reuse`] afterwards.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Box<Early>> {
        let early = self.0.as_mut()?.remove(psn)?;
        if early.content != Content::Conflicting {
            return Some(early);
        }
        self.reuse(early);
        None
    }

    /// Accepts the buffer of a packet that [`Self::take`] returned.
    pub(super) fn reuse(&mut self, early: Box<Early>) {
        if let Some(store) = &mut self.0 {
            store.reuse(early);
        }
    }

    /// Removes kept packets that `expected` skipped: PSNs inside a READ.
    pub(super) fn pass(&mut self, from: Psn, packets: u32) {
        for n in 0..packets.min(MAX_KEPT) {
            if self.is_empty() {
                return;
            }
            if let Some(early) = self.take(from.plus(n)) {
                self.reuse(early);
            }
        }
    }

    /// Removes every packet.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Removes the packets that arrived too long ago. Frees the memory if none is left.
    pub(super) fn expire(&mut self, now: Time) {
        let Some(store) = self.0.as_mut().filter(|store| now >= store.next_tick) else { return };
        for slot in 0..store.ring.len() {
            if let Some(early) = store.ring[slot].take_if(|early| core::mem::replace(&mut early.is_old, true))
            {
                store.reuse(early);
                store.count -= 1;
            }
        }
        store.next_tick = now + TICK_NS;
        if store.count == 0 {
            self.0 = None;
        }
    }

    /// Writes the bitmap of kept packets: bit k stands for `expected` + 1 + k. Returns its length in bytes, a multiple
    /// of four.
    pub(super) fn report(&self, expected: Psn, out: &mut [u8; REPORT_LEN]) -> usize {
        let Some(store) = self.0.as_ref().filter(|store| store.count > 0) else { return 0 };
        let mut span = 0;
        for k in 0..store.highest.distance_from(expected).clamp(0, store.ring.len() as i32 - 1) as usize {
            let early = &store.ring[store.slot(expected.plus(1 + k as u32))];
            if early.as_ref().is_some_and(|early| early.content != Content::Conflicting) {
                out[k / 8] |= 1 << (k % 8);
                span = k + 1;
            }
        }
        span.div_ceil(32) * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Qpn;
    use crate::wire::{Opcode, Operation, Service};

    fn packet(psn: Psn, payload: &[u8]) -> Packet<'_> {
        let opcode = Opcode::new(Service::Rc, Operation::WriteMiddle);
        Packet { headers: Headers::new(Bth::new(opcode, Qpn::new(2), psn)), payload }
    }

    struct Fixture {
        kept: Kept,
        expected: Psn,
        budget: Arc<ReorderBudget>,
    }

    const BUDGET: usize = 1 << 20;

    impl Fixture {
        fn new(expected: Psn) -> Fixture {
            Fixture { kept: Kept::default(), expected, budget: ReorderBudget::new(BUDGET) }
        }

        fn keep(&mut self, ahead: u32, payload: &[u8], now: Time) {
            let pkt = packet(self.expected.plus(ahead), payload);
            self.kept.keep(self.expected, &pkt, (4096, 4096), now, &self.budget, |_| false);
        }

        /// Whether the packet so far ahead is kept; takes it.
        fn takes(&mut self, ahead: u32, payload: &[u8]) -> bool {
            let psn = self.expected.plus(ahead);
            let Some(early) = self.kept.take(psn) else { return false };
            let is_equal = early.packet() == Some(packet(psn, payload));
            self.kept.reuse(early);
            is_equal
        }

        /// Whether no packet is kept, and the next tick frees all memory.
        fn is_freed(&mut self) -> bool {
            let is_empty = self.kept.is_empty();
            self.kept.expire(self.kept.deadline().unwrap_or_default());
            is_empty && self.kept.heap_bytes() == 0 && self.budget.left() == BUDGET
        }

        fn reported(&self) -> Vec<usize> {
            let mut report = [0; REPORT_LEN];
            let len = self.kept.report(self.expected, &mut report);
            (0..len * 8).filter(|k| report[k / 8] >> (k % 8) & 1 != 0).collect()
        }
    }

    #[test]
    fn kept_packets_are_taken_once_across_the_psn_wrap() {
        let mut f = Fixture::new(Psn::new(0xff_fff0));
        assert!(!f.takes(0, &[]) && f.kept.is_empty());
        for n in [1, 2, 40, 255] {
            for _ in 0..2 {
                f.keep(n, &[n as u8; 4096][..n as usize], Time(0));
            }
        }
        let used = f.budget.left();
        for n in [0, 256, 100_000] {
            f.keep(n, &[1], Time(0));
        }
        f.keep(3, &[1; 4097], Time(0));
        assert_eq!(f.budget.left(), used, "neither a distant nor a long packet needs memory");
        assert_eq!(f.reported(), [0, 1, 39, 254]);
        assert!(!f.takes(3, &[1; 4097]));
        for n in [1, 2, 40, 255] {
            assert!(
                f.takes(n, &[n as u8; 4096][..n as usize]) && !f.takes(n, &[n as u8; 4096][..n as usize])
            );
        }
        assert!(f.is_freed());
    }

    #[test]
    fn the_ring_grows_around_kept_packets() {
        let mut f = Fixture::new(Psn::new(0xff_ffc1));
        for n in [1, 63, 64, 200] {
            f.keep(n, &[n as u8], Time(0));
        }
        assert_eq!(f.reported(), [0, 62, 63, 199]);
        assert!([1, 63, 64, 200].iter().all(|&n| f.takes(n, &[n as u8])) && f.is_freed());
    }

    #[test]
    fn buffers_are_reused_until_a_tick_without_packets() {
        let mut f = Fixture::new(Psn::new(7));
        let mut heap_bytes = Vec::new();
        for round in 0..3 {
            (1..9).for_each(|n| f.keep(n, &[round; 4096], Time(0)));
            assert!((1..9).all(|n| f.takes(n, &[round; 4096])));
            heap_bytes.push(f.kept.heap_bytes());
        }
        assert!(heap_bytes[0] > 8 * 4096 && heap_bytes.iter().all(|&bytes| bytes == heap_bytes[0]));
        f.kept.expire(Time(TICK_NS - 1));
        assert_eq!(f.kept.heap_bytes(), heap_bytes[0]);
        assert!(f.is_freed() && f.kept.deadline().is_none());
    }

    /// Jumbo packets are long, and the limit of bytes holds for any mixture.
    #[test]
    fn long_packets_share_the_limit_of_bytes_with_short_ones() {
        const LONG: usize = 60 * 1024;
        let mut f = Fixture { budget: ReorderBudget::new(4 * BUDGET), ..Fixture::new(Psn::new(7)) };
        let long = alloc::vec![1; LONG];
        for n in 1..=30 {
            let pkt = packet(f.expected.plus(n), &long);
            f.kept.keep(f.expected, &pkt, (1024, LONG as u32), Time(0), &f.budget, |_| false);
        }
        let fitting = MAX_KEPT_BYTES as usize / LONG;
        assert_eq!(f.reported().len(), fitting);
        assert!((1..=fitting as u32).all(|n| f.takes(n, &long)));
        // Their buffers give way to short packets.
        (1..256).for_each(|n| f.keep(n, &[2; 4096], Time(0)));
        assert_eq!(f.reported().len(), 255);
        assert!(f.kept.heap_bytes() < 2 * MAX_KEPT_BYTES as usize);
        assert!((1..256).all(|n| f.takes(n, &[2; 4096])) && f.kept.is_empty());
    }

    #[test]
    fn a_placed_packet_is_discarded_by_any_second_one() {
        let (mut f, mut asked) = (Fixture::new(Psn::new(7)), Vec::new());
        for n in [1, 2, 2, 2] {
            let pkt = packet(f.expected.plus(n), &[3; 8]);
            f.kept.keep(f.expected, &pkt, (4096, 4096), Time(0), &f.budget, |ahead| {
                asked.push(ahead);
                true
            });
        }
        assert_eq!(asked, [1, 2], "a kept packet is not placed again");
        assert_eq!(f.reported(), [0]);
        let early = f.kept.take(f.expected.plus(1)).expect("it was placed once");
        assert!(early.packet().is_none());
        f.kept.reuse(early);
        assert!(f.kept.take(f.expected.plus(2)).is_none());
        assert!(f.is_freed());
    }

    #[test]
    fn two_packets_with_one_psn_are_both_discarded() {
        let mut f = Fixture::new(Psn::new(7));
        for payload in [b"one", b"two", b"one", b"one"] {
            f.keep(5, payload, Time(0));
        }
        f.keep(6, b"six", Time(0));
        assert_eq!(f.reported(), [5]);
        assert!(!f.takes(5, b"one") && f.takes(6, b"six"));
        assert!(f.is_freed());
    }

    #[test]
    fn a_packet_expires_at_the_second_tick() {
        let mut f = Fixture::new(Psn::new(7));
        f.keep(1, b"one", Time(0));
        assert_eq!(f.kept.deadline(), Some(Time(TICK_NS)));
        f.kept.expire(Time(TICK_NS));
        f.keep(2, b"two", Time(TICK_NS));
        f.kept.expire(Time(2 * TICK_NS - 1));
        assert_eq!((f.reported(), f.kept.deadline()), (alloc::vec![0, 1], Some(Time(2 * TICK_NS))));
        f.kept.expire(Time(2 * TICK_NS));
        assert_eq!((f.reported(), f.kept.deadline()), (alloc::vec![1], Some(Time(3 * TICK_NS))));
        f.kept.expire(Time(3 * TICK_NS));
        assert!(f.kept.deadline().is_none() && f.budget.left() == BUDGET);
    }

    #[test]
    fn the_budget_is_shared_and_given_back() {
        let mut stores: Vec<Fixture> = (0..3).map(|_| Fixture::new(Psn::new(0))).collect();
        stores[0].keep(1, &[0; 100], Time(0));
        let each = stores[0].kept.heap_bytes();
        // One byte is missing for the third packet.
        let budget = ReorderBudget::new(3 * each - 1);
        for f in &mut stores {
            (f.kept, f.budget) = (Kept::default(), budget.clone());
            f.keep(1, &[0; 100], Time(0));
        }
        let are_empty = |stores: &[Fixture]| stores.iter().map(|f| f.kept.is_empty()).collect::<Vec<_>>();
        assert_eq!(are_empty(&stores), [false, false, true]);
        stores[0].kept.clear();
        stores[2].keep(1, &[0; 100], Time(0));
        assert_eq!(are_empty(&stores), [true, false, false]);
        drop(stores);
        assert_eq!(budget.left(), 3 * each - 1);
    }

    #[test]
    fn one_packet_at_each_of_10_000_queue_pairs_needs_less_than_64_mib() {
        let budget = ReorderBudget::new(ReorderBudget::DEFAULT);
        let mut stores: Vec<Kept> = (0..10_000).map(|_| Kept::default()).collect();
        for kept in &mut stores {
            kept.keep(Psn::new(0), &packet(Psn::new(9), &[7; 4096]), (4096, 4096), Time(0), &budget, |_| {
                false
            });
        }
        let heap_bytes: usize = stores.iter().map(Kept::heap_bytes).sum();
        assert!(heap_bytes < 64 << 20, "{heap_bytes} bytes");
        assert_eq!(heap_bytes, ReorderBudget::DEFAULT - budget.left());
    }
}
