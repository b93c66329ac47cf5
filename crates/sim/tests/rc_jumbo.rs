//! Jumbo packets on a reliable connection: longer than the path MTU, between two ferroce ends whose path carries them. Programs see no
//! difference, and a lost one is repaired like any other packet.

mod support;

use ferroce_proto::Psn;
use ferroce_proto::qp::{DropReason, JUMBO_SEGMENT};
use ferroce_proto::verbs::{Mtu, Route, WcStatus};
use ferroce_proto::wire::{Aeth, Bth, Headers, Opcode, Operation, Reth, Service, Syndrome};
use ferroce_sim::filter::Seen;
use ferroce_sim::filter::{is_ack, is_request, op, request};
use ferroce_sim::{Faults, LATENCY_NS, Pair, PairSetup, Rule, World, Wr};
use support::{FAR, both_ready};

const MTU: u32 = 1024;
/// Lengths around the limits: of the path MTU, of one jumbo packet and of several.
const LENGTHS: [u32; 9] =
    [1, MTU, MTU + 1, 4096, JUMBO_SEGMENT - 1, JUMBO_SEGMENT, JUMBO_SEGMENT + 1, 100_001, 400_000];

fn setup() -> PairSetup {
    PairSetup {
        mtu: Mtu::B1024,
        psn_a: Psn::new(0xff_fff0),
        window: 256 * 1024,
        memory: 2 << 20,
        jumbo: [true; 2],
        ..PairSetup::rc()
    }
}

/// A pair that has exchanged a message, so that each end has recognised the other.
fn recognised(setup: &PairSetup) -> Pair {
    let pair = setup.connect();
    for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
        to.post_recv(0, 0, 8);
        from.qp.post(Wr::send(0).sge(from.sge(0, 8)));
    }
    pair.run();
    for end in [&pair.a, &pair.b] {
        assert_eq!(end.send_cq.statuses(), [(0, WcStatus::Success)]);
        assert_eq!(end.recv_cq.statuses(), [(0, WcStatus::Success)]);
    }
    pair
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Send,
    Write,
    Read,
}

/// Posts one operation of `a` and checks its result.
fn exchange(pair: &Pair, kind: Kind, id: u64, len: u32) {
    let (a, b) = (&pair.a, &pair.b);
    b.mr.fill(1000 + id);
    a.mr.fill(2000 + id);
    match kind {
        Kind::Send => {
            b.post_recv(id, FAR, len);
            a.qp.post(Wr::send(id).sge(a.sge(0, len)));
        }
        Kind::Write => a.qp.post(Wr::write(id, &b.mr, FAR).sge(a.sge(0, len))),
        Kind::Read => a.qp.post(Wr::read(id, &b.mr, FAR).sge(a.sge(0, len))),
    }
    pair.run();
    assert_eq!(a.send_cq.statuses(), [(id, WcStatus::Success)], "{kind:?} of {len} bytes");
    let received = if kind == Kind::Send { vec![(id, WcStatus::Success)] } else { vec![] };
    assert_eq!(b.recv_cq.statuses(), received);
    assert!(a.mr.read(0, len as usize) == b.mr.read(FAR as usize, len as usize), "{kind:?} of {len} bytes");
}

#[test]
fn messages_take_as_few_packets_as_possible() {
    for kind in [Kind::Send, Kind::Write, Kind::Read] {
        for (id, len) in (1..).zip(LENGTHS) {
            let pair = recognised(&setup());
            let before = pair.a.qp.counters().tx_packets;
            exchange(&pair, kind, id, len);
            let sent = pair.a.qp.counters().tx_packets - before;
            assert_eq!(sent, u64::from(len.div_ceil(JUMBO_SEGMENT)), "{kind:?} of {len} bytes");
            assert_eq!(pair.b.qp.counters().naks_sent, 0);
            both_ready(&pair);
        }
    }
}

