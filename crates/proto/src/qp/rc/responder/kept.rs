//! Out-of-order requests, kept until the earlier ones arrive.
//!
//! A kept packet is processed only when it is next in sequence, as if it arrived then. Ordering, checks and visible
//! effects therefore equal those of a lossless network. Middle packets of the current WRITE are an exception: they are
//! placed on arrival, because two more copies of every byte nearly halve the receive rate under loss. The application
//! may not read these bytes before the last packet arrives, and the last packet is kept.
//!
//! Anybody who knows the addresses of both ends can send such packets. So a packet is checked before memory is allocated
//! for it, the queue pairs of a NIC share a [budget](ReorderBudget), and a packet expires: the requester resends it
//! within a few timeouts anyway. Two packets with one PSN and different contents are both discarded, because one of them
//! is forged; the PSN must then arrive in sequence.

use crate::Time;
use crate::ids::Psn;
use crate::qp::ReorderBudget;
use crate::wire::{Bth, Headers, Packet};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;

/// Maximum number of packets kept beyond the first missing one.
const MAX_KEPT: u32 = 1024;
/// Maximum payload bytes kept per queue pair.
const MAX_KEPT_BYTES: u32 = 1 << 20;
/// How long a packet is kept in nanoseconds: four transport timers with the usual exponent 14.
const EXPIRY_NS: u64 = 4 * (4096 << 14);

/// Bytes of the bitmap of kept packets in a NAK.
pub(in super::super) const REPORT_LEN: usize = MAX_KEPT as usize / 8;

/// Heap bytes of an empty store: itself, and one node of the map, which has room for 11 packets.
const STORE_BYTES: usize = size_of::<Store>() + 12 * size_of::<Early>();
/// Heap bytes of a packet besides its payload: nodes of the map are at least half full.
const PACKET_BYTES: usize = 2 * size_of::<Early>();

/// A kept packet.
#[derive(Debug)]
pub(super) struct Early {
    headers: Headers,
    content: Content,
    arrived: Time,
}

#[derive(Debug)]
enum Content {
    /// The payload.
    Stored(Box<[u8]>),
    /// The payload is in the destination memory; this is its CRC-32.
    Placed(u32),
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
        constant(&self.headers) == constant(&pkt.headers)
            && match &self.content {
                Content::Stored(payload) => **payload == *pkt.payload,
                Content::Placed(crc) => *crc == crc32fast::hash(pkt.payload),
                Content::Conflicting => false,
            }
    }

    fn heap_bytes(&self) -> usize {
        PACKET_BYTES + if let Content::Stored(payload) = &self.content { payload.len() } else { 0 }
    }

    /// The packet; `None` if its payload is already placed.
    pub(super) fn packet(&self) -> Option<Packet<'_>> {
        match &self.content {
            Content::Stored(payload) => Some(Packet { headers: self.headers, payload }),
            _ => None,
        }
    }

    pub(super) fn ack_req(&self) -> bool {
        self.headers.bth.ack_req
    }
}

/// The packets kept by one queue pair. It owns memory only while there are any.
#[derive(Debug, Default)]
pub(super) struct Kept(Option<Box<Store>>);

#[derive(Debug)]
struct Store {
    /// By PSN.
    packets: BTreeMap<u32, Early>,
    /// The highest PSN that was kept.
    highest: Psn,
    /// No packet arrived before this time.
    oldest: Time,
    budget: Arc<ReorderBudget>,
}

impl Store {
    fn remove(&mut self, psn: Psn) -> Option<Early> {
        let early = self.packets.remove(&psn.value())?;
        self.budget.give_back(early.heap_bytes());
        Some(early)
    }

    fn heap_bytes(&self) -> usize {
        STORE_BYTES + self.packets.values().map(Early::heap_bytes).sum::<usize>()
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.budget.give_back(self.heap_bytes());
    }
}

impl Kept {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The highest kept PSN, if any packet is kept.
    pub(super) fn highest(&self) -> Option<Psn> {
        self.0.as_ref().map(|store| store.highest)
    }

