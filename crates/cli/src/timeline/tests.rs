//! Captures made by the simulator, with every fault the page shows; and files that are damaged everywhere.

use super::analysis::Analysis;
use super::ladder;
use super::packet;
use super::page;
use super::pairing::Pairer;
use super::report::{Reading, Report};
use crate::capture_file::Records;
use ferroce_proto::verbs::Mtu;
use ferroce_proto::wire::{FlowAddrs, Headers, Ipv4Header, Ipv6Header, Operation, UdpHeader, icrc};
use ferroce_proto::{Gid, Psn};
use ferroce_sim::journal::Fate;
use ferroce_sim::{LATENCY_NS, Pair, PairSetup, Rule, Wr, filter};
use std::cell::RefCell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::rc::Rc;

const ETHERNET: u16 = 1;

/// A packet as the network saw it.
#[derive(Clone)]
struct Wire {
    time_ns: u64,
    from: usize,
    headers: Headers,
    payload: Vec<u8>,
    tos: u8,
}

/// Records all packets of a pair from now on.
fn record(pair: &Pair) -> Rc<RefCell<Vec<Wire>>> {
    let packets = Rc::new(RefCell::new(Vec::new()));
    let taken = Rc::clone(&packets);
    pair.world.rule(Rule::on(move |seen| {
        taken.borrow_mut().push(Wire {
            time_ns: seen.time.0,
            from: seen.from.0,
            headers: seen.packet.headers,
            payload: seen.packet.payload.to_vec(),
            tos: 0,
        });
        false
    }));
    packets
}

fn address(node: usize, ipv6: bool) -> IpAddr {
    match ipv6 {
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, node as u16 + 1).into(),
        false => Ipv4Addr::new(10, 0, 0, node as u8 + 1).into(),
    }
}

/// An IP packet around a packet of the simulator.
fn ip_packet(wire: &Wire, ipv6: bool) -> Vec<u8> {
    let (src, dst) = (address(wire.from, ipv6), address(1 - wire.from, ipv6));
    let flow = FlowAddrs::new(Gid::from_ip(src), Gid::from_ip(dst), 0xc000);
    let mut transport = vec![0; wire.headers.encoded_len()];
    wire.headers.write(&mut transport);
    transport.extend(&wire.payload);
    transport.resize(transport.len() + usize::from(wire.headers.bth.pad), 0);
    let checksum = icrc(&flow, 7, &transport);
    transport.extend(checksum);
    let udp_len = (UdpHeader::LEN + transport.len()) as u16;
    let mut bytes = match (src, dst) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Ipv4Header {
            tos: wire.tos,
            total_len: Ipv4Header::LEN as u16 + udp_len,
            ident: 7,
            flags: Ipv4Header::DONT_FRAGMENT,
            ttl: 64,
            protocol: Ipv4Header::PROTOCOL_UDP,
            src,
            dst,
        }
        .to_bytes()
        .to_vec(),
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let (tclass, next_header) = (wire.tos, Ipv4Header::PROTOCOL_UDP);
            Ipv6Header { tclass, flow_label: 0, payload_len: udp_len, next_header, hop_limit: 64, src, dst }
                .to_bytes()
                .to_vec()
        }
        _ => unreachable!("both addresses are of one kind"),
    };
    bytes.extend(UdpHeader { sport: 0xc000, dport: 4791, len: udp_len, checksum: 0 }.to_bytes());
    bytes.extend(transport);
    bytes
}

/// What stands before the IP packet, by link type.
fn link_header(link: u16, ipv6: bool) -> Vec<u8> {
    let ethertype: [u8; 2] = if ipv6 { [0x86, 0xdd] } else { [0x08, 0x00] };
    match link {
        1 => [&[0; 12][..], &[0x81, 0, 0, 5], &ethertype].concat(),
        113 => [&[0; 14][..], &ethertype].concat(),
        276 => [&ethertype[..], &[0; 18]].concat(),
        101 => Vec::new(),
        other => panic!("link type {other}"),
    }
}