/// The payload of a jumbo packet may change on its way, as the application's memory may. That of any other packet may not.
#[test]
fn the_icrc_of_jumbo_packets_alone_leaves_out_the_payload() {
    for (kind, len, is_accepted) in [
        (Kind::Send, 5 * MTU, true),
        (Kind::Write, 100_001, true),
        (Kind::Read, 5 * MTU, true),
        (Kind::Send, MTU, false),
        (Kind::Write, 8, false),
        (Kind::Read, MTU, false),
    ] {
        let pair = recognised(&setup());
        let has_payload = |seen: &Seen<'_>| !seen.packet.payload.is_empty();
        let rule = pair.world.rule(Rule::on(has_payload).first().change_payload());
        let (a, b) = (&pair.a, &pair.b);
        a.mr.fill(1);
        b.mr.fill(2);
        b.post_recv(1, FAR, len);
        a.qp.post(match kind {
            Kind::Send => Wr::send(1).sge(a.sge(0, len)),
            Kind::Write => Wr::write(1, &b.mr, FAR).sge(a.sge(0, len)),
            Kind::Read => Wr::read(1, &b.mr, FAR).sge(a.sge(0, len)),
        });
        pair.run();
        rule.once();
        assert_eq!(a.send_cq.statuses(), [(1, WcStatus::Success)], "{kind:?} of {len} bytes");
        let is_changed = a.mr.read(0, len as usize) != b.mr.read(FAR as usize, len as usize);
        assert_eq!(is_changed, is_accepted, "{kind:?} of {len} bytes: an ordinary packet is sent again");
    }
}

#[test]
fn a_partial_icrc_is_accepted_only_from_a_jumbo_peer() {
    for (takes_jumbo, reason) in [(true, None), (false, Some(DropReason::Malformed))] {
        let pair = PairSetup { jumbo: [takes_jumbo; 2], psn_a: Psn::new(7), ..setup() }.connect();
        exchange(&pair, Kind::Write, 1, 8);
        let (from, to) = (&pair.a, &pair.b);
        let route = Route { sgid: from.node.gid(), dgid: to.node.gid(), hop_limit: 64, ..Route::default() };
        let opcode = Opcode::new(Service::Rc, Operation::WriteOnly);
        let bth = Bth { partial_icrc: true, jumbo: true, ..Bth::new(opcode, to.qp.qpn, Psn::new(8)) };
        let reth = Some(Reth { addr: to.mr.addr(FAR), rkey: to.mr.rkey, len: 8 });
        pair.world.inject(&route, &Headers { reth, ..Headers::new(bth) }, &[0xee; 8]);
        pair.run();
        let is_written = to.mr.read(FAR as usize, 8) == [0xee; 8];
        let dropped = pair.world.journal().drops(to.node.id, DropReason::Malformed);
        assert_eq!((is_written, dropped), (reason.is_none(), usize::from(reason.is_some())));
        // The same for a response, at the requester.
        let psn = from.qp.query().sq_psn;
        let opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
        let bth = Bth { partial_icrc: true, jumbo: true, ..Bth::new(opcode, from.qp.qpn, psn.minus(1)) };
        let aeth = Some(Aeth { syndrome: Syndrome::ACK_NO_CREDIT, msn: 0 });
        let back = Route { sgid: route.dgid, dgid: route.sgid, ..route };
        pair.world.inject(&back, &Headers { aeth, ..Headers::new(bth) }, &[]);
        pair.run();
        let dropped = pair.world.journal().drops(from.node.id, DropReason::Malformed);
        assert_eq!(dropped, usize::from(reason.is_some()));
    }
}

#[test]
fn the_first_message_of_a_connection_keeps_to_the_path_mtu() {
    let pair = setup().connect();
    exchange(&pair, Kind::Write, 1, 10 * MTU);
    assert_eq!(pair.a.qp.counters().tx_packets, 10);
    exchange(&pair, Kind::Write, 2, 10 * MTU);
    assert_eq!(pair.a.qp.counters().tx_packets, 11);
}

