//! The life of a reliable connection: what each state does with work and packets.

use ferroce_proto::Psn;
use ferroce_proto::qp::state::ModifyError;
use ferroce_proto::qp::{DropReason, PostError};
use ferroce_proto::verbs::{AttrMask, EventKind, Mtu, QpAttr, QpState, WcStatus};
use ferroce_sim::filter::{any, is_request};
use ferroce_sim::{Endpoint, LATENCY_NS, PairSetup, Rule, World, Wr, steps_to_rts};

const FAR: u64 = 128 * 1024;

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, ..PairSetup::rc() }
}

fn all(status: WcStatus, ids: impl IntoIterator<Item = u64>) -> Vec<(u64, WcStatus)> {
    ids.into_iter().map(|id| (id, status)).collect()
}

/// Two endpoints in RESET.
fn unconnected() -> (World, Endpoint, Endpoint) {
    let world = World::new(1);
    let a = setup().endpoint(&world.node(), Psn::new(0));
    let b = setup().endpoint(&world.node(), Psn::new(1));
    (world, a, b)
}

fn climb(from: &Endpoint, to: &Endpoint, last: QpState) {
    let attr = setup().attributes(&to.qp, Psn::new(5), Psn::new(5));
    for (state, mask) in steps_to_rts(setup().transport) {
        from.qp.modify(&QpAttr { state, ..attr }, mask).unwrap();
        if state == last {
            return;
        }
    }
}

#[test]
fn posting_is_refused_where_the_manual_says_so() {
    let (_world, a, b) = unconnected();
    let send = || a.qp.post_send(&Wr::send(1));
    let recv = || a.qp.post_recv(1, &[]);
    assert_eq!(send(), Err(PostError::WrongState(QpState::Reset)));
    assert_eq!(recv(), Err(PostError::WrongState(QpState::Reset)));
    for state in [QpState::Init, QpState::Rtr] {
        let (_world, a, b) = unconnected();
        climb(&a, &b, state);
        assert_eq!(a.qp.post_send(&Wr::send(1)), Err(PostError::WrongState(state)));
        assert_eq!(a.qp.post_recv(1, &[]), Ok(()));
    }
    climb(&a, &b, QpState::Rts);
    assert_eq!((send(), recv()), (Ok(()), Ok(())));
}

#[test]
fn receives_posted_in_init_serve_the_first_messages() {
    let (world, a, b) = unconnected();
    climb(&b, &a, QpState::Init);
    b.post_recv(9, FAR, 100);
    let attr = setup().attributes(&a.qp, Psn::new(5), Psn::new(5));
    let (state, mask) = steps_to_rts(setup().transport)[1];
    b.qp.modify(&QpAttr { state, ..attr }, mask).unwrap();
    climb(&a, &b, QpState::Rts);
    a.qp.post(Wr::send(1).sge(a.sge(0, 100)));
    world.run_until_idle();
    assert_eq!(a.send_cq.statuses(), [(1, WcStatus::Success)], "RTR receives and answers");
    assert_eq!(b.recv_cq.statuses(), [(9, WcStatus::Success)]);
    assert_eq!(b.node.events(), [(b.qp.qpn, EventKind::CommEst)], "told once, by the first packet");
    assert_eq!(a.node.events(), []);
}

