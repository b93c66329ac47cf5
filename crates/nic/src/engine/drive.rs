//! One turn: put-off replies, arrivals, what follows from them, whoever waited for room, timers.

use super::host::NicHost;
use super::qps::QpTable;
use super::{Engine, QpCore};
use crate::link::{Effort, RxBatch, RxPacket, TxBatch, now};
use ferroce_os::lock::MutexGuard;
use ferroce_os::log;
use ferroce_proto::qp::{self, Arrival, DropReason, Terms};
use ferroce_proto::verbs::EventKind;
use ferroce_proto::wire::{Packet, dest_qpn};
use ferroce_proto::{Gid, Qpn, Time};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Queue pairs that waited for room and are served in one turn.
const READY_PER_TURN: usize = 16;

/// Deadlines served in one turn: each may send a packet, and arrivals must not wait for thousands of them.
const TIMERS_PER_TURN: usize = 32;

/// How long a deadline may be put off because there is always something to receive.
const OVERDUE_NS: u64 = 5_000_000;

/// Turns without arrivals between two looks at the clock.
const IDLE_TURNS_PER_CLOCK: u32 = 16;

/// Turns in which messages arrive, but none that needs the time, between two looks at the clock.
const TURNS_PER_CLOCK: u32 = 16;

/// A poller that found nothing for so many turns (about a millisecond) lets others have the processor now and then. Where
/// there are more spinning threads than processors, one of them is whom it waits for.
pub(super) const YIELDS_AFTER: u32 = 1024;
const TURNS_PER_YIELD: u32 = 16;
/// So many where the last yield let somebody run: two that wait for each other on one processor would spend a millisecond
/// per message otherwise.
const YIELDS_AFTER_IN_CROWD: u32 = 32;
/// A yield that takes longer than this let somebody run.
const CROWDED_NS: u64 = 10_000;
/// So often somebody else may be driving before a poller steps aside: whoever drives may be waiting for this processor.
const MISSES_PER_YIELD: u32 = 64;

/// Turns that a thread of the application does after a sleep before it leaves the rest to the background thread.
const TURNS_PER_SLEEP: u32 = 64;

/// What whoever drives works with: reused from turn to turn.
pub(super) struct Turn {
    rx: RxBatch,
    tx: TxBatch,
    touched: Vec<Arc<QpCore>>,
    put_off: PutOff,
    /// They have outlasted a turn already.
    is_overdue: bool,
    /// Turns since something arrived.
    idle: u32,
    /// Turns since somebody looked at the clock.
    clockless: u32,
    recent: Recent,
}

/// The time of a turn, once somebody wants to know it.
#[derive(Default)]
struct Clock(Option<Time>);

impl Clock {
    #[inline]
    fn now(&mut self) -> Time {
        *self.0.get_or_insert_with(now)
    }
}

/// The queue pair that got the last packet, so that the next one need not be looked up.
#[derive(Default)]
struct Recent {
    qp: Option<Arc<QpCore>>,
    /// What the table said about removals when it was looked up.
    removals: u64,
}

impl Recent {
    /// Forgets a queue pair that may be gone.
    #[inline]
    fn refresh(&mut self, removals: u64) {
        if self.removals != removals {
            *self = Recent { qp: None, removals };
        }
    }

    /// The queue pair with this number. To take it from the table costs four locked instructions.
    #[inline]
    fn find(&mut self, qpn: Qpn, table: &QpTable) -> Option<&Arc<QpCore>> {
        self.refresh(table.removals());
        if self.qp.as_ref().is_none_or(|qp| qp.qpn != qpn) {
            self.qp = table.get(qpn);
        }
        self.qp.as_ref()
    }
}

/// Acknowledgements put off until the next turn, behind the answer of the application that just got its data.
#[derive(Default)]
struct PutOff {
    waiting: Vec<Arc<QpCore>>,
    /// Who waited last: in a ping-pong that is who waits next, and each reference that is counted is a locked instruction.
    last: Option<Arc<QpCore>>,
    /// What the table said about removals then.
    removals: u64,
}

impl PutOff {
    fn push(&mut self, qp: &Arc<QpCore>) {
        let last = self.last.take().filter(|last| Arc::ptr_eq(last, qp));
        self.waiting.push(last.unwrap_or_else(|| qp.clone()));
    }

    /// Forgets a queue pair that may be gone.
    #[inline]
    fn refresh(&mut self, removals: u64) {
        if self.removals != removals {
            (self.last, self.removals) = (None, removals);
        }
    }
}

impl Turn {
    pub(super) fn new() -> Self {
        Turn {
            rx: RxBatch::new(),
            tx: TxBatch::new(),
            touched: Vec::new(),
            put_off: PutOff::default(),
            is_overdue: false,
            idle: 0,
            clockless: 0,
            recent: Recent::default(),
        }
    }
}

