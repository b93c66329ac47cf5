//! A connection, until its end.

use super::connector::OwnedId;
use super::next_event;
use crate::error::Error;
use crate::qp::{Connected, Qp};
use ferroce_nic::{CmChannel, CmEvent, CmEventKind};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// What happens to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionEvent {
    /// One side ended it, or the other does not answer any more when ours did.
    Disconnected,
    /// No packet of it is under way any more: its queue pair may be used again.
    TimewaitExit,
    /// Its address on this side has left the machine, or moved to another interface. The connection is not ended by that:
    /// the address may come back.
    AddressChanged,
    /// The device is gone, and the connection with it.
    DeviceRemoved,
}

/// A connection. Dropping it ends it; the queue pair lives on, without a peer.
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

    /// What the other program sent along when the connection was made; zeros behind what it gave.
    pub fn private_data(&self) -> &[u8] {
        &self.private_data
    }

    /// Address and port of the other side.
    pub fn peer_addr(&self) -> SocketAddr {
        self.id.0.peer_addr().expect("connected to somewhere")
    }

    /// Address and port of this side.
    pub fn local_addr(&self) -> SocketAddr {
        self.id.0.local_addr().expect("connected from somewhere")
    }

    /// Ends the connection: work requests that are not done are flushed, the other side is told.
    /// [`ConnectionEvent::Disconnected`] follows when it knows.
    pub fn disconnect(&self) -> Result<(), Error> {
        self.qp.stop()?;
        self.id.0.disconnect().map_err(Error::in_call("disconnect"))
    }

    /// An event, if one waits.
    pub fn try_event(&self) -> Option<ConnectionEvent> {
        self.channel.try_next().as_ref().and_then(event_of)
    }

    /// Waits for an event. Of the end of a connection there are two: disconnected, and some time later the exit from
    /// TIMEWAIT. After that there is none.
    pub fn wait_event(&self) -> Result<ConnectionEvent, Error> {
        self.event_before(None)
    }

    /// Waits for an event, but not longer than `timeout`: then [`Error::TimedOut`].
    pub fn wait_event_timeout(&self, timeout: Duration) -> Result<ConnectionEvent, Error> {
        self.event_before(Some(Instant::now() + timeout))
    }

    fn event_before(&self, deadline: Option<Instant>) -> Result<ConnectionEvent, Error> {
        loop {
            if let Some(event) = event_of(&next_event(&self.channel, deadline)?) {
                return Ok(event);
            }
        }
    }
}

pub(super) fn event_of(event: &CmEvent) -> Option<ConnectionEvent> {
    match event.kind {
        CmEventKind::Disconnected => Some(ConnectionEvent::Disconnected),
        CmEventKind::TimewaitExit => Some(ConnectionEvent::TimewaitExit),
        CmEventKind::AddrChange => Some(ConnectionEvent::AddressChanged),
        CmEventKind::DeviceRemoval => Some(ConnectionEvent::DeviceRemoved),
        _ => None,
    }
}

/// Readable while an event waits.
impl<T: Connected> AsFd for Connection<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

impl<T: Connected> fmt::Debug for Connection<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Connection({} to {})", self.local_addr(), self.peer_addr())
    }
}
