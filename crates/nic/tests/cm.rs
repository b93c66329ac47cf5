//! The connection manager between NICs: events in their order, ports, refusals, datagram services. Two NICs of one process
//! stand for two processes: each has its slot, and on one address packets to QP1 reach either.

mod cm_support;

use cm_support::{End, MAX_WAIT, connected, param, send};
use ferroce_nic::{
    CmChannel, CmEventKind, CmRefusal, CmTransport, Config, ConnParam, Error, PortSpace, RejectReason,
    UDP_QKEY, Wire,
};
use ferroce_os::wait_set::WaitSet;
use ferroce_proto::verbs::{Access, QpState};
use ferroce_proto::{Gid, Qkey, Qpn};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

fn whole_life(a: &End, b: &End, to: SocketAddr) {
    let [(id, qp), (their_id, their_qp)] = connected(a, b, to);
    send((a, &qp), (b, &their_qp));
    send((b, &their_qp), (a, &qp));
    id.disconnect().unwrap();
    assert_eq!(a.next(CmEventKind::Disconnected).status, 0);
    assert_eq!(b.next(CmEventKind::Disconnected).status, 0);
    their_id.disconnect().unwrap();
    a.next(CmEventKind::TimewaitExit);
    b.next(CmEventKind::TimewaitExit);
    id.disconnect().unwrap();
}

#[test]
fn a_connection_carries_data_and_ends() {
    for (one, two, any) in [
        ("127.0.0.21", "127.0.0.22", "0.0.0.0:0"),
        ("127.0.0.23", "127.0.0.23", "[::]:0"),
        ("::1", "::1", "[::]:0"),
    ] {
        let (a, b) = (End::new(&[one]), End::new(&[two]));
        let listener = b.listener(any, 4);
        let port = listener.local_addr().unwrap().port();
        let to = SocketAddr::new(two.parse().unwrap(), port);
        whole_life(&a, &b, to);
        listener.close();
        // Both ways on one NIC, too: it talks to itself.
        let listener = b.listener(any, 4);
        let to = SocketAddr::new(two.parse().unwrap(), listener.local_addr().unwrap().port());
        let client = b.routed(PortSpace::Tcp, to);
        let qp = b.qp();
        client.connect(CmTransport::Rc, &param(&qp, b"me")).unwrap();
        let request = b.next(CmEventKind::ConnectRequest);
        request.id.reject(RejectReason::CONSUMER, b"no").unwrap();
        let rejected = b.next(CmEventKind::Rejected);
        assert_eq!((rejected.status, &rejected.conn.private_data[..3]), (28, &b"no\0"[..]));
    }
}

#[test]
fn many_connections_on_one_address_find_their_processes() {
    // Three NICs share the address: what the kernel gives to the wrong one is passed on.
    let ends = [0, 1, 2].map(|_| End::new(&["127.0.0.24"]));
    let [a, b, bystander] = &ends;
    let listener = b.listener("127.0.0.24:0", 16);
    let to = listener.local_addr().unwrap();
    for _ in 0..20 {
        let [(id, _qp), (their_id, _their_qp)] = connected(a, b, to);
        id.disconnect().unwrap();
        a.next(CmEventKind::Disconnected);
        b.next(CmEventKind::Disconnected);
        id.close();
        their_id.close();
    }
    assert!(bystander.channel.try_next().is_none());
    let counters = ends.each_ref().map(|end| end.nic.cm_counters());
    assert_eq!(counters.map(|c| (c.malformed, c.strays)), [(0, 0); 3], "{counters:?}");
}

