//! How packets get their ICRC, and when: as early as possible.
//!
//! The ICRC depends on two things that only the link knows: the source port of the socket that a packet leaves by, and
//! over IPv4 the identification, which is its place in the segmentation batch. A link therefore tells the batch, the
//! first time it sends it, how to find these out. From then on each packet is sealed when the next one is begun, while
//! its bytes are still in the first-level cache; sealing them all at the end costs a fifth of the bandwidth.

use super::TxBatch;
use super::tx::{Payload, TxPacket};
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{FlowAddrs, ICRC_LEN, IcrcRow};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Segments in one batch: what every kernel with segmentation takes.
const MAX_SEGMENTS: usize = 64;
/// Bytes in one batch: the longest UDP datagram, with room for an IPv6 header.
const MAX_RUN_LEN: usize = 65_000;

/// Chooses TX sockets.
pub(crate) trait Sealer: Send + Sync + Debug {
    /// The TX socket of this route; `None` if there is none.
    fn choose(&self, route: &Route) -> Option<SocketChoice>;
    /// Whether the choices stay the same.
    fn is_settled(&self) -> bool {
        true
    }
}

/// The TX socket of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketChoice {
    /// The link's number for the socket.
    pub(crate) number: u16,
    /// Its port.
    pub(crate) sport: u16,
    /// Whether it may send GSO runs.
    pub(crate) may_segment: bool,
    /// Whether a single packet needs no control message.
    pub(crate) is_plain: bool,
}

/// The TX socket of the last route, and the ICRC state that its single packets of one length have in common.
pub(super) struct LastChoice {
    route: Route,
    choice: SocketChoice,
    alone: Option<(usize, IcrcRow)>,
}

/// What sealing found out about a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seal {
    /// Its TX socket; `None` if there is none.
    pub(crate) choice: Option<SocketChoice>,
    /// Its place in the run that leaves as one segmentation batch: also its identification.
    pub(crate) place: u16,
}

/// Packets of this length in one batch.
#[inline]
pub(super) fn longest_run(wire_len: usize) -> usize {
    (MAX_RUN_LEN / wire_len).min(MAX_SEGMENTS)
}

/// Who seals the packets of a batch. Weak, for a batch may outlive the link that it was last sent by.
pub(super) type SealedBy = Option<Weak<dyn Sealer>>;

impl TxBatch {
    /// Seals the last packet, if it is known how: a next one is about to follow.
    pub(super) fn seal_early(&mut self) {
        let Some(index) = self.packets.len().checked_sub(1) else { return };
        if self.packets[index].seal.is_some() {
            return;
        }
        if let Some(choice) = self.choice_before(index) {
            self.seal_for(index, choice);
        } else if let Some(sealer) = self.sealed_by.as_ref().and_then(Weak::upgrade) {
            self.seal(index, &*sealer);
        }
    }

    /// Seals what is not sealed yet, and has packets sealed early from now on.
    pub(crate) fn seal_all(&mut self, sealer: &Arc<dyn Sealer>) {
        if !is_same(&self.sealed_by, sealer) {
            (0..self.packets.len()).for_each(|index| self.unseal(index));
            self.sealed_by = Some(Arc::downgrade(sealer));
            self.last_choice = None;
        }
        for index in 0..self.packets.len() {
            if self.packets[index].seal.is_none() {
                self.seal(index, &**sealer);
            }
        }
    }

    /// Seals the only packet, if it needs nothing said beside it and goes the way of the last one: what nearly every small
    /// message is. The packet is then as [`Self::seal_all`] would leave it. Nothing: that has to be asked.
    #[inline]
    pub(crate) fn seal_single(&mut self, sealer: &Arc<dyn Sealer>) -> Option<(SocketChoice, &Route, &[u8])> {
        let ([packet], Some(last)) = (&mut self.packets[..], &mut self.last_choice) else { return None };
        let is_ordinary = packet.seal.is_none() && packet.payload.is_none() && packet.flip_bit.is_none();
        let is_known = is_same(&self.sealed_by, sealer) && last.route == packet.route && sealer.is_settled();
        if !is_ordinary || !is_known || !last.choice.is_plain {
            return None;
        }
        let bytes = &mut self.arena[packet.arena_range()];
        let (body, tail) = bytes.split_last_chunk_mut::<ICRC_LEN>()?;
        let row = match &mut last.alone {
            Some((len, row)) if *len == body.len() => row,
            other => {
                let flow = FlowAddrs::new(last.route.sgid, last.route.dgid, last.choice.sport);
                &mut other.insert((body.len(), self.prefixes.row(&flow, body.len()).clone())).1
            }
        };
        *tail = row.icrc_alone(body);
        packet.seal = Some(Seal { choice: Some(last.choice), place: 0 });
        Some((last.choice, &last.route, bytes))
    }

