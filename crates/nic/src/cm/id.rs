//! Ids: a program's handles of connections, listeners and datagram services.

use super::channel::Queue;
use super::event::{CmEvent, CmEventKind};
use super::{CmChannel, CmService};
use crate::link::{StreamSocket, now};
use ferroce_os::lock::Mutex;
use ferroce_proto::cm::{CommId, ListenerId, Path, PortSpace, Request, Scope, Secret};
use ferroce_proto::verbs::AddressVector;
use smallvec::SmallVec;
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Settings of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CmOptions {
    /// Traffic class of the connection and its messages.
    pub tos: u8,
    /// Transport timer exponent; `None` for the default of the path.
    pub ack_timeout: Option<u8>,
    /// RNR timer code that the queue pair advertises.
    pub min_rnr_timer: Option<u8>,
    /// Whether the port may be shared with other ids that set this, as long as none listens.
    pub reuse_address: bool,
    /// Whether listening on all IPv6 addresses excludes IPv4.
    pub af_only: bool,
    /// The port space of its port, where it differs from the id's own: service ids of AF_IB addresses contain it.
    pub port_space: Option<PortSpace>,
    /// Whether a listener gets the whole private data of connection requests, which then need not contain an IP header.
    pub full_private_data: bool,
    /// Exponent of the time in which the peer must answer: 4.096 us * 2^n; 20 by default.
    pub response_timeout: Option<u8>,
    /// How often a message is retried; 15 by default.
    pub max_retries: Option<u8>,
}

/// A port, and where it was allocated.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    pub(super) space: PortSpace,
    pub(super) port: u16,
    pub(super) scope: Scope,
    /// Whether the port comes from this process's block of ephemeral ports.
    pub(super) is_ephemeral: bool,
    /// Whether the registry's table of ports lists it.
    pub(super) is_listed: bool,
}

#[derive(Default)]
pub(super) struct IdState {
    pub(super) options: CmOptions,
    pub(super) bound: Option<Bound>,
    pub(super) local: Option<SocketAddr>,
    pub(super) path: Option<Path>,
    pub(super) is_routed: bool,
    pub(super) comm: Option<CommId>,
    pub(super) listener: Option<ListenerId>,
    pub(super) is_closed: bool,
    /// iWARP: the bound socket, until it connects or listens.
    pub(super) socket: Option<StreamSocket>,
    /// iWARP: the number of its connection or listener.
    pub(super) stream: Option<u64>,
    /// Its own key, which replaces that of the device.
    pub(super) secret: Option<Secret>,
}

/// An id of the connection manager. [`CmId::close`] it when done: events that wait keep it alive otherwise.
pub struct CmId {
    pub(super) service: Arc<CmService>,
    /// Keeps the device open as long as the id lives.
    device: Arc<dyn Any + Send + Sync>,
    pub(super) space: PortSpace,
    is_datagram: AtomicBool,
    cookie: AtomicU64,
    /// Events that the program got; C programs must acknowledge each of them before the id can be destroyed.
    handed_out: AtomicU32,
    queue: Mutex<Arc<Queue>>,
    /// Numbers of the events of this id that wait in the queue, in order.
    pub(super) events: Mutex<SmallVec<[u64; 4]>>,
    pub(super) state: Mutex<IdState>,
    /// Not in the state, whose lock may be held by a thread that waits for the manager: the manager reports failures with this address.
    pub(super) peer: Mutex<Option<SocketAddr>>,
    pub(super) is_removed: AtomicBool,
}

impl CmId {
    /// Creates an id whose events go to `channel`. It keeps `device` open, the device of `service`.
    pub(crate) fn new(
        service: Arc<CmService>,
        device: Arc<dyn Any + Send + Sync>,
        channel: &CmChannel,
        space: PortSpace,
        cookie: u64,
    ) -> Arc<CmId> {
        CmId {
            service,
            device,
            space,
            is_datagram: AtomicBool::new(space.is_datagram()),
            cookie: AtomicU64::new(cookie),
            handed_out: AtomicU32::new(0),
            queue: Mutex::new(channel.queue.clone()),
            events: Mutex::default(),
            state: Mutex::default(),
            peer: Mutex::default(),
            is_removed: AtomicBool::new(false),
        }
        .listed()
    }

    /// Adds it to the list of ids, so that it gets events of the device.
    fn listed(self) -> Arc<CmId> {
        let id = Arc::new(self);
        id.service.live_ids.add(&id);
        id
    }

    /// The id of a new connection request.
    pub(super) fn from_request(listener: &CmId, request: &Request) -> Arc<CmId> {
        // Use the addresses of the packets. A sender can forge the addresses in the request, and programs may use addresses for access
        // control.
        let (local, peer) = (request.path.sgid.to_ip(), request.path.dgid.to_ip());
        let state = IdState {
            local: Some(SocketAddr::new(local, request.service.port())),
            path: Some(request.path),
            is_routed: true,
            comm: Some(request.id),
            ..IdState::default()
        };
        let peer = SocketAddr::new(peer, request.ip.map_or(0, |ip| ip.sport));
        CmId::under(listener, state, peer, request.transport.is_none())
    }

