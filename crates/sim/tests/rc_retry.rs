//! A peer that does not answer: the transport timer, its retries, and the failure after them.
//!
//! The requester also has a probe timer, an extension: once the RTT is measured, it resends an overdue tail early. Probes cost no
//! retry and do not delay the transport timer.

use ferroce_proto::qp::Reason;
use ferroce_proto::qp::state::timeout_ns;
use ferroce_proto::verbs::{Mtu, QpState, WcStatus};
use ferroce_sim::filter::{any, is_request, is_sequence_nak};
use ferroce_sim::{Pair, PairSetup, Rule, Wr};

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, ..PairSetup::rc() }
}

/// One exchange, so that the round-trip time is known.
fn acquaint(pair: &Pair) {
    pair.a.qp.post(Wr::write(0, &pair.b.mr, 0).sge(pair.a.sge(0, 10)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(0, WcStatus::Success)]);
}

#[test]
fn a_silent_peer_gets_retry_cnt_plus_one_transmissions() {
    for retry_cnt in 0..8 {
        for (name, wr) in [
            ("SEND", Wr::send as fn(u64) -> Wr),
            ("WRITE", |id| {
                Wr::new(id, ferroce_proto::verbs::SendOp::Write { addr: 0, rkey: Default::default() })
            }),
            ("READ", |id| {
                Wr::new(id, ferroce_proto::verbs::SendOp::Read { addr: 0, rkey: Default::default() })
            }),
        ] {
            let pair = PairSetup { retry_cnt, timeout: 10, ..setup() }.connect();
            pair.b.node.kill();
            let tries = pair.world.rule(Rule::on(is_request));
            pair.a.qp.post(wr(1).sge(pair.a.sge(0, 100)));
            pair.run();
            let failed = pair.a.send_cq.only();
            assert_eq!((failed.wr_id, failed.status), (1, WcStatus::RetryExcErr), "{name}");
            assert_eq!(failed.vendor_err, Reason::RetriesUsedUp as u32);
            assert_eq!(tries.hits(), u32::from(retry_cnt) + 1, "{name} with retry_cnt {retry_cnt}");
            assert_eq!(pair.world.now().0, (u64::from(retry_cnt) + 1) * timeout_ns(10).unwrap(), "{name}");
            assert_eq!(pair.a.qp.state(), QpState::Err);
            assert_eq!(pair.world.journal().explanations().count(), 1);
        }
    }
}

/// The transport timer may run up to four times its value (IBA 9.7.6.1.3). A requester that waits for its processor uses that: its peer may
/// wait as well.
#[test]
fn a_late_requester_transmits_up_to_four_times_per_retry() {
    let timeout_ns = timeout_ns(10).unwrap();
    for (late_ns, per_retry) in [(timeout_ns / 4, 1), (timeout_ns / 2, 4), (3 * timeout_ns, 4)] {
        for retry_cnt in 0..8 {
            let pair = PairSetup { retry_cnt, timeout: 10, ..setup() }.connect();
            pair.b.node.kill();
            pair.a.node.delay_timers(late_ns);
            let tries = pair.world.rule(Rule::on(is_request));
            pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)));
            pair.run();
            assert_eq!(pair.a.send_cq.only().status, WcStatus::RetryExcErr);
            let expected = (u32::from(retry_cnt) + 1) * per_retry;
            assert_eq!(tries.hits(), expected, "retry_cnt {retry_cnt}, late by {late_ns} ns");
        }
    }
}

#[test]
fn later_requests_are_flushed_in_order() {
    let pair = PairSetup { retry_cnt: 1, timeout: 8, ..setup() }.connect();
    pair.b.node.kill();
    for id in 1..6 {
        pair.a.post_recv(100 + id, 0, 10);
        pair.a.qp.post(Wr::write(id, &pair.b.mr, 0).sge(pair.a.sge(0, 1000)));
    }
    pair.run();
    let flushed = |id| (id, WcStatus::WrFlushErr);
    let mut sends = vec![(1, WcStatus::RetryExcErr)];
    sends.extend((2..6).map(flushed));
    assert_eq!(pair.a.send_cq.statuses(), sends);
    assert_eq!(pair.a.recv_cq.statuses(), (101..106).map(flushed).collect::<Vec<_>>());
}

