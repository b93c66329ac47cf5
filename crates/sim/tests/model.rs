//! Random valid and invalid calls against a model with only the rules of the manual pages: which call is refused
//! and why, that a refused call changes nothing, that work completes at most once and in the order of posting, and
//! that ERR flushes all work while RESET completes none.

use ferroce_proto::qp::PostError;
use ferroce_proto::qp::state::{
    ModifyError, check, check_current, check_values, may_post_recv, may_post_send,
};
use ferroce_proto::verbs::{
    Access, AttrMask, Completion, Mtu, QpAttr, QpCap, QpState, SendOp, Sge, Transport, WcStatus,
};
use ferroce_proto::{PdId, Psn, RKey};
use ferroce_sim::journal::Entry;
use ferroce_sim::{Cq, Faults, LIMITS, Mr, Node, PairSetup, QpSetup, QueuePair, World, Wr, steps_to_rts};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::VecDeque;

const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 6, max_send_sge: 3, max_recv_sge: 2, max_inline_data: 64 };

/// A queue pair and its state in the model.
struct Modelled {
    transport: Transport,
    qp: QueuePair,
    node: Node,
    pd: PdId,
    mr: Mr,
    send_cq: Cq,
    recv_cq: Cq,
    state: QpState,
    /// Posted sends that may still complete, with whether success would be reported.
    sends: VecDeque<(u64, bool)>,
    receives: VecDeque<u64>,
}

