//! Many queue pairs with random work on a network with faults. The data that each of them receives, and the order in which its
//! work completes, equal those on a network without faults. The same seed gives the same run, packet by packet.
//!
//! The outcome of the work does not depend on time: every queue pair writes to memory of its own, reads memory that no queue
//! pair writes meanwhile, and adds to counters of its own. All queue pairs share one counter per node, of which only the sum is
//! checked.

use ferroce_proto::verbs::{Access, Completion, Mtu, Transport, WcOpcode, WcStatus};
use ferroce_proto::{Psn, Qpn};
use ferroce_sim::journal::Journal;
use ferroce_sim::{Cq, Faults, Mr, Node, PairSetup, QpSetup, QueuePair, World, Wr};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeSet;

const NODES: usize = 8;
const CONNECTIONS: usize = 32;
const OPERATIONS: u64 = 60;
const SLOT: u64 = 8 * 1024;

/// Parts of each queue pair's region.
const SOURCE: u64 = 0;
const WRITTEN: u64 = 2 * SLOT;
const COUNTERS: u64 = 4 * SLOT;
const ATOMIC_RESULTS: u64 = 5 * SLOT;
const RECEIVED: u64 = 6 * SLOT;
const READ: u64 = RECEIVED + (OPERATIONS + 1) * SLOT;
const REGION: u64 = READ + (OPERATIONS + 1) * SLOT;

