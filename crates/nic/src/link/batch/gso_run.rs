//! GSO runs: packets from the middle of a message, which differ only in PSN and payload.
//!
//! All packets share the TX socket and the ICRC prefix of the first, so only the bytes of each packet are checksummed.

use super::TxBatch;
use super::icrc::{IcrcInputs, SocketChoice, longest_run};
use super::tx::{Payload, TxPacket};
use crate::memory::External;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{Bth, BthRun, FlowAddrs, FlowIcrc, Headers, ICRC_LEN};
use std::cmp::Ordering;

/// The common values of the packets of a run.
struct Common {
    choice: SocketChoice,
    sums: FlowIcrc,
    index: RunIndex,
}

/// Counts the index of consecutive packets in their GSO runs, starting after a final packet, as `TxBatch::index_in_run` finds it for one.
struct RunIndex {
    last: u16,
    /// The next packet may continue the run.
    is_open: bool,
    /// Most packets of one GSO run.
    most: u16,
}

impl RunIndex {
    fn next(&mut self) -> u16 {
        self.last = if self.is_open && self.last + 1 < self.most { self.last + 1 } else { 0 };
        self.is_open = true;
        self.last
    }
}

/// Shorter packets never wait for the next batch: their runs are so long that cutting a few packets off costs little.
const WORTH_A_RUN: usize = 1024;

impl TxBatch {
    /// Whether packets of `len` transport bytes should wait for the next batch. The end of this batch would cut their run short,
    /// and a short run costs the kernel nearly as much as a full one.
    pub(crate) fn would_cut(&mut self, route: &Route, len: usize) -> bool {
        len >= WORTH_A_RUN && !self.is_empty() && self.room_in_runs(route, len) == 0
    }

    /// How many packets of `len` transport bytes fit such that the end of the batch cuts no run short by more than an eighth.
    pub(crate) fn room_in_runs(&mut self, route: &Route, len: usize) -> usize {
        let (capacity, most) = (self.room_for(len), longest_run(len + ICRC_LEN));
        let open = self.left_in_run(route, len).min(capacity);
        let rest = (capacity - open) % most;
        if rest * 8 >= most * 7 { capacity } else { capacity - rest }
    }

    /// How many packets of `len` transport bytes can extend the run of the last packet.
    fn left_in_run(&mut self, route: &Route, len: usize) -> usize {
        self.finalise_last();
        let Some(last) = self.packets.last().filter(|last| last.route == *route) else { return 0 };
        let Some(IcrcInputs { choice: Some(SocketChoice { may_segment: true, .. }), run_index }) =
            last.icrc_inputs
        else {
            return 0;
        };
        let segment = self.packets[self.packets.len() - 1 - usize::from(run_index)].transport_len();
        let left = longest_run(segment + ICRC_LEN) - 1 - usize::from(run_index);
        match len.cmp(&segment) {
            _ if last.transport_len() < segment => 0,
            Ordering::Greater => 0,
            Ordering::Equal => left,
            // A shorter packet ends the run.
            Ordering::Less => left.min(1),
        }
    }

    /// Adds packets with the header `bth`, consecutive PSNs, and `payload_len` bytes each of `payload`. The caller has checked
    /// that they fit ([`TxBatch::room_for`]).
    ///
    /// # Safety
    /// The region of `payload` is held until the batch is sent or cleared.
    pub(crate) unsafe fn push_gso_run(
        &mut self,
        route: &Route,
        bth: &Bth,
        payload: External,
        payload_len: usize,
    ) {
        let mut numbered = BthRun::new(bth);
        let mut parts = (0..payload.len() / payload_len).map(|n| payload.part(n * payload_len, payload_len));
        while let Some(part) = parts.next() {
            // SAFETY: the caller holds the region of all parts.
            unsafe { self.reserve_external(route, Bth::LEN, part, 0) }
                .copy_from_slice(&numbered.next_bytes());
            self.finalise_last();
            if let Some(common) = self.common() {
                // SAFETY: as above.
                return unsafe { self.push_like_last(common, &mut numbered, parts) };
            }
        }
    }