impl Engine {
    /// A turn on an application thread that polls. If it `found` a completion, its answer may be about to come.
    pub(crate) fn drive_for_poller(&self, found: bool) {
        self.pulse.drives();
        let Some(mut turn) = self.turn.try_lock() else {
            // A lost count does not matter.
            let misses = self.misses.load(Ordering::Relaxed).wrapping_add(1);
            self.misses.store(misses, Ordering::Relaxed);
            if misses.is_multiple_of(MISSES_PER_YIELD) {
                std::thread::yield_now();
            }
            return;
        };
        turn.is_overdue |= !found;
        self.run(&mut turn, true, false);
        let idle = turn.idle;
        drop(turn);
        if idle.is_multiple_of(TURNS_PER_YIELD) && idle >= self.patience.load(Ordering::Relaxed) {
            self.step_aside();
        }
    }

    /// Lets others have the processor, and remembers whether anybody wanted it.
    fn step_aside(&self) {
        let before = now();
        std::thread::yield_now();
        let crowded = now().since_ns(before) > CROWDED_NS;
        self.patience.store(if crowded { YIELDS_AFTER_IN_CROWD } else { YIELDS_AFTER }, Ordering::Relaxed);
    }

    /// A turn on the background thread. True if there was anything to do.
    pub(super) fn drive_in_background(&self, thorough: bool) -> bool {
        match self.turn.try_lock() {
            Some(mut turn) => {
                turn.is_overdue = true;
                self.run(&mut turn, false, thorough)
            }
            None => false,
        }
    }

    /// Turns on an application thread that slept for packets and was woken: while there are any, since nobody else was. False
    /// if somebody else drives; otherwise `before` is called first.
    pub(crate) fn drive_for_sleeper(
        &self,
        mut before: impl FnMut(),
        mut any_packets: impl FnMut() -> bool,
    ) -> bool {
        for turn in 0..TURNS_PER_SLEEP {
            let Some(mut held) = self.turn.try_lock() else { return turn > 0 };
            if turn == 0 {
                before();
            }
            held.is_overdue = true;
            // They are most likely where the last ones were.
            self.run(&mut held, false, turn > 0);
            drop(held);
            if !any_packets() {
                return true;
            }
        }
        self.pulse.wake();
        true
    }

    /// Lets go of a queue pair that was destroyed; whoever drives just now will see to that itself.
    pub(super) fn forget_recent(&self) {
        if let Some(mut turn) = self.turn.try_lock() {
            turn.recent.refresh(self.qps.removals());
            turn.put_off.refresh(self.qps.removals());
        }
    }

    /// Sends what was put off; the process or the device is about to go.
    pub(crate) fn settle(&self) {
        if let Some(mut turn) = self.turn.try_lock() {
            self.send_put_off(&mut turn, now());
        }
        self.link.flush();
    }

    fn run(&self, turn: &mut Turn, for_poller: bool, thorough: bool) -> bool {
        if !turn.put_off.waiting.is_empty() && turn.is_overdue {
            self.send_put_off(turn, now());
        }
        // One turn of a program that finds what it looks for is no reason to send them, two are.
        turn.is_overdue = !turn.put_off.waiting.is_empty();
        let effort = if thorough { Effort::Thorough } else { Effort::Quick };
        let arrived = self.link.receive(&mut turn.rx, effort);
        turn.idle = if arrived > 0 { 0 } else { turn.idle.wrapping_add(1) };
        turn.recent.refresh(self.qps.removals());
        turn.put_off.refresh(self.qps.removals());
        // Reading the clock is a tenth of an idle turn, and timers are in milliseconds: look now and then.
        if for_poller
            && !turn.idle.is_multiple_of(IDLE_TURNS_PER_CLOCK)
            && !self.any_ready.load(Ordering::Relaxed)
        {
            return false;
        }
        let mut clock = Clock::default();
        if arrived > 0 {
            // Asked before the arrivals use the arming up. Who sleeps on a channel expects what every device does: that
            // the acknowledgement of a message is there before the answer to it. perftest's events count on it.
            let may_put_off = for_poller && !self.pulse.any_armed();
            // Beside the system call that brought a packet, a look costs nothing.
            if turn.rx.packet(0).ring.is_none() {
                clock.now();
            }
            let completions = self.dispatch(turn, &mut clock, may_put_off);
            if !turn.touched.is_empty() {
                self.finish_touched(turn, &mut clock, may_put_off && completions > 0);
            }
            // As above: a message may have needed no time, and timers are in milliseconds.
            turn.clockless += 1;
            let may_skip = for_poller && clock.0.is_none() && turn.clockless < TURNS_PER_CLOCK;
            if may_skip && !self.any_ready.load(Ordering::Relaxed) {
                return true;
            }
        }
        turn.clockless = 0;
        let now = clock.now();
        let served = self.any_ready.load(Ordering::Relaxed) && self.serve_ready(turn, now);
        // While packets wait unread, a deadline that passed says nothing: the answer may be among them.
        let due_ns = self.timers.next_ns();
        if due_ns <= now.0 && (arrived == 0 || now.0 - due_ns > OVERDUE_NS) {
            self.run_timers(turn, now);
        }
        self.run_management(now);
        arrived > 0 || served
    }

