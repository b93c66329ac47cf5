//! Rows: packets from the middle of a message, which differ in nothing but number and payload.
//!
//! What sealing finds out about the first of them holds for the others, so that of each only its bytes are summed.

use super::TxBatch;
use super::seal::{Exit, Seal, longest_run};
use crate::memory::External;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{Bth, FlowAddrs, ICRC_LEN, IcrcRow};

/// Where the number stands in a BTH.
const PSN_AT: usize = 9;

/// What the packets of a row have in common.
struct Common {
    exit: Exit,
    sums: IcrcRow,
    /// Most packets of one segmentation batch.
    most: usize,
}

impl TxBatch {
    /// Adds packets that consist of `bth`, with numbers that count up, and of `payload_len` bytes each of `payload`. There
    /// must be room for them ([`TxBatch::room_for`]).
    ///
    /// # Safety
    /// The region of `payload` is held until the batch is sent or cleared.
    pub(crate) unsafe fn push_row(
        &mut self,
        route: &Route,
        bth: &Bth,
        payload: External,
        payload_len: usize,
    ) {
        let (mut head, mut psn) = (bth.to_bytes(), bth.psn);
        let mut common = None;
        for n in 0..payload.len() / payload_len {
            let part = payload.part(n * payload_len, payload_len);
            // SAFETY: part of what the caller holds.
            unsafe { self.reserve_external(route, Bth::LEN, part, 0) }.copy_from_slice(&head);
            psn = psn.plus(1);
            head[PSN_AT..].copy_from_slice(&psn.value().to_be_bytes()[1..]);
            let index = self.packets.len() - 1;
            if n == 1 {
                // Adding the second sealed the first, if it is known how.
                common = self.common(index - 1);
            }
            if let Some(common) = &common {
                self.seal_in_row(index, common);
            }
        }
    }

    /// What a packet has in common with those behind it in its row; `None` if it is not known how they leave.
    fn common(&mut self, index: usize) -> Option<Common> {
        let packet = &self.packets[index];
        let exit = packet.seal?.exit?;
        let flow = FlowAddrs::new(packet.route.sgid, packet.route.dgid, exit.sport);
        let most = if exit.may_segment { longest_run(packet.wire_len()) } else { 1 };
        Some(Common { exit, sums: self.prefixes.row(&flow, packet.transport_len()).clone(), most })
    }

    fn seal_in_row(&mut self, index: usize, common: &Common) {
        let packet = &self.packets[index];
        let Some(payload) = packet.payload else { return };
        let before = self.packets[index - 1].seal.map_or(0, |seal| usize::from(seal.place));
        let run_head = &self.packets[index - 1 - before];
        let joins = before + 1 < common.most && run_head.wire_len() == packet.wire_len();
        let place = if joins { before as u16 + 1 } else { 0 };
        let (head, rest) = self.arena[packet.arena_range()].split_at_mut(Bth::LEN);
        let mut icrc = common.sums.start(place, head);
        icrc.update(head);
        // SAFETY: whoever added the packet promised that the region is held as long as the packet is here.
        unsafe { payload.external.feed(&mut icrc) };
        rest[..ICRC_LEN].copy_from_slice(&icrc.finish());
        self.packets[index].seal = Some(Seal { exit: Some(common.exit), place });
    }
}

#[cfg(test)]
mod tests {
    use super::super::Sealer;
    use super::*;
    use crate::memory::{Pins, Region, RegionTable};
    use ferroce_proto::verbs::{Access, Sge};
    use ferroce_proto::wire::{Opcode, Operation, Service};
    use ferroce_proto::{Gid, PdId, Psn, Qpn};
    use std::sync::Arc;

    const LEN: usize = 1024;

    #[derive(Debug)]
    struct Fixed {
        may_segment: bool,
    }

    impl Sealer for Fixed {
        fn exit(&self, _: &Route) -> Option<Exit> {
            Some(Exit { number: 0, sport: 0xC000, may_segment: self.may_segment, is_plain: true })
        }
    }

    /// The packets as the kernel gets them, each with its place in its segmentation batch.
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
            (bytes, batch.entries()[index].seal.unwrap().place)
        };
        (0..batch.len()).map(piece).collect()
    }

    #[test]
    fn a_row_is_what_its_packets_are_one_by_one() {
        let memory: Vec<u8> = (0..90 * LEN).map(|n| (n * 7 + n / 251) as u8).collect();
        let table = RegionTable::new(None);
        let (base, len) = (memory.as_ptr() as usize, memory.len() as u64);
        let region = |lkey, rkey| Region {
            remote_open: false,
            ..Region::plain(base, len, PdId(1), Access::empty(), lkey, rkey)
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
            let sealer: Arc<dyn Sealer> = Arc::new(Fixed { may_segment });
            let [row, single] = [true, false].map(|in_row| {
                let mut batch = TxBatch::new();
                if is_known {
                    batch.seal_all(&sealer);
                }
                batch.reserve(&route, first_len + Bth::LEN).fill(5);
                let whole = pins.local(PdId(1), &sges, 0, 80 * LEN).unwrap().unwrap();
                let bth = Bth::new(opcode, Qpn::new(7), Psn::new(0xff_fff0));
                if in_row {
                    assert!(batch.room_for(LEN + Bth::LEN) >= 80);
                    // SAFETY: `pins` hold the region.
                    unsafe { batch.push_row(&route, &bth, whole, LEN) };
                } else {
                    for n in 0..80 {
                        let bth = Bth { psn: bth.psn.plus(n as u32), ..bth };
                        // SAFETY: as above.
                        let head =
                            unsafe { batch.reserve_external(&route, Bth::LEN, whole.part(n * LEN, LEN), 0) };
                        head.copy_from_slice(&bth.to_bytes());
                    }
                }
                batch.seal_all(&sealer);
                wire(&batch)
            });
            assert!(row == single, "{may_segment} {first_len} {is_known}");
            assert_eq!(row.iter().any(|(_, place)| *place > 0), may_segment);
        }
    }
}
