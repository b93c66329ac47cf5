//! Queue pairs, as programs hold them.

use super::cq::Cq;
use super::pd::Pd;
use super::srq::Srq;
use crate::config::Wire;
use crate::congestion;
use crate::engine::{Engine, Posting, QpCore, QpQueues, RecvQueueDepth, SendQueueDepth, SlowPath, StreamEnd};
use crate::error::Error;
use crate::limits::DeviceLimits;
use crate::memory::{InFlight, PostedTo};
use crate::quota::Permit;
use crate::raw::{Flow, FlowRule, RawQp};
use crate::xrc::XrcDomain;
use ferroce_os::lock::Mutex;
use ferroce_proto::cc::{Choice, Controller};
use ferroce_proto::iwarp::StreamQp;
use ferroce_proto::qp::{self, PostError, QpConfig, QpCounters};
use ferroce_proto::verbs::{AttrMask, QpAttr, QpCap, QpState, RecvWr, SendWr, Transport};
use ferroce_proto::{Gid, PdId, Qpn};
use std::sync::Arc;

/// The parameters of a new queue pair.
pub struct QpInit<'a> {
    /// Transport service.
    pub transport: Transport,
    /// Receives the completions of sends.
    pub send_cq: &'a Cq,
    /// Receives the completions of receives. Unused for [`Transport::XrcIni`], which has no receives.
    pub recv_cq: &'a Cq,
    /// The shared receive queue; `None` for a receive queue of its own.
    pub srq: Option<&'a Srq>,
    /// Queue sizes.
    pub cap: QpCap,
    /// Whether every send makes a completion.
    pub signal_all: bool,
}

/// A queue pair. Dropping it destroys it; where there are several handles, dropping the last one.
pub struct Qp {
    pub(crate) core: Arc<QpCore>,
    /// Its progress context.
    engine: Arc<Engine>,
    pd: Arc<Pd>,
    transport: Transport,
    groups: Mutex<Vec<(Gid, Permit)>>,
    handle: u32,
    domain: Option<Arc<XrcDomain>>,
    /// `Some` for raw packets and iWARP, where this does the work and the RoCE machine only reserves the number; and in strict mode.
    pub(crate) slow_path: Option<SlowPath>,
}

impl Pd {
    /// Creates a queue pair in RESET.
    pub fn create_qp(self: &Arc<Self>, init: &QpInit<'_>) -> Result<Qp, Error> {
        let nic = &self.nic;
        nic.alive()?;
        if init.transport == Transport::XrcTgt {
            return Err(Error::Invalid {
                attribute: "transport",
                why: "a receiving end belongs to an XRC domain, not to a protection domain",
            });
        }
        if init.transport == Transport::XrcIni && init.srq.is_some() {
            return Err(Error::Invalid { attribute: "srq", why: "a sending end has no receive queue" });
        }
        let cap = check_cap(
            &init.cap,
            init.transport,
            init.srq.is_some() || init.transport == Transport::XrcIni,
            &nic.limits,
        )?;
        if init.srq.is_some_and(|srq| srq.number().is_some()) {
            return Err(Error::Invalid {
                attribute: "srq",
                why: "is an XRC one, which requests name by number",
            });
        }
        if init.srq.is_some_and(|srq| !Arc::ptr_eq(&srq.pd().nic, nic)) {
            return Err(Error::Invalid { attribute: "srq", why: "belongs to another device" });
        }
        if !init.send_cq.belongs_to(nic) || !init.recv_cq.belongs_to(nic) {
            return Err(Error::Invalid { attribute: "cq", why: "belongs to another device" });
        }
        self.insert_qp(
            Parts {
                transport: init.transport,
                queues: QpQueues {
                    send_cq: init.send_cq.core.clone(),
                    recv_cq: init.recv_cq.core.clone(),
                    srq: init.srq.map(|srq| srq.core.clone()),
                },
                cap,
                signal_all: init.signal_all,
                srq_pd: init.srq.map(|srq| srq.pd().id),
            },
            None,
        )
    }

    /// The congestion control of a queue pair in this progress context.
    fn controller(&self, choice: Option<&Choice>, engine: &Engine) -> Controller {
        let nic = &self.nic;
        congestion::controller(choice, nic.window_bytes, nic.table.active_mtu(), &engine.share)
    }

