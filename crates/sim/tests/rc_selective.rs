//! Reliable connection on a network that loses packets: two ferroce ends resend only the missing packets; with a
//! foreign end they follow the specification.

mod support;

use ferroce_proto::Psn;
use ferroce_proto::verbs::{Access, EventKind, Mtu, WcStatus};
use ferroce_sim::filter::{Seen, is_request, is_sequence_nak, request};
use ferroce_sim::{Faults, Pair, PairSetup, Rule, Wr};
use support::both_ready;

const WRITES: u64 = 16;
const LEN: u32 = 100_001;
const SLOT: u64 = 128 * 1024;
const FAR: u64 = WRITES * SLOT;
const PACKETS: u64 = WRITES * LEN.div_ceil(1024) as u64;

fn setup() -> PairSetup {
    PairSetup {
        mtu: Mtu::B1024,
        psn_a: Psn::new(0xff_ff00),
        window: 256 * 1024,
        memory: 2 * FAR as usize,
        ..PairSetup::rc()
    }
}

/// WRITEs and SENDs alternately, with an atomic and a READ among them.
fn post(pair: &Pair) {
    let (a, b) = (&pair.a, &pair.b);
    for id in 0..WRITES {
        let at = id * SLOT;
        let local = a.sge(at, LEN);
        if id % 2 == 0 {
            a.qp.post(Wr::write(id, &b.mr, FAR + at).sge(local));
        } else {
            b.post_recv(id, FAR + at, LEN);
            a.qp.post(Wr::send(id).sge(local));
        }
        if id % 6 == 2 {
            a.qp.post(Wr::fetch_add(100 + id, &b.mr, 0, 1).sge(a.sge(at + 120_000, 8)));
            a.qp.post(Wr::read(200 + id, &b.mr, 64).sge(a.sge(at + 121_000, 3000)));
        }
    }
}

fn check(pair: &Pair) {
    let expected: Vec<_> = (0..WRITES)
        .flat_map(|id| if id % 6 == 2 { vec![id, 100 + id, 200 + id] } else { vec![id] })
        .map(|id| (id, WcStatus::Success))
        .collect();
    assert_eq!(pair.a.send_cq.statuses(), expected, "completions keep the order of posting");
    let received: Vec<_> = (0..WRITES).filter(|id| id % 2 == 1).map(|id| (id, WcStatus::Success)).collect();
    assert_eq!(pair.b.recv_cq.statuses(), received, "receives are used in order");
    for id in 0..WRITES as usize {
        let at = id * SLOT as usize;
        let (near, far) = (pair.a.mr.read(at, LEN as usize), pair.b.mr.read(FAR as usize + at, LEN as usize));
        assert!(near == far, "message {id} differs");
    }
    assert_eq!(pair.b.node.atomics_run(), (0..WRITES).filter(|id| id % 6 == 2).count() as u64);
    both_ready(pair);
}

fn run(setup: &PairSetup, faults: Faults, rules: impl FnOnce(&Pair)) -> Pair {
    let pair = setup.connect();
    pair.world.set_faults(faults);
    rules(&pair);
    post(&pair);
    pair.run();
    check(&pair);
    pair
}

/// A NAK with a bitmap of received packets.
fn is_report(seen: &Seen<'_>) -> bool {
    is_sequence_nak(seen) && !seen.packet.payload.is_empty()
}

fn is_marked(seen: &Seen<'_>) -> bool {
    seen.packet.headers.bth.selective
}

#[test]
fn loss_costs_the_lost_packets_and_one_window() {
    for loss in [0.01, 0.03] {
        let mut sent_again = 0;
        for seed in 0..10 {
            let faults = Faults { loss, ..Faults::default() };
            let pair = PairSetup { seed, ..setup() }.connect();
            pair.world.set_faults(faults);
            for id in 0..WRITES {
                pair.a.qp.post(Wr::write(id, &pair.b.mr, FAR + id * SLOT).sge(pair.a.sge(id * SLOT, LEN)));
            }
            pair.run();
            let counters = pair.a.qp.counters();
            println!("{loss}, seed {seed}: {} of {PACKETS} packets sent again", counters.retransmitted);
            assert_eq!(counters.timeouts, 0);
            sent_again += counters.retransmitted;
        }
        let window = u64::from(setup().window / 1024);
        let lost = (loss * PACKETS as f64) as u64;
        assert!(sent_again < 10 * (2 * lost + window), "{sent_again} packets sent again in ten runs");
    }
}