    /// Seals a packet again, for leaving on its own.
    pub(crate) fn seal_alone(&mut self, index: usize) {
        let choice = self.packets[index].seal.and_then(|s| s.choice);
        self.unseal(index);
        self.put_seal(index, Seal { choice, place: 0 });
    }

    /// Takes a packet out. Those that would have left behind it in one segmentation batch become one of their own.
    pub(crate) fn remove(&mut self, index: usize) {
        self.forget(index);
        for (place, next) in (index..self.packets.len()).enumerate() {
            let Some(Seal { choice, place: 1.. }) = self.packets[next].seal else { break };
            self.unseal(next);
            self.put_seal(next, Seal { choice, place: place as u16 });
        }
    }

    /// The packets that leave together with packet `first`, which begins a run.
    pub(crate) fn run_from(&self, first: usize) -> Range<usize> {
        let continues = |p: &&TxPacket| p.seal.is_some_and(|s| s.place > 0);
        let more = self.packets[first + 1..].iter().take_while(continues).count();
        first..first + 1 + more
    }

    fn seal(&mut self, index: usize, sealer: &dyn Sealer) {
        let choice = self.choice_before(index).unwrap_or_else(|| self.find_choice(index, sealer));
        self.seal_for(index, choice);
    }

    fn find_choice(&mut self, index: usize, sealer: &dyn Sealer) -> Option<SocketChoice> {
        let route = &self.packets[index].route;
        if let Some(last) = &self.last_choice
            && last.route == *route
            && sealer.is_settled()
        {
            return Some(last.choice);
        }
        let choice = sealer.choose(route);
        self.last_choice = choice.map(|choice| LastChoice { route: *route, choice, alone: None });
        choice
    }

    /// The TX socket of the packet in front, if that has the same route and is sealed.
    fn choice_before(&self, index: usize) -> Option<Option<SocketChoice>> {
        let before = &self.packets[index.checked_sub(1)?];
        before.seal.filter(|_| before.route == self.packets[index].route).map(|seal| seal.choice)
    }

    fn seal_for(&mut self, index: usize, choice: Option<SocketChoice>) {
        let place = if choice.is_some_and(|e| e.may_segment) { self.place_in_run(index) } else { 0 };
        self.put_seal(index, Seal { choice, place });
    }

    /// A segmentation batch has segments of equal length, only the last may be shorter.
    fn place_in_run(&self, index: usize) -> u16 {
        let packet = &self.packets[index];
        let Some(before) = index.checked_sub(1).map(|i| &self.packets[i]) else { return 0 };
        let Some(seal) = before.seal.filter(|_| before.route == packet.route) else { return 0 };
        let segment_len = self.packets[index - 1 - usize::from(seal.place)].wire_len();
        let most = longest_run(segment_len);
        // One between them may have been taken out.
        let adjoins = before.arena_range().end == packet.arena_range().start;
        let is_open = adjoins && before.wire_len() == segment_len && usize::from(seal.place) + 1 < most;
        if is_open && packet.wire_len() <= segment_len { seal.place + 1 } else { 0 }
    }

    fn put_seal(&mut self, index: usize, seal: Seal) {
        let packet = &mut self.packets[index];
        packet.seal = Some(seal);
        let Some(choice) = seal.choice else { return };
        let flow = FlowAddrs::new(packet.route.sgid, packet.route.dgid, choice.sport);
        let (range, flip_bit) = (packet.arena_range(), packet.flip_bit);
        let (body, tail) = self.arena[range].split_last_chunk_mut().expect("the ICRC has its place");
        *tail = match packet.payload {
            None => self.prefixes.icrc(&flow, seal.place, body),
            Some(Payload { external, head_len }) => {
                let (head, pad) = body.split_at(head_len as usize);
                let row = self.prefixes.row(&flow, packet.transport_len());
                let sum = |payload: &[u8]| match head.try_into() {
                    Ok(bth) if pad.is_empty() => row.icrc_long(seal.place, bth, payload),
                    _ => {
                        let mut icrc = row.start(seal.place, head);
                        [head, payload, pad].iter().for_each(|part| icrc.update(part));
                        icrc.finish()
                    }
                };
                // SAFETY: whoever added the packet promised that the region is held as long as the packet is here.
                unsafe { external.summed(sum) }
            }
        };
        if let Some(bit) = flip_bit {
            flip(body, bit);
        }
    }

