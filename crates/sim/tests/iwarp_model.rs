//! Random work on two iWARP queue pairs, against a plain model: which bytes lie where at the end, which completions come, and in
//! which order. A seed decides work, sizes, cuts, delays, stalls, resets and damage.

use ferroce_proto::RKey;
use ferroce_proto::iwarp::negotiation::Offer;
use ferroce_proto::verbs::{Access, Completion, QpState, SendFlags, Sge, WcFlags, WcOpcode, WcStatus};
use ferroce_sim::{StreamPair, StreamSetup, Wr};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

/// The region of an end: bytes that never change, counters, and one slot per operation.
const SOURCE: u32 = 64 * 1024;
const COUNTERS: u64 = SOURCE as u64;
const SLOTS: u64 = COUNTERS + 1024;
const END: u64 = 256 * 1024;
const DEPTH: usize = 16;

/// The expected results of one end.
#[derive(Default)]
struct Expected {
    /// Signalled sends: number, opcode, bytes.
    sends: Vec<(u64, WcOpcode, u32)>,
    /// Sends posted, in order.
    posted: Vec<u64>,
    receives: VecDeque<Completion>,
    /// Receives posted so far.
    receives_posted: u64,
    slots: Vec<(u64, Vec<u8>)>,
    next_slot: u64,
    counter: u64,
}

struct Model {
    rng: StdRng,
    setup: StreamSetup,
    pair: StreamPair,
    expected: [Expected; 2],
    next_id: u64,
}

impl Model {
    fn new(seed: u64, crc: bool) -> Model {
        let mut rng = StdRng::seed_from_u64(seed);
        let depth = |rng: &mut StdRng| rng.random_range(1..=4);
        let offer =
            Offer { revision: rng.random_range(1..=2), crc, ird: depth(&mut rng), ord: 0, rtr: rng.random() };
        let setup = StreamSetup {
            // Without negotiation, the ORD of an end must not exceed the IRD of the other.
            offer: Offer { ord: if offer.revision == 2 { depth(&mut rng) } else { offer.ird }, ..offer },
            extended: rng.random_bool(0.7),
            mulpdu: *[128, 129, 500, 1460, 8192, 65535].get(rng.random_range(0..6)).unwrap(),
            room: if rng.random() { rng.random_range(1..3000) } else { 100_000 },
            srq: rng.random(),
            ..StreamSetup::default()
        };
        let mut pair = StreamPair::new(seed, &setup);
        pair.stall = if rng.random() { 0.0 } else { 0.5 };
        pair.largest_piece = if rng.random_bool(0.3) { 7 } else { 5000 };
        for (seed, end) in pair.ends.iter().enumerate() {
            end.mr.fill(seed as u64);
            end.mr.write(COUNTERS as usize, &[0; 16]);
        }
        let expected = || Expected { next_slot: SLOTS, ..Expected::default() };
        let mut model = Model { rng, setup, pair, expected: [expected(), expected()], next_id: 1 };
        // The responder may not send first, so the initiator does.
        model.post(0, 1, 0);
        model
    }

    fn len(&mut self) -> u32 {
        let around = u32::from(self.setup.mulpdu) * self.rng.random_range(0..3);
        match self.rng.random_range(0..4) {
            0 => self.rng.random_range(0..8),
            1 => self.rng.random_range(0..3000),
            _ => (around + self.rng.random_range(0..40)).saturating_sub(30).min(9000),
        }
    }

    fn slot(&mut self, end: usize, bytes: &[u8]) -> u64 {
        let expected = &mut self.expected[end];
        let at = expected.next_slot;
        expected.next_slot += (bytes.len() as u64).next_multiple_of(8) + 64;
        expected.slots.push((at, bytes.to_vec()));
        at
    }

    fn has_room(&self) -> bool {
        self.expected.iter().all(|expected| expected.next_slot + 20_000 < END)
    }

    /// Entries of `len` bytes at `offset` of an end's region, cut at random.
    fn sges(&mut self, end: usize, offset: u64, len: u32) -> Vec<Sge> {
        let cut = self.rng.random_range(0..=len);
        let mr = &self.pair.ends[end].mr;
        match self.rng.random_range(0..3) {
            0 => vec![mr.sge(offset, cut), mr.sge(offset + u64::from(cut), len - cut)],
            _ => vec![mr.sge(offset, len)],
        }
    }

