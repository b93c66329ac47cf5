//! ECN marks, congestion notifications (CNPs) and pacing.

mod support;

use ferroce_proto::cc::{CongestionControl, Controller, Feedback, Needs};
use ferroce_proto::verbs::{Mtu, WcStatus};
use ferroce_proto::wire::{Opcode, Operation};
use ferroce_proto::{Psn, Time};
use ferroce_sim::filter::{Seen, is_ack, is_request, is_response, op};
use ferroce_sim::{Faults, Pair, PairSetup, Rule, Wr};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use support::{ALL, FAR};

const MTU: u32 = 1024;
/// One gigabit per second.
const RATE: u64 = 125_000_000;

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B1024, psn_a: Psn::new(0), ..PairSetup::rc() }
}

#[derive(Clone, Debug, Default)]
struct Heard {
    cnps: u32,
    marked_bytes: u64,
    unmarked_bytes: u64,
    round_trips: u32,
    rtts_ns: Vec<u64>,
    last_rtt_ns: Option<u64>,
}

/// A controller that records its events, with a fixed rate or none.
struct Recorder {
    rate: Option<u64>,
    needs: Needs,
    heard: Arc<Mutex<Heard>>,
}

impl CongestionControl for Recorder {
    fn window(&self) -> u32 {
        1 << 20
    }
    fn rate(&self) -> Option<u64> {
        self.rate
    }
    fn needs(&self) -> Needs {
        self.needs
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        let mut heard = self.heard.lock().unwrap();
        let bytes = if feedback.marked { &mut heard.marked_bytes } else { &mut heard.unmarked_bytes };
        *bytes += u64::from(feedback.acked);
        heard.round_trips += u32::from(feedback.rtt_ns.is_some());
        heard.rtts_ns.extend(feedback.rtt_ns);
        heard.last_rtt_ns = feedback.rtt_ns.or(heard.last_rtt_ns);
    }
    fn on_cnp(&mut self, _now: Time) {
        self.heard.lock().unwrap().cnps += 1;
    }
    fn on_loss(&mut self, _now: Time) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn restart(&mut self) {}
}

/// A connection, and the events of the controllers of both ends.
fn recorded(setup: &PairSetup, rate: Option<u64>) -> (Pair, [Arc<Mutex<Heard>>; 2]) {
    recorded_with(setup, rate, Needs::default())
}

fn recorded_with(setup: &PairSetup, rate: Option<u64>, needs: Needs) -> (Pair, [Arc<Mutex<Heard>>; 2]) {
    let heard = [Arc::<Mutex<Heard>>::default(), Arc::default()];
    let next = Cell::new(0);
    let pair = setup.connect_with(|| {
        let heard = heard[next.replace(next.get() + 1)].clone();
        Controller::Boxed(Box::new(Recorder { rate, needs, heard }))
    });
    (pair, heard)
}

/// The last RTT sample of `a` after some messages of one packet. Not every packet is sampled.
fn rtt_of_messages(pair: &Pair, heard: &Mutex<Heard>) -> Option<u64> {
    heard.lock().unwrap().last_rtt_ns = None;
    (0..100).for_each(|id| write(pair, id, 1));
    heard.lock().unwrap().last_rtt_ns
}

#[test]
fn the_time_that_an_ack_waits_at_the_host_is_no_part_of_the_rtt() {
    let (pair, heard) = recorded(&setup(), None);
    let rtt_ns = rtt_of_messages(&pair, &heard[0]).expect("a sample");
    pair.a.node.report_age(600);
    pair.b.node.report_age(900);
    assert_eq!(rtt_of_messages(&pair, &heard[0]), Some(rtt_ns - 600), "the age at the requester");
    pair.a.node.report_age(u32::MAX);
    assert_eq!(rtt_of_messages(&pair, &heard[0]), Some(0), "no age makes it negative");
}

#[test]
fn every_ack_has_its_own_round_trip_time() {
    let needs = Needs { ack_every_packet: true, ..Needs::default() };
    let (pair, heard) = recorded_with(&setup(), None, needs);
    write(&pair, 0, 3);
    let rtts_ns = heard[0].lock().unwrap().rtts_ns.clone();
    // The packets leave together and arrive one behind the other.
    assert!(rtts_ns.len() == 3 && rtts_ns.is_sorted_by(|a, b| a < b), "{rtts_ns:?}");
}

fn is_cnp(seen: &Seen<'_>) -> bool {
    seen.packet.headers.bth.opcode == Opcode::CNP
}

fn write(pair: &Pair, id: u64, packets: u32) {
    pair.a.qp.post(Wr::write(id, &pair.b.mr, 0).sge(pair.a.sge(0, packets * MTU)));
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(id, WcStatus::Success)]);
}

#[test]
fn a_marked_request_is_answered_with_one_cnp() {
    let (pair, heard) = recorded(&setup(), None);
    let seen_cnps = Rc::new(RefCell::new(Vec::new()));
    let cnps = seen_cnps.clone();
    pair.world.rule(Rule::on(move |seen: &Seen<'_>| {
        if is_cnp(seen) {
            let bth = seen.packet.headers.bth;
            cnps.borrow_mut().push((bth.becn, bth.mig_req, bth.psn, seen.packet.payload.to_vec()));
        }
        false
    }));
    write(&pair, 1, 40);
    assert!(seen_cnps.borrow().is_empty(), "nothing is marked");
    let marked = pair.world.rule(Rule::on(op(Operation::WriteMiddle)).times(20).mark());
    write(&pair, 2, 40);
    assert_eq!(marked.hits(), 20);
    // All of them arrive within one interval.
    assert_eq!(*seen_cnps.borrow(), [(true, false, Psn::new(0), vec![0; 16])]);
    let counters = pair.b.qp.counters();
    assert_eq!((counters.ecn_marked, counters.cnps_sent, pair.a.qp.counters().cnps_received), (20, 1, 1));
    assert_eq!((heard[0].lock().unwrap().cnps, heard[1].lock().unwrap().cnps), (1, 0));
}

