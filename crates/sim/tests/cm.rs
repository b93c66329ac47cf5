//! Connections under faults: every message lost, duplicated, late; peers that die at every step; floods; unknown peers.

use ferroce_proto::cm::{Cm, CmError, CommId, Config, Event, IpHeader, RejectReason, ServiceId, SidrStatus};
use ferroce_proto::verbs::{Access, AttrMask, QpState};
use ferroce_proto::wire::cm::{CmMad, CmMessage, Dreq, Rep, Req, Rtu};
use ferroce_proto::{Psn, Qpn, Time};
use ferroce_sim::cm::{Act, CmPair, DATAGRAM_SERVICE, FaultRates, Policy, SERVICE};

const SECOND: u64 = 1_000_000_000;
/// 4.096 us * 2^20, sixteen times: how long a peer is waited for.
const PATIENCE_NS: u64 = (4096 << 20) * 16;

fn pair() -> CmPair {
    CmPair::new(1, Config::default(), 8)
}

/// Connects, disconnects from the active side, waits for everything to end.
fn whole_life(pair: &mut CmPair) -> CommId {
    let id = pair.connect(100);
    pair.run_until(pair.now + 3 * SECOND);
    let now = pair.now;
    pair.cm(0).disconnect(id, b"bye", now).expect("established");
    pair.run();
    id
}

fn assert_whole_life(pair: &CmPair, what: &str) {
    assert_eq!(pair.nodes[0].names(), ["response", "disconnected"], "active: {what}\n{}", pair.journal);
    let passive = pair.nodes[1].names();
    assert_eq!(passive, ["request", "established", "disconnected"], "passive: {what}\n{}", pair.journal);
    assert_nothing_left(pair);
}

fn assert_nothing_left(pair: &CmPair) {
    for cm in pair.nodes.iter().filter_map(|n| n.cm.as_ref()) {
        assert_eq!((cm.connections(), cm.pending(), cm.deadline()), (0, 0, None), "{}", pair.journal);
    }
}

#[test]
fn connect_and_disconnect() {
    let mut pair = pair();
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    let Event::Request(request) = &pair.nodes[1].events[0].1 else { panic!("no REQ") };
    assert_eq!(
        (request.listener, request.service, request.remote_qpn),
        (pair.listener, SERVICE, Qpn::new(100))
    );
    assert_eq!((request.responder_resources, request.initiator_depth), (3, 4), "seen from the other side");
    assert_eq!(request.private_data.len(), Req::PRIVATE_LEN - IpHeader::LEN);
    assert_eq!(&request.private_data[..6], b"hello\0");
    assert_eq!(request.ip.map(|ip| ip.sport), Some(40_000));
    let Event::Response(response) = &pair.nodes[0].events[0].1 else { panic!("no answer") };
    assert_eq!((&response.private_data[..8], response.private_data.len()), (&b"welcome\0"[..], 196));
    assert_eq!((response.responder_resources, response.initiator_depth), (4, 3));
    assert_eq!((id.slot(), pair.passive_id().slot()), (1, 2));
    let now = pair.now;
    pair.cm(0).disconnect(id, &[], now).unwrap();
    pair.run();
    assert_whole_life(&pair, "no fault");
    // Nothing was repeated: each message once.
    assert_eq!(pair.cm(0).counters().repeated + pair.cm(1).counters().repeated, 0);
    for node in [0, 1] {
        let exits = pair.nodes[node].events.iter().filter(|(_, e)| matches!(e, Event::TimewaitExit { .. }));
        assert_eq!(exits.count(), 1);
    }
    assert_eq!(
        pair.nodes[0].events.last().unwrap().0.since_ns(pair.nodes[0].when("disconnected")),
        4096 << 16
    );
}

