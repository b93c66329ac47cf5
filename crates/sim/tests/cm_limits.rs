//! Limits: own REQs in flight, and half-open connections of peers.

use ferroce_proto::cm::{CommId, Config, IpHeader};
use ferroce_proto::wire::cm::{CmMad, CmMessage, Req};
use ferroce_proto::{Qpn, Time};
use ferroce_sim::cm::{Act, CmPair, FaultRates, Policy, SERVICE};

const SECOND: u64 = 1_000_000_000;

/// Maximum number of REQs in flight, by the journal: sent and not answered.
fn connect_all(pair: &mut CmPair, count: u32) -> Vec<CommId> {
    let now = pair.now;
    let ids = (0..count).map(|n| {
        let offer = pair.connect_params(1000 + n);
        pair.cm(0).connect(&offer, now).expect("below the limit")
    });
    ids.collect()
}

#[test]
fn reqs_in_flight_are_limited() {
    let mut pair = CmPair::new(1, Config { max_in_flight: 10, ..Config::default() }, 100);
    let ids = connect_all(&mut pair, 1000);
    pair.pump();
    assert_eq!(pair.cm(0).counters().sent, 10);
    pair.run_until(Time(SECOND));
    assert_eq!(pair.cm(0).counters().established, 1000);
    assert_eq!((pair.cm(0).counters().repeated, pair.cm(1).counters().backlog_full), (0, 0));
    assert_eq!(pair.cm(0).counters().paced, 990);
    let now = pair.now;
    for id in ids {
        pair.cm(0).disconnect(id, &[], now).unwrap();
    }
    pair.run();
    for node in [0, 1] {
        assert_eq!((pair.cm(node).connections(), pair.cm(node).deadline()), (0, None));
    }
    assert_eq!(pair.cm(1).counters().received_by_kind[5], 1000, "one DREQ each");
}

#[test]
fn a_dead_peer_does_not_block_others() {
    let mut pair = CmPair::new(1, Config { max_in_flight: 10, ..Config::default() }, 100);
    pair.faults.push(ferroce_sim::cm::MessageFault { message: "REQ", nth: None, act: Act::Lose });
    connect_all(&mut pair, 100);
    pair.run_until(Time(SECOND));
    // Each ten of them count for the 50 ms to their first repeat.
    let first_tries = pair.cm(0).counters().sent_by_kind[0] - pair.cm(0).counters().repeated_by_kind[0];
    assert_eq!(first_tries, 100);
    pair.run();
    assert_eq!(pair.nodes[0].names(), vec!["unreachable"; 100]);
    assert_eq!(pair.cm(0).connections(), 0);
}

#[test]
fn queued_reqs_that_are_cancelled_are_never_sent() {
    let mut pair = CmPair::new(1, Config { max_in_flight: 1, ..Config::default() }, 100);
    let ids = connect_all(&mut pair, 3);
    pair.pump();
    let now = pair.now;
    pair.cm(0).release(ids[1], now);
    pair.run_until(Time(SECOND));
    assert_eq!((pair.cm(0).counters().established, pair.cm(0).counters().sent_by_kind[0]), (2, 2));
    assert_eq!(pair.cm(0).counters().sent_by_kind[2], 0, "nothing to refuse");
}

#[test]
fn pacing_survives_loss() {
    for seed in 0..20 {
        let mut pair = CmPair::new(seed, Config { max_in_flight: 3, ..Config::default() }, 100);
        pair.rates = FaultRates { loss: 0.2, duplication: 0.1, delay: 0.1 };
        let ids = connect_all(&mut pair, 50);
        pair.run_until(Time(40 * SECOND));
        assert_eq!(pair.cm(0).counters().established, 50, "seed {seed}");
        let now = pair.now;
        ids.iter().for_each(|id| pair.cm(0).disconnect(*id, &[], now).unwrap());
        pair.run();
        for node in [0, 1] {
            let cm = pair.cm(node);
            assert_eq!((cm.connections(), cm.half_open(), cm.deadline()), (0, 0, None), "seed {seed}");
        }
    }
}

#[test]
fn a_closing_nic_sends_everything_immediately() {
    let mut pair = CmPair::new(1, Config { max_in_flight: 2, ..Config::default() }, 100);
    connect_all(&mut pair, 50);
    pair.cm(0).stop_pacing();
    pair.pump();
    assert_eq!(pair.cm(0).counters().sent, 50);
}

/// Offers that the program takes, but whose sender never confirms it.
#[test]
fn half_open_connections_are_bounded() {
    let config = Config { max_half_open: 50, max_half_open_per_peer: 40, ..Config::default() };
    let mut pair = CmPair::new(3, config, 1000);
    for n in 0..5_000_u32 {
        let mut req = Req {
            local_comm_id: CommId(0x7700_0000 + n),
            service_id: SERVICE.0,
            local_qpn: Qpn::new(0x30_0000 + n),
            path_mtu: 3,
            local_cm_response_timeout: 14,
            max_cm_retries: 3,
            ..Req::default()
        };
        let ip = pair.connect_params(0).ip.unwrap();
        req.private_data[..IpHeader::LEN].copy_from_slice(&ip.to_bytes());
        let mad = CmMad { tid: n.into(), attr_mod: 0, message: CmMessage::Req(req) };
        pair.deliver(1, &mad.to_bytes());
        // Half of them refused by the program, which are remembered for a while too.
        pair.nodes[1].policy = if n % 2 == 0 { Policy::Accept } else { Policy::Reject };
        pair.pump();
    }
    assert_eq!((pair.cm(1).half_open(), pair.cm(1).connections()), (40, 40));
    assert_eq!(pair.cm(1).counters().overload, 5_000 - 40);
    pair.run();
    assert_eq!((pair.cm(1).half_open(), pair.cm(1).connections()), (0, 0));
    pair.nodes[1].policy = Policy::Accept;
    pair.connect(100);
    pair.run_until(pair.now + SECOND);
    assert_eq!(pair.cm(0).counters().established, 1);
}

/// The address of a REQ may be forged: its owner must not receive many REPs, and this side must not wait for minutes.
#[test]
fn an_unproven_req_gets_few_reps_and_a_bounded_wait() {
    let mut pair = CmPair::new(3, Config::default(), 8);
    let mut req = Req {
        local_comm_id: CommId(0x7700_0000),
        service_id: SERVICE.0,
        local_qpn: Qpn::new(0x30_0000),
        path_mtu: 3,
        local_cm_response_timeout: 31,
        max_cm_retries: 15,
        ..Req::default()
    };
    let ip = pair.connect_params(0).ip.unwrap();
    req.private_data[..IpHeader::LEN].copy_from_slice(&ip.to_bytes());
    pair.nodes[0].cm = None;
    pair.deliver(1, &CmMad { tid: 1, attr_mod: 0, message: CmMessage::Req(req) }.to_bytes());
    pair.run();
    assert_eq!(pair.nodes[1].names(), ["request", "unreachable"], "{}", pair.journal);
    assert!(pair.nodes[1].when("unreachable") < Time(70 * SECOND), "275 s were asked for");
    let reps = pair.cm(1).counters().sent_by_kind[3];
    assert_eq!(reps, 6, "{}", pair.journal);
}
