//! Queue pairs.
//!
//! | file | question |
//! |---|---|
//! | here | what all queue pairs can do |
//! | `builder` | how one is made |
//! | `connect`, `managed` | how two meet, by themselves or through the connection manager |
//! | `send`, `recv` | what can be posted |

mod builder;
pub(crate) mod connect;
mod managed;
mod recv;
mod send;

pub use builder::QpBuilder;
pub use recv::RecvHalf;
pub use send::SendHalf;

use crate::cq::Cq;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::in_flight::{OWNED, Queue};
use crate::pd::Pd;
use crate::srq::Srq;
use ferroce_proto::qp::QpCounters;
use ferroce_proto::verbs::{AttrMask, QpAttr, QpState, Transport};
use ferroce_proto::{Gid, Qpn};
use std::fmt;
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

/// Reliable connection: every operation, in order, exactly once.
pub enum Rc {}
/// Unreliable connection: SEND and WRITE; a broken message is dropped in silence.
pub enum Uc {}
/// Unreliable datagrams: SEND of up to one MTU, to anybody.
pub enum Ud {}

/// A transport service, as a type.
pub trait Service: sealed::Sealed + Send + Sync + 'static {
    /// The same as a value.
    const TRANSPORT: Transport;
}

/// A transport service with one peer.
pub trait Connected: Service {}

impl Service for Rc {
    const TRANSPORT: Transport = Transport::Rc;
}
impl Service for Uc {
    const TRANSPORT: Transport = Transport::Uc;
}
impl Service for Ud {
    const TRANSPORT: Transport = Transport::Ud;
}
impl Connected for Rc {}
impl Connected for Uc {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Rc {}
    impl Sealed for super::Uc {}
    impl Sealed for super::Ud {}
}

/// A queue pair of reliable connection.
pub type RcQp = Qp<Rc>;
/// A queue pair of unreliable connection.
pub type UcQp = Qp<Uc>;
/// A datagram queue pair.
pub type UdQp = Qp<Ud>;

/// A queue pair. Cheap to clone, usable from any thread; destroyed with its last clone and half.
///
/// It can do all that its [`SendHalf`] can, and posts receives besides.
pub struct Qp<T: Service> {
    send: SendHalf<T>,
}

pub(crate) struct Core {
    pub(crate) nic: ferroce_nic::Qp,
    // After the queue pair itself, so that nothing it still has is taken from under it.
    cleanup: Cleanup,
    pub(crate) pd: Pd,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    _srq: Option<Srq>,
    settings: builder::Settings,
}

/// Tells those who wait for owned operations that the queue pair is gone.
struct Cleanup {
    qpn: Qpn,
    send_cq: Cq,
    recv_cq: Cq,
}

impl Cleanup {
    fn run(&self) {
        self.send_cq.device().in_flight().discard(Queue::Qp(self.qpn));
        self.send_cq.wake_waiters();
        self.recv_cq.wake_waiters();
    }
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        if self.send_cq.device().is_ours() {
            self.run();
        }
    }
}

impl<T: Service> Qp<T> {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core().nic.qpn()
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.core().pd
    }
    /// Where completions of sends go.
    pub fn send_cq(&self) -> &Cq {
        &self.core().send_cq
    }
    /// Where completions of receives go.
    pub fn recv_cq(&self) -> &Cq {
        &self.core().recv_cq
    }
    /// Its attributes, as they were set.
    pub fn query(&self) -> QpAttr {
        self.core().nic.query()
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.query().state
    }
    /// What it counted.
    pub fn counters(&self) -> QpCounters {
        self.core().nic.counters()
    }
    /// Bytes that belong to it alone.
    pub fn memory_footprint(&self) -> usize {
        self.core().nic.memory_footprint()
    }

    /// What a peer needs to reach it.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.core().settings.endpoint(T::TRANSPORT, self.qpn(), self.pd().device())
    }

    /// Changes attributes and state, for those who want to walk the states themselves. Going to RESET loses what is
    /// outstanding; owned operations then end in [`Error::Gone`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        let core = self.core();
        core.nic.modify(attr, mask).map_err(Error::in_call("modify_qp"))?;
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            core.cleanup.run();
        }
        Ok(())
    }

    /// Goes to the error state: everything outstanding comes back as flushed, and nothing is sent or received any
    /// more.
    pub fn close(&self) -> Result<(), Error> {
        self.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE)
    }

    /// Two halves for two threads. The queue pair lives until both are gone.
    pub fn split(self) -> (SendHalf<T>, RecvHalf<T>) {
        let recv = RecvHalf { core: self.send.core.clone(), transport: PhantomData };
        (self.send, recv)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.send.core
    }
}

impl Qp<Ud> {
    /// Receives datagrams to this group from now on.
    pub fn join(&self, group: IpAddr) -> Result<(), Error> {
        self.core().nic.attach_multicast(Gid::from_ip(group)).map_err(Error::in_call("attach_mcast"))
    }

    /// No longer receives datagrams to this group.
    pub fn leave(&self, group: IpAddr) -> Result<(), Error> {
        self.core().nic.detach_multicast(Gid::from_ip(group)).map_err(Error::in_call("detach_mcast"))
    }
}

impl<T: Service> Clone for Qp<T> {
    fn clone(&self) -> Self {
        Qp { send: self.send.clone() }
    }
}

impl<T: Service> fmt::Debug for Qp<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Qp({:?} {}, {:?})", T::TRANSPORT, self.qpn(), self.state())
    }
}

impl<T: Service> Deref for Qp<T> {
    type Target = SendHalf<T>;
    fn deref(&self) -> &SendHalf<T> {
        &self.send
    }
}

/// Callers may not use the numbers of owned operations.
pub(crate) fn check_ids(verb: &'static str, mut ids: impl Iterator<Item = u64>) -> Result<(), Error> {
    match ids.position(|id| id & OWNED != 0) {
        None => Ok(()),
        Some(_) => {
            let why = "the highest bit belongs to operations that own their buffer";
            Err(Error::in_call(verb)(ferroce_nic::Error::Invalid { attribute: "wr_id", why }))
        }
    }
}