#[test]
fn all_faults_together_do_not_change_the_result() {
    for seed in 0..20 {
        println!("seed {seed}");
        run(&PairSetup { seed, ..setup() }, Faults { reordering: 0.1, ..Faults::all(0.03) }, |_| {});
    }
}

#[test]
fn a_peer_without_selective_naks_gets_go_back_n() {
    for seed in 0..5 {
        let faults = Faults { loss: 0.02, ..Faults::default() };
        let mut counted = None;
        run(&PairSetup { seed, ..setup() }, faults, |pair| {
            // The rules see packets as they were sent. A foreign responder's NAK has no mark.
            let marked = pair.world.rule(Rule::on(|seen| is_request(seen) && is_marked(seen)));
            let reports = pair.world.rule(Rule::on(is_report));
            let naks = pair.world.rule(Rule::on(is_sequence_nak).rewrite(|bytes| bytes[8] &= 0x80));
            counted = Some((marked, reports, naks));
        });
        let (marked, reports, naks) = counted.unwrap();
        assert!(naks.hits() > 0, "nothing was lost");
        assert_eq!((marked.hits(), reports.hits()), (0, 0));
    }
}

#[test]
fn a_peer_that_ignores_the_selective_bit_gets_no_bitmap() {
    let faults = Faults { loss: 0.02, ..Faults::default() };
    let mut reports = None;
    run(&setup(), faults, |pair| {
        reports = Some(pair.world.rule(Rule::on(is_report)));
        // A foreign requester does not mark what it sends again.
        pair.world
            .rule(Rule::on(|seen| is_request(seen) && is_marked(seen)).rewrite(|bytes| bytes[8] &= 0x80));
    });
    assert_eq!(reports.unwrap().hits(), 0);
}

/// One long WRITE whose packets are numbered from 0 on. After an earlier loss, both ends use selective repeat.
fn acquainted() -> Pair {
    let pair = PairSetup { psn_a: Psn::new(0), rnr_retry: 7, ..setup() }.connect();
    pair.world.rule(Rule::on(request(2)).first().drop());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 10 * 1024)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    pair
}

/// Numbers of the packets that `a` sent, from number 10 on.
fn sent(pair: &Pair) -> Vec<u32> {
    let journal = pair.world.journal();
    let requests = journal.packets().filter(|(p, _)| p.opcode.operation.is_request());
    requests.map(|(p, _)| p.psn.value()).filter(|psn| *psn >= 10).collect()
}

fn again(pair: &Pair) -> Vec<u32> {
    let mut seen = std::collections::BTreeSet::new();
    sent(pair).into_iter().filter(|psn| !seen.insert(*psn)).collect()
}

fn long_write(pair: &Pair) {
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR + SLOT).sge(pair.a.sge(SLOT, 100 * 1024)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(2, WcStatus::Success)]);
    let (near, far) =
        (pair.a.mr.read(SLOT as usize, 102_400), pair.b.mr.read((FAR + SLOT) as usize, 102_400));
    assert!(near == far);
    both_ready(pair);
}

#[test]
fn only_missing_packets_are_retransmitted() {
    let pair = acquainted();
    let lost = [15, 16, 40, 70].map(|psn| pair.world.rule(Rule::on(request(psn)).first().drop()));
    long_write(&pair);
    lost.iter().for_each(|rule| rule.once());
    assert_eq!(again(&pair), [15, 16, 40, 70]);
    assert_eq!((pair.a.qp.counters().timeouts, pair.a.qp.counters().probes), (0, 0));
}

#[test]
fn a_packet_lost_twice_is_sent_three_times() {
    let pair = acquainted();
    pair.world.rule(Rule::on(request(15)).times(2).drop());
    pair.world.rule(Rule::on(request(30)).first().drop());
    long_write(&pair);
    let mut again = again(&pair);
    again.sort_unstable();
    assert_eq!(again, [15, 15, 30]);
    assert_eq!(pair.a.qp.counters().timeouts, 0);
}

#[test]
fn selective_naks_may_be_lost_duplicated_and_late() {
    for fault in 0..3 {
        let pair = acquainted();
        pair.world.rule(Rule::on(request(15)).first().drop());
        pair.world.rule(Rule::on(request(60)).first().drop());
        let reports = Rule::on(is_report);
        pair.world.rule(match fault {
            0 => reports.first().drop(),
            1 => reports.duplicate(),
            _ => reports.delay(50_000),
        });
        long_write(&pair);
        assert_eq!(pair.a.qp.counters().timeouts, 0, "fault {fault}");
        assert!(again(&pair).len() <= 8, "fault {fault}: {:?}", again(&pair));
    }
}

