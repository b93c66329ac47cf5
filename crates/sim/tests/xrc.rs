//! Extended reliable connections: one sending end, and a receiving end that serves every shared queue of its domain.

use ferroce_proto::Srqn;
use ferroce_proto::qp::{DropReason, PostError, Reason, RefusalReason};
use ferroce_proto::verbs::{Access, EventKind, Mtu, QpState, Transport, WcFlags, WcOpcode, WcStatus};
use ferroce_proto::wire::{Opcode, Operation, Service};
use ferroce_sim::filter::{is_ack, is_rnr_nak, op};
use ferroce_sim::{Faults, LATENCY_NS, Pair, PairSetup, Rule, Wr};

const FAR: u64 = 128 * 1024;

fn srqn(pair: &Pair) -> Srqn {
    pair.b.srq.as_ref().unwrap().srqn()
}

#[test]
fn every_operation_of_a_reliable_connection_works() {
    let pair = Pair::xrc(Mtu::B256);
    let srq = srqn(&pair);
    pair.b.post_recv(70, FAR, 3000);
    pair.b.post_recv(71, FAR + 4096, 3000);
    pair.b.post_recv(72, FAR + 8192, 0);
    let a = &pair.a;
    a.qp.post(Wr::send(1).sge(a.sge(0, 1000)).for_srq(srq));
    a.qp.post(Wr::send_imm(2, 0xaabb).sge(a.sge(1000, 10)).for_srq(srq));
    a.qp.post(Wr::write(3, &pair.b.mr, 0).sge(a.sge(0, 2000)).for_srq(srq));
    a.qp.post(Wr::write_imm(4, &pair.b.mr, 2000, 7).sge(a.sge(2000, 500)).for_srq(srq));
    a.qp.post(Wr::read(5, &pair.b.mr, 0).sge(a.sge(FAR, 2000)).for_srq(srq));
    a.qp.post(Wr::fetch_add(6, &pair.b.mr, 16 * 1024, 5).sge(a.sge(FAR + 4096, 8)).for_srq(srq));
    pair.run();
    let done: Vec<_> = a.send_cq.drain().iter().map(|c| (c.wr_id, c.status)).collect();
    assert_eq!(done, (1..=6).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
    let got = pair.b.recv_cq.drain();
    let ids: Vec<_> = got.iter().map(|c| (c.wr_id, c.opcode)).collect();
    assert_eq!(ids, [(70, WcOpcode::Recv), (71, WcOpcode::Recv), (72, WcOpcode::RecvRdmaWithImm)]);
    assert!(
        got.iter().all(|c| c.qpn == pair.b.qp.qpn && c.src_qpn == a.qp.qpn),
        "named by the receiving end"
    );
    assert_eq!((got[1].flags, got[1].imm), (WcFlags::WITH_IMM, 0xaabb));
    assert!(pair.b.mr.read(0, 2500) == a.mr.read(0, 2500));
    assert!(pair.b.mr.read(FAR as usize, 1000) == a.mr.read(0, 1000));
    assert!(a.mr.read(FAR as usize, 2000) == a.mr.read(0, 2000));
}

#[test]
fn each_request_selects_its_srq_with_its_cq_and_domain() {
    let pair = Pair::xrc(Mtu::B256);
    let b = &pair.b;
    let (other_pd, other_cq) = (b.node.pd(), b.node.cq(8));
    let other = b.node.xrc_srq(8, 1, 1, other_pd, &other_cq);
    let theirs = b.node.mr(other_pd, 4096, Access::LOCAL_WRITE | Access::REMOTE);
    other.post(9, &[theirs.sge(0, 1000)]);
    b.post_recv(8, FAR, 1000);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 600)).for_srq(other.srqn()));
    pair.a.qp.post(Wr::send(2).sge(pair.a.sge(600, 600)).for_srq(srqn(&pair)));
    pair.a.qp.post(Wr::write(3, &theirs, 1000).sge(pair.a.sge(0, 700)).for_srq(other.srqn()));
    pair.a.qp.post(Wr::read(4, &theirs, 1000).sge(pair.a.sge(FAR, 700)).for_srq(other.srqn()));
    pair.run();
    assert_eq!(pair.a.send_cq.drain().iter().filter(|c| c.status == WcStatus::Success).count(), 4);
    assert_eq!(other_cq.only().wr_id, 9);
    assert_eq!(b.recv_cq.only().wr_id, 8);
    assert!(theirs.read(0, 600) == pair.a.mr.read(0, 600));
    assert!(theirs.read(1000, 700) == pair.a.mr.read(FAR as usize, 700));
    // The region belongs to the domain of one queue, so it cannot be reached under the name of the other.
    pair.a.qp.post(Wr::write(5, &theirs, 0).sge(pair.a.sge(0, 10)).for_srq(srqn(&pair)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(5, WcStatus::RemAccessErr)]);
}

