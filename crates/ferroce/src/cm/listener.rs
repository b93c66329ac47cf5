//! Receiving connection requests.

use super::connector::OwnedId;
use super::{Connection, failure, next_answer};
use crate::device::Device;
use crate::error::Error;
use crate::macros::{debug, setters};
use crate::qp::{Connected, Qp};
use crate::sleep;
use ferroce_nic::{CmChannel, CmEvent, CmEventKind, CmTransport, PortSpace, RejectReason, Secret, Wire};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Default of [`ListenerBuilder::backlog`].
const BACKLOG: u32 = 1024;

/// Listens for connection requests. Dropping it rejects requests that were not accepted yet.
pub struct Listener {
    // Dropped before the channel: closing the channel drops its events.
    id: OwnedId,
    pub(super) channel: CmChannel,
    device: Device,
}

impl Listener {
    /// Listens on this address and port: `0.0.0.0` for all IPv4 addresses, `[::]` for all addresses, port 0 for a free port.
    pub fn bind(device: &Device, address: SocketAddr) -> Result<Listener, Error> {
        Listener::builder(device).bind(address)
    }

    /// Settings of a listener.
    pub fn builder(device: &Device) -> ListenerBuilder {
        ListenerBuilder { device: device.clone(), backlog: BACKLOG, secret: None }
    }

    /// Address and port that it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.0.local_addr().expect("bound when it was created")
    }

    /// Waits for a connection request.
    pub fn accept(&self) -> Result<Request, Error> {
        sleep::next(self.as_fd(), None, || self.try_accept())
    }

    /// Waits for a connection request. Returns [`Error::TimedOut`] after `timeout`.
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Request, Error> {
        sleep::next(self.as_fd(), Some(Instant::now() + timeout), || self.try_accept())
    }

    /// The next connection request, if there is one. Never blocks.
    pub fn try_accept(&self) -> Result<Option<Request>, Error> {
        while let Some(event) = self.channel.try_next() {
            if let Some(request) = self.request(event)? {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    /// The request of an event. Every other event belongs to a withdrawn request and yields `None`.
    fn request(&self, event: CmEvent) -> Result<Option<Request>, Error> {
        if event.kind != CmEventKind::ConnectRequest {
            return Ok(None);
        }
        let channel = self.device.nic().create_cm_channel().map_err(Error::in_call("accept"))?;
        event.id.migrate(&channel);
        Ok(Some(Request { id: OwnedId(event.id.clone()), channel, event }))
    }
}

/// Settings of a listener. [`ListenerBuilder::bind`] creates it.
#[must_use = "`bind` creates the listener"]
#[derive(Clone)]
pub struct ListenerBuilder {
    device: Device,
    backlog: u32,
    secret: Option<Secret>,
}

impl ListenerBuilder {
    setters! {
        /// Key for mutual authentication. Requests of peers without the key are rejected and not returned. The default is the key
        /// of `FERROCE_CM_KEY`, if that is set. With a key, private data has at most 36 bytes in a request and 180 in an answer; on
        /// iWARP 472 and 476.
        secret(key: Secret) |b| b.secret = Some(key);
        /// Most requests that wait to be accepted or rejected; 1024. Further requests are dropped, and their senders retry; on iWARP
        /// they wait in the system.
        backlog(requests: u32) |b| b.backlog = requests.max(1);
    }

    /// Listens on an address, as [`Listener::bind`] does.
    pub fn bind(&self, address: SocketAddr) -> Result<Listener, Error> {
        let call = Error::in_call("listen");
        let nic = self.device.nic();
        let channel = nic.create_cm_channel().map_err(&call)?;
        let id = OwnedId(nic.create_cm_id(&channel, PortSpace::Tcp, 0).map_err(&call)?);
        if let Some(key) = &self.secret {
            id.0.set_secret(key.clone());
        }
        id.0.bind(address).map_err(&call)?;
        id.0.listen(self.backlog).map_err(&call)?;
        Ok(Listener { id, channel, device: self.device.clone() })
    }
}

/// Readable while a connection request is available.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

debug!(Listener, |this| "Listener({})", this.local_addr());

/// A connection request. Dropping it rejects it.
pub struct Request {
    id: OwnedId,
    channel: CmChannel,
    event: CmEvent,
}

/// An accepted request that the peer has not confirmed yet.
pub(super) struct PendingAccept<T: Connected> {
    id: OwnedId,
    pub(super) channel: CmChannel,
    qp: Qp<T>,
    private_data: Vec<u8>,
}

impl Request {
    /// Private data of the peer, padded with zeros to 56 bytes, or to 36 with a key; as it was sent on iWARP.
    pub fn private_data(&self) -> &[u8] {
        &self.event.conn.private_data
    }

    /// Address and port of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.id.0.peer_addr().expect("a request has a sender")
    }

    /// Local address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.0.local_addr().expect("a request has a local address")
    }

    /// Accepts the request with `qp` and waits until the peer is ready too. `qp` is in INIT, as created. Post receives before
    /// the call. At most 196 bytes of private data, 508 on iWARP.
    pub fn accept<T: Connected>(self, qp: &Qp<T>, private_data: &[u8]) -> Result<Connection<T>, Error> {
        let pending = self.start(qp, private_data)?;
        let event = next_answer(&pending.channel)?;
        pending.finish(&event)
    }

    pub(super) fn start<T: Connected>(
        self,
        qp: &Qp<T>,
        private_data: &[u8],
    ) -> Result<PendingAccept<T>, Error> {
        let Request { id, channel, event } = self;
        let requested = &event.conn;
        let mut param = qp.conn_param(private_data);
        // Limited to what the peer supports.
        param.responder_resources = param.responder_resources.min(requested.responder_resources);
        param.initiator_depth = param.initiator_depth.min(requested.initiator_depth);
        if qp.cm_transport() == CmTransport::Uc {
            (param.responder_resources, param.initiator_depth) = (0, 0);
        }
        qp.prepare(&id.0);
        // iWARP: the connection manager connects the queue pair.
        if qp.pd().device().wire() == Wire::Roce {
            qp.follow(&id.0, &param)?;
        }
        id.0.accept(&param).map_err(Error::in_call("accept"))?;
        Ok(PendingAccept { id, channel, qp: qp.clone(), private_data: event.conn.private_data.clone() })
    }

    /// Rejects the request. At most 148 bytes of private data, 508 on iWARP.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.0.reject(RejectReason::CONSUMER, private_data).map_err(Error::in_call("reject"))
    }
}

impl<T: Connected> PendingAccept<T> {
    /// Evaluates the event that follows the acceptance.
    pub(super) fn finish(self, event: &CmEvent) -> Result<Connection<T>, Error> {
        match event.kind {
            CmEventKind::Established => {
                Ok(Connection::new(self.id, self.channel, self.qp, self.private_data))
            }
            _ => Err(failure(event)),
        }
    }
}