struct Model {
    rng: StdRng,
    world: World,
    qps: Vec<Modelled>,
    next_id: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let mut rng = StdRng::seed_from_u64(seed);
        let world = World::new(seed);
        if rng.random() {
            world.set_faults(Faults::all(0.03));
        }
        let nodes = [world.node(), world.node()];
        if rng.random() {
            nodes.iter().for_each(|node| node.enable_rendezvous(4));
        }
        let mut model = Model { rng, world, qps: Vec::new(), next_id: 0 };
        for transport in [Transport::Rc, Transport::Rc, Transport::Uc, Transport::Ud] {
            for node in &nodes {
                let qp = model.create(node, transport);
                model.qps.push(qp);
            }
        }
        for who in (0..model.qps.len()).step_by(2) {
            model.reconnect(who);
        }
        model
    }

    fn create(&mut self, node: &Node, transport: Transport) -> Modelled {
        let pd = node.pd();
        let (send_cq, recv_cq) = (node.cq(1000), node.cq(1000));
        let mr = node.mr(pd, 16 * 1024, Access::LOCAL_WRITE | Access::REMOTE);
        let qp = node.qp(&QpSetup {
            transport,
            pd,
            send_cq: &send_cq,
            recv_cq: &recv_cq,
            srq: None,
            cap: CAP,
            signal_all: false,
            window: 4096,
            port_mtu: Mtu::B512,
            takes_jumbo: true,
        });
        Modelled {
            transport,
            qp,
            node: node.clone(),
            pd,
            mr,
            send_cq,
            recv_cq,
            state: QpState::Reset,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        }
    }

    /// One random call.
    fn step(&mut self) {
        let who = self.rng.random_range(0..self.qps.len());
        match self.rng.random_range(0..100) {
            0..=34 => self.post_send(who),
            35..=54 => self.post_recv(who),
            55..=59 => self.climb(who),
            60..=64 => self.modify_anyhow(who),
            65 => self.set_state(who, QpState::Err),
            66 => self.set_state(who, QpState::Reset),
            67..=68 => self.set_state(who, QpState::Sqd),
            69..=72 => self.set_state(who, QpState::Rts),
            73 => self.replace(who),
            74..=75 => self.register_anew(who),
            76..=79 => self.reconnect(who),
            _ => {
                let ns = self.rng.random_range(0..200_000);
                self.world.run_for(ns);
            }
        }
        for who in 0..self.qps.len() {
            self.settle(who);
        }
    }

    /// Both ends from the beginning to RTS.
    fn reconnect(&mut self, who: usize) {
        for end in [who, who ^ 1] {
            self.set_state(end, QpState::Reset);
        }
        for _ in 0..3 {
            self.climb(who);
            self.climb(who ^ 1);
        }
    }

    /// The next sensible step towards RTS.
    fn climb(&mut self, who: usize) {
        let modelled = &self.qps[who];
        let steps = steps_to_rts(modelled.transport);
        let Some((state, mask)) = (match modelled.state {
            QpState::Reset => Some(steps[0]),
            QpState::Init => Some(steps[1]),
            QpState::Rtr => Some(steps[2]),
            _ => None,
        }) else {
            return;
        };
        let setup = PairSetup {
            mtu: Mtu::B512,
            timeout: 10,
            retry_cnt: 2,
            rnr_retry: self.rng.random_range(0..4),
            ..PairSetup::new(modelled.transport)
        };
        let attr = setup.attributes(&self.qps[who ^ 1].qp, Psn::new(100), Psn::new(100));
        self.modify(who, &QpAttr { state, ..attr }, mask);
    }

    fn set_state(&mut self, who: usize, state: QpState) {
        self.modify(who, &QpAttr { state, ..QpAttr::default() }, AttrMask::STATE);
    }

    /// Attributes and masks without any sense.
    fn modify_anyhow(&mut self, who: usize) {
        let rng = &mut self.rng;
        let mut attr = self.qps[who].qp.query();
        attr.state = *QpState::ALL.choose(rng).unwrap();
        attr.cur_state = *QpState::ALL.choose(rng).unwrap();
        attr.timeout = rng.random_range(0..40);
        attr.retry_cnt = rng.random_range(0..10);
        attr.rnr_retry = rng.random_range(0..10);
        attr.min_rnr_timer = rng.random_range(0..40);
        attr.max_rd_atomic = rng.random_range(0..20);
        attr.max_dest_rd_atomic = rng.random_range(0..20);
        attr.port = rng.random_range(0..3);
        attr.pkey_index = rng.random_range(0..2);
        let mask = match rng.random_range(0..3) {
            0 => AttrMask::from_bits_retain(rng.random()),
            1 => AttrMask::STATE,
            _ => steps_to_rts(self.qps[who].transport)[rng.random_range(0..3)].1,
        };
        self.modify(who, &attr, mask);
    }

    /// Modifies, and checks that the result is the expected one.
    fn modify(&mut self, who: usize, attr: &QpAttr, mask: AttrMask) {
        let modelled = &self.qps[who];
        let from = modelled.state;
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
        let expected = check_current(attr, mask, from)
            .and_then(|()| check(modelled.transport, from, to, mask))
            .and_then(|()| check_values(attr, mask, &LIMITS));
        let before = modelled.qp.query();
        let outstanding = modelled.qp.sends_outstanding();
        let answer: Result<(), ModifyError> = modelled.qp.modify(attr, mask);
        assert_eq!(answer, expected, "{:?} {from:?} -> {to:?} with {mask:?}", modelled.transport);
        if answer.is_err() {
            assert_eq!(modelled.qp.query(), before, "a refused call changes nothing");
            return;
        }
        let modelled = &mut self.qps[who];
        modelled.state = to;
        assert_eq!(modelled.qp.state(), to);
        match to {
            QpState::Reset => {
                modelled.apply_completions();
                (modelled.sends, modelled.receives) = Default::default();
            }
            QpState::Err if from != QpState::Err => modelled.flushed(outstanding),
            _ => {}
        }
    }

    fn post_send(&mut self, who: usize) {
        let (wr, signaled) = self.any_request(who);
        let modelled = &mut self.qps[who];
        let outstanding = modelled.qp.sends_outstanding();
        let refusal = wr.refusal(modelled, outstanding);
        let id = wr.0.wr_id();
        let answer = modelled.qp.post_send(&wr.0);
        match (answer, refusal) {
            (Ok(()), None) => modelled.sends.push_back((id, signaled)),
            (Err(found), Some(expected)) if found == expected => {
                assert_eq!(modelled.qp.sends_outstanding(), outstanding);
            }
            (answer, refusal) => panic!("{:?} in {:?}: {answer:?}, not {refusal:?}", wr.0, modelled.state),
        }
    }

    fn any_request(&mut self, who: usize) -> (Request, bool) {
        self.next_id += 1;
        let (id, rng) = (self.next_id, &mut self.rng);
        let (mine, peer) = (&self.qps[who], &self.qps[who ^ 1]);
        let stray = rng.random_bool(0.03);
        let rkey = if stray { RKey(rng.random()) } else { peer.mr.rkey };
        let addr = peer.mr.addr(8 * rng.random_range(0..1000));
        let op = match rng.random_range(0..40) {
            0..=9 => SendOp::Send,
            10..=16 => SendOp::SendImm(7),
            17..=23 => SendOp::Write { addr, rkey },
            24..=27 => SendOp::WriteImm { addr, rkey, imm: 3 },
            28..=33 => SendOp::Read { addr, rkey },
            34..=37 => SendOp::Atomic { addr, rkey, op: ferroce_proto::verbs::AtomicOp::FetchAdd { add: 1 } },
            38 => SendOp::SendInv(rkey),
            _ => SendOp::LocalInv(if stray { rkey } else { mine.mr.rkey }),
        };
        let atomic = matches!(op, SendOp::Atomic { .. });
        let mut wr = Wr::new(id, op);
        let mut sges = if atomic { 1 } else { rng.random_range(0..=3) };
        if rng.random_bool(0.03) {
            sges = 4;
        }
        let inline = rng.random_bool(0.1).then(|| rng.random_range(0..80));
        if let Some(len) = inline {
            wr = wr.inline(&vec![9; len]);
        } else {
            for _ in 0..sges {
                let len = if atomic { 8 } else { rng.random_range(0..500) };
                wr = wr.sge(mine.mr.sge(rng.random_range(0..8000), len));
            }
        }
        let target = rng.random_bool(0.95);
        if mine.transport == Transport::Ud && target {
            let qkey = ferroce_sim::QKEY;
            let route = mine.node.route_to(peer.node.gid());
            wr = wr.to(ferroce_proto::verbs::UdTarget { route, qpn: peer.qp.qpn, qkey });
        }
        let signaled = rng.random_bool(0.6);
        let wr = if signaled { wr } else { wr.unsignaled() };
        (Request(wr, op, if inline.is_some() { 0 } else { sges }, inline, target), signaled)
    }

    fn post_recv(&mut self, who: usize) {
        self.next_id += 1;
        let modelled = &mut self.qps[who];
        // Mostly large enough for any message, sometimes too small or with too many pieces.
        let (count, len) = match self.rng.random_range(0..20) {
            0 => (0, 0),
            1 => (3, 10),
            2 => (1, 100),
            _ => (self.rng.random_range(1..=2), 2048),
        };
        let sges: Vec<Sge> = (0..count).map(|i| modelled.mr.sge(8192 + 2048 * i, len)).collect();
        let full = modelled.receives.len() >= CAP.max_recv_wr as usize;
        let answer = modelled.qp.post_recv(self.next_id, &sges);
        if !may_post_recv(modelled.state) {
            assert_eq!(answer, Err(PostError::WrongState(modelled.state)));
        } else if sges.len() > CAP.max_recv_sge as usize {
            assert_eq!(answer, Err(PostError::TooManySges { given: 3, max: 2 }));
        } else if full && answer.is_err() {
            assert_eq!(answer, Err(PostError::QueueFull { depth: CAP.max_recv_wr as usize }));
        } else {
            // One more than the depth may be outstanding: the receive of a partial message.
            assert_eq!(answer, Ok(()));
            modelled.receives.push_back(self.next_id);
            assert!(modelled.receives.len() <= CAP.max_recv_wr as usize + 1);
        }
    }

    /// Destroys a queue pair and replaces it by another.
    fn replace(&mut self, who: usize) {
        self.settle(who);
        let (node, transport) = (self.qps[who].node.clone(), self.qps[who].transport);
        self.qps[who].qp.destroy();
        self.qps[who] = self.create(&node, transport);
    }

    /// Frees the region and registers another: keys in flight become invalid.
    fn register_anew(&mut self, who: usize) {
        let modelled = &mut self.qps[who];
        modelled.mr.deregister();
        modelled.mr = modelled.node.mr(modelled.pd, 16 * 1024, Access::LOCAL_WRITE | Access::REMOTE);
    }

    /// Takes completions and records unrequested state changes.
    fn settle(&mut self, who: usize) {
        let modelled = &mut self.qps[who];
        let found = modelled.qp.state();
        if found != modelled.state {
            let possible = match modelled.transport {
                Transport::Rc => found == QpState::Err,
                _ => matches!(found, QpState::Sqe | QpState::Err),
            };
            assert!(possible, "{:?} went from {:?} to {found:?}", modelled.transport, modelled.state);
            modelled.state = found;
        }
        modelled.apply_completions();
        if matches!(modelled.state, QpState::Err | QpState::Sqe) {
            assert_eq!(modelled.qp.sends_outstanding(), 0);
            modelled.nothing_outstanding();
        }
        if modelled.state == QpState::Err {
            assert!(modelled.receives.is_empty(), "ERR hands all receives back");
        }
    }
}

