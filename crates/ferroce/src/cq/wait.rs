//! Waiting in threads: poll, arm, poll again, sleep. The second poll avoids a lost wake-up.

use super::Cq;
use super::dispatch::Waiter;
use crate::error::Error;
use crate::sleep::{self, WakeFd};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Time to poll before sleeping; about the cost of a sleep and a wake-up.
const SPIN: Duration = Duration::from_micros(50);

impl Cq {
    /// Waits until `poll` returns a value. `poll` may return `None` only after finding the queue empty.
    pub(crate) fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        poll: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        loop {
            if let Some(found) = poll()? {
                return Ok(found);
            }
            if start.elapsed() >= SPIN {
                return self.sleep_for(deadline, poll);
            }
            std::hint::spin_loop();
        }
    }

    fn sleep_for<T>(
        &self,
        deadline: Option<Instant>,
        poll: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        self.device().check_ours("wait")?;
        let (wake_fd, waker) = WakeFd::new()?;
        let waiter = Waiter::new(self);
        loop {
            waiter.prepare(&waker)?;
            if let Some(found) = poll()? {
                return Ok(found);
            }
            sleep::until_readable(&[self.as_fd(), wake_fd.as_fd()], deadline)?;
            wake_fd.clear();
            waiter.take_events()?;
            if let Some(found) = poll()? {
                return Ok(found);
            }
        }
    }
}