/// Frames with their times and directions (0 unknown, 1 received, 2 sent) as a pcapng file.
fn pcapng(frames: &[(u64, u8, Vec<u8>)], link: u16, big_endian: bool, snap: usize) -> Vec<u8> {
    let half = |n: u16| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
    let word = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
    let block = |kind: u32, body: &[u8]| {
        let len = word(12 + body.len() as u32);
        [&word(kind)[..], &len, body, &len].concat()
    };
    let mut file = block(0x0a0d_0d0a, &[&word(0x1a2b_3c4d)[..], &half(1), &half(0), &[0xff; 8]].concat());
    // Nanoseconds: option 9 with the value 9, padded.
    let options = [&half(9)[..], &half(1), &[9, 0, 0, 0], &half(0), &half(0)].concat();
    file.extend(block(1, &[&half(link)[..], &half(0), &word(0), &options].concat()));
    for (time, direction, bytes) in frames {
        let kept = &bytes[..bytes.len().min(snap)];
        let mut body =
            [0, (time >> 32) as u32, *time as u32, kept.len() as u32, bytes.len() as u32].map(word).concat();
        body.extend(kept);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend([&half(2)[..], &half(4), &word((*direction).into()), &half(0), &half(0)].concat());
        file.extend(block(6, &body));
    }
    file
}

