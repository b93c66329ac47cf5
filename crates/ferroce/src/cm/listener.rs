//! Receiving offers.

use super::connector::OwnedId;
use super::{Connection, failure, next_answer, next_event};
use crate::device::Device;
use crate::error::Error;
use crate::qp::{Connected, Qp};
use ferroce_nic::{CmChannel, CmEvent, CmEventKind, CmTransport, PortSpace, RejectReason, Secret};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Offers that may wait undecided.
const BACKLOG: u32 = 1024;

/// Listens for connections. Dropping it ends that; offers that nobody has seen are refused.
pub struct Listener {
    // Before the channel, whose end drops what waits there.
    id: OwnedId,
    pub(super) channel: CmChannel,
    device: Device,
}

impl Listener {
    /// Listens on this address and port: `0.0.0.0` for all of IPv4, `[::]` for all addresses, port 0 for any that is free.
    pub fn bind(device: &Device, address: SocketAddr) -> Result<Listener, Error> {
        Listener::builder(device).bind(address)
    }

    /// A listener with settings.
    pub fn builder(device: &Device) -> ListenerBuilder {
        ListenerBuilder { device: device.clone(), backlog: BACKLOG, secret: None }
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.0.local_addr().expect("bound when it was made")
    }

    /// Waits for an offer.
    pub fn accept(&self) -> Result<Request, Error> {
        self.accept_before(None)
    }

    /// Waits for an offer, but not longer than `timeout`: then [`Error::TimedOut`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Request, Error> {
        self.accept_before(Some(Instant::now() + timeout))
    }

    /// An offer, if one waits.
    pub fn try_accept(&self) -> Result<Option<Request>, Error> {
        while let Some(event) = self.channel.try_next() {
            if let Some(request) = self.request(event)? {
                return Ok(Some(request));
            }
        }
        Ok(None)
    }

    fn accept_before(&self, deadline: Option<Instant>) -> Result<Request, Error> {
        loop {
            if let Some(request) = self.request(next_event(&self.channel, deadline)?)? {
                return Ok(request);
            }
        }
    }

    /// Everything but an offer is about one that was taken back before anybody saw it.
    pub(super) fn request(&self, event: CmEvent) -> Result<Option<Request>, Error> {
        if event.kind != CmEventKind::ConnectRequest {
            return Ok(None);
        }
        let channel = self.device.nic().create_cm_channel().map_err(Error::in_call("accept"))?;
        event.id.migrate(&channel);
        Ok(Some(Request { id: OwnedId(event.id.clone()), channel, event }))
    }
}

/// A listener to be. Nothing happens before [`ListenerBuilder::bind`].
#[must_use = "nothing happens before `bind`"]
#[derive(Clone)]
pub struct ListenerBuilder {
    device: Device,
    backlog: u32,
    secret: Option<Secret>,
}

impl ListenerBuilder {
    /// Whoever offers must prove to have this key; strangers are refused and never seen. Else the key of
    /// `FERROCE_CM_KEY`, if that is set. Private data has less room then: 36 bytes with an offer, 180 with its answer.
    pub fn secret(mut self, key: Secret) -> Self {
        self.secret = Some(key);
        self
    }

    /// How many offers may wait undecided; else 1024. Those beyond are dropped, and their senders try again.
    pub fn backlog(mut self, offers: u32) -> Self {
        self.backlog = offers.max(1);
        self
    }

    /// Listens, as [`Listener::bind`] does.
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

/// Readable while an offer waits.
impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Listener({})", self.local_addr())
    }
}

/// An offer. Dropping it refuses it.
pub struct Request {
    id: OwnedId,
    channel: CmChannel,
    event: CmEvent,
}

/// A taken offer whose other end has not confirmed it yet.
pub(super) struct Taken<T: Connected> {
    id: OwnedId,
    pub(super) channel: CmChannel,
    qp: Qp<T>,
    private_data: Vec<u8>,
}

impl Request {
    /// What the other program sent along: 56 bytes, or 36 under a key, zeros behind what it gave.
    pub fn private_data(&self) -> &[u8] {
        &self.event.conn.private_data
    }

    /// Address and port of the other side.
    pub fn peer_addr(&self) -> SocketAddr {
        self.id.0.peer_addr().expect("an offer comes from somewhere")
    }

    /// Where it arrived.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.0.local_addr().expect("an offer arrives somewhere")
    }

    /// Takes the offer with `qp`, which is in INIT as it was created (post receives before), and waits until the other
    /// side is ready, too. At most 196 bytes of private data.
    pub fn accept<T: Connected>(self, qp: &Qp<T>, private_data: &[u8]) -> Result<Connection<T>, Error> {
        let taken = self.take(qp, private_data)?;
        let event = next_answer(&taken.channel)?;
        taken.finish(&event)
    }

    pub(super) fn take<T: Connected>(self, qp: &Qp<T>, private_data: &[u8]) -> Result<Taken<T>, Error> {
        let Request { id, channel, event } = self;
        let offered = &event.conn;
        let mut param = qp.conn_param(private_data);
        // No more than the other side can do.
        param.responder_resources = param.responder_resources.min(offered.responder_resources);
        param.initiator_depth = param.initiator_depth.min(offered.initiator_depth);
        if qp.cm_transport() == CmTransport::Uc {
            (param.responder_resources, param.initiator_depth) = (0, 0);
        }
        qp.prepare(&id.0);
        qp.follow(&id.0, &param)?;
        id.0.accept(&param).map_err(Error::in_call("accept"))?;
        Ok(Taken { id, channel, qp: qp.clone(), private_data: event.conn.private_data.clone() })
    }

    /// Refuses the offer. At most 148 bytes of private data.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        self.id.0.reject(RejectReason::CONSUMER, private_data).map_err(Error::in_call("reject"))
    }
}

impl<T: Connected> Taken<T> {
    /// The other side is ready, or never will be.
    pub(super) fn finish(self, event: &CmEvent) -> Result<Connection<T>, Error> {
        match event.kind {
            CmEventKind::Established => {
                Ok(Connection::new(self.id, self.channel, self.qp, self.private_data))
            }
            _ => Err(failure(event)),
        }
    }
}