#[test]
fn an_unsignalled_request_that_fails_is_reported() {
    let pair = PairSetup { retry_cnt: 0, timeout: 8, ..setup() }.connect();
    pair.b.node.kill();
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 10)).unsignaled());
    pair.a.qp.post(Wr::write(2, &pair.b.mr, 0).sge(pair.a.sge(0, 10)).unsignaled());
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]);
}

#[test]
fn timeout_zero_waits_for_ever() {
    for known in [false, true] {
        let pair = PairSetup { timeout: 0, ..setup() }.connect();
        if known {
            acquaint(&pair);
        }
        let silence = pair.world.rule(Rule::on(any).drop());
        pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 10)));
        pair.world.run_for(3_600_000_000_000);
        assert_eq!(pair.a.send_cq.drain(), []);
        assert_eq!((silence.hits(), pair.a.qp.state()), (1, QpState::Rts), "sent once, never again");
    }
}

#[test]
fn probes_cost_no_retry_and_do_not_delay_the_timer() {
    for retry_cnt in [0, 1, 3, 7] {
        let pair = PairSetup { retry_cnt, timeout: 14, ..setup() }.connect();
        acquaint(&pair);
        let start = pair.world.now();
        pair.b.node.kill();
        let tries = pair.world.rule(Rule::on(is_request));
        pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 10)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RetryExcErr)]);
        let counters = pair.a.qp.counters();
        assert!(counters.probes > 0);
        assert_eq!(counters.timeouts, u64::from(retry_cnt) + 1);
        assert_eq!(u64::from(tries.hits()), u64::from(retry_cnt) + 1 + counters.probes);
        let waited = pair.world.now().since_ns(start);
        assert_eq!(waited, (u64::from(retry_cnt) + 1) * timeout_ns(14).unwrap());
    }
}

#[test]
fn a_slow_peer_gets_only_probes_twice() {
    let pair = PairSetup { timeout: 16, window: 16 * 256, ..setup() }.connect();
    acquaint(&pair);
    // Longer than the probe timer: the probes arrive behind the packets that they repeat.
    pair.world.rule(Rule::on(is_request).delay(2_000_000));
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 60 * 256)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    let counters = pair.a.qp.counters();
    assert!(counters.probes > 0 && counters.timeouts == 0, "{counters:?}");
    assert_eq!(counters.retransmitted, counters.probes, "{counters:?}");
}

#[test]
fn a_probe_repairs_a_lost_tail_long_before_the_timer() {
    let pair = PairSetup { timeout: 20, ..setup() }.connect();
    acquaint(&pair);
    let start = pair.world.now();
    let lost = pair.world.rule(Rule::on(is_request).first().drop());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 10)));
    pair.run();
    lost.once();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    let took = pair.world.now().since_ns(start);
    assert!(took * 100 < timeout_ns(20).unwrap(), "{took} ns");
    assert_eq!(pair.a.qp.counters().timeouts, 0);
}

/// Three requests, so that the ACK of the first shows the state of the others.
fn post_three(pair: &Pair) {
    pair.a.mr.fill(7);
    for id in 1..=3 {
        let offset = (id - 1) * 8000;
        pair.a.qp.post(Wr::write(id, &pair.b.mr, offset).sge(pair.a.sge(offset, 8000)));
    }
}

#[test]
fn a_slow_peer_causes_no_full_retransmission() {
    // Longer than all probes, shorter than the timer.
    let pair = PairSetup { timeout: 17, ..setup() }.connect();
    acquaint(&pair);
    pair.world.rule(Rule::on(is_request).delay(40_000_000));
    post_three(&pair);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [1, 2, 3].map(|id| (id, WcStatus::Success)));
    let counters = pair.a.qp.counters();
    assert!(counters.probes > 0);
    assert_eq!(counters.retransmitted, counters.probes, "the probes and nothing else");
}