fn pcap(frames: &[(u64, u8, Vec<u8>)], link: u16, big_endian: bool, nanoseconds: bool) -> Vec<u8> {
    let word = |n: u32| if big_endian { n.to_be_bytes() } else { n.to_le_bytes() };
    let magic = if nanoseconds { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let mut file: Vec<u8> = [magic, 0, 0, 0, 65_535, link.into()].map(word).concat();
    for (time, _, bytes) in frames {
        let fraction = time % 1_000_000_000 / if nanoseconds { 1 } else { 1000 };
        let (seconds, len) = ((time / 1_000_000_000) as u32, bytes.len() as u32);
        file.extend([seconds, fraction as u32, len, len].map(word).concat());
        file.extend(bytes);
    }
    file
}

/// Reads a file as the command does; a damaged one as far as possible.
fn analyse(file: &[u8], limit: usize) -> (Analysis, Report) {
    let mut reading = Reading::default();
    let mut pairer = Pairer::default();
    each(file, |frame| {
        if let Err(why) = packet::decode(frame, |packet| pairer.take(packet)) {
            *reading.other.entry(why).or_default() += 1;
        }
    });
    let mut analysis = Analysis::new(pairer.finish(), limit);
    each(file, |frame| {
        let _ = packet::decode(frame, |packet| analysis.take(packet));
    });
    analysis.finish();
    let report = Report::of(&mut analysis, reading);
    (analysis, report)
}

fn each(file: &[u8], mut take: impl FnMut(&crate::capture_file::Frame<'_>)) {
    let Ok(mut records) = Records::open(file) else { return };
    while let Ok(Some(frame)) = records.next() {
        take(&frame);
    }
}

/// The frames of all packets, as seen on the wire between the ends.
fn frames(packets: &[Wire]) -> Vec<(u64, u8, Vec<u8>)> {
    let frame = |wire: &Wire| [link_header(ETHERNET, false), ip_packet(wire, false)].concat();
    packets.iter().map(|wire| (wire.time_ns, 0, frame(wire))).collect()
}

/// SENDs, WRITEs, READs and atomics of one and several packets, in both directions.
fn mixed_traffic() -> Vec<Wire> {
    let pair = Pair::rc(Mtu::B1024);
    let packets = record(&pair);
    pair.b.post_recv(1, 0, 4096);
    pair.b.post_recv(2, 0, 4096);
    pair.a.post_recv(3, 0, 4096);
    let (a, b) = (&pair.a, &pair.b);
    a.qp.post(Wr::send_imm(1, 0x1234).sge(a.sge(0, 3000)));
    a.qp.post(Wr::write(2, &b.mr, 8192).sge(a.sge(0, 2048)));
    a.qp.post(Wr::read(3, &b.mr, 0).sge(a.sge(8192, 2500)));
    a.qp.post(Wr::fetch_add(4, &b.mr, 16, 5).sge(a.sge(0, 8)));
    a.qp.post(Wr::compare_swap(5, &b.mr, 24, 1, 2).sge(a.sge(8, 8)));
    a.qp.post(Wr::write_imm(6, &b.mr, 8192, 9).sge(a.sge(0, 100)));
    b.qp.post(Wr::send(7).sge(b.sge(0, 50)));
    pair.run();
    packets.take()
}

#[test]
fn every_operation_becomes_a_message() {
    let packets = mixed_traffic();
    let (analysis, report) = analyse(&pcapng(&frames(&packets), ETHERNET, false, 9000), 1000);
    assert_eq!((report.connections.len(), report.packets), (1, packets.len() as u64));
    let connection = &report.connections[0];
    assert_eq!((connection.service, connection.path_mtu), ("RC", Some(1024)));
    assert_eq!(connection.anomalies(), 0, "{}", serde_json::to_string(connection).expect("JSON"));
    let from_a = usize::from(connection.ends[1].address == "10.0.0.1");
    let messages: Vec<(&str, u64, u32, bool)> = report
        .messages
        .iter()
        .filter(|message| usize::from(message.from) == from_a)
        .map(|m| (m.kind.name(), m.bytes, m.packets, m.latency_ns.is_some()))
        .collect();
    let expected = [
        ("SEND", 3000, 3, true),
        ("RDMA WRITE", 2048, 2, true),
        ("RDMA READ", 2500, 4, true),
        ("fetch and add", 8, 1, true),
        ("compare and swap", 8, 1, true),
        ("RDMA WRITE", 100, 1, true),
    ];
    assert_eq!(messages, expected);
    let imms: Vec<u32> = report.messages.iter().filter_map(|message| message.imm).collect();
    assert_eq!(imms, [0x1234, 9]);
    let requests = &connection.requests[from_a];
    assert_eq!((requests.goodput_bytes, requests.unanswered), (3000 + 2048 + 2500 + 100, 0));
    // The network between the ends delays by LATENCY_NS; the capture was taken where packets leave.
    assert!(requests.rtt.is_some_and(|rtt| rtt.p50_ns >= LATENCY_NS), "{:?}", requests.rtt);
    let page = page::html(&analysis, &report);
    assert_eq!(page.matches("data-p=").count(), packets.len());
    for words in ["Fetch and add: adds 0x5", "RDMA READ request for 2500 B", "Immediate data 0x1234"] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn losses_naks_and_retransmissions_are_found() {
    let pair = Pair::rc(Mtu::B1024);
    let lost = pair.world.rule(Rule::on(filter::request(1)).first().drop());
    // Rules apply in order, and a dropped packet is not seen by later ones: what is recorded is what passed the loss.
    let packets = record(&pair);
    (0..4).for_each(|n| pair.b.post_recv(n, 0, 4096));
    (0..4).for_each(|n| pair.a.qp.post(Wr::send(n).sge(pair.a.sge(0, 1024))));
    pair.run();
    lost.once();
    let packets = packets.take();
    let (analysis, report) = analyse(&pcapng(&frames(&packets), ETHERNET, false, 9000), 1000);
    let requests = &report.connections[0].requests[0];
    assert_eq!((requests.gaps, requests.missing, requests.messages), (1, 1, 4));
    assert_eq!(requests.naks.get("PSN sequence error"), Some(&1));
    assert!(requests.retransmitted >= 1 && requests.out_of_order == 0, "{}", requests.retransmitted);
    assert!(report.messages.iter().all(|message| message.latency_ns.is_some()));
    assert_eq!(requests.goodput_bytes, 4 * 1024, "each byte counts once");
    let page = page::html(&analysis, &report);
    for words in ["Gap: the packet before it", "NAK, PSN sequence error", "Retransmission: this PSN"] {
        assert!(page.contains(words), "{words}");
    }
}

#[test]
fn receiver_not_ready_and_remote_access_errors_have_their_reasons() {
    let pair = Pair::rc(Mtu::B1024);
    let packets = record(&pair);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 64)));
    pair.world.run_for(30_000);
    pair.b.post_recv(1, 0, 4096);
    pair.run();
    let outside = 1 << 30;
    pair.a.qp.post(Wr::write(2, &pair.b.mr, outside).sge(pair.a.sge(0, 64)));
    pair.run();
    let (analysis, report) = analyse(&pcapng(&frames(&packets.take()), ETHERNET, false, 9000), 1000);
    let requests = &report.connections[0].requests[0];
    assert!(requests.rnr_naks >= 1 && requests.refused == 1);
    assert_eq!(requests.naks.get("remote access error"), Some(&1));
    assert!(report.messages[0].rnr_naks >= 1 && report.messages[0].retransmitted >= 1);
    let page = page::html(&analysis, &report);
    assert!(
        page.contains("RNR NAK: the receiver has no receive posted")
            && page.contains("refused: remote access error")
    );
}