#[test]
fn a_malformed_selective_nak_is_harmless() {
    for (seed, fill) in [(1, 0xff), (2, 0x00), (3, 0xaa), (4, 0x55)] {
        let faults = Faults { loss: 0.02, ..Faults::default() };
        let pair = setup_with(seed).connect();
        pair.world.set_faults(faults);
        let forged = pair.world.rule(Rule::on(is_report).rewrite(move |bytes| bytes[16..].fill(fill)));
        post(&pair);
        pair.run();
        assert!(forged.hits() > 0);
        check(&pair);
    }
}

fn setup_with(seed: u64) -> PairSetup {
    PairSetup { seed, ..setup() }
}

#[test]
fn a_late_receive_causes_an_rnr_wait_as_before() {
    let pair = acquainted();
    pair.world.rule(Rule::on(request(12)).first().drop());
    let (a, b) = (&pair.a, &pair.b);
    a.qp.post(Wr::send(2).sge(a.sge(SLOT, 5 * 1024)));
    a.qp.post(Wr::send(3).sge(a.sge(2 * SLOT, 5 * 1024)));
    b.post_recv(2, FAR + SLOT, 5 * 1024);
    pair.world.run_for(200_000);
    assert!(b.qp.counters().rnr_sent > 0, "{:?}", b.qp.counters());
    b.post_recv(3, FAR + 2 * SLOT, 5 * 1024);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(2, WcStatus::Success), (3, WcStatus::Success)]);
    assert_eq!(pair.b.recv_cq.statuses(), [(2, WcStatus::Success), (3, WcStatus::Success)]);
    both_ready(&pair);
}

/// Whether packet `index` of the WRITE at `FAR` is in the peer's memory.
fn is_there(pair: &Pair, index: usize) -> bool {
    pair.a.mr.read(index * 1024, 1024) == pair.b.mr.read(FAR as usize + index * 1024, 1024)
}

#[test]
fn behind_a_gap_all_but_the_last_packet_is_placed() {
    let pair = PairSetup { psn_a: Psn::new(0), ..setup() }.connect();
    pair.world.rule(Rule::on(request(3)).drop());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 10 * 1024)));
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR + SLOT).sge(pair.a.sge(SLOT, 10 * 1024)));
    pair.run();
    let failed = pair.a.send_cq.statuses().first().map(|(id, status)| (*id, *status));
    assert_eq!(failed, Some((1, WcStatus::RetryExcErr)));
    let there: Vec<_> = (0..10).filter(|index| is_there(&pair, *index)).collect();
    assert_eq!(there, [0, 1, 2, 4, 5, 6, 7, 8], "programs watch for the last byte");
    let next = pair.b.mr.read((FAR + SLOT) as usize, 10 * 1024);
    assert!(next != pair.a.mr.read(SLOT as usize, 10 * 1024), "a message behind a gap waits");
}

/// Middle packets of a WRITE are placed on arrival, also behind a gap. If the memory is deregistered before the gap is
/// filled, the message is refused as if the packets had been kept.
#[test]
fn memory_deregistered_before_the_gap_is_filled_refuses_the_message() {
    let pair = setup().connect();
    let (a, b) = (&pair.a, &pair.b);
    let far = b.node.mr(b.pd, 64 * 1024, Access::REMOTE_WRITE | Access::LOCAL_WRITE);
    let third = 0xff_ff02;
    let delayed = pair.world.rule(Rule::on(request(third)).first().delay(200_000));
    let again = pair.world.rule(Rule::on(request(third)).drop());
    a.qp.post(Wr::write(1, &far, 0).sge(a.sge(0, 20_000)));
    pair.world.run_for(100_000);
    delayed.once();
    assert!(far.read(3 * 1024, 1024) == a.mr.read(3 * 1024, 1024), "what came behind the gap is placed");
    far.deregister();
    pair.run();
    assert!(again.hits() <= 8, "only what was asked for again: {}", again.hits());
    assert_eq!(a.send_cq.statuses(), [(1, WcStatus::RemAccessErr)]);
    assert_eq!(b.node.events(), [(b.qp.qpn, EventKind::QpAccessErr)]);
}
