//! Messages of a hostile peer: REQs of the wrong kind, messages in the wrong state, a second REP, inconsistent fields.

use ferroce_proto::cm::{
    Cm, CommId, Config, Event, IpHeader, ListenerOptions, PortSpace, RejectReason, Scope, ServiceId,
    SidrStatus,
};
use ferroce_proto::verbs::QpState;
use ferroce_proto::wire::cm::{CmMad, CmMessage, Dreq, Mra, RejectedMessage, Rep, Req, Rtu, SidrReq};
use ferroce_proto::{PKey, Psn, Qpn, Time};
use ferroce_sim::cm::{CmPair, DATAGRAM_SERVICE, Policy, SERVICE};

const SECOND: u64 = 1_000_000_000;

fn pair() -> CmPair {
    CmPair::new(1, Config::default(), 8)
}

/// Node 0 connects to another service than usual.
fn connect_to(pair: &mut CmPair, service: ServiceId) -> CommId {
    let offer = ferroce_proto::cm::Connect { service, ..pair.connect_params(100) };
    let now = pair.now;
    let id = pair.cm(0).connect(&offer, now).expect("below the limit");
    pair.run_until(Time(now.0 + SECOND));
    id
}

/// What a program expects of an event's parameters follows from its port space, so it must not get the other kind.
#[test]
fn a_datagram_service_refuses_reqs_and_a_connection_service_sidr_reqs() {
    let mut pair = pair();
    connect_to(&mut pair, DATAGRAM_SERVICE);
    let rejected = pair.nodes[0].events.iter().find_map(|(_, event)| match event {
        Event::Rejected { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(rejected, Some(RejectReason::CONSUMER), "{}", pair.journal);
    pair.query(SERVICE);
    pair.run_until(Time(2 * SECOND));
    let answered = pair.nodes[0].events.iter().find_map(|(_, event)| match event {
        Event::Answered { status, .. } => Some(*status),
        _ => None,
    });
    assert_eq!(answered, Some(SidrStatus::REJECT), "{}", pair.journal);
    assert_eq!(pair.nodes[1].names(), [""; 0], "{}", pair.journal);
}

/// In the port space of both, the listener decides.
#[test]
fn a_service_of_both_kinds_accepts_what_its_listener_selects() {
    let service = ServiceId::of_port(PortSpace::Ib, 7);
    for datagrams in [false, true] {
        let mut pair = pair();
        let listener = pair.cm(1).listen(service, Scope::Any, 4).unwrap();
        pair.cm(1).set_listener_options(listener, ListenerOptions { datagrams, whole_private_data: false });
        connect_to(&mut pair, service);
        pair.query(service);
        pair.run_until(Time(2 * SECOND));
        let kinds: Vec<bool> = pair.nodes[1]
            .events
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Request(request) => Some(request.transport.is_none()),
                _ => None,
            })
            .collect();
        assert_eq!(kinds, [datagrams], "{}", pair.journal);
    }
}

/// A listener for an InfiniBand service reads the private data itself, with or without an IP header.
#[test]
fn a_listener_may_have_the_private_data_whole() {
    let mut pair = pair();
    let service = ServiceId::of_port(PortSpace::Tcp, 7);
    let listener = pair.cm(1).listen(service, Scope::Any, 4).unwrap();
    pair.cm(1).set_listener_options(listener, ListenerOptions { datagrams: false, whole_private_data: true });
    connect_to(&mut pair, service);
    let now = pair.now;
    let headless = ferroce_proto::cm::Connect { service, ip: None, ..pair.connect_params(101) };
    pair.cm(0).connect(&headless, now).expect("below the limit");
    pair.run_until(Time(now.0 + SECOND));
    let requests: Vec<_> = pair.nodes[1]
        .events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::Request(request) => Some((request.ip, request.private_data.clone())),
            _ => None,
        })
        .collect();
    let [(None, whole), (None, bare)] = &requests[..] else { panic!("{}", pair.journal) };
    assert_eq!((whole.len(), bare.len()), (Req::PRIVATE_LEN, Req::PRIVATE_LEN));
    assert_eq!((&whole[IpHeader::LEN..][..5], &bare[..5]), (&b"hello"[..], &b"hello"[..]));
}

fn say(pair: &mut CmPair, to: usize, message: CmMessage) {
    pair.deliver(to, &CmMad { tid: 5, attr_mod: 0, message }.to_bytes());
    pair.pump();
}

