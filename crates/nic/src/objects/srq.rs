//! Shared receive queues, as programs hold them.

use super::cq::Cq;
use super::pd::Pd;
use crate::error::Error;
use crate::limits::DeviceLimits;
use crate::memory::{InFlight, PostedTo};
use crate::queues::{SrqAttr, SrqCore, XrcSide};
use crate::quota::Permit;
use crate::xrc::XrcDomain;
use ferroce_proto::Srqn;
use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::RecvWr;
use std::sync::Arc;

/// A shared receive queue.
pub struct Srq {
    pub(crate) core: Arc<SrqCore>,
    pd: Arc<Pd>,
    domain: Option<Arc<XrcDomain>>,
    _permit: Permit,
}

impl Pd {
    /// Creates a shared receive queue.
    pub fn create_srq(self: &Arc<Self>, max_wr: u32, max_sge: u32) -> Result<Srq, Error> {
        self.nic.alive()?;
        check_sizes(max_wr, max_sge, &self.nic.limits)?;
        let _permit = self.nic.quotas.srqs.take()?;
        let core = Arc::new(self.srq_core(max_wr, max_sge, None));
        Ok(Srq { core, pd: self.clone(), domain: None, _permit })
    }

    /// Creates an XRC shared receive queue. Requests that arrive at any receiving end of the domain select it by its number, and its
    /// completions go to `cq`.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        max_wr: u32,
        max_sge: u32,
        domain: &Arc<XrcDomain>,
        cq: &Cq,
    ) -> Result<Srq, Error> {
        self.nic.alive()?;
        check_sizes(max_wr, max_sge, &self.nic.limits)?;
        if !domain.belongs_to(&self.nic) {
            return Err(Error::Invalid { attribute: "xrcd", why: "belongs to another device" });
        }
        if !cq.belongs_to(&self.nic) {
            return Err(Error::Invalid { attribute: "cq", why: "belongs to another device" });
        }
        let _permit = self.nic.quotas.srqs.take()?;
        let make = |number| {
            let (domain, pd, cq) = (domain.id(), self.id, cq.core.clone());
            Arc::new(self.srq_core(max_wr, max_sge, Some(XrcSide { number, domain, pd, cq })))
        };
        let core = self.nic.engine.device.srqs.insert(make).ok_or(Error::Exhausted {
            what: "XRC shared receive queues",
            limit: crate::engine::MAX_XRC_SRQ as u64,
        })?;
        // Receiving ends of an XRC domain belong to the first context.
        self.nic.more.enter_first(&cq.core);
        Ok(Srq { core, pd: self.clone(), domain: Some(domain.clone()), _permit })
    }

    fn srq_core(&self, max_wr: u32, max_sge: u32, xrc: Option<XrcSide>) -> SrqCore {
        let id = self.nic.next_id();
        SrqCore::new(
            id,
            max_wr,
            max_sge,
            xrc,
            self.events.clone(),
            self.nic.config.strict.is_some(),
            self.nic.watch.map(|watch| InFlight::new(watch, PostedTo::Srq(id), self.id)),
        )
    }
}

fn check_sizes(max_wr: u32, max_sge: u32, limits: &DeviceLimits) -> Result<(), Error> {
    if max_wr == 0 {
        return Err(Error::Invalid {
            attribute: "max_wr",
            why: "a shared receive queue needs at least one entry",
        });
    }
    Error::check_limit("max_wr", max_wr.into(), limits.max_srq_wr.into())?;
    Error::check_limit("max_sge", max_sge.into(), limits.max_srq_sge.into())
}

impl Srq {
    /// Number within the device. Events identify it by this number.
    pub fn id(&self) -> u32 {
        self.core.id
    }

    /// The number by which peers select it, if it is an XRC one.
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

    /// Adds receives, oldest first. On error the first `n` were added.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, Error)> {
        self.pd.nic.alive().map_err(|e| (0, e))?;
        self.post_each(|post| {
            wrs.iter().enumerate().try_for_each(|(n, wr)| post(wr).map_err(|e| (n, e.into())))
        })
    }

    /// Adds the receives that `fill` passes, in order, under one lock.
    pub fn post_recv_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> Result<R, Error> {
        self.pd.nic.alive()?;
        Ok(self.post_each(fill))
    }

    #[inline(always)] // as that of the core
    fn post_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        let Some(in_flight) = &self.core.in_flight else { return self.core.post_each(fill) };
        let regions = &self.pd.nic.engine.device.regions;
        self.core.post_each(|post| fill(&mut |wr| in_flight.receive(regions, wr, || post(wr))))
    }

    /// Arms the limit event: raised once, when fewer than `limit` receives wait.
    pub fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        self.pd.nic.alive()?;
        self.core.arm_limit(limit)
    }

    /// Changes how many receives may wait.
    pub fn resize(&self, max_wr: u32) -> Result<(), Error> {
        self.pd.nic.alive()?;
        Error::check_limit("max_wr", max_wr.into(), self.pd.nic.limits.max_srq_wr.into())?;
        if max_wr == 0 || !self.core.resize(max_wr) {
            return Err(Error::Invalid { attribute: "max_wr", why: "more receives than that are waiting" });
        }
        Ok(())
    }

    /// Its attributes.
    pub fn query(&self) -> SrqAttr {
        self.core.query()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        if let Some(xrc) = &self.core.xrc
            && self.pd.nic.alive().is_ok()
        {
            self.pd.nic.engine.device.srqs.remove(xrc.number);
        }
        self.pd.nic.watch.iter().for_each(|watch| watch.forget(PostedTo::Srq(self.core.id)));
    }
}
