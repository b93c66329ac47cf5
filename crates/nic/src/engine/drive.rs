//! One turn: put-off replies, arrivals, what follows from them, whoever waited for room, timers.

use super::Engine;
use super::forecaster::Forecaster;
use super::host::NicHost;
use crate::link::{Forecast, RxBatch, TxBatch, now};
use crate::objects::QpCore;
use ferroce_proto::Time;
use ferroce_proto::qp::{self, Expected};
use ferroce_proto::verbs::EventKind;
use parking_lot::MutexGuard;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Queue pairs that waited for room and are served in one turn.
const READY_PER_TURN: usize = 16;

/// Turns without arrivals between two looks at the clock.
const IDLE_TURNS_PER_CLOCK: u32 = 16;

/// What whoever drives works with: reused from turn to turn.
pub(super) struct Turn {
    pub(super) rx: RxBatch,
    pub(super) tx: TxBatch,
    pub(super) touched: Vec<Arc<QpCore>>,
    /// Acknowledgements put off until the next turn, behind the answer of the application that just got its data.
    put_off: Vec<Arc<QpCore>>,
    /// Turns since something arrived.
    idle: u32,
    pub(super) forecaster: Forecaster,
    /// What was expected of the batch in hand: its placed packets are part of it.
    pub(super) expected: Option<Expected>,
}

impl Turn {
    pub(super) fn new() -> Self {
        Turn {
            rx: RxBatch::new(),
            tx: TxBatch::new(),
            touched: Vec::new(),
            put_off: Vec::new(),
            idle: 0,
            forecaster: Forecaster::new(),
            expected: None,
        }
    }
}

impl Engine {
    /// A turn on an application thread that found no completion.
    pub(crate) fn drive_for_poller(&self) {
        self.pulse.polled();
        let Some(mut turn) = self.turn.try_lock() else { return };
        self.run(&mut turn, true, false);
    }

    /// A turn on the background thread. True if there was anything to do.
    pub(super) fn drive_in_background(&self, thorough: bool) -> bool {
        match self.turn.try_lock() {
            Some(mut turn) => self.run(&mut turn, false, thorough),
            None => false,
        }
    }

    /// Sends what was put off; the process or the device is about to go.
    pub(crate) fn settle(&self) {
        if let Some(mut turn) = self.turn.try_lock() {
            self.send_put_off(&mut turn, now());
        }
    }

    fn run(&self, turn: &mut Turn, for_poller: bool, thorough: bool) -> bool {
        if !turn.put_off.is_empty() {
            self.send_put_off(turn, now());
        }
        let arrived = self.receive(turn, thorough);
        turn.idle = if arrived > 0 { 0 } else { turn.idle.wrapping_add(1) };
        // Reading the clock is a tenth of an idle turn, and timers are in milliseconds: look now and then.
        if for_poller
            && !turn.idle.is_multiple_of(IDLE_TURNS_PER_CLOCK)
            && !self.any_ready.load(Ordering::Relaxed)
        {
            return false;
        }
        let now = now();
        if arrived > 0 {
            let completions = self.dispatch(turn, now);
            self.finish_touched(turn, now, for_poller && completions > 0);
        }
        let served = self.any_ready.load(Ordering::Relaxed) && self.serve_ready(turn, now);
        if self.timers.next_ns() <= now.0 {
            self.run_timers(turn, now);
        }
        arrived > 0 || served
    }

    /// Receives a batch; the payloads of packets that were expected land in their targets.
    fn receive(&self, turn: &mut Turn, thorough: bool) -> usize {
        let Turn { rx, forecaster, expected, .. } = turn;
        *expected = if forecaster.has_any() { forecaster.guess(now()) } else { None };
        let arrived = match expected.and_then(|e| self.forecast(e)) {
            Some(forecast) => self.link.receive_expected(rx, thorough, forecast),
            None => self.link.receive(rx, thorough),
        };
        if arrived == 0 && rx.placing() != (0, 0) {
            // The guess was wrong and nothing of what came is for us.
            forecaster.learn(rx.placing(), None, now());
        }
        arrived
    }