#[test]
fn a_loss_after_a_slow_phase_is_repaired() {
    let pair = PairSetup { timeout: 17, ..setup() }.connect();
    acquaint(&pair);
    let lost = pair.world.rule(Rule::on(is_request).nth(70).drop());
    // The NAK is lost too, so only a timer detects the loss.
    let silenced = pair.world.rule(Rule::on(is_sequence_nak).first().drop());
    pair.world.rule(Rule::on(is_request).delay(40_000_000));
    post_three(&pair);
    pair.run();
    lost.once();
    silenced.once();
    assert_eq!(pair.a.send_cq.statuses(), [1, 2, 3].map(|id| (id, WcStatus::Success)));
    assert_eq!(pair.b.mr.read(0, 24_000), pair.a.mr.read(0, 24_000));
}

#[test]
fn progress_resets_the_retry_count() {
    // Every packet is lost three times before it gets through, in both directions; one more would be too many.
    let pair = PairSetup { retry_cnt: 3, timeout: 8, ..setup() }.connect();
    let mut count = std::collections::BTreeMap::new();
    pair.world.rule(
        Rule::on(move |seen| {
            let tries = count.entry((seen.from, seen.psn().value())).or_insert(0);
            *tries += 1;
            is_request(seen) && *tries <= 3
        })
        .drop(),
    );
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 2000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn retries_end_although_earlier_requests_were_answered() {
    // Every packet of the second message is always lost. The completion of the first message must not prolong the retries.
    let pair = PairSetup { retry_cnt: 2, timeout: 10, ..setup() }.connect();
    pair.world.rule(Rule::on(|seen| is_request(seen) && seen.psn().value() >= 4).drop());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 1000)));
    pair.a.qp.post(Wr::write(2, &pair.b.mr, 0).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::RetryExcErr)]);
}

#[test]
fn retries_end_if_the_peer_always_sends_a_nak() {
    // One packet in the middle never arrives, those behind it do: the peer's NAKs must not prolong the retries without limit.
    let pair = PairSetup { retry_cnt: 3, timeout: 10, ..setup() }.connect();
    pair.world.rule(Rule::on(|seen| is_request(seen) && seen.psn().value() == 2).drop());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 2000)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::RetryExcErr)]);
}

#[test]
fn the_other_direction_continues_during_retries() {
    let pair = PairSetup { retry_cnt: 7, timeout: 12, ..setup() }.connect();
    let a = pair.a.node.id;
    pair.world.rule(Rule::on(move |seen| seen.from == a && is_request(seen)).times(3).drop());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 10)));
    pair.b.qp.post(Wr::write(2, &pair.a.mr, 0).sge(pair.b.sge(0, 5000)));
    pair.world.run_for(100_000);
    assert_eq!(pair.b.send_cq.statuses(), [(2, WcStatus::Success)]);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
}

/// A message behind others finds the timer running, so only the first one and RTT samples read the clock. A lost burst is sent again as soon
/// as if each message had read it: the first packet after the probe delay of 1 ms, the others after another one.
#[test]
fn messages_behind_others_do_not_read_the_clock() {
    for burst in [1, 48] {
        let pair = PairSetup { timeout: 14, ..setup() }.connect();
        acquaint(&pair);
        let start = pair.world.now();
        (0..burst).for_each(|id| pair.b.post_recv(100 + id, 0, 10));
        let lost = pair.world.rule(Rule::on(is_request).times(burst as u32).drop());
        let post = |id| pair.a.qp.post_counting_clock_reads(&Wr::send(id).sge(pair.a.sge(0, 8)).unsignaled());
        let clock_reads: u32 = (0..burst).map(|id| post(id).unwrap()).sum();
        assert!(clock_reads <= 2 + burst as u32 / 16, "{clock_reads} clock reads for {burst} messages");
        pair.run();
        assert_eq!((lost.hits(), pair.b.recv_cq.statuses().len()), (burst as u32, burst as usize));
        let probes = (pair.world.now().0 - start.0) / 1_000_000;
        assert_eq!(probes, burst.min(2), "{burst} messages");
    }
}