#[test]
fn an_end_without_jumbo_packets_neither_sends_nor_receives_them() {
    // One end takes part, the other does not; in both roles.
    for (kind, a_takes) in
        [Kind::Send, Kind::Write, Kind::Read].into_iter().flat_map(|k| [(k, true), (k, false)])
    {
        let pair = PairSetup { jumbo: [a_takes, !a_takes], ..setup() }.connect();
        for id in 1..4 {
            exchange(&pair, kind, id, 5 * MTU);
        }
        let counters = if kind == Kind::Read { pair.b.qp.counters() } else { pair.a.qp.counters() };
        assert!(counters.tx_packets >= 15, "{kind:?}, {a_takes}: {}", counters.tx_packets);
        both_ready(&pair);
    }
}

#[test]
fn a_path_mtu_below_the_ports_holds() {
    let pair = PairSetup { mtu: Mtu::B512, port_mtu: Some(Mtu::B1024), ..setup() }.connect();
    for id in 1..3 {
        exchange(&pair, Kind::Write, id, 5 * MTU);
    }
    assert_eq!(pair.a.qp.counters().tx_packets, 20);
    both_ready(&pair);
}

#[test]
fn any_fault_is_repaired() {
    for seed in 0..60 {
        println!("seed {seed}");
        let pair = recognised(&PairSetup { seed, retry_cnt: 7, timeout: 12, ..setup() });
        pair.world.set_faults(Faults { reordering: 0.1, ..Faults::all(0.1) });
        for id in 0..6 {
            let kind = [Kind::Send, Kind::Write, Kind::Read][id as usize % 3];
            exchange(&pair, kind, 1 + id, LENGTHS[(seed + id) as usize % LENGTHS.len()]);
        }
        both_ready(&pair);
    }
}

#[test]
fn a_lost_packet_is_resent_alone() {
    let pair = recognised(&setup());
    let first = Psn::new(0xff_fff0).plus(1);
    let mut resent = Vec::new();
    // A first loss, repaired by going back, tells each end that the other repeats selectively.
    for (id, lost) in [(1, first.plus(1)), (2, first.plus(9))] {
        let before = pair.a.qp.counters().retransmitted;
        let rule = pair.world.rule(Rule::on(request(lost.value())).first().drop());
        exchange(&pair, Kind::Write, id, 400_000);
        rule.once();
        resent.push(pair.a.qp.counters().retransmitted - before);
    }
    assert!((1..=4).contains(&resent[0]), "{resent:?}");
    assert_eq!((resent[1], pair.a.qp.counters().timeouts), (1, 0), "{resent:?}");
    both_ready(&pair);
}

#[test]
fn a_lost_response_is_requested_again_alone() {
    let pair = recognised(&setup());
    let lost = Rule::on(op(Operation::ReadResponseOnly)).nth(3).drop();
    let rule = pair.world.rule(lost);
    exchange(&pair, Kind::Read, 1, 400_000);
    rule.once();
    assert_eq!(pair.a.qp.counters().retransmitted, 1);
    both_ready(&pair);
}

/// Packets are counted, and a short message takes one as a long message does.
#[test]
fn short_messages_without_acknowledgement_do_not_block_a_long_one() {
    for kind in [Kind::Write, Kind::Read] {
        // So few of them request no acknowledgement by themselves.
        for count in [3, 14, 60] {
            let pair = recognised(&setup());
            exchange(&pair, Kind::Write, 1, 8);
            let (a, b) = (&pair.a, &pair.b);
            let start = pair.world.now();
            for id in 0..count {
                a.qp.post(Wr::write(100 + id, &b.mr, FAR).sge(a.sge(0, 8)).unsignaled());
            }
            exchange(&pair, kind, 2, 1 << 20);
            let counters = a.qp.counters();
            assert_eq!(
                (counters.probes, counters.timeouts, counters.retransmitted),
                (0, 0, 0),
                "{count}, {kind:?}"
            );
            let round_trips = pair.world.now().since_ns(start) / (2 * LATENCY_NS);
            assert!(round_trips < 100, "{count}, {kind:?}: {round_trips} round trips");
            both_ready(&pair);
        }
    }
}