    fn source(&mut self, end: usize, len: u32) -> (u64, Vec<u8>) {
        let at = self.rng.random_range(0..=u64::from(SOURCE - len));
        (at, self.pair.ends[end].mr.read(at as usize, len as usize))
    }

    /// Posts a receive at the peer for a message of these bytes.
    fn receive(&mut self, end: usize, bytes: &[u8], completion: Completion) {
        let extra = self.rng.random_range(0..20);
        let at = self.slot(end, bytes);
        let wr_id = self.next_id;
        self.next_id += 1;
        self.pair.post_recv(end, wr_id, at, bytes.len() as u32 + extra);
        self.expected[end].receives_posted += 1;
        let qpn = self.pair.ends[end].qp.qpn();
        self.expected[end].receives.push_back(Completion { wr_id, qpn, ..completion });
    }

    fn post(&mut self, end: usize, op: u32, len: u32) {
        let (peer, wr_id) = (1 - end, self.next_id);
        self.next_id += 1;
        let solicited: bool = self.rng.random();
        let (from, bytes) = self.source(end, len);
        let received =
            Completion { opcode: WcOpcode::Recv, byte_len: len, solicited, ..Completion::default() };
        let remote = self.pair.ends[peer].mr.clone();
        let (wr, opcode, byte_len) = match op {
            0 => {
                self.receive(peer, &bytes, received);
                let sges = self.sges(end, from, len);
                (Wr::send(wr_id).sges(sges), WcOpcode::Send, 0)
            }
            1 => {
                let bytes = &bytes[..bytes.len().min(128)];
                let byte_len = bytes.len() as u32;
                self.receive(peer, bytes, Completion { byte_len, ..received });
                (Wr::send(wr_id).inline(bytes), WcOpcode::Send, 0)
            }
            2 => {
                let (node, pd) = (&self.pair.ends[peer].node, self.pair.ends[peer].pd);
                let key: RKey = node.mr(pd, 64, Access::REMOTE_READ).rkey;
                let flags = WcFlags::WITH_INV;
                self.receive(peer, &bytes, Completion { invalidated: key, flags, ..received });
                let sges = self.sges(end, from, len);
                (Wr::send_inv(wr_id, key).sges(sges), WcOpcode::Send, 0)
            }
            3 => {
                let at = self.slot(peer, &bytes);
                let sges = self.sges(end, from, len);
                (Wr::write(wr_id, &remote, at).sges(sges), WcOpcode::RdmaWrite, 0)
            }
            4 if self.pair.ends[end].qp.terms().unwrap().is_ferroce => {
                let at = self.slot(peer, &bytes);
                let (imm, flags, opcode) = (wr_id as u32, WcFlags::WITH_IMM, WcOpcode::RecvRdmaWithImm);
                self.receive(peer, &[], Completion { imm, flags, opcode, ..received });
                let sges = self.sges(end, from, len);
                (Wr::write_imm(wr_id, &remote, at, imm).sges(sges), WcOpcode::RdmaWrite, 0)
            }
            5 if self.pair.ends[end].qp.terms().unwrap().is_ferroce => {
                let old = self.expected[peer].counter;
                self.expected[peer].counter += 3;
                let at = self.slot(end, &old.to_ne_bytes());
                let sges = self.sges(end, at, 8);
                (Wr::fetch_add(wr_id, &remote, COUNTERS, 3).sges(sges), WcOpcode::FetchAdd, 8)
            }
            6 => {
                let key = self.pair.ends[end].node.mr(self.pair.ends[end].pd, 64, Access::REMOTE_READ).rkey;
                (Wr::local_inv(wr_id, key), WcOpcode::LocalInv, 0)
            }
            _ => {
                let (from, bytes) = self.source(peer, len);
                let at = self.slot(end, &bytes);
                let sges = self.sges(end, at, len);
                (Wr::read(wr_id, &remote, from).sges(sges), WcOpcode::RdmaRead, len)
            }
        };
        let wr = if solicited { wr.solicited() } else { wr };
        let wr = if self.rng.random_bool(0.1) { wr.with(SendFlags::FENCE) } else { wr };
        let wr = if self.rng.random_bool(0.3) {
            wr.unsignaled()
        } else {
            self.expected[end].sends.push((wr_id, opcode, byte_len));
            wr
        };
        self.expected[end].posted.push(wr_id);
        self.pair.post(end, &wr);
    }

