//! Loss, duplication, reordering, delay, corruption, forged packets and kills, mixed by seed: the results are those of a run without
//! any of them. After a kill, they are a prefix of them.
//!
//! A run is small, so that a million of them take minutes: `cargo xtask sim --seeds 1000000`. `FERROCE_SIM_SEEDS=17..18` replays seed 17.

mod support;

use ferroce_proto::verbs::{Completion, Mtu, QpState, Route, Transport, WcOpcode, WcStatus};
use ferroce_proto::wire::{
    Aeth, AtomicEth, Bth, Headers, NakCode, Opcode, Operation, PiggybackedAck, Reth, Service, Syndrome,
};
use ferroce_proto::{Gid, PKey, Psn, Srqn};
use ferroce_sim::{Endpoint, Faults, Pair, PairSetup, Wr};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::io::Write;
use std::ops::Range;
use std::time::Instant;

/// Seeds of a test run.
const SEEDS: Range<u64> = 0..1500;
const MAX_OPERATIONS: u64 = 8;
/// Each operation has bytes of its own, so that the outcome does not depend on time.
const SLOT: u64 = 1024;
const SOURCE: u64 = 0;
const WRITTEN: u64 = SLOT;
const RECEIVED: u64 = WRITTEN + MAX_OPERATIONS * SLOT;
const READ: u64 = RECEIVED + MAX_OPERATIONS * SLOT;
const COUNTERS: u64 = READ + MAX_OPERATIONS * SLOT;
const MEMORY: u64 = COUNTERS + SLOT;
/// The network works again after this time: shorter than all retries of a request take, so that none may fail.
const FAULTY_NS: u64 = 40_000_000;
/// The PSN range of a run, with a distance that no packet of ours is early by.
const PSN_RANGE: u32 = 4096;

#[derive(Clone, Copy, Debug)]
enum Op {
    Send { len: u32, imm: bool },
    Write { len: u32, imm: bool },
    Read { len: u32 },
    Add(u64),
    Swap { compare: u64 },
}

#[derive(Clone, Copy, Debug)]
struct Step {
    op: Op,
    signaled: bool,
}

/// The work and the disturbances of a run.
#[derive(Debug)]
struct Plan {
    setup: PairSetup,
    steps: [Vec<Step>; 2],
    faults: Faults,
    /// Times of forged packets.
    forged: Vec<u64>,
    /// Which end dies, and when.
    kill: Option<(usize, u64)>,
    rendezvous: bool,
    ack_delay_ns: u64,
    link_depth: usize,
}

impl Plan {
    fn new(seed: u64) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed);
        let rng = &mut rng;
        let transport = if rng.random_bool(0.15) { Transport::XrcIni } else { Transport::Rc };
        let depth = rng.random_range(1..=8);
        let setup = PairSetup {
            seed,
            mtu: *[Mtu::B256, Mtu::B256, Mtu::B512].choose(rng).expect("not empty"),
            psn_a: Psn::new(rng.random()),
            psn_b: Psn::new(rng.random()),
            timeout: 12,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: depth,
            max_dest_rd_atomic: depth,
            srq: transport == Transport::Rc && rng.random_bool(0.2),
            window: *[600, 4096, 64 * 1024].choose(rng).expect("not empty"),
            memory: MEMORY as usize,
            ..PairSetup::new(transport)
        };
        let steps = [0, 1].map(|side| match (side, transport) {
            (1, Transport::XrcIni) => Vec::new(),
            _ => steps(rng),
        });
        let mut some = |most: f64| if rng.random_bool(0.6) { rng.random_range(0.0..most) } else { 0.0 };
        let [loss, duplication, reordering, corruption] = [some(0.3), some(0.3), some(0.4), some(0.05)];
        let jitter_ns = *[5_000, 100_000, 3_000_000, 30_000_000].choose(rng).expect("not empty");
        // Nearly all of the work is done in some hundred microseconds.
        let time = |rng: &mut StdRng| {
            let most = 1 << rng.random_range(10..25);
            rng.random_range(0..most)
        };
        let mut plan = Plan {
            setup,
            steps,
            faults: Faults { loss, duplication, reordering, corruption, jitter_ns },
            forged: (0..rng.random_range(0..8)).map(|_| time(rng)).collect(),
            kill: rng.random_bool(0.2).then(|| (rng.random_range(0..2), time(rng))),
            rendezvous: rng.random_bool(0.3),
            ack_delay_ns: *[0, 0, 4_000].choose(rng).expect("not empty"),
            link_depth: *[1, 8, usize::MAX].choose(rng).expect("not empty"),
        };
        // Drawn last, so that the seeds keep their other choices.
        plan.setup.jumbo = [rng.random_bool(0.6), rng.random_bool(0.6)];
        plan
    }
}

