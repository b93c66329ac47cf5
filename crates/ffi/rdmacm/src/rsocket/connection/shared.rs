//! The state of a stream socket, and how events and completions change it.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::time::Instant;

use super::mappings::Mapped;
use super::options::Options;
use crate::abi::*;
use crate::rsocket::address::Address;
use crate::rsocket::calls::rdma_disconnect;
use crate::rsocket::channel::{Channel, Happened, refuse};
use crate::rsocket::endpoint::{Endpoint, Link};
use crate::rsocket::errno::Errno;
use crate::rsocket::settings::Sizing;
use crate::rsocket::stream::End;
use crate::rsocket::wait::Sleepers;

/// The state of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    Fresh,
    Bound,
    Listening,
    ResolvingAddress,
    ResolvingRoute,
    Connecting,
    /// Our reply is in flight; the peer has not confirmed it.
    Accepting,
    /// Connected: the state of the stream applies.
    Connected,
    /// The connection failed with this error.
    Refused(Errno),
}

impl State {
    /// Whether events of the connection manager change the state.
    pub(crate) fn is_opening(self) -> bool {
        matches!(self, State::ResolvingAddress | State::ResolvingRoute | State::Connecting | State::Accepting)
    }
}

/// A pending connection request.
pub(crate) struct Request {
    pub(crate) id: *mut rdma_cm_id,
    pub(crate) private_data: Vec<u8>,
}

// SAFETY: a handle that any thread may use, and bytes.
unsafe impl Send for Request {}

/// The state behind the socket's lock. The order of the fields is the order of destruction.
pub(crate) struct Shared {
    pub(crate) endpoint: Option<Endpoint>,
    pub(crate) mapped: Vec<Mapped>,
    /// The end of the last write to the peer's mappings.
    pub(crate) mapped_write: Option<Instant>,
    pub(crate) requests: VecDeque<Request>,
    pub(crate) channel: Channel,
    pub(crate) state: State,
    pub(crate) sizing: Sizing,
    pub(crate) options: Options,
    pub(crate) sleepers: Sleepers,
    /// The next result of `SO_ERROR`.
    pub(crate) error: c_int,
    pub(crate) destination: Option<Address>,
    pub(crate) retries: u32,
    pub(crate) closed: bool,
    /// The time of the last [`Watched::glance`](crate::rsocket::waiting::Watched::glance).
    pub(crate) glanced: Instant,
}

impl Shared {
    pub(crate) fn new(channel: Channel, sizing: Sizing, options: Options, state: State) -> Self {
        Self {
            endpoint: None,
            mapped: Vec::new(),
            mapped_write: None,
            requests: VecDeque::new(),
            channel,
            state,
            sizing,
            options,
            sleepers: Sleepers::default(),
            error: 0,
            destination: None,
            retries: 0,
            closed: false,
            glanced: Instant::now(),
        }
    }

    pub(crate) fn link(&self) -> Option<&Link> {
        self.endpoint.as_ref()?.link.as_ref().filter(|_| self.state == State::Connected)
    }

    pub(crate) fn link_mut(&mut self) -> Option<&mut Link> {
        let connected = self.state == State::Connected;
        self.endpoint.as_mut()?.link.as_mut().filter(|_| connected)
    }

    pub(crate) fn has_data(&self) -> bool {
        self.link().is_some_and(|link| link.machine.recv_ring.has_data())
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.link().is_some_and(|link| link.machine.life.is_readable())
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.link().is_some_and(|link| link.machine.life.is_writable())
    }

    pub(crate) fn can_send(&self) -> bool {
        self.link().is_some_and(|link| link.machine.send_ring.can_send())
    }

    pub(crate) fn end(&self) -> Option<End> {
        self.link().and_then(|link| link.machine.life.end())
    }

    /// Handles all events of the connection manager. Returns their number.
    pub(crate) fn take_cm_events(&mut self) -> usize {
        let mut count = 0;
        while let Some(happened) = self.channel.next() {
            count += 1;
            if happened.event == RDMA_CM_EVENT_ADDR_CHANGE {
                // Ignored: if the connection breaks, the transport reports it.
                continue;
            }
            match self.state {
                State::Listening => self.on_listener_event(happened),
                State::Connected => self.on_connected_event(&happened),
                state if state.is_opening() => self.on_opening_event(&happened),
                _ => {}
            }
        }
        count
    }

    fn on_listener_event(&mut self, happened: Happened) {
        if happened.event == RDMA_CM_EVENT_CONNECT_REQUEST {
            let Happened { id, private_data, .. } = happened;
            self.requests.push_back(Request { id, private_data });
            return;
        }
        // Another event of a pending request: its peer has disconnected.
        if let Some(at) = self.requests.iter().position(|request| request.id == happened.id)
            && let Some(request) = self.requests.remove(at)
        {
            // SAFETY: only the listener has the id of a pending request.
            unsafe { refuse(request.id) };
        }
    }

    fn on_connected_event(&mut self, happened: &Happened) {
        if !matches!(happened.event, RDMA_CM_EVENT_DISCONNECTED | RDMA_CM_EVENT_DEVICE_REMOVAL) {
            return;
        }
        if let Some(endpoint) = &mut self.endpoint {
            // Data that arrived before the end stays readable.
            endpoint.progress();
            if let Some(link) = &mut endpoint.link {
                link.machine.life.on_end(End::Disconnected);
            }
        }
        // SAFETY: the id lives as long as the channel.
        unsafe { rdma_disconnect(self.channel.id()) };
    }

    pub(crate) fn refuse(&mut self, errno: Errno) {
        self.state = State::Refused(errno);
        self.error = errno.0;
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.state == State::Listening {
            self.take_cm_events();
        }
        for request in self.requests.drain(..) {
            // SAFETY: only the listener has the id of a pending request.
            unsafe { refuse(request.id) };
        }
    }
}
