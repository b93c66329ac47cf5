//! Reliable connection on a network that reorders: READ responses are placed at their offset in any order, and only the
//! missing ones are requested again.

mod support;

use ferroce_proto::Psn;
use ferroce_proto::qp::DropReason;
use ferroce_proto::verbs::{Mtu, WcStatus};
use ferroce_sim::filter::{is_request, response};
use ferroce_sim::{Faults, Pair, PairSetup, Rule, Wr};
use support::both_ready;

const READS: u64 = 24;
const LEN: u32 = 100_001;
const FAR: u64 = READS * 128 * 1024;

fn setup() -> PairSetup {
    PairSetup {
        mtu: Mtu::B1024,
        psn_a: Psn::new(0xff_ff00),
        window: 256 * 1024,
        memory: 2 * FAR as usize,
        ..PairSetup::rc()
    }
}

/// READs with an atomic and a WRITE among them, each with memory of its own.
fn post(pair: &Pair) {
    let (a, b) = (&pair.a, &pair.b);
    for id in 0..READS {
        let at = id * 128 * 1024;
        a.qp.post(Wr::read(id, &b.mr, FAR + at).sge(a.sge(at, LEN)));
        if id % 6 == 2 {
            a.qp.post(Wr::fetch_add(100 + id, &b.mr, 0, 1).sge(a.sge(at + 120_000, 8)));
            a.qp.post(Wr::write(200 + id, &b.mr, 64).sge(a.sge(FAR, 3000)));
        }
    }
}

fn check(pair: &Pair) {
    let expected: Vec<_> = (0..READS)
        .flat_map(|id| if id % 6 == 2 { vec![id, 100 + id, 200 + id] } else { vec![id] })
        .map(|id| (id, WcStatus::Success))
        .collect();
    assert_eq!(pair.a.send_cq.statuses(), expected, "completions keep the order of posting");
    for id in 0..READS as usize {
        let at = id * 128 * 1024;
        let (near, far) = (pair.a.mr.read(at, LEN as usize), pair.b.mr.read(FAR as usize + at, LEN as usize));
        assert!(near == far, "READ {id} differs");
    }
    assert_eq!(pair.b.node.atomics_run(), READS / 6);
    both_ready(pair);
}

fn run(setup: &PairSetup, faults: Faults) -> Pair {
    let pair = setup.connect();
    pair.world.set_faults(faults);
    post(&pair);
    pair.run();
    check(&pair);
    pair
}

#[test]
fn reordering_costs_few_packets_and_no_retry() {
    let calm = run(&setup(), Faults::default()).world.packets_sent();
    for (reordering, jitter_ns) in [(0.03, 20_000), (0.25, 2_000), (0.25, 20_000), (0.25, 500_000)] {
        for seed in 0..8 {
            let faults = Faults { reordering, jitter_ns, ..Faults::default() };
            let pair = run(&PairSetup { seed, ..setup() }, faults);
            let sent = pair.world.packets_sent();
            println!("{reordering} late by {jitter_ns} ns, seed {seed}: {sent} packets instead of {calm}");
            assert!(sent < 3 * calm, "{sent} packets instead of {calm}");
            assert_eq!(pair.a.qp.counters().timeouts, 0);
        }
    }
}

#[test]
fn reads_complete_if_most_packets_are_late() {
    let calm = run(&setup(), Faults::default()).world.packets_sent();
    for seed in 0..8 {
        let faults = Faults { reordering: 0.75, jitter_ns: 20_000, ..Faults::default() };
        let sent = run(&PairSetup { seed, ..setup() }, faults).world.packets_sent();
        println!("seed {seed}: {sent} packets instead of {calm}");
        assert!(sent < 4 * calm, "{sent} packets instead of {calm}");
    }
}

#[test]
fn loss_costs_few_packets() {
    let calm = run(&setup(), Faults::default()).world.packets_sent();
    for seed in 0..10 {
        let faults = Faults { loss: 0.03, ..Faults::default() };
        let sent = run(&PairSetup { seed, ..setup() }, faults).world.packets_sent();
        println!("seed {seed}: {sent} packets instead of {calm}");
        assert!(sent < 2 * calm, "{sent} packets instead of {calm}");
    }
}

#[test]
fn all_faults_with_a_small_replay_list() {
    for max_rd_atomic in [1, 2, 16] {
        for seed in 0..10 {
            println!("{max_rd_atomic} in flight, seed {seed}");
            let setup = PairSetup { seed, max_rd_atomic, max_dest_rd_atomic: max_rd_atomic, ..setup() };
            run(&setup, Faults { reordering: 0.25, ..Faults::all(0.05) });
        }
    }
}

