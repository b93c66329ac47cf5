//! One poll: delayed acknowledgements, arrivals and what follows from them, queue pairs that wait to send, timers.

use super::host::NicHost;
use super::progress::{Clock, DelayedAcks, Polling, Progress};
use super::{Engine, QpCore};
use crate::link::{Effort, RxBatch, TxBatch, now};
use ferroce_os::lock::{MutexGuard, lock_within};
use ferroce_os::log;
use ferroce_proto::Time;
use ferroce_proto::qp::{self, Attempt, DropReason, Terms};
use ferroce_proto::verbs::EventKind;
use ferroce_proto::wire::dest_qpn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Ready queue pairs that one poll serves.
const READY_PER_POLL: usize = 16;

/// Deadlines served in one poll: each may send a packet, and arrivals must not wait for thousands of them.
const TIMERS_PER_POLL: usize = 32;

/// How long a deadline may be delayed because packets keep arriving.
const OVERDUE_NS: u64 = 5_000_000;

/// Polls without arrivals between two reads of the clock.
const IDLE_POLLS_PER_CLOCK: u32 = 16;

/// Polls with arrivals, none of which needs the time, between two reads of the clock.
const POLLS_PER_CLOCK: u32 = 16;

/// Polls without arrivals (about a millisecond) after which a poller sometimes yields the processor. With more spinning threads than
/// processors, it may be waiting for one of them.
pub(super) const YIELDS_AFTER: u32 = 1024;
const POLLS_PER_YIELD: u32 = 4;
/// The same if the last yield let another thread run. Otherwise two threads that wait for each other on one processor would spend a
/// millisecond per message.
const YIELDS_AFTER_IN_CROWD: u32 = 4;
/// A yield that takes longer than this let another thread run.
const CROWDED_NS: u64 = 10_000;
/// A yield that takes longer than this gave the processor to a thread that does not wait for messages and uses its whole time slice. A poller
/// then keeps the processor for a part of that time. Otherwise it would poll four times per slice of each such thread.
const BUSY_NS: u64 = 2_000_000;
/// The poller keeps the processor for the duration of that yield divided by this.
const KEPT_PART: u64 = 4;
/// The longest time that it keeps the processor: a process that was stopped was away for longer than any time slice.
const KEPT_MOST_NS: u64 = 4_000_000;
/// Failed attempts at the progress lock after which a poller yields: its holder may be waiting for this processor.
const CONTENTIONS_PER_YIELD: u32 = 64;

/// Polls of an application thread after a sleep before it leaves the rest to the background thread.
const POLLS_PER_SLEEP: u32 = 64;

/// Limit of the polls before a queue pair stops: packets for others may keep arriving.
const POLLS_PER_STOP: u32 = 64;

/// How long a queue pair that stops and a process that exits wait for the progress lock. The exiting thread may hold the lock itself.
pub(super) const SETTLE_NS: u64 = 100_000_000;
/// How long closing a device waits for peers that do not read the data that TCP has accepted.
const CLOSE_NS: u64 = 2_000_000_000;

/// The kind of thread that polls. It decides which ACKs may wait for a request that carries them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Driver {
    /// A thread of the application, which may answer the message whose completion it finds.
    Poller,
    /// The background thread, for a program that watches its memory and may answer a WRITE that makes no completion.
    Watcher,
    /// The background thread, or an application thread that slept: no ACK waits.
    Other,
}

impl Driver {
    fn may_get_answer(self, completions: u32) -> bool {
        match self {
            Driver::Poller => completions > 0,
            Driver::Watcher => completions == 0,
            Driver::Other => false,
        }
    }
}

/// What a poll by the background thread handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Found {
    /// Nothing, or another thread drives.
    Nothing,
    /// Packets to receive or to send that made no completion, such as those of a WRITE at its responder.
    Packets,
    /// Packets that made completions.
    Completions,
}

