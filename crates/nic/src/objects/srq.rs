//! Shared receive queues.

use super::cq::{Cq, CqCore};
use super::event::{EventQueue, EventSource};
use super::pd::Pd;
use super::xrc::XrcDomain;
use crate::error::Error;
use crate::lock::Mutex;
use crate::nic::MAX_SGE;
use ferroce_proto::qp::{PostError, RecvQueue, RecvWqe};
use ferroce_proto::verbs::{EventKind, RecvWr};
use ferroce_proto::{PdId, Srqn};
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

/// What makes a shared receive queue an XRC one.
pub(crate) struct XrcSide {
    pub(crate) number: Srqn,
    pub(crate) domain: u32,
    pub(crate) pd: PdId,
    /// Completions of receives taken from here go there, whichever queue pair took them.
    pub(crate) cq: Arc<CqCore>,
}

pub(crate) struct SrqCore {
    pub(crate) id: u32,
    pub(crate) xrc: Option<XrcSide>,
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
#[non_exhaustive]
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
    domain: Option<Arc<XrcDomain>>,
}

impl Pd {
    /// Makes a shared receive queue.
    pub fn create_srq(self: &Arc<Self>, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        self.nic.alive()?;
        check_sizes(max_wr, max_sge)?;
        let core = Arc::new(self.srq_core(max_wr, max_sge, None));
        Ok(Srq { core, pd: self.clone(), domain: None })
    }

    /// Makes an XRC shared receive queue: peers name it by its number, through any receiving end of the domain, and
    /// its completions go to `cq`.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        max_wr: u32,
        max_sge: u32,
        domain: &Arc<XrcDomain>,
        cq: &Cq,
    ) -> Result<Srq, Error> {
        self.nic.alive()?;
        check_sizes(max_wr, max_sge)?;
        if !domain.belongs_to(&self.nic) {
            return Err(Error::Invalid { attribute: "xrcd", why: "belongs to another device" });
        }
        if !cq.belongs_to(&self.nic) {
            return Err(Error::Invalid { attribute: "cq", why: "belongs to another device" });
        }
        let make = |number| {
            let (domain, pd, cq) = (domain.id(), self.id, cq.core.clone());
            Arc::new(self.srq_core(max_wr, max_sge, Some(XrcSide { number, domain, pd, cq })))
        };
        let core = self.nic.engine.srqs.insert(make).ok_or(Error::Exhausted {
            what: "XRC shared receive queues",
            limit: crate::engine::MAX_XRC_SRQ as u64,
        })?;
        Ok(Srq { core, pd: self.clone(), domain: Some(domain.clone()) })
    }

    fn srq_core(&self, max_wr: u32, max_sge: u32, xrc: Option<XrcSide>) -> SrqCore {
        SrqCore {
            id: self.nic.next_id(),
            xrc,
            state: Mutex::new(State { queue: RecvQueue::new(max_wr, max_sge.max(1)), limit: 0 }),
            events: self.events.clone(),
        }
    }
}

fn check_sizes(max_wr: u32, max_sge: u32) -> Result<(), Error> {
    if max_wr == 0 {
        return Err(Error::Invalid {
            attribute: "max_wr",
            why: "a shared receive queue needs at least one entry",
        });
    }
    Error::check_limit("max_wr", max_wr.into(), MAX_SRQ_WR.into())?;
    Error::check_limit("max_sge", max_sge.into(), MAX_SGE.into())
}

impl Srq {
    /// Number within the device: what events name it by.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// The number that peers name it by, if it is an XRC one.
    pub fn number(&self) -> Option<Srqn> {
        self.core.xrc.as_ref().map(|xrc| xrc.number)
    }

    /// Its XRC domain, if it is an XRC one.
    pub fn xrc_domain(&self) -> Option<&Arc<XrcDomain>> {
        self.domain.as_ref()
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

impl Drop for Srq {
    fn drop(&mut self) {
        if let Some(xrc) = &self.core.xrc
            && self.pd.nic.alive().is_ok()
        {
            self.pd.nic.engine.srqs.remove(xrc.number);
        }
    }
}
