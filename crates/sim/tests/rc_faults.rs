//! Reliable connection, something goes wrong with one or two packets: lost, doubled, late, damaged, held back. Whatever
//! it is and whichever packet it hits, the script ends as if nothing had happened.

mod support;

use ferroce_proto::Psn;
use ferroce_proto::qp::DropReason;
use ferroce_proto::verbs::{Access, Mtu, WcStatus};
use ferroce_sim::filter::{any, is_ack, is_request, is_response, is_sequence_nak, request};
use ferroce_sim::{LATENCY_NS, Pair, PairSetup, Rule, Wr};
use support::{ALL, Script, run};

const MTU: Mtu = Mtu::B256;

/// Small enough to try every packet, large enough to have first, middle and last ones.
const SIZES: [u32; 4] = [0, 10, 256 * 3 - 1, 256 * 5];

fn setup() -> PairSetup {
    PairSetup { mtu: MTU, psn_a: Psn::new(0xff_fffd), ..PairSetup::rc() }
}

/// Packets of the run without faults.
fn packets(script: &Script, setup: &PairSetup, len: u32) -> u64 {
    run(script, setup, len, |_| {}).world.packets_sent()
}

/// Runs every script once for every packet, with `fault` for that packet.
fn for_each_packet(setup: &PairSetup, fault: impl Fn(Rule) -> Rule) {
    for script in ALL {
        for len in SIZES {
            for target in 0..packets(script, setup, len) {
                println!("{} of {len} bytes, fault for packet {target}", script.name);
                let pair = setup.connect();
                let hit = pair.world.rule(fault(Rule::on(move |seen| seen.index == target)));
                (script.start)(&pair, len);
                pair.run();
                (script.check)(&pair, len);
                hit.once();
            }
        }
    }
}

#[test]
fn any_packet_may_be_lost() {
    for_each_packet(&setup(), Rule::drop);
}

#[test]
fn any_packet_may_be_corrupted() {
    for_each_packet(&setup(), Rule::damage);
}

#[test]
fn any_packet_may_be_lost_on_a_slow_link() {
    let setup = setup();
    for script in ALL {
        for len in SIZES {
            for target in 0..packets(script, &setup, len) + 4 {
                for depth in [1, 3] {
                    run(script, &setup, len, |pair| {
                        pair.a.node.set_link_depth(depth);
                        pair.b.node.set_link_depth(depth);
                        pair.world.rule(Rule::on(move |seen| seen.index == target).drop());
                    });
                }
            }
        }
    }
}

#[test]
fn any_packet_may_arrive_twice() {
    for_each_packet(&setup(), Rule::duplicate);
}

#[test]
fn any_packet_may_be_overtaken() {
    // Later than a few packets, than all packets, than the answer, than the first probe, than the transport timer.
    for late_ns in [25, 300, 3 * LATENCY_NS, 1_500_000, 100_000_000] {
        for_each_packet(&setup(), |rule| rule.delay(late_ns));
    }
}

#[test]
fn any_packet_may_be_overtaken_by_the_next() {
    for script in ALL {
        for len in SIZES {
            let total = packets(script, &setup(), len);
            for target in 0..total {
                let pair = setup().connect();
                let rule = Rule::on(move |seen| seen.index == target);
                let hit = pair.world.rule(rule.hold_until(move |seen| seen.index > target));
                (script.start)(&pair, len);
                pair.run();
                (script.check)(&pair, len);
                hit.once();
            }
        }
    }
}

#[test]
fn any_two_packets_may_be_lost() {
    for script in ALL {
        let len = 256 * 2 + 1;
        let total = packets(script, &setup(), len) + 6;
        for first in 0..total {
            for second in first + 1..total {
                println!("{} of {len} bytes without packets {first} and {second}", script.name);
                run(script, &setup(), len, |pair| {
                    pair.world.rule(Rule::on(move |seen| [first, second].contains(&seen.index)).drop());
                });
            }
        }
    }
}