impl Engine {
    /// Polls on an application thread. `found`: the thread has just taken a completion, so it may be about to post the answer.
    pub(crate) fn drive_for_poller(&self, found: bool) {
        self.activity.drives();
        let call = self.activity.begin_call();
        let polling = &self.polling;
        let Some(mut progress) = polling.lock.try_lock() else {
            let contentions = polling.contentions.load(Ordering::Relaxed).wrapping_add(1);
            polling.contentions.store(contentions, Ordering::Relaxed);
            if contentions.is_multiple_of(CONTENTIONS_PER_YIELD) {
                drop(call);
                std::thread::yield_now();
            }
            return;
        };
        progress.is_overdue |= !found;
        self.run(&mut progress, Driver::Poller, false);
        let idle = progress.idle;
        drop(progress);
        // While another thread has the processor, the background thread may take over.
        drop(call);
        if idle.is_multiple_of(POLLS_PER_YIELD) && idle >= polling.yields_after.load(Ordering::Relaxed) {
            polling.yield_processor();
        }
    }

    /// Polls on the background thread.
    pub(super) fn drive_in_background(&self, thorough: bool) -> Found {
        self.drive_behind(Driver::Other, thorough)
    }

    /// The same for a program that watches its memory. ACKs may wait for the program's answer. The caller checks
    /// [for these](Self::owes_acks) and sends them if no answer comes.
    pub(super) fn drive_for_watcher(&self) -> Found {
        self.drive_behind(Driver::Watcher, true)
    }

    fn drive_behind(&self, driver: Driver, thorough: bool) -> Found {
        let progress = self.polling.lock.try_lock();
        progress.map_or(Found::Nothing, |mut progress| self.run_behind(&mut progress, driver, thorough))
    }

    fn run_behind(&self, progress: &mut Progress, driver: Driver, thorough: bool) -> Found {
        progress.is_overdue = true;
        progress.completions = 0;
        match self.run(progress, driver, thorough) {
            false => Found::Nothing,
            true if progress.completions > 0 => Found::Completions,
            true => Found::Packets,
        }
    }

    /// Whether ACKs wait for an answer that carries them. `false` while another thread drives, since that thread sends them.
    pub(super) fn owes_acks(&self) -> bool {
        let progress = self.polling.lock.try_lock();
        progress.is_some_and(|progress| {
            progress.delayed_acks.waiting.iter().any(|qp| qp.machine.lock().has_replies())
        })
    }

    /// Handles the packets that arrived before a queue pair stops. Hardware would have acknowledged them by now, even if the program has
    /// not polled. Without the ACK of its last message, a peer waits until its retries are exhausted. Waits for a thread that drives now:
    /// it may have read the socket before they arrived.
    pub(super) fn drive_before_stop(&self) {
        let Some(mut progress) = self.wait_for_progress() else { return };
        let mut polls = (0..POLLS_PER_STOP).map(|_| self.run_behind(&mut progress, Driver::Other, true));
        let _ = polls.any(|found| found == Found::Nothing);
    }