/// The first REP counts. A later one with another queue pair would redirect the data of a connection.
#[test]
fn a_second_rep_does_not_replace_the_first() {
    for is_established in [false, true] {
        let mut pair = pair();
        if !is_established {
            pair.nodes[0].policy = Policy::Sleep;
        }
        let id = pair.connect(100);
        pair.run_until(Time(10_000_000));
        let (rtr, _) = pair.cm(0).qp_attributes(id, QpState::Rtr).unwrap();
        let (rts, _) = pair.cm(0).qp_attributes(id, QpState::Rts).unwrap();
        let other = pair.passive_id();
        for local_comm_id in [other, CommId(other.0 ^ 1), CommId(0)] {
            let rep = Rep {
                local_comm_id,
                remote_comm_id: id,
                local_qpn: Qpn::new(0x66_6666),
                starting_psn: Psn::new(0x55_5555),
                responder_resources: 200,
                initiator_depth: 200,
                ..Rep::default()
            };
            say(&mut pair, 0, CmMessage::Rep(rep));
        }
        let now = pair.cm(0).qp_attributes(id, QpState::Rtr).unwrap().0;
        assert_eq!(now, rtr, "{}", pair.journal);
        assert_eq!(pair.cm(0).qp_attributes(id, QpState::Rts).unwrap().0, rts, "{}", pair.journal);
        assert_eq!(pair.nodes[0].names(), ["response"], "{}", pair.journal);
    }
}

/// An RTU without a REP establishes nothing, nor does one for another connection.
#[test]
fn an_rtu_needs_a_rep() {
    let mut pair = pair();
    say(&mut pair, 1, CmMessage::Rtu(Rtu { remote_comm_id: CommId(0x0200_0001), ..Rtu::default() }));
    assert_eq!(pair.cm(1).counters().strays, 1);
    pair.nodes[1].policy = Policy::Sleep;
    let id = pair.connect(100);
    pair.run_until(Time(10_000_000));
    let remote_comm_id = pair.passive_id();
    for local_comm_id in [id, CommId(id.0 ^ 1)] {
        say(&mut pair, 1, CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }));
    }
    assert_eq!(pair.nodes[1].names(), ["request"], "{}", pair.journal);
    assert_eq!(pair.cm(1).counters().unexpected, 2);
    let accept = ferroce_proto::cm::Accept { qpn: Qpn::new(7), ..Default::default() };
    let now = pair.now;
    pair.cm(1).accept(remote_comm_id, &accept, now).unwrap();
    let forged = Rtu { local_comm_id: CommId(id.0 ^ 1), remote_comm_id, ..Rtu::default() };
    pair.deliver(1, &CmMad { tid: 5, attr_mod: 0, message: CmMessage::Rtu(forged) }.to_bytes());
    let established = pair.cm(1).counters().established;
    assert_eq!(established, 0, "{}", pair.journal);
}

/// A DREQ carries both ids and the queue pair; one with a wrong value ends no connection.
#[test]
fn a_dreq_must_carry_the_queue_pair() {
    let mut pair = pair();
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    let other = pair.passive_id();
    for remote_qpn in [0, 100, 0xff_ffff].map(Qpn::new) {
        say(
            &mut pair,
            1,
            CmMessage::Dreq(Dreq { local_comm_id: id, remote_comm_id: other, remote_qpn, ..Dreq::default() }),
        );
    }
    assert_eq!(pair.nodes[1].names(), ["request", "established"], "{}", pair.journal);
    let own = pair.cm(0).qp_attributes(id, QpState::Rtr).unwrap().0.dest_qpn;
    say(
        &mut pair,
        1,
        CmMessage::Dreq(Dreq {
            local_comm_id: id,
            remote_comm_id: other,
            remote_qpn: own,
            ..Dreq::default()
        }),
    );
    assert_eq!(pair.nodes[1].names(), ["request", "established", "disconnected"], "{}", pair.journal);
}

