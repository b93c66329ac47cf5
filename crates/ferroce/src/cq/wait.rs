//! How threads wait: look, arm, look again, sleep.

use super::Cq;
use super::inbox::Sleeper;
use crate::error::Error;
use crate::sleep::{self, Bell};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How long to poll before sleeping: a sleep and a wake-up cost about as much.
const SPIN: Duration = Duration::from_micros(50);

impl Cq {
    /// Waits until `look` finds something. `look` must have seen the queue empty when it returns `None`.
    pub(crate) fn wait_for<T>(
        &self,
        deadline: Option<Instant>,
        look: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        let start = Instant::now();
        loop {
            if let Some(found) = look()? {
                return Ok(found);
            }
            if start.elapsed() >= SPIN {
                return self.sleep_for(deadline, look);
            }
            std::hint::spin_loop();
        }
    }

    fn sleep_for<T>(
        &self,
        deadline: Option<Instant>,
        look: impl Fn() -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        self.device().check_ours("wait")?;
        let (bell, waker) = Bell::new()?;
        let sleeper = Sleeper::new(self);
        loop {
            sleeper.prepare(&waker)?;
            if let Some(found) = look()? {
                return Ok(found);
            }
            sleep::until_readable(&[self.as_fd(), bell.as_fd()], deadline)?;
            bell.silence();
            sleeper.take_events()?;
            if let Some(found) = look()? {
                return Ok(found);
            }
        }
    }
}