    /// Takes the progress lock, or returns `None` after [`SETTLE_NS`]. After that, further calls do not wait until one succeeds: an exiting
    /// thread that holds the lock itself may stop many queue pairs.
    fn wait_for_progress(&self) -> Option<MutexGuard<'_, Progress>> {
        let polling = &self.polling;
        let max_wait_ns = if polling.is_stuck.load(Ordering::Relaxed) { 0 } else { SETTLE_NS };
        let progress = lock_within(&polling.lock, Duration::from_nanos(max_wait_ns));
        polling.is_stuck.store(progress.is_none(), Ordering::Relaxed);
        progress
    }

    /// Polls on an application thread that packets have woken, as long as there are packets: the kernel woke no other thread. Calls
    /// `before` first. Declines if another thread holds the progress lock.
    pub(crate) fn drive_for_sleeper(
        &self,
        mut before: impl FnMut(),
        mut any_packets: impl FnMut() -> bool,
    ) -> Attempt {
        for poll in 0..POLLS_PER_SLEEP {
            let Some(mut progress) = self.polling.lock.try_lock() else { return Attempt::of(poll > 0) };
            if poll == 0 {
                before();
            }
            progress.is_overdue = true;
            // The packets are most likely where the last ones were.
            self.run(&mut progress, Driver::Other, poll > 0);
            drop(progress);
            if !any_packets() {
                return Attempt::Done;
            }
        }
        self.activity.wake();
        Attempt::Done
    }

    /// Drops the cached references to a queue pair that was destroyed. If another thread holds the progress lock, that thread drops them.
    pub(super) fn forget_recent(&self) {
        if let Some(mut progress) = self.polling.lock.try_lock() {
            progress.recent.refresh(self.qps.removals());
            progress.delayed_acks.refresh(&self.qps, &self.polling.unsent_ack);
        }
    }

    /// The same as [`Self::settle`], for the end of a device. Streams get more time: nothing reads them once their sockets are closed.
    pub(crate) fn settle_closed(&self) {
        self.settle_for(CLOSE_NS);
    }

    /// Sends delayed acknowledgements and packets: the process or the device is about to end.
    pub(crate) fn settle(&self) {
        self.settle_for(SETTLE_NS);
    }

    fn settle_for(&self, streams_ns: u64) {
        // The thread that drives now may be about to send some of them.
        let mut progress = self.wait_for_progress();
        self.send_coalesced();
        if let Some(progress) = &mut progress {
            self.send_delayed_acks(progress, now());
        }
        drop(progress);
        self.link.flush();
        if let Some(streams) = &self.streams {
            self.settle_streams(streams, streams_ns);
        }
    }

    /// Sends the coalesced requests: the program is about to sleep or to end.
    pub(crate) fn send_coalesced(&self) {
        if self.polling.any_ready() {
            // All of them: no further poll may follow.
            self.serve_ready(self.polling.count_ready(), None, now());
        }
    }

    pub(super) fn run(&self, progress: &mut Progress, driver: Driver, thorough: bool) -> bool {
        let polling = &self.polling;
        let for_poller = driver == Driver::Poller;
        if !progress.delayed_acks.waiting.is_empty() && progress.is_overdue {
            if progress.delayed_acks.all_piggybacked(&polling.unsent_ack) {
                progress.delayed_acks.finish();
            } else {
                self.send_delayed_acks(progress, now());
            }
        }
        let mut served = false;
        if polling.any_ready() {
            if let Some(streams) = &self.streams {
                return self.run_streams(streams, progress, thorough);
            }
            served = self.serve_ready(READY_PER_POLL, Some(&mut progress.tx), now());
        }
        // A program that has polled once and found its completion may be about to answer. After two polls it is not.
        progress.is_overdue = !progress.delayed_acks.waiting.is_empty();
        let effort = if thorough { Effort::Thorough } else { Effort::Quick };
        let arrived = polling.source.receive(&mut progress.rx, effort);
        progress.idle = if arrived > 0 { 0 } else { progress.idle.wrapping_add(1) };
        if arrived == 0 {
            // For a packet, `dispatch` does this.
            progress.recent.refresh(self.qps.removals());
        }
        progress.delayed_acks.refresh(&self.qps, &self.polling.unsent_ack);
        // Reading the clock takes a tenth of an idle poll, and timers are in milliseconds: only some polls read it.
        if for_poller && !progress.idle.is_multiple_of(IDLE_POLLS_PER_CLOCK) && !polling.any_ready() {
            return served;
        }
        let mut clock = Clock::default();
        if arrived > 0 {
            // Checked before the arrivals disarm a CQ. A program that sleeps on a channel expects, as with any device, that the
            // ACK of a message arrives before the answer to it. perftest's events rely on that.
            let driver = if self.activity.any_armed() { Driver::Other } else { driver };
            // Reading the clock takes far less time than the system call that received the packet.
            if progress.rx.packet(0).arrival.ring.is_none() {
                clock.now();
            }
            let completions = self.dispatch(progress, &mut clock, driver);
            progress.completions = completions;
            if !progress.touched.is_empty() {
                self.finish_touched(progress, &mut clock, driver.may_get_answer(completions));
            }
            // As above: a message may not have needed the time, and timers are in milliseconds.
            progress.clockless += 1;
            let may_skip = for_poller && clock.0.is_none() && progress.clockless < POLLS_PER_CLOCK;
            if may_skip && !polling.any_ready() {
                return true;
            }
        }
        progress.clockless = 0;
        let now = clock.now();
        // While unread packets wait, an expired deadline may be false: the answer may be among them.
        let due_ns = polling.timers.next_ns();
        if due_ns <= now.0 && (arrived == 0 || now.0 - due_ns > OVERDUE_NS) {
            self.run_timers(progress, now);
        }
        self.run_management(now);
        arrived > 0 || served
    }

    fn send_delayed_acks(&self, progress: &mut Progress, now: Time) {
        let Progress { tx, delayed_acks, .. } = progress;
        for qp in &delayed_acks.waiting {
            let mut machine = qp.machine.lock();
            // If none is left, a request carried them, and the thread that sent it has taken the last steps.
            if machine.has_replies() {
                let mut host = NicHost::new(self, qp, tx);
                machine.poll_replies(now, &mut host);
                host.flush();
                self.after_packets(qp, &mut machine, &host);
            }
            self.polling.unsent_ack.clear_if(qp.qpn);
        }
        delayed_acks.finish();
    }

    /// Passes every packet to its queue pair. Returns how many completions that made. Queue pairs that are not finished
    /// yet stay in `touched`.
    #[inline(always)] // one caller, and small messages spend most of their time here
    fn dispatch(&self, progress: &mut Progress, clock: &mut Clock, driver: Driver) -> u32 {
        let Progress { rx, tx, touched, delayed_acks, recent, .. } = progress;
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
                self.device.counters.dropped(DropReason::WrongState);
                let from = packet.arrival.sgid;
                log::drop(format_args!(
                    "the peer of QP {qpn} has not proven its key (from {})",
                    from.to_ip()
                ));
                continue;
            }
            let mut machine = qp.machine.lock();
            // A batch comes from rings or from UDP, never from both.
            // SAFETY: this thread holds the lock, and no host uses the path.
            let path = unsafe { qp.path.get() }.as_ref().filter(|_| packet.arrival.ring.is_none());
            if let Some(path) = path
                && self.is_from_stranger(path, qpn, &packet)
            {
                continue;
            }
            let is_checked = path.is_some();
            let mut host = NicHost::new(self, qp, tx);
            loop {
                let terms = machine.receive(packet.arrival, packet.bytes, || clock.now(), &mut host);
                host.terms_changed |= terms == Terms::Changed;
                if next == rx.len() && !self.any_more(rx) {
                    break;
                }
                packet = rx.packet(next);
                // Packets of one message follow each other: keep the lock for all of them.
                if dest_qpn(packet.bytes) != Some(qpn) || is_checked {
                    break;
                }
                next += 1;
            }
            completions += host.completions;
            if touched.is_empty() && next == rx.len() {
                // Only this queue pair got packets: it is finished without locking it again.
                let delayed_acks = driver.may_get_answer(completions).then_some(delayed_acks);
                self.finish(qp, &mut machine, &mut host, clock, delayed_acks, true);
                break;
            }
            drop(host);
            drop(machine);
            touch(touched, qp.clone());
        }
        completions
    }

    /// Whether the batch was refilled with packets that the last system call read.
    #[inline]
    fn any_more(&self, rx: &mut RxBatch) -> bool {
        rx.has_more() && self.link.receive(rx, Effort::Quick) > 0
    }

    /// Sends what the arrivals require: once per queue pair, however many packets it got, and the replies of all queue pairs together.
    fn finish_touched(&self, progress: &mut Progress, clock: &mut Clock, may_delay_acks: bool) {
        let Progress { tx, touched, delayed_acks, .. } = progress;
        let mut left = touched.len();
        for qp in touched.drain(..) {
            left -= 1;
            qp.touched.store(false, Ordering::Relaxed);
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, &qp, tx);
            host.terms_changed = true;
            let delayed_acks = may_delay_acks.then_some(&mut *delayed_acks);
            self.finish(&qp, &mut machine, &mut host, clock, delayed_acks, left == 0);
        }
    }

    /// Sends what the arrivals at one queue pair require. If `delayed_acks` is given, ACKs may wait there. Replies of all but the last queue
    /// pair wait in the batch for those of the others.
    #[inline(always)] // the compiler then tracks the fields of the host
    fn finish(
        &self,
        qp: &Arc<QpCore>,
        machine: &mut qp::Qp,
        host: &mut NicHost<'_, '_>,
        clock: &mut Clock,
        delayed_acks: Option<&mut DelayedAcks>,
        is_last: bool,
    ) {
        if machine.has_replies() {
            match delayed_acks {
                Some(delayed_acks) if machine.only_acks_wait() => {
                    delayed_acks.push(qp, &self.polling.unsent_ack)
                }
                _ => machine.poll_replies(clock.now(), host),
            }
        }
        let has_requests = machine.sends_outstanding() > 0;
        if has_requests {
            machine.poll_requests(clock.now(), host);
        }
        if has_requests || is_last {
            host.flush()
        } else {
            host.leave_replies()
        }
        self.after_packets(qp, machine, host);
    }

    /// The same as [`Self::after`], for received packets: mostly only the timer has changed.
    #[inline(always)]
    fn after_packets(&self, qp: &Arc<QpCore>, machine: &mut qp::Qp, host: &NicHost<'_, '_>) {
        if !host.terms_changed && !host.has_more && self.is_settled(qp) {
            self.arm(qp, machine);
        } else {
            self.after(qp, machine, host.has_more);
        }
    }

    /// Lets at most `most` ready queue pairs continue sending. Returns whether there were any.
    fn serve_ready(&self, most: usize, mut tx: Option<&mut TxBatch>, now: Time) -> bool {
        let mut served = false;
        for _ in 0..most {
            let Some(qp) = self.polling.pop_ready() else { break };
            self.poll_qp(&qp, tx.as_deref_mut(), now, false);
            served = true;
        }
        served
    }

    fn run_timers(&self, progress: &mut Progress, now: Time) {
        for _ in 0..TIMERS_PER_POLL {
            let Some((qpn, at)) = self.polling.timers.pop_due(now) else { break };
            let Some(qp) = self.qps.get(qpn) else { continue };
            // Only if this is the entry that the queue pair has armed; an older one in the heap is stale.
            let _ = qp.timer_at.compare_exchange(at, u64::MAX, Ordering::Relaxed, Ordering::Relaxed);
            self.poll_qp(&qp, Some(&mut progress.tx), now, true);
        }
    }

    fn poll_qp(&self, qp: &Arc<QpCore>, tx: Option<&mut TxBatch>, now: Time, timer: bool) {
        let mut machine = qp.machine.lock();
        let mut host = NicHost::with(self, qp, tx);
        if timer {
            machine.handle_timeout(now, &mut host);
        }
        machine.poll_replies(now, &mut host);
        machine.poll_requests(now, &mut host);
        host.flush();
        self.after(qp, &mut machine, host.has_more);
    }

    /// The last steps before a queue pair's lock is released: its next deadline, more to send, a CQ that overran.
    pub(super) fn after(&self, qp: &Arc<QpCore>, machine: &mut qp::Qp, has_more: bool) {
        if qp.overrun.load(Ordering::Relaxed) {
            let mut tx = TxBatch::new();
            machine.fail(EventKind::QpFatal, now(), &mut NicHost::new(self, qp, &mut tx));
        }
        self.publish_qp(qp, machine);
        if has_more && self.polling.push_ready(qp) {
            self.activity.wake_before(0);
        }
        self.arm(qp, machine);
    }

    /// Arms the timer for the queue pair's next deadline.
    #[inline]
    pub(super) fn arm(&self, qp: &QpCore, machine: &qp::Qp) {
        if let Some(deadline) = machine.deadline()
            && self.polling.timers.arm(qp, deadline)
        {
            self.activity.wake_before(deadline.0);
        }
    }

    /// When the background thread must poll again although nothing arrives.
    pub(super) fn next_deadline_ns(&self) -> u64 {
        let ready = match &self.streams {
            Some(streams) => streams.next_ns(),
            None if self.polling.any_ready() => 0,
            None => u64::MAX,
        };
        let management = self.agent_ns.load(Ordering::SeqCst);
        self.polling.timers.next_ns().min(ready).min(management)
    }
}

impl Polling {
    /// Yields the processor, unless the poller keeps it after a long yield. Records whether another thread ran meanwhile.
    fn yield_processor(&self) {
        let before = now();
        if before.0 < self.keeps_until_ns.load(Ordering::Relaxed) {
            return;
        }
        std::thread::yield_now();
        let after = now();
        let away_ns = after.since_ns(before);
        if away_ns > BUSY_NS {
            self.keeps_until_ns.store(after.0 + (away_ns / KEPT_PART).min(KEPT_MOST_NS), Ordering::Relaxed);
        }
        let crowded = away_ns > CROWDED_NS;
        self.yields_after
            .store(if crowded { YIELDS_AFTER_IN_CROWD } else { YIELDS_AFTER }, Ordering::Relaxed);
    }
}

pub(super) fn touch(touched: &mut Vec<Arc<QpCore>>, qp: Arc<QpCore>) {
    if !qp.touched.swap(true, Ordering::Relaxed) {
        touched.push(qp);
    }
}
