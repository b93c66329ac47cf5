//! Shared receive queues, as queue pairs take from them.

use super::cq::CqCore;
use super::event::{EventQueue, EventSource};
use crate::error::Error;
use crate::memory::InFlight;
use ferroce_os::lock::Mutex;
use ferroce_proto::qp::{PostError, RecvQueue, RecvWqe};
use ferroce_proto::verbs::{EventKind, RecvWr};
use ferroce_proto::{PdId, Qpn, Srqn};
use std::sync::{Arc, Weak};

struct State {
    queue: RecvQueue,
    /// An event is due when fewer than this many receives wait. 0 if it is not armed.
    limit: u32,
}

impl State {
    fn post(&mut self, wr: &RecvWr<'_>, unpolled: usize) -> Result<(), PostError> {
        let max = self.queue.max_sge();
        if wr.sges.len() > max {
            return Err(PostError::TooManySges { given: wr.sges.len(), max });
        }
        let (depth, posted) = (self.queue.depth(), self.queue.len());
        if unpolled > 0 && posted + unpolled >= depth {
            return Err(PostError::SrqNotPolled { depth, posted, unpolled });
        }
        if !self.queue.push(wr) {
            return Err(PostError::QueueFull { depth: self.queue.depth() });
        }
        Ok(())
    }
}

/// What makes a shared receive queue an XRC one.
pub(crate) struct XrcSide {
    pub(crate) number: Srqn,
    pub(crate) domain: u32,
    pub(crate) pd: PdId,
    /// The queue for completions of receives from here, whichever queue pair took them.
    pub(crate) cq: Arc<CqCore>,
}

/// Queue pairs, and the completion queues of their receives.
type Users = Mutex<Vec<(Qpn, Weak<CqCore>)>>;

pub(crate) struct SrqCore {
    pub(crate) id: u32,
    pub(crate) xrc: Option<XrcSide>,
    state: Mutex<State>,
    events: Arc<EventQueue>,
    /// Strict mode: its queue pairs, and where completions of their receives go.
    users: Option<Users>,
    /// `Some` with `Config::watch`.
    pub(crate) in_flight: Option<InFlight>,
}

impl SrqCore {
    pub(crate) fn new(
        id: u32,
        max_wr: u32,
        max_sge: u32,
        xrc: Option<XrcSide>,
        events: Arc<EventQueue>,
        is_strict: bool,
        in_flight: Option<InFlight>,
    ) -> SrqCore {
        let state = State { queue: RecvQueue::new(max_wr, max_sge.max(1)), limit: 0 };
        SrqCore {
            id,
            xrc,
            state: Mutex::new(state),
            events,
            users: is_strict.then(Mutex::default),
            in_flight,
        }
    }

    /// Takes the oldest receive for a queue pair. Returns whether there was one.
    pub(crate) fn take(&self, qpn: Qpn, into: &mut RecvWqe) -> bool {
        let mut state = self.state.lock();
        let taken = state.queue.pop(into);
        if taken && let Some(in_flight) = &self.in_flight {
            in_flight.taken_by(qpn);
        }
        if state.limit > 0 && state.queue.len() < state.limit as usize {
            // One event per arming (IBA 10.2.9.2).
            state.limit = 0;
            self.events.raise(EventKind::SrqLimitReached, EventSource::Srq(self.id));
        }
        taken
    }

    /// Adds the receives that `fill` passes, in order, under one lock.
    #[inline(always)] // `fill` then posts without a call through a pointer
    pub(crate) fn post_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        let unpolled = self.users.as_ref().map_or(0, unpolled_of);
        let mut state = self.state.lock();
        fill(&mut |wr| state.post(wr, unpolled))
    }

    /// Strict mode: a queue pair takes receives from here. A NIC frees them when their completions are polled.
    pub(crate) fn add_user(&self, qpn: Qpn, cq: &Arc<CqCore>) {
        self.users.iter().for_each(|users| users.lock().push((qpn, Arc::downgrade(cq))));
    }

    /// Removes a queue pair that was destroyed. Its completions were purged.
    pub(crate) fn remove_user(&self, qpn: Qpn) {
        self.users.iter().for_each(|users| users.lock().retain(|(user, _)| *user != qpn));
    }

    /// Arms the limit event.
    pub(crate) fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        let mut state = self.state.lock();
        Error::check_limit("srq_limit", limit.into(), state.queue.depth() as u64)?;
        state.limit = limit;
        Ok(())
    }

    /// Changes how many receives may wait. Returns `false` if more are waiting.
    pub(crate) fn resize(&self, max_wr: u32) -> bool {
        self.state.lock().queue.resize(max_wr)
    }

    /// Its attributes.
    pub(crate) fn query(&self) -> SrqAttr {
        let state = self.state.lock();
        SrqAttr {
            max_wr: state.queue.depth() as u32,
            max_sge: state.queue.max_sge() as u32,
            limit: state.limit,
        }
    }
}

/// Completions of receives of these queue pairs that wait to be polled.
#[cold]
#[inline(never)]
fn unpolled_of(users: &Users) -> usize {
    let users = users.lock();
    users.iter().filter_map(|(qpn, cq)| Some(cq.upgrade()?.unpolled_of(*qpn).1)).sum()
}

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SrqAttr {
    /// Most requests waiting.
    pub max_wr: u32,
    /// Most entries of each.
    pub max_sge: u32,
    /// The armed limit, 0 for none.
    pub limit: u32,
}