#[test]
fn packets_before_rtr_are_dropped() {
    let (world, a, b) = unconnected();
    climb(&b, &a, QpState::Init);
    climb(&a, &b, QpState::Rts);
    a.qp.post(Wr::send(1).sge(a.sge(0, 100)));
    world.run_for(10 * LATENCY_NS);
    assert_eq!(world.journal().drops(b.node.id, DropReason::WrongState), 1);
    // The requester tries again, and finds the peer ready.
    let attr = setup().attributes(&a.qp, Psn::new(5), Psn::new(5));
    b.post_recv(9, FAR, 100);
    b.qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, steps_to_rts(setup().transport)[1].1).unwrap();
    world.run_until_idle();
    assert_eq!(a.send_cq.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn query_returns_what_was_set() {
    let (_world, a, b) = unconnected();
    climb(&a, &b, QpState::Rts);
    let attr = setup().attributes(&b.qp, Psn::new(5), Psn::new(5));
    let found = a.qp.query();
    let expected =
        QpAttr { state: QpState::Rts, cur_state: QpState::Rts, cap: setup().cap, qkey: found.qkey, ..attr };
    assert_eq!(found, expected);
}

#[test]
fn a_refused_modify_changes_nothing() {
    let pair = setup().connect();
    let before = pair.a.qp.query();
    let attr = QpAttr { state: QpState::Sqd, min_rnr_timer: 9, timeout: 3, retry_cnt: 200, ..before };
    let refusals = [
        (AttrMask::STATE | AttrMask::TIMEOUT, ModifyError::NotAllowed(AttrMask::TIMEOUT)),
        (AttrMask::TIMEOUT, ModifyError::NotAllowed(AttrMask::TIMEOUT)),
    ];
    for (mask, refusal) in refusals {
        assert_eq!(pair.a.qp.modify(&attr, mask), Err(refusal));
        assert_eq!(pair.a.qp.query(), before);
    }
    pair.a.qp.set_state(QpState::Sqd).unwrap();
    let before = pair.a.qp.query();
    let too_many = pair.a.qp.modify(&attr, AttrMask::TIMEOUT | AttrMask::RETRY_CNT);
    assert_eq!(too_many, Err(ModifyError::OutOfRange { attribute: "retry_cnt", value: 200, limit: 7 }));
    assert_eq!(pair.a.qp.query(), before);
    let back = pair.a.qp.set_state(QpState::Init);
    assert_eq!(back, Err(ModifyError::NoSuchTransition { from: QpState::Sqd, to: QpState::Init }));
}

#[test]
fn error_flushes_both_queues_in_order() {
    let pair = setup().connect();
    let silence = pair.world.rule(Rule::on(any).drop());
    for id in 0..10 {
        pair.a.post_recv(100 + id, 0, 10);
        let wr = if id % 3 == 0 { Wr::read(id, &pair.b.mr, 0) } else { Wr::write(id, &pair.b.mr, 0) };
        let wr = wr.sge(pair.a.sge(0, 500));
        pair.a.qp.post(if id % 2 == 0 { wr } else { wr.unsignaled() });
    }
    pair.world.run_for(LATENCY_NS);
    pair.a.qp.set_state(QpState::Err).unwrap();
    assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::WrFlushErr, 0..10), "unsignalled ones too");
    assert_eq!(pair.a.recv_cq.statuses(), all(WcStatus::WrFlushErr, 100..110));
    // Requests posted in ERR are flushed immediately.
    pair.a.qp.post(Wr::send(77).unsignaled());
    pair.a.post_recv(78, 0, 10);
    assert_eq!(pair.a.send_cq.statuses(), [(77, WcStatus::WrFlushErr)]);
    assert_eq!(pair.a.recv_cq.statuses(), [(78, WcStatus::WrFlushErr)]);
    let sent = silence.hits();
    pair.run();
    assert_eq!(silence.hits(), sent, "ERR sends nothing and has no timer");
}

#[test]
fn a_partially_received_message_is_flushed_in_order() {
    let pair = setup().connect();
    pair.world.rule(Rule::on(|seen| is_request(seen) && seen.psn().value() == 2).drop());
    for id in 0..3 {
        pair.b.post_recv(id, FAR, 2000);
    }
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 2000)));
    pair.world.run_for(3 * LATENCY_NS);
    pair.b.qp.set_state(QpState::Err).unwrap();
    assert_eq!(pair.b.recv_cq.statuses(), all(WcStatus::WrFlushErr, 0..3));
}

#[test]
fn a_peer_in_error_does_not_answer() {
    let pair = PairSetup { timeout: 10, retry_cnt: 2, ..setup() }.connect();
    pair.b.qp.set_state(QpState::Err).unwrap();
    pair.a.qp.post(Wr::send(1));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::WrongState), 3);
}

