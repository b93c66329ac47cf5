//! Queue pairs.
//!
//! | file | contents |
//! |---|---|
//! | here | transport services, and what all queue pairs have in common |
//! | `builder` | settings and creation |
//! | `connect`, `managed` | connecting, without and with the connection manager |
//! | `send`, `recv` | posting |

mod builder;
pub(crate) mod connect;
mod managed;
mod recv;
mod send;

pub use builder::QpBuilder;
pub use recv::RecvHalf;
pub use send::SendHalf;
pub(crate) use send::Target;

use crate::cq::Cq;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::in_flight::{OWNED, Queue};
use crate::macros::debug;
use crate::pd::Pd;
use crate::srq::Srq;
use ferroce_proto::qp::QpCounters;
use ferroce_proto::verbs::{AttrMask, QpAttr, QpState, Transport};
use ferroce_proto::{Gid, Qpn};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::ops::Deref;
use std::sync::Arc;

/// A transport service, as a type.
pub trait Service: sealed::Sealed + Clone + Send + Sync + 'static {
    /// The transport as a value.
    const TRANSPORT: Transport;
}

/// A transport service with one peer.
pub trait HasPeer: Service {}

/// A transport service whose peer is a queue pair of the same service. The connection manager connects these.
pub trait Connected: HasPeer + Receives {}

/// A transport service with a receive queue.
pub trait Receives: Service {}

/// A transport service with acknowledgements and retries.
pub trait Reliable: HasPeer {}

/// Declares services: the transport and the traits of each.
macro_rules! services {
    ($($(#[$doc:meta])* $service:ident: $transport:ident, $($has:ident)+;)+) => {
        $($(#[$doc])*
        #[derive(Clone)]
        pub enum $service {}

        impl sealed::Sealed for $service {}
        impl Service for $service {
            const TRANSPORT: Transport = Transport::$transport;
        }
        $(impl $has for $service {})+)+
    };
}

services! {
    /// Reliable connection: every operation, in order, exactly once.
    Rc: Rc, HasPeer Connected Receives Reliable;
    /// Unreliable connection: SEND and WRITE; an incomplete message is dropped silently.
    Uc: Uc, HasPeer Connected Receives;
    /// Unreliable datagrams: SEND of up to one MTU, to any datagram queue pair.
    Ud: Ud, Receives;
    /// Sending end of an extended reliable connection: every operation, addressed to a shared receive queue of the peer.
    XrcInitiator: XrcIni, HasPeer Reliable;
}

mod sealed {
    pub trait Sealed {}
}

/// A queue pair of reliable connection.
pub type RcQp = Qp<Rc>;
/// A queue pair of unreliable connection.
pub type UcQp = Qp<Uc>;
/// A datagram queue pair.
pub type UdQp = Qp<Ud>;
/// The sending end of an extended reliable connection.
pub type XrcQp = Qp<XrcInitiator>;

/// A queue pair. Cheap to clone, usable from any thread; destroyed with its last clone and half.
///
/// It has all methods of its [`SendHalf`], and posts receives.
#[derive(Clone)]
pub struct Qp<T: Service> {
    send: SendHalf<T>,
}

pub(crate) struct Core {
    pub(crate) nic: ferroce_nic::Qp,
    // Dropped after the queue pair, which uses the buffers.
    cleanup: Cleanup,
    pub(crate) pd: Pd,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    _srq: Option<Srq>,
    settings: connect::Settings,
}

/// Ends owned operations of a queue pair that is destroyed or reset, and wakes their waiters.
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
    /// Its queue pair number.
    pub fn qpn(&self) -> Qpn {
        self.core().nic.qpn()
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.core().pd
    }
    /// Completion queue of sends.
    pub fn send_cq(&self) -> &Cq {
        &self.core().send_cq
    }
    /// Its attributes.
    pub fn query(&self) -> QpAttr {
        self.core().nic.query()
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.query().state
    }
    /// Its counters.
    pub fn counters(&self) -> QpCounters {
        self.core().nic.counters()
    }
    /// Heap bytes of this queue pair.
    pub fn memory_footprint(&self) -> usize {
        self.core().nic.memory_footprint()
    }

    /// The description of this queue pair for a peer.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        self.core().settings.endpoint(T::TRANSPORT, self.qpn(), self.pd().device())
    }

    /// Changes attributes and state directly. RESET discards outstanding work requests; owned operations then end in
    /// [`Error::Gone`].
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<(), Error> {
        let core = self.core();
        core.nic.modify(attr, mask).map_err(Error::in_call("modify_qp"))?;
        if mask.contains(AttrMask::STATE) && attr.state == QpState::Reset {
            core.cleanup.run();
        }
        Ok(())
    }

    /// Moves to the error state: outstanding work requests complete with a flush error, and the queue pair stops sending and
    /// receiving.
    pub fn close(&self) -> Result<(), Error> {
        self.modify(&QpAttr { state: QpState::Err, ..QpAttr::default() }, AttrMask::STATE)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.send.core
    }
}

impl<T: Receives> Qp<T> {
    /// Completion queue of receives.
    pub fn recv_cq(&self) -> &Cq {
        &self.core().recv_cq
    }

    /// Splits the queue pair into halves for two threads. It lives until both are dropped.
    pub fn split(self) -> (SendHalf<T>, RecvHalf<T>) {
        let recv = RecvHalf { core: self.send.core.clone(), transport: PhantomData };
        (self.send, recv)
    }
}

impl Qp<Ud> {
    /// Joins a multicast group.
    pub fn join(&self, group: IpAddr) -> Result<(), Error> {
        self.core().nic.attach_multicast(Gid::from_ip(group)).map_err(Error::in_call("attach_mcast"))
    }

    /// Leaves a multicast group.
    pub fn leave(&self, group: IpAddr) -> Result<(), Error> {
        self.core().nic.detach_multicast(Gid::from_ip(group)).map_err(Error::in_call("detach_mcast"))
    }
}

debug!(Qp<T> where T: Service, |this| "Qp({:?} {}, {:?})", T::TRANSPORT, this.qpn(), this.state());

impl<T: Service> Deref for Qp<T> {
    type Target = SendHalf<T>;
    fn deref(&self) -> &SendHalf<T> {
        &self.send
    }
}

/// Rejects a `wr_id` that belongs to owned operations.
pub(crate) fn check_ids(verb: &'static str, mut ids: impl Iterator<Item = u64>) -> Result<(), Error> {
    match ids.position(|id| id & OWNED != 0) {
        None => Ok(()),
        Some(_) => {
            let why = "the highest bit belongs to operations that own their buffer";
            Err(Error::invalid(verb, "wr_id", why))
        }
    }
}