    /// Adds `count` packets with these headers, consecutive PSNs, and payloads of `len` bytes each, which `fill` writes, given the number of
    /// the packet. Stops when `fill` returns `false`. Returns how many were added. The caller has checked that they fit.
    pub(crate) fn push_copied_run(
        &mut self,
        route: &Route,
        headers: &Headers,
        len: usize,
        count: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> bool,
    ) -> usize {
        let mut numbered = BthRun::new(&headers.bth);
        let mut head = [0; Headers::MAX_LEN];
        let head_len = headers.write(&mut head);
        let mut common: Option<Common> = None;
        for n in 0..count {
            head[..Bth::LEN].copy_from_slice(&numbered.next_bytes());
            let packet = self.reserve(route, head_len + len);
            packet[..head_len].copy_from_slice(&head[..head_len]);
            if !fill(n, &mut packet[head_len..]) {
                self.cancel_last();
                return n;
            }
            match &mut common {
                None => {
                    self.finalise_last();
                    common = self.common();
                }
                Some(common) => self.finalise_last_as(common),
            }
        }
        count
    }

    /// Finalises the last packet, which lies in the arena and is like the one before.
    fn finalise_last_as(&mut self, common: &mut Common) {
        let Some(packet) = self.packets.last_mut() else { return };
        let run_index = common.index.next();
        packet.icrc_inputs = Some(IcrcInputs { choice: Some(common.choice), run_index });
        let bytes = &mut self.arena[packet.arena_range()];
        let (body, tail) = bytes.split_last_chunk_mut().expect("every packet has room for its ICRC");
        *tail = common.sums.icrc(run_index, body);
    }

    /// The values of the last packet that the packets behind it in its run share; `None` if its TX socket is not known.
    fn common(&mut self) -> Option<Common> {
        let packet = self.packets.last()?;
        let choice = packet.icrc_inputs?.choice?;
        let last = packet.icrc_inputs?.run_index;
        let flow = FlowAddrs::new(packet.route.sgid, packet.route.dgid, choice.sport);
        let most = if choice.may_segment { longest_run(packet.wire_len()) as u16 } else { 1 };
        // It may be the shorter last packet of an earlier run, which it ended.
        let first = &self.packets[self.packets.len() - 1 - usize::from(last)];
        let index = RunIndex { last, is_open: first.wire_len() == packet.wire_len(), most };
        Some(Common { choice, sums: self.prefixes.of_flow(&flow, packet.transport_len()).clone(), index })
    }

    /// Adds the rest of a run, with these payloads, behind its first packet, which is final.
    ///
    /// # Safety
    /// As [`Self::push_gso_run`].
    unsafe fn push_like_last(
        &mut self,
        mut common: Common,
        numbered: &mut BthRun,
        payloads: impl ExactSizeIterator<Item = External>,
    ) {
        let Some(&last) = self.packets.last() else { return };
        let (start, count) = (self.used, payloads.len());
        assert!(
            self.room_for(last.transport_len()) >= count,
            "no room for {count} packets: ask room_for first"
        );
        let (headers, _) = self.arena[start..start + count * OWN_LEN].as_chunks_mut::<OWN_LEN>();
        for (n, (own, external)) in headers.iter_mut().zip(payloads).enumerate() {
            let run_index = common.index.next();
            let bth = numbered.next_bytes();
            // SAFETY: the caller holds the region.
            let icrc = unsafe { external.summed(|bytes| common.sums.icrc_long(run_index, &bth, bytes)) };
            own[..Bth::LEN].copy_from_slice(&bth);
            own[Bth::LEN..].copy_from_slice(&icrc);
            let inputs = Some(IcrcInputs { choice: Some(common.choice), run_index });
            let payload = Some(Payload { external, head_len: Bth::LEN as u32 });
            let start = (start + n * OWN_LEN) as u32;
            self.packets.push(TxPacket { start, icrc_inputs: inputs, payload, flip_bit: None, ..last });
        }
        self.used += count * OWN_LEN;
        self.wire_len += count * last.wire_len();
    }
}

/// Bytes of each packet of a run in the arena: BTH and ICRC.
const OWN_LEN: usize = Bth::LEN + ICRC_LEN;

#[cfg(test)]
mod tests {
    use super::super::SocketChooser;
    use super::*;
    use crate::memory::{Pins, Region, RegionTable};
    use ferroce_proto::verbs::{Access, Sge};
    use ferroce_proto::wire::{Aeth, Opcode, Operation, Service, Syndrome};
    use ferroce_proto::{Gid, LKey, PdId, Psn, Qpn, RKey};
    use std::sync::Arc;