#[test]
fn a_capture_at_both_ends_shows_what_was_lost_in_between() {
    let pair = Pair::rc(Mtu::B1024);
    let packets = record(&pair);
    let lost = pair.world.rule(Rule::on(filter::request(1)).first().drop());
    let twice = pair.world.rule(Rule::on(filter::request(3)).first().duplicate());
    (0..4).for_each(|n| pair.b.post_recv(n, 0, 4096));
    (0..4).for_each(|n| pair.a.qp.post(Wr::send(n).sge(pair.a.sge(0, 1024))));
    pair.run();
    lost.once();
    twice.once();
    let journal = pair.world.journal();
    let mut both = Vec::new();
    for (wire, (_, fate)) in packets.take().iter().zip(journal.packets()) {
        let frame = [link_header(ETHERNET, false), ip_packet(wire, false)].concat();
        both.push((wire.time_ns, 2, frame.clone()));
        match *fate {
            Fate::Arrives(time) => both.push((time.0, 1, frame)),
            Fate::ArrivesTwice(first, second) => {
                both.extend([(first.0, 1, frame.clone()), (second.0, 1, frame)]);
            }
            _ => {}
        }
    }
    both.sort_by_key(|(time, ..)| *time);
    let (analysis, report) = analyse(&pcapng(&both, ETHERNET, false, 9000), 1000);
    let requests = &report.connections[0].requests[0];
    assert_eq!((requests.lost, requests.duplicated), (Some(1), Some(1)));
    assert_eq!(requests.one_way_delay.map(|delay| delay.p50_ns), Some(LATENCY_NS));
    assert!(requests.rtt.is_some_and(|rtt| rtt.p50_ns >= 2 * LATENCY_NS), "the whole round trip");
    assert!(page::html(&analysis, &report).contains("Lost: it was sent and never received."));
}

#[test]
fn the_ladder_as_text_names_what_is_not_shown() {
    let packets = mixed_traffic();
    let file = pcapng(&frames(&packets), ETHERNET, false, 9000);
    let (analysis, report) = analyse(&file, 1000);
    let whole = ladder::text(&analysis, &report);
    let is_packet = |line: &&str| line.starts_with('|');
    assert_eq!(whole.lines().filter(is_packet).count(), packets.len(), "{whole}");
    assert!(whole.starts_with("A: 10.0.0.1 QP 0x") && !whole.contains("not shown"), "{whole}");
    let (analysis, report) = analyse(&file, 3);
    let part = ladder::text(&analysis, &report);
    let shown = part.lines().filter(is_packet).count();
    let rest = format!("({} packets are not shown; --packets N shows more)", packets.len() - shown);
    assert!(shown <= 3 && part.contains(&rest), "{part}");
}

