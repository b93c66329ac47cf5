//! How a side waits: polling or sleeping, but never for ever, and never past the other side's end.

use super::super::affinity::Lonely;
use super::super::control::Control;
use super::refused;
use super::station::Station;
use crate::failure::Failure;
use ferroce::Cq;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Polls between two looks at the clock and the control channel, each of which costs about as much as a poll.
const POLLS_PER_LOOK: u32 = 1024;
/// A reliable connection would have failed by itself before it was silent for this long.
const LONGEST_SILENCE: Duration = Duration::from_secs(20);
/// An unreliable message that is not there after this time is lost.
const LOST_AFTER: Duration = Duration::from_millis(200);

/// What a waiting side found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Nothing; poll again.
    Again,
    /// The other side said something on the control channel, or left.
    News,
    /// No progress for as long as the waiter's patience.
    Overdue,
}

/// One who waits.
pub(super) struct Waiter {
    events: bool,
    lonely: Lonely,
    patience: Duration,
    armed: bool,
    polls: u32,
    progress: u64,
    since: Instant,
}

impl Waiter {
    /// For a side of this test whose messages are answered one by one.
    pub(super) fn new(station: &Station) -> Waiter {
        let patience = if station.is_reliable() { LONGEST_SILENCE } else { LOST_AFTER };
        Waiter { patience, ..Waiter::patient(station) }
    }

    /// For a side that has no use for knowing early.
    pub(super) fn patient(station: &Station) -> Waiter {
        Waiter {
            events: station.params.events,
            lonely: station.lonely,
            patience: LONGEST_SILENCE,
            armed: false,
            polls: 0,
            progress: 0,
            since: Instant::now(),
        }
    }

    /// To be called after each poll of the completion queue, with what it found. `progress` is any number that changes
    /// whenever something was achieved.
    #[inline]
    pub(super) fn after_poll(
        &mut self,
        found: usize,
        progress: u64,
        cq: &Cq,
        control: &Control,
    ) -> Result<Look, Failure> {
        if found == 0 {
            if self.events {
                return self.sleep(progress, cq, control);
            }
            self.lonely.give_way();
        }
        self.polls = self.polls.wrapping_add(1);
        if !self.polls.is_multiple_of(POLLS_PER_LOOK) {
            return Ok(Look::Again);
        }
        Ok(self.look(progress, control))
    }

    #[cold]
    fn look(&mut self, progress: u64, control: &Control) -> Look {
        let now = Instant::now();
        if progress != self.progress {
            (self.progress, self.since) = (progress, now);
        }
        if control.has_news() {
            return Look::News;
        }
        if now - self.since < self.patience {
            return Look::Again;
        }
        self.since = now;
        Look::Overdue
    }

    /// Arms first and returns, since what was added before arming wakes nobody; sleeps only when the next poll finds
    /// nothing either.
    fn sleep(&mut self, progress: u64, cq: &Cq, control: &Control) -> Result<Look, Failure> {
        if !self.armed {
            self.armed = true;
            cq.arm(false).map_err(refused)?;
            return Ok(Look::Again);
        }
        let longest = Timespec::try_from(self.patience.min(Duration::from_secs(1)));
        let longest = longest.unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 });
        let mut fds = [
            PollFd::from_borrowed_fd(cq.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(control.as_fd(), PollFlags::IN),
        ];
        // An interrupted sleep is only a short one.
        let _ = poll(&mut fds, Some(&longest));
        if fds[0].revents().is_empty() {
            return Ok(self.look(progress, control));
        }
        cq.clear_events();
        self.armed = false;
        Ok(Look::Again)
    }
}