#[test]
fn nobody_listens_and_nobody_is_there() {
    let (a, b) = (End::new(&["127.0.0.25"]), End::new(&["127.0.0.26"]));
    let qp = a.qp();
    let id = a.routed(PortSpace::Tcp, "127.0.0.26:5".parse().unwrap());
    id.connect(CmTransport::Rc, &param(&qp, b"")).unwrap();
    assert_eq!(a.next(CmEventKind::Rejected).status, 8);
    assert_eq!(b.nic.cm_counters().no_listener, 2, "asked a second time before it was believed");

    let id = a.routed(PortSpace::Tcp, "127.0.0.27:5".parse().unwrap());
    id.set_options(|o| (o.response_timeout, o.max_retries) = (Some(14), Some(2)));
    id.connect(CmTransport::Rc, &param(&qp, b"")).unwrap();
    assert_eq!(a.next(CmEventKind::Unreachable).status, -110);
    assert!(matches!(id.establish(), Err(Error::Cm(CmRefusal::Protocol(_)))));

    let id = a.id(PortSpace::Tcp);
    assert!(matches!(
        id.bind("127.0.0.99:5".parse().unwrap()),
        Err(Error::Cm(CmRefusal::AddressNotAvailable { .. }))
    ));
    let unrouted = id.connect(CmTransport::Rc, &param(&qp, b""));
    assert!(matches!(unrouted, Err(Error::Cm(CmRefusal::WrongState { .. }))));
}

#[test]
fn ports_belong_to_one_process() {
    let (a, b) = (End::new(&["127.0.0.28"]), End::new(&["127.0.0.28"]));
    let listener = a.listener("0.0.0.0:0", 1);
    let port = listener.local_addr().unwrap().port();
    let id = b.id(PortSpace::Tcp);
    let taken = id.bind(SocketAddr::new("127.0.0.28".parse().unwrap(), port));
    assert!(matches!(taken, Err(Error::Cm(CmRefusal::AddressInUse(holder))) if !holder.is_own));
    let other_space = b.id(PortSpace::Udp);
    other_space.bind(SocketAddr::new("127.0.0.28".parse().unwrap(), port)).unwrap();
    listener.close();
    id.bind(SocketAddr::new("127.0.0.28".parse().unwrap(), port)).unwrap();
    id.listen(1).unwrap();
    // A process that is gone has no ports.
    drop((id, other_space, b));
    let id = a.id(PortSpace::Tcp);
    id.bind(SocketAddr::new("127.0.0.28".parse().unwrap(), port)).unwrap();
}

/// The ports of iWARP are those of TCP.
#[test]
fn an_iwarp_id_whose_listen_failed_keeps_its_port() {
    let address = SocketAddr::new("127.0.0.33".parse().unwrap(), 0);
    let end = End::with_config(
        Config::from_env().unwrap().with(|c| (c.addresses, c.wire) = (Some(vec![address.ip()]), Wire::Iwarp)),
    );
    // Sockets share a port until one of them listens.
    let [first, second] = [(); 2].map(|()| end.id(PortSpace::Tcp));
    first.bind(address).unwrap();
    let taken = first.local_addr().unwrap();
    second.bind(taken).unwrap();
    first.listen(1).unwrap();
    let failed = second.listen(1).unwrap_err();
    assert!(failed.to_string().contains("listening on a TCP port"), "{failed}");
    first.close();
    second.listen(1).unwrap();
    assert_eq!(second.local_addr(), Some(taken));
}

#[test]
fn a_closed_listener_refuses_what_nobody_has_seen() {
    let (a, b) = (End::new(&["127.0.0.29"]), End::new(&["127.0.0.30"]));
    let listener = b.listener("127.0.0.30:0", 4);
    let qp = a.qp();
    let id = a.routed(PortSpace::Tcp, listener.local_addr().unwrap());
    id.connect(CmTransport::Rc, &param(&qp, b"")).unwrap();
    let start = Instant::now();
    while !is_readable(&b.channel) {
        assert!(start.elapsed() < MAX_WAIT);
        std::thread::sleep(Duration::from_micros(200));
    }
    listener.close();
    assert_eq!(a.next(CmEventKind::Rejected).status, 28);
    assert!(b.channel.try_next().is_none() && !is_readable(&b.channel));
}