#[test]
fn a_window_holds_four_packets_at_least() {
    for window in [8 * 1024, 64 * 1024, 100_000] {
        let pair = recognised(&PairSetup { window, ..setup() });
        let before = pair.a.qp.counters().tx_packets;
        exchange(&pair, Kind::Write, 1, 400_000);
        let longest = (window / 4 / MTU * MTU).max(MTU);
        let sent = pair.a.qp.counters().tx_packets - before;
        assert_eq!(sent, u64::from(400_000_u32.div_ceil(longest)), "{window}");
    }
}

#[test]
fn a_piggybacked_acknowledgement_announces_them() {
    let pair = setup().connect();
    pair.a.node.delay_acks(100_000);
    pair.b.node.delay_acks(100_000);
    let sent = || pair.world.journal().packets().filter(|(p, _)| p.opcode.operation.is_request()).count();
    // Each message answers the one before, so it carries the acknowledgement.
    let packets = [0, 1, 2, 3, 4, 5].map(|id| {
        let before = sent();
        let (from, to) = if id % 2 == 0 { (&pair.a, &pair.b) } else { (&pair.b, &pair.a) };
        to.post_recv(id, FAR, 5 * MTU);
        from.qp.post(Wr::send(id).sge(from.sge(0, 5 * MTU)));
        while to.recv_cq.drain().is_empty() {
            pair.world.run_for(1_000);
        }
        sent() - before
    });
    assert_eq!(packets, [5, 5, 1, 1, 1, 1]);
    pair.run();
    let acks =
        pair.world.journal().packets().filter(|(p, _)| p.opcode.operation == Operation::Acknowledge).count();
    assert!(acks <= 3, "{acks}: the first, and the last of each end");
}

#[test]
fn ends_with_different_path_mtus_are_told_so() {
    // The path MTUs are those of the ports, so each end alone would exchange jumbo packets.
    let world = World::new(1);
    let [setup_a, setup_b] = [Mtu::B1024, Mtu::B512].map(|mtu| PairSetup { mtu, ..setup() });
    let a = setup_a.endpoint(&world.node(), setup_a.psn_a);
    let b = setup_b.endpoint(&world.node(), setup_b.psn_b);
    a.qp.connect(&setup_a, &b.qp, setup_a.psn_a, setup_a.psn_b);
    b.qp.connect(&setup_b, &a.qp, setup_b.psn_b, setup_b.psn_a);
    let pair = Pair { world, a, b };
    exchange(&pair, Kind::Write, 1, 8);
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(2, WcStatus::RemInvReqErr)]);
}

#[test]
fn a_foreign_peer_gets_none() {
    let pair = setup().connect();
    // A foreign requester sets no reserved bits; the responder answers without them.
    pair.world.rule(Rule::on(is_request).rewrite(|bytes| bytes[8] &= 0x80));
    for id in 1..4 {
        exchange(&pair, Kind::Write, id, 4 * MTU);
    }
    assert_eq!(pair.a.qp.counters().tx_packets, 12);
    both_ready(&pair);
}

#[test]
fn a_jumbo_packet_without_hello_is_refused() {
    let pair = setup().connect();
    // The requester is told that it may send them, the responder knows nothing of it.
    pair.world.rule(Rule::on(is_request).rewrite(|bytes| bytes[8] &= 0x80));
    pair.world.rule(Rule::on(is_ack).rewrite(|bytes| bytes[8] |= 0x0c));
    exchange(&pair, Kind::Write, 1, 4 * MTU);
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 4 * MTU)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(2, WcStatus::RemInvReqErr)]);
}
