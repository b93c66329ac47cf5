//! Strangers at QP1: floods of requests from many addresses, replays, damaged and foreign datagrams, forged ends. What is
//! established keeps working, memory is bounded, and the counters tell.

mod cm_support;

use cm_support::{End, MAX_WAIT, connected, send};
use ferroce_nic::link::{Link, TxBatch, UdpConfig, UdpLink};
use ferroce_nic::{CmEventKind, CmId, PortSpace, Qp};
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::cm::{CmMad, CmMessage, CommId, Dreq, IpHeader, Rej, Rep, Req, Rtu, ServiceId};
use ferroce_proto::wire::{Bth, Deth, GSI_QKEY, Headers, Opcode, Operation, Service};
use ferroce_proto::{Gid, Psn, Qpn};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

type Pair = [(Arc<CmId>, Qp); 2];

/// Sends whatever it likes to QP1.
struct Stranger {
    link: UdpLink,
    to: SocketAddr,
}

impl Stranger {
    fn new(at: &str, to: SocketAddr) -> Stranger {
        let bind = Some(vec![at.parse().unwrap()]);
        Stranger { link: UdpLink::open(&UdpConfig { bind, ..UdpConfig::default() }).unwrap(), to }
    }

    fn send(&self, from: Ipv4Addr, mad: &[u8]) {
        let bth = Bth::new(Opcode::new(Service::Ud, Operation::SendOnly), Qpn::GSI, Psn::new(0));
        let mut headers = Headers::new(bth);
        headers.deth = Some(Deth { qkey: GSI_QKEY, src_qpn: Qpn::GSI });
        let (sgid, dgid) = (Gid::from_ip(from.into()), Gid::from_ip(self.to.ip()));
        let route = Route { sgid, dgid, hop_limit: 64, ..Route::default() };
        let mut batch = TxBatch::new();
        let head = headers.encoded_len();
        let packet = batch.reserve(&route, head + mad.len());
        headers.write(packet);
        packet[head..].copy_from_slice(mad);
        self.link.send(&mut batch);
    }

    fn say(&self, from: Ipv4Addr, message: CmMessage) {
        self.send(from, &CmMad { tid: 9, attr_mod: 0, message }.to_bytes());
    }

    fn req(&self, from: Ipv4Addr, number: u32) -> CmMessage {
        let mut req = Req {
            local_comm_id: CommId(0xee00_0000 + number),
            service_id: ServiceId::of_port(PortSpace::Tcp, self.to.port()).0,
            local_qpn: Qpn::new(0xe0_0000 + number),
            path_mtu: 3,
            ..Req::default()
        };
        let ip = IpHeader { sport: 1, src: from.into(), dst: self.to.ip() };
        req.private_data[..IpHeader::LEN].copy_from_slice(&ip.to_bytes());
        CmMessage::Req(req)
    }
}

/// Data both ways over what was established before.
fn ping(client: &End, server: &End, [(_, qp), (_, their_qp)]: &Pair) {
    send((client, qp), (server, their_qp));
    send((server, their_qp), (client, qp));
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 43, 9, 0)) + number % 200)
}

