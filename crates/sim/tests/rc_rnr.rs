//! Receiver not ready: the peer has no receive posted, and requests a wait.

use ferroce_proto::qp::state::rnr_timer_ns;
use ferroce_proto::verbs::{Mtu, QpState, WcStatus};
use ferroce_proto::wire::Operation;
use ferroce_sim::filter::{is_request, is_rnr_nak, op};
use ferroce_sim::{LATENCY_NS, Pair, PairSetup, Rule, Wr};

const FAR: u64 = 128 * 1024;

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, ..PairSetup::rc() }
}

fn requests(pair: &Pair) -> usize {
    pair.world.journal().packets().filter(|(p, _)| p.opcode.operation.is_request()).count()
}

#[test]
fn a_send_waits_for_its_receive() {
    for len in [0, 10, 1000] {
        let pair = setup().connect();
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, len)));
        pair.world.run_for(3 * LATENCY_NS);
        assert_eq!(pair.a.send_cq.drain(), []);
        assert_eq!(
            pair.b.qp.counters().rnr_sent,
            1,
            "the packets behind the first are passed over in silence"
        );
        pair.b.post_recv(9, FAR, 1000);
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
        assert_eq!(pair.b.recv_cq.only().byte_len, len);
        assert!(pair.a.mr.read(0, len as usize) == pair.b.mr.read(FAR as usize, len as usize));
        assert_eq!(pair.a.qp.counters().timeouts, 0);
    }
}

#[test]
fn a_write_with_immediate_waits_with_its_last_packet() {
    let pair = setup().connect();
    pair.a.qp.post(Wr::write_imm(1, &pair.b.mr, FAR, 5).sge(pair.a.sge(0, 1000)));
    pair.world.run_for(3 * LATENCY_NS);
    pair.b.post_recv(9, 0, 0);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(
        (pair.b.recv_cq.only().imm, requests(&pair)),
        (5, 5),
        "only the last of four packets came again"
    );
    assert!(pair.a.mr.read(0, 1000) == pair.b.mr.read(FAR as usize, 1000));
}

#[test]
fn the_wait_is_the_rnr_timer_of_the_peer() {
    for code in 0..32 {
        let pair = PairSetup { min_rnr_timer: code, ..setup() }.connect();
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 10)));
        pair.world.run_for(3 * LATENCY_NS);
        pair.b.post_recv(9, FAR, 10);
        pair.run();
        let journal = pair.world.journal();
        let sent: Vec<u64> = (journal.entries().iter())
            .filter(|(_, e)| e.to_string().contains("SendOnly"))
            .map(|(time, _)| time.0)
            .collect();
        assert_eq!(sent, [0, 2 * LATENCY_NS + rnr_timer_ns(code)], "timer code {code}");
    }
}

#[test]
fn rnr_retries_are_counted_exactly() {
    for rnr_retry in 0..7 {
        let pair = PairSetup { rnr_retry, ..setup() }.connect();
        pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 10)));
        pair.a.qp.post(Wr::send(2).sge(pair.a.sge(0, 10)));
        let firsts = pair.world.rule(Rule::on(|seen| is_request(seen) && seen.psn().value() == 0));
        pair.run();
        let expected = [(1, WcStatus::RnrRetryExcErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(pair.a.send_cq.statuses(), expected);
        assert_eq!(firsts.hits(), u32::from(rnr_retry) + 1, "rnr_retry {rnr_retry}");
        assert_eq!((pair.a.qp.state(), pair.b.qp.state()), (QpState::Err, QpState::Rts));
    }
}

#[test]
fn seven_means_for_ever() {
    let pair = PairSetup { rnr_retry: 7, ..setup() }.connect();
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 10)));
    pair.world.run_for(10_000_000);
    let tries = requests(&pair);
    assert!(tries > 500, "{tries} tries in 10 ms");
    assert_eq!(pair.a.send_cq.drain(), []);
    pair.b.post_recv(9, FAR, 10);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn a_delivered_message_resets_the_rnr_retries() {
    let pair = PairSetup { rnr_retry: 2, ..setup() }.connect();
    for id in 0..5 {
        pair.a.qp.post(Wr::send(id).sge(pair.a.sge(0, 10)));
        // Two RNR NAKs, then a receive.
        pair.world.run_for(2 * (2 * LATENCY_NS + rnr_timer_ns(1)));
        pair.b.post_recv(id, FAR, 10);
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(id, WcStatus::Success)]);
    }
    assert_eq!(pair.a.qp.counters().rnr_received, 10);
}