    /// When [`Self::expire`] is due.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        self.0.as_ref().map(|store| store.oldest + EXPIRY_NS)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |store| store.heap_bytes())
    }

    /// Keeps a packet ahead of `expected` if it is near enough and the budget allows. `place` tries to write the payload
    /// to its destination; otherwise the payload is copied into the store.
    pub(super) fn keep(
        &mut self,
        expected: Psn,
        pkt: &Packet<'_>,
        mtu: u32,
        now: Time,
        budget: &Arc<ReorderBudget>,
        place: impl FnOnce(u32) -> bool,
    ) {
        let (psn, len) = (pkt.headers.bth.psn, pkt.payload.len());
        let ahead = psn.distance_from(expected);
        let slots = (MAX_KEPT_BYTES / mtu).min(MAX_KEPT);
        if !(1..slots as i32).contains(&ahead) || len > mtu as usize {
            return;
        }
        if let Some(first) = self.0.as_mut().and_then(|store| store.packets.get_mut(&psn.value())) {
            if !first.is_repeated_by(pkt) {
                budget.give_back(first.heap_bytes() - PACKET_BYTES);
                first.content = Content::Conflicting;
            }
            return;
        }
        let own_bytes = if self.is_empty() { STORE_BYTES } else { 0 };
        if !budget.take(own_bytes + PACKET_BYTES + len) {
            return;
        }
        let content = if place(ahead as u32) {
            budget.give_back(len);
            Content::Placed(crc32fast::hash(pkt.payload))
        } else {
            Content::Stored(pkt.payload.into())
        };
        let store = self.0.get_or_insert_with(|| {
            let budget = budget.clone();
            Box::new(Store { packets: BTreeMap::new(), highest: psn, oldest: now, budget })
        });
        store.packets.insert(psn.value(), Early { headers: pkt.headers, content, arrived: now });
        if psn.is_after(store.highest) {
            store.highest = psn;
        }
    }

    /// Removes and returns the packet with this PSN.
    pub(super) fn take(&mut self, psn: Psn) -> Option<Early> {
        let store = self.0.as_mut()?;
        let early = store.remove(psn);
        if store.packets.is_empty() {
            self.0 = None;
        }
        early.filter(|early| !matches!(early.content, Content::Conflicting))
    }

    /// Removes kept packets that `expected` skipped: PSNs inside a READ.
    pub(super) fn pass(&mut self, from: Psn, packets: u32) {
        for n in 0..packets.min(MAX_KEPT) {
            if self.is_empty() {
                return;
            }
            let _ = self.take(from.plus(n));
        }
    }

    /// Removes every packet.
    pub(super) fn clear(&mut self) {
        self.0 = None;
    }

    /// Removes the packets that arrived too long ago.
    pub(super) fn expire(&mut self, now: Time) {
        let Some(store) = self.0.as_mut().filter(|store| now >= store.oldest + EXPIRY_NS) else { return };
        let is_old = |early: &Early| now >= early.arrived + EXPIRY_NS;
        let old: alloc::vec::Vec<u32> =
            store.packets.iter().filter(|(_, early)| is_old(early)).map(|(psn, _)| *psn).collect();
        for psn in old {
            store.remove(Psn::new(psn));
        }
        match store.packets.values().map(|early| early.arrived).min() {
            Some(oldest) => store.oldest = oldest,
            None => self.0 = None,
        }
    }

    /// Writes the bitmap of kept packets: bit k stands for `expected` + 1 + k. Returns its length in bytes, a multiple
    /// of four.
    pub(super) fn report(&self, expected: Psn, out: &mut [u8; REPORT_LEN]) -> usize {
        let Some(store) = &self.0 else { return 0 };
        let mut span = 0;
        for (&psn, early) in &store.packets {
            let ahead = Psn::new(psn).distance_from(expected);
            if (1..=MAX_KEPT as i32).contains(&ahead) && !matches!(early.content, Content::Conflicting) {
                let k = ahead as usize - 1;
                out[k / 8] |= 1 << (k % 8);
                span = span.max(ahead as usize);
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
    use alloc::vec::Vec;

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
            self.kept.keep(self.expected, &pkt, 4096, now, &self.budget, |_| false);
        }

        /// Whether the packet so far ahead is kept; takes it.
        fn takes(&mut self, ahead: u32, payload: &[u8]) -> bool {
            let psn = self.expected.plus(ahead);
            self.kept.take(psn).is_some_and(|early| early.packet() == Some(packet(psn, payload)))
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
        assert!(f.kept.is_empty() && f.budget.left() == BUDGET);
    }

    #[test]
    fn placed_packets_are_compared_too() {
        let (mut f, mut asked) = (Fixture::new(Psn::new(7)), Vec::new());
        for (n, fill) in [(1, 3), (2, 3), (1, 3), (2, 4)] {
            let (pkt, budget) = (packet(f.expected.plus(n), &[fill; 8]).headers, &f.budget);
            let pkt = Packet { headers: pkt, payload: &[fill; 8] };
            f.kept.keep(f.expected, &pkt, 4096, Time(0), budget, |ahead| {
                asked.push(ahead);
                true
            });
        }
        assert_eq!(asked, [1, 2], "a kept packet is not placed again");
        assert!(f.kept.take(f.expected.plus(1)).is_some_and(|early| early.packet().is_none()));
        assert!(f.kept.take(f.expected.plus(2)).is_none(), "two different packets");
        assert!(f.kept.is_empty() && f.budget.left() == BUDGET);
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
        assert!(f.kept.is_empty() && f.budget.left() == BUDGET);
    }

    #[test]
    fn packets_expire_one_by_one() {
        let mut f = Fixture::new(Psn::new(7));
        f.keep(1, b"one", Time(0));
        f.keep(2, b"two", Time(100));
        assert_eq!(f.kept.deadline(), Some(Time(EXPIRY_NS)));
        f.kept.expire(Time(EXPIRY_NS - 1));
        assert_eq!(f.reported(), [0, 1]);
        f.kept.expire(Time(EXPIRY_NS));
        assert_eq!((f.reported(), f.kept.deadline()), (alloc::vec![1], Some(Time(100 + EXPIRY_NS))));
        f.kept.expire(Time(100 + EXPIRY_NS));
        assert!(f.kept.is_empty() && f.kept.deadline().is_none() && f.budget.left() == BUDGET);
    }

    #[test]
    fn the_budget_is_shared_and_given_back() {
        let mut stores: Vec<Fixture> = (0..3).map(|_| Fixture::new(Psn::new(0))).collect();
        let budget = ReorderBudget::new(2 * (STORE_BYTES + PACKET_BYTES + 100));
        for f in &mut stores {
            f.budget = budget.clone();
            f.keep(1, &[0; 100], Time(0));
        }
        assert_eq!(stores.iter().map(|f| !f.kept.is_empty()).collect::<Vec<_>>(), [true, true, false]);
        stores[0].kept.clear();
        stores[2].keep(1, &[0; 100], Time(0));
        assert_eq!(stores.iter().map(|f| !f.kept.is_empty()).collect::<Vec<_>>(), [false, true, true]);
        drop(stores);
        assert_eq!(budget.left(), 2 * (STORE_BYTES + PACKET_BYTES + 100));
    }
    #[test]
    fn one_packet_at_each_of_10_000_queue_pairs_needs_less_than_64_mib() {
        let budget = ReorderBudget::new(ReorderBudget::DEFAULT);
        let mut stores: Vec<Kept> = (0..10_000).map(|_| Kept::default()).collect();
        for kept in &mut stores {
            kept.keep(Psn::new(0), &packet(Psn::new(9), &[7; 4096]), 4096, Time(0), &budget, |_| false);
        }
        let heap_bytes: usize = stores.iter().map(Kept::heap_bytes).sum();
        assert!(heap_bytes < 64 << 20, "{heap_bytes} bytes");
        assert_eq!(heap_bytes, ReorderBudget::DEFAULT - budget.left());
    }
}
