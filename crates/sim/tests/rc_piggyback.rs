//! Reliable connection: extensions between two ferroce ends. Requests carry piggybacked ACKs, and the packets of a short
//! WRITE and the responses to a READ have equal length.

mod support;

use ferroce_proto::Psn;
use ferroce_proto::verbs::{Mtu, WcStatus};
use ferroce_proto::wire::PiggybackedAck;
use ferroce_sim::filter::{Seen, is_ack, is_request, is_response};
use ferroce_sim::{Faults, Pair, PairSetup, Rule, Wr};
use std::cell::RefCell;
use std::rc::Rc;
use support::both_ready;

const LEN: u32 = 8;
/// Longer than a program takes to answer, shorter than any timer.
const ACK_DELAY_NS: u64 = 20_000;
/// In pieces of the virtual time that a packet takes.
const STEP_NS: u64 = 500;

fn carries(seen: &Seen<'_>) -> bool {
    seen.packet.headers.piggybacked_ack.is_some()
}

fn is_marked(seen: &Seen<'_>) -> bool {
    seen.packet.headers.bth.extended
}

fn has_hello(seen: &Seen<'_>) -> bool {
    seen.packet.headers.bth.hello
}

/// Changes the reserved bits of the packets for which `of` holds.
fn reserved(of: impl Fn(&Seen<'_>) -> bool + 'static, bits: u8) -> Rule {
    Rule::on(of).rewrite(move |bytes| bytes[8] = bytes[8] & 0x81 | bits)
}

fn connect(setup: &PairSetup) -> Pair {
    let pair = setup.connect();
    for end in [&pair.a, &pair.b] {
        end.node.delay_acks(ACK_DELAY_NS);
    }
    pair
}

/// Messages to and fro, each sent when the one before has come; every send is signalled.
fn ping_pong(pair: &Pair, rounds: u64, len: u32) {
    for round in 0..rounds {
        for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
            to.post_recv(round, 4096, len);
            from.qp.post(Wr::send(round).sge(from.sge(round % 64 * 8, len)));
            let came = (0..1_000_000).any(|_| {
                pair.world.run_for(STEP_NS);
                to.recv_cq.poll().is_some_and(|c| c.status == WcStatus::Success && c.wr_id == round)
            });
            assert!(came, "message {round} did not come");
            assert_eq!(to.mr.read(4096, len as usize), from.mr.read((round % 64 * 8) as usize, len as usize));
        }
    }
    pair.run();
    let all: Vec<_> = (0..rounds).map(|round| (round, WcStatus::Success)).collect();
    assert_eq!((pair.a.send_cq.statuses(), pair.b.send_cq.statuses()), (all.clone(), all));
    both_ready(pair);
}

#[test]
fn a_ping_pong_takes_one_packet_each_way() {
    let setup = PairSetup { psn_a: Psn::new(0xff_fff0), ..PairSetup::rc() };
    let pair = connect(&setup);
    let (acks, carriers) = (pair.world.rule(Rule::on(is_ack)), pair.world.rule(Rule::on(carries)));
    ping_pong(&pair, 100, LEN);
    // The first message of each side precedes the hello of its peer, and no message answers the last one.
    println!("{} acknowledgements, {} piggybacked ACKs", acks.hits(), carriers.hits());
    assert!(acks.hits() <= 4 && carriers.hits() >= 196, "{} {}", acks.hits(), carriers.hits());
    let (a, b) = (pair.a.qp.counters(), pair.b.qp.counters());
    assert_eq!((a.acks_sent, b.acks_sent), (100, 100));
    assert_eq!((a.retransmitted, b.retransmitted), (0, 0));
}

/// An ACK after which nothing is in flight sets no timer, and a short round trip need not be measured each time.
#[test]
fn a_ping_pong_rarely_reads_the_clock() {
    let pair = connect(&PairSetup::rc());
    ping_pong(&pair, 320, LEN);
    let (a, b) = (pair.a.node.received(), pair.b.node.received());
    let (packets, reads) = (a.0 + b.0, a.1 + b.1);
    assert!(packets >= 640, "{packets}");
    assert!((1..=packets / 12).contains(&reads), "{reads} of {packets}");
}

