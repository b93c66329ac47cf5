//! The UDP link between two NICs of one process.

mod link_support;

use ferroce_nic::link::{Effort, Link, LinkError, RxBatch, TxBatch, UdpConfig, UdpLink};
use ferroce_proto::qp::Arrival;
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{Bth, FlowAddrs, Icrc, ROCE_UDP_PORT, has_partial_icrc, icrc};
use link_support::*;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// Packets of many lengths, some of them in runs, all to one queue pair.
fn mixed_lengths() -> Vec<usize> {
    let mut lengths = vec![16, 4116, 20, 20, 20, 1044];
    lengths.extend([4116; 20]);
    lengths.extend([1000, 16, 16, 60, 60, 44, 60]);
    lengths
}

fn round_trip(from: &str, to: &str) {
    let _lock = lock_address(to);
    let (sender, receiver) = (open(&[from]), open(&[to]));
    let packets: Vec<_> = mixed_lengths()
        .into_iter()
        .enumerate()
        .map(|(i, len)| packet(receiver.slot(), i as u32, len))
        .collect();
    let mut batch = TxBatch::new();
    for bytes in &packets {
        let route = route(from, to, 3);
        if !batch.has_room(bytes.len()) {
            sender.send(&mut batch);
        }
        add(&mut batch, &route, bytes);
    }
    sender.send(&mut batch);
    assert!(batch.is_empty());
    assert_eq!(receive(&receiver, packets.len()), packets);
    let (tx, rx) = (sender.counters(), receiver.counters());
    assert_eq!((tx.tx_packets, tx.send_errors), (packets.len() as u64, 0));
    assert!(tx.gso_batches >= 3, "{tx:?}");
    assert!(tx.tx_calls < tx.tx_packets / 4, "{tx:?}");
    assert_eq!((rx.rx_packets, rx.bad_icrc, rx.malformed), (packets.len() as u64, 0, 0));
    assert_eq!(rx.rx_bytes, tx.tx_bytes);
}

#[test]
fn a_mixed_batch_crosses_ipv4_in_order() {
    round_trip("127.41.0.1", "127.41.0.2");
}

#[test]
fn a_mixed_batch_crosses_ipv6_in_order() {
    round_trip("::1", "::1");
}

/// As Soft-RoCE and hardware send over IPv6: the ICRC is all the protection there is.
#[test]
fn a_packet_without_udp_checksum_arrives_over_ipv6() {
    const UDP_NO_CHECK6_TX: libc::c_int = 101;
    let _lock = lock_address("::1");
    let receiver = open(&["::1"]);
    let foreign = UdpSocket::bind("[::1]:0").unwrap();
    let on: libc::c_int = 1;
    // SAFETY: the descriptor is open, and the value is an integer of the length that is given.
    let set = unsafe {
        let value = (&raw const on).cast();
        libc::setsockopt(foreign.as_raw_fd(), libc::SOL_UDP, UDP_NO_CHECK6_TX, value, size_of_val(&on) as u32)
    };
    assert_eq!(set, 0);
    let mut bytes = packet(receiver.slot(), 7, 64);
    let flow = FlowAddrs::new(gid("::1"), gid("::1"), foreign.local_addr().unwrap().port());
    bytes.extend(icrc(&flow, 0, &bytes));
    foreign.send_to(&bytes, ("::1", ROCE_UDP_PORT)).unwrap();
    assert_eq!(receive(&receiver, 1), [packet(receiver.slot(), 7, 64)]);
}