fn steps(rng: &mut StdRng) -> Vec<Step> {
    let count = rng.random_range(0..=MAX_OPERATIONS);
    (0..count)
        .map(|n| {
            let len = match rng.random_range(0..3) {
                0 => rng.random_range(0..20),
                _ => rng.random_range(0..=SLOT as u32),
            };
            let op = match rng.random_range(0..10) {
                0..=3 => Op::Send { len, imm: rng.random() },
                4..=5 => Op::Write { len, imm: rng.random() },
                6..=7 => Op::Read { len },
                8 => Op::Add(rng.random_range(0..100)),
                _ => Op::Swap { compare: rng.random_range(0..3) },
            };
            Step { op, signaled: n + 1 == count || rng.random_bool(0.7) }
        })
        .collect()
}

type Shape = (u64, WcStatus, WcOpcode, u32, u32);

fn shape(c: &Completion) -> Shape {
    (c.wr_id, c.status, c.opcode, c.byte_len, c.imm)
}

/// What one end saw.
#[derive(Debug, PartialEq)]
struct Outcome {
    sent: Vec<Shape>,
    received: Vec<Shape>,
    memory: Vec<u8>,
    state: QpState,
}

fn outcome(end: &Endpoint) -> Outcome {
    Outcome {
        sent: end.send_cq.drain().iter().map(shape).collect(),
        received: end.recv_cq.drain().iter().map(shape).collect(),
        memory: end.mr.read(0, MEMORY as usize),
        state: end.qp.state(),
    }
}

fn post(steps: &[Step], end: &Endpoint, peer: &Endpoint, srq: Option<Srqn>) {
    for (number, step) in (0..).zip(steps) {
        let at = number * SLOT;
        let from = |len| end.sge(SOURCE, len);
        let into = |len| end.sge(READ + at, len);
        let wr = match step.op {
            Op::Send { len, imm: false } => Wr::send(number).sge(from(len)),
            Op::Send { len, imm: true } => Wr::send_imm(number, 7).sge(from(len)),
            Op::Write { len, imm: false } => Wr::write(number, &peer.mr, WRITTEN + at).sge(from(len)),
            Op::Write { len, imm: true } => Wr::write_imm(number, &peer.mr, WRITTEN + at, 9).sge(from(len)),
            Op::Read { len } => Wr::read(number, &peer.mr, SOURCE).sge(into(len)),
            Op::Add(add) => Wr::fetch_add(number, &peer.mr, COUNTERS, add).sge(into(8)),
            Op::Swap { compare } => {
                Wr::compare_swap(number, &peer.mr, COUNTERS + 8, compare, compare + 1).sge(into(8))
            }
        };
        let wr = srq.map_or(wr.clone(), |srq| wr.for_srq(srq));
        end.qp.post(if step.signaled { wr } else { wr.unsignaled() });
    }
}

/// Starts the work of both ends.
fn start(plan: &Plan) -> Pair {
    let pair = plan.setup.connect();
    let (a, b) = (&pair.a, &pair.b);
    for (end, peer) in [(a, 1), (b, 0)] {
        end.mr.write(COUNTERS as usize, &[0; SLOT as usize]);
        let is_taken = |step: &&Step| matches!(step.op, Op::Send { .. } | Op::Write { imm: true, .. });
        for number in 0..plan.steps[peer].iter().filter(is_taken).count() as u64 {
            end.post_recv(number, RECEIVED + number * SLOT, SLOT as u32);
        }
    }
    let srq =
        (plan.setup.transport == Transport::XrcIni).then(|| b.srq.as_ref().expect("XRC has one").srqn());
    post(&plan.steps[0], a, b, srq);
    post(&plan.steps[1], b, a, srq);
    pair
}

fn perfect(plan: &Plan) -> [Outcome; 2] {
    let pair = start(plan);
    pair.run();
    [outcome(&pair.a), outcome(&pair.b)]
}

