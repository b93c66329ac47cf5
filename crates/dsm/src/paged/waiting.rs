//! Waits for a word that another process writes into our memory: polls for a while, then sleeps until a peer wakes
//! us.

use crate::error::Error;
use crate::transport::{Peers, poll_until};
use std::time::{Duration, Instant};

/// How long to poll before the first sleep, and for the completion of an operation, where every thread has a core. A
/// sleep and a wake-up cost about as much.
const POLL_FOR_WORD: Duration = Duration::from_micros(100);
const POLL_FOR_COMPLETION: Duration = Duration::from_micros(50);
/// The longest sleep: the cost of a wake-up that went to another thread.
const MAX_SLEEP: Duration = Duration::from_millis(2);

/// How long threads poll before they sleep.
#[derive(Debug, Clone, Copy)]
pub(super) struct PollTimes {
    pub(super) word: Duration,
    pub(super) completion: Duration,
}

impl PollTimes {
    /// For this many processes on this host, including ourselves. Each has a service thread. If that has no core of
    /// its own, polling takes the core from the process that we wait for.
    pub(super) fn new(local_processes: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        match 2 * local_processes <= cores {
            true => Self { word: POLL_FOR_WORD, completion: POLL_FOR_COMPLETION },
            false => Self { word: Duration::ZERO, completion: Duration::ZERO },
        }
    }

    /// Waits with a timeout. Returns whether the word is ready.
    pub(super) fn wait_timeout(
        self,
        peers: &Peers,
        most: Duration,
        mut ready: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let start = Instant::now();
        if poll_until(self.word.min(most), &mut ready, || peers.progress())? {
            return Ok(true);
        }
        while !ready() {
            let waited = start.elapsed();
            if waited >= most {
                return Ok(false);
            }
            peers.sleep(most - waited, &mut ready)?;
        }
        Ok(true)
    }

    pub(super) fn wait(self, peers: &Peers, mut ready: impl FnMut() -> bool) -> Result<(), Error> {
        if poll_until(self.word, &mut ready, || peers.progress())? {
            return Ok(());
        }
        while !ready() {
            peers.sleep(MAX_SLEEP, &mut ready)?;
        }
        Ok(())
    }
}
