//! Secure setup: only a peer with the key connects, and no message works twice.

use ferroce_proto::cm::{
    Accept, CmError, CommId, Config, Event, MadAddressing, Path, RejectReason, Secret, SidrStatus,
};
use ferroce_proto::verbs::{Mtu, QpState};
use ferroce_proto::wire::cm::{CmMad, CmMessage, Dreq, Rep, Req, Rtu};
use ferroce_proto::{Gid, Qpn, Time};
use ferroce_sim::cm::{Act, CmPair, DATAGRAM_SERVICE, FaultRates, Policy};

const SECOND: u64 = 1_000_000_000;

fn key(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

/// Nodes with these keys.
fn pair(active: Option<u8>, passive: Option<u8>) -> CmPair {
    let mut pair = CmPair::new(5, Config::default(), 8);
    pair.cm(0).set_secret(active.map(key));
    pair.cm(1).set_secret(passive.map(key));
    pair
}

/// Connects with a key that only the listener and the REQ have.
fn connect_with_own_key(pair: &mut CmPair) {
    let (listener, now) = (pair.listener, pair.now);
    pair.cm(1).set_listener_secret(listener, key(3));
    let own = key(3);
    let offer = ferroce_proto::cm::Connect { secret: Some(&own), ..pair.connect_params(100) };
    pair.cm(0).connect(&offer, now).unwrap();
    pair.run_until(Time(SECOND));
}

/// Takes the messages that a node has to send.
fn sent(pair: &mut CmPair, node: usize) -> Vec<[u8; 256]> {
    std::iter::from_fn(|| pair.cm(node).poll_transmit()).map(|t| *t.mad).collect()
}

#[test]
fn the_right_key_connects_and_ends() {
    let mut pair = pair(Some(1), Some(1));
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    let Event::Request(request) = &pair.nodes[1].events[0].1 else { panic!("no REQ") };
    assert_eq!((&request.private_data[..6], request.private_data.len()), (&b"hello\0"[..], 36));
    let Event::Response(response) = &pair.nodes[0].events[0].1 else { panic!("no answer") };
    assert_eq!((&response.private_data[..8], response.private_data.len()), (&b"welcome\0"[..], 180));
    assert!(pair.cm(0).is_secured(id));
    let now = pair.now;
    pair.cm(0).disconnect(id, b"bye", now).unwrap();
    pair.run();
    assert_eq!(pair.nodes[0].names(), ["response", "disconnected"]);
    assert_eq!(pair.nodes[1].names(), ["request", "established", "disconnected"]);
    for node in [0, 1] {
        let counters = *pair.cm(node).counters();
        assert_eq!((counters.unproven, counters.replayed, pair.cm(node).connections()), (0, 0, 0));
    }
}

#[test]
fn loss_and_repetition_change_nothing() {
    for seed in 0..30 {
        let mut pair = CmPair::new(seed, Config::default(), 8);
        pair.cm(0).set_secret(Some(key(1)));
        pair.cm(1).set_secret(Some(key(1)));
        pair.rates = FaultRates { loss: 0.2, duplication: 0.2, delay: 0.1 };
        let ids: Vec<CommId> = (0..8).map(|n| pair.connect(100 + n)).collect();
        pair.run_until(Time(40 * SECOND));
        let established = pair.cm(1).counters().established;
        assert_eq!(established, 8, "seed {seed}\n{}", pair.journal);
        let now = pair.now;
        ids.iter().for_each(|id| pair.cm(0).disconnect(*id, &[], now).unwrap());
        pair.run();
        assert_eq!((pair.cm(0).connections(), pair.cm(1).connections()), (0, 0), "seed {seed}");
        assert_eq!(pair.cm(1).counters().unproven, 0, "seed {seed}");
    }
}

#[test]
fn another_key_or_none_is_rejected() {
    for (active, passive) in [(Some(1), Some(2)), (None, Some(2))] {
        let mut pair = pair(active, passive);
        pair.connect(100);
        pair.run();
        assert_eq!(pair.nodes[0].names(), ["rejected"], "{active:?} {passive:?}");
        let Event::Rejected { reason, private_data, .. } = &pair.nodes[0].events[0].1 else { panic!() };
        assert_eq!(*reason, RejectReason::CONSUMER);
        assert!(private_data.starts_with(b"ferroce: not proven"));
        // The application gets no event, and no state is left.
        assert!(pair.nodes[1].events.is_empty());
        assert_eq!((pair.cm(1).counters().unproven, pair.cm(1).connections()), (1, 0));
    }
    // The other way round: the passive side has no key.
    let mut pair = pair(Some(1), None);
    pair.connect(100);
    pair.run();
    assert_eq!(pair.nodes[0].names(), ["rejected"]);
    assert_eq!(pair.nodes[1].names(), ["request", "rejected"]);
    assert_eq!(
        (pair.cm(0).counters().unproven, pair.cm(0).connections(), pair.cm(1).connections()),
        (1, 0, 0)
    );
}

#[test]
fn keys_of_listeners_and_reqs_have_priority() {
    let mut pair = pair(Some(1), Some(2));
    connect_with_own_key(&mut pair);
    assert_eq!(pair.nodes[1].names(), ["request", "established"]);
}

#[test]
fn every_change_of_a_req_is_detected() {
    let mut pair = pair(Some(1), Some(1));
    let (offer, now) = (pair.connect_params(100), pair.now);
    pair.cm(0).connect(&offer, now).unwrap();
    let req = sent(&mut pair, 0)[0];
    for at in 0..256 {
        let mut changed = req;
        changed[at] ^= 0x10;
        if CmMad::parse(&changed) == CmMad::parse(&req) {
            // Reserved: it means the same.
            continue;
        }
        pair.deliver(1, &changed);
        let cm = pair.cm(1);
        assert_eq!((cm.connections(), cm.poll_event()), (0, None), "byte {at}");
        sent(&mut pair, 1);
    }
    // From another address, too.
    let elsewhere = Gid([9; 16]);
    let inbound = MadAddressing { sgid: elsewhere, dgid: pair.nodes[1].gid, sgid_index: 0, mtu: Mtu::B4096 };
    pair.cm(1).handle_mad(&inbound, &req, now).unwrap();
    assert_eq!(pair.cm(1).connections(), 0);
    pair.deliver(1, &req);
    assert_eq!(pair.cm(1).connections(), 1);
}

#[test]
fn a_replayed_or_expired_req_is_rejected() {
    let mut pair = pair(Some(1), Some(1));
    let (offer, now) = (pair.connect_params(100), pair.now);
    let id = pair.cm(0).connect(&offer, now).unwrap();
    let req = sent(&mut pair, 0)[0];
    pair.deliver(1, &req);
    pair.run_until(Time(SECOND));
    let now = pair.now;
    pair.cm(0).disconnect(id, &[], now).unwrap();
    pair.run();
    assert_eq!((pair.cm(1).counters().established, pair.cm(1).connections()), (1, 0));
    // Remembered as long as its time is acceptable...
    pair.deliver(1, &req);
    assert_eq!((pair.cm(1).counters().replayed, pair.cm(1).connections()), (1, 0));
    // ...and too old afterwards.
    pair.now = Time(200 * SECOND);
    pair.deliver(1, &req);
    assert_eq!((pair.cm(1).counters().replayed, pair.cm(1).connections()), (2, 0));
    // A clock that is far ahead does not help.
    let (mut later, offer) = (self::pair(Some(1), Some(1)), pair.connect_params(101));
    later.cm(0).set_unix_time(1_000 * SECOND, Time(0));
    later.cm(0).connect(&offer, Time(0)).unwrap();
    later.run();
    assert_eq!(later.nodes[0].names(), ["rejected"]);
    assert_eq!(later.cm(1).counters().replayed, 1);
}

/// The passive side restarted without its list of proofs, so it accepts the old REQ. Its application gets an event, but
/// without the key no peer can confirm the new REP.
#[test]
fn a_replay_after_a_restart_never_gets_established() {
    let mut old = pair(Some(1), Some(1));
    let (offer, now) = (old.connect_params(100), old.now);
    old.cm(0).connect(&offer, now).unwrap();
    let req = sent(&mut old, 0)[0];
    old.deliver(1, &req);
    old.pump();
    let recorded = old.journal.clone();
    assert!(recorded.contains("REP"));
    let mut fresh = CmPair::new(99, Config::default(), 8);
    fresh.cm(1).set_secret(Some(key(1)));
    fresh.deliver(1, &req);
    let Some(Event::Request(request)) = fresh.cm(1).poll_event() else { panic!("the offer is taken") };
    let now = fresh.now;
    let accept = Accept { qpn: Qpn::new(7), ..Accept::default() };
    fresh.cm(1).accept(request.id, &accept, now).unwrap();
    let rep = sent(&mut fresh, 1)[0];
    let CmMessage::Rep(Rep { local_comm_id, remote_comm_id, .. }) = CmMad::parse(&rep).unwrap().message
    else {
        panic!("a REP")
    };
    let forged = [
        CmMessage::Rtu(Rtu {
            local_comm_id: remote_comm_id,
            remote_comm_id: local_comm_id,
            private_data: [0; 224],
        }),
        CmMessage::Dreq(Dreq {
            local_comm_id: remote_comm_id,
            remote_comm_id: local_comm_id,
            remote_qpn: Qpn::new(7),
            ..Dreq::default()
        }),
    ];
    for message in forged {
        fresh.deliver(1, &CmMad { tid: 1, attr_mod: 0, message }.to_bytes());
    }
    assert_eq!(fresh.cm(1).notify_established(request.id), Err(CmError::WrongState));
    assert_eq!((fresh.cm(1).poll_event(), fresh.cm(1).counters().unproven), (None, 2));
    // Given up like any other that is not confirmed.
    fresh.nodes[0].cm = None;
    fresh.run();
    assert_eq!(fresh.nodes[1].names(), ["unreachable"]);
}

#[test]
fn a_forged_dreq_or_req_does_not_end_a_connection() {
    let mut pair = pair(Some(1), Some(1));
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    let passive = pair.passive_id();
    let dreq = Dreq {
        local_comm_id: id,
        remote_comm_id: passive,
        remote_qpn: Qpn::new(0x20_0064),
        ..Dreq::default()
    };
    pair.deliver(1, &CmMad { tid: 1, attr_mod: 0, message: CmMessage::Dreq(dreq) }.to_bytes());
    // With the queue pair of the connection, from the same address, without the key.
    let mut stranger = CmPair::new(6, Config::default(), 8);
    let (offer, now) = (pair.connect_params(100), pair.now);
    stranger.cm(0).connect(&offer, now).unwrap();
    let req = sent(&mut stranger, 0)[0];
    pair.deliver(1, &req);
    assert_eq!((pair.cm(1).counters().unproven, pair.cm(1).counters().stale), (2, 0));
    assert_eq!(pair.cm(1).connections(), 1);
    pair.run_until(pair.now + SECOND);
    assert_eq!(pair.nodes[1].names(), ["request", "established"]);
}

/// Only one listener has a key, so a REQ for another service needs no proof. It must not end the connection, even if the peer
/// does not answer.
#[test]
fn a_req_without_a_key_does_not_end_a_connection_with_one() {
    let mut pair = pair(None, None);
    connect_with_own_key(&mut pair);
    pair.nodes[0].cm = None;
    let req = Req { local_comm_id: CommId(0x7700_0000), local_qpn: Qpn::new(100), ..Req::default() };
    pair.deliver(1, &CmMad { tid: 5, attr_mod: 0, message: CmMessage::Req(req) }.to_bytes());
    assert_eq!(pair.cm(1).counters().stale, 1);
    pair.run();
    assert_eq!(pair.nodes[1].names(), ["request", "established"], "{}", pair.journal);
}

/// The peer restarted and used its queue pair number again, so its REQ ends the old connection and is refused. A forger
/// who recorded that REQ must not open a connection with it afterwards.
#[test]
fn a_req_refused_as_stale_cannot_be_replayed() {
    let mut pair = pair(Some(1), Some(1));
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    let mut restarted = CmPair::new(6, Config::default(), 8);
    restarted.cm(0).set_secret(Some(key(1)));
    let (offer, now) = (pair.connect_params(100), pair.now);
    restarted.cm(0).connect(&offer, now).unwrap();
    let req = sent(&mut restarted, 0)[0];
    pair.deliver(1, &req);
    assert_eq!(pair.cm(1).counters().stale, 1);
    pair.run_until(pair.now + 10 * SECOND);
    assert_eq!((pair.cm(0).qp_attributes(id, QpState::Rtr).is_err(), pair.cm(1).connections()), (true, 0));
    pair.deliver(1, &req);
    assert_eq!((pair.cm(1).counters().replayed, pair.cm(1).connections()), (1, 0), "{}", pair.journal);
}

#[test]
fn a_proof_reduces_the_private_data() {
    let mut pair = pair(Some(1), Some(1));
    pair.nodes[1].policy = Policy::Sleep;
    let (now, data) = (pair.now, [7; 57]);
    let offer =
        |len: usize| ferroce_proto::cm::Connect { private_data: &data[..len], ..pair.connect_params(100) };
    let (fits, longer) = (offer(36), offer(37));
    let too_long = Err(CmError::PrivateDataTooLong { len: 37, capacity: 36 });
    assert_eq!(pair.cm(0).connect(&longer, now), too_long);
    pair.cm(0).connect(&fits, now).unwrap();
    pair.run_until(Time(SECOND / 100));
    let Event::Request(request) = &pair.nodes[1].events[0].1 else { panic!("no REQ") };
    assert_eq!(request.private_data, [7; 36]);
    let id = request.id;
    let long = [8; 181];
    let accept = |len: usize| Accept { private_data: &long[..len], ..Accept::default() };
    let too_long = Err(CmError::PrivateDataTooLong { len: 181, capacity: 180 });
    assert_eq!(pair.cm(1).accept(id, &accept(181), now), too_long);
    pair.cm(1).accept(id, &accept(180), now).unwrap();
}

#[test]
fn sidr_replies_are_proven_too() {
    for (active, passive, status) in [
        (Some(1), Some(1), SidrStatus::SUCCESS),
        (Some(1), Some(2), SidrStatus::REJECT),
        (None, Some(2), SidrStatus::REJECT),
        (Some(1), None, SidrStatus::REJECT),
    ] {
        let mut pair = pair(active, passive).with("SIDR_REQ", Some(0), Act::Double(30_000));
        pair.query(DATAGRAM_SERVICE);
        pair.run();
        let Event::Answered { status: told, .. } = &pair.nodes[0].events[0].1 else { panic!("no answer") };
        assert_eq!(*told, status, "{active:?} {passive:?}");
    }
}

#[test]
fn addresses_are_part_of_the_proof() {
    let mut pair = pair(Some(1), Some(1));
    let path = Path { sgid: Gid([3; 16]), ..pair.path() };
    let (offer, now) = (ferroce_proto::cm::Connect { path, ..pair.connect_params(100) }, pair.now);
    pair.cm(0).connect(&offer, now).unwrap();
    let req = sent(&mut pair, 0)[0];
    // Arrives from node 0's real address, which is not the one it was made for.
    pair.deliver(1, &req);
    assert_eq!((pair.cm(1).counters().unproven, pair.cm(1).connections()), (1, 0));
}