/// A packet with both bits that announce a partial ICRC may have an ordinary one, if it is from a foreign end. The link reports which it was: for the
/// first packets, and in single-packet RX, which begins after eight.
#[test]
fn what_the_icrc_covers_is_reported() {
    let (from, to) = ("127.41.2.1", "127.41.2.2");
    let receiver = open(&[to]);
    let sender = UdpSocket::bind((from, 0)).unwrap();
    let flow = FlowAddrs::new(gid(from), gid(to), sender.local_addr().unwrap().port());
    for number in 0..48 {
        let mut bytes = packet(receiver.slot(), number, 2048);
        // Long stretches of each kind, and changes between them.
        let is_partial = if number < 24 { number % 16 < 12 } else { number % 2 == 0 };
        bytes[8] = 0x18;
        let covered = if is_partial { &bytes[..Bth::LEN] } else { &bytes };
        bytes.extend(Icrc::start_with_bth(&flow, 0, bytes.len(), covered).finish());
        sender.send_to(&bytes, (to, ROCE_UDP_PORT)).unwrap();
        let got = receive_each(&receiver, 1, |p| (number_of(p.bytes), has_partial_icrc(p.bytes)));
        assert_eq!(got, [(number, is_partial)]);
    }
    let ordinary = packet(receiver.slot(), 48, 2048);
    let mut damaged = ordinary.clone();
    damaged[8] = 0x18;
    damaged.extend(icrc(&flow, 0, &ordinary));
    sender.send_to(&damaged, (to, ROCE_UDP_PORT)).unwrap();
    sender.send_to(&[&ordinary[..], &icrc(&flow, 0, &ordinary)].concat(), (to, ROCE_UDP_PORT)).unwrap();
    assert_eq!(receive_each(&receiver, 1, |p| (p.bytes[8], has_partial_icrc(p.bytes))), [(0, false)]);
    assert_eq!(receiver.counters().bad_icrc, 1);
}

#[test]
fn the_wildcard_hears_both_families() {
    // A link bound to ::1 alone would come first.
    let _lock = lock_address("::1");
    let link = UdpLink::open(&UdpConfig::default()).unwrap();
    let mut batch = TxBatch::new();
    let addrs = ["127.41.0.10", "127.41.0.9", "::1"];
    for addr in addrs {
        add(&mut batch, &route(addr, addr, 0), &packet(link.slot(), 0, 64));
    }
    link.send(&mut batch);
    let mut seen = receive_each(&link, 3, |p| p.arrival.dgid.to_ip().to_string());
    seen.sort();
    assert_eq!(seen, addrs);
}

#[test]
fn outer_headers_are_reported() {
    for (from, to) in [("127.41.1.1", "127.41.1.2"), ("::1", "::1")] {
        let _lock = lock_address(to);
        let (sender, receiver) = (open(&[from]), open(&[to]));
        receiver.report_outer_fields();
        let route = Route { traffic_class: 0x68, hop_limit: 7, ..route(from, to, 1) };
        let mut batch = TxBatch::new();
        add(&mut batch, &route, &packet(receiver.slot(), 0, 32));
        sender.send(&mut batch);
        let got = receive_each(&receiver, 1, |p| (*p.arrival, p.sport >= 0xC000));
        let (sgid, dgid) = (gid(from), gid(to));
        assert_eq!(
            got,
            [(Arrival { sgid, dgid, traffic_class: 0x68, hop_limit: 7, ring: None, age_ns: 0 }, true)]
        );
    }
}

#[test]
fn the_age_of_a_packet_is_reported_where_it_is_asked_for() {
    let waited = Duration::from_millis(20);
    for timestamps in [false, true] {
        let (from, to) = ("127.41.12.1", "127.41.12.2");
        let sender = open(&[from]);
        let receiver = UdpLink::open(&UdpConfig { timestamps, ..config(&[to]) }).expect("open a link");
        // The kernel begins to stamp a moment after it was asked; earlier packets are stamped when they are read.
        let age = |_| {
            let mut batch = TxBatch::new();
            add(&mut batch, &route(from, to, 1), &packet(receiver.slot(), 0, 32));
            sender.send(&mut batch);
            std::thread::sleep(waited);
            receive_each(&receiver, 1, |p| p.arrival.age_ns)[0]
        };
        match timestamps {
            true => assert!((0..100).map(age).any(|age| u128::from(age) >= waited.as_nanos())),
            false => assert_eq!(age(0), 0),
        }
    }
}

