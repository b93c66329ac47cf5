//! Queue pairs, as programs hold them.

use super::cq::{Cq, CqCore};
use super::event::EventQueue;
use super::pd::Pd;
use super::srq::{Srq, SrqCore};
use crate::error::Error;
use crate::nic::{MAX_INLINE, MAX_QP_WR, MAX_SGE};
use ferroce_proto::cc::{Controller, FixedWindow};
use ferroce_proto::qp::{self, PostError, QpConfig, QpCounters};
use ferroce_proto::verbs::{AttrMask, QpAttr, QpCap, RecvWr, SendWr, Transport};
use ferroce_proto::{Gid, PdId, Qpn};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What a queue pair is made with.
pub struct QpInit<'a> {
    /// Transport service.
    pub transport: Transport,
    /// Where completions of sends go.
    pub send_cq: &'a Cq,
    /// Where completions of receives go.
    pub recv_cq: &'a Cq,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<&'a Srq>,
    /// Queue sizes.
    pub cap: QpCap,
    /// Whether every send makes a completion.
    pub signal_all: bool,
}

/// The part that the engine works on.
#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct QpCore {
    pub(crate) qpn: Qpn,
    pub(crate) send_cq: Arc<CqCore>,
    pub(crate) recv_cq: Arc<CqCore>,
    pub(crate) srq: Option<Arc<SrqCore>>,
    pub(crate) machine: Mutex<qp::Qp>,
    pub(crate) events: Arc<EventQueue>,
    /// Earliest deadline that the timer heap knows of; `u64::MAX` if none.
    pub(crate) timer_at: AtomicU64,
    /// Already in the engine's list of queue pairs to finish.
    pub(crate) touched: AtomicBool,
    /// Already in the engine's list of queue pairs with more to send.
    pub(crate) ready: AtomicBool,
    /// A completion found no room.
    pub(crate) overrun: AtomicBool,
}

/// A queue pair. Dropping it destroys it.
pub struct Qp {
    pub(crate) core: Arc<QpCore>,
    pd: Arc<Pd>,
    transport: Transport,
    groups: Mutex<Vec<Gid>>,
}

impl Pd {
    /// Makes a queue pair in RESET.
    pub fn create_qp(self: &Arc<Self>, init: &QpInit<'_>) -> Result<Qp, Error> {
        let nic = &self.nic;
        nic.alive()?;
        let cap = check_cap(&init.cap, init.srq.is_some())?;
        if init.srq.is_some_and(|srq| !Arc::ptr_eq(srq.pd(), self)) {
            return Err(Error::Invalid { attribute: "srq", why: "belongs to another protection domain" });
        }
        if !init.send_cq.belongs_to(nic) || !init.recv_cq.belongs_to(nic) {
            return Err(Error::Invalid { attribute: "cq", why: "belongs to another device" });
        }
        if init.transport == Transport::Ud {
            // The GRH in front of a datagram tells its traffic class and hop limit.
            nic.engine.link.report_outer_fields();
        }
        let make = |qpn| {
            let machine = qp::Qp::new(QpConfig {
                qpn,
                transport: init.transport,
                pd: self.id,
                cap,
                signal_all: init.signal_all,
                shared_recv: init.srq.is_some(),
                port_mtu: nic.port_mtu(),
                congestion: Controller::Fixed(FixedWindow { bytes: nic.window_bytes }),
            });
            Arc::new(QpCore {
                qpn,
                send_cq: init.send_cq.core.clone(),
                recv_cq: init.recv_cq.core.clone(),
                srq: init.srq.map(|srq| srq.core.clone()),
                machine: Mutex::new(machine),
                events: self.events.clone(),
                timer_at: AtomicU64::new(u64::MAX),
                touched: AtomicBool::new(false),
                ready: AtomicBool::new(false),
                overrun: AtomicBool::new(false),
            })
        };
        let core = nic
            .engine
            .qps
            .insert(make)
            .ok_or(Error::Exhausted { what: "queue pairs", limit: crate::engine::MAX_QP })?;
        Ok(Qp { core, pd: self.clone(), transport: init.transport, groups: Mutex::default() })
    }
}

