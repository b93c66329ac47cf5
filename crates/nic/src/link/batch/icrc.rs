//! ICRC finalisation: when and how a packet gets its ICRC.
//!
//! The ICRC depends on two values that only the link has: the source port of the TX socket, and over IPv4 the identification,
//! which is the index of the packet in its GSO run. A link therefore passes its [`SocketChooser`] to a batch with the first
//! `send`. From then on the batch finalises each packet when the next one is begun, while its bytes are still in the L1 cache.
//! Finalising all packets at the end would cost a fifth of the bandwidth.

use super::TxBatch;
use super::tx::{Payload, TxPacket};
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{FlowAddrs, FlowIcrc, ICRC_LEN, has_partial_icrc};
use std::fmt::Debug;
use std::ops::Range;
use std::sync::{Arc, Weak};

/// Most segments in one GSO run: the limit of the oldest kernels with GSO.
const MAX_SEGMENTS: usize = 64;
/// Most bytes in one GSO run: the longest UDP datagram, less an IPv6 header.
const MAX_RUN_LEN: usize = 65_000;

/// Chooses TX sockets.
pub(crate) trait SocketChooser: Send + Sync + Debug {
    /// The TX socket of this route; `None` if there is none.
    fn choose(&self, route: &Route) -> Option<SocketChoice>;
    /// Whether the choices stay the same.
    fn is_stable(&self) -> bool {
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
    alone: Option<(usize, FlowIcrc)>,
}

/// The inputs of the ICRC of a packet that only the link has.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IcrcInputs {
    /// Its TX socket; `None` if there is none.
    pub(crate) choice: Option<SocketChoice>,
    /// Its index in its GSO run: also its identification.
    pub(crate) run_index: u16,
}

/// Most packets of this length in one GSO run.
#[inline]
pub(super) fn longest_run(wire_len: usize) -> usize {
    (MAX_RUN_LEN / wire_len).min(MAX_SEGMENTS)
}

/// The chooser of the link that sent the batch last. Weak, because a batch may outlive that link.
pub(super) type WeakChooser = Option<Weak<dyn SocketChooser>>;

impl TxBatch {
    /// Finalises the last packet if its TX socket is known: another packet is about to follow.
    pub(super) fn finalise_last(&mut self) {
        let Some(index) = self.packets.len().checked_sub(1) else { return };
        if self.packets[index].icrc_inputs.is_some() {
            return;
        }
        if let Some(choice) = self.choice_before(index) {
            self.finalise_for(index, choice);
        } else if let Some(chooser) = self.chooser.as_ref().and_then(Weak::upgrade) {
            self.finalise(index, &*chooser);
        }
    }

    /// Finalises all packets that are not final yet. From now on packets are finalised early.
    pub(crate) fn finalise_all(&mut self, chooser: &Arc<dyn SocketChooser>) {
        if !is_same(&self.chooser, chooser) {
            (0..self.packets.len()).for_each(|index| self.reset(index));
            self.chooser = Some(Arc::downgrade(chooser));
            self.last_choice = None;
        }
        for index in 0..self.packets.len() {
            if self.packets[index].icrc_inputs.is_none() {
                self.finalise(index, &**chooser);
            }
        }
    }

    /// Finalises a batch of one packet that needs no control message and has the route of the last packet, as nearly every small
    /// message does. The result equals that of [`Self::finalise_all`]. Returns `None` for any other batch.
    #[inline]
    pub(crate) fn finalise_single(
        &mut self,
        chooser: &Arc<dyn SocketChooser>,
    ) -> Option<(SocketChoice, &Route, &[u8])> {
        let ([packet], Some(last)) = (&mut self.packets[..], &mut self.last_choice) else { return None };
        let is_ordinary =
            packet.icrc_inputs.is_none() && packet.payload.is_none() && packet.flip_bit.is_none();
        let is_known = is_same(&self.chooser, chooser) && last.route == packet.route && chooser.is_stable();
        if !is_ordinary || !is_known || !last.choice.is_plain {
            return None;
        }
        let bytes = &mut self.arena[packet.arena_range()];
        let (body, tail) = bytes.split_last_chunk_mut::<ICRC_LEN>()?;
        let flow_icrc = match &mut last.alone {
            Some((len, flow_icrc)) if *len == body.len() => flow_icrc,
            other => {
                let flow = FlowAddrs::new(last.route.sgid, last.route.dgid, last.choice.sport);
                &mut other.insert((body.len(), self.prefixes.of_flow(&flow, body.len()).clone())).1
            }
        };
        *tail = flow_icrc.icrc_alone(body);
        packet.icrc_inputs = Some(IcrcInputs { choice: Some(last.choice), run_index: 0 });
        Some((last.choice, &last.route, bytes))
    }