    /// Lets an expected run land, if its queue pair still waits for it. Whoever makes it wait no longer (an error, a
    /// `modify`, a destruction) waits for the landing to end before the program hears of it. They may do so with the queue
    /// pair locked, so that lock is only tried here.
    fn forecast(&self, expected: Expected) -> Option<Forecast<'_>> {
        let landing = self.regions.land(expected.pd, expected.target, expected.bytes())?;
        let qp = self.qps.get(expected.qpn)?;
        let still_due = qp.machine.try_lock()?.expected_after(expected.opcode) == Some(expected);
        still_due.then(|| Forecast::new(expected, landing))
    }

    fn send_put_off(&self, turn: &mut Turn, now: Time) {
        let Turn { tx, put_off, .. } = turn;
        for qp in put_off.drain(..) {
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, &qp, tx);
            machine.poll_replies(now, &mut host);
            host.flush();
            let more = host.has_more;
            self.after(&qp, machine, more, now);
        }
    }

    /// Sends what the arrivals call for, once per queue pair however many packets it got.
    fn finish_touched(&self, turn: &mut Turn, now: Time, may_put_off: bool) {
        let Turn { tx, touched, put_off, .. } = turn;
        for qp in touched.drain(..) {
            qp.touched.store(false, Ordering::Relaxed);
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, &qp, tx);
            if machine.has_replies() {
                if may_put_off && machine.only_acks_wait() {
                    put_off.push(qp.clone());
                } else {
                    machine.poll_replies(now, &mut host);
                }
            }
            machine.poll_requests(now, &mut host);
            host.flush();
            let more = host.has_more;
            self.after(&qp, machine, more, now);
        }
    }

    fn serve_ready(&self, turn: &mut Turn, now: Time) -> bool {
        let mut served = false;
        for _ in 0..READY_PER_TURN {
            let next = {
                let mut ready = self.ready.lock();
                let next = ready.pop_front();
                self.any_ready.store(!ready.is_empty(), Ordering::Relaxed);
                next
            };
            let Some(qp) = next else { break };
            qp.ready.store(false, Ordering::Relaxed);
            self.turn_of(&qp, &mut turn.tx, now, false);
            served = true;
        }
        served
    }

    fn run_timers(&self, turn: &mut Turn, now: Time) {
        while let Some((qpn, at)) = self.timers.pop_due(now) {
            let Some(qp) = self.qps.get(qpn) else { continue };
            // Only if the heap's entry is the one the queue pair counts on; an older one is a leftover.
            let _ = qp.timer_at.compare_exchange(at, u64::MAX, Ordering::Relaxed, Ordering::Relaxed);
            self.turn_of(&qp, &mut turn.tx, now, true);
        }
    }

    fn turn_of(&self, qp: &Arc<QpCore>, tx: &mut TxBatch, now: Time, timer: bool) {
        let mut machine = qp.machine.lock();
        let mut host = NicHost::new(self, qp, tx);
        if timer {
            machine.handle_timeout(now, &mut host);
        }
        machine.poll_replies(now, &mut host);
        machine.poll_requests(now, &mut host);
        host.flush();
        let more = host.has_more;
        self.after(qp, machine, more, now);
    }

    /// What must be seen to before a queue pair's lock is given up: its next deadline, more to send, a broken CQ.
    pub(super) fn after(
        &self,
        qp: &Arc<QpCore>,
        mut machine: MutexGuard<'_, qp::Qp>,
        has_more: bool,
        now: Time,
    ) {
        if qp.overrun.load(Ordering::Relaxed) {
            let mut tx = TxBatch::new();
            machine.fail(EventKind::QpFatal, now, &mut NicHost::new(self, qp, &mut tx));
        }
        if has_more && !qp.ready.swap(true, Ordering::Relaxed) {
            self.ready.lock().push_back(qp.clone());
            self.any_ready.store(true, Ordering::Relaxed);
            self.pulse.wake();
        }
        if let Some(deadline) = machine.deadline()
            && self.timers.arm(qp, deadline)
        {
            self.pulse.wake_before(deadline.0);
        }
    }

    /// When the background thread must look again although nothing arrives.
    pub(super) fn next_deadline_ns(&self) -> u64 {
        let link = self.link.deadline().map_or(u64::MAX, |t| t.0);
        let ready = if self.any_ready.load(Ordering::Relaxed) { 0 } else { u64::MAX };
        self.timers.next_ns().min(link).min(ready)
    }
}