/// A work request with what its refusal depends on: operation, entries, inline bytes, destination.
struct Request(Wr, SendOp, usize, Option<usize>, bool);

impl Request {
    fn refusal(&self, modelled: &Modelled, outstanding: usize) -> Option<PostError> {
        let Request(_, op, sges, inline, target) = self;
        let (op, transport) = (*op, modelled.transport);
        let one_sided = matches!(op, SendOp::Read { .. } | SendOp::Atomic { .. });
        let spoken = match transport {
            Transport::Rc | Transport::XrcIni => true,
            Transport::XrcTgt => false,
            Transport::Uc => !one_sided && !matches!(op, SendOp::SendInv(_)),
            Transport::Ud => matches!(op, SendOp::Send | SendOp::SendImm(_)),
        };
        if !may_post_send(modelled.state) {
            Some(PostError::WrongState(modelled.state))
        } else if !spoken {
            Some(PostError::NotOnThisTransport(transport))
        } else if transport == Transport::Ud && !target {
            Some(PostError::NoDestination)
        } else if *sges > 3 {
            Some(PostError::TooManySges { given: *sges, max: 3 })
        } else if inline.is_some() && one_sided {
            Some(PostError::InlineNotAllowed)
        } else if let Some(given) = inline.filter(|len| *len > 64) {
            Some(PostError::InlineTooLong { given, max: 64 })
        } else if outstanding == CAP.max_send_wr as usize {
            Some(PostError::QueueFull { depth: outstanding })
        } else {
            None
        }
    }
}

