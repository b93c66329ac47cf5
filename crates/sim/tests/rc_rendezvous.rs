//! Rendezvous sends on a reliable connection. Such a message is one record that refers to memory. If the record cannot be used,
//! packets carry the message; programs see no difference.

mod support;

use ferroce_proto::Psn;
use ferroce_proto::qp::RefusalReason;
use ferroce_proto::verbs::{Mtu, QpState, WcStatus};
use ferroce_proto::wire::{Operation, RendezvousSend, SourceRef};
use ferroce_sim::filter::{is_request, is_sequence_nak, op};
use ferroce_sim::{Faults, LATENCY_NS, Pair, PairSetup, Rule, Wr};
use support::{FAR, SEND, SEND_IMM, both_ready, size_classes};

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, psn_a: Psn::new(0xff_fff0), ..PairSetup::rc() }
}

/// A pair in which `a` sends rendezvous sends. `b` declines every `decline_every`-th fetch.
fn connect(setup: &PairSetup, decline_every: u64) -> Pair {
    let pair = setup.connect();
    pair.a.node.enable_rendezvous(0);
    pair.b.node.enable_rendezvous(decline_every);
    pair
}

fn requests(pair: &Pair) -> usize {
    pair.world.journal().packets().filter(|(p, _)| p.opcode.operation.is_request()).count()
}

#[test]
fn a_message_of_any_length_is_one_record() {
    for script in [SEND, SEND_IMM] {
        for len in size_classes(Mtu::B256) {
            let pair = connect(&setup(), 0);
            (script.start)(&pair, len);
            pair.run();
            (script.check)(&pair, len);
            let is_long = u64::from(len > 256);
            assert_eq!(
                (pair.a.node.rendezvous_counts().0, pair.b.node.rendezvous_counts().1),
                (is_long, is_long),
                "{len} bytes"
            );
            assert_eq!(requests(&pair), 1);
            assert_eq!(pair.b.qp.counters().rx_packets, u64::from(len.div_ceil(256).max(1)));
            both_ready(&pair);
        }
    }
}

#[test]
fn a_message_that_cannot_be_fetched_is_sent_as_packets() {
    for script in [SEND, SEND_IMM] {
        let pair = connect(&setup(), 1);
        (script.start)(&pair, 2000);
        pair.run();
        (script.check)(&pair, 2000);
        assert_eq!(requests(&pair), 1 + 8);
        assert_eq!(pair.a.qp.counters().timeouts, 0, "it was asked for");
        both_ready(&pair);
    }
}

#[test]
fn one_nak_repairs_a_sequence_of_rendezvous_sends() {
    let pair = connect(&setup(), 3);
    for n in 0..10 {
        pair.b.post_recv(n, FAR + n * 2048, 2048);
        pair.a.qp.post(Wr::send(n).sge(pair.a.sge(n * 1000, 1000)));
    }
    pair.run();
    let all: Vec<_> = (0..10).map(|n| (n, WcStatus::Success)).collect();
    assert_eq!((pair.a.send_cq.statuses(), pair.b.recv_cq.statuses()), (all.clone(), all));
    for n in 0..10 {
        let got = pair.b.mr.read((FAR + n * 2048) as usize, 1000);
        assert!(pair.a.mr.read(n as usize * 1000, 1000) == got, "message {n}");
    }
    assert_eq!(pair.b.qp.counters().naks_sent, 1);
    assert_eq!(pair.a.node.rendezvous_counts().0, 10);
    assert_eq!(requests(&pair), 10 + 8 * 4, "the third, and those behind it");
    both_ready(&pair);
}

#[test]
fn without_a_receive_it_is_retransmitted() {
    for srq in [false, true] {
        let pair = connect(&PairSetup { srq, ..setup() }, 0);
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
        pair.a.qp.post(Wr::send(2).sge(pair.a.sge(1000, 600)));
        pair.world.run_for(3 * LATENCY_NS);
        assert_eq!(pair.b.qp.counters().rnr_sent, 1);
        pair.b.post_recv(9, FAR, 1000);
        pair.b.post_recv(10, FAR + 1000, 1000);
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
        assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::Success), (10, WcStatus::Success)]);
        assert!(pair.a.mr.read(0, 1600) == pair.b.mr.read(FAR as usize, 1600));
        assert_eq!(pair.a.qp.counters().timeouts, 0);
    }
}

#[test]
fn a_receive_that_is_too_small_ends_both() {
    let pair = connect(&setup(), 0);
    pair.b.post_recv(9, FAR, 999);
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RemInvReqErr)]);
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::LocLenErr)]);
    assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Err));
    assert_eq!(pair.b.node.refusals(RefusalReason::ReceiveTooSmall), 1);
}

#[test]
fn memory_faults_of_either_end_are_reported_as_with_packets() {
    let pair = connect(&setup(), 0);
    pair.b.post_recv(9, FAR, 1000);
    pair.b.mr.deregister();
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RemOpErr)]);
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::LocProtErr)]);

    let pair = connect(&setup(), 0);
    pair.b.post_recv(9, FAR, 1000);
    pair.a.mr.deregister();
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::LocProtErr)]);
    assert_eq!(pair.a.node.rendezvous_counts().0, 0);
}