#[test]
fn cnps_keep_their_interval() {
    // 200 packets at one gigabit per second take two milliseconds, and every one is marked.
    let (pair, heard) = recorded(&setup(), Some(RATE));
    pair.world.rule(Rule::on(is_request).mark());
    write(&pair, 1, 200);
    let cnps = heard[0].lock().unwrap().cnps;
    let most = 200 * (u64::from(MTU) + 82) * 1_000_000_000 / RATE / 50_000 + 1;
    assert!((most - 6..=most).contains(&u64::from(cnps)), "{cnps} CNPs, expected nearly {most}");
}

#[test]
fn acks_between_ferroce_ends_tell_of_marks() {
    let (pair, heard) = recorded(&setup(), Some(RATE));
    // The first message makes the ends known to each other.
    write(&pair, 1, 1);
    *heard[0].lock().unwrap() = Heard::default();
    pair.world.rule(Rule::on(|seen| is_request(seen) && seen.psn().value() < 33).mark());
    write(&pair, 2, 64);
    let heard = heard[0].lock().unwrap().clone();
    assert_eq!(heard.marked_bytes + heard.unmarked_bytes, u64::from(64 * MTU));
    assert_eq!(heard.marked_bytes, u64::from(32 * MTU), "{heard:?}");
    assert!(heard.round_trips >= 4, "{heard:?}");
}

#[test]
fn a_marked_read_response_slows_down_its_requester() {
    let (pair, heard) = recorded(&setup(), None);
    let cnps = pair.world.rule(Rule::on(is_cnp));
    // All of them arrive within one interval, so they count once.
    let marked = pair.world.rule(Rule::on(|seen| is_response(seen) && !is_ack(seen)).mark());
    pair.a.qp.post(Wr::read(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 20 * MTU)));
    pair.run();
    assert_eq!(marked.hits(), 20);
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    assert_eq!((heard[0].lock().unwrap().cnps, heard[1].lock().unwrap().cnps), (1, 0));
    assert_eq!(cnps.hits(), 0);
}

#[test]
fn marked_acks_slow_nobody_down() {
    let (pair, heard) = recorded(&setup(), None);
    let marked = pair.world.rule(Rule::on(is_ack).mark());
    write(&pair, 1, 40);
    assert!(marked.hits() > 0);
    assert_eq!(heard.map(|heard| heard.lock().unwrap().cnps), [0, 0]);
}

#[test]
fn packets_leave_at_the_rate() {
    let (pair, _) = recorded(&setup(), Some(RATE));
    let times = Rc::new(RefCell::new(Vec::new()));
    let seen_times = times.clone();
    pair.world.rule(Rule::on(move |seen: &Seen<'_>| {
        if is_request(seen) {
            seen_times.borrow_mut().push(seen.time.0);
        }
        false
    }));
    write(&pair, 1, 200);
    let times = times.borrow();
    let packet_ns = (u64::from(MTU) + 82) * 1_000_000_000 / RATE;
    let took = times[times.len() - 1] - times[0];
    assert!(took.abs_diff(199 * packet_ns) < 200_000, "{took} ns for 200 packets of {packet_ns} ns");
    // Never more than the credit of a late thread in one burst.
    let widest = (0..times.len() - 16).map(|i| times[i + 16] - times[i]).min().unwrap();
    assert!(widest >= 16 * packet_ns - 100_000 - packet_ns, "16 packets in {widest} ns");
}

#[test]
fn a_paced_queue_pair_survives_every_fault() {
    for script in ALL {
        for seed in 0..20 {
            println!("{} seed {seed}", script.name);
            let (pair, _) = recorded(&PairSetup { seed, ..setup() }, Some(RATE));
            pair.world.set_faults(Faults::all(0.05));
            (script.start)(&pair, 30 * MTU + 1);
            pair.run();
            (script.check)(&pair, 30 * MTU + 1);
        }
    }
}

#[test]
fn a_paced_queue_pair_waits_for_receives_and_late_acks() {
    let (pair, _) = recorded(&PairSetup { rnr_retry: 7, ..setup() }, Some(RATE / 10));
    pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 30 * MTU)));
    pair.world.run_for(2_000_000);
    pair.b.post_recv(9, 0, 30 * MTU);
    pair.run();
    assert_eq!(pair.a.send_cq.statuses(), [(1, WcStatus::Success)]);
    assert!(pair.a.qp.counters().rnr_received > 0);

    let late = pair.world.rule(Rule::on(is_ack).delay(20_000_000));
    write(&pair, 2, 8);
    assert!(late.hits() > 0);
}

/// At this rate one packet takes longer than the transport timer and all its retries.
#[test]
fn a_retransmission_that_waits_for_its_rate_uses_no_retry() {
    let (pair, _) = recorded(&PairSetup { timeout: 8, retry_cnt: 1, ..setup() }, Some(20_000));
    let lost = pair.world.rule(Rule::on(op(Operation::WriteFirst)).first().drop());
    write(&pair, 1, 200);
    lost.once();
}