/// What one queue pair is going to do.
#[derive(Clone, Copy, Debug)]
enum Op {
    Send { from: u64, len: u32, imm: Option<u32> },
    Write { from: u64, to: u64, len: u32, imm: Option<u32> },
    ReadConstant { from: u64, len: u32 },
    ReadWritten { from: u64, len: u32 },
    AddOwn { counter: u64, add: u64 },
    AddShared,
    Swap { counter: u64, compare: u64, swap: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    op: Op,
    signaled: bool,
    fenced: bool,
}

fn plan(rng: &mut StdRng) -> Vec<Step> {
    let mut fenced = false;
    (0..OPERATIONS)
        .map(|i| {
            let len = match rng.random_range(0..4) {
                0 => rng.random_range(0..20),
                1 => rng.random_range(0..1500),
                _ => rng.random_range(0..SLOT as u32),
            };
            let (from, to) = (rng.random_range(0..SLOT), rng.random_range(0..SLOT));
            let imm = rng.random_bool(0.3).then_some(i as u32);
            let op = match rng.random_range(0..10) {
                0..=2 => Op::Send { from, len, imm },
                3..=4 => Op::Write { from, to, len, imm },
                5..=6 => Op::ReadConstant { from, len },
                7 => Op::ReadWritten { from: to, len },
                8 if rng.random_bool(0.5) => Op::AddShared,
                8 => Op::AddOwn { counter: 8 * rng.random_range(0..4), add: rng.random_range(0..100) },
                _ => Op::Swap { counter: 32, compare: rng.random_range(0..3), swap: rng.random_range(0..3) },
            };
            // A READ may return the data of a later WRITE to the same address, unless that WRITE is fenced (IBA table 79).
            let step = Step { op, signaled: rng.random_bool(0.7) || i + 1 == OPERATIONS, fenced };
            fenced = matches!(op, Op::ReadWritten { .. }) || (fenced && !rng.random_bool(0.2));
            step
        })
        .collect()
}

struct Side {
    qp: QueuePair,
    mr: Mr,
    send_cq: Cq,
    recv_cq: Cq,
    shared: Mr,
    steps: Vec<Step>,
    next: usize,
    receives: u64,
    sent: Vec<Completion>,
    received: Vec<Completion>,
}

/// What must not depend on the network.
#[derive(Debug, PartialEq)]
struct Outcome {
    sent: Vec<Vec<Shape>>,
    received: Vec<Vec<Shape>>,
    memory: Vec<Vec<u8>>,
    shared_sums: Vec<u64>,
}

type Shape = (u64, WcStatus, Option<WcOpcode>, u32, u32, Qpn);

fn shape(c: &Completion) -> Shape {
    (c.wr_id, c.status, Some(c.opcode), c.byte_len, c.imm, c.qpn)
}

struct Run {
    world: World,
    nodes: Vec<Node>,
    sides: Vec<Side>,
    shared: Vec<Mr>,
}

impl Run {
    fn new(seed: u64) -> Run {
        let world = World::new(seed);
        let mut rng = StdRng::seed_from_u64(seed);
        let nodes: Vec<_> = (0..NODES).map(|_| world.node()).collect();
        for node in &nodes {
            node.set_link_depth([1, 8, 100, usize::MAX][rng.random_range(0..4)]);
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let pds: Vec<_> = nodes.iter().map(|node| node.pd()).collect();
        let shared: Vec<Mr> = (0..NODES).map(|i| nodes[i].mr(pds[i], 8, access)).collect();
        let mut sides = Vec::new();
        for connection in 0..CONNECTIONS {
            let mtu = Mtu::ALL[rng.random_range(0..5)];
            let depth = rng.random_range(1..=16);
            let setup = PairSetup {
                mtu,
                timeout: 12,
                retry_cnt: 7,
                rnr_retry: 7,
                max_rd_atomic: depth,
                max_dest_rd_atomic: depth,
                window: [4096, 16 * 1024, 64 * 1024, 1 << 20][rng.random_range(0..4)],
                ..PairSetup::new(Transport::Rc)
            };
            let first = connection % NODES;
            let second = (first + 1 + rng.random_range(0..NODES - 1)) % NODES;
            let mut ends = [first, second].map(|n| {
                let (send_cq, recv_cq) = (nodes[n].cq(4096), nodes[n].cq(4096));
                let mr = nodes[n].mr(pds[n], REGION as usize, access);
                let pattern = ferroce_sim::pattern(rng.random(), 2 * SLOT as usize);
                mr.write(SOURCE as usize, &pattern);
                let qp = nodes[n].qp(&QpSetup {
                    transport: Transport::Rc,
                    pd: pds[n],
                    send_cq: &send_cq,
                    recv_cq: &recv_cq,
                    srq: None,
                    cap: setup.cap,
                    signal_all: false,
                    window: setup.window,
                    port_mtu: mtu,
                    takes_jumbo: true,
                });
                let (steps, shared) = (plan(&mut rng), shared[n].clone());
                let (sent, received) = (vec![], vec![]);
                Side { qp, mr, send_cq, recv_cq, shared, steps, next: 0, receives: 0, sent, received }
            });
            let psns = [0, 1].map(|_| Psn::new(if rng.random() { 0xff_ff00 } else { rng.random() }));
            ends[0].qp.connect(&setup, &ends[1].qp, psns[0], psns[1]);
            ends[1].qp.connect(&setup, &ends[0].qp, psns[1], psns[0]);
            for end in &mut ends {
                end.post_receives();
            }
            sides.extend(ends);
        }
        Run { world, nodes, sides, shared }
    }

    /// Lets the applications do their work, in little pieces, until everything has come to rest.
    fn finish(mut self, seed: u64) -> (Outcome, Journal) {
        let mut rng = StdRng::seed_from_u64(seed ^ 1);
        while self.sides.iter().any(|side| side.next < side.steps.len()) {
            for i in 0..self.sides.len() {
                let (peer_mr, peer_shared) = (self.sides[i ^ 1].mr.clone(), self.sides[i ^ 1].shared.clone());
                let side = &mut self.sides[i];
                let burst = rng.random_range(0..6);
                side.post_some(burst, &peer_mr, &peer_shared);
                side.collect();
            }
            self.world.run_for(rng.random_range(100..20_000));
        }
        for _ in 0..100_000 {
            self.sides.iter_mut().for_each(Side::collect);
            if self.sides.iter().all(|side| side.qp.sends_outstanding() == 0) {
                break;
            }
            self.world.run_for(50_000);
        }
        self.world.run_until_idle();
        self.sides.iter_mut().for_each(Side::collect);
        let journal = self.world.journal();
        (self.outcome(), journal)
    }

    fn outcome(&self) -> Outcome {
        let why: Vec<String> = self.world.journal().explanations().map(str::to_string).collect();
        assert_eq!(why, [""; 0], "nothing may fail");
        for side in &self.sides {
            assert_eq!(side.qp.sends_outstanding(), 0);
        }
        self.check_shared_counters();
        let shapes = |all: &[Completion]| all.iter().map(shape).collect();
        Outcome {
            sent: self.sides.iter().map(|side| shapes(&side.sent)).collect(),
            received: self.sides.iter().map(|side| shapes(&side.received)).collect(),
            memory: self.sides.iter().map(Side::lasting_memory).collect(),
            shared_sums: self.shared.iter().map(|mr| mr.read_u64(0)).collect(),
        }
    }

    /// Everybody who added one to a node's counter found another value there: each addition happened exactly once.
    fn check_shared_counters(&self) {
        for counter in &self.shared {
            let mut found = BTreeSet::new();
            let mut count = 0;
            for (i, side) in self.sides.iter().enumerate() {
                if self.sides[i ^ 1].shared.rkey != counter.rkey {
                    continue;
                }
                for (number, step) in side.steps.iter().enumerate() {
                    if matches!(step.op, Op::AddShared) {
                        found.insert(side.mr.read_u64(ATOMIC_RESULTS as usize + 8 * number));
                        count += 1;
                    }
                }
            }
            assert_eq!(found, (0..count).collect());
            assert_eq!(counter.read_u64(0), count);
        }
    }
}

impl Side {
    /// Keeps enough receives posted. Each has a slot of its own, so the n-th message is in the n-th slot.
    fn post_receives(&mut self) {
        while self.receives <= OPERATIONS && self.receives < self.received.len() as u64 + 4 {
            let sge = self.mr.sge(RECEIVED + self.receives * SLOT, SLOT as u32);
            self.qp.post_recv(self.receives, &[sge]).expect("room for four receives");
            self.receives += 1;
        }
    }