#[test]
fn an_rnr_wait_does_not_count_as_a_timeout() {
    // The RNR timer is far longer than the transport timer and all its retries.
    let pair = PairSetup { min_rnr_timer: 31, timeout: 8, retry_cnt: 1, ..setup() }.connect();
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 10)));
    pair.world.run_for(3 * LATENCY_NS);
    pair.b.post_recv(9, FAR, 10);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    assert_eq!(pair.a.qp.counters().timeouts, 0);
}

#[test]
fn an_rnr_nak_restores_the_transport_retries() {
    // Two of three transmissions are lost, so every RNR NAK comes with the last retry.
    let pair = PairSetup { timeout: 10, retry_cnt: 2, rnr_retry: 7, ..setup() }.connect();
    let mut tries = 0;
    let lost = pair.world.rule(
        Rule::on(move |seen| {
            tries += u32::from(is_request(seen));
            is_request(seen) && tries % 3 != 0
        })
        .drop(),
    );
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 10)));
    pair.world.run_for(100_000_000);
    assert_eq!(pair.a.send_cq.drain(), []);
    assert!(pair.a.qp.counters().rnr_received > 5 && lost.hits() > 10);
    pair.b.post_recv(9, FAR, 10);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
}

#[test]
fn a_lost_or_duplicate_rnr_nak_has_no_effect() {
    for fault in [Rule::drop, Rule::duplicate, Rule::damage, |rule: Rule| rule.delay(400_000_000)] {
        for len in [10, 1000] {
            let pair = setup().connect();
            let hit = pair.world.rule(fault(Rule::on(is_rnr_nak).first()));
            pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, len)));
            pair.world.run_for(2 * LATENCY_NS);
            pair.b.post_recv(9, FAR, 1000);
            pair.run();
            assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
            assert_eq!(pair.b.recv_cq.only().byte_len, len);
            hit.once();
        }
    }
}

#[test]
fn work_before_the_wait_is_completed_and_work_behind_it_waits_too() {
    let pair = setup().connect();
    pair.b.post_recv(8, FAR, 1000);
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 500)));
    pair.a.qp.post(Wr::read(2, &pair.b.mr, 0).sge(pair.a.sge(0, 500)));
    pair.a.qp.post(Wr::send(3).sge(pair.a.sge(0, 500)));
    pair.a.qp.post(Wr::send(4).sge(pair.a.sge(0, 500)));
    pair.a.qp.post(Wr::read(5, &pair.b.mr, 0).sge(pair.a.sge(0, 500)));
    pair.world.run_for(4 * LATENCY_NS);
    let success = |ids: &[u64]| ids.iter().map(|id| (*id, WcStatus::Success)).collect::<Vec<_>>();
    assert_eq!(pair.a.send_cq.statuses(), success(&[1, 2, 3]));
    pair.b.post_recv(9, FAR, 1000);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), success(&[4, 5]));
    assert_eq!(pair.b.recv_cq.statuses(), success(&[8, 9]));
}

#[test]
fn one_sided_work_needs_no_receive() {
    let pair = setup().connect();
    let rnr = pair.world.rule(Rule::on(is_rnr_nak));
    pair.a.qp.post(Wr::write(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 1000)));
    pair.a.qp.post(Wr::read(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 1000)));
    pair.a.qp.post(Wr::fetch_add(3, &pair.b.mr, 0, 1).sge(pair.a.sge(0, 8)));
    pair.run();
    assert_eq!(pair.a.send_cq.drain().len(), 3);
    assert_eq!(rnr.hits(), 0);
}

#[test]
fn a_refused_write_with_immediate_has_written_nothing_of_that_packet_twice() {
    // Whatever the try, the bytes are the same; what must not happen is that the message is delivered twice.
    let pair = setup().connect();
    let lasts = pair.world.rule(Rule::on(op(Operation::WriteOnlyImm)));
    pair.a.qp.post(Wr::write_imm(1, &pair.b.mr, FAR, 1).sge(pair.a.sge(0, 100)));
    pair.world.run_for(3 * LATENCY_NS);
    pair.b.post_recv(9, 0, 0);
    pair.b.post_recv(10, 0, 0);
    pair.run();
    assert_eq!(pair.b.recv_cq.statuses(), [(9, WcStatus::Success)]);
    assert_eq!(lasts.hits(), 2);
}