#[test]
fn a_foreign_peer_never_receives_a_piggybacked_ack() {
    let pair = connect(&PairSetup::rc());
    // The hello bit of every request is cleared, as on the requests of a foreign end.
    let hello = |s: &Seen<'_>| is_request(s) && has_hello(s);
    let requests = pair.world.rule(reserved(hello, 0));
    let answers = pair.world.rule(Rule::on(|s: &Seen<'_>| is_ack(s) && has_hello(s)));
    let marked = pair.world.rule(Rule::on(is_marked));
    ping_pong(&pair, 100, LEN);
    assert_eq!((marked.hits(), answers.hits()), (0, 0));
    assert_eq!(requests.hits(), 2, "a foreign end sees the bit on the first request only");
}

/// A foreign end may set reserved bits. No message loses payload, and the answers are as specified.
#[test]
fn reserved_bits_of_a_foreign_end_cost_no_payload() {
    for bits in [0x02, 0x06, 0x0a, 0x7e] {
        for len in [LEN / 2, LEN, 64] {
            let pair = connect(&PairSetup::rc());
            pair.world.rule(reserved(is_request, bits));
            let hello = pair.world.rule(Rule::on(|s: &Seen<'_>| is_ack(s) && has_hello(s)));
            ping_pong(&pair, 20, len);
            assert_eq!(hello.hits(), 0, "reserved bits {bits:#x}");
        }
        let pair = connect(&PairSetup::rc());
        pair.world.rule(reserved(is_request, bits));
        let lengths = lengths(&pair, is_response);
        reads(&pair, 4, 4096);
        assert!(lengths.take().chunks(4).all(|m| m == [1024 + 16, 1024 + 12, 1024 + 12, 1024 + 16]));
        writes(&pair, 4, 4096);
    }
}

/// A foreign end that sets the hello bit and never the extended bit counts as a ferroce end. As requester it still receives specified packets,
/// except for the hello bit of the answers, which it ignores, and the reason in NAKs that end the connection.
#[test]
fn the_hello_bit_alone_of_a_foreign_requester_costs_nothing() {
    for bits in [0x04, 0x7c] {
        // The first rule that fits decides, so what only observes comes before.
        let foreign = || {
            let pair = connect(&PairSetup::rc());
            let seen = [is_marked, is_response, is_request].map(|of| lengths(&pair, of));
            pair.world.rule(reserved(is_request, bits));
            let is_answer = |s: &Seen<'_>| is_ack(s) || is_response(s);
            let hello = pair.world.rule(reserved(move |s| is_answer(s) && has_hello(s), 0));
            (pair, hello, seen)
        };
        for len in [LEN / 2, LEN, 64] {
            let (pair, hello, [marked, ..]) = foreign();
            ping_pong(&pair, 20, len);
            assert!(hello.hits() > 0, "its hello is answered");
            assert_eq!(marked.take(), [0; 0], "reserved bits {bits:#x}");
        }
        let (pair, hello, [marked, responses, requests]) = foreign();
        reads(&pair, 4, 4096);
        assert!(hello.hits() > 0);
        assert_eq!(responses.take(), [1024 + 16, 1024 + 12, 1024 + 12, 1024 + 16].repeat(4));
        requests.take();
        writes(&pair, 4, 4096);
        assert_eq!(requests.take(), [1024 + 28, 1024 + 12, 1024 + 12, 1024 + 12].repeat(4));
        assert_eq!(marked.take(), [0; 0]);
    }
}

/// The same for the reserved bits of its answers.
#[test]
fn reserved_bits_of_a_foreign_responder_cost_no_payload() {
    for bits in [0x02, 0x06, 0x7e] {
        let pair = connect(&PairSetup::rc());
        pair.world.rule(reserved(|s| is_ack(s) || is_response(s), bits));
        let marked = pair.world.rule(Rule::on(|s: &Seen<'_>| is_request(s) && is_marked(s)));
        reads(&pair, 4, 4096);
        ping_pong(&pair, 4, LEN);
        assert_eq!(marked.hits(), 0, "reserved bits {bits:#x}");
    }
}

#[test]
fn an_ack_of_an_acknowledged_psn_announces_nothing() {
    let pair = connect(&PairSetup::rc());
    let marked = pair.world.rule(Rule::on(|s: &Seen<'_>| is_request(s) && is_marked(s)));
    // A forged ACK with a PSN that is not in flight. The real ACK is lost, and the others have no extended bit.
    let forged = pair.world.rule(Rule::on(is_ack).nth(5).rewrite(|bytes| {
        let psn = u32::from_be_bytes([0, bytes[9], bytes[10], bytes[11]]) - 1;
        bytes[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
    }));
    pair.world.rule(Rule::on(is_ack).rewrite(|bytes| bytes[8] &= 0x81));
    ping_pong(&pair, 20, LEN);
    forged.once();
    assert_eq!(marked.hits(), 0);
}

#[test]
fn a_lost_piggybacked_ack_is_a_lost_acknowledgement() {
    for (seed, nth) in (1..20).enumerate() {
        let pair = connect(&PairSetup { seed: seed as u64, ..PairSetup::rc() });
        let lost = pair.world.rule(Rule::on(carries).nth(nth).drop());
        ping_pong(&pair, 20, LEN);
        lost.once();
    }
}

#[test]
fn faults_do_not_change_the_result() {
    for seed in 0..20 {
        println!("seed {seed}");
        let pair = connect(&PairSetup { seed, ..PairSetup::rc() });
        let carriers = pair.world.rule(Rule::on(carries));
        pair.world.set_faults(Faults { reordering: 0.1, ..Faults::all(0.03) });
        ping_pong(&pair, 60, LEN);
        assert!(carriers.hits() > 0);
    }
}

#[test]
fn no_packet_exceeds_the_mtu_with_a_piggybacked_ack() {
    let mtu = Mtu::B256.bytes();
    for (len, rides) in [
        (mtu - PiggybackedAck::LEN as u32, true),
        (mtu - PiggybackedAck::LEN as u32 + 1, false),
        (3 * mtu, false),
    ] {
        let pair = connect(&PairSetup { mtu: Mtu::B256, ..PairSetup::rc() });
        let carriers = pair.world.rule(Rule::on(carries));
        ping_pong(&pair, 20, len);
        assert_eq!(carriers.hits() > 0, rides, "{len} bytes");
    }
}

/// Notes the lengths of packets.
fn lengths(pair: &Pair, of: fn(&Seen<'_>) -> bool) -> Rc<RefCell<Vec<usize>>> {
    let lengths = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&lengths);
    pair.world.rule(Rule::on(move |s: &Seen<'_>| {
        if of(s) {
            seen.borrow_mut().push(s.packet.headers.encoded_len() + s.packet.payload.len());
        }
        false
    }));
    lengths
}

/// READs of so many bytes each.
fn reads(pair: &Pair, count: u64, len: u32) {
    for id in 0..count {
        pair.a.qp.post(Wr::read(id, &pair.b.mr, id * 16).sge(pair.a.sge(128 * 1024, len)));
        pair.run();
        let (near, far) =
            (pair.a.mr.read(128 * 1024, len as usize), pair.b.mr.read(id as usize * 16, len as usize));
        assert!(near == far, "READ {id} differs");
    }
    assert!(pair.a.send_cq.statuses().iter().all(|(_, status)| *status == WcStatus::Success));
    both_ready(pair);
}

#[test]
fn responses_to_a_read_are_equally_long() {
    let pair = connect(&PairSetup::rc());
    let lengths = lengths(&pair, is_response);
    reads(&pair, 4, 4096);
    let lengths = lengths.take();
    let (before, after) = lengths.split_at(4);
    assert_eq!(before, [1024 + 16, 1024 + 12, 1024 + 12, 1024 + 16], "nothing is known about the peer");
    assert_eq!(after, [1024 + 16; 12]);
}

#[test]
fn responses_to_a_foreign_peer_are_as_specified() {
    let pair = connect(&PairSetup::rc());
    let lengths = lengths(&pair, is_response);
    let marked = pair.world.rule(Rule::on(|s: &Seen<'_>| is_request(s) && is_marked(s)));
    let answers = pair.world.rule(reserved(|s| is_response(s) && has_hello(s), 0));
    reads(&pair, 20, 4096);
    let lengths = lengths.take();
    assert_eq!((marked.hits(), answers.hits()), (0, 40), "the first and the last response to each READ");
    assert!(lengths.chunks(4).all(|m| m == [1024 + 16, 1024 + 12, 1024 + 12, 1024 + 16]), "{lengths:?}");
}

#[test]
fn equally_long_responses_survive_faults() {
    for seed in 0..10 {
        let pair = connect(&PairSetup { seed, ..PairSetup::rc() });
        pair.world.set_faults(Faults { reordering: 0.1, ..Faults::all(0.03) });
        reads(&pair, 30, 7000);
    }
}

/// Writes of so many bytes each; returns the lengths of all request packets behind the BTH.
fn writes(pair: &Pair, count: u64, len: u32) -> Vec<usize> {
    let lengths = lengths(pair, is_request);
    for id in 0..count {
        pair.a.qp.post(Wr::write(id, &pair.b.mr, 128 * 1024).sge(pair.a.sge(id * 16, len)));
        pair.run();
        let (near, far) =
            (pair.a.mr.read(id as usize * 16, len as usize), pair.b.mr.read(128 * 1024, len as usize));
        assert!(near == far, "write {id} differs");
    }
    assert!(pair.a.send_cq.statuses().iter().all(|(_, status)| *status == WcStatus::Success));
    both_ready(pair);
    lengths.take()
}

#[test]
fn packets_of_a_short_write_are_equally_long() {
    let pair = connect(&PairSetup::rc());
    let lengths = writes(&pair, 4, 4096);
    let (before, after) = lengths.split_at(4);
    assert_eq!(before, [1024 + 28, 1024 + 12, 1024 + 12, 1024 + 12], "nothing is known about the peer");
    assert_eq!(after, [1024 + 28; 12]);
}

#[test]
fn packets_of_a_write_to_a_foreign_peer_are_as_specified() {
    let pair = connect(&PairSetup::rc());
    pair.world.rule(Rule::on(is_ack).rewrite(|bytes| bytes[8] &= 0x81));
    let lengths = writes(&pair, 8, 4096);
    assert!(lengths.chunks(4).all(|m| m == [1024 + 28, 1024 + 12, 1024 + 12, 1024 + 12]), "{lengths:?}");
}

#[test]
fn equally_long_packets_survive_faults() {
    for seed in 0..10 {
        let pair = connect(&PairSetup { seed, ..PairSetup::rc() });
        pair.world.set_faults(Faults { reordering: 0.1, ..Faults::all(0.03) });
        writes(&pair, 30, 7000);
    }
}

#[test]
fn a_write_of_several_packets_is_refused_as_a_whole() {
    let pair = connect(&PairSetup::rc());
    writes(&pair, 2, 4096);
    let end = PairSetup::rc().memory as u64;
    let before = pair.b.mr.read(end as usize - 2048, 2048);
    pair.a.qp.post(Wr::write(9, &pair.b.mr, end - 2048).sge(pair.a.sge(0, 4096)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(9, WcStatus::RemAccessErr)]);
    assert_eq!(pair.b.mr.read(end as usize - 2048, 2048), before, "nothing of it was written");
}