fn check_cap(cap: &QpCap, shared: bool) -> Result<QpCap, Error> {
    Error::check_limit("max_send_wr", cap.max_send_wr.into(), MAX_QP_WR.into())?;
    Error::check_limit("max_recv_wr", cap.max_recv_wr.into(), MAX_QP_WR.into())?;
    Error::check_limit("max_send_sge", cap.max_send_sge.into(), MAX_SGE.into())?;
    Error::check_limit("max_recv_sge", cap.max_recv_sge.into(), MAX_SGE.into())?;
    Error::check_limit("max_inline_data", cap.max_inline_data.into(), MAX_INLINE.into())?;
    let mut real = *cap;
    if shared {
        (real.max_recv_wr, real.max_recv_sge) = (0, 0);
    }
    Ok(real)
}

impl Qp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qpn
    }
    /// Its transport.
    pub fn transport(&self) -> Transport {
        self.transport
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// Which protection domain it belongs to.
    pub fn pd_id(&self) -> PdId {
        self.pd.id
    }
    /// Its attributes, as they were set.
    pub fn query(&self) -> QpAttr {
        self.core.machine.lock().query()
    }
    /// Sends that can be posted before the queue is full.
    pub fn send_room(&self) -> usize {
        let machine = self.core.machine.lock();
        (machine.query().cap.max_send_wr as usize).saturating_sub(machine.sends_outstanding())
    }
    /// What it counted.
    pub fn counters(&self) -> QpCounters {
        *self.core.machine.lock().counters()
    }
    /// Heap bytes that belong to it alone.
    pub fn memory_footprint(&self) -> usize {
        size_of::<QpCore>() + self.core.machine.lock().memory_footprint()
    }

    /// Changes attributes and state.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        let nic = &self.pd.nic;
        nic.alive()?;
        let route = match mask.contains(AttrMask::AV) {
            true if attr.av.dgid.is_zero() => None,
            true => Some(nic.resolve(&attr.av, self.core.qpn.value() as u16)?),
            false => None,
        };
        nic.engine.modify(&self.core, attr, mask, route, &nic.attr_limits())
    }

    /// Posts sends, in order, and rings one doorbell for all of them. On error the first `n` were taken.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), (usize, Error)> {
        self.pd.nic.alive().map_err(|e| (0, e))?;
        self.pd.nic.engine.post_send(&self.core, wrs).map_err(|(n, e)| (n, e.into()))
    }

    /// Posts what `fill` hands over, in order, and rings one doorbell for all of it. For requests that do not lie in a
    /// slice. The queue pair is locked meanwhile: `fill` must not call it.
    pub fn post_send_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&SendWr<'_>) -> Result<(), PostError>) -> R,
    ) -> Result<R, Error> {
        self.pd.nic.alive()?;
        Ok(self.pd.nic.engine.post_send_each(&self.core, fill))
    }

    /// Posts the receives that `fill` hands over, in order, under one lock.
    pub fn post_recv_each<R>(
        &self,
        fill: impl FnOnce(&mut dyn FnMut(&RecvWr<'_>) -> Result<(), PostError>) -> R,
    ) -> Result<R, Error> {
        self.pd.nic.alive()?;
        Ok(self.pd.nic.engine.post_recv_each(&self.core, fill))
    }

    /// Posts receives, in order. On error the first `n` were taken.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), (usize, Error)> {
        self.pd.nic.alive().map_err(|e| (0, e))?;
        self.pd.nic.engine.post_recv(&self.core, wrs).map_err(|(n, e)| (n, e.into()))
    }

    /// Receives datagrams to this group from now on.
    pub fn attach_multicast(&self, group: Gid) -> Result<(), Error> {
        self.pd.nic.alive()?;
        if self.transport != Transport::Ud {
            return Err(Error::Invalid {
                attribute: "qp",
                why: "only datagram queue pairs join multicast groups",
            });
        }
        if !group.is_multicast() {
            return Err(Error::Invalid { attribute: "gid", why: "is no multicast address" });
        }
        self.pd.nic.engine.attach(&self.core, group)?;
        self.groups.lock().push(group);
        Ok(())
    }

    /// Takes back one `attach_multicast`.
    pub fn detach_multicast(&self, group: Gid) -> Result<(), Error> {
        self.pd.nic.alive()?;
        let mut groups = self.groups.lock();
        let Some(at) = groups.iter().position(|g| *g == group) else {
            return Err(Error::Invalid {
                attribute: "gid",
                why: "the queue pair is not attached to this group",
            });
        };
        groups.swap_remove(at);
        self.pd.nic.engine.detach(&self.core, group)
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        if self.pd.nic.alive().is_err() {
            return;
        }
        for group in self.groups.lock().drain(..) {
            let _ = self.pd.nic.engine.detach(&self.core, group);
        }
        self.pd.nic.engine.destroy(&self.core);
    }
}