#[test]
fn many_queue_pairs_find_their_partners() {
    // All between the same two addresses, all with the same PSNs.
    let mut packets = Vec::new();
    for n in 0..20 {
        let setup = PairSetup { seed: n, psn_a: Psn::new(5), psn_b: Psn::new(5), ..PairSetup::rc() };
        let pair = setup.connect();
        let recorded = record(&pair);
        for round in 0..5 {
            pair.b.post_recv(round, 0, 4096);
            pair.a.qp.post(Wr::send(round).sge(pair.a.sge(0, 700)));
            pair.run();
        }
        let numbers = (pair.a.qp.qpn.value(), pair.b.qp.qpn.value());
        packets.extend(recorded.take().into_iter().map(|wire| (wire.time_ns + n * 311, numbers, wire)));
    }
    packets.sort_by_key(|(time, ..)| *time);
    let wires: Vec<Wire> =
        packets.iter().map(|(time_ns, _, wire)| Wire { time_ns: *time_ns, ..wire.clone() }).collect();
    let (_, report) = analyse(&pcapng(&frames(&wires), ETHERNET, false, 9000), 10_000);
    assert_eq!(report.connections.len(), 20);
    for connection in &report.connections {
        let found = connection.ends.each_ref().map(|end| end.qp.expect("both ends are known"));
        let is_true = packets.iter().any(|(_, (a, b), _)| found == [*a, *b] || found == [*b, *a]);
        assert!(is_true, "{found:x?}");
        assert_eq!(connection.requests.iter().map(|requests| requests.unanswered).sum::<u64>(), 0);
    }
}

#[test]
fn every_link_type_byte_order_and_resolution_reads_the_same() {
    let packets = mixed_traffic();
    let expected = analyse(&pcapng(&frames(&packets), ETHERNET, false, 9000), 1000).1;
    for ipv6 in [false, true] {
        for link in [1, 113, 276, 101] {
            let frame = |wire: &Wire| [link_header(link, ipv6), ip_packet(wire, ipv6)].concat();
            let frames: Vec<_> = packets.iter().map(|wire| (wire.time_ns, 0, frame(wire))).collect();
            for big_endian in [false, true] {
                let files = [
                    pcapng(&frames, link, big_endian, 9000),
                    pcap(&frames, link, big_endian, true),
                    pcap(&frames, link, big_endian, false),
                ];
                for (n, file) in files.iter().enumerate() {
                    let found = analyse(file, 1000).1;
                    let name = format!("IPv6 {ipv6}, link {link}, big endian {big_endian}, file {n}");
                    assert_eq!(found.packets, expected.packets, "{name}");
                    assert_eq!(found.messages.len(), expected.messages.len(), "{name}");
                    assert_eq!(found.connections[0].wrong_icrc, 0, "{name}");
                    let allowed = if n == 2 { 1000 } else { 0 };
                    assert!(found.duration_ns.abs_diff(expected.duration_ns) <= allowed, "{name}");
                }
            }
        }
    }
}

#[test]
fn a_small_snap_length_loses_headers_and_keeps_the_rest() {
    let packets = mixed_traffic();
    let whole = analyse(&pcapng(&frames(&packets), ETHERNET, false, 9000), 1000).1;
    // Ethernet with a VLAN tag, IPv4, UDP and BTH: no extension header.
    let (_, cut) = analyse(&pcapng(&frames(&packets), ETHERNET, false, 18 + 20 + 8 + 12), 1000);
    assert_eq!((cut.packets, cut.connections[0].cut), (whole.packets, whole.packets));
    assert_eq!(cut.messages.len(), whole.messages.len());
    let (_, nothing) = analyse(&pcapng(&frames(&packets), ETHERNET, false, 40), 1000);
    assert_eq!((nothing.packets, nothing.other_frames.values().sum::<u64>()), (0, whole.packets));
}

#[test]
fn marks_and_wrong_checksums_are_counted() {
    let mut packets = mixed_traffic();
    packets[0].tos = 3;
    let mut frames = frames(&packets);
    let last = frames[1].2.len() - 6;
    frames[1].2[last] ^= 1;
    let (analysis, report) = analyse(&pcapng(&frames, ETHERNET, false, 9000), 1000);
    assert_eq!((report.connections[0].ecn_marked, report.connections[0].wrong_icrc), (1, 1));
    let page = page::html(&analysis, &report);
    assert!(page.contains("A switch marked it") && page.contains("The ICRC is wrong"));
}

