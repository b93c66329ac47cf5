//! Shut down and close.

use std::time::{Duration, Instant};

use super::Connection;
use super::shared::{Shared, State};
use crate::rsocket::calls::rdma_disconnect;
use crate::rsocket::errno::{Errno, Outcome};
use crate::rsocket::stream::Direction;
use crate::rsocket::waiting::{Watched, sleep_until};

/// How long a close waits for what is on its way. A peer whose receives have run out could hold it up for ever.
const LINGER: Duration = Duration::from_secs(10);

impl Connection {
    /// Tells the peer, and waits until everything sent has arrived. Blocks even if the socket does not: there is no
    /// kernel that would go on sending for a program that has left.
    pub(crate) fn shut_down(&self, direction: Direction) -> Outcome<()> {
        let mut shared = self.shared.lock();
        let Some(link) = shared.link_mut() else {
            return if shared.state.is_opening() { Ok(()) } else { Err(Errno(libc::ENOTCONN)) };
        };
        link.machine.handle_shutdown(direction);
        shared.progress(None);
        // Whoever sleeps in a read must see that there will be no more.
        shared.sleepers.wake(None);
        let flushed = |shared: &Shared| {
            shared.end().is_some() || shared.link().is_none_or(|link| link.machine.is_flushed())
        };
        match sleep_until(shared, Some(Instant::now() + LINGER), flushed) {
            Ok(_) | Err(Errno::WOULD_BLOCK) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Ends the socket. Its resources go with the last call that still uses it.
    pub(crate) fn close(&self) {
        // An interrupted close still closes: the peer sees the disconnect either way.
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