    pub(super) fn insert_qp(
        self: &Arc<Self>,
        parts: Parts,
        domain: Option<Arc<XrcDomain>>,
    ) -> Result<Qp, Error> {
        let nic = &self.nic;
        let transport = parts.transport;
        let is_stream = nic.config.wire == Wire::Iwarp;
        if is_stream && transport != Transport::Rc {
            return Err(Error::NotOnThisWire { what: "transport service but reliable connections" });
        }
        let is_xrc = matches!(transport, Transport::XrcIni | Transport::XrcTgt);
        // Any queue pair of an XRC domain may complete receives of its shared receive queues, so all of them are in one context.
        let engine = match is_xrc {
            true => nic.first_context_for(&parts.queues),
            false => nic.context_for(&parts.queues),
        };
        if transport == Transport::Ud {
            // The GRH in front of a datagram contains its traffic class and hop limit.
            engine.link.report_outer_fields();
        }
        let make = |qpn| {
            let mut config = QpConfig {
                qpn,
                transport,
                pd: self.id,
                cap: parts.cap,
                signal_all: parts.signal_all,
                shared_recv: parts.srq_pd,
                port_mtu: nic.table.active_mtu(),
                congestion: self.controller(nic.config.congestion.as_ref(), engine),
                reorder: engine.device.reorder.clone(),
                takes_large: nic.config.strict.is_none(),
                takes_jumbo: nic.config.may_exceed_mtu(),
            };
            let stream = is_stream.then(|| StreamEnd::new(StreamQp::new(&config)));
            if is_stream {
                // The RoCE machine only reserves the number.
                (config.transport, config.cap) = (Transport::Ud, QpCap::default());
            }
            let domain = domain.as_ref().map(|domain| domain.id());
            let in_flight = nic.watch.map(|watch| InFlight::new(watch, PostedTo::Qp(qpn), self.id));
            let core = QpCore::new(qp::Qp::new(config), parts.queues, domain, self.events.clone(), in_flight);
            Arc::new(match stream {
                Some(stream) => core.with_stream(stream),
                None => core,
            })
        };
        let core = engine
            .qps
            .insert(make)
            .ok_or(Error::Exhausted { what: "queue pairs", limit: nic.limits.max_qp })?;
        let mut qp = Qp::new(core, engine.clone(), self.clone(), transport, 0, domain);
        qp.core.srq.iter().for_each(|srq| srq.add_user(qp.qpn(), &qp.core.recv_cq));
        qp.slow_path = match nic.config.strict {
            _ if is_stream => Some(SlowPath::Stream),
            Some(_) => Some(SlowPath::Strict(Mutex::default())),
            None => None,
        };
        Ok(qp)
    }
}

/// A checked [`QpInit`].
pub(super) struct Parts {
    pub(super) transport: Transport,
    pub(super) queues: QpQueues,
    pub(super) cap: QpCap,
    pub(super) signal_all: bool,
    /// Protection domain of the shared receive queue.
    pub(super) srq_pd: Option<PdId>,
}

fn check_cap(cap: &QpCap, transport: Transport, shared: bool, limits: &DeviceLimits) -> Result<QpCap, Error> {
    Error::check_limit("max_send_wr", cap.max_send_wr.into(), limits.max_qp_wr.into())?;
    Error::check_limit("max_recv_wr", cap.max_recv_wr.into(), limits.max_qp_wr.into())?;
    Error::check_limit("max_send_sge", cap.max_send_sge.into(), limits.max_sge.into())?;
    Error::check_limit("max_recv_sge", cap.max_recv_sge.into(), limits.max_sge.into())?;
    Error::check_limit("max_inline_data", cap.max_inline_data.into(), limits.max_inline(transport).into())?;
    if let Some(blocks) = limits.send_blocks
        && cap.max_send_wr > blocks.deepest(transport, cap)
    {
        return Err(Error::SendQueueTooLarge {
            max_send_wr: cap.max_send_wr,
            entry_bytes: blocks.per_entry(transport, cap) * blocks.block,
            queue_bytes: blocks.most * blocks.block,
            deepest: blocks.deepest(transport, cap),
        });
    }
    let mut real = *cap;
    if shared {
        (real.max_recv_wr, real.max_recv_sge) = (0, 0);
    }
    Ok(real)
}

