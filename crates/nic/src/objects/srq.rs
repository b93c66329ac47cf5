//! Shared receive queues.

use super::event::{EventQueue, EventSource};
use super::pd::Pd;
use crate::error::Error;
use crate::nic::MAX_SGE;
use ferroce_proto::qp::{PostError, RecvQueue, RecvWqe};
use ferroce_proto::verbs::{EventKind, RecvWr};
use parking_lot::Mutex;
use std::sync::Arc;

/// Most receives that wait in a shared receive queue.
pub const MAX_SRQ_WR: u32 = 1 << 20;

struct State {
    queue: RecvQueue,
    /// An event is due when fewer than this many wait; 0 = not asked for.
    limit: u32,
}

impl State {
    fn post(&mut self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let max = self.queue.max_sge();
        if wr.sges.len() > max {
            return Err(PostError::TooManySges { given: wr.sges.len(), max });
        }
        if !self.queue.push(wr) {
            return Err(PostError::QueueFull { depth: self.queue.depth() });
        }
        Ok(())
    }
}

pub(crate) struct SrqCore {
    pub(crate) id: u32,
    state: Mutex<State>,
    events: Arc<EventQueue>,
}

impl SrqCore {
    pub(crate) fn take(&self, into: &mut RecvWqe) -> bool {
        let mut state = self.state.lock();
        let taken = state.queue.pop(into);
        if state.limit > 0 && state.queue.len() < state.limit as usize {
            // One event per arming (IBA 10.2.9.2).
            state.limit = 0;
            self.events.raise(EventKind::SrqLimitReached, EventSource::Srq(self.id));
        }
        taken
    }
}

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttr {
    /// Most requests waiting.
    pub max_wr: u32,
    /// Most entries of each.
    pub max_sge: u32,
    /// The armed limit, 0 for none.
    pub limit: u32,
}

/// A shared receive queue.
pub struct Srq {
    pub(crate) core: Arc<SrqCore>,
    pd: Arc<Pd>,
}

impl Pd {
    /// Makes a shared receive queue.
    pub fn create_srq(self: &Arc<Self>, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        self.nic.alive()?;
        if max_wr == 0 {
            return Err(Error::Invalid {
                attribute: "max_wr",
                why: "a shared receive queue needs at least one entry",
            });
        }
        Error::check_limit("max_wr", max_wr.into(), MAX_SRQ_WR.into())?;
        Error::check_limit("max_sge", max_sge.into(), MAX_SGE.into())?;
        let core = Arc::new(SrqCore {
            id: self.nic.next_id(),
            state: Mutex::new(State { queue: RecvQueue::new(max_wr, max_sge.max(1)), limit: 0 }),
            events: self.events.clone(),
        });
        Ok(Srq { core, pd: self.clone() })
    }
}

impl Srq {
    /// Number within the device: what events name it by.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Adds receives, oldest first. On error the first `n` were taken.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, Error)> {
        self.pd.nic.alive().map_err(|e| (0, e))?;
        let mut state = self.core.state.lock();
        for (n, wr) in wrs.iter().enumerate() {
            state.post(wr).map_err(|e| (n, e.into()))?;
        }
        Ok(())
    }

    /// Adds the receives that `fill` hands over, in order, under one lock.
    pub fn post_recv_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> Result<R, Error> {
        self.pd.nic.alive()?;
        let mut state = self.core.state.lock();
        Ok(fill(&mut |wr| state.post(wr)))
    }

    /// Arms the limit event: raised once, when fewer than `limit` receives wait.
    pub fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        self.pd.nic.alive()?;
        let mut state = self.core.state.lock();
        Error::check_limit("srq_limit", limit.into(), state.queue.depth() as u64)?;
        state.limit = limit;
        Ok(())
    }

    /// Changes how many receives may wait.
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        self.pd.nic.alive()?;
        Error::check_limit("max_wr", max_wr.into(), MAX_SRQ_WR.into())?;
        if max_wr == 0 || !self.core.state.lock().queue.resize(max_wr) {
            return Err(Error::Invalid { attribute: "max_wr", why: "more receives than that are waiting" });
        }
        Ok(())
    }

    /// What it is made of.
    pub fn query(&self) -> SrqAttr {
        let state = self.core.state.lock();
        SrqAttr {
            max_wr: state.queue.depth() as u32,
            max_sge: state.queue.max_sge() as u32,
            limit: state.limit,
        }
    }
}
