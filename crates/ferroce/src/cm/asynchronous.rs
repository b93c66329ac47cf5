//! How tasks listen and connect: the event channel as a source of a tokio reactor.

use super::connection::event_of;
use super::{Connection, ConnectionEvent, Connector, Listener, Request};
use crate::error::Error;
use crate::qp::{Connected, Qp};
use ferroce_nic::{CmChannel, CmEvent, CmEventKind};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

struct Source<'a>(&'a CmChannel);

impl AsRawFd for Source<'_> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

/// The next event of a channel. Cancellation-safe: an event is taken in the moment it is returned.
async fn next_event(channel: &CmChannel) -> Result<CmEvent, Error> {
    if let Some(event) = channel.try_next() {
        return Ok(event);
    }
    let system = |source| Error::System { what: "watching an event channel", source };
    // As for completion channels: deprecated in newer versions for sources that close their descriptor.
    #[allow(deprecated)]
    let fd = AsyncFd::with_interest(Source(channel), Interest::READABLE).map_err(system)?;
    loop {
        let mut ready = fd.readable().await.map_err(system)?;
        if let Some(event) = channel.try_next() {
            return Ok(event);
        }
        ready.clear_ready();
    }
}

/// The next event that decides something, as for those who wait.
async fn next_answer(channel: &CmChannel) -> Result<CmEvent, Error> {
    loop {
        let event = next_event(channel).await?;
        if event.kind != CmEventKind::AddrChange {
            return Ok(event);
        }
    }
}

impl Listener {
    /// Waits for an offer. If the future is dropped, no offer is lost.
    pub async fn accept_async(&self) -> Result<Request, Error> {
        loop {
            if let Some(request) = self.request(next_event(&self.channel).await?)? {
                return Ok(request);
            }
        }
    }
}

impl Request {
    /// As [`Request::accept`]. If the future is dropped, the connection is.
    pub async fn accept_async<T: Connected>(
        self,
        qp: &Qp<T>,
        private_data: &[u8],
    ) -> Result<Connection<T>, Error> {
        let taken = self.take(qp, private_data)?;
        let event = next_answer(&taken.channel).await?;
        taken.finish(&event)
    }
}

impl Connector {
    /// As [`Connector::connect`]. If the future is dropped, the offer is taken back.
    pub async fn connect_async<T: Connected>(&self, qp: &Qp<T>) -> Result<Connection<T>, Error> {
        let offer = self.offer(qp)?;
        let event = next_answer(&offer.channel).await?;
        offer.finish(event)
    }
}

impl<T: Connected> Connection<T> {
    /// Waits for an event. If the future is dropped, no event is lost.
    pub async fn event_async(&self) -> Result<ConnectionEvent, Error> {
        loop {
            if let Some(event) = event_of(&next_event(&self.channel).await?) {
                return Ok(event);
            }
        }
    }
}
