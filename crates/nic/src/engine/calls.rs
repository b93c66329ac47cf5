//! What verbs do to a queue pair, on the caller's own thread: a post leaves for the wire before the call returns.

use super::host::NicHost;
use super::{Engine, QpCore};
use crate::error::Error;
use crate::link::now;
use crate::lock::MutexGuard;
use crate::raw::RawQp;
use ferroce_proto::qp::state::AttrLimits;
use ferroce_proto::qp::{self, PlainSend, PlainWrite, PostError};
use ferroce_proto::verbs::{AttrMask, QpAttr, QpState, RecvWr, Route, SendOp, SendWr};
use ferroce_proto::{Gid, Time};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A queue pair that is being posted to. It is locked meanwhile.
pub struct Posting<'a> {
    // Goes before the lock does.
    host: NicHost<'a, 'a>,
    machine: MutexGuard<'a, qp::Qp>,
    /// The time, once somebody wanted to know it.
    asked: Option<Time>,
    /// Nothing was posted but what was sent or done at once.
    is_plain: bool,
    raw: Option<&'a RawQp>,
}

impl Posting<'_> {
    /// Takes a request.
    #[inline(always)]
    pub fn post(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if let (SendOp::Write { addr, rkey }, flags, data) = (wr.op, wr.flags, wr.payload)
            && self.write_at_once(PlainWrite { wr_id: wr.wr_id, flags, addr, rkey, data })
        {
            return Ok(());
        }
        if PlainSend::of(wr).is_some_and(|send| self.send_at_once(send)) {
            return Ok(());
        }
        self.post_any(wr)
    }

    /// Takes a WRITE if it can be done at once and nothing has to be looked up for it. False: nothing was done, and
    /// [`Self::post_any`] takes it or says what is wrong with it.
    #[inline(always)]
    pub fn write_at_once(&mut self, write: PlainWrite<'_>) -> bool {
        self.raw.is_none() && self.machine.write_at_once(write, &mut self.host)
    }

    /// The same for a message that can be sent at once.
    #[inline(always)]
    pub fn send_at_once(&mut self, send: PlainSend<'_>) -> bool {
        let Posting { host, machine, asked, raw, .. } = self;
        host.ask_for_ring();
        raw.is_none() && machine.send_at_once(send, host, || *asked.get_or_insert_with(now))
    }

    /// Takes any request, without those short ways.
    #[inline(always)]
    pub fn post_any(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        if let Some(raw) = self.raw {
            return raw.post_send(wr);
        }
        // What is done at once needs no time, and to ask for it takes as long as the rest.
        if self.machine.post_at_once(wr, &mut self.host) { Ok(()) } else { self.enqueue(wr) }
    }

    /// The same for requests that are posted seldom, and whose code shall not be in the way.
    #[inline(never)]
    pub fn post_seldom(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.post_any(wr)
    }

    /// Says whether the next request is the last one of the list: then it need not wait for others.
    #[inline(always)]
    pub fn is_last(&mut self, is_last: bool) {
        self.host.is_last = is_last;
    }

    #[inline(never)]
    fn enqueue(&mut self, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.is_plain = false;
        let now = *self.asked.get_or_insert_with(now);
        self.machine.post_send(wr, now, &mut self.host)?;
        self.machine.send_express(now, &mut self.host);
        Ok(())
    }
}

impl Engine {
    /// Posts what `fill` hands over, then rings one doorbell. Requests of a queue pair for raw packets go to `raw`.
    #[inline(always)] // both callers have one kind of list each
    pub(crate) fn post_send_each<R>(
        &self,
        qp: &Arc<QpCore>,
        raw: Option<&RawQp>,
        fill: impl FnOnce(&mut Posting<'_>) -> R,
    ) -> R {
        let machine = qp.machine.lock();
        let mut posting =
            Posting { host: NicHost::alone(self, qp), machine, asked: None, is_plain: true, raw };
        let outcome = fill(&mut posting);
        if !posting.machine.is_quiet() || qp.overrun.load(Ordering::Relaxed) {
            self.ring(qp, posting);
        }
        outcome
    }

    /// The doorbell: what was posted leaves.
    #[inline(never)]
    fn ring(&self, qp: &Arc<QpCore>, posting: Posting<'_>) {
        let Posting { mut host, mut machine, asked, is_plain, .. } = posting;
        // What was sent at once left nothing behind, but that somebody must look after it.
        if is_plain && asked.is_some() && !machine.has_replies() && self.is_settled(qp) {
            host.flush();
            drop(host);
            return self.arm(qp, &machine);
        }
        let now = asked.unwrap_or_else(now);
        if machine.has_unsent() {
            machine.poll_requests(now, &mut host);
        }
        // An acknowledgement that was put off rides along: behind the data, in the same system call and often the
        // same segmentation batch.
        if machine.has_replies() {
            machine.poll_replies(now, &mut host);
        }
        host.flush();
        let more = host.has_more;
        self.after(qp, machine, more);
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
        let now = now();
        let mut machine = qp.machine.lock();
        let mut host = NicHost::alone(self, qp);
        machine.modify(attr, mask, route, limits, now, &mut host)?;
        // SQD or SQE back to RTS: what waited goes now.
        machine.poll_replies(now, &mut host);
        machine.poll_requests(now, &mut host);
        host.flush();
        let more = host.has_more;
        self.choose_path(qp, &machine);
        self.after(qp, machine, more);
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            // A new life begins: completions of the old one would be taken for its own.
            qp.send_cq.purge(qp.qpn);
            qp.recv_cq.purge(qp.qpn);
        }
        Ok(())
    }

    /// Takes a queue pair down. What the peer still waits for is sent first: it cannot know that we are gone.
    pub(crate) fn destroy(&self, qp: &Arc<QpCore>) {
        self.qps.remove(qp.qpn);
        let mut machine = qp.machine.lock();
        let mut host = NicHost::alone(self, qp);
        machine.poll_replies(now(), &mut host);
        host.flush();
        self.counters.retired.lock().add(&qp.tally);
        self.counters.retransmitted.fetch_add(machine.counters().retransmitted, Ordering::Relaxed);
        machine.retire();
        self.show(qp, &machine);
        drop(host);
        drop(machine);
        self.forget_recent();
        qp.send_cq.purge(qp.qpn);
        qp.recv_cq.purge(qp.qpn);
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
