//! Bytes in flight, and the events of congestion control.

mod support;

use ferroce_proto::cc::{CongestionControl, Controller, Feedback, HalvingWindow};
use ferroce_proto::verbs::{Mtu, QpState, WcStatus};
use ferroce_proto::{Psn, Time};
use ferroce_sim::filter::{Seen, is_ack, is_request};
use ferroce_sim::{Faults, LATENCY_NS, Pair, PairSetup, Rule, Wr};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use support::{ALL, FAR, run};

fn setup() -> PairSetup {
    PairSetup { mtu: Mtu::B256, psn_a: Psn::new(0), ..PairSetup::rc() }
}

/// The most packets that had left without the peer's acknowledgement having left.
fn watch_flight(pair: &Pair) -> Rc<Cell<i32>> {
    let most = Rc::new(Cell::new(0));
    let (seen_most, mut acknowledged) = (most.clone(), -1);
    pair.world.rule(Rule::on(move |seen: &Seen<'_>| {
        if is_ack(seen) {
            acknowledged = seen.psn().value() as i32;
        } else if is_request(seen) {
            seen_most.set(seen_most.get().max(seen.psn().value() as i32 - acknowledged));
        }
        false
    }));
    most
}

#[test]
fn the_window_is_used_and_kept() {
    for packets in [1, 2, 7, 64] {
        let pair = PairSetup { window: packets * 256 + 100, ..setup() }.connect();
        let most = watch_flight(&pair);
        for id in 0..4 {
            pair.a.qp.post(Wr::write(id, &pair.b.mr, FAR).sge(pair.a.sge(0, 60_000)).unsignaled());
        }
        pair.a.qp.post(Wr::write(4, &pair.b.mr, FAR).sge(pair.a.sge(0, 10)));
        pair.run();
        assert_eq!(pair.a.send_cq.statuses(), [(4, WcStatus::Success)]);
        assert_eq!(most.get(), packets as i32);
        assert_eq!(pair.a.qp.counters().retransmitted, 0);
    }
}

#[derive(Clone, Debug, Default)]
struct Heard {
    sent: u64,
    acknowledged: u64,
    round_trips: Vec<u64>,
    losses: u32,
    timeouts: u32,
}

/// Halves its window at every loss, and records its events.
struct Careful {
    window: u32,
    heard: Arc<Mutex<Heard>>,
}

impl CongestionControl for Careful {
    fn window(&self) -> u32 {
        self.window
    }
    fn on_sent(&mut self, bytes: u32) {
        self.heard.lock().unwrap().sent += u64::from(bytes);
    }
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        self.window = self.window.saturating_add(64).min(1 << 20);
        let mut heard = self.heard.lock().unwrap();
        heard.acknowledged += u64::from(feedback.acked);
        heard.round_trips.extend(feedback.rtt_ns);
    }
    fn on_loss(&mut self, _now: Time) {
        self.window /= 2;
        self.heard.lock().unwrap().losses += 1;
    }
    fn on_timeout(&mut self, _now: Time) {
        self.window = 0;
        self.heard.lock().unwrap().timeouts += 1;
    }

    fn restart(&mut self) {}
}

fn careful(setup: &PairSetup) -> (Pair, Arc<Mutex<Heard>>) {
    let heard = Arc::new(Mutex::new(Heard::default()));
    // Only the first, which belongs to `a`, is listened to.
    let first = Cell::new(true);
    let pair = setup.connect_with(|| {
        let heard = if first.replace(false) { heard.clone() } else { Arc::default() };
        Controller::Boxed(Box::new(Careful { window: 8192, heard }))
    });
    (pair, heard)
}

#[test]
fn a_controller_receives_every_event() {
    let (pair, heard) = careful(&setup());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 256 * 40)));
    pair.run();
    let calm = heard.lock().unwrap().clone();
    assert_eq!((calm.sent, calm.acknowledged), (256 * 40, 256 * 40));
    assert_eq!((calm.losses, calm.timeouts), (0, 0));
    assert!(calm.round_trips.iter().all(|rtt| (2 * LATENCY_NS..4 * LATENCY_NS).contains(rtt)), "{calm:?}");

    pair.world.rule(Rule::on(|seen| is_request(seen) && seen.psn() == Psn::new(45)).first().drop());
    pair.a.qp.post(Wr::write(2, &pair.b.mr, FAR).sge(pair.a.sge(0, 256 * 40)));
    pair.run();
    let after_loss = heard.lock().unwrap().clone();
    assert_eq!((after_loss.losses, after_loss.timeouts), (1, 0));
    assert_eq!(after_loss.acknowledged, 256 * 80);
    assert!(after_loss.sent > 256 * 80, "what is sent again is told again");
}

#[test]
fn the_timer_is_reported_as_a_timeout() {
    let (pair, heard) = careful(&setup());
    let lost = pair.world.rule(Rule::on(is_request).times(5).drop());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, FAR).sge(pair.a.sge(0, 256 * 5)));
    pair.run();
    assert_eq!((pair.a.send_cq.statuses(), lost.hits()), (vec![(1, WcStatus::Success)], 5));
    assert_eq!(heard.lock().unwrap().timeouts, 1);
}

#[test]
fn a_window_that_shrinks_to_nothing_still_lets_one_packet_through() {
    for script in ALL {
        for seed in 0..20 {
            println!("{} seed {seed}", script.name);
            let (pair, _) = careful(&PairSetup { seed, ..setup() });
            pair.world.set_faults(Faults::all(0.05));
            (script.start)(&pair, 256 * 30 + 1);
            pair.run();
            (script.check)(&pair, 256 * 30 + 1);
        }
    }
}

#[test]
fn scripts_run_under_random_faults() {
    for script in ALL {
        for seed in 0..40 {
            println!("{} seed {seed}", script.name);
            run(script, &PairSetup { seed, ..setup() }, 256 * 30 + 1, |pair| {
                pair.world.set_faults(Faults::all(0.05));
            });
        }
    }
}

/// A reset queue pair may be connected to another peer: the state of the old path must not slow it down.
#[test]
fn reset_restarts_the_congestion_window() {
    let pair = PairSetup::rc().connect_with(|| HalvingWindow::new(1 << 20).into());
    pair.world.rule(Rule::on(is_request).drop());
    pair.a.qp.post(Wr::write(1, &pair.b.mr, 0).sge(pair.a.sge(0, 1000)));
    pair.run();
    assert!(pair.a.qp.congestion_window() < Some(1 << 20), "its packets were lost");
    pair.a.qp.set_state(QpState::Reset).unwrap();
    assert_eq!(pair.a.qp.congestion_window(), Some(1 << 20));
}