    /// Finalises a packet again, as a single packet outside a GSO run.
    pub(crate) fn finalise_alone(&mut self, index: usize) {
        let choice = self.packets[index].icrc_inputs.and_then(|s| s.choice);
        self.reset(index);
        self.write_icrc(index, IcrcInputs { choice, run_index: 0 });
    }

    /// Removes a packet. The packets behind it in its GSO run become a separate run.
    pub(crate) fn remove(&mut self, index: usize) {
        self.forget(index);
        for (run_index, next) in (index..self.packets.len()).enumerate() {
            let Some(IcrcInputs { choice, run_index: 1.. }) = self.packets[next].icrc_inputs else { break };
            self.reset(next);
            self.write_icrc(next, IcrcInputs { choice, run_index: run_index as u16 });
        }
    }

    /// The GSO run that packet `first` begins.
    pub(crate) fn run_from(&self, first: usize) -> Range<usize> {
        let continues = |p: &&TxPacket| p.icrc_inputs.is_some_and(|s| s.run_index > 0);
        let more = self.packets[first + 1..].iter().take_while(continues).count();
        first..first + 1 + more
    }

    fn finalise(&mut self, index: usize, chooser: &dyn SocketChooser) {
        let choice = self.choice_before(index).unwrap_or_else(|| self.find_choice(index, chooser));
        self.finalise_for(index, choice);
    }

    fn find_choice(&mut self, index: usize, chooser: &dyn SocketChooser) -> Option<SocketChoice> {
        let route = &self.packets[index].route;
        if let Some(last) = &self.last_choice
            && last.route == *route
            && chooser.is_stable()
        {
            return Some(last.choice);
        }
        let choice = chooser.choose(route);
        self.last_choice = choice.map(|choice| LastChoice { route: *route, choice, alone: None });
        choice
    }

    /// The TX socket of the packet in front, if that has the same route and is final.
    fn choice_before(&self, index: usize) -> Option<Option<SocketChoice>> {
        let before = &self.packets[index.checked_sub(1)?];
        before.icrc_inputs.filter(|_| before.route == self.packets[index].route).map(|inputs| inputs.choice)
    }

    fn finalise_for(&mut self, index: usize, choice: Option<SocketChoice>) {
        let run_index = if choice.is_some_and(|e| e.may_segment) { self.index_in_run(index) } else { 0 };
        self.write_icrc(index, IcrcInputs { choice, run_index });
    }

    /// A GSO run has segments of equal length; only the last may be shorter.
    fn index_in_run(&self, index: usize) -> u16 {
        let packet = &self.packets[index];
        let Some(before) = index.checked_sub(1).map(|i| &self.packets[i]) else { return 0 };
        let Some(inputs) = before.icrc_inputs.filter(|_| before.route == packet.route) else { return 0 };
        let segment_len = self.packets[index - 1 - usize::from(inputs.run_index)].wire_len();
        let most = longest_run(segment_len);
        // A packet between them may have been removed.
        let adjoins = before.arena_range().end == packet.arena_range().start;
        let is_open = adjoins && before.wire_len() == segment_len && usize::from(inputs.run_index) + 1 < most;
        if is_open && packet.wire_len() <= segment_len { inputs.run_index + 1 } else { 0 }
    }

    fn write_icrc(&mut self, index: usize, inputs: IcrcInputs) {
        let packet = &mut self.packets[index];
        packet.icrc_inputs = Some(inputs);
        let Some(choice) = inputs.choice else { return };
        let flow = FlowAddrs::new(packet.route.sgid, packet.route.dgid, choice.sport);
        let (range, flip_bit) = (packet.arena_range(), packet.flip_bit);
        let (body, tail) =
            self.arena[range].split_last_chunk_mut().expect("every packet has room for its ICRC");
        *tail = match packet.payload {
            None => self.prefixes.icrc(&flow, inputs.run_index, body),
            Some(Payload { external, head_len }) => {
                let (head, pad) = body.split_at(head_len as usize);
                let flow_icrc = self.prefixes.of_flow(&flow, packet.transport_len());
                let sum = |payload: &[u8]| match head.try_into() {
                    _ if has_partial_icrc(head) => flow_icrc.icrc(inputs.run_index, head),
                    Ok(bth) if pad.is_empty() => flow_icrc.icrc_long(inputs.run_index, bth, payload),
                    _ => {
                        let mut icrc = flow_icrc.start(inputs.run_index, head);
                        [head, payload, pad].iter().for_each(|part| icrc.update(part));
                        icrc.finish()
                    }
                };
                // SAFETY: the caller of `reserve_external` holds the region while the packet is in the batch.
                unsafe { external.summed(sum) }
            }
        };
        if let Some(bit) = flip_bit {
            flip(body, bit);
        }
    }