#[test]
fn a_gso_run_is_split_into_its_packets() {
    let packets: Vec<Wire> = mixed_traffic();
    let run: Vec<&Wire> = packets
        .iter()
        .filter(|wire| wire.from == 0 && wire.headers.bth.opcode.operation.is_send())
        .take(3)
        .collect();
    let operations: Vec<Operation> = run.iter().map(|wire| wire.headers.bth.opcode.operation).collect();
    assert_eq!(operations, [Operation::SendFirst, Operation::SendMiddle, Operation::SendLastImm]);
    let outer = Ipv4Header::LEN + UdpHeader::LEN;
    let transport: Vec<u8> = run.iter().flat_map(|wire| ip_packet(wire, false).split_off(outer)).collect();
    let mut bytes = ip_packet(run[0], false);
    bytes.truncate(outer);
    bytes[24..26].copy_from_slice(&((UdpHeader::LEN + transport.len()) as u16).to_be_bytes());
    bytes.extend(transport);
    let frame = [link_header(ETHERNET, false), bytes].concat();
    let (_, report) = analyse(&pcapng(&[(1, 0, frame)], ETHERNET, false, 70_000), 1000);
    assert_eq!((report.packets, report.messages[0].bytes, report.messages[0].packets), (3, 3000, 3));
    assert_eq!(report.connections[0].wrong_icrc, 0);
}

#[test]
fn the_page_keeps_its_limit_and_reports_it() {
    let pair = Pair::rc(Mtu::B1024);
    let packets = record(&pair);
    for n in 0..300 {
        pair.b.post_recv(n, 0, 4096);
        pair.a.qp.post(Wr::send(n).sge(pair.a.sge(0, 10)));
        pair.run();
        if n == 200 {
            pair.world.rule(Rule::on(filter::is_request).first().drop());
        }
    }
    let packets = packets.take();
    let (analysis, report) = analyse(&pcapng(&frames(&packets), ETHERNET, false, 9000), 100);
    let page = page::html(&analysis, &report);
    let shown = page.matches("data-p=").count();
    assert!((60..=100).contains(&shown), "{shown}");
    assert!(page.contains("Retransmission: this PSN was sent before"), "an anomaly is shown wherever it is");
    assert!(page.contains("are only counted"), "{}", &page[..3000]);
    assert_eq!(report.messages.len() as u64 + report.messages_left_out, 300);
}

#[test]
fn the_page_stands_alone() {
    let (analysis, report) = analyse(&pcapng(&frames(&mixed_traffic()), ETHERNET, false, 9000), 1000);
    let page = page::html(&analysis, &Report { files: vec!["<script>alert(1)</script>".into()], ..report });
    for outside in ["http:", "https:", "@import", "url(", "src=", "fetch(", "<script>alert"] {
        assert!(!page.contains(outside), "{outside}");
    }
    for tag in ["tr", "td", "table", "details", "section", "svg", "script", "div"] {
        let opened = page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    assert!(
        !page.contains("NaN") && page.contains("prefers-color-scheme: dark") && page.contains("@media print")
    );
}

#[test]
fn truncated_and_damaged_files_are_handled() {
    let all = mixed_traffic();
    let packets = &all[..6];
    for file in [pcapng(&frames(packets), ETHERNET, false, 120), pcap(&frames(packets), ETHERNET, true, true)]
    {
        for end in 0..file.len() {
            let (analysis, report) = analyse(&file[..end], 100);
            assert!(report.packets <= packets.len() as u64, "{end}");
            page::html(&analysis, &report);
        }
        for at in 0..file.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = file.clone();
                damaged[at] ^= change;
                let (analysis, report) = analyse(&damaged, 100);
                page::html(&analysis, &report);
            }
        }
    }
}

#[test]
fn random_bytes_behind_a_valid_header_are_handled() {
    let mut state = 0x1234_5678_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let template = frames(&mixed_traffic());
    for round in 0..300 {
        let mut frames = template.clone();
        for (time, direction, bytes) in &mut frames {
            *time = if round % 3 == 0 { random() } else { *time };
            *direction = (random() % 4) as u8;
            // Behind Ethernet, IP and UDP: opcodes, PSNs, lengths and messages of the connection manager.
            for _ in 0..random() % 8 {
                let at = 46 + (random() as usize) % (bytes.len() - 46);
                bytes[at] = random() as u8;
            }
        }
        let (analysis, report) = analyse(&pcapng(&frames, ETHERNET, round % 2 == 0, 9000), 50);
        let page = page::html(&analysis, &report);
        assert!(page.matches("data-p=").count() <= 50, "round {round}");
    }
}
