//! Listening and connecting in tasks: a reactor watches the event channel.

use super::{Connection, ConnectionEvent, Connector, Listener, Request, try_answer};
use crate::error::Error;
use crate::qp::{Connected, Qp};
use crate::reactor::{self, Reactor};
use ferroce_nic::{CmChannel, CmEvent};
use std::os::fd::AsFd;

async fn next_answer(channel: &CmChannel, reactor: &impl Reactor) -> Result<CmEvent, Error> {
    reactor::next(reactor, channel.as_fd(), || Ok(try_answer(channel))).await
}

impl Listener {
    /// Waits for a connection request. If the future is dropped, no request is lost.
    pub async fn accept_async(&self, reactor: &impl Reactor) -> Result<Request, Error> {
        reactor::next(reactor, self.as_fd(), || self.try_accept()).await
    }
}

impl Request {
    /// As [`Request::accept`]. If the future is dropped, the connection is dropped too.
    pub async fn accept_async<T: Connected>(
        self,
        qp: &Qp<T>,
        private_data: &[u8],
        reactor: &impl Reactor,
    ) -> Result<Connection<T>, Error> {
        let pending = self.start(qp, private_data)?;
        let event = next_answer(&pending.channel, reactor).await?;
        pending.finish(&event)
    }
}

impl Connector {
    /// As [`Connector::connect`]. If the future is dropped, the connection request is withdrawn.
    pub async fn connect_async<T: Connected>(
        &self,
        qp: &Qp<T>,
        reactor: &impl Reactor,
    ) -> Result<Connection<T>, Error> {
        let pending = self.start(qp)?;
        let event = next_answer(&pending.channel, reactor).await?;
        pending.finish(event)
    }
}

impl<T: Connected> Connection<T> {
    /// Waits for an event. If the future is dropped, no event is lost.
    pub async fn event_async(&self, reactor: &impl Reactor) -> Result<ConnectionEvent, Error> {
        reactor::next(reactor, self.as_fd(), || Ok(self.try_event())).await
    }
}