impl Qp {
    pub(super) fn new(
        core: Arc<QpCore>,
        engine: Arc<Engine>,
        pd: Arc<Pd>,
        transport: Transport,
        handle: u32,
        domain: Option<Arc<XrcDomain>>,
    ) -> Qp {
        Qp { core, engine, pd, transport, groups: Mutex::default(), handle, domain, slow_path: None }
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn
    }
    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.transport
    }
    /// Replaces its congestion control. Only in RESET.
    pub fn set_congestion(&self, choice: &Choice) -> Result<(), Error> {
        let invalid = |why| Err(Error::Invalid { attribute: "congestion", why });
        let is_roce = matches!(self.slow_path, None | Some(SlowPath::Strict(..)));
        if self.core.stream().is_some() || !is_roce || self.transport == Transport::Ud {
            return invalid("only connected queue pairs over RoCE have congestion control of ours");
        }
        if !congestion::can_run(choice) {
            return invalid(congestion::NO_TELEMETRY);
        }
        if congestion::uses_ecn(choice) && !self.pd.nic.config.uses_ecn() {
            return invalid("needs ECN: set `ecn` in the configuration of the device, or FERROCE_CC");
        }
        let controller = self.pd.controller(Some(choice), &self.engine);
        if !self.core.machine.lock().set_congestion(controller) {
            return invalid("can be changed in state RESET only");
        }
        Ok(())
    }
    /// The number of this handle, for queue pairs with several: its events contain it. 0 for the handle that created the queue pair.
    pub fn handle(&self) -> u32 {
        self.handle
    }
    /// Its XRC domain, for the receiving end of an extended reliable connection.
    pub fn xrc_domain(&self) -> Option<&Arc<XrcDomain>> {
        self.domain.as_ref()
    }
    /// Its protection domain. The receiving end of an extended reliable connection has an internal one, which grants no access.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// The number of its protection domain.
    pub fn pd_id(&self) -> PdId {
        self.pd.id
    }
    /// Its attributes, as they were set.
    pub fn query(&self) -> QpAttr {
        match (&self.slow_path, self.core.stream()) {
            (Some(SlowPath::Raw(raw)), _) => raw.query(),
            (_, Some(stream)) => stream.machine.lock().query(),
            _ => self.core.machine.lock().query(),
        }
    }
    /// Sends that can be posted before the queue is full.
    pub fn send_room(&self) -> usize {
        match self.core.stream() {
            Some(stream) => stream.machine.lock().send_room(),
            None => self.core.machine.lock().send_room(),
        }
    }
    /// Its counters.
    pub fn counters(&self) -> QpCounters {
        match self.core.stream() {
            Some(stream) => *stream.machine.lock().counters(),
            None => *self.core.machine.lock().counters(),
        }
    }
    /// Heap bytes that belong to it alone.
    pub fn memory_footprint(&self) -> usize {
        let stream = self
            .core
            .stream()
            .map_or(0, |stream| size_of::<StreamEnd>() + stream.machine.lock().memory_footprint());
        size_of::<QpCore>() + self.core.machine.lock().memory_footprint() + stream
    }

    /// Changes attributes and state.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        let nic = &self.pd.nic;
        nic.alive()?;
        match (&self.slow_path, self.core.stream()) {
            (Some(SlowPath::Raw(raw)), _) => return raw.modify(attr, mask),
            (_, Some(stream)) => return self.engine.modify_stream(&self.core, stream, attr, mask),
            _ => {}
        }
        let route = match mask.contains(AttrMask::AV) {
            true if attr.av.dgid.is_zero() => None,
            true => Some(nic.resolve(&attr.av, self.core.qpn.value() as u16)?),
            false => None,
        };
        let limits = nic.attr_limits(route.as_ref());
        let Some(SlowPath::Strict(depth)) = &self.slow_path else {
            return self.engine.modify(&self.core, attr, mask, route, &limits);
        };
        // A transition from SQE empties the send queue: every request has completed.
        let was_stopped = self.core.machine.lock().state() == QpState::Sqe;
        self.engine.modify(&self.core, attr, mask, route, &limits)?;
        if mask.contains(AttrMask::STATE) && (was_stopped || attr.state == QpState::Reset) {
            *depth.lock() = SendQueueDepth::default();
        }
        Ok(())
    }

    /// Posts sends, in order, and rings one doorbell for all of them. On error the first `n` were posted.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        let posted = self.post_send_each(|posting| {
            wrs.iter().enumerate().try_for_each(|(n, wr)| {
                posting.is_last(n + 1 == wrs.len());
                posting.post(|| *wr).map_err(|e| (n, e))
            })
        });
        match posted {
            Ok(posted) => posted.map_err(|(n, e)| (n, e.into())),
            Err(error) => Err((0, error)),
        }
    }

    /// Posts the requests that `fill` passes, in order, and rings one doorbell for all of them. For requests that do not lie in a slice.
    /// The queue pair is locked meanwhile: `fill` must not call it.
    #[inline(always)] // both callers have one kind of list each
    pub fn post_send_each<R>(&self, fill: impl FnOnce(&mut Posting<'_>) -> R) -> Result<R, Error> {
        self.pd.nic.alive()?;
        Ok(self.engine.post_send_each(&self.core, self.slow_path.as_ref(), fill))
    }

    /// Posts the receives that `fill` passes, in order, under one lock.
    #[inline(always)] // then the argument of `fill` is not called through a pointer
    pub fn post_recv_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> Result<R, Error> {
        self.pd.nic.alive()?;
        match &self.slow_path {
            None => Ok(self.engine.post_recv_each(&self.core, fill)),
            Some(slow_path) => Ok(self.post_recv_slow(slow_path, fill)),
        }
    }

    /// Posts receives, in order. On error the first `n` were posted.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, Error)> {
        self.pd.nic.alive().map_err(|e| (0, e))?;
        if let Some(slow_path) = &self.slow_path {
            return self.post_recv_slow(slow_path, |post| {
                wrs.iter().enumerate().try_for_each(|(n, wr)| post(wr).map_err(|e| (n, e.into())))
            });
        }
        self.engine.post_recv(&self.core, wrs).map_err(|(n, e)| (n, e.into()))
    }

    fn post_recv_slow<R>(
        &self,
        slow_path: &SlowPath,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        let Some(in_flight) = &self.core.in_flight else { return self.post_recv_unwatched(slow_path, fill) };
        let regions = &self.engine.device.regions;
        self.post_recv_unwatched(slow_path, |post| {
            fill(&mut |wr| in_flight.receive(regions, wr, || post(wr)))
        })
    }

    fn post_recv_unwatched<R>(
        &self,
        slow_path: &SlowPath,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> R {
        match (slow_path, self.core.stream()) {
            (SlowPath::Raw(raw), _) => raw.post_recv_each(fill),
            (SlowPath::Stream, Some(stream)) => self.engine.post_stream_recv(&self.core, stream, fill),
            (SlowPath::Stream, None) => self.engine.post_recv_each(&self.core, fill),
            (SlowPath::Strict(_), _) => {
                let mut depth = RecvQueueDepth::of(&self.core);
                self.engine.post_recv_each(&self.core, |post| {
                    fill(&mut |wr| {
                        depth.check(wr)?;
                        post(wr)?;
                        depth.count();
                        Ok(())
                    })
                })
            }
        }
    }

    fn raw(&self) -> Option<&RawQp> {
        match &self.slow_path {
            Some(SlowPath::Raw(raw)) => Some(raw),
            _ => None,
        }
    }

    /// Steers frames that match the rule to this queue pair, which must be one for raw packets, until the flow is dropped.
    pub fn create_flow(&self, rule: FlowRule) -> Result<Flow, Error> {
        self.pd.nic.alive()?;
        let raw = self.raw();
        raw.ok_or(Error::Invalid { attribute: "qp", why: "flows are for queue pairs of raw packets" })?
            .create_flow(rule)
    }

    /// Receives datagrams to this group from now on.
    pub fn attach_multicast(&self, group: Gid) -> Result<(), Error> {
        self.pd.nic.only_on_roce("multicast")?;
        if self.transport != Transport::Ud || self.raw().is_some() {
            return Err(Error::Invalid {
                attribute: "qp",
                why: "only datagram queue pairs join multicast groups",
            });
        }
        if !group.is_multicast() {
            return Err(Error::Invalid {
                attribute: "gid",
                why: "is no multicast address: 224.0.0.0/4 or ff00::/8",
            });
        }
        let permit = self.pd.nic.quotas.multicast.take()?;
        self.engine.attach(&self.core, group)?;
        self.groups.lock().push((group, permit));
        Ok(())
    }

    /// Undoes one `attach_multicast`.
    pub fn detach_multicast(&self, group: Gid) -> Result<(), Error> {
        self.pd.nic.alive()?;
        let mut groups = self.groups.lock();
        let Some(at) = groups.iter().position(|(joined, _)| *joined == group) else {
            return Err(Error::Invalid {
                attribute: "gid",
                why: "the queue pair is not attached to this group",
            });
        };
        groups.swap_remove(at);
        self.engine.detach(&self.core, group)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.pd.nic.alive().is_err() {
            return;
        }
        if let Some(raw) = self.raw() {
            raw.close();
        }
        for (group, _) in self.groups.lock().drain(..) {
            let _ = self.engine.detach(&self.core, group);
        }
        if self.core.close_handle(self.handle) {
            self.engine.destroy(&self.core);
            self.core.srq.iter().for_each(|srq| srq.remove_user(self.core.qpn));
        }
    }
}