    fn collect(&mut self) {
        self.sent.extend(self.send_cq.drain());
        self.received.extend(self.recv_cq.drain());
        self.post_receives();
    }

    fn post_some(&mut self, burst: usize, peer: &Mr, shared: &Mr) {
        for _ in 0..burst {
            if self.next == self.steps.len() || self.qp.sends_outstanding() > 100 {
                return;
            }
            let wr = self.request(self.next as u64, self.steps[self.next], peer, shared);
            self.qp.post(wr);
            self.next += 1;
        }
    }

    fn request(&self, number: u64, step: Step, peer: &Mr, shared: &Mr) -> Wr {
        let source = |from, len| self.mr.sge(SOURCE + from, len);
        let result = self.mr.sge(ATOMIC_RESULTS + 8 * number, 8);
        let into = |len| self.mr.sge(READ + number * SLOT, len);
        let wr = match step.op {
            Op::Send { from, len, imm: None } => Wr::send(number).sge(source(from, len)),
            Op::Send { from, len, imm: Some(imm) } => Wr::send_imm(number, imm).sge(source(from, len)),
            Op::Write { from, to, len, imm: None } => {
                Wr::write(number, peer, WRITTEN + to).sge(source(from, len))
            }
            Op::Write { from, to, len, imm: Some(imm) } => {
                Wr::write_imm(number, peer, WRITTEN + to, imm).sge(source(from, len))
            }
            Op::ReadConstant { from, len } => Wr::read(number, peer, SOURCE + from).sge(into(len)),
            Op::ReadWritten { from, len } => Wr::read(number, peer, WRITTEN + from).sge(into(len)),
            Op::AddOwn { counter, add } => Wr::fetch_add(number, peer, COUNTERS + counter, add).sge(result),
            Op::Swap { counter, compare, swap } => {
                Wr::compare_swap(number, peer, COUNTERS + counter, compare, swap).sge(result)
            }
            Op::AddShared => Wr::fetch_add(number, shared, 0, 1).sge(result),
        };
        let wr = if step.fenced { wr.fenced() } else { wr };
        if step.signaled { wr } else { wr.unsignaled() }
    }