#[test]
fn any_packet_may_be_lost_and_any_other_duplicated() {
    for script in ALL {
        let len = 256 * 2 + 1;
        let total = packets(script, &setup(), len) + 3;
        for lost in 0..total {
            for doubled in 0..total {
                println!("{} of {len} bytes, {lost} lost, {doubled} doubled", script.name);
                run(script, &setup(), len, |pair| {
                    pair.world.rule(Rule::on(move |seen| seen.index == lost).drop());
                    pair.world.rule(Rule::on(move |seen| seen.index == doubled).duplicate());
                });
            }
        }
    }
}

#[test]
fn every_packet_may_arrive_twice() {
    for script in ALL {
        for len in SIZES {
            run(script, &setup(), len, |pair| {
                pair.world.rule(Rule::on(any).duplicate());
            });
        }
    }
}

#[test]
fn every_first_try_may_be_lost() {
    for script in ALL {
        // One packet at a time gets through: each sequence number is lost once, in both directions.
        run(script, &PairSetup { retry_cnt: 7, ..setup() }, 600, |pair| {
            let mut seen_before = std::collections::BTreeSet::new();
            let key = |seen: &ferroce_sim::filter::Seen<'_>| (seen.from, seen.psn().value());
            pair.world.rule(Rule::on(move |seen| seen_before.insert(key(seen))).drop());
        });
    }
}

#[test]
fn a_run_of_losses_does_not_matter() {
    for script in ALL {
        for start in 0..6 {
            for count in [3, 7] {
                run(script, &setup(), 256 * 5, |pair| {
                    pair.world
                        .rule(Rule::on(move |seen| (start..start + count).contains(&seen.index)).drop());
                });
            }
        }
    }
}

#[test]
fn a_lost_nak_is_sent_again() {
    for script in [&support::SEND, &support::WRITE, &support::MIX] {
        let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
        let lost = pair.world.rule(Rule::on(request(1)).first().drop());
        let nak = pair.world.rule(Rule::on(is_sequence_nak).first().drop());
        (script.start)(&pair, 256 * 5);
        pair.run();
        (script.check)(&pair, 256 * 5);
        lost.once();
        nak.once();
    }
}

#[test]
fn a_gap_is_answered_with_one_nak_and_repaired_immediately() {
    let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
    let lost = pair.world.rule(Rule::on(request(2)).first().drop());
    let naks = pair.world.rule(Rule::on(is_sequence_nak));
    (support::WRITE.start)(&pair, 256 * 20);
    pair.run();
    (support::WRITE.check)(&pair, 256 * 20);
    lost.once();
    naks.once();
    let took = pair.world.journal().entries().last().unwrap().0;
    assert!(took.0 < 20 * LATENCY_NS, "no timer was needed: {} ns", took.0);
    assert_eq!(pair.a.qp.counters().timeouts, 0);
}

#[test]
fn a_later_ack_covers_lost_acks() {
    let pair = PairSetup { window: 4 * 256, ..setup() }.connect();
    let acks = pair.world.rule(Rule::on(is_ack).first().drop());
    (support::WRITE.start)(&pair, 256 * 30);
    pair.run();
    (support::WRITE.check)(&pair, 256 * 30);
    acks.once();
    assert_eq!((pair.a.qp.counters().timeouts, pair.a.qp.counters().retransmitted), (0, 0));
}

#[test]
fn responses_may_come_in_any_order() {
    // Each response is late by another amount.
    for script in ALL {
        for seed in 0..20u64 {
            run(script, &setup(), 256 * 6, |pair| {
                for k in 0..7 {
                    let late = (seed * 31 + k * 17) % 200;
                    let mut count = 0;
                    let when = move |seen: &ferroce_sim::filter::Seen<'_>| {
                        count += u64::from(is_response(seen));
                        is_response(seen) && count % 7 == k
                    };
                    pair.world.rule(Rule::on(when).delay(late));
                }
            });
        }
    }
}