fn faulty(plan: &Plan, rng: &mut StdRng) -> [Outcome; 2] {
    let pair = start(plan);
    let ends = [&pair.a, &pair.b];
    pair.world.set_faults(plan.faults);
    for end in ends {
        if plan.rendezvous {
            end.node.enable_rendezvous(3);
        }
        end.node.delay_acks(plan.ack_delay_ns);
        end.node.set_link_depth(plan.link_depth);
    }
    let kill = plan.kill.map(|(end, at)| (at, Some(end)));
    let mut events: Vec<(u64, Option<usize>)> =
        plan.forged.iter().map(|&at| (at, None)).chain(kill).collect();
    events.sort_unstable();
    for (at, kill) in events {
        pair.world.run_for(at.saturating_sub(pair.world.now().0));
        match kill {
            Some(end) => ends[end].node.kill(),
            None => forge(plan, &pair, rng),
        }
    }
    pair.world.run_for(FAULTY_NS.saturating_sub(pair.world.now().0));
    pair.world.set_faults(Faults::default());
    pair.run();
    [outcome(&pair.a), outcome(&pair.b)]
}

/// A packet that no genuine end would send at this time: with a distant PSN, or with an address, a partition or a service that is not the
/// connection's. One with all of them right would be executed, as on hardware.
fn forge(plan: &Plan, pair: &Pair, rng: &mut StdRng) {
    let (to, from) = if rng.random() { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
    let first = if std::ptr::eq(to, &pair.a) { plan.setup.psn_b } else { plan.setup.psn_a };
    let service = if plan.setup.transport == Transport::Rc { Service::Rc } else { Service::Xrc };
    let operation = *Operation::ALL.choose(rng).expect("not empty");
    let opcode = Opcode::new(service, operation);
    let opcode = if Opcode::from_byte(opcode.to_byte()) == Some(opcode) {
        opcode
    } else {
        Opcode::new(service, Operation::SendOnly)
    };
    let near = first.plus(rng.random_range(0..24));
    // Responses have the PSNs of the other direction; that is far from both.
    let far = [plan.setup.psn_a, plan.setup.psn_b];
    let far = std::iter::repeat_with(|| Psn::new(rng.random()))
        .find(|psn| far.iter().all(|first| psn.distance_from(*first).unsigned_abs() > PSN_RANGE))
        .expect("most are");
    let mut route = Route { sgid: from.node.gid(), dgid: to.node.gid(), hop_limit: 64, ..Route::default() };
    let mut bth = Bth::new(opcode, to.qp.qpn, near);
    match rng.random_range(0..4) {
        0 => route.sgid = Gid::from_ip([10, 9, 9, 9].into()),
        1 => bth.pkey = PKey(0x1234),
        2 if service == Service::Rc => {
            bth.opcode =
                Opcode::new(*[Service::Uc, Service::Ud].choose(rng).expect("not empty"), Operation::SendOnly);
        }
        _ => bth.psn = far,
    }
    (bth.ack_req, bth.hello, bth.selective) = (rng.random(), rng.random(), rng.random());
    let payload_len = match bth.opcode.operation {
        op if op.is_first() || op.is_middle() => plan.setup.mtu.bytes() as usize,
        op if op.is_send() || op.is_write() || op.is_read_response() => rng.random_range(1..=200),
        Operation::AtomicWrite => 8,
        _ => 0,
    };
    bth.pad = (payload_len.wrapping_neg() & 3) as u8;
    let syndrome = *[
        Syndrome::ACK_NO_CREDIT,
        Syndrome::RnrNak { timer: 1 },
        Syndrome::Nak(NakCode::PsnSequence),
        Syndrome::Nak(NakCode::RemoteAccess),
    ]
    .choose(rng)
    .expect("not empty");
    let aeth = Aeth { syndrome, msn: rng.random_range(0..20) };
    let (addr, rkey) = (to.mr.addr(WRITTEN), to.mr.rkey);
    let headers = Headers {
        feth: Some(ferroce_proto::wire::Feth { placement: 1, level: 0 }),
        reth: Some(Reth { addr, rkey, len: payload_len as u32 }),
        aeth: Some(aeth),
        atomic: Some(AtomicEth { addr: to.mr.addr(COUNTERS), rkey, swap_or_add: 1000, compare: 0 }),
        atomic_ack: Some(5),
        deth: Some(ferroce_proto::wire::Deth { qkey: ferroce_sim::QKEY, src_qpn: from.qp.qpn }),
        imm: Some(3),
        ieth: Some(rkey),
        xrceth: Some(to.srq.as_ref().map_or(Srqn::new(0), |srq| srq.srqn())),
        piggybacked_ack: Some(PiggybackedAck { psn: near, aeth, jumbo: rng.random() }),
        ..Headers::new(bth)
    };
    pair.world.inject(&route, &headers, &vec![0xee; payload_len]);
}

/// The survivor of a kill: what it saw is a prefix of what it would have seen, then one failure, then flushed requests.
fn check_survivor(found: &Outcome, expected: &Outcome, steps: &[Step]) {
    let done = found.sent.iter().take_while(|c| c.1 == WcStatus::Success).count();
    assert_eq!(found.sent[..done], expected.sent[..done]);
    match &found.sent[done..] {
        [] => assert_eq!(found.sent.len(), expected.sent.len(), "a request ended without its completion"),
        [failed, flushed @ ..] => {
            assert_eq!(failed.1, WcStatus::RetryExcErr);
            assert!(flushed.iter().all(|c| c.1 == WcStatus::WrFlushErr));
            // From the failed one on, every request is reported, signalled or not.
            let ids: Vec<u64> = found.sent[done..].iter().map(|c| c.0).collect();
            assert_eq!(ids, (failed.0..steps.len() as u64).collect::<Vec<_>>());
            assert_eq!(found.state, QpState::Err);
        }
    }
    let received = found.received.iter().take_while(|c| c.1 == WcStatus::Success).count();
    assert_eq!(found.received[..received], expected.received[..received]);
    assert!(found.received[received..].iter().all(|c| c.1 == WcStatus::WrFlushErr));
    let same = |at: u64, len: u32| {
        let range = at as usize..at as usize + len as usize;
        assert_eq!(found.memory[range.clone()], expected.memory[range], "{len} bytes at {at}");
    };
    for c in found.received[..received].iter().filter(|c| c.2 == WcOpcode::Recv) {
        same(RECEIVED + c.0 * SLOT, c.3);
    }
    for c in &found.sent[..done] {
        same(READ + c.0 * SLOT, c.3);
    }
}

fn run(seed: u64) {
    let plan = Plan::new(seed);
    let expected = perfect(&plan);
    assert!(expected.iter().flat_map(|end| &end.sent).all(|c| c.1 == WcStatus::Success));
    let found = faulty(&plan, &mut StdRng::seed_from_u64(!seed));
    match plan.kill {
        None => {
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!((&found.sent, &found.received), (&expected.sent, &expected.received));
                assert_eq!(found.state, expected.state);
                let differs = (0..MEMORY as usize).find(|&at| found.memory[at] != expected.memory[at]);
                assert_eq!(differs, None, "memory differs");
            }
        }
        Some((dead, _)) => check_survivor(&found[1 - dead], &expected[1 - dead], &plan.steps[1 - dead]),
    }
}

/// Shows the progress of long runs on standard error, once per percent.
fn show(seed: u64, seeds: &Range<u64>, started: Instant) {
    let (done, all) = (seed - seeds.start, seeds.end - seeds.start);
    if all > SEEDS.end && done % (all / 100).max(1) == 0 && done > 0 {
        let left = started.elapsed().as_secs_f64() / done as f64 * (all - done) as f64;
        let _ = writeln!(std::io::stderr(), "{done} of {all} seeds, {left:.0} s left");
    }
}

#[test]
fn the_results_are_those_of_a_perfect_network() {
    let (seeds, started) = (support::seeds(SEEDS), Instant::now());
    for seed in seeds.clone() {
        if let Err(reason) = std::panic::catch_unwind(|| run(seed)) {
            println!(
                "replay it: FERROCE_SIM_SEEDS={seed}..{} cargo test -p ferroce-sim --test seeds",
                seed + 1
            );
            println!("{:?}", Plan::new(seed));
            std::panic::resume_unwind(reason);
        }
        show(seed, &seeds, started);
    }
    println!("{} seeds", seeds.end - seeds.start);
}