/// Waits until the server counts no more messages; what the kernel dropped is not waited for. On a busy machine its thread may not run
/// for a while, so one look is not enough.
fn settle(server: &End) {
    const LOOKS: u32 = 10;
    let (start, mut seen, mut same) = (Instant::now(), u64::MAX, 0);
    while same < LOOKS {
        let counters = server.nic.cm_counters();
        let total = counters.received + counters.malformed + counters.foreign;
        same = if std::mem::replace(&mut seen, total) == total { same + 1 } else { 0 };
        assert!(start.elapsed() < MAX_WAIT);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_flood_of_requests_hurts_nobody() {
    const BACKLOG: u32 = 16;
    let (client, mut server) = (End::new(&["127.43.1.1"]), End::new(&["127.43.1.1"]));
    let listener = server.listener("127.43.1.1:0", BACKLOG);
    let to = listener.local_addr().unwrap();
    let pair = connected(&client, &server, to);
    let stranger = Stranger::new("127.43.9.250", to);
    for round in 0..20 {
        for number in 0..250 {
            let from = address(number);
            stranger.say(from, stranger.req(from, round * 250 + number));
            // A replay of the very same bytes, and of an old one.
            stranger.say(from, stranger.req(from, number));
        }
        ping(&client, &server, &pair);
    }
    settle(&server);
    let counters = server.nic.counters().cm;
    assert!(counters["pending_requests_now"] <= u64::from(BACKLOG), "{counters:?}");
    assert!(counters["connections_now"] <= u64::from(BACKLOG) + 1, "{counters:?}");
    assert!(counters["backlog_full"] > 1000, "{counters:?}");
    assert!(counters["duplicates"] > 0, "{counters:?}");
    assert_eq!(counters["established"], 1);
    // The program looks at last, and refuses them all: then there is room for others.
    for _ in 0..BACKLOG {
        server.next(CmEventKind::ConnectRequest).id.close();
    }
    // On a busy machine some were still on their way from the client's socket.
    server.refused = Some([127, 43, 9]);
    drop(connected(&client, &server, to));
    ping(&client, &server, &pair);
}

#[test]
fn damaged_and_foreign_datagrams_are_counted_and_dropped() {
    let (client, server) = (End::new(&["127.43.2.1"]), End::new(&["127.43.2.1"]));
    let listener = server.listener("127.43.2.1:0", 8);
    let to = listener.local_addr().unwrap();
    let pair = connected(&client, &server, to);
    let stranger = Stranger::new("127.43.9.251", to);
    let from = Ipv4Addr::new(127, 43, 9, 251);
    let good = CmMad { tid: 1, attr_mod: 0, message: stranger.req(from, 1) }.to_bytes();
    let before = [&client, &server].map(|end| end.nic.cm_counters());
    for class in [0x01, 0x03, 0x04, 0x81, 0x30] {
        let mut foreign = good;
        foreign[1] = class;
        stranger.send(from, &foreign);
    }
    for (at, value) in [(0, 2), (2, 9), (3, 0x81), (17, 0x0f), (17, 0x1b)] {
        let mut damaged = good;
        damaged[at] = value;
        stranger.send(from, &damaged);
    }
    stranger.send(from, &good[..64]);
    stranger.send(from, &[]);
    let start = Instant::now();
    loop {
        let after = [&client, &server].map(|end| end.nic.cm_counters());
        let grown = |of: fn(&ferroce_nic::CmCounters) -> u64| -> u64 {
            after.iter().map(of).sum::<u64>() - before.iter().map(of).sum::<u64>()
        };
        if (grown(|c| c.foreign), grown(|c| c.malformed), grown(|c| c.received)) == (5, 7, 0) {
            break;
        }
        assert!(start.elapsed() < MAX_WAIT, "{before:?}\n{after:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    ping(&client, &server, &pair);
}

/// Programs may let peers in by their address.
#[test]
fn a_request_cannot_claim_to_come_from_elsewhere() {
    let server = End::new(&["127.43.4.1"]);
    let listener = server.listener("127.43.4.1:0", 8);
    let to = listener.local_addr().unwrap();
    let stranger = Stranger::new("127.43.9.251", to);
    let from = Ipv4Addr::new(127, 43, 9, 251);
    let CmMessage::Req(mut req) = stranger.req(from, 1) else { unreachable!() };
    let lie = IpHeader {
        sport: 77,
        src: Ipv4Addr::new(10, 0, 0, 1).into(),
        dst: Ipv4Addr::new(10, 0, 0, 2).into(),
    };
    req.private_data[..IpHeader::LEN].copy_from_slice(&lie.to_bytes());
    stranger.say(from, CmMessage::Req(req));
    let request = server.next(CmEventKind::ConnectRequest).id;
    assert_eq!(request.peer_addr(), Some(SocketAddr::new(from.into(), 77)));
    assert_eq!(request.local_addr(), Some(to));
}

#[test]
fn strangers_cannot_end_or_steal_a_connection() {
    let (client, server) = (End::new(&["127.43.3.1"]), End::new(&["127.43.3.1"]));
    let listener = server.listener("127.43.3.1:0", 8);
    let to = listener.local_addr().unwrap();
    let pair = connected(&client, &server, to);
    let stranger = Stranger::new("127.43.9.252", to);
    let from = Ipv4Addr::new(127, 43, 9, 252);
    // Its ids are not to be guessed; here it tries every slot.
    for slot in 1..=254_u32 {
        let (local_comm_id, remote_comm_id) = (CommId(0xee00_0001), CommId(slot << 24 | 0x1234));
        stranger.say(from, CmMessage::Dreq(Dreq { local_comm_id, remote_comm_id, ..Dreq::default() }));
        stranger.say(from, CmMessage::Rej(Rej { local_comm_id, remote_comm_id, ..Rej::default() }));
        stranger.say(from, CmMessage::Rep(Rep { local_comm_id, remote_comm_id, ..Rep::default() }));
        stranger.say(from, CmMessage::Rtu(Rtu { local_comm_id, remote_comm_id, ..Rtu::default() }));
    }
    // A request that claims the client's queue pair: stale only if it came from the client's address.
    let CmMessage::Req(mut req) = stranger.req(from, 1) else { unreachable!() };
    req.local_qpn = pair[0].1.qpn();
    stranger.say(from, CmMessage::Req(req));
    let request = server.next(CmEventKind::ConnectRequest);
    assert_eq!(request.id.peer_addr().map(|a| a.ip()), Some(IpAddr::V4(from)));
    settle(&server);
    assert_eq!(server.nic.cm_counters().stale, 0);
    ping(&client, &server, &pair);
    assert!(client.channel.try_next().is_none() && server.channel.try_next().is_none());
}