#[test]
fn reset_discards_all_state_and_allows_a_new_connection() {
    let setup = setup();
    let pair = setup.connect();
    for round in 0..5 {
        pair.b.post_recv(10, FAR, 2000);
        pair.b.post_recv(11, FAR, 2000);
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 2000)));
        pair.a.qp.post(Wr::read(2, &pair.b.mr, 0).sge(pair.a.sge(0, 2000)));
        pair.world.run_for(300 * round); // at some point of the transfer
        for end in [&pair.a, &pair.b] {
            end.qp.set_state(QpState::Reset).unwrap();
            assert_eq!(end.qp.post_send(&Wr::send(1)), Err(PostError::WrongState(QpState::Reset)));
        }
        pair.run();
        let (mut sends, mut receives) = (pair.a.send_cq.statuses(), pair.b.recv_cq.statuses());
        sends.retain(|(_, status)| *status != WcStatus::Success);
        receives.retain(|(_, status)| *status != WcStatus::Success);
        assert_eq!((sends, receives), (vec![], vec![]), "RESET makes no completions");

        let (psn_a, psn_b) = (Psn::new(1000 * round as u32), Psn::new(0xff_ffff - round as u32));
        pair.a.qp.connect(&setup, &pair.b.qp, psn_a, psn_b);
        pair.b.qp.connect(&setup, &pair.a.qp, psn_b, psn_a);
        pair.b.post_recv(20, FAR, 2000);
        pair.a.qp.post(Wr::send(3).sge(pair.a.sge(0, 2000)));
        pair.a.qp.post(Wr::fetch_add(4, &pair.b.mr, 0, 1).sge(pair.a.sge(8000, 8)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, [3, 4]), "round {round}");
        assert_eq!(pair.b.recv_cq.statuses(), all(WcStatus::Success, [20]));
        assert!(pair.a.mr.read(0, 2000) == pair.b.mr.read(FAR as usize, 2000));
    }
}

#[test]
fn draining_completes_started_messages_and_raises_an_event() {
    for notify in [false, true] {
        let pair = PairSetup { window: 512, ..setup() }.connect();
        pair.a.qp.post(Wr::write(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 5000)));
        pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 5000)));
        pair.world.run_for(LATENCY_NS);
        let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: notify, ..QpAttr::default() };
        pair.a.qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
        assert!(pair.a.qp.query().sq_draining);
        pair.a.qp.post(Wr::write(3, &pair.b.mr, FAR).sge(pair.a.sge(0, 10)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)], "the second was not begun");
        let expected = if notify { vec![(pair.a.qp.qpn, EventKind::SqDrained)] } else { vec![] };
        assert_eq!(pair.a.node.events(), expected);
        assert!(!pair.a.qp.query().sq_draining);
        assert_eq!(pair.a.qp.state(), QpState::Sqd);

        // The other direction was never stopped.
        pair.b.qp.post(Wr::write(50, &pair.a.mr, FAR).sge(pair.b.sge(0, 5000)));
        pair.run();
        assert_eq!(pair.b.send_cq.statuses(), [(50, WcStatus::Success)]);

        pair.a.qp.set_state(QpState::Rts).unwrap();
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, [2, 3]));
    }
}

#[test]
fn draining_survives_loss() {
    for target in 0..30 {
        let pair = PairSetup { window: 1024, ..setup() }.connect();
        pair.world.rule(Rule::on(move |seen| seen.index == target).drop());
        pair.a.qp.post(Wr::read(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 2000)));
        pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 2000)));
        pair.world.run_for(2 * LATENCY_NS + 100);
        let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        pair.a.qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
        pair.run();
        assert_eq!(pair.a.node.events(), [(pair.a.qp.qpn, EventKind::SqDrained)], "packet {target} lost");
        pair.a.qp.set_state(QpState::Rts).unwrap();
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), all(WcStatus::Success, [1, 2]), "packet {target} lost");
    }
}