#[test]
fn both_ends_get_attributes_that_fit() {
    let mut pair = pair();
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    let passive = pair.passive_id();
    let (rtr0, mask) = pair.cm(0).qp_attributes(id, QpState::Rtr).unwrap();
    let (rtr1, _) = pair.cm(1).qp_attributes(passive, QpState::Rtr).unwrap();
    let (rts0, rts_mask) = pair.cm(0).qp_attributes(id, QpState::Rts).unwrap();
    let (rts1, _) = pair.cm(1).qp_attributes(passive, QpState::Rts).unwrap();
    assert_eq!((rtr0.rq_psn, rtr1.rq_psn), (rts1.sq_psn, rts0.sq_psn));
    assert_eq!((rtr0.dest_qpn, rtr1.dest_qpn), (Qpn::new(0x20_0000 + 100), Qpn::new(100)));
    assert_eq!((rtr0.max_dest_rd_atomic, rts0.max_rd_atomic), (4, 3));
    assert_eq!((rtr1.max_dest_rd_atomic, rts1.max_rd_atomic), (3, 4));
    assert_eq!((rtr0.av.dgid, rtr1.av.dgid), (pair.nodes[1].gid, pair.nodes[0].gid));
    assert_eq!((rtr0.path_mtu, rts0.timeout, rts0.retry_cnt, rts0.rnr_retry), (rtr1.path_mtu, 16, 7, 5));
    assert!(mask.contains(AttrMask::DEST_QPN | AttrMask::MIN_RNR_TIMER | AttrMask::AV));
    assert!(rts_mask.contains(AttrMask::TIMEOUT | AttrMask::MAX_QP_RD_ATOMIC));
    let (init, _) = pair.cm(0).qp_attributes(id, QpState::Init).unwrap();
    assert_eq!((init.port, init.access), (1, Access::REMOTE));
    assert_eq!(pair.cm(0).qp_attributes(CommId(9), QpState::Rtr).err(), Some(CmError::NoSuchConnection));
}

#[test]
fn every_message_may_be_lost_duplicated_or_late() {
    for message in ["REQ", "REP", "RTU", "DREQ", "DREP"] {
        for act in
            [Act::Lose, Act::Double(0), Act::Double(300_000_000), Act::Delay(200_000_000), Act::Delay(SECOND)]
        {
            for nth in [0, 1] {
                let what = format!("{message} {nth} {act:?}");
                let mut pair = pair().with(message, Some(0), act);
                if nth == 1 {
                    pair = pair.with(message, Some(1), act);
                }
                whole_life(&mut pair);
                assert_whole_life(&pair, &what);
            }
        }
    }
}

#[test]
fn runs_with_the_same_seed_are_the_same() {
    for seed in 0..60 {
        let run = || {
            let mut pair = CmPair::new(seed, Config::default(), 8);
            pair.rates = FaultRates { loss: 0.25, duplication: 0.25, delay: 0.25 };
            let id = pair.connect(100);
            pair.run_until(Time(30 * SECOND));
            let now = pair.now;
            pair.cm(0)
                .disconnect(id, &[], now)
                .unwrap_or_else(|e| panic!("seed {seed}: {e}\n{}", pair.journal));
            pair.run();
            assert_whole_life(&pair, &format!("seed {seed}"));
            pair.journal
        };
        assert_eq!(run(), run(), "seed {seed}");
    }
}

#[test]
fn both_ends_may_disconnect_at_the_same_time() {
    for fault in [None, Some(("DREQ", 0)), Some(("DREQ", 1)), Some(("DREP", 0)), Some(("DREP", 1))] {
        let mut pair = pair();
        if let Some((message, nth)) = fault {
            pair = pair.with(message, Some(nth), Act::Lose);
        }
        let id = pair.connect(100);
        pair.run_until(Time(SECOND));
        let (now, other) = (pair.now, pair.passive_id());
        pair.cm(0).disconnect(id, &[], now).unwrap();
        pair.cm(1).disconnect(other, &[], now).unwrap();
        pair.run();
        assert_whole_life(&pair, &format!("{fault:?}"));
        // Ending it once more is no error while it is remembered, and one afterwards.
        let now = pair.now;
        assert_eq!(pair.cm(0).disconnect(id, &[], now), Err(CmError::NoSuchConnection));
    }
}

#[test]
fn a_refusal_carries_reason_and_private_data() {
    for act in [None, Some(Act::Lose), Some(Act::Double(SECOND))] {
        let mut pair = pair();
        pair.faults.extend(act.map(|act| ferroce_sim::cm::MessageFault {
            message: "REJ",
            nth: Some(0),
            act,
        }));
        pair.nodes[1].policy = Policy::Reject;
        pair.connect(100);
        pair.run();
        let Event::Rejected { reason, private_data, .. } = &pair.nodes[0].events[0].1 else {
            panic!("{}", pair.journal)
        };
        assert_eq!(
            (*reason, &private_data[..8], private_data.len()),
            (RejectReason::CONSUMER, &b"go away\0"[..], 148)
        );
        assert_eq!(pair.nodes[0].names(), ["rejected"]);
        assert_eq!(pair.nodes[1].names(), ["request"], "asked once, whatever was lost");
        assert_nothing_left(&pair);
    }
}