    fn send_put_off(&self, turn: &mut Turn, now: Time) {
        let Turn { tx, put_off, .. } = turn;
        for qp in put_off.waiting.drain(..) {
            let mut machine = qp.machine.lock();
            // None: they rode in a request, and whoever sent that saw to the rest.
            if machine.has_replies() {
                let mut host = NicHost::new(self, &qp, tx);
                machine.poll_replies(now, &mut host);
                host.flush();
                let more = host.has_more;
                drop(host);
                self.after(&qp, machine, more);
            } else {
                drop(machine);
            }
            put_off.last = Some(qp);
        }
    }

    /// Gives every packet to its queue pair; returns how many completions that made. Queue pairs that are not finished
    /// yet are left among the touched.
    #[inline(always)] // one caller, and small messages spend most of their time here
    fn dispatch(&self, turn: &mut Turn, clock: &mut Clock, may_put_off: bool) -> u32 {
        let Turn { rx, tx, touched, put_off, recent, .. } = turn;
        let mut completions = 0;
        let mut next = 0;
        while next < rx.len() || self.any_more(rx) {
            let mut packet = rx.packet(next);
            next += 1;
            let qpn = dest_qpn(packet.bytes).unwrap_or_default();
            let Some(qp) = recent.find(qpn, &self.qps) else {
                completions += self.dispatch_elsewhere(&packet, tx, touched, clock.now());
                continue;
            };
            if qp.is_shut.load(Ordering::Relaxed) {
                self.counters.dropped(DropReason::WrongState);
                let from = packet.sgid;
                log::drop(format_args!("the peer of QP {qpn} has not proven its key (from {from})"));
                continue;
            }
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, qp, tx);
            loop {
                let terms = machine.receive(&arrival_of(&packet), packet.bytes, || clock.now(), &mut host);
                host.terms_changed |= terms == Terms::Changed;
                if next == rx.len() && !self.any_more(rx) {
                    break;
                }
                packet = rx.packet(next);
                // Packets of one message come in a row: keep the lock for the row.
                if dest_qpn(packet.bytes) != Some(qpn) {
                    break;
                }
                next += 1;
            }
            completions += host.completions;
            if touched.is_empty() && next == rx.len() {
                // The only one with packets: it need not be locked again.
                let may_put_off = may_put_off && completions > 0;
                self.finish(qp, machine, host, clock, may_put_off.then_some(put_off));
                break;
            }
            drop(host);
            drop(machine);
            touch(touched, qp.clone());
        }
        completions
    }

    /// Whether the batch could be given more packets out of what was read.
    #[inline]
    fn any_more(&self, rx: &mut RxBatch) -> bool {
        rx.has_more() && self.link.receive(rx, Effort::Quick) > 0
    }

    /// What becomes of a packet that is for no queue pair of ours alone. Returns how many completions that made.
    fn dispatch_elsewhere(
        &self,
        rx: &RxPacket<'_>,
        tx: &mut TxBatch,
        touched: &mut Vec<Arc<QpCore>>,
        now: Time,
    ) -> u32 {
        match (dest_qpn(rx.bytes), rx.ring) {
            // A ring also carries what is no packet: whatever it is, its queue pair is gone.
            (Some(qpn), Some(_)) if qpn != Qpn::MULTICAST && qpn != Qpn::GSI => {
                self.drop_strange(qpn, rx.sgid)
            }
            _ => {
                let Some(packet) = self.parse(rx) else { return 0 };
                match packet.headers.bth.dest_qpn {
                    Qpn::MULTICAST => return self.deliver_to_group(rx, tx, touched, now),
                    Qpn::GSI => self.receive_management(rx, &packet, now),
                    qpn => self.drop_strange(qpn, rx.sgid),
                }
            }
        }
        0
    }

    fn drop_strange(&self, qpn: Qpn, from: Gid) {
        self.counters.dropped(DropReason::NoSuchQp);
        log::drop(format_args!("no QP {qpn} here (from {from})"));
    }

    fn parse<'a>(&self, rx: &RxPacket<'a>) -> Option<Packet<'a>> {
        match Packet::parse(rx.bytes) {
            Ok(packet) => Some(packet),
            Err(malformed) => {
                self.counters.dropped(DropReason::Malformed);
                log::drop(format_args!("malformed packet from {}: {malformed}", rx.sgid));
                None
            }
        }
    }

    fn deliver_to_group(
        &self,
        rx: &RxPacket<'_>,
        tx: &mut TxBatch,
        touched: &mut Vec<Arc<QpCore>>,
        now: Time,
    ) -> u32 {
        let listeners = self.groups.listeners(rx.dgid);
        if listeners.is_empty() {
            self.counters.dropped(DropReason::NoSuchQp);
            log::drop(format_args!("nobody listens to group {} here", rx.dgid));
        }
        let mut completions = 0;
        for qp in listeners {
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, &qp, tx);
            // It is finished with the other queue pairs that were touched, where its terms are shown.
            let _ = machine.receive(&arrival_of(rx), rx.bytes, || now, &mut host);
            completions += host.completions;
            drop(host);
            drop(machine);
            touch(touched, qp);
        }
        completions
    }

    /// Sends what the arrivals call for, once per queue pair however many packets it got.
    fn finish_touched(&self, turn: &mut Turn, clock: &mut Clock, may_put_off: bool) {
        let Turn { tx, touched, put_off, .. } = turn;
        for qp in touched.drain(..) {
            qp.touched.store(false, Ordering::Relaxed);
            let machine = qp.machine.lock();
            let mut host = NicHost::new(self, &qp, tx);
            host.terms_changed = true;
            self.finish(&qp, machine, host, clock, may_put_off.then_some(&mut *put_off));
        }
    }

    /// Sends what the arrivals at one queue pair call for. Acknowledgements may wait in `put_off`, if there is one.
    #[inline(always)] // the host is large, and is not moved then
    fn finish(
        &self,
        qp: &Arc<QpCore>,
        mut machine: MutexGuard<'_, qp::Qp>,
        mut host: NicHost<'_, '_>,
        clock: &mut Clock,
        put_off: Option<&mut PutOff>,
    ) {
        if machine.has_replies() {
            match put_off {
                Some(put_off) if machine.only_acks_wait() => put_off.push(qp),
                _ => machine.poll_replies(clock.now(), &mut host),
            }
        }
        if machine.sends_outstanding() > 0 {
            machine.poll_requests(clock.now(), &mut host);
        }
        host.flush();
        let (more, terms_changed) = (host.has_more, host.terms_changed);
        drop(host);
        if !terms_changed && !more && self.is_settled(qp) {
            self.arm(qp, &machine);
        } else {
            self.after(qp, machine, more);
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
        for _ in 0..TIMERS_PER_TURN {
            let Some((qpn, at)) = self.timers.pop_due(now) else { break };
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
        self.after(qp, machine, more);
    }

    /// What must be seen to before a queue pair's lock is given up: its next deadline, more to send, a broken CQ.
    pub(super) fn after(&self, qp: &Arc<QpCore>, mut machine: MutexGuard<'_, qp::Qp>, has_more: bool) {
        if qp.overrun.load(Ordering::Relaxed) {
            let mut tx = TxBatch::new();
            machine.fail(EventKind::QpFatal, now(), &mut NicHost::new(self, qp, &mut tx));
        }
        self.show(qp, &machine);
        if has_more && !qp.ready.swap(true, Ordering::Relaxed) {
            self.ready.lock().push_back(qp.clone());
            self.any_ready.store(true, Ordering::Relaxed);
            self.pulse.wake();
        }
        self.arm(qp, &machine);
    }

    /// Sees to it that somebody comes back at the queue pair's next deadline.
    #[inline]
    pub(super) fn arm(&self, qp: &QpCore, machine: &qp::Qp) {
        if let Some(deadline) = machine.deadline()
            && self.timers.arm(qp, deadline)
        {
            self.pulse.wake_before(deadline.0);
        }
    }

    /// When the background thread must look again although nothing arrives.
    pub(super) fn next_deadline_ns(&self) -> u64 {
        let ready = if self.any_ready.load(Ordering::Relaxed) { 0 } else { u64::MAX };
        let management = self.agent_ns.load(Ordering::SeqCst);
        self.timers.next_ns().min(ready).min(management)
    }
}

/// What the outer headers of a packet said.
#[inline]
fn arrival_of(rx: &RxPacket<'_>) -> Arrival {
    Arrival { sgid: rx.sgid, dgid: rx.dgid, traffic_class: rx.tos, hop_limit: rx.ttl, ring: rx.ring }
}

fn touch(touched: &mut Vec<Arc<QpCore>>, qp: Arc<QpCore>) {
    if !qp.touched.swap(true, Ordering::Relaxed) {
        touched.push(qp);
    }
}
