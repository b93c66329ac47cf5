//! Established connections.

use super::connector::OwnedId;
use crate::error::Error;
use crate::macros::debug;
use crate::qp::{Connected, Qp};
use crate::sleep;
use ferroce_nic::{CmChannel, CmEvent, CmEventKind, Wire};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// An event of a connection.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionEvent {
    /// One side disconnected, or the peer did not answer our disconnect.
    Disconnected,
    /// The TIMEWAIT period is over: no packet of the connection is in flight. The queue pair can be reused. iWARP has no such event.
    TimewaitExit,
    /// The local address was removed or moved to another interface. The connection stays: the address may return.
    AddressChanged,
    /// The device was removed, and the connection with it.
    DeviceRemoved,
}

/// A connection. Dropping it disconnects; the queue pair stays, without a peer.
pub struct Connection<T: Connected> {
    id: OwnedId,
    pub(super) channel: CmChannel,
    qp: Qp<T>,
    private_data: Vec<u8>,
}

impl<T: Connected> Connection<T> {
    pub(super) fn new(id: OwnedId, channel: CmChannel, qp: Qp<T>, private_data: Vec<u8>) -> Self {
        Connection { id, channel, qp, private_data }
    }

    /// Its queue pair.
    pub fn qp(&self) -> &Qp<T> {
        &self.qp
    }

    /// Private data of the peer, padded with zeros; as it was sent on iWARP.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Address and port of the peer.
    pub fn peer_addr(&self) -> SocketAddr {
        self.id.0.peer_addr().expect("a connection has a peer")
    }

    /// Local address and port.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.0.local_addr().expect("a connection has a local address")
    }

    /// Disconnects: outstanding work requests complete with a flush error, and the peer gets a disconnect request.
    /// [`ConnectionEvent::Disconnected`] follows when the peer answers.
    pub fn disconnect(&self) -> Result<(), Error> {
        // On iWARP the end of the stream flushes them, after the FPDU in progress has been sent.
        if self.qp.pd().device().wire() == Wire::Roce {
            self.qp.close()?;
        }
        self.id.0.disconnect().map_err(Error::in_call("disconnect"))
    }

    /// The next event, if there is one. Never blocks.
    pub fn try_event(&self) -> Option<ConnectionEvent> {
        std::iter::from_fn(|| self.channel.try_next()).find_map(|event| event_of(&event))
    }

    /// Waits for an event. A connection ends with two events: `Disconnected`, then `TimewaitExit`; on iWARP only with the first. No
    /// event follows.
    pub fn wait_event(&self) -> Result<ConnectionEvent, Error> {
        sleep::next(self.as_fd(), None, || Ok(self.try_event()))
    }

    /// Waits for an event. Returns [`Error::TimedOut`] after `timeout`.
    pub fn wait_event_timeout(&self, timeout: Duration) -> Result<ConnectionEvent, Error> {
        sleep::next(self.as_fd(), Some(Instant::now() + timeout), || Ok(self.try_event()))
    }
}

fn event_of(event: &CmEvent) -> Option<ConnectionEvent> {
    match event.kind {
        CmEventKind::Disconnected => Some(ConnectionEvent::Disconnected),
        CmEventKind::TimewaitExit => Some(ConnectionEvent::TimewaitExit),
        CmEventKind::AddrChange => Some(ConnectionEvent::AddressChanged),
        CmEventKind::DeviceRemoval => Some(ConnectionEvent::DeviceRemoved),
        _ => None,
    }
}

/// Readable while an event is available.
impl<T: Connected> AsFd for Connection<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

debug!(Connection<T> where T: Connected, |this| "Connection({} to {})", this.local_addr(), this.peer_addr());