/// Without taking the event, as a program's `poll` would look.
fn is_readable(channel: &CmChannel) -> bool {
    let set = WaitSet::new().unwrap();
    set.enter(channel.as_fd().as_raw_fd()).unwrap();
    set.sleep(Duration::ZERO)
}

#[test]
fn a_peer_that_goes_away_is_told() {
    let (a, b) = (End::new(&["127.0.0.31"]), End::new(&["127.0.0.32"]));
    let listener = b.listener("127.0.0.32:0", 4);
    let [(_id, _qp), (theirs, their_qp)] = connected(&a, &b, listener.local_addr().unwrap());
    drop((theirs, their_qp, listener));
    drop(b);
    assert_eq!(a.next(CmEventKind::Disconnected).status, 0);
}

#[test]
fn datagram_services_are_resolved() {
    let (a, b) = (End::new(&["127.0.0.33"]), End::new(&["127.0.0.34"]));
    let service = b.id(PortSpace::Udp);
    service.bind("127.0.0.34:0".parse().unwrap()).unwrap();
    service.listen(4).unwrap();
    let to = service.local_addr().unwrap();
    let ask = |a: &End, port: u16| {
        let id = a.routed(PortSpace::Udp, SocketAddr::new(to.ip(), port));
        id.connect(CmTransport::Rc, &ConnParam { private_data: b"who".to_vec(), ..ConnParam::default() })
            .unwrap();
        id
    };
    let id = ask(&a, to.port());
    let request = b.next(CmEventKind::ConnectRequest);
    assert_eq!(&request.ud.as_ref().unwrap().private_data[..4], b"who\0");
    let (qpn, qkey) = (Qpn::new(0x1234), Some(Qkey(0x99)));
    request
        .id
        .accept(&ConnParam { qpn, qkey, private_data: b"me".to_vec(), ..ConnParam::default() })
        .unwrap();
    let answer = a.next(CmEventKind::Established).ud.unwrap();
    assert_eq!((answer.qpn, answer.qkey, &answer.private_data[..3]), (qpn, Qkey(0x99), &b"me\0"[..]));
    assert_eq!(answer.vector.dgid, Gid::from_ip(to.ip()));
    assert_eq!(id.qp_attributes(QpState::Init).unwrap().0.qkey, UDP_QKEY);

    let _nobody = ask(&a, 9);
    assert_eq!(a.next(CmEventKind::Unreachable).status, 1);
    let _refused = ask(&a, to.port());
    b.next(CmEventKind::ConnectRequest).id.reject(RejectReason::CONSUMER, b"").unwrap();
    assert_eq!(a.next(CmEventKind::Unreachable).status, 2);
}

#[test]
fn groups_have_an_address_and_a_key() {
    let a = End::new(&["127.0.0.35"]);
    let id = a.id(PortSpace::Udp);
    id.bind("127.0.0.35:0".parse().unwrap()).unwrap();
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    id.join_multicast(group).unwrap();
    let joined = a.next(CmEventKind::MulticastJoin).ud.unwrap();
    assert_eq!(
        (joined.vector.dgid, joined.qpn, joined.qkey),
        (Gid::from_ip(group), Qpn::MULTICAST, UDP_QKEY)
    );
}

#[test]
fn ids_move_between_channels_with_their_events() {
    let a = End::new(&["127.0.0.36"]);
    let id = a.id(PortSpace::Tcp);
    id.resolve_addr(None, "127.0.0.36:1".parse().unwrap()).unwrap();
    let other = a.nic.create_cm_channel().unwrap();
    id.migrate(&other);
    assert!(a.channel.try_next().is_none());
    assert_eq!(other.try_next().unwrap().kind, CmEventKind::AddrResolved);
    id.resolve_route().unwrap();
    assert_eq!(other.wait().unwrap().kind, CmEventKind::RouteResolved);
    assert_eq!((id.cookie(), id.qp_attributes(QpState::Init).unwrap().0.access), (7, Access::empty()));
}
