//! Two network namespaces joined by a cable: a path that really segments, has a real MTU, and shows its frames.
//!
//! Needs `unshare` and `ip` and the right to make user namespaces; says so loudly where it cannot run.

mod link_support;
mod namespace_support;

use ferroce_nic::link::{Link, LinkError, RxBatch, RxPacket, TxBatch, UdpConfig, UdpLink};
use ferroce_proto::wire::{FlowAddrs, Ipv4Header, UdpHeader, icrc};
use link_support::*;
use namespace_support::{UNSHARE, can_make_namespace};
use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, Socket, Type};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const ROLE: &str = "FERROCE_TEST_NAMESPACE";
/// Who sends to which group, and the number of the packet.
const GROUPS: [(&str, &str, u32); 2] = [("fd99::1", "ff15::46", 99), ("10.99.0.1", "239.99.0.46", 98)];
const RUN: u32 = 12;
const ETHERNET_LEN: usize = 14;

#[test]
fn a_wire_between_two_namespaces() {
    match std::env::var(ROLE).as_deref() {
        Ok("left") => return left(),
        Ok("right") => return right(),
        _ => {}
    }
    if !tool_is_there("unshare") || !tool_is_there("ip") || !can_make_namespace() {
        return;
    }
    let output = in_namespace(&UNSHARE, "left").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// This very test in a new namespace, in another role.
fn in_namespace(unshare: &[&str], role: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(unshare).arg(std::env::current_exe().unwrap());
    command.args(["a_wire_between_two_namespaces", "--exact", "--nocapture"]).env(ROLE, role);
    command
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn wildcard() -> UdpLink {
    UdpLink::open(&UdpConfig::default()).unwrap()
}

/// Registries are per namespace; those of namespaces that end with the test would stay for ever.
fn remove_registry(link: UdpLink) {
    drop(link);
    let inode = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
    let _ = std::fs::remove_dir_all(format!("/dev/shm/ferroce-0-{inode}"));
}

/// The side that sends.
fn left() {
    ip("link set lo up");
    let mut peer = Peer::start();
    ip(&format!("link add left type veth peer name right netns {}", peer.process.id()));
    // Makes the kernel cut every batch itself, as for a network card that cannot.
    ip("link set left gso_max_segs 1 mtu 1500");
    ip("addr add 10.99.0.1/24 dev left");
    ip("addr add fd99::1/64 dev left nodad");
    ip("link set left up");
    peer.tell("cable");
    let slot: u8 = peer.hear("slot").parse().unwrap();
    let link = wildcard();

    let mut batch = TxBatch::new();
    add(&mut batch, &route("10.99.0.1", "10.99.0.2", 1), &packet(slot, 0, 64));
    link.send(&mut batch);
    for (from, to) in [("10.99.0.1", "10.99.0.2"), ("fd99::1", "fd99::2")] {
        for number in 0..RUN {
            add(&mut batch, &route(from, to, 1), &packet(slot, number, 1024 + 16));
        }
        link.send(&mut batch);
    }
    let counters = link.counters();
    assert_eq!((counters.gso_batches, counters.send_errors), (2, 0), "{counters:?}");
    peer.hear("got");

    // Too long for the path: alone, and in a batch.
    for number in 0..5 {
        let entropy = u16::from(number == 0);
        add(&mut batch, &route("10.99.0.1", "10.99.0.2", entropy), &packet(slot, number, 4096 + 16));
    }
    link.send(&mut batch);
    let counters = link.counters();
    assert_eq!((counters.send_errors, counters.too_long), (5, 5), "{counters:?}");
    // That was no reason to give up batches.
    for number in 0..RUN {
        add(&mut batch, &route("10.99.0.1", "10.99.0.2", 1), &packet(slot, number, 512));
    }
    link.send(&mut batch);
    assert_eq!(link.counters().gso_batches, 3);

    for (from, group, number) in GROUPS {
        let mut to_group = packet(0xff, number, 64);
        to_group[5..8].fill(0xff);
        link.join_multicast(gid(group)).unwrap();
        add(&mut batch, &route(from, group, 0), &to_group);
        link.send(&mut batch);
        assert_eq!(receive(&link, 1), [to_group], "the sender's own host hears it too");
    }
    peer.hear("done");
    assert!(peer.process.wait().unwrap().success());
    remove_registry(link);
    somebody_elses_port_is_explained();
}

/// Here and not among the other tests: whoever has the port without sharing it is in the way of everybody else.
fn somebody_elses_port_is_explained() {
    let _owner = std::net::UdpSocket::bind("127.0.0.7:4791").unwrap();
    for bind in [None, Some(vec!["127.0.0.7".parse().unwrap()])] {
        let error = UdpLink::open(&UdpConfig { bind, ..UdpConfig::default() }).unwrap_err();
        assert!(matches!(error, LinkError::PortTaken { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(":4791 is taken by process"), "{text}");
        assert!(text.contains("FERROCE_ADDR="), "{text}");
    }
}

/// The side that receives, and looks at the cable itself.
fn right() {
    let mut told = String::new();
    println!("@ready");
    std::io::stdin().read_line(&mut told).unwrap();
    ip("link set lo up");
    ip("addr add 10.99.0.2/24 dev right");
    ip("addr add fd99::2/64 dev right nodad");
    ip("link set right up");
    let cable = Socket::new(Domain::PACKET, Type::RAW, Some(Protocol::from(0x0300))).unwrap();
    cable.set_recv_buffer_size(1 << 20).unwrap();
    cable.set_nonblocking(true).unwrap();
    bind_to_interface(&cable, "right");
    let link = wildcard();
    for (_, group, _) in GROUPS {
        link.join_multicast(gid(group)).unwrap();
    }
    println!("@slot {}", link.slot());

    // The two families have a socket each, so their packets may interleave.
    let of_family = |p: &RxPacket<'_>| (p.arrival.sgid.to_ipv4().is_none(), number_of(p.bytes));
    let mut numbers = receive_each(&link, 1 + 2 * RUN as usize, of_family);
    numbers.sort_by_key(|(is_ipv6, _)| *is_ipv6);
    let ipv4 = (0..1).chain(0..RUN).map(|number| (false, number));
    assert_eq!(numbers, ipv4.chain((0..RUN).map(|number| (true, number))).collect::<Vec<_>>());
    check_frames(&cable);
    println!("@got 1");

    let start = Instant::now();
    let (mut rx, mut numbers) = (RxBatch::new(), Vec::new());
    while numbers.len() < RUN as usize + GROUPS.len() {
        assert!(start.elapsed() < MAX_WAIT, "{numbers:?}; {:?}", link.counters());
        receive_all(&link, &mut rx);
        numbers.extend(rx.packets().map(|p| number_of(p.bytes)));
    }
    for (_, group, number) in GROUPS {
        assert!(numbers.contains(&number), "the packet to {group}");
    }
    let counters = link.counters();
    assert_eq!((counters.bad_icrc, counters.malformed, counters.misdelivered), (0, 0, 0), "{counters:?}");
    remove_registry(link);
    println!("@done 1");
}

/// Every frame on the cable has the identification that its ICRC was computed with.
fn check_frames(cable: &Socket) {
    let mut idents = Vec::new();
    let mut frame = [0; 2048];
    while let Ok(len) = (&mut &*cable).read(&mut frame) {
        // IPv4, and UDP: joining a group says so on the cable, in packets of its own.
        if len < ETHERNET_LEN + Ipv4Header::LEN
            || frame[12..14] != [0x08, 0x00]
            || frame[ETHERNET_LEN + 9] != 17
        {
            continue;
        }
        let ip = Ipv4Header::parse(&frame[ETHERNET_LEN..len]).unwrap();
        let udp_at = ETHERNET_LEN + Ipv4Header::LEN;
        let udp = UdpHeader::parse(&frame[udp_at..len]).unwrap();
        let (body, tail) =
            frame[udp_at + UdpHeader::LEN..udp_at + usize::from(udp.len)].split_last_chunk::<4>().unwrap();
        let flow = FlowAddrs::new(gid(&ip.src.to_string()), gid(&ip.dst.to_string()), udp.sport);
        assert_eq!(icrc(&flow, ip.ident, body), *tail, "identification {}", ip.ident);
        assert_eq!(ip.flags, Ipv4Header::DONT_FRAGMENT);
        idents.push(ip.ident);
    }
    let expected: Vec<_> = (0..1).chain(0..RUN as u16).collect();
    assert_eq!(idents, expected, "a packet on its own, then a batch that was segmented for real");
}

fn bind_to_interface(socket: &Socket, name: &str) {
    let name = std::ffi::CString::new(name).unwrap();
    let mut storage = SockAddrStorage::zeroed();
    // SAFETY: the storage is larger than a `sockaddr_ll`, zeroed, and written as one.
    let address = unsafe {
        let link_layer = storage.view_as::<libc::sockaddr_ll>();
        link_layer.sll_family = libc::AF_PACKET as u16;
        link_layer.sll_protocol = 0x0300;
        link_layer.sll_ifindex = libc::if_nametoindex(name.as_ptr()) as i32;
        SockAddr::new(storage, size_of::<libc::sockaddr_ll>() as libc::socklen_t)
    };
    socket.bind(&address).unwrap();
}

/// The other namespace, as the sender sees it.
struct Peer {
    process: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Peer {
    fn start() -> Peer {
        let mut command = in_namespace(&["--net"], "right");
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let mut peer = Peer { process, lines };
        peer.hear("ready");
        peer
    }
    fn tell(&mut self, what: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
    }
    fn hear(&mut self, name: &str) -> String {
        let mut all = String::new();
        loop {
            let before = all.len();
            assert!(self.lines.read_line(&mut all).unwrap() > 0, "the other side ended: {all}");
            if let Some((_, value)) = all[before..].split_once(&format!("@{name}")) {
                return value.trim().to_owned();
            }
        }
    }
}