#[test]
fn a_reject_without_a_listener_is_reported() {
    let mut pair = pair();
    let offer = ferroce_proto::cm::Connect { service: ServiceId(0x0106_0001), ..pair.connect_params(100) };
    let now = pair.now;
    pair.cm(0).connect(&offer, now).unwrap();
    pair.run();
    let Event::Rejected { reason, .. } = pair.nodes[0].events[0].1 else { panic!("{}", pair.journal) };
    assert_eq!(reason, RejectReason::INVALID_SERVICE_ID);
    assert_eq!(pair.cm(1).counters().no_listener, 2, "asked a second time before it was believed");
    assert_nothing_left(&pair);
}

/// Programs agree by other means on who listens, and the one that connects can be faster than the one that listens.
#[test]
fn a_listener_that_starts_late_gets_the_req() {
    // The second time, the first message arrives last.
    for mut pair in [pair(), pair().with("REJ", Some(0), Act::Delay(100_000_000))] {
        let service = ServiceId(0x0106_0001);
        let offer = ferroce_proto::cm::Connect { service, ..pair.connect_params(100) };
        let now = pair.now;
        pair.cm(0).connect(&offer, now).unwrap();
        pair.run_until(Time(10_000_000));
        assert_eq!(pair.cm(1).counters().no_listener, 1);
        assert_eq!(pair.nodes[0].names(), [""; 0]);
        pair.cm(1).listen(service, ferroce_proto::cm::Scope::Any, 4).unwrap();
        pair.run_until(Time(SECOND));
        assert_eq!(pair.nodes[1].names()[0], "request", "{}", pair.journal);
        assert_eq!(pair.nodes[0].names(), ["response"], "{}", pair.journal);
    }
}

/// A kernel accepts the first reject for lack of a listener, so a server that reopens its listener must not send one meanwhile.
#[test]
fn a_listener_may_reopen_after_it_closed() {
    let mut pair = pair();
    let (now, listener) = (pair.now, pair.listener);
    pair.cm(1).unlisten(listener, now);
    pair.connect(100);
    pair.run_until(Time(100_000_000));
    assert_eq!(pair.nodes[0].names(), [""; 0], "{}", pair.journal);
    assert!(!pair.journal.contains("REJ"), "{}", pair.journal);
    pair.listener = pair.cm(1).listen(SERVICE, ferroce_proto::cm::Scope::Any, 4).unwrap();
    pair.run_until(Time(SECOND));
    assert_eq!(pair.nodes[0].names()[0], "response", "{}", pair.journal);
}

#[test]
fn a_peer_that_dies_at_each_step_is_detected_in_time() {
    // (message, node that dies, event of the survivor, time after the last message it received)
    let cases = [
        ("REQ", Act::KillReceiver, 0, vec!["unreachable"], PATIENCE_NS),
        ("REP", Act::KillSender, 0, vec!["response"], 0),
        ("REP", Act::KillReceiver, 1, vec!["request", "unreachable"], PATIENCE_NS),
        ("RTU", Act::KillReceiver, 0, vec!["response"], 0),
        ("RTU", Act::KillSender, 1, vec!["request", "established"], 0),
    ];
    for (message, act, survivor, events, after_ns) in cases {
        let mut pair = pair().with(message, Some(0), act);
        pair.connect(100);
        pair.run();
        assert_eq!(pair.nodes[survivor].names(), events, "{message} {act:?}\n{}", pair.journal);
        if after_ns > 0 {
            let took = pair.nodes[survivor].when("unreachable").0;
            assert!((after_ns..after_ns + 100_000).contains(&took), "{message}: after {took} ns");
            assert_nothing_left(&pair);
        }
        // A node that is still connected detects the death of its peer when it disconnects.
        if *events.last().unwrap() != "unreachable" {
            let (now, id) = (pair.now, if survivor == 0 { id_of_response(&pair) } else { pair.passive_id() });
            pair.cm(survivor).disconnect(id, &[], now).unwrap();
            pair.run();
            let took = pair.nodes[survivor].when("disconnected by time-out").since_ns(now);
            assert_eq!(took, PATIENCE_NS, "{message}");
            assert_nothing_left(&pair);
        }
    }
}

fn id_of_response(pair: &CmPair) -> CommId {
    let found = pair.nodes[0].events.iter().find_map(|(_, e)| match e {
        Event::Response(response) => Some(response.id),
        _ => None,
    });
    found.expect("an answer arrived")
}