#[test]
fn a_read_resumes_at_the_missing_response() {
    let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
    let lost =
        pair.world.rule(Rule::on(|seen| is_response(seen) && seen.psn() == Psn::new(5)).first().drop());
    (support::READ.start)(&pair, 256 * 10);
    pair.run();
    (support::READ.check)(&pair, 256 * 10);
    lost.once();
    let journal = pair.world.journal();
    let requests: Vec<_> = journal
        .packets()
        .filter(|(p, _)| p.opcode.operation.is_request())
        .map(|(p, _)| p.psn.value())
        .collect();
    assert_eq!(requests, [0, 5], "the second request asks for the rest only");
}

#[test]
fn a_late_copy_of_an_old_request_has_no_effect() {
    // The first packet of each script comes once more when everything is over and new work is in flight.
    for script in ALL {
        let pair = setup().connect();
        let hit = pair.world.rule(Rule::on(is_request).first().delay(50_000_000));
        (script.start)(&pair, 600);
        pair.run();
        (script.check)(&pair, 600);
        hit.once();
    }
}

#[test]
fn a_packet_that_is_always_late_does_not_end_the_connection() {
    // Late by many round trips, less than the transport timer; its successors are on time, so the peer keeps asking.
    for late_ns in [50_000, 500_000, 5_000_000] {
        for script in ALL {
            let pair = PairSetup { psn_a: Psn::new(0), timeout: 14, retry_cnt: 1, ..setup() }.connect();
            let late = pair.world.rule(Rule::on(|seen| seen.psn().value() == 2).delay(late_ns));
            (script.start)(&pair, 256 * 20);
            pair.run();
            (script.check)(&pair, 256 * 20);
            assert!(late.hits() > 0);
        }
    }
}

#[test]
fn a_late_copy_of_a_read_does_not_use_up_the_responders_resources() {
    // The copy comes when the first answer has just left; while it is answered too, the next READ arrives.
    for after_ns in (2_000..9_000).step_by(250) {
        let setup = PairSetup { max_rd_atomic: 1, max_dest_rd_atomic: 1, ..setup() };
        let pair = setup.connect();
        pair.b.node.set_link_depth(1);
        let copied = pair.world.rule(Rule::on(is_request).first().copy_after(after_ns));
        for id in 0..3 {
            pair.a.qp.post(Wr::read(id, &pair.b.mr, 0).sge(pair.a.sge(id * 65536, 65536)));
        }
        pair.a.qp.post(Wr::fetch_add(3, &pair.b.mr, 0, 1).sge(pair.a.sge(200 * 1024, 8)));
        pair.run();
        copied.once();
        let success: Vec<_> = (0..4).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(pair.a.send_cq.statuses(), success, "copy after {after_ns} ns");
        for id in 0..3 {
            assert!(pair.a.mr.read(id * 65536 + 8, 65528) == pair.b.mr.read(8, 65528));
        }
    }
}

#[test]
fn a_late_copy_of_a_read_of_deregistered_memory_is_ignored() {
    // The requester has its data and the application has freed its memory; a copy of the READ is still in the network.
    for slow in [false, true] {
        let pair = setup().connect();
        if slow {
            pair.b.node.set_link_depth(1);
        }
        let mr = pair.b.node.mr(pair.b.pd, 4096, Access::LOCAL_WRITE | Access::REMOTE);
        let copied = pair.world.rule(Rule::on(is_request).first().copy_after(1_000_000));
        pair.a.qp.post(Wr::read(1, &mr, 0).sge(pair.a.sge(0, 4096)));
        pair.world.run_for(if slow { 1_001_050 } else { 500_000 });
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
        mr.deregister();
        pair.run();
        copied.once();
        support::both_ready(&pair);
        pair.a.qp.post(Wr::write(2, &pair.b.mr, 0).sge(pair.a.sge(0, 10)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(2, WcStatus::Success)]);
    }
}

#[test]
fn corruption_is_counted_as_bad_icrc() {
    let pair = Pair::rc(MTU);
    pair.world.rule(Rule::on(is_request).first().damage());
    (support::SEND.start)(&pair, 600);
    pair.run();
    (support::SEND.check)(&pair, 600);
    assert_eq!(pair.world.journal().drops(pair.b.node.id, DropReason::BadIcrc), 1);
}