#[test]
fn entropy_chooses_the_source_port() {
    let (sender, receiver) = (open(&["127.41.2.1"]), open(&["127.41.2.2"]));
    let mut batch = TxBatch::new();
    for entropy in 0..8 {
        let route = route("127.41.2.1", "127.41.2.2", entropy);
        add(&mut batch, &route, &packet(receiver.slot(), u32::from(entropy), 32));
    }
    sender.send(&mut batch);
    let got = receive_each(&receiver, 8, |p| (number_of(p.bytes), p.sport));
    let ports: std::collections::BTreeMap<_, _> = got.into_iter().collect();
    for entropy in 0..4 {
        assert_eq!(ports[&entropy], ports[&(entropy + 4)]);
    }
    let distinct: std::collections::BTreeSet<_> = ports.values().collect();
    assert_eq!(distinct.len(), 4);
}

#[test]
fn a_segmentation_run_of_4_kib_packets_arrives() {
    let (sender, receiver) = (open(&["127.41.3.1"]), open(&["127.41.3.2"]));
    let packets: Vec<_> = (0..15).map(|i| packet(receiver.slot(), i, 4096 + 16)).collect();
    let mut batch = TxBatch::new();
    for bytes in &packets {
        add(&mut batch, &route("127.41.3.1", "127.41.3.2", 0), bytes);
    }
    sender.send(&mut batch);
    assert_eq!(receive(&receiver, 15), packets);
    let counters = sender.counters();
    assert_eq!((counters.gso_batches, counters.tx_calls), (1, 1));
}

/// Two long GRO batches and a short one arrive in chunks, in their order and without the damaged packet.
#[test]
fn long_gro_batches_arrive_in_chunks() {
    let (sender, receiver) = (open(&["127.41.13.1"]), open(&["127.41.13.2"]));
    let there = route("127.41.13.1", "127.41.13.2", 0);
    let mut rx = RxBatch::new();
    // The receiver offers room for several datagrams once it has seen a stream.
    for round in 0..4 {
        let first = round * 100;
        let mut batch = TxBatch::new();
        for number in first..first + 34 {
            if number == first + 15 || number == first + 30 {
                sender.send(&mut batch);
            }
            add(&mut batch, &there, &packet(receiver.slot(), number, 4096 + 16));
            if number == first + 9 {
                batch.corrupt_last(2000 * 8);
            }
        }
        sender.send(&mut batch);
        let (mut arrived, mut polls, mut chunks) = (Vec::new(), 0, 0);
        let start = Instant::now();
        while arrived.len() < 33 {
            assert!(start.elapsed() < MAX_WAIT, "only {arrived:?}; {:?}", receiver.counters());
            let found = receiver.receive(&mut rx, Effort::Thorough);
            polls += u32::from(found > 0);
            chunks += u32::from(found > 0);
            while rx.has_more() {
                chunks += u32::from(receiver.receive(&mut rx, Effort::Thorough) > 0);
            }
            arrived.extend(rx.packets().map(|p| {
                assert_eq!(p.bytes, packet(receiver.slot(), number_of(p.bytes), 4096 + 16));
                number_of(p.bytes)
            }));
        }
        assert_eq!(arrived, (first..first + 34).filter(|&n| n != first + 9).collect::<Vec<_>>());
        assert!(chunks > polls + 4, "{chunks} chunks in {polls} polls");
        assert_eq!(receiver.receive(&mut rx, Effort::Thorough), 0, "nothing is left");
        assert!(rx.is_empty());
    }
    assert_eq!(receiver.counters().bad_icrc, 4);
}

