//! Listen and accept. Requests wait in the listener until a call accepts them.

use std::ffi::c_int;

use super::Connection;
use super::shared::{Request, Shared, State};
use crate::rsocket::calls::{rdma_accept, rdma_listen, rdma_reject};
use crate::rsocket::channel::{Channel, refuse};
use crate::rsocket::endpoint::Endpoint;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::settings::Sizing;
use crate::rsocket::wire::ConnectData;

impl Connection {
    pub(crate) fn listen(&self, backlog: c_int) -> Outcome<()> {
        let mut shared = self.shared.lock();
        match shared.state {
            State::Listening => return Ok(()),
            State::Fresh | State::Bound => {}
            _ => return Err(Errno(libc::EINVAL)),
        }
        // SAFETY: the id lives as long as the channel.
        Errno::check(unsafe { rdma_listen(shared.channel.id(), backlog) })?;
        shared.state = State::Listening;
        Ok(())
    }

    /// Accepts a pending request, or waits for one. Rejects a request that cannot be accepted, and continues with the next.
    pub(crate) fn accept(&self) -> Outcome<Connection> {
        loop {
            let mut shared = self.wait(self.flags.forbid_waiting(0), |shared| {
                shared.state != State::Listening || !shared.requests.is_empty()
            })?;
            let Some(request) = shared.requests.pop_front() else { return Err(Errno(libc::EINVAL)) };
            let sizing = shared.sizing;
            drop(shared);
            if let Ok(connection) = self.welcome_peer(request, sizing) {
                return Ok(connection);
            }
        }
    }

    fn welcome_peer(&self, request: Request, sizing: Sizing) -> Outcome<Connection> {
        let Ok(peer) = ConnectData::parse(&request.private_data) else {
            // SAFETY: only this call has the request.
            unsafe { refuse(request.id) };
            return Err(Errno(libc::EPROTO));
        };
        // SAFETY: only this call has the request, and its event was acknowledged when it was taken.
        let channel = unsafe { Channel::migrate(request.id)? };
        let connection =
            Connection::of(channel, self.domain, sizing, State::Accepting, self.flags.inherited());
        let mut shared = connection.shared.lock();
        if let Err(errno) = shared.reply(&peer) {
            // SAFETY: the id lives as long as the channel.
            unsafe { rdma_reject(shared.channel.id(), std::ptr::null(), 0) };
            return Err(errno);
        }
        drop(shared);
        Ok(connection)
    }
}

impl Shared {
    fn reply(&mut self, peer: &ConnectData) -> Outcome<()> {
        let id = self.channel.id();
        // SAFETY: an id that came with a request has its device, and lives as long as the channel.
        let mut endpoint = unsafe { Endpoint::new(id, self.sizing)? };
        endpoint.meet(peer);
        let data = endpoint.connect_data().to_bytes();
        let mut parameters = endpoint.parameters(&data);
        self.endpoint = Some(endpoint);
        // SAFETY: as above; the data is copied before this returns.
        Errno::check(unsafe { rdma_accept(id, &mut parameters) }).map(drop)
    }
}
