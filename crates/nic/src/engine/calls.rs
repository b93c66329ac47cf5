//! What verbs do to a queue pair, on the caller's own thread: a post leaves for the wire before the call returns.

use super::Engine;
use super::host::NicHost;
use crate::error::Error;
use crate::link::{TxBatch, now};
use crate::objects::QpCore;
use ferroce_proto::Gid;
use ferroce_proto::qp::PostError;
use ferroce_proto::qp::state::AttrLimits;
use ferroce_proto::verbs::{AttrMask, QpAttr, QpState, RecvWr, Route, SendWr};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

thread_local! {
    /// Each thread's packets on their way out. Made on first use, reused ever after.
    static OUTGOING: RefCell<Option<Box<TxBatch>>> = const { RefCell::new(None) };
}

pub(super) fn with_outgoing<R>(work: impl FnOnce(&mut TxBatch) -> R) -> R {
    let kept = OUTGOING.try_with(|slot| slot.borrow_mut().take()).ok().flatten();
    let mut batch = kept.unwrap_or_else(|| Box::new(TxBatch::new()));
    let result = work(&mut batch);
    // A thread that is being torn down has no slot any more; then the batch is simply dropped.
    let _ = OUTGOING.try_with(|slot| *slot.borrow_mut() = Some(batch));
    result
}

impl Engine {
    /// Posts all requests, then rings one doorbell.
    pub(crate) fn post_send(&self, qp: &Arc<QpCore>, wrs: &[SendWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post_send_each(qp, |post| {
            wrs.iter().enumerate().try_for_each(|(n, wr)| post(wr).map_err(|error| (n, error)))
        })
    }

    /// Posts what `fill` hands over, then rings one doorbell.
    pub(crate) fn post_send_each<R>(
        &self,
        qp: &Arc<QpCore>,
        fill: impl FnOnce(&mut dyn FnMut(&SendWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        with_outgoing(|tx| {
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, qp, tx);
            // What is done at once needs no time, and to ask for it takes as long as the rest.
            let mut asked = None;
            let outcome = fill(&mut |wr| match machine.post_at_once(wr, &mut host) {
                true => Ok(()),
                false => machine.post_send(wr, *asked.get_or_insert_with(now), &mut host),
            });
            if machine.is_quiet() && !qp.overrun.load(Ordering::Relaxed) {
                return outcome;
            }
            let now = asked.unwrap_or_else(now);
            machine.poll_requests(now, &mut host);
            // An acknowledgement that was put off rides along: behind the data, in the same system call and often the
            // same segmentation batch.
            machine.poll_replies(now, &mut host);
            host.flush();
            let more = host.has_more;
            self.after(qp, machine, more, now);
            outcome
        })
    }

    pub(crate) fn post_recv(&self, qp: &Arc<QpCore>, wrs: &[RecvWr<'_>]) -> Result<(), (usize, PostError)> {
        self.post_recv_each(qp, |post| {
            wrs.iter().enumerate().try_for_each(|(n, wr)| post(wr).map_err(|error| (n, error)))
        })
    }

    pub(crate) fn post_recv_each<R>(
        &self,
        qp: &Arc<QpCore>,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        with_outgoing(|tx| {
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, qp, tx);
            // Time is of no interest to a receive, and reading the clock is most of what posting one costs.
            fill(&mut |wr| machine.post_recv(wr, ferroce_proto::Time(0), &mut host))
        })
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
        with_outgoing(|tx| {
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, qp, tx);
            machine.modify(attr, mask, route, limits, now, &mut host)?;
            // SQD or SQE back to RTS: what waited goes now.
            machine.poll_replies(now, &mut host);
            machine.poll_requests(now, &mut host);
            host.flush();
            let more = host.has_more;
            self.choose_path(qp, &machine);
            self.after(qp, machine, more, now);
            if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
                // A new life begins: completions of the old one would be taken for its own.
                qp.send_cq.purge(qp.qpn);
                qp.recv_cq.purge(qp.qpn);
            }
            Ok(())
        })
    }

    /// Takes a queue pair down. What the peer still waits for is sent first: it cannot know that we are gone.
    pub(crate) fn destroy(&self, qp: &Arc<QpCore>) {
        self.qps.remove(qp.qpn);
        self.forget_recent();
        with_outgoing(|tx| {
            let mut machine = qp.machine.lock();
            let mut host = NicHost::new(self, qp, tx);
            machine.poll_replies(now(), &mut host);
            host.flush();
            self.counters.retired.lock().add(&qp.tally);
            self.counters.retransmitted.fetch_add(machine.counters().retransmitted, Ordering::Relaxed);
            machine.retire();
            self.show(qp, &machine);
        });
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