#[test]
fn it_also_works_without_offloads() {
    let plain = |addr| UdpConfig { gso: false, gro: false, ..config(&[addr]) };
    let sender = UdpLink::open(&plain("127.41.4.1")).unwrap();
    let receiver = UdpLink::open(&plain("127.41.4.2")).unwrap();
    let packets: Vec<_> = (0..30).map(|i| packet(receiver.slot(), i, 4096 + 16)).collect();
    let mut batch = TxBatch::new();
    for bytes in &packets {
        add(&mut batch, &route("127.41.4.1", "127.41.4.2", 0), bytes);
    }
    sender.send(&mut batch);
    assert_eq!(receive(&receiver, 30), packets);
    assert_eq!(sender.counters().gso_batches, 0);
}

#[test]
fn segments_reach_a_receiver_that_does_not_merge() {
    let sender = open(&["127.41.5.1"]);
    let receiver = UdpLink::open(&UdpConfig { gro: false, ..config(&["127.41.5.2"]) }).unwrap();
    let packets: Vec<_> = (0..15).map(|i| packet(receiver.slot(), i, 4096 + 16)).collect();
    let mut batch = TxBatch::new();
    for bytes in &packets {
        add(&mut batch, &route("127.41.5.1", "127.41.5.2", 0), bytes);
    }
    sender.send(&mut batch);
    assert_eq!(receive(&receiver, 15), packets);
}

#[test]
fn a_damaged_packet_is_dropped_and_counted() {
    for (from, to) in [("127.41.6.1", "127.41.6.2"), ("::1", "::1")] {
        let _lock = lock_address(to);
        let (sender, receiver) = (open(&[from]), open(&[to]));
        let mut batch = TxBatch::new();
        for number in 0..3 {
            add(&mut batch, &route(from, to, 0), &packet(receiver.slot(), number, 256));
            if number == 1 {
                batch.corrupt_last(16 * 8 + 3);
            }
        }
        sender.send(&mut batch);
        let numbers: Vec<_> = receive(&receiver, 2).iter().map(|b| number_of(b)).collect();
        assert_eq!(numbers, [0, 2]);
        assert_eq!(receiver.counters().bad_icrc, 1);
    }
}

#[test]
fn garbage_is_counted_and_dropped() {
    let receiver = open(&["127.41.7.2"]);
    let stranger = UdpSocket::bind("127.41.7.1:0").unwrap();
    let mut sent = 0;
    for round in 0..200_usize {
        for len in [0, 1, 3, 4, 11, 12, 15, 16, 20, 48, 100, 1500, 9000] {
            let mut bytes: Vec<u8> = (0..len).map(|i| (i * round) as u8).collect();
            if round % 3 == 0 && len >= 48 {
                // Looks like a probe, but its sender does not know the token.
                bytes[..4].copy_from_slice(&[0xff, 0xf3, 0x77, 0x0c]);
            }
            stranger.send_to(&bytes, "127.41.7.2:4791").unwrap();
            sent += 1;
        }
        drain(&receiver);
    }
    let counters = receiver.counters();
    // Over IPv4 one random packet in 2^15 has an ICRC that some identification makes right.
    let lucky = counters.misdelivered + counters.rx_packets;
    let dropped = counters.malformed + counters.bad_icrc + counters.rx_overruns;
    assert_eq!(dropped + lucky, sent, "{counters:?}");
    assert!(lucky < 5, "{counters:?}");
}

#[test]
fn what_the_kernel_refuses_is_counted() {
    let sender = open(&["127.41.8.1"]);
    let mut batch = TxBatch::new();
    // Two families in one route; a source address that is not ours.
    add(&mut batch, &route("127.41.8.1", "::1", 0), &packet(1, 0, 64));
    add(&mut batch, &route("198.51.100.1", "127.41.8.1", 0), &packet(1, 0, 64));
    sender.send(&mut batch);
    assert!(batch.is_empty());
    assert_eq!((sender.counters().send_errors, sender.counters().tx_packets), (2, 0));
}

