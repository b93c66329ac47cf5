//! What verbs do to a queue pair on the caller's own thread. A posted request is normally sent before the call returns.

use super::host::NicHost;
use super::strict::SendQueueDepth;
use super::{Engine, LOCK_PATIENCE, QpCore, StreamEnd};
use crate::counters::Tally;
use crate::error::Error;
use crate::link::now;
use crate::memory::settle_stopped;
use crate::raw::RawQp;
use ferroce_os::lock::{Mutex, MutexGuard, lock_within};
use ferroce_proto::qp::state::AttrLimits;
use ferroce_proto::qp::{self, Attempt, PostError, Posted};
use ferroce_proto::verbs::{AttrMask, QpAttr, QpCap, QpState, RecvWr, Route, SendOp, SendWr};
use ferroce_proto::{Gid, Time};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A queue pair that is being posted to. Holds its lock.
pub struct Posting<'a> {
    // Dropped before the lock is released.
    host: NicHost<'a, 'a>,
    machine: MutexGuard<'a, qp::Qp>,
    /// The time, once a packet that was sent has armed a timer or started an RTT sample.
    read_time: Option<Time>,
    /// Every request so far took a fast path: none is queued.
    is_plain: bool,
    slow_path: Option<&'a SlowPath>,
}

/// Why posts to a queue pair do not take the fast path.
pub(crate) enum SlowPath {
    /// It is for raw packets.
    Raw(Box<RawQp>),
    /// Its wire is iWARP.
    Stream,
    /// Strict mode.
    Strict(Mutex<SendQueueDepth>),
}

impl Posting<'_> {
    /// Posts the request that `wr` returns. `wr` may be called several times and must return the same request each time. So the caller's
    /// request is read in place instead of being copied first.
    #[inline(always)] // the operation is often a constant in the caller
    pub fn post<'a>(&mut self, wr: impl Fn() -> SendWr<'a>) -> Result<(), PostError> {
        if let Some(slow_path) = self.slow_path {
            return self.post_slow(slow_path, &wr());
        }
        let Posting { host, machine, read_time, .. } = self;
        if let SendOp::Send = wr().op {
            host.prefetch_ring();
        }
        if machine.post_send(wr, || *read_time.get_or_insert_with(now), host)? == Posted::Queued {
            self.is_plain = false;
        }
        Ok(())
    }

    #[inline(never)]
    fn post_slow(&mut self, slow_path: &SlowPath, wr: &SendWr<'_>) -> Result<(), PostError> {
        let NicHost { engine, qp, .. } = self.host;
        // The machine of a raw or stream queue pair has this attribute, too.
        let is_signaled = self.machine.signals(wr.flags);
        let mut post = || self.post_unwatched(slow_path, wr, is_signaled);
        match &qp.in_flight {
            Some(in_flight) => in_flight.send(&engine.device.regions, wr, is_signaled, post),
            None => post(),
        }
    }

    fn post_unwatched(
        &mut self,
        slow_path: &SlowPath,
        wr: &SendWr<'_>,
        is_signaled: bool,
    ) -> Result<(), PostError> {
        let depth = match slow_path {
            SlowPath::Raw(raw) => return raw.post_send(wr),
            SlowPath::Stream => return self.host.post_stream(wr),
            SlowPath::Strict(depth) => depth,
        };
        let Posting { host, machine, read_time, .. } = self;
        let mut depth = depth.lock();
        depth.check(0, host.qp, machine)?;
        let posted = machine.post_send(|| *wr, || *read_time.get_or_insert_with(now), host)?;
        if posted == Posted::Queued {
            self.is_plain = false;
        }
        depth.count(is_signaled);
        Ok(())
    }

    /// Executes a request immediately, or does nothing. Only [`Self::post`] queues requests and reports errors.
    pub fn try_post(&mut self, wr: &SendWr<'_>) -> Attempt {
        let Posting { host, machine, read_time, slow_path, .. } = self;
        match slow_path {
            Some(_) => Attempt::Declined,
            None => machine.try_post(|| *wr, || *read_time.get_or_insert_with(now), host),
        }
    }

    /// The same as [`Self::post`], not inlined, for requests that are rare.
    #[inline(never)]
    pub fn post_seldom(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post(|| *wr)
    }

    /// Sends that can be posted before the queue is full.
    pub fn room(&self) -> usize {
        match self.slow_path {
            // It never has a request outstanding.
            Some(SlowPath::Raw(raw)) => raw.query().cap.max_send_wr as usize,
            Some(SlowPath::Stream) => self.host.stream_room(),
            Some(SlowPath::Strict(..)) | None => self.machine.send_room(),
        }
    }

    /// Checks that [`Self::post`] accepts a request after `ahead` others that are also to be posted, if [`Self::room`] suffices for all of
    /// them. The caller can then post all requests or none.
    pub fn check(&self, ahead: usize, wr: &SendWr<'_>) -> Result<(), PostError> {
        match self.slow_path {
            Some(SlowPath::Raw(raw)) => return raw.check_send(wr).map(|_| ()),
            Some(SlowPath::Stream) => return self.host.check_stream(wr),
            Some(SlowPath::Strict(depth)) => depth.lock().check(ahead, self.host.qp, &self.machine)?,
            None => {}
        }
        self.machine.check_send(wr).map(|_| ())
    }

    /// The sizes of the queue pair.
    pub fn cap(&self) -> QpCap {
        match self.slow_path {
            Some(SlowPath::Raw(raw)) => raw.query().cap,
            // `machine` is a stub without queues.
            Some(SlowPath::Stream) => self.host.stream_cap(),
            Some(SlowPath::Strict(..)) | None => *self.machine.cap(),
        }
    }

    /// Sets whether the next request is the last one of the list. The last one need not wait for others.
    #[inline(always)]
    pub fn is_last(&mut self, is_last: bool) {
        self.host.is_last = is_last;
    }
}

