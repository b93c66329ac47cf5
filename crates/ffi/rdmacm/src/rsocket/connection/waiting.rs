//! Waiting for a stream socket.

use std::sync::Arc;
use std::time::Duration;

use libc::{POLLERR, POLLHUP, POLLIN, POLLOUT, pollfd};

use super::shared::{Shared, State};
use crate::rsocket::completions::Notification;
use crate::rsocket::stream::End;
use crate::rsocket::wait::{Bell, Sleepers, watch};
use crate::rsocket::waiting::Watched;

/// How often a caller that never sleeps polls for connection events; each poll is a system call.
const GLANCE: Duration = Duration::from_millis(10);

impl Watched for Shared {
    fn progress(&mut self, own: Option<&Arc<Bell>>) {
        let mut changes = 0;
        if self.state.is_opening() || self.state == State::Listening {
            changes += self.take_cm_events();
        }
        if self.state == State::Connected
            && let Some(endpoint) = &mut self.endpoint
        {
            changes += endpoint.progress();
        }
        if changes > 0 {
            self.sleepers.wake(own);
        }
    }

    fn glance(&mut self) {
        if self.glanced.elapsed() >= GLANCE {
            self.glanced = std::time::Instant::now();
            if self.take_cm_events() > 0 {
                self.sleepers.wake(None);
            }
        }
    }

    fn arm(&mut self) {
        if self.state == State::Connected
            && let Some(endpoint) = &mut self.endpoint
        {
            endpoint.completions.arm();
        }
    }

    fn watch(&self, fds: &mut Vec<pollfd>) {
        fds.push(watch(self.channel.fd(), POLLIN));
        if self.state == State::Connected
            && let Some(endpoint) = &self.endpoint
        {
            fds.push(watch(endpoint.completions.fd(), POLLIN));
        }
    }

    fn take_events(&mut self, own: Option<&Arc<Bell>>) {
        let mut changes = self.take_cm_events();
        if let Some(endpoint) = &mut self.endpoint {
            changes += usize::from(endpoint.completions.take_event() == Notification::Taken);
        }
        if changes > 0 {
            self.sleepers.wake(own);
        }
    }

    /// Probes the peer's NIC. If it does not answer, a completion reports the failure.
    fn on_silence(&mut self) {
        if let Some(link) = self.link_mut() {
            link.machine.handle_keepalive_timer();
        }
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.flush_control();
        }
    }

    fn readiness(&self, events: i16) -> i16 {
        let requested = events & (POLLIN | POLLOUT);
        match self.state {
            State::Listening if !self.requests.is_empty() => requested & POLLIN,
            State::Refused(_) => requested | POLLERR,
            State::Connected => {
                let mut ready = 0;
                if self.has_data() || !self.is_readable() {
                    ready |= requested & POLLIN;
                }
                if self.can_send() || !self.is_writable() {
                    ready |= requested & POLLOUT;
                }
                // The end is reported after all data was read.
                match self.end().filter(|_| !self.has_data()) {
                    Some(End::Disconnected) => ready | POLLHUP,
                    Some(End::Failed) => ready | POLLERR,
                    None => ready,
                }
            }
            _ => 0,
        }
    }

    fn sleepers(&mut self) -> &mut Sleepers {
        &mut self.sleepers
    }

    fn is_closed(&self) -> bool {
        self.closed
    }
}