    /// The id of a new connection of iWARP.
    pub(super) fn from_stream(
        listener: &CmId,
        number: u64,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Arc<CmId> {
        let state = IdState {
            local: Some(local),
            path: listener.path_between(local.ip(), peer.ip()),
            is_routed: true,
            stream: Some(number),
            ..IdState::default()
        };
        CmId::under(listener, state, peer, false)
    }

    /// An id for a request to `listener`.
    fn under(listener: &CmId, state: IdState, peer: SocketAddr, is_datagram: bool) -> Arc<CmId> {
        CmId {
            service: listener.service.clone(),
            device: listener.device.clone(),
            space: listener.space,
            is_datagram: AtomicBool::new(is_datagram),
            cookie: AtomicU64::new(listener.cookie()),
            handed_out: AtomicU32::new(0),
            queue: Mutex::new(listener.queue()),
            events: Mutex::default(),
            state: Mutex::new(state),
            peer: Mutex::new(Some(peer)),
            is_removed: AtomicBool::new(false),
        }
        .listed()
    }

    /// The number that the program assigned.
    pub fn cookie(&self) -> u64 {
        self.cookie.load(Ordering::Relaxed)
    }
    /// Changes it.
    pub fn set_cookie(&self, cookie: u64) {
        self.cookie.store(cookie, Ordering::Relaxed);
    }
    /// How many of its events the program got; a connection request counts for its listener. After [`CmId::close`] the number is
    /// final.
    pub fn handed_out(&self) -> u32 {
        self.handed_out.load(Ordering::Acquire)
    }
    pub(super) fn count_handed_out(&self) {
        self.handed_out.fetch_add(1, Ordering::Release);
    }
    /// Its port space.
    pub fn space(&self) -> PortSpace {
        self.space
    }
    /// Whether it queries datagram services instead of connecting.
    pub fn is_datagram(&self) -> bool {
        self.is_datagram.load(Ordering::Relaxed)
    }
    /// Sets this for a new id of [`PortSpace::Ib`]. The other port spaces imply it.
    pub fn set_datagram(&self, is_datagram: bool) {
        if self.space == PortSpace::Ib {
            self.is_datagram.store(is_datagram, Ordering::Relaxed);
        }
    }
    /// Its address and port, once bound.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.state.lock().local
    }
    /// Address and port of the peer, once known.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        *self.peer.lock()
    }
    /// The path to the peer, once known.
    pub fn path(&self) -> Option<Path> {
        self.state.lock().path
    }
    /// The path as an address vector; zeros until it is known.
    pub fn vector(&self) -> AddressVector {
        self.path().map(|path| path.vector()).unwrap_or_default()
    }
    /// Its settings.
    pub fn options(&self) -> CmOptions {
        self.state.lock().options
    }
    /// Changes settings. They apply to later calls.
    pub fn set_options(&self, change: impl FnOnce(&mut CmOptions)) {
        change(&mut self.state.lock().options);
    }

    /// Sets a key that both ends must prove to have, in place of the device's. Call it before `listen` or `connect`.
    pub fn set_secret(&self, secret: Secret) {
        self.state.lock().secret = Some(secret);
    }

    /// Moves the id to another channel, with its waiting events.
    pub fn migrate(&self, channel: &CmChannel) {
        let old = std::mem::replace(&mut *self.queue.lock(), channel.queue.clone());
        channel.migrate(&old, self);
    }

    pub(super) fn queue(&self) -> Arc<Queue> {
        self.queue.lock().clone()
    }

    /// Queues an event for the program.
    pub(super) fn raise(self: &Arc<Self>, kind: CmEventKind, status: i32) {
        self.raise_with(kind, status, |_| {});
    }

    pub(super) fn raise_with(
        self: &Arc<Self>,
        kind: CmEventKind,
        status: i32,
        fill: impl FnOnce(&mut CmEvent),
    ) {
        let mut event = CmEvent::new(kind, status, self.clone());
        fill(&mut event);
        drop(self.queue().push(event));
    }

    /// Closes the id: ends its connection, drops its waiting events and frees its port. Connection requests to a listener that the
    /// program has not read yet are rejected.
    pub fn close(&self) {
        if self.service.alive().is_err() {
            return;
        }
        self.state.lock().is_closed = true;
        let listened = self.release();
        drop(self.queue().take_of(self));
        if listened {
            let is_request =
                |event: &CmEvent| event.listener.as_ref().is_some_and(|l| std::ptr::eq(l.as_ptr(), self));
            drop(self.queue().take_out(is_request));
        }
    }

    /// Releases connection, listener and port. Returns whether it listened.
    pub(super) fn release(&self) -> bool {
        if let Some(streams) = &self.service.streams {
            return self.release_stream(streams);
        }
        let (comm, listener, bound) = {
            let mut state = self.state.lock();
            (state.comm.take(), state.listener.take(), state.bound.take())
        };
        if comm.is_some() || listener.is_some() {
            self.service.manage(|managed| {
                if let Some(comm) = comm {
                    managed.ids.remove(&comm);
                    managed.forget_shut(comm);
                    managed.cm.release(comm, now());
                }
                if let Some(listener) = listener {
                    managed.listeners.remove(&listener);
                    managed.cm.unlisten(listener, now());
                }
            });
        }
        if let (Some(bound), Ok(ports)) = (bound, self.service.ports()) {
            if bound.is_listed {
                ports.unbind(bound.space, bound.port, bound.scope);
            }
            if bound.is_ephemeral {
                ports.return_ephemeral(bound.space, bound.port);
            }
        }
        listener.is_some()
    }
}

impl IdState {
    /// Whether it listens, or is or was connected.
    pub(super) fn is_used(&self) -> bool {
        self.comm.is_some() || self.listener.is_some() || self.stream.is_some()
    }
}

impl Drop for CmId {
    fn drop(&mut self) {
        if !self.state.get_mut().is_closed {
            self.close();
        }
        self.service.live_ids.remove(self);
    }
}