impl Modelled {
    /// Applies the completions to the model, and checks that the rules allow them.
    fn apply_completions(&mut self) {
        for c in self.send_cq.drain() {
            self.send_done(&c);
        }
        for c in self.recv_cq.drain() {
            assert_eq!(self.receives.pop_front(), Some(c.wr_id), "receives complete in order");
        }
    }

    fn send_done(&mut self, c: &Completion) {
        loop {
            let (id, signaled) = self.sends.pop_front().expect("a completion of something posted");
            if id == c.wr_id {
                assert!(signaled || c.status != WcStatus::Success, "an unsignalled success was told");
                return;
            }
            assert!(!signaled, "request {id} was passed over by {}", c.wr_id);
        }
    }

    /// Checks that the remaining sends are unsignalled ones.
    fn nothing_outstanding(&mut self) {
        assert!(self.sends.drain(..).all(|(_, signaled)| !signaled), "all sends were handed back");
    }

    /// The queue pair was sent to ERR with so many sends outstanding: exactly these come back flushed.
    fn flushed(&mut self, outstanding: usize) {
        let all = self.send_cq.drain();
        let tail = all.len() - outstanding;
        assert!(all[tail..].iter().all(|c| c.status == WcStatus::WrFlushErr), "{all:?}");
        for c in &all {
            self.send_done(c);
        }
        self.nothing_outstanding();
        self.apply_completions();
        assert!(self.receives.is_empty(), "ERR hands all receives back");
    }
}

/// Runs a model to its end and returns the number of successful completions.
fn run(seed: u64, calls: usize) -> usize {
    println!("seed {seed}");
    let mut model = Model::new(seed);
    for _ in 0..calls {
        model.step();
    }
    model.world.run_for(10_000_000_000);
    for who in 0..model.qps.len() {
        model.settle(who);
        model.set_state(who, QpState::Err);
    }
    model.world.run_until_idle();
    let journal = model.world.journal();
    journal.entries().iter().filter(|(_, entry)| is_success(entry)).count()
}

fn is_success(entry: &Entry) -> bool {
    matches!(entry, Entry::Completed(_, _, completion) if completion.status == WcStatus::Success)
}

#[test]
fn random_calls_follow_the_rules() {
    let successes: usize = (0..300).map(|seed| run(seed, 600)).sum();
    assert!(successes > 8_000, "the calls were too wild to mean anything: {successes} successes");
}

#[test]
fn random_calls_twice_are_the_same_run() {
    for seed in 1000..1010 {
        let journals = [0, 1].map(|_| {
            let mut model = Model::new(seed);
            for _ in 0..400 {
                model.step();
            }
            model.world.journal()
        });
        assert_eq!(journals[0].first_difference(&journals[1]), None, "seed {seed}");
    }
}