    /// Undoes the damage that sealing did on purpose.
    fn unseal(&mut self, index: usize) {
        let packet = &mut self.packets[index];
        let was_sealed = packet.seal.take().is_some_and(|s| s.choice.is_some());
        if let Some(bit) = packet.flip_bit.filter(|_| was_sealed) {
            let range = packet.arena_range();
            flip(&mut self.arena[range], bit);
        }
    }
}

fn is_same(sealed_by: &SealedBy, sealer: &Arc<dyn Sealer>) -> bool {
    sealed_by.as_ref().is_some_and(|s| std::ptr::addr_eq(s.as_ptr(), Arc::as_ptr(sealer)))
}

fn flip(bytes: &mut [u8], bit: u32) {
    bytes[bit as usize / 8] ^= 0x80 >> (bit % 8);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::Gid;
    use ferroce_proto::wire::verify_icrc;

    #[derive(Debug)]
    struct Fixed {
        sport: u16,
        may_segment: bool,
    }

    impl Sealer for Fixed {
        fn choose(&self, route: &Route) -> Option<SocketChoice> {
            let Fixed { sport, may_segment } = *self;
            let (number, is_plain) = (route.entropy, route.traffic_class == 0);
            (number != 13).then_some(SocketChoice { number, sport, may_segment, is_plain })
        }
    }

    fn sealer(sport: u16, may_segment: bool) -> Arc<dyn Sealer> {
        Arc::new(Fixed { sport, may_segment })
    }

    fn route(entropy: u16) -> Route {
        let gid = Gid::from_ip([127, 0, 0, 1].into());
        Route { sgid: gid, dgid: gid, entropy, ..Route::default() }
    }

    fn fill(batch: &mut TxBatch, lengths: &[usize]) {
        for (i, &len) in lengths.iter().enumerate() {
            batch.reserve(&route(0), len).fill(i as u8);
        }
    }

    fn places(batch: &TxBatch) -> Vec<u16> {
        batch.entries().iter().map(|p| p.seal.unwrap().place).collect()
    }

    fn assert_all_right(batch: &TxBatch, sport: u16) {
        for (i, packet) in batch.entries().iter().enumerate() {
            let flow = FlowAddrs::new(packet.route.sgid, packet.route.dgid, sport);
            let place = packet.seal.unwrap().place;
            assert_eq!(verify_icrc(&flow, place, batch.wire_bytes(i)), Some(place), "packet {i}");
        }
    }

    #[test]
    fn early_and_late_seals_are_the_same() {
        let lengths = [100, 100, 100, 40, 100, 100, 200, 16, 16];
        let sealer = sealer(0xC000, true);
        let mut batch = TxBatch::new();
        fill(&mut batch, &lengths);
        assert!(batch.entries().iter().all(|p| p.seal.is_none()), "nobody said how");
        batch.seal_all(&sealer);
        let late = places(&batch);
        assert_eq!(late, [0, 1, 2, 3, 0, 1, 0, 1, 0]);
        assert_all_right(&batch, 0xC000);
        batch.clear();
        fill(&mut batch, &lengths);
        let early = batch.entries().iter().filter(|p| p.seal.is_some()).count();
        assert_eq!(early, lengths.len() - 1);
        batch.seal_all(&sealer);
        assert_eq!(places(&batch), late);
        assert_all_right(&batch, 0xC000);
        let runs: Vec<_> = [0, 4, 6, 8].map(|first| batch.run_from(first)).into();
        assert_eq!(runs, [0..4, 4..6, 6..8, 8..9]);
    }

    #[test]
    fn what_follows_a_packet_that_is_taken_out_is_sealed_anew() {
        for gone in 0..6 {
            let (mut batch, sealer) = (TxBatch::new(), sealer(0xC000, true));
            batch.seal_all(&sealer);
            fill(&mut batch, &[100; 6]);
            batch.remove(gone);
            batch.seal_all(&sealer);
            let expected: Vec<_> = (0..gone as u16).chain(0..5 - gone as u16).collect();
            assert_eq!(places(&batch), expected);
            assert_all_right(&batch, 0xC000);
            let numbers: Vec<_> = batch.packets().map(|p| usize::from(p.bytes[0])).collect();
            assert_eq!(numbers, (0..6).filter(|n| *n != gone).collect::<Vec<_>>());
        }
    }

    #[test]
    fn runs_stay_within_what_the_kernel_takes() {
        let mut batch = TxBatch::new();
        fill(&mut batch, &[4108; 30]);
        batch.seal_all(&sealer(0xC000, true));
        assert_eq!(batch.run_from(0), 0..15);
        assert_eq!(batch.run_from(15), 15..30);
        batch.clear();
        fill(&mut batch, &[16; 130]);
        batch.seal_all(&sealer(0xC000, true));
        assert_eq!(batch.run_from(64), 64..128);
        batch.clear();
        fill(&mut batch, &[16; 3]);
        batch.seal_all(&sealer(0xC000, false));
        assert_eq!(places(&batch), [0, 0, 0]);
    }

    type Fill = fn(&mut TxBatch);

    #[test]
    fn a_packet_on_its_own_is_sealed_the_same_in_fewer_steps() {
        let (one, other) = (sealer(0xC000, true), sealer(0xD000, true));
        let mut batch = TxBatch::new();
        fill(&mut batch, &[32]);
        assert!(batch.seal_single(&one).is_none(), "nothing is known yet");
        batch.seal_all(&one);
        for len in [32, 32, 16, 200, 32] {
            batch.clear();
            fill(&mut batch, &[len]);
            let (choice, to, bytes) = batch.seal_single(&one).expect("as the last one");
            assert_eq!((choice.sport, *to, bytes.len()), (0xC000, route(0), len + ICRC_LEN));
            assert_all_right(&batch, 0xC000);
            assert_eq!(places(&batch), [0]);
            batch.seal_all(&one);
            assert_all_right(&batch, 0xC000);
        }
        let others: [(&str, Fill); 4] = [
            ("a second packet", |batch| fill(batch, &[32, 32])),
            ("damage on purpose", |batch| {
                fill(batch, &[32]);
                batch.corrupt_last(9);
            }),
            ("another way", |batch| batch.reserve(&route(1), 32).fill(0)),
            ("no packet", |_| ()),
        ];
        for (what, fill) in others {
            batch.clear();
            fill(&mut batch);
            assert!(batch.seal_single(&one).is_none(), "{what}");
        }
        batch.clear();
        fill(&mut batch, &[32]);
        assert!(batch.seal_single(&other).is_none(), "another link");
        batch.seal_all(&other);
        assert_all_right(&batch, 0xD000);
        let marked = Route { traffic_class: 7, ..route(0) };
        for _ in 0..2 {
            batch.clear();
            batch.reserve(&marked, 32).fill(0);
            assert!(batch.seal_single(&other).is_none(), "something is to be said beside it");
            batch.seal_all(&other);
        }
    }

    #[test]
    fn another_link_seals_anew() {
        let (one, other) = (sealer(0xC000, true), sealer(0xD000, true));
        let mut batch = TxBatch::new();
        fill(&mut batch, &[64; 3]);
        batch.corrupt_last(100);
        batch.seal_all(&one);
        batch.seal_all(&other);
        batch.unseal(2);
        batch.packets[2].flip_bit = None;
        batch.seal_all(&other);
        assert_all_right(&batch, 0xD000);
        drop(other);
        batch.clear();
        fill(&mut batch, &[64; 3]);
        assert!(batch.entries().iter().all(|p| p.seal.is_none()), "the link is gone");
    }

    #[test]
    fn damage_comes_after_the_checksum() {
        let mut batch = TxBatch::new();
        fill(&mut batch, &[64]);
        batch.corrupt_last(9);
        batch.seal_all(&sealer(0xC000, true));
        assert_eq!(batch.wire_bytes(0)[..2], [0, 0x40]);
        let flow = FlowAddrs::new(route(0).sgid, route(0).dgid, 0xC000);
        let mut healed = batch.wire_bytes(0).to_vec();
        healed[1] = 0;
        assert_eq!(verify_icrc(&flow, 0, &healed), Some(0));
        batch.seal_alone(0);
        assert_eq!(batch.wire_bytes(0)[..2], [0, 0x40]);
    }

    #[test]
    fn a_packet_that_cannot_leave_does_not_disturb_others() {
        let mut batch = TxBatch::new();
        for entropy in [0, 13, 13, 0] {
            batch.reserve(&route(entropy), 32).fill(0);
        }
        batch.seal_all(&sealer(0xC000, true));
        let leaves: Vec<_> = batch.entries().iter().map(|p| p.seal.unwrap().choice.is_some()).collect();
        assert_eq!(leaves, [true, false, false, true]);
        assert_eq!(places(&batch), [0, 0, 0, 0]);
    }

    #[test]
    fn a_cancelled_packet_leaves_its_predecessor_sealed() {
        let sealer = sealer(0xC000, true);
        let mut batch = TxBatch::new();
        batch.seal_all(&sealer);
        fill(&mut batch, &[64; 3]);
        batch.cancel_last();
        fill(&mut batch, &[64; 2]);
        batch.seal_all(&sealer);
        assert_eq!(places(&batch), [0, 1, 2, 3]);
        assert_all_right(&batch, 0xC000);
    }
}
