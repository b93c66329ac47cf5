//! Shut down and close.

use std::time::{Duration, Instant};

use super::Connection;
use super::shared::{Shared, State};
use crate::rsocket::calls::rdma_disconnect;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::stream::Direction;
use crate::rsocket::waiting::{Watched, sleep_until};

/// How long a close waits for data in flight. A peer that posts no receives could block it without limit.
const LINGER: Duration = Duration::from_secs(10);

impl Connection {
    /// Sends the close message, and waits until the peer has acknowledged all data. Also blocks for a non-blocking socket:
    /// no kernel continues to send after the program has ended.
    pub(crate) fn shut_down(&self, direction: Direction) -> Outcome<()> {
        let mut shared = self.shared.lock();
        let Some(link) = shared.link_mut() else {
            return if shared.state.is_opening() { Ok(()) } else { Err(Errno(libc::ENOTCONN)) };
        };
        link.machine.handle_shutdown(direction);
        shared.progress(None);
        // Blocked readers must see the end.
        shared.sleepers.wake(None);
        let flushed = |shared: &Shared| {
            shared.end().is_some() || shared.link().is_none_or(|link| link.machine.is_flushed())
        };
        match sleep_until(shared, Some(Instant::now() + LINGER), flushed) {
            Ok(_) | Err(Errno::WOULD_BLOCK) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Closes the socket. The last call that uses it frees its resources.
    pub(crate) fn close(&self) {
        // An interrupted close continues here: the peer is disconnected in any case.
        let _ = self.shut_down(Direction::Both);
        let mut shared = self.shared.lock();
        if shared.state == State::Connected {
            // SAFETY: the id lives as long as the channel.
            unsafe { rdma_disconnect(shared.channel.id()) };
        }
        shared.closed = true;
        shared.sleepers.wake(None);
    }
}