/// A REQ that names the queue pair of a connection's peer may be forged. Either end probes its peer, and the peer answers.
#[test]
fn a_req_with_the_queue_pair_of_a_live_peer_ends_nothing() {
    let mut pair = pair();
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    let own = pair.cm(0).qp_attributes(id, QpState::Rtr).unwrap().0.dest_qpn;
    for (victim, local_qpn) in [(1, Qpn::new(100)), (0, own)] {
        for n in 0..3 {
            let local_comm_id = CommId(0x7700_0000 + n);
            say(&mut pair, victim, CmMessage::Req(Req { local_comm_id, local_qpn, ..Req::default() }));
        }
        pair.run_until(pair.now + 60 * SECOND);
        assert_eq!(pair.cm(victim).counters().stale, 3);
        assert_eq!(pair.cm(victim).deadline(), None, "it waits for nothing");
    }
    assert_eq!(pair.nodes[0].names(), ["response"], "{}", pair.journal);
    assert_eq!(pair.nodes[1].names(), ["request", "established"], "{}", pair.journal);
}

/// If the peer is dead, the connection ends: immediately if a process at its address rejects the probe, otherwise when the probe
/// times out.
#[test]
fn a_req_with_the_queue_pair_of_a_dead_peer_ends_the_connection() {
    for (victim, is_gone) in [(1, true), (1, false), (0, false)] {
        let mut pair = pair();
        let id = pair.connect(100);
        pair.run_until(Time(SECOND));
        let own = pair.cm(0).qp_attributes(id, QpState::Rtr).unwrap().0.dest_qpn;
        let local_qpn = if victim == 1 { Qpn::new(100) } else { own };
        pair.nodes[1 - victim].cm = is_gone.then(|| Cm::new(Config::default(), Box::new(|| 7)));
        say(&mut pair, victim, CmMessage::Req(Req { local_qpn, ..Req::default() }));
        pair.run_until(pair.now + SECOND);
        let is_over =
            |pair: &CmPair| pair.nodes[victim].names().iter().any(|name| name.starts_with("disconnected"));
        assert_eq!(is_over(&pair), is_gone, "{}", pair.journal);
        pair.run();
        assert!(is_over(&pair), "{}", pair.journal);
        assert_eq!(pair.cm(victim).connections(), 0);
    }
}

/// An MRA extends the wait by some minutes at most, whatever time it requests.
#[test]
fn service_timeouts_are_bounded() {
    let mut pair = pair();
    pair.nodes[1].policy = Policy::Sleep;
    let id = pair.connect(100);
    pair.run_until(Time(10_000_000));
    let mra = Mra {
        local_comm_id: pair.passive_id(),
        remote_comm_id: id,
        received: RejectedMessage::Req,
        service_timeout: 31,
        ..Mra::default()
    };
    pair.nodes[1].cm = None;
    say(&mut pair, 0, CmMessage::Mra(mra));
    pair.run();
    assert_eq!(pair.nodes[0].names(), ["unreachable"], "{}", pair.journal);
    assert!(pair.nodes[0].when("unreachable") < Time(300 * SECOND), "2.4 hours were asked for");
}

/// A request costs an attacker one packet, and the target a bounded amount.
#[test]
fn a_flood_of_sidr_reqs_is_bounded_and_harmless() {
    let mut pair = CmPair::new(3, Config { max_pending: 100, ..Config::default() }, 8);
    let id = pair.connect(100);
    pair.run_until(Time(SECOND));
    pair.nodes[1].policy = Policy::Sleep;
    for n in 0..20_000_u32 {
        let mut req = SidrReq {
            request_id: CommId(0x7700_0000 + n),
            pkey: PKey::DEFAULT,
            service_id: DATAGRAM_SERVICE.0,
            ..SidrReq::default()
        };
        let ip = pair.connect_params(0).ip.unwrap();
        req.private_data[..IpHeader::LEN].copy_from_slice(&ip.to_bytes());
        pair.deliver(1, &CmMad { tid: n.into(), attr_mod: 0, message: CmMessage::SidrReq(req) }.to_bytes());
    }
    assert_eq!((pair.cm(1).pending(), pair.cm(1).connections()), (8, 9));
    assert_eq!(pair.cm(1).counters().backlog_full, 20_000 - 8);
    // Nor do SIDR_REQs that no application decides.
    for n in 0..20_000_u32 {
        let req = SidrReq { request_id: CommId(n), service_id: 0x0111_0001, ..SidrReq::default() };
        pair.deliver(1, &CmMad { tid: n.into(), attr_mod: 0, message: CmMessage::SidrReq(req) }.to_bytes());
        while pair.cm(1).poll_transmit().is_some() {}
    }
    assert_eq!(pair.cm(1).connections(), 9);
    let now = pair.now;
    pair.cm(0).disconnect(id, &[], now).unwrap();
    pair.run();
    assert_eq!(pair.nodes[0].names(), ["response", "disconnected"]);
}