    const LEN: usize = 1024;

    #[derive(Debug)]
    struct Fixed {
        may_segment: bool,
    }

    impl SocketChooser for Fixed {
        fn choose(&self, _: &Route) -> Option<SocketChoice> {
            Some(SocketChoice { number: 0, sport: 0xC000, may_segment: self.may_segment, is_plain: true })
        }
    }

    /// The packets as the kernel gets them, each with its index in its GSO run.
    fn wire(batch: &TxBatch) -> Vec<(Vec<u8>, u16)> {
        let piece = |index: usize| {
            let mut bytes = Vec::new();
            batch.each_piece(index..index + 1, |piece| match piece {
                super::super::TxPiece::Arena(arena) => bytes.extend(arena),
                super::super::TxPiece::External(external) => {
                    // SAFETY: the region is held by the test's pins.
                    bytes.extend(unsafe { std::slice::from_raw_parts(external.as_ptr(), external.len()) });
                }
            });
            (bytes, batch.entries()[index].icrc_inputs.unwrap().run_index)
        };
        (0..batch.len()).map(piece).collect()
    }

    #[test]
    fn no_run_is_cut_where_a_batch_ends() {
        const LEN: usize = 4096 + Bth::LEN;
        let gid = Gid::from_ip([127, 0, 0, 1].into());
        let route = Route { sgid: gid, dgid: gid, ..Route::default() };
        let chooser: Arc<dyn SocketChooser> = Arc::new(Fixed { may_segment: true });
        let batch_of = |lengths: &[usize]| {
            let mut batch = TxBatch::new();
            batch.finalise_all(&chooser);
            lengths.iter().for_each(|len| batch.reserve(&route, *len).fill(1));
            batch
        };
        // A whole run has 15 of them, a batch 30.
        for (before, room) in [
            (vec![], 30),
            (vec![LEN], 29),
            (vec![LEN; 15], 15),
            (vec![LEN; 16], 14),
            // The first packet of a WRITE is longer, and ends with the second.
            (vec![LEN + 16], 1 + 15),
            (vec![LEN + 16, LEN], 15),
            (vec![LEN + 16, LEN, LEN], 14),
            ([vec![LEN + 16], vec![LEN; 16]].concat(), 0),
            (vec![LEN + 16; 2], 1 + 15),
            (vec![12], 30),
        ] {
            let mut batch = batch_of(&before);
            assert_eq!(batch.room_in_runs(&route, LEN), room, "{before:?}");
            assert_eq!(batch.would_cut(&route, LEN), room == 0);
        }
        assert_eq!(batch_of(&[]).room_in_runs(&route, 1024 + Bth::LEN), 62 + 60, "a little less is no cut");
        let elsewhere = Route { entropy: 7, ..route };
        assert_eq!(batch_of(&[LEN; 20]).room_in_runs(&elsewhere, LEN), 0);
        assert!(!batch_of(&[LEN; 29]).would_cut(&elsewhere, 64), "a short packet waits for nothing");
    }