#[test]
fn a_wrong_queue_is_an_invalid_request() {
    let foreign = |pair: &Pair| {
        let b = &pair.b;
        b.node.xrc_srq(8, 1, 2, b.pd, &b.recv_cq).srqn()
    };
    let plain = |pair: &Pair| pair.b.node.srq(8, 1).srqn();
    type Choose = fn(&Pair) -> Srqn;
    let cases: [(&str, Choose); 3] = [
        ("never made", |_| Srqn::new(0x123456)),
        ("of another XRC domain", foreign),
        ("no XRC queue", plain),
    ];
    for (what, name) in cases {
        let pair = Pair::xrc(Mtu::B256);
        let srq = name(&pair);
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 600)).for_srq(srq));
        pair.run();
        let failed = pair.a.send_cq.only();
        assert_eq!(failed.status, WcStatus::RemInvReqErr, "{what}");
        assert_eq!(Reason::from_code(failed.vendor_err), Some(Reason::PeerSaysInvalid), "{what}");
        assert_eq!(pair.b.qp.state(), QpState::Err, "{what}");
        assert_eq!(pair.b.node.refusals(RefusalReason::NoSuchSrq), 1, "{what}");
        let events = pair.b.node.events();
        assert!(events.contains(&(pair.b.qp.qpn, EventKind::QpReqErr)), "{what}: {events:?}");
    }
}

#[test]
fn an_empty_queue_is_not_ready() {
    let pair = Pair::xrc(Mtu::B256);
    let rnr = pair.world.rule(Rule::on(is_rnr_nak));
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 600)).for_srq(srqn(&pair)));
    pair.world.run_for(3 * LATENCY_NS);
    pair.b.post_recv(9, FAR, 1000);
    pair.run();
    rnr.once();
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::Success)]);
}

#[test]
fn the_current_receive_is_flushed_to_its_own_cq() {
    let pair = Pair::xrc(Mtu::B256);
    pair.b.post_recv(9, FAR, 5000);
    pair.world.rule(Rule::on(op(Operation::SendLast)).drop());
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 600)).for_srq(srqn(&pair)));
    pair.world.run_for(3 * LATENCY_NS);
    pair.b.qp.set_state(QpState::Err).unwrap();
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::WrFlushErr)]);
}

#[test]
fn each_end_refuses_the_work_of_the_other() {
    let pair = Pair::xrc(Mtu::B256);
    let send = Wr::send(1).sge(pair.a.sge(0, 10));
    assert_eq!(pair.a.qp.post_send(&send), Err(PostError::NoRemoteSrq));
    assert_eq!(pair.a.qp.post_recv(1, &[]), Err(PostError::NotOnThisTransport(Transport::XrcIni)));
    assert_eq!(pair.b.qp.post_recv(1, &[]), Err(PostError::NotOnThisTransport(Transport::XrcTgt)));
    assert_eq!(
        pair.b.qp.post_send(&send.for_srq(srqn(&pair))),
        Err(PostError::NotOnThisTransport(Transport::XrcTgt))
    );
}

#[test]
fn losses_and_duplicates_are_handled_as_on_rc() {
    let faults = Faults { loss: 0.03, duplication: 0.02, ..Faults::default() };
    for seed in 0..8 {
        let pair = PairSetup { seed, mtu: Mtu::B256, ..PairSetup::new(Transport::XrcIni) }.connect();
        pair.world.set_faults(faults);
        let srq = srqn(&pair);
        for id in 0..20u64 {
            pair.b.post_recv(100 + id, FAR + 2048 * id, 2048);
            pair.a.qp.post(Wr::send(4 * id).sge(pair.a.sge(1000 * id, 1500)).for_srq(srq));
            pair.a.qp.post(Wr::fetch_add(4 * id + 1, &pair.b.mr, 0, 1).sge(pair.a.sge(FAR, 8)).for_srq(srq));
            pair.a.qp.post(Wr::read(4 * id + 2, &pair.b.mr, 8).sge(pair.a.sge(FAR + 8, 900)).for_srq(srq));
        }
        let before = pair.b.mr.read_u64(0);
        pair.run();
        let done = pair.a.send_cq.statuses();
        assert!(done.len() == 60 && done.iter().all(|d| d.1 == WcStatus::Success), "seed {seed}: {done:?}");
        assert_eq!(pair.b.mr.read_u64(0), before.wrapping_add(20), "seed {seed}");
        let got: Vec<u64> = pair.b.recv_cq.drain().iter().map(|c| c.wr_id).collect();
        assert_eq!(got, (100..120).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn a_request_to_the_sending_end_is_dropped() {
    let pair = Pair::xrc(Mtu::B256);
    pair.b.post_recv(9, FAR, 100);
    // An ACK that a confused peer turned into a SEND: an XRCETH is as long as an AETH.
    let turned = pair.world.rule(Rule::on(is_ack).first().rewrite(|bytes| {
        bytes[0] = Opcode::new(Service::Xrc, Operation::SendOnly).to_byte();
    }));
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 10)).for_srq(srqn(&pair)));
    pair.run();
    turned.once();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)], "the next ACK gets through");
    assert_eq!(pair.a.qp.state(), QpState::Rts);
    assert_eq!(pair.world.journal().drops(pair.a.node.id, DropReason::UnexpectedOpcode), 1);
}
