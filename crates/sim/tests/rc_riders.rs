//! Reliable connection: acknowledgements that ride in requests, between two ferroce ends and nobody else.

mod support;

use ferroce_proto::Psn;
use ferroce_proto::verbs::{Mtu, WcStatus};
use ferroce_proto::wire::Rider;
use ferroce_sim::filter::{Seen, is_ack, is_request};
use ferroce_sim::{Faults, Pair, PairSetup, Rule, Wr};
use support::both_ready;

const LEN: u32 = 8;
/// Longer than a program takes to answer, shorter than any timer.
const PUT_OFF_NS: u64 = 20_000;
/// In pieces of the virtual time that a packet takes.
const STEP_NS: u64 = 500;

fn carries(seen: &Seen<'_>) -> bool {
    seen.packet.headers.rider.is_some()
}

fn is_marked(seen: &Seen<'_>) -> bool {
    seen.packet.headers.bth.rider
}

fn connect(setup: &PairSetup) -> Pair {
    let pair = setup.connect();
    for end in [&pair.a, &pair.b] {
        end.node.put_off_acks(PUT_OFF_NS);
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
    let (acks, riders) = (pair.world.rule(Rule::on(is_ack)), pair.world.rule(Rule::on(carries)));
    ping_pong(&pair, 100, LEN);
    // The first message of each side cannot know its peer, and nothing answers the last.
    println!("{} acknowledgements, {} riders", acks.hits(), riders.hits());
    assert!(acks.hits() <= 4 && riders.hits() >= 196, "{} {}", acks.hits(), riders.hits());
    let (a, b) = (pair.a.qp.counters(), pair.b.qp.counters());
    assert_eq!((a.acks_sent, b.acks_sent), (100, 100));
    assert_eq!((a.retransmitted, b.retransmitted), (0, 0));
}

#[test]
fn a_foreign_peer_never_sees_one() {
    let pair = connect(&PairSetup::rc());
    // Neither end shows that it reads riders, as a foreign one would not.
    let acks = pair.world.rule(Rule::on(|s: &Seen<'_>| is_ack(s) && is_marked(s)).rewrite(|b| b[8] &= 0x81));
    let marked = pair.world.rule(Rule::on(|s: &Seen<'_>| is_request(s) && is_marked(s)));
    ping_pong(&pair, 100, LEN);
    assert_eq!(marked.hits(), 0);
    assert_eq!(acks.hits(), 32, "the mark is shown to a stranger on his first acknowledgements only");
}

#[test]
fn an_answer_to_what_is_answered_shows_nothing() {
    let pair = connect(&PairSetup::rc());
    let marked = pair.world.rule(Rule::on(|s: &Seen<'_>| is_request(s) && is_marked(s)));
    // A forger, who cannot know which number is under way. The real acknowledgement is lost, and the others have no mark.
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
fn a_lost_rider_is_a_lost_acknowledgement() {
    for (seed, nth) in (1..20).enumerate() {
        let pair = connect(&PairSetup { seed: seed as u64, ..PairSetup::rc() });
        let lost = pair.world.rule(Rule::on(carries).nth(nth).drop());
        ping_pong(&pair, 20, LEN);
        lost.once();
    }
}

#[test]
fn trouble_changes_nothing() {
    for seed in 0..20 {
        println!("seed {seed}");
        let pair = connect(&PairSetup { seed, ..PairSetup::rc() });
        let riders = pair.world.rule(Rule::on(carries));
        pair.world.set_faults(Faults { reordering: 0.1, ..Faults::all(0.03) });
        ping_pong(&pair, 60, LEN);
        assert!(riders.hits() > 0);
    }
}

#[test]
fn no_packet_is_longer_for_it() {
    let mtu = Mtu::B256.bytes();
    for (len, rides) in
        [(mtu - Rider::LEN as u32, true), (mtu - Rider::LEN as u32 + 1, false), (3 * mtu, false)]
    {
        let pair = connect(&PairSetup { mtu: Mtu::B256, ..PairSetup::rc() });
        let riders = pair.world.rule(Rule::on(carries));
        ping_pong(&pair, 20, len);
        assert_eq!(riders.hits() > 0, rides, "{len} bytes");
    }
}
