//! Shared receive queues: several queue pairs draw from one.

use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::{EventKind, Mtu, QpState, Transport, WcStatus};
use ferroce_proto::{Psn, Qpn};
use ferroce_sim::filter::is_rnr_nak;
use ferroce_sim::{LATENCY_NS, Pair, PairSetup, QpSetup, QueuePair, Rule, Wr};

const FAR: u64 = 128 * 1024;

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, srq: true, ..PairSetup::rc() }
}

/// A second connection from `a`'s node to `b`'s node that draws from the same shared queue.
fn second(pair: &Pair, setup: &PairSetup) -> (QueuePair, QueuePair) {
    let make = |end: &ferroce_sim::Endpoint| {
        end.node.qp(&QpSetup {
            transport: setup.transport,
            pd: end.pd,
            send_cq: &end.send_cq,
            recv_cq: &end.recv_cq,
            srq: end.srq.as_ref(),
            cap: setup.cap,
            signal_all: false,
            window: setup.window,
            port_mtu: setup.mtu,
            takes_jumbo: false,
        })
    };
    let (a, b) = (make(&pair.a), make(&pair.b));
    a.connect(setup, &b, Psn::new(3), Psn::new(4));
    b.connect(setup, &a, Psn::new(4), Psn::new(3));
    (a, b)
}

#[test]
fn two_connections_share_one_receive_queue() {
    let setup = setup();
    let pair = setup.connect();
    let (a2, b2) = second(&pair, &setup);
    for id in 0..6 {
        pair.b.post_recv(id, FAR + 4096 * id, 4096);
    }
    for id in 0..3 {
        pair.a.qp.post(Wr::send_imm(id, 1).sge(pair.a.sge(0, 1000)));
        a2.post(Wr::send_imm(10 + id, 2).sge(pair.a.sge(5000, 700)));
    }
    pair.run();
    assert_eq!(pair.a.send_cq.drain().len(), 6);
    let got = pair.b.recv_cq.drain();
    let mut ids: Vec<_> = got.iter().map(|c| c.wr_id).collect();
    ids.sort_unstable();
    assert_eq!(ids, [0, 1, 2, 3, 4, 5], "each receive serves one message");
    for c in got {
        let (qpn, from, len) = if c.imm == 1 { (pair.b.qp.qpn, 0, 1000) } else { (b2.qpn, 5000, 700) };
        assert_eq!((c.qpn, c.byte_len), (qpn, len));
        let at = (FAR + 4096 * c.wr_id) as usize;
        assert!(pair.b.mr.read(at, len as usize) == pair.a.mr.read(from, len as usize));
    }
}

#[test]
fn an_empty_shared_queue_is_not_ready() {
    let pair = setup().connect();
    let rnr = pair.world.rule(Rule::on(is_rnr_nak));
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
    pair.world.run_for(3 * LATENCY_NS);
    pair.b.post_recv(9, FAR, 1000);
    pair.run();
    rnr.once();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::Success)]);
}

#[test]
fn the_srq_limit_event_is_raised_once() {
    let pair = setup().connect();
    let srq = pair.b.srq.clone().unwrap();
    for id in 0..8 {
        pair.b.post_recv(id, FAR, 100);
    }
    srq.arm(5);
    for id in 0..8 {
        pair.a.qp.post(Wr::send(id).sge(pair.a.sge(0, 10)));
        pair.run();
        let expected = if id == 3 { vec![(Qpn::default(), EventKind::SrqLimitReached)] } else { vec![] };
        assert_eq!(pair.b.node.events(), expected, "message {id}, {} left", srq.waiting());
    }
}

#[test]
fn a_queue_pair_in_error_reports_its_last_request() {
    let setup = setup();
    let pair = setup.connect();
    let (a2, b2) = second(&pair, &setup);
    for id in 0..4 {
        pair.b.post_recv(id, FAR, 100);
    }
    pair.b.qp.set_state(QpState::Err).unwrap();
    assert_eq!(pair.b.node.events(), [(pair.b.qp.qpn, EventKind::QpLastWqeReached)]);
    assert_eq!(pair.b.recv_cq.drain(), [], "the shared requests are not this queue pair's to flush");
    // The other one goes on.
    a2.post(Wr::send(1).sge(pair.a.sge(0, 100)));
    pair.run();
    let got = pair.b.recv_cq.only();
    assert_eq!((got.wr_id, got.status, got.qpn), (0, WcStatus::Success, b2.qpn));
}

#[test]
fn a_request_already_taken_is_flushed_before_the_last_wqe_event() {
    let pair = setup().connect();
    pair.b.post_recv(0, FAR, 5000);
    pair.b.post_recv(1, FAR, 5000);
    pair.world.rule(Rule::on(|seen| seen.operation().is_request() && seen.psn() == Psn::new(2)).drop());
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 2000)));
    pair.world.run_for(3 * LATENCY_NS);
    pair.b.qp.set_state(QpState::Err).unwrap();
    assert_eq!(pair.b.recv_cq.statuses(), [(0, WcStatus::WrFlushErr)]);
    assert_eq!(pair.b.srq.as_ref().unwrap().waiting(), 1);
    assert_eq!(pair.b.node.events(), [(pair.b.qp.qpn, EventKind::QpLastWqeReached)]);
}

#[test]
fn a_refused_message_ends_its_queue_pair_only() {
    let setup = setup();
    let pair = setup.connect();
    let (a2, b2) = second(&pair, &setup);
    pair.b.post_recv(0, FAR, 10);
    pair.b.post_recv(1, FAR, 1000);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 11)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(pair.b.recv_cq.statuses(), [(0, WcStatus::LocLenErr)]);
    assert_eq!(pair.b.node.events(), [(pair.b.qp.qpn, EventKind::QpLastWqeReached)]);
    a2.post(Wr::send(2).sge(pair.a.sge(0, 11)));
    pair.run();
    assert_eq!(pair.b.recv_cq.only().qpn, b2.qpn);
}

#[test]
fn receives_are_posted_to_the_shared_queue_only() {
    let pair = setup().connect();
    assert_eq!(pair.b.qp.post_recv(1, &[]), Err(PostError::HasSharedQueue));
}

#[test]
fn ud_and_uc_use_shared_receives_too() {
    for transport in [Transport::Uc, Transport::Ud] {
        let pair = PairSetup { transport, ..setup() }.connect();
        pair.b.post_recv(7, FAR, 300);
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 200)).to(pair.b.target(&pair.a.node)));
        pair.run();
        assert_eq!(pair.b.recv_cq.statuses(), [(7, WcStatus::Success)], "{transport:?}");
    }
}
