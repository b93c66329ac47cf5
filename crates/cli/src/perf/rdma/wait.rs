//! How a side waits for completions: it polls or sleeps, with a timeout, until the other side closes.

use super::super::affinity::SingleCore;
use super::super::control::Control;
use super::context::TestContext;
use super::refused;
use crate::failure::Failure;
use ferroce::Cq;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Polls between two reads of the clock and the control channel, each of which costs about as much as a poll.
const POLLS_PER_CHECK: u32 = 1024;
/// Time without progress after which a test fails. A reliable connection fails by itself earlier.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);
/// An unreliable message that has not arrived after this time is lost.
const LOSS_TIMEOUT: Duration = Duration::from_millis(200);

/// Why a wait returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WaitOutcome {
    /// The completion queue should be polled again.
    PollAgain,
    /// The control channel has a message, or the other side closed it.
    ControlReady,
    /// No progress within the timeout.
    TimedOut,
}

/// Waits for completions, with a timeout.
pub(super) struct Waiter {
    events: bool,
    single_core: SingleCore,
    timeout: Duration,
    armed: bool,
    polls: u32,
    progress: u64,
    since: Instant,
}

impl Waiter {
    /// For ping-pongs: the timeout of an unreliable transport detects a lost message.
    pub(super) fn new(context: &TestContext) -> Waiter {
        let timeout = if context.is_reliable() { STALL_TIMEOUT } else { LOSS_TIMEOUT };
        Waiter { timeout, ..Waiter::for_stalls(context) }
    }

    /// Times out only if the test makes no progress at all.
    pub(super) fn for_stalls(context: &TestContext) -> Waiter {
        Waiter {
            events: context.params.events,
            single_core: context.single_core,
            timeout: STALL_TIMEOUT,
            armed: false,
            polls: 0,
            progress: 0,
            since: Instant::now(),
        }
    }

    /// Must be called after each poll of the completion queue, with the number of completions. `progress` is any
    /// number that changes with every progress.
    #[inline]
    pub(super) fn after_poll(
        &mut self,
        found: usize,
        progress: u64,
        cq: &Cq,
        control: &Control,
    ) -> Result<WaitOutcome, Failure> {
        if found == 0 {
            if self.events {
                return self.sleep(progress, cq, control);
            }
            self.single_core.yield_core();
        }
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS_PER_CHECK) {
            return Ok(WaitOutcome::PollAgain);
        }
        Ok(self.check(progress, control))
    }

    #[cold]
    fn check(&mut self, progress: u64, control: &Control) -> WaitOutcome {
        let now = Instant::now();
        if progress != self.progress {
            (self.progress, self.since) = (progress, now);
        }
        if control.is_readable() {
            return WaitOutcome::ControlReady;
        }
        if now - self.since < self.timeout {
            return WaitOutcome::PollAgain;
        }
        self.since = now;
        WaitOutcome::TimedOut
    }

    /// Arms the completion queue and returns, because a completion before the arming raises no event. Sleeps only if the
    /// next poll finds nothing either.
    fn sleep(&mut self, progress: u64, cq: &Cq, control: &Control) -> Result<WaitOutcome, Failure> {
        if !self.armed {
            self.armed = true;
            cq.arm(false).map_err(refused)?;
            return Ok(WaitOutcome::PollAgain);
        }
        let longest = Timespec::try_from(self.timeout.min(Duration::from_secs(1)));
        let longest = longest.unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut fds = [
            PollFd::from_borrowed_fd(cq.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
        ];
        // An interrupted sleep is just shorter.
        let _ = poll(&mut fds, Some(&longest));
        if fds[0].revents().is_empty() {
            return Ok(self.check(progress, control));
        }
        cq.clear_events();
        self.armed = false;
        Ok(WaitOutcome::PollAgain)
    }
}
