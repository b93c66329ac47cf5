//! A forger who sends with the address of a peer, but does not see its packets.
//!
//! A forged packet with the expected PSN is executed, as on hardware. Every other forged packet must change nothing.

use ferroce_proto::Psn;
use ferroce_proto::verbs::{Mtu, QpCap, QpState, WcStatus};
use ferroce_sim::filter::request;
use ferroce_sim::{Endpoint, Pair, PairSetup, QpSetup, QueuePair, Rule, World, Wr};
use std::net::{IpAddr, Ipv4Addr};

const FAR: u64 = 128 * 1024;
/// Longer than a forged packet is kept.
const EXPIRY_NS: u64 = 300_000_000;

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, ..PairSetup::rc() }
}

/// A node with the address of `a`. It never waits for an answer.
struct Forger {
    endpoint: Endpoint,
    setup: PairSetup,
}

impl Forger {
    /// A connected pair and its forger. Answers go to the genuine owner of the address.
    fn beside(setup: PairSetup) -> (Pair, Forger) {
        let world = World::new(setup.seed);
        let node = world.node_at(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)));
        let setup_of_forger = PairSetup { timeout: 0, memory: 64, ..setup };
        let endpoint = setup_of_forger.endpoint(&node, Psn::new(99));
        let pair = setup.connect_in(&world);
        assert_eq!(pair.a.node.gid(), node.gid());
        endpoint.mr.write(0, &[0xee; 64]);
        (pair, Forger { endpoint, setup: setup_of_forger })
    }

    /// A queue pair whose next request has this PSN.
    fn queue_pair(&self, to: &QueuePair, psn: Psn) -> QueuePair {
        let Endpoint { node, pd, send_cq, recv_cq, .. } = &self.endpoint;
        let cap =
            QpCap { max_send_wr: 4, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let qp = node.qp(&QpSetup {
            transport: self.setup.transport,
            pd: *pd,
            send_cq,
            recv_cq,
            srq: None,
            cap,
            signal_all: false,
            window: self.setup.window,
            port_mtu: self.setup.mtu,
            takes_jumbo: false,
        });
        qp.connect(&self.setup, to, psn, Psn::new(0));
        qp
    }

    fn send(&self, to: &QueuePair, psn: Psn) {
        self.queue_pair(to, psn).post(Wr::send(0).sge(self.endpoint.sge(0, 8)));
    }
}

/// Sends `count` messages of eight bytes and requires that they arrive, and only they.
fn exchange(pair: &Pair, count: u64) {
    for id in 0..count {
        pair.a.mr.write(8 * id as usize, &id.to_ne_bytes());
        pair.b.post_recv(id, FAR + 8 * id, 8);
    }
    for id in 0..count {
        pair.a.qp.post(Wr::send(id).sge(pair.a.sge(8 * id, 8)));
    }
    pair.world.run_for(EXPIRY_NS);
    let all: Vec<_> = (0..count).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(pair.b.recv_cq.statuses(), all);
    let received: Vec<u64> = (0..count).map(|id| pair.b.mr.read_u64((FAR + 8 * id) as usize)).collect();
    assert_eq!(received, (0..count).collect::<Vec<_>>());
    assert_eq!(pair.a.send_cq.statuses(), all);
}

#[test]
fn a_forged_packet_ahead_expires() {
    let (pair, forger) = Forger::beside(setup());
    forger.send(&pair.b.qp, Psn::new(5));
    pair.world.run_for(EXPIRY_NS);
    exchange(&pair, 10);
}

#[test]
fn a_forged_atomic_ahead_expires() {
    let (pair, forger) = Forger::beside(setup());
    let atomic = Wr::fetch_add(0, &pair.b.mr, 0, 1).sge(forger.endpoint.sge(0, 8));
    forger.queue_pair(&pair.b.qp, Psn::new(5)).post(atomic);
    pair.world.run_for(EXPIRY_NS);
    exchange(&pair, 10);
    assert_eq!(pair.b.node.atomics_run(), 0);
}

#[test]
fn the_memory_of_an_expired_packet_is_freed() {
    let (pair, forger) = Forger::beside(setup());
    let before = pair.b.qp.memory_footprint();
    forger.send(&pair.b.qp, Psn::new(5));
    pair.world.run_for(1_000_000);
    assert!(pair.b.qp.memory_footprint() > before, "it is kept");
    pair.run();
    assert_eq!(pair.b.qp.memory_footprint(), before);
}

#[test]
fn a_forged_packet_and_the_genuine_one_are_both_discarded() {
    // The first genuine packet is lost, so that the others arrive out of order too.
    for forged_first in [true, false] {
        let (pair, forger) = Forger::beside(setup());
        let lost = pair.world.rule(Rule::on(request(0)).first().drop());
        if !forged_first {
            pair.world.rule(Rule::on(|seen| seen.packet.payload.starts_with(&[0xee])).delay(100));
        }
        forger.send(&pair.b.qp, Psn::new(5));
        exchange(&pair, 10);
        lost.once();
    }
}

#[test]
fn a_forger_who_sprays_the_sequence_space_changes_nothing() {
    let (pair, forger) = Forger::beside(setup());
    let qp = forger.queue_pair(&pair.b.qp, Psn::new(0));
    // One packet in every range that the store covers. None has the expected PSN, which would be executed.
    for psn in (7..1 << 24).step_by(1023) {
        qp.set_state(QpState::Reset).expect("RESET is always allowed");
        qp.connect(&forger.setup, &pair.b.qp, Psn::new(psn), Psn::new(0));
        qp.post(Wr::send(0).sge(forger.endpoint.sge(0, 8)));
        pair.world.run_for(0);
    }
    pair.world.run_for(EXPIRY_NS);
    exchange(&pair, 100);
}

#[test]
fn early_packets_at_many_queue_pairs_need_little_memory_for_a_short_time() {
    const COUNT: usize = 100;
    let setup = PairSetup { mtu: Mtu::B4096, ..setup() };
    let (pair, forger) = Forger::beside(setup);
    let b = Forger { endpoint: pair.b.clone(), setup };
    let targets: Vec<QueuePair> = (0..COUNT).map(|_| b.queue_pair(&pair.a.qp, Psn::new(0))).collect();
    let footprint = || targets.iter().map(QueuePair::memory_footprint).sum::<usize>();
    let before = footprint();
    // Too far ahead, or in the backward half of the sequence space.
    for (n, target) in targets.iter().enumerate() {
        forger.send(target, Psn::new([256, 0x7f_0000, 0x90_0000][n % 3]));
    }
    pair.world.run_for(10_000_000);
    assert_eq!(footprint(), before);
    for target in &targets {
        forger.send(target, Psn::new(255));
    }
    pair.world.run_for(10_000_000);
    let added = footprint() - before;
    assert!((COUNT..COUNT * (64 << 20) / 10_000).contains(&added), "{added} bytes");
    pair.run();
    assert_eq!(footprint(), before);
}
