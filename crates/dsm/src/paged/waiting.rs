//! Waits for a word that another process writes into our memory: polls for a while, then sleeps until a peer wakes
//! us.

use crate::error::Error;
use crate::transport::{Peers, poll_until};
use std::time::{Duration, Instant};

/// How long to poll before the first sleep, and for the completion of an operation, where every thread has a core. A
/// sleep and a wake-up cost about as much.
const LOOK: Duration = Duration::from_micros(100);
const SPIN: Duration = Duration::from_micros(50);
/// The longest sleep: the cost of a wake-up that went to another thread.
const NAP: Duration = Duration::from_millis(2);

/// How long threads poll before they sleep.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) look: Duration,
    pub(super) spin: Duration,
}

impl Patience {
    /// For this many processes on this host, including ourselves. Each has a service thread. If that has no core of
    /// its own, polling takes the core from the process that we wait for.
    pub(super) fn of(local_processes: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        match 2 * local_processes <= cores {
            true => Self { look: LOOK, spin: SPIN },
            false => Self { look: Duration::ZERO, spin: Duration::ZERO },
        }
    }

    /// Waits with a timeout. Returns whether the word came.
    pub(super) fn until_or(
        self,
        peers: &Peers,
        most: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let start = Instant::now();
        if poll_until(self.look.min(most), &mut ready, || peers.progress())? {
            return Ok(true);
        }
        while !ready() {
            let waited = start.elapsed();
            if waited >= most {
                return Ok(false);
            }
            peers.nap(most - waited, &mut ready)?;
        }
        Ok(true)
    }

    pub(super) fn until(self, peers: &Peers, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        if poll_until(self.look, &mut ready, || peers.progress())? {
            return Ok(());
        }
        while !ready() {
            peers.nap(NAP, &mut ready)?;
        }
        Ok(())
    }
}