#[test]
fn the_successor_of_a_dead_process_answers_its_messages() {
    // The active process dies; a new one at the same address has no such connection.
    let mut pair = pair().with("RTU", None, Act::Lose);
    pair.nodes[0].policy = Policy::Sleep;
    pair.connect(100);
    pair.run_until(Time(10_000));
    pair.nodes[0].cm = Some(Cm::new(Config { slot: 1, ..Config::default() }, Box::new(|| 5)));
    pair.run();
    assert_eq!(pair.nodes[1].names(), ["request", "rejected"], "{}", pair.journal);
    let Event::Rejected { reason, .. } = pair.nodes[1].events[1].1 else { panic!() };
    assert_eq!(reason, RejectReason::INVALID_COMM_ID);
    assert_nothing_left(&pair);
}

#[test]
fn an_mra_extends_the_wait_for_a_slow_application() {
    let mut pair = pair();
    pair.nodes[1].policy = Policy::Sleep;
    pair.connect(100);
    // An MRA requests 69 seconds; without it the REQ would time out at the same time.
    pair.run_until(Time(120 * SECOND));
    assert_eq!(pair.nodes[0].names(), [""; 0]);
    let (now, id) = (pair.now, pair.passive_id());
    let accept = ferroce_proto::cm::Accept { qpn: Qpn::new(7), ..Default::default() };
    pair.cm(1).accept(id, &accept, now).unwrap();
    pair.run_until(Time(121 * SECOND));
    assert_eq!(pair.nodes[0].names(), ["response"]);
    assert_eq!(pair.nodes[1].names(), ["request", "established"]);
}

#[test]
fn data_establishes_if_the_rtu_is_lost() {
    let mut pair = pair().with("RTU", None, Act::Lose);
    pair.connect(100);
    pair.run_until(Time(SECOND));
    assert_eq!(pair.nodes[1].names(), ["request"]);
    let id = pair.passive_id();
    pair.cm(1).notify_established(id).unwrap();
    pair.run();
    assert_eq!(pair.nodes[1].names(), ["request", "established"]);
    assert_eq!(pair.cm(1).notify_established(id), Err(CmError::WrongState));
}

#[test]
fn a_dreq_establishes_if_the_rtu_is_lost() {
    let mut pair = pair().with("RTU", None, Act::Lose);
    whole_life(&mut pair);
    assert_whole_life(&pair, "no RTU ever came");
}

/// Messages of the right kind with random content, at every state: nothing panics, nothing is left behind.
#[test]
fn random_messages_have_no_effect() {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};
    for seed in 0..40 {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut pair = CmPair::new(seed, Config::default(), 8);
        let id = pair.connect(100);
        for round in 0..400 {
            let mut bytes: [u8; 256] = std::array::from_fn(|_| rng.random());
            bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
            bytes[16..18].copy_from_slice(&rng.random_range(0x10_u16..0x1b).to_be_bytes());
            // Often about the connection there is, to and from the right ids.
            let passive = pair.nodes[1].events.first().map(|_| pair.passive_id());
            for (at, own) in [(24, id), (28, passive.unwrap_or(id))] {
                if rng.random_bool(0.6) {
                    bytes[at..at + 4].copy_from_slice(&own.0.to_be_bytes());
                }
            }
            let to = rng.random_range(0..2);
            pair.deliver(to, &bytes);
            pair.run_until(Time(round * 1_000_000));
        }
        for node in [0, 1] {
            let ids: Vec<CommId> = pair.nodes[node]
                .events
                .iter()
                .filter_map(|(_, e)| match e {
                    Event::Request(request) => Some(request.id),
                    _ => None,
                })
                .chain([id])
                .collect();
            for id in ids {
                let now = pair.now;
                pair.cm(node).release(id, now);
            }
        }
        pair.run();
        assert_nothing_left(&pair);
    }
}