/// Sequence numbers of the requests that left.
fn requests(pair: &Pair) -> Vec<u32> {
    let journal = pair.world.journal();
    journal.packets().filter(|(p, _)| p.opcode.operation.is_request()).map(|(p, _)| p.psn.value()).collect()
}

fn two_reads() -> Pair {
    let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
    pair.a.qp.post(Wr::read(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 20 * 1024)));
    pair.a.qp.post(Wr::read(2, &pair.b.mr, FAR + 30_000).sge(pair.a.sge(30_000, 20 * 1024)));
    pair
}

fn both_are_there(pair: &Pair) {
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    for at in [0, 30_000] {
        assert!(pair.a.mr.read(at, 20 * 1024) == pair.b.mr.read(FAR as usize + at, 20 * 1024));
    }
    both_ready(pair);
}

#[test]
fn a_lost_response_costs_one_request_and_one_response() {
    let pair = two_reads();
    let lost = pair.world.rule(Rule::on(response(5)).first().drop());
    pair.run();
    both_are_there(&pair);
    lost.once();
    assert_eq!(requests(&pair), [0, 20, 5]);
    assert_eq!(pair.world.packets_sent(), 42 + 2);
}

#[test]
fn a_repeated_read_ends_before_the_received_part() {
    let pair = two_reads();
    let lost = [5, 6, 19, 20].map(|psn| pair.world.rule(Rule::on(response(psn)).first().drop()));
    pair.run();
    both_are_there(&pair);
    lost.iter().for_each(|rule| rule.once());
    // At most: 5 and 6; then from 5 to 19; and 20.
    assert!(pair.world.packets_sent() <= 42 + 3 + 16 + 2, "{}", pair.world.packets_sent());
}

#[test]
fn a_late_response_is_not_requested_twice() {
    let pair = two_reads();
    let late = pair.world.rule(Rule::on(response(5)).first().delay(100_000));
    pair.run();
    both_are_there(&pair);
    late.once();
    assert_eq!(requests(&pair), [0, 20, 5]);
}

#[test]
fn an_out_of_order_response_of_the_wrong_length_is_dropped() {
    let pair = two_reads();
    let lost = pair.world.rule(Rule::on(response(5)).first().drop());
    let cut = pair.world.rule(Rule::on(response(8)).first().rewrite(|bytes| bytes.truncate(bytes.len() - 4)));
    pair.run();
    both_are_there(&pair);
    lost.once();
    cut.once();
    assert_eq!(pair.world.journal().drops(pair.a.node.id, DropReason::Unfit), 1);
}

#[test]
fn an_out_of_order_response_to_a_write_is_dropped() {
    let pair = two_reads();
    pair.a.qp.post(Wr::write(3, &pair.b.mr, 0).sge(pair.a.sge(FAR, 4096)));
    pair.a.qp.post(Wr::write(4, &pair.b.mr, 0).sge(pair.a.sge(FAR, 4096)));
    let lost = pair.world.rule(Rule::on(response(5)).first().drop());
    // PSNs 40 to 47 are the WRITEs; the response to 30 claims to be one to 45.
    let forged = pair.world.rule(Rule::on(response(30)).first().rewrite(|bytes| bytes[11] = 45));
    pair.run();
    let success: Vec<_> = (1..5).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(pair.a.send_cq.statuses(), success);
    assert!(pair.a.mr.read(30_000, 20 * 1024) == pair.b.mr.read(FAR as usize + 30_000, 20 * 1024));
    lost.once();
    forged.once();
    assert_eq!(pair.world.journal().drops(pair.a.node.id, DropReason::Unfit), 1);
}

#[test]
fn reordered_requests_are_put_in_order() {
    // Each second request is late; the responder refuses what it skips.
    let calm = run(&setup(), Faults::default()).world.packets_sent();
    let pair = setup().connect();
    let mut count = 0;
    let every_second = move |seen: &ferroce_sim::filter::Seen<'_>| {
        count += u32::from(is_request(seen));
        is_request(seen) && count % 2 == 0
    };
    let late = pair.world.rule(Rule::on(every_second).delay(3_000));
    post(&pair);
    pair.run();
    check(&pair);
    assert!(late.hits() > 0);
    assert!(pair.world.packets_sent() < 3 * calm, "{} packets instead of {calm}", pair.world.packets_sent());
    assert_eq!(pair.a.qp.counters().timeouts, 0);
}