    /// Its memory without what it found in shared counters.
    fn lasting_memory(&self) -> Vec<u8> {
        let mut bytes = self.mr.read(0, REGION as usize);
        for (number, step) in self.steps.iter().enumerate() {
            if matches!(step.op, Op::AddShared) {
                bytes[ATOMIC_RESULTS as usize + 8 * number..][..8].fill(0);
            }
        }
        bytes
    }
}

/// On a perfect network all data goes in packets; on a bad one every other node names it instead, and some cannot fetch all of it.
fn run(seed: u64, faults: Faults) -> (Outcome, Journal) {
    let run = Run::new(seed);
    run.world.set_faults(faults);
    if faults != Faults::default() {
        let nodes = run.nodes.iter().enumerate();
        nodes.filter(|(n, _)| n % 2 == 1).for_each(|(n, node)| node.enable_rendezvous([0, 5, 2, 40][n / 2]));
    }
    run.finish(seed)
}

fn soak(seed: u64, faults: Faults) {
    println!("seed {seed}, {faults:?}");
    let (expected, _) = run(seed, Faults::default());
    assert!(expected.sent.iter().flatten().all(|(_, status, ..)| *status == WcStatus::Success));
    let (outcome, journal) = run(seed, faults);
    for i in 0..expected.sent.len() {
        assert_eq!(outcome.sent[i], expected.sent[i], "seed {seed}: sends of queue pair {i}");
        assert_eq!(outcome.received[i], expected.received[i], "seed {seed}: receives of queue pair {i}");
        let differs = (0..REGION as usize).find(|&at| outcome.memory[i][at] != expected.memory[i][at]);
        assert_eq!(differs, None, "seed {seed}: memory of queue pair {i} differs");
    }
    assert_eq!(outcome.shared_sums, expected.shared_sums);
    let (again, second_journal) = run(seed, faults);
    assert_eq!(journal.first_difference(&second_journal), None, "seed {seed}: two runs differ");
    assert!(again == outcome);
    println!("  {} entries in the journal", journal.entries().len());
}

/// How many seeds each test tries; `FERROCE_SOAK_SEEDS=200` makes a night of it.
fn seeds(first: u64) -> std::ops::Range<u64> {
    let count = std::env::var("FERROCE_SOAK_SEEDS").map_or(2, |n| n.parse().expect("FERROCE_SOAK_SEEDS"));
    first..first + count
}

#[test]
fn few_faults_of_every_kind() {
    for seed in seeds(1_000) {
        soak(seed, Faults::all(0.01));
    }
}

#[test]
fn many_faults_of_every_kind() {
    for seed in seeds(2_000) {
        soak(seed, Faults::all(0.05));
    }
}

#[test]
fn much_loss() {
    for seed in seeds(3_000) {
        soak(seed, Faults { loss: 0.1, ..Faults::default() });
    }
}

#[test]
fn much_duplication_and_reordering() {
    for seed in seeds(4_000) {
        soak(seed, Faults { duplication: 0.2, reordering: 0.2, jitter_ns: 100_000, ..Faults::default() });
    }
}

#[test]
fn very_late_copies() {
    for seed in seeds(5_000) {
        let jitter_ns = 30_000_000;
        soak(seed, Faults { duplication: 0.1, reordering: 0.02, loss: 0.01, jitter_ns, ..Faults::default() });
    }
}