    /// Undoes the finalisation of a packet, including the bit flip of fault injection.
    fn reset(&mut self, index: usize) {
        let packet = &mut self.packets[index];
        let was_final = packet.icrc_inputs.take().is_some_and(|s| s.choice.is_some());
        if let Some(bit) = packet.flip_bit.filter(|_| was_final) {
            let range = packet.arena_range();
            flip(&mut self.arena[range], bit);
        }
    }
}

fn is_same(known: &WeakChooser, chooser: &Arc<dyn SocketChooser>) -> bool {
    known.as_ref().is_some_and(|s| std::ptr::addr_eq(s.as_ptr(), Arc::as_ptr(chooser)))
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

    impl SocketChooser for Fixed {
        fn choose(&self, route: &Route) -> Option<SocketChoice> {
            let Fixed { sport, may_segment } = *self;
            let (number, is_plain) = (route.entropy, route.traffic_class == 0);
            (number != 13).then_some(SocketChoice { number, sport, may_segment, is_plain })
        }
    }

    fn chooser(sport: u16, may_segment: bool) -> Arc<dyn SocketChooser> {
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

    fn run_indices(batch: &TxBatch) -> Vec<u16> {
        batch.entries().iter().map(|p| p.icrc_inputs.unwrap().run_index).collect()
    }

    fn assert_all_right(batch: &TxBatch, sport: u16) {
        for (i, packet) in batch.entries().iter().enumerate() {
            let flow = FlowAddrs::new(packet.route.sgid, packet.route.dgid, sport);
            let run_index = packet.icrc_inputs.unwrap().run_index;
            assert_eq!(verify_icrc(&flow, run_index, batch.wire_bytes(i)), Some(run_index), "packet {i}");
        }
    }

    #[test]
    fn early_and_late_finalisation_give_the_same_icrcs() {
        let lengths = [100, 100, 100, 40, 100, 100, 200, 16, 16];
        let chooser = chooser(0xC000, true);
        let mut batch = TxBatch::new();
        fill(&mut batch, &lengths);
        assert!(batch.entries().iter().all(|p| p.icrc_inputs.is_none()), "nobody said how");
        batch.finalise_all(&chooser);
        let late = run_indices(&batch);
        assert_eq!(late, [0, 1, 2, 3, 0, 1, 0, 1, 0]);
        assert_all_right(&batch, 0xC000);
        batch.clear();
        fill(&mut batch, &lengths);
        let early = batch.entries().iter().filter(|p| p.icrc_inputs.is_some()).count();
        assert_eq!(early, lengths.len() - 1);
        batch.finalise_all(&chooser);
        assert_eq!(run_indices(&batch), late);
        assert_all_right(&batch, 0xC000);
        let runs: Vec<_> = [0, 4, 6, 8].map(|first| batch.run_from(first)).into();
        assert_eq!(runs, [0..4, 4..6, 6..8, 8..9]);
    }

    #[test]
    fn packets_behind_a_removed_one_are_finalised_again() {
        for gone in 0..6 {
            let (mut batch, chooser) = (TxBatch::new(), chooser(0xC000, true));
            batch.finalise_all(&chooser);
            fill(&mut batch, &[100; 6]);
            batch.remove(gone);
            batch.finalise_all(&chooser);
            let expected: Vec<_> = (0..gone as u16).chain(0..5 - gone as u16).collect();
            assert_eq!(run_indices(&batch), expected);
            assert_all_right(&batch, 0xC000);
            let numbers: Vec<_> = batch.packets().map(|p| usize::from(p.bytes[0])).collect();
            assert_eq!(numbers, (0..6).filter(|n| *n != gone).collect::<Vec<_>>());
        }
    }

    #[test]
    fn runs_stay_within_what_the_kernel_takes() {
        let mut batch = TxBatch::new();
        fill(&mut batch, &[4108; 30]);
        batch.finalise_all(&chooser(0xC000, true));
        assert_eq!(batch.run_from(0), 0..15);
        assert_eq!(batch.run_from(15), 15..30);
        batch.clear();
        fill(&mut batch, &[16; 130]);
        batch.finalise_all(&chooser(0xC000, true));
        assert_eq!(batch.run_from(64), 64..128);
        batch.clear();
        fill(&mut batch, &[16; 3]);
        batch.finalise_all(&chooser(0xC000, false));
        assert_eq!(run_indices(&batch), [0, 0, 0]);
    }

    type Fill = fn(&mut TxBatch);

    #[test]
    fn a_single_packet_gets_the_same_icrc_in_fewer_steps() {
        let (one, other) = (chooser(0xC000, true), chooser(0xD000, true));
        let mut batch = TxBatch::new();
        fill(&mut batch, &[32]);
        assert!(batch.finalise_single(&one).is_none(), "nothing is known yet");
        batch.finalise_all(&one);
        for len in [32, 32, 16, 200, 32] {
            batch.clear();
            fill(&mut batch, &[len]);
            let (choice, to, bytes) = batch.finalise_single(&one).expect("as the last one");
            assert_eq!((choice.sport, *to, bytes.len()), (0xC000, route(0), len + ICRC_LEN));
            assert_all_right(&batch, 0xC000);
            assert_eq!(run_indices(&batch), [0]);
            batch.finalise_all(&one);
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
            assert!(batch.finalise_single(&one).is_none(), "{what}");
        }
        batch.clear();
        fill(&mut batch, &[32]);
        assert!(batch.finalise_single(&other).is_none(), "another link");
        batch.finalise_all(&other);
        assert_all_right(&batch, 0xD000);
        let marked = Route { traffic_class: 7, ..route(0) };
        for _ in 0..2 {
            batch.clear();
            batch.reserve(&marked, 32).fill(0);
            assert!(batch.finalise_single(&other).is_none(), "it needs a control message");
            batch.finalise_all(&other);
        }
    }

    #[test]
    fn another_link_finalises_again() {
        let (one, other) = (chooser(0xC000, true), chooser(0xD000, true));
        let mut batch = TxBatch::new();
        fill(&mut batch, &[64; 3]);
        batch.corrupt_last(100);
        batch.finalise_all(&one);
        batch.finalise_all(&other);
        batch.reset(2);
        batch.packets[2].flip_bit = None;
        batch.finalise_all(&other);
        assert_all_right(&batch, 0xD000);
        drop(other);
        batch.clear();
        fill(&mut batch, &[64; 3]);
        assert!(batch.entries().iter().all(|p| p.icrc_inputs.is_none()), "the link is gone");
    }

    #[test]
    fn damage_comes_after_the_checksum() {
        let mut batch = TxBatch::new();
        fill(&mut batch, &[64]);
        batch.corrupt_last(9);
        batch.finalise_all(&chooser(0xC000, true));
        assert_eq!(batch.wire_bytes(0)[..2], [0, 0x40]);
        let flow = FlowAddrs::new(route(0).sgid, route(0).dgid, 0xC000);
        let mut healed = batch.wire_bytes(0).to_vec();
        healed[1] = 0;
        assert_eq!(verify_icrc(&flow, 0, &healed), Some(0));
        batch.finalise_alone(0);
        assert_eq!(batch.wire_bytes(0)[..2], [0, 0x40]);
    }

    #[test]
    fn a_packet_that_cannot_leave_does_not_disturb_others() {
        let mut batch = TxBatch::new();
        for entropy in [0, 13, 13, 0] {
            batch.reserve(&route(entropy), 32).fill(0);
        }
        batch.finalise_all(&chooser(0xC000, true));
        let leaves: Vec<_> =
            batch.entries().iter().map(|p| p.icrc_inputs.unwrap().choice.is_some()).collect();
        assert_eq!(leaves, [true, false, false, true]);
        assert_eq!(run_indices(&batch), [0, 0, 0, 0]);
    }

    #[test]
    fn a_cancelled_packet_leaves_its_predecessor_final() {
        let chooser = chooser(0xC000, true);
        let mut batch = TxBatch::new();
        batch.finalise_all(&chooser);
        fill(&mut batch, &[64; 3]);
        batch.cancel_last();
        fill(&mut batch, &[64; 2]);
        batch.finalise_all(&chooser);
        assert_eq!(run_indices(&batch), [0, 1, 2, 3]);
        assert_all_right(&batch, 0xC000);
    }
}