#[test]
fn a_foreign_address_is_explained() {
    let error = UdpLink::open(&config(&["198.51.100.1"])).unwrap_err();
    assert!(matches!(error, LinkError::NoSuchAddress { .. }), "{error}");
}

#[test]
fn multicast_reaches_every_member_once() {
    let (group, from) = ("239.41.0.1", "127.41.12.1");
    let links = [open(&[from]), open(&[from]), open(&[from])];
    links[0].join_multicast(gid(group)).unwrap();
    links[1].join_multicast(gid(group)).unwrap();
    links[1].join_multicast(gid(group)).unwrap();
    links[1].leave_multicast(gid(group)).unwrap();
    let mut bytes = packet(0xff, 5, 64);
    bytes[5..8].fill(0xff);
    let mut batch = TxBatch::new();
    add(&mut batch, &route(from, group, 0), &bytes);
    links[2].send(&mut batch);
    assert_eq!(links[2].counters().send_errors, 0);
    for member in &links[..2] {
        assert_eq!(receive(member, 1), [bytes.clone()], "{group}");
        assert!(drain(member).is_empty());
    }
    assert!(drain(&links[2]).is_empty());
    links[0].leave_multicast(gid(group)).unwrap();
    links[0].leave_multicast(gid(group)).unwrap_err();
    add(&mut batch, &route(from, group, 0), &bytes);
    links[2].send(&mut batch);
    assert_eq!(receive(&links[1], 1).len(), 1);
    assert!(drain(&links[0]).is_empty());
}

#[test]
fn a_unicast_address_is_no_group() {
    let link = open(&["127.41.10.1"]);
    link.join_multicast(gid("127.0.0.1")).unwrap_err();
    link.leave_multicast(gid("239.41.0.2")).unwrap_err();
}

#[test]
fn descriptors_wake_a_sleeper() {
    let link = open(&["127.41.11.1"]);
    link.join_multicast(gid("239.41.0.3")).unwrap();
    let fds = link.wait_fds();
    let is_ready = || {
        let mut polls: Vec<_> =
            fds.iter().map(|&fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect();
        // SAFETY: the array is valid for its length.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, 0) > 0 }
    };
    assert!(!is_ready());
    for to in ["127.41.11.1", "239.41.0.3"] {
        let mut bytes = packet(link.slot(), 1, 32);
        if to.starts_with("239") {
            bytes[5..8].fill(0xff);
        }
        let mut batch = TxBatch::new();
        add(&mut batch, &route("127.41.11.1", to, 0), &bytes);
        link.send(&mut batch);
        assert!(is_ready(), "{to}");
        assert_eq!(receive(&link, 1), [bytes]);
        assert!(!is_ready());
    }
}

#[test]
fn single_packet_rx_may_swell_and_change_its_address() {
    let link = UdpLink::open(&UdpConfig { bind: None, ..config(&[]) }).unwrap();
    let from = "127.47.9.1";
    let mut number = 0;
    let mut send = |to: &str, count: u32| {
        let mut batch = TxBatch::new();
        for _ in 0..count {
            add(&mut batch, &route(from, to, 0), &packet(link.slot(), number, 64));
            number += 1;
        }
        link.send(&mut batch);
        (number - count..number, gid(to))
    };
    // Single-packet RX; then a GRO batch, other addresses in the middle of one, and a GRO batch to another address.
    let script =
        [("127.47.9.2", 1); 20].into_iter().chain([("127.47.9.2", 40)]).chain([("127.47.9.2", 1); 20]);
    let script = script.chain([("127.0.0.1", 1)]).chain([("127.47.9.2", 1); 20]).chain([("127.0.0.1", 30)]);
    for (to, count) in script {
        let (numbers, dgid) = send(to, count);
        let seen = receive_each(&link, count as usize, |p| (number_of(p.bytes), p.arrival.dgid));
        assert_eq!(seen, numbers.map(|n| (n, dgid)).collect::<Vec<_>>());
    }
    assert_eq!(link.counters().bad_icrc, 0);
}
