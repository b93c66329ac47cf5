//! Bind and connect: a sequence of connection manager calls. The event of each call starts the next one.

use std::ffi::c_int;
use std::ptr;

use super::Connection;
use super::shared::{Shared, State};
use crate::abi::*;
use crate::rsocket::address::Address;
use crate::rsocket::calls::{
    rdma_bind_addr, rdma_connect, rdma_resolve_addr, rdma_resolve_route, rdma_set_option,
};
use crate::rsocket::channel::Happened;
use crate::rsocket::endpoint::Endpoint;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::wire::ConnectData;

/// Timeout of a resolution: one second, doubled with each retry.
const FIRST_TIMEOUT_MS: c_int = 1000;
const MAX_RETRIES: u32 = 6;

impl Connection {
    pub(crate) fn bind(&self, mut address: Address) -> Outcome<()> {
        let mut shared = self.shared.lock();
        if shared.state != State::Fresh {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: the id lives as long as the channel, the address until this returns.
        Errno::check(unsafe { rdma_bind_addr(shared.channel.id(), address.as_ptr()) })?;
        shared.state = State::Bound;
        Ok(())
    }

    pub(crate) fn connect(&self, address: Address) -> Outcome<()> {
        let mut shared = self.shared.lock();
        match shared.state {
            State::Fresh | State::Bound => {}
            State::Connected | State::Accepting => return Err(Errno(libc::EISCONN)),
            state if state.is_opening() => return Err(Errno(libc::EALREADY)),
            State::Refused(errno) => return Err(errno),
            _ => return Err(Errno(libc::EINVAL)),
        }
        shared.destination = Some(address);
        shared.retries = 0;
        shared.resolve_address()?;
        drop(shared);
        self.finish_opening(self.flags.forbid_waiting(0))
            .map_err(|errno| if errno == Errno::WOULD_BLOCK { Errno(libc::EINPROGRESS) } else { errno })
    }

    /// Waits until the connection is established. Returns the reason if it fails.
    pub(crate) fn finish_opening(&self, must_not_wait: bool) -> Outcome<()> {
        let mut shared = self.wait(must_not_wait, |shared| !shared.state.is_opening())?;
        match shared.state {
            State::Connected => Ok(()),
            State::Refused(errno) => {
                // This call returns the error, so `SO_ERROR` does not report it again.
                shared.error = 0;
                Err(errno)
            }
            _ => Err(Errno(libc::ENOTCONN)),
        }
    }
}

impl Shared {
    fn timeout_ms(&mut self) -> c_int {
        let timeout = FIRST_TIMEOUT_MS << self.retries;
        self.retries += 1;
        timeout
    }

    fn resolve_address(&mut self) -> Outcome<()> {
        let Some(mut destination) = self.destination else { return Err(Errno(libc::EDESTADDRREQ)) };
        let timeout_ms = self.timeout_ms();
        let id = self.channel.id();
        // SAFETY: the id lives as long as the channel, the address until this returns.
        Errno::check(unsafe { rdma_resolve_addr(id, ptr::null_mut(), destination.as_ptr(), timeout_ms) })?;
        self.state = State::ResolvingAddress;
        Ok(())
    }

    fn resolve_route(&mut self) -> Outcome<()> {
        let id = self.channel.id();
        if let Some(mut route) = self.options.route.take() {
            let (value, length) = (route.as_mut_ptr().cast(), route.len());
            // SAFETY: the id lives as long as the channel, the bytes until this returns.
            let set = unsafe { rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, value, length) };
            Errno::check(set)?;
        } else {
            let timeout_ms = self.timeout_ms();
            // SAFETY: the id lives as long as the channel.
            Errno::check(unsafe { rdma_resolve_route(id, timeout_ms) })?;
        }
        self.state = State::ResolvingRoute;
        Ok(())
    }

    fn request(&mut self) -> Outcome<()> {
        let id = self.channel.id();
        // SAFETY: the id has its device and lives as long as the channel; the endpoint is dropped before the channel.
        let endpoint = unsafe { Endpoint::new(id, self.sizing)? };
        let data = endpoint.connect_data().to_bytes();
        let mut parameters = endpoint.parameters(&data);
        self.endpoint = Some(endpoint);
        // SAFETY: as above; the data is copied before this returns.
        Errno::check(unsafe { rdma_connect(id, &mut parameters) })?;
        self.state = State::Connecting;
        Ok(())
    }

    fn welcome(&mut self, private_data: &[u8]) -> Outcome<()> {
        let peer = ConnectData::parse(private_data).map_err(|_| Errno(libc::EPROTO))?;
        let endpoint = self.endpoint.as_mut().ok_or(Errno(libc::ENOTCONN))?;
        endpoint.meet(&peer);
        self.state = State::Connected;
        Ok(())
    }

    /// Handles an event while the connection is being established.
    pub(crate) fn on_opening_event(&mut self, happened: &Happened) {
        let timed_out = happened.status.abs() == libc::ETIMEDOUT && self.retries <= MAX_RETRIES;
        let next = match (self.state, happened.event) {
            (State::ResolvingAddress, RDMA_CM_EVENT_ADDR_RESOLVED) => {
                self.retries = 0;
                self.resolve_route()
            }
            (State::ResolvingAddress, RDMA_CM_EVENT_ADDR_ERROR) if timed_out => self.resolve_address(),
            (State::ResolvingRoute, RDMA_CM_EVENT_ROUTE_RESOLVED) => self.request(),
            (State::ResolvingRoute, RDMA_CM_EVENT_ROUTE_ERROR) if timed_out => self.resolve_route(),
            (State::Connecting, RDMA_CM_EVENT_ESTABLISHED) => self.welcome(&happened.private_data),
            (State::Accepting, RDMA_CM_EVENT_ESTABLISHED) => {
                self.state = State::Connected;
                Ok(())
            }
            (State::Accepting, _) => Err(Errno(libc::ECONNRESET)),
            _ => Err(happened.failure()),
        };
        if let Err(errno) = next {
            self.refuse(errno);
        }
    }
}