    /// Whether one more message can be posted at `end`.
    fn may_post(&self, end: usize) -> bool {
        let peer = 1 - end;
        let waiting = match &self.pair.ends[peer].srq {
            Some(srq) => srq.waiting(),
            None => self.pair.ends[peer].qp.recvs_waiting(),
        };
        self.pair.ends[end].qp.sends_outstanding() < DEPTH && waiting < DEPTH
    }

    fn work(&mut self, operations: u32) {
        for _ in 0..operations {
            let (end, op) = (self.rng.random_range(0..2), self.rng.random_range(0..10));
            if self.may_post(end) && self.has_room() {
                let len = self.len();
                self.post(end, op, len);
            }
            for _ in 0..self.rng.random_range(0..4) {
                self.pair.step();
            }
        }
    }

    fn check_receives(&mut self, end: usize) {
        for completion in self.pair.ends[end].recv_cq.drain() {
            assert_eq!(Some(completion), self.expected[end].receives.pop_front());
        }
    }

    fn check_everything_done(&mut self) {
        for end in 0..2 {
            self.check_receives(end);
            assert!(self.expected[end].receives.is_empty(), "receives without completion");
            let sends = self.pair.ends[end].send_cq.drain();
            let got: Vec<_> = sends.iter().map(|c| (c.wr_id, c.opcode, c.byte_len)).collect();
            assert!(sends.iter().all(|c| c.status == WcStatus::Success), "{sends:?}");
            assert_eq!(got, std::mem::take(&mut self.expected[end].sends));
            let (mr, expected) = (&self.pair.ends[end].mr, &self.expected[end]);
            for (at, bytes) in &expected.slots {
                assert_eq!(&mr.read(*at as usize, bytes.len()), bytes, "slot at {at} of end {end}");
            }
            assert_eq!(mr.read_u64(COUNTERS as usize), expected.counter);
            assert_eq!(self.pair.ends[end].events(), []);
            assert_eq!(self.pair.ends[end].qp.state(), QpState::Rts);
        }
    }

    /// After a failure: completions are in order, each request completes at most once, and nothing succeeds behind a failure.
    fn check_flushed(&mut self, end: usize) {
        let sends = self.pair.ends[end].send_cq.drain();
        let failed: Vec<_> = sends.iter().skip_while(|c| c.status == WcStatus::Success).collect();
        assert!(failed.iter().all(|c| c.status != WcStatus::Success), "success behind a failure: {sends:?}");
        let mut order = self.expected[end].posted.iter();
        assert!(sends.iter().all(|c| order.any(|id| *id == c.wr_id)), "order of completions: {sends:?}");
        let first = failed.first().map(|c| c.wr_id);
        let rest = self.expected[end].posted.iter().skip_while(|id| Some(**id) != first).count();
        assert_eq!(failed.len(), rest, "everything behind the first failure is flushed");
        assert_eq!(self.pair.ends[end].qp.sends_outstanding(), 0);
        assert_eq!(self.pair.ends[end].qp.state(), QpState::Err);
    }
}

#[test]
fn random_work_gives_what_the_model_says() {
    let mut in_place = 0;
    for seed in 0..120 {
        let mut model = Model::new(seed, seed % 2 == 0);
        model.work(60);
        model.pair.run();
        model.check_everything_done();
        in_place += model.pair.in_place;
        let end = (seed % 2) as usize;
        model.pair.disconnect(end);
        model.pair.run();
        for end in 0..2 {
            assert_eq!(model.pair.ends[end].qp.state(), QpState::Err, "seed {seed}");
            let flushed = model.pair.ends[end].recv_cq.drain();
            assert!(flushed.iter().all(|c| c.status == WcStatus::WrFlushErr));
            assert!(!model.pair.ends[end].events().iter().any(|kind| *kind != SRQ_EMPTY), "seed {seed}");
        }
    }
    assert!(in_place > 0, "no WRITE was received in place");
}