#[test]
fn several_entries_on_both_sides() {
    for pieces in 1..=SourceRef::MAX_PIECES as u64 + 2 {
        let pair = connect(&setup(), 0);
        let sges = |end: &ferroce_sim::Endpoint, at: u64, len: u32, count: u64| {
            (0..count).map(|k| end.sge(at + k * 3000, len)).collect::<Vec<_>>()
        };
        pair.b.qp.post_recv(9, &sges(&pair.b, FAR, 700, 5)).unwrap();
        pair.a.qp.post(Wr::send(1).sges(sges(&pair.a, 0, 500, pieces)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(u64::from(pair.b.recv_cq.only().byte_len), 500 * pieces);
        let joined = |end: &ferroce_sim::Endpoint, at: usize, len: usize, count: usize| {
            (0..count).flat_map(|k| end.mr.read(at + k * 3000, len)).collect::<Vec<_>>()
        };
        let sent = joined(&pair.a, 0, 500, pieces as usize);
        assert!(joined(&pair.b, FAR as usize, 700, 5)[..sent.len()] == sent[..]);
        assert_eq!(
            pair.a.node.rendezvous_counts().0,
            u64::from(pieces <= SourceRef::MAX_PIECES as u64),
            "{pieces} entries"
        );
    }
}

#[test]
fn lost_duplicated_or_late_it_arrives_once() {
    let is_rendezvous = op(Operation::SendOnly);
    let rules = [
        Rule::on(is_rendezvous).first().drop(),
        Rule::on(is_rendezvous).copy_after(3000),
        Rule::on(is_rendezvous).nth(2).delay(50_000),
        Rule::on(is_sequence_nak).first().drop(),
    ];
    for (number, rule) in rules.into_iter().enumerate() {
        let pair = connect(&setup(), if number == 3 { 2 } else { 0 });
        let hits = pair.world.rule(rule);
        for n in 0..5 {
            pair.b.post_recv(n, FAR + n * 2048, 2048);
            pair.a.qp.post(Wr::send(n).sge(pair.a.sge(n * 1000, 1000)));
        }
        pair.run();
        assert!(hits.hits() > 0, "rule {number}");
        let all: Vec<_> = (0..5).map(|n| (n, WcStatus::Success)).collect();
        assert_eq!((pair.a.send_cq.statuses(), pair.b.recv_cq.statuses()), (all.clone(), all));
        for n in 0..5 {
            let got = pair.b.mr.read((FAR + n * 2048) as usize, 1000);
            assert!(pair.a.mr.read(n as usize * 1000, 1000) == got, "message {n}");
        }
        both_ready(&pair);
    }
}

/// Numbers that a correct local peer would not send.
#[test]
fn psn_counts_that_do_not_match_the_length_are_dropped() {
    let change = |packets: u32| {
        move |bytes: &mut Vec<u8>| {
            let Some((mut head, source)) = RendezvousSend::parse(bytes) else { return };
            head.packets = packets;
            let (record, len) = head.to_bytes(&source);
            *bytes = record[..len].to_vec();
        }
    };
    for packets in [0, 2, 3, 5, u32::MAX] {
        let pair = connect(&setup(), 0);
        let hits = pair.world.rule(Rule::on(is_request).first().rewrite(change(packets)));
        pair.b.post_recv(9, FAR, 1000);
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 1000)));
        pair.run();
        assert_eq!(hits.hits(), 1);
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)], "its packets came");
        assert_eq!(pair.b.node.rendezvous_counts().1, 0);
    }
}

/// Messages both ways, each answered by one, on a network that loses a few: rendezvous sends carry piggybacked ACKs, too.
#[test]
fn rendezvous_sends_carry_piggybacked_acks() {
    for faults in [Faults::default(), Faults::all(0.03)] {
        let pair = connect(&setup(), 5);
        pair.a.node.delay_acks(20_000);
        pair.b.node.delay_acks(20_000);
        pair.world.set_faults(faults);
        for round in 0..200 {
            for (from, to) in [(&pair.a, &pair.b), (&pair.b, &pair.a)] {
                to.post_recv(round, FAR, 1000);
                from.qp.post(Wr::send(round).sge(from.sge(round * 7, 1000)));
                let came = (0..1_000_000).any(|_| {
                    pair.world.run_for(500);
                    to.recv_cq.poll().is_some_and(|c| c.status == WcStatus::Success && c.wr_id == round)
                });
                assert!(came, "message {round} did not come");
                assert!(to.mr.read(FAR as usize, 1000) == from.mr.read(round as usize * 7, 1000));
            }
        }
        pair.run();
        let all: Vec<_> = (0..200).map(|round| (round, WcStatus::Success)).collect();
        assert_eq!((pair.a.send_cq.statuses(), pair.b.send_cq.statuses()), (all.clone(), all));
        let (named, _) = pair.a.node.rendezvous_counts();
        assert!(named > 150, "{named} of 200");
        both_ready(&pair);
    }
}

/// Through rings, one packet carries up to 32 KiB. It cannot be kept like a packet of the wire.
#[test]
fn a_large_packet_behind_a_declined_rendezvous_send_is_sent_again() {
    let pair = connect(&PairSetup { window: 1 << 20, ..setup() }, 1);
    pair.a.node.enable_large_packets();
    pair.b.node.enable_large_packets();
    for (n, len) in [(0, 2000), (1, 200), (2, 1000)] {
        pair.b.post_recv(n, FAR + n * 2048, 2048);
        let wr = Wr::send(n);
        // Inline data is never sent by rendezvous.
        pair.a.qp.post(if n == 2 { wr.inline(&[7; 500]) } else { wr.sge(pair.a.sge(n * 2048, len)) });
    }
    pair.run();
    let all: Vec<_> = (0..3).map(|n| (n, WcStatus::Success)).collect();
    assert_eq!((pair.a.send_cq.statuses(), pair.b.recv_cq.statuses()), (all.clone(), all));
    assert!(pair.b.mr.read((FAR + 2 * 2048) as usize, 500) == [7; 500]);
    both_ready(&pair);
}
