//! What a peer may send that means no good: offers of the wrong kind, messages about connections that are not so far, answers
//! that change their mind, bytes that contradict each other.

use ferroce_proto::Time;
use ferroce_proto::cm::{
    CommId, Config, Event, IpHeader, Offers, PortSpace, RejectReason, Scope, ServiceId, SidrStatus,
};
use ferroce_proto::wire::cm::Req;
use ferroce_sim::cm::{CmPair, DATAGRAM_SERVICE, SERVICE};

const SECOND: u64 = 1_000_000_000;

fn pair() -> CmPair {
    CmPair::new(1, Config::default(), 8)
}

/// Node 0 offers a connection to another service than usual.
fn offer_to(pair: &mut CmPair, service: ServiceId) -> CommId {
    let offer = ferroce_proto::cm::Connect { service, ..pair.offer(100) };
    let now = pair.now;
    let id = pair.cm(0).connect(&offer, now).expect("there is room");
    pair.run_until(Time(now.0 + SECOND));
    id
}

/// What a program expects of an event's parameters follows from its port space, so it must not get the other kind.
#[test]
fn a_datagram_service_gets_no_connections_and_a_connection_service_no_questions() {
    let mut pair = pair();
    offer_to(&mut pair, DATAGRAM_SERVICE);
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
fn a_service_of_both_kinds_takes_what_its_listener_says() {
    let service = ServiceId::of_port(PortSpace::Ib, 7);
    for are_datagrams in [false, true] {
        let mut pair = pair();
        let listener = pair.cm(1).listen(service, Scope::Any, 4).unwrap();
        pair.cm(1).set_listener_offers(listener, Offers { are_datagrams, are_whole: false });
        offer_to(&mut pair, service);
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
        assert_eq!(kinds, [are_datagrams], "{}", pair.journal);
    }
}

/// Whoever listens to a service of InfiniBand looks at the private data itself, IP header or not.
#[test]
fn a_listener_may_have_the_private_data_whole() {
    let mut pair = pair();
    let service = ServiceId::of_port(PortSpace::Tcp, 7);
    let listener = pair.cm(1).listen(service, Scope::Any, 4).unwrap();
    pair.cm(1).set_listener_offers(listener, Offers { are_datagrams: false, are_whole: true });
    offer_to(&mut pair, service);
    let now = pair.now;
    let headless = ferroce_proto::cm::Connect { service, ip: None, ..pair.offer(101) };
    pair.cm(0).connect(&headless, now).expect("there is room");
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