    #[test]
    fn a_run_equals_its_packets_one_by_one() {
        let memory: Vec<u8> = (0..90 * LEN).map(|n| (n * 7 + n / 251) as u8).collect();
        let table = RegionTable::new(None);
        let (base, len) = (memory.as_ptr() as usize, memory.len() as u64);
        let region = Region {
            remote_open: false,
            ..Region::plain(base, len, PdId(1), Access::empty(), LKey(0), RKey(0))
        };
        let (_, lkey, _) = table.insert(region).unwrap();
        let mut pins = Pins::new(&table);
        let sges = [Sge { addr: 0, len: memory.len() as u32, lkey }];
        let gid = Gid::from_ip([127, 0, 0, 1].into());
        let route = Route { sgid: gid, dgid: gid, ..Route::default() };
        let opcode = Opcode::new(Service::Rc, Operation::WriteMiddle);
        for (may_segment, first_len, is_known) in [
            (true, LEN, true),
            (true, LEN + 16, true),
            (true, 12, true),
            (false, LEN, true),
            (true, LEN, false),
        ] {
            let chooser: Arc<dyn SocketChooser> = Arc::new(Fixed { may_segment });
            let [run, single] = [true, false].map(|as_run| {
                let mut batch = TxBatch::new();
                if is_known {
                    batch.finalise_all(&chooser);
                }
                batch.reserve(&route, first_len + Bth::LEN).fill(5);
                let whole = pins.local(PdId(1), &sges, 0, 80 * LEN, 0).unwrap().unwrap();
                let bth = Bth::new(opcode, Qpn::new(7), Psn::new(0xff_fff0));
                if as_run {
                    assert!(batch.room_for(LEN + Bth::LEN) >= 80);
                    // SAFETY: `pins` hold the region.
                    unsafe { batch.push_gso_run(&route, &bth, whole, LEN) };
                } else {
                    for n in 0..80 {
                        let bth = Bth { psn: bth.psn.plus(n as u32), ..bth };
                        // SAFETY: as above.
                        let head =
                            unsafe { batch.reserve_external(&route, Bth::LEN, whole.part(n * LEN, LEN), 0) };
                        head.copy_from_slice(&bth.to_bytes());
                    }
                }
                batch.finalise_all(&chooser);
                wire(&batch)
            });
            assert!(run == single, "{may_segment} {first_len} {is_known}");
            assert_eq!(run.iter().any(|(_, run_index)| *run_index > 0), may_segment);
        }
    }

    #[test]
    fn a_run_of_copies_equals_its_packets_one_by_one() {
        const COUNT: usize = 80;
        let gid = Gid::from_ip([127, 0, 0, 1].into());
        let route = Route { sgid: gid, dgid: gid, ..Route::default() };
        let opcode = Opcode::new(Service::Rc, Operation::ReadResponseMiddle);
        let payload =
            |n: usize, out: &mut [u8]| out.iter_mut().enumerate().for_each(|(k, b)| *b = (n * 7 + k) as u8);
        // To a peer that is not ferroce, only the first and last packet of a response have an AETH, so the first is longer than those of the run.
        let of_peers = [(true, 1024), (false, 1024), (true, 256), (false, 256)];
        for (extended, len) in of_peers {
            let bth = Bth { extended, ..Bth::new(opcode, Qpn::new(7), Psn::new(0xff_fff0)) };
            let aeth = extended.then_some(Aeth { syndrome: Syndrome::ACK_NO_CREDIT, msn: 9 });
            let headers = Headers { aeth, ..Headers::new(bth) };
            let head_len = headers.encoded_len();
            for (may_segment, before, is_known) in [
                (true, None, true),
                (true, Some(head_len + len), true),
                (true, Some(head_len + len + 4), true),
                (true, Some(12), true),
                (false, Some(head_len + len), true),
                (true, Some(head_len + len), false),
            ] {
                let chooser: Arc<dyn SocketChooser> = Arc::new(Fixed { may_segment });
                let [run, single] = [true, false].map(|as_run| {
                    let mut batch = TxBatch::new();
                    if is_known {
                        batch.finalise_all(&chooser);
                    }
                    before.iter().for_each(|len| batch.reserve(&route, *len).fill(5));
                    if as_run {
                        let mut add = |readable| {
                            batch.push_copied_run(&route, &headers, len, COUNT + 1, |n, out| {
                                payload(n, out);
                                n < readable
                            })
                        };
                        assert_eq!([add(0), add(COUNT)], [0, COUNT], "the one after them cannot be read");
                        let is_final = |packet: &TxPacket| packet.icrc_inputs.is_some();
                        assert!(!is_known || batch.entries().iter().all(is_final));
                    } else {
                        for n in 0..COUNT {
                            let headers =
                                Headers { bth: Bth { psn: bth.psn.plus(n as u32), ..bth }, ..headers };
                            let packet = batch.reserve(&route, head_len + len);
                            headers.write(packet);
                            payload(n, &mut packet[head_len..]);
                        }
                    }
                    batch.finalise_all(&chooser);
                    wire(&batch)
                });
                assert!(run == single, "{extended} {len}: {may_segment} {before:?} {is_known}");
                assert_eq!(run.iter().any(|(_, run_index)| *run_index > 0), may_segment);
            }
        }
    }
}