#[test]
fn an_idle_queue_is_drained_immediately() {
    let pair = setup().connect();
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    pair.a.qp.modify(&attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert_eq!(pair.a.node.events(), [(pair.a.qp.qpn, EventKind::SqDrained)]);
    pair.run();
    assert_eq!(pair.a.node.events(), []);
}

#[test]
fn attributes_changed_in_sqd_apply_from_then_on() {
    let pair = PairSetup { timeout: 20, retry_cnt: 7, ..setup() }.connect();
    pair.a.qp.set_state(QpState::Sqd).unwrap();
    let attr = QpAttr { timeout: 8, retry_cnt: 1, max_rd_atomic: 1, ..pair.a.qp.query() };
    pair.a.qp.modify(&attr, AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::MAX_QP_RD_ATOMIC).unwrap();
    pair.a.qp.set_state(QpState::Rts).unwrap();
    pair.b.node.kill();
    let tries = pair.world.rule(Rule::on(is_request));
    pair.a.qp.post(Wr::send(1));
    pair.run();
    assert_eq!((pair.a.send_cq.statuses(), tries.hits()), (vec![(1, WcStatus::RetryExcErr)], 2));
    assert_eq!(pair.world.now().0, 2 * (4096 << 8));
}

#[test]
fn packets_to_a_destroyed_queue_pair_are_dropped() {
    let pair = PairSetup { timeout: 10, retry_cnt: 1, ..setup() }.connect();
    pair.b.qp.destroy();
    pair.a.qp.post(Wr::send(1));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::NoSuchQp), 2);
}

#[test]
fn packets_from_another_address_are_dropped() {
    // A third node connects to b's queue pair number, with the right sequence number. b is not connected to it.
    let pair = setup().connect();
    let stranger = setup().endpoint(&pair.world.node(), Psn::new(9));
    let quick = PairSetup { timeout: 8, retry_cnt: 0, ..setup() };
    stranger.qp.connect(&quick, &pair.b.qp, setup().psn_a, setup().psn_b);
    stranger.qp.post(Wr::write(1, &pair.b.mr, 0).sge(stranger.sge(0, 100)));
    let before = pair.b.mr.read(0, 100);
    pair.run();
    assert_eq!(stranger.send_cq.statuses(), [(1, WcStatus::RetryExcErr)]);
    assert_eq!(pair.b.mr.read(0, 100), before);
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::WrongAddress), 1);
    // And the connection is none the worse.
    pair.a.qp.post(Wr::write(2, &pair.b.mr, 0).sge(pair.a.sge(0, 100)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(2, WcStatus::Success)]);
}

#[test]
fn packets_of_another_partition_or_transport_are_dropped() {
    for (bytes, reason) in [(2usize, DropReason::BadPkey), (0, DropReason::WrongTransport)] {
        let pair = setup().connect();
        let forge = move |packet: &mut Vec<u8>| packet[bytes] ^= 0x20;
        let forged = pair.world.rule(Rule::on(is_request).first().rewrite(forge));
        pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 100)));
        pair.run();
        forged.once();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)], "the second try");
        assert_eq!(pair.world.journal().drops(pair.b.node.id, reason), 1);
    }
}

#[test]
fn a_cq_overrun_is_reported_once() {
    let world = World::new(1);
    let setup = setup();
    let b = setup.endpoint(&world.node(), Psn::new(1));
    let node = world.node();
    let (pd, small) = (node.pd(), node.cq(3));
    let qp = node.qp(&ferroce_sim::QpSetup {
        transport: setup.transport,
        pd,
        send_cq: &small,
        recv_cq: &small,
        srq: None,
        cap: setup.cap,
        signal_all: true,
        window: setup.window,
        port_mtu: setup.mtu,
        takes_jumbo: false,
    });
    qp.connect(&setup, &b.qp, Psn::new(0), Psn::new(0));
    b.qp.connect(&setup, &qp, Psn::new(0), Psn::new(0));
    for id in 0..6 {
        qp.post(Wr::write(id, &b.mr, 0));
    }
    world.run_until_idle();
    let events: Vec<_> = node.events().into_iter().map(|(_, kind)| kind).collect();
    assert_eq!(events, [EventKind::CqErr]);
    assert_eq!(small.drain().len(), 3);
}