#[test]
fn a_req_from_a_queue_pair_in_use_ends_the_stale_connection() {
    let mut pair = pair();
    pair.connect(100);
    pair.run_until(Time(SECOND));
    // The peer lost its memory and its new process happens to have the same queue pair number.
    let (offer, now) = (pair.connect_params(100), pair.now);
    pair.nodes[0].cm = Some(Cm::new(Config { slot: 9, ..Config::default() }, Box::new(counting())));
    pair.nodes[0].events.clear();
    pair.cm(0).connect(&offer, now).unwrap();
    pair.run_until(Time(2 * SECOND));
    let Event::Rejected { reason, .. } = pair.nodes[0].events[0].1 else { panic!("{}", pair.journal) };
    assert_eq!(reason, RejectReason::STALE_CONNECTION);
    assert_eq!(pair.nodes[1].names(), ["request", "established", "disconnected"]);
    assert_eq!(pair.cm(1).counters().stale, 1);
    // After TIMEWAIT the same queue pair is welcome.
    pair.run();
    let now = pair.now;
    pair.cm(0).connect(&offer, now).unwrap();
    pair.run();
    assert_eq!(pair.nodes[0].names(), ["rejected", "response"]);
}

fn counting() -> impl FnMut() -> u64 + Send {
    let mut n = 0_u64;
    move || {
        n += 0x9e37_79b9;
        n
    }
}

#[test]
fn a_flood_of_reqs_is_bounded_and_harmless() {
    let mut pair = CmPair::new(3, Config { max_pending: 100, ..Config::default() }, 8);
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    pair.nodes[1].policy = Policy::Sleep;
    for n in 0..20_000_u32 {
        let mut req = Req {
            local_comm_id: CommId(0x7700_0000 + n),
            service_id: SERVICE.0,
            local_qpn: Qpn::new(0x30_0000 + n),
            path_mtu: 3,
            starting_psn: Psn::new(n),
            ..Req::default()
        };
        let ip = pair.connect_params(0).ip.unwrap();
        req.private_data[..IpHeader::LEN].copy_from_slice(&ip.to_bytes());
        let mad = CmMad { tid: n.into(), attr_mod: 0, message: CmMessage::Req(req) };
        pair.deliver(1, &mad.to_bytes());
    }
    assert_eq!((pair.cm(1).pending(), pair.cm(1).connections()), (8, 9));
    assert_eq!(pair.cm(1).counters().backlog_full, 20_000 - 8);
    let now = pair.now;
    pair.cm(0).disconnect(id, &[], now).unwrap();
    pair.run();
    assert_eq!(pair.nodes[0].names(), ["response", "disconnected"]);
    // The backlog accepts a REQ again once the application decides.
    let waiting: Vec<CommId> = pair.nodes[1]
        .events
        .iter()
        .filter_map(|(_, e)| match e {
            Event::Request(request) if request.remote_qpn != Qpn::new(100) => Some(request.id),
            _ => None,
        })
        .collect();
    for id in waiting {
        let now = pair.now;
        pair.cm(1).release(id, now);
    }
    assert_eq!(pair.cm(1).pending(), 0);
    pair.run();
    assert_nothing_left(&pair);
}

#[test]
fn released_connections_notify_the_peer_and_raise_no_event() {
    // While the REQ is in flight; while the application has not decided; once established.
    for (run_ns, active, told) in [
        (0, Policy::Accept, "rejected"),
        (SECOND / 100, Policy::Sleep, "rejected"),
        (SECOND, Policy::Accept, "disconnected"),
    ] {
        let mut pair = pair();
        pair.nodes[0].policy = active;
        let id = pair.connect(100);
        pair.run_until(Time(run_ns));
        let (now, heard) = (pair.now, pair.nodes[0].events.len());
        pair.cm(0).release(id, now);
        pair.run();
        assert_eq!(pair.nodes[0].events.len(), heard, "{run_ns}\n{}", pair.journal);
        assert_eq!(pair.nodes[1].names().last(), Some(&told), "{run_ns}\n{}", pair.journal);
        assert_nothing_left(&pair);
    }
}

#[test]
fn unknown_connections_are_counted_and_answered_if_the_peer_waits() {
    let mut pair = pair();
    let ids = (CommId(0x0900_0001), CommId(0x0900_0002));
    let messages = [
        CmMessage::Rtu(Rtu { local_comm_id: ids.0, remote_comm_id: ids.1, ..Rtu::default() }),
        CmMessage::Dreq(Dreq { local_comm_id: ids.0, remote_comm_id: ids.1, ..Dreq::default() }),
        CmMessage::Rep(Rep { local_comm_id: ids.0, remote_comm_id: ids.1, ..Rep::default() }),
    ];
    let mut answers = Vec::new();
    for message in messages {
        pair.deliver(1, &CmMad { tid: 1, attr_mod: 0, message }.to_bytes());
        let answer = pair.cm(1).poll_transmit().map(|t| CmMad::parse(&t.mad[..]).unwrap().message.name());
        answers.push(answer);
    }
    assert_eq!(answers, [None, Some("DREP"), Some("REJ")]);
    pair.deliver(1, &[7; 256]);
    pair.deliver(1, &[]);
    let counters = *pair.cm(1).counters();
    assert_eq!((counters.strays, counters.malformed, counters.refused), (2, 2, 1));
    assert_nothing_left(&pair);
}