impl Engine {
    /// Posts the requests that `fill` passes, then rings one doorbell.
    #[inline(always)] // both callers have one kind of list each
    pub(crate) fn post_send_each<R>(
        &self,
        qp: &Arc<QpCore>,
        slow_path: Option<&SlowPath>,
        fill: impl FnOnce(&mut Posting<'_>) -> R,
    ) -> R {
        let machine = qp.machine.lock();
        let mut posting =
            Posting { host: NicHost::alone(self, qp), machine, read_time: None, is_plain: true, slow_path };
        let outcome = fill(&mut posting);
        // The machine of a raw or stream queue pair is always quiet.
        if !posting.machine.is_quiet() || qp.overrun.load(Ordering::Relaxed) {
            self.ring(qp, &mut posting);
        }
        outcome
    }

    /// The doorbell: sends the posted requests.
    #[inline(never)]
    fn ring(&self, qp: &Arc<QpCore>, posting: &mut Posting<'_>) {
        let Posting { host, machine, read_time, is_plain, .. } = posting;
        let is_queued = !*is_plain && read_time.is_none() && !qp.overrun.load(Ordering::Relaxed);
        if is_queued && machine.may_coalesce(host) {
            self.polling.push_ready(qp);
            return;
        }
        // After the fast path at most a timer must be armed. If no request has read the time, that timer runs already.
        if *is_plain && !machine.has_unsent() && !machine.has_replies() && self.is_settled(qp) {
            host.flush();
            self.polling.unsent_ack.clear_if(qp.qpn);
            if read_time.is_some() {
                self.arm(qp, machine);
            }
            return;
        }
        let _call = self.activity.begin_call();
        let now = read_time.unwrap_or_else(now);
        // Queued requests leave as one batch.
        host.is_last = false;
        if machine.has_unsent() {
            machine.poll_requests(now, host);
        }
        // A delayed ACK that no request carried follows the data, in the same system call and often in the same GSO run.
        if machine.has_replies() {
            machine.poll_replies(now, host);
        }
        host.flush();
        self.after(qp, machine, host.has_more);
    }

    /// Sends the coalesced requests of a queue pair that is about to be modified or destroyed.
    fn send_coalesced_of(&self, qp: &QpCore, machine: &mut qp::Qp, host: &mut NicHost<'_, '_>) {
        if qp.ready.load(Ordering::Relaxed) && machine.has_unsent() {
            machine.poll_requests(now(), host);
            host.flush();
        }
    }

    pub(crate) fn post_recv(&self, qp: &Arc<QpCore>, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post_recv_each(qp, |post| {
            wrs.iter().enumerate().try_for_each(|(n, wr)| post(wr).map_err(|error| (n, error)))
        })
    }

    #[inline(always)] // as in `Qp`
    pub(crate) fn post_recv_each<R>(
        &self,
        qp: &Arc<QpCore>,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        let mut machine = qp.machine.lock();
        let mut must_flush = false;
        let outcome = fill(&mut |wr| {
            must_flush |= machine.queue_recv(wr)?;
            Ok(())
        });
        if must_flush {
            machine.flush_posted(now(), &mut NicHost::alone(self, qp));
        }
        outcome
    }

    pub(crate) fn modify(
        &self,
        qp: &Arc<QpCore>,
        attr: &QpAttr,
        mask: AttrMask,
        route: Option<Route>,
        limits: &AttrLimits,
    ) -> Result<(), Error> {
        let resets = mask.contains(AttrMask::STATE) && attr.state == QpState::Reset;
        let stops = resets || mask.contains(AttrMask::STATE) && attr.state == QpState::Err;
        if stops {
            self.drive_before_stop();
        }
        let now = now();
        let mut machine = qp.machine.lock();
        // The path may be another one after this call.
        qp.jumbo_path.invalidate();
        let mut host = NicHost::alone(self, qp);
        self.send_coalesced_of(qp, &mut machine, &mut host);
        machine.modify(attr, mask, route, limits, now, &mut host)?;
        if resets {
            // It has no peer any more. Opened earlier, it would let in one that has not proven its key.
            qp.is_shut.store(false, Ordering::Relaxed);
        }
        if stops {
            settle_stopped(qp.address());
        }
        // SQD or SQE back to RTS: send what waited.
        machine.poll_replies(now, &mut host);
        machine.poll_requests(now, &mut host);
        host.flush();
        self.choose_path(qp, &machine);
        self.after(qp, &mut machine, host.has_more);
        drop(machine);
        if stops {
            self.wait_for_accesses(qp);
        }
        if resets {
            // The QP starts anew: completions from before the reset would be taken for new ones.
            qp.send_cq.purge(qp.qpn);
            qp.recv_cq.purge(qp.qpn);
        }
        Ok(())
    }

    /// Destroys a queue pair. Replies that the peer still waits for are sent first: nothing else notifies it that this end is gone.
    pub(crate) fn destroy(&self, qp: &Arc<QpCore>) {
        if let Some(stream) = qp.stream() {
            return self.destroy_stream(qp, stream);
        }
        self.drive_before_stop();
        let mut machine = qp.machine.lock();
        let mut host = NicHost::alone(self, qp);
        self.send_coalesced_of(qp, &mut machine, &mut host);
        machine.poll_replies(now(), &mut host);
        host.flush();
        self.retire(qp, machine.counters().retransmitted, |_| ());
        machine.retire();
        settle_stopped(qp.address());
        self.publish_qp(qp, &machine);
        drop(host);
        drop(machine);
        self.wait_for_accesses(qp);
        self.forget_recent();
        qp.send_cq.purge(qp.qpn);
        qp.recv_cq.purge(qp.qpn);
    }

    /// Removes a queue pair from the table and adds its counters to those of destroyed ones, in one step for a [report](Self::report). `more`
    /// adds further counters. The caller holds the lock of the queue pair.
    pub(super) fn retire(&self, qp: &QpCore, retransmitted: u64, more: impl FnOnce(&Tally)) {
        let counters = &self.device.counters;
        let retired = counters.retired.lock();
        retired.add(&qp.tally);
        more(&retired);
        counters.retransmitted.fetch_add(retransmitted, Ordering::Relaxed);
        self.qps.remove(qp.qpn);
    }

    /// Whether every queue pair could be locked, each within [`LOCK_PATIENCE`]. A lock that stays taken belongs to a thread that no longer
    /// runs. At the exit of a process this is the exiting thread, if a signal handler called `exit`. It may hold locks of the link, too.
    pub(crate) fn no_call_blocks(&self) -> bool {
        self.qps.all().iter().all(|qp| {
            let is_free = |stream: &StreamEnd| lock_within(&stream.machine, LOCK_PATIENCE).is_some();
            lock_within(&qp.machine, LOCK_PATIENCE).is_some() && qp.stream().is_none_or(is_free)
        })
    }

    pub(crate) fn attach(&self, qp: &Arc<QpCore>, group: Gid) -> Result<(), Error> {
        self.link.join_multicast(group).map_err(Error::system("joining the multicast group"))?;
        self.groups.join(qp, group);
        Ok(())
    }

    pub(crate) fn detach(&self, qp: &Arc<QpCore>, group: Gid) -> Result<(), Error> {
        self.groups.leave(qp, group);
        self.link.leave_multicast(group).map_err(Error::system("leaving the multicast group"))
    }
}

#[cfg(test)]
mod tests;