const SRQ_EMPTY: ferroce_proto::verbs::EventKind = ferroce_proto::verbs::EventKind::QpLastWqeReached;

#[test]
fn a_reset_flushes_everything_in_order() {
    for seed in 1000..1060 {
        let mut model = Model::new(seed, seed % 2 == 0);
        let operations = model.rng.random_range(1..60);
        model.work(operations);
        model.pair.reset();
        model.pair.run();
        for end in 0..2 {
            model.check_flushed(end);
        }
    }
}

/// What completed before the damage is whole, because a message completes only behind a right CRC.
#[test]
fn damage_is_found_and_ends_the_connection() {
    let mut found = 0;
    for seed in 2000..2060 {
        let mut model = Model::new(seed, true);
        model.work(30);
        let end = model.rng.random_range(0..2);
        if !model.pair.damage(end) {
            continue;
        }
        found += 1;
        // A longer length field makes the receiver wait for bytes that only a disconnect ends.
        model.pair.run();
        model.pair.disconnect(end);
        model.pair.run();
        let receiver = 1 - end;
        let completed = model.pair.ends[receiver].recv_cq.drain();
        for completion in completed.iter().take_while(|c| c.status == WcStatus::Success) {
            assert_eq!(Some(*completion), model.expected[receiver].receives.pop_front());
        }
        model.check_flushed(receiver);
        model.check_flushed(end);
    }
    assert!(found > 20, "only {found} streams had bytes to damage");
}

/// Long WRITEs go straight into their region, except for the end of each segment. With a CRC they do not.
#[test]
fn long_writes_are_received_in_place() {
    const LEN: u32 = 60_000;
    for (seed, crc) in [(1, false), (2, true)] {
        let (mut pair, source) = long_write(seed, crc, Access::REMOTE, LEN);
        pair.run();
        assert!((pair.in_place > 0) != crc, "seed {seed}: {} bytes in place", pair.in_place);
        assert!(pair.in_place <= u64::from(LEN) - 64, "seed {seed}: {} bytes in place", pair.in_place);
        assert!(pair.ends[1].mr.read(100_000, LEN as usize) == source, "seed {seed}");
    }
}

/// The rights of the queue pair are checked before the first byte is placed, for any division of the stream.
#[test]
fn nothing_is_placed_without_the_right_of_the_queue_pair() {
    const LEN: u32 = 60_000;
    for seed in 0..20 {
        let (mut pair, _) = long_write(seed, false, Access::REMOTE_READ, LEN);
        let before = pair.ends[1].mr.read(100_000, LEN as usize);
        pair.largest_piece = 20;
        pair.run();
        assert_eq!((pair.in_place, pair.ends[1].qp.state()), (0, QpState::Err), "seed {seed}");
        assert!(pair.ends[1].mr.read(100_000, LEN as usize) == before, "seed {seed}");
    }
}

/// Two ends, and a WRITE of the first one in one segment. Also its bytes.
fn long_write(seed: u64, crc: bool, access: Access, len: u32) -> (StreamPair, Vec<u8>) {
    let offer = Offer { crc, ..StreamSetup::default().offer };
    let setup = StreamSetup { offer, mulpdu: u16::MAX, room: 100_000, access, ..StreamSetup::default() };
    let mut pair = StreamPair::new(seed, &setup);
    (pair.stall, pair.largest_piece) = (0.0, 20_000);
    let [near, far] = [0, 1].map(|end| pair.ends[end].mr.clone());
    near.fill(seed + 1);
    pair.post(0, &Wr::write(1, &far, 100_000).sges([near.sge(0, len)]));
    (pair, near.read(0, len as usize))
}

/// The same seed gives the same run.
#[test]
fn a_seed_repeats_a_run() {
    let run = || {
        let mut model = Model::new(42, true);
        model.work(60);
        model.pair.run();
        (model.pair.sent_bytes(0), model.pair.sent_bytes(1), model.pair.world.journal())
    };
    assert!(run() == run());
}