#[test]
fn datagram_services_are_resolved_under_faults() {
    for message in ["none", "SIDR_REQ", "SIDR_REP"] {
        for act in [Act::Lose, Act::Double(SECOND / 10), Act::Delay(SECOND)] {
            let mut pair = pair().with(message, Some(0), act);
            pair.query(DATAGRAM_SERVICE);
            pair.run();
            let Event::Answered { status, qpn, qkey, .. } = pair.nodes[0].events[0].1 else { panic!() };
            assert_eq!((status, qpn.value(), qkey.0), (SidrStatus::SUCCESS, 77, 88), "{message} {act:?}");
            assert_eq!(pair.nodes[0].names(), ["answered"], "{message} {act:?}");
            assert_eq!(pair.nodes[1].names(), ["request"], "{message} {act:?}");
            assert_nothing_left(&pair);
        }
    }
    for (service, policy, wanted) in [
        (DATAGRAM_SERVICE, Policy::Reject, SidrStatus::REJECT),
        (ServiceId(0x0111_0001), Policy::Accept, SidrStatus::UNSUPPORTED),
    ] {
        let mut pair = pair();
        pair.nodes[1].policy = policy;
        pair.query(service);
        pair.run();
        let Event::Answered { status, .. } = pair.nodes[0].events[0].1 else { panic!() };
        assert_eq!(status, wanted);
    }
    let mut pair = pair().with("SIDR_REQ", None, Act::Lose);
    pair.query(DATAGRAM_SERVICE);
    pair.run();
    assert_eq!((pair.nodes[0].names(), pair.now.0), (vec!["unreachable"], PATIENCE_NS));
}

#[test]
fn messages_from_another_address_do_not_affect_a_connection() {
    let mut pair = pair();
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    let other = pair.passive_id();
    let dreq = Dreq { local_comm_id: id, remote_comm_id: other, ..Dreq::default() };
    let mad = CmMad { tid: 1, attr_mod: 0, message: CmMessage::Dreq(dreq) };
    // As if node 0 had another address.
    let real = std::mem::replace(&mut pair.nodes[0].gid, ferroce_proto::Gid([9; 16]));
    pair.deliver(1, &mad.to_bytes());
    pair.nodes[0].gid = real;
    pair.pump();
    assert_eq!(pair.nodes[1].names(), ["request", "established"]);
    assert_eq!(pair.cm(1).counters().wrong_address, 1);
}

/// Of many peers with many connections each, only the connections of the dead one end.
#[test]
fn a_death_ends_established_connections() {
    let mut pair = pair();
    let ids: Vec<CommId> = (0..5).map(|qpn| pair.connect(100 + qpn)).collect();
    pair.run_until(pair.now + 3 * SECOND);
    let (theirs, ours) = (pair.nodes[1].gid, pair.nodes[0].gid);
    assert_eq!((pair.cm(0).peers(), pair.cm(1).peers()), (vec![(theirs, 2)], vec![(ours, 1)]));
    let now = pair.now;
    pair.cm(0).disconnect(ids[0], &[], now).unwrap();
    for (address, slot) in [(theirs, 1), (theirs, 3), (ours, 2)] {
        pair.cm(0).handle_death(address, slot, now);
    }
    assert!(pair.cm(0).poll_event().is_none(), "others died");
    pair.cm(0).handle_death(theirs, 2, now);
    pair.cm(0).handle_death(theirs, 2, now);
    let mut ended: Vec<CommId> = std::iter::from_fn(|| pair.cm(0).poll_event())
        .map(|event| match event {
            Event::Disconnected { id, timed_out: false } => id,
            other => panic!("{other:?}"),
        })
        .collect();
    ended.sort_by_key(|id| ids.iter().position(|known| known == id));
    assert_eq!((ended, pair.cm(0).counters().peer_died), (ids, 5));
    // Duplicates are answered until TIMEWAIT ends.
    pair.nodes[1].cm = None;
    pair.run();
    assert_eq!((pair.cm(0).connections(), pair.cm(0).peers()), (0, vec![]));
}
