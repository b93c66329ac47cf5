//! Poller activity: how polling application threads and the background thread share the work.
//!
//! While an application thread polls, the background thread must not wake for packets: on a machine with two cores it would
//! take one from the very thread it wants to help. So pollers increment a plain counter, and the background thread reads it
//! now and then. An armed CQ means the opposite: its owner is about to sleep. So does interrupt-driven mode: the polls of
//! such a program do not tell whether it will poll again soon.

use ferroce_os::eventfd::EventFd;
use ferroce_os::wait_set::WaitSet;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct PollerActivity {
    polls: AtomicU64,
    /// What `polls` was when a poller last drove.
    driven_at: AtomicU64,
    armed: AtomicUsize,
    /// Threads of the application that sleep for packets.
    in_front: AtomicUsize,
    /// The background thread sleeps and will not wake by itself before `sleeps_until`.
    asleep: AtomicBool,
    sleeps_until: AtomicU64,
    bell: EventFd,
    /// The set in which the background thread sleeps for packets, once somebody sleeps in front of it.
    back: OnceLock<WaitSet>,
}

impl PollerActivity {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(PollerActivity {
            polls: AtomicU64::new(0),
            driven_at: AtomicU64::new(0),
            armed: AtomicUsize::new(0),
            in_front: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(u64::MAX),
            bell: EventFd::new()?,
            back: OnceLock::new(),
        })
    }

    /// Counts a poll of an application thread.
    pub(crate) fn polled(&self) {
        // Lost increments do not matter, only that the number changes: no read-modify-write on the hot path.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Counts a poll of an application thread that drives the engine.
    pub(crate) fn drives(&self) {
        self.polled();
        self.driven_at.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Polls of application threads since one of them drove the engine.
    pub(crate) fn polls_since_drive(&self) -> u64 {
        self.polls.load(Ordering::Relaxed).wrapping_sub(self.driven_at.load(Ordering::Relaxed))
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// Makes the background thread wake for packets from now on. Returns whether the caller must wake it: it did not do so before.
    #[must_use]
    pub(crate) fn armed(&self) -> bool {
        self.armed.fetch_add(1, Ordering::SeqCst) == 0
    }

    pub(crate) fn disarmed(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    pub(crate) fn any_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) > 0
    }

    /// Wakes the background thread if it sleeps.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.add();
        }
    }

    /// Wakes the background thread if it would oversleep `deadline_ns`.
    pub(crate) fn wake_before(&self, deadline_ns: u64) {
        if deadline_ns < self.sleeps_until.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The background thread is about to sleep. It must check for work once more after this call.
    pub(crate) fn going_to_sleep(&self, until_ns: u64) {
        self.sleeps_until.store(until_ns, Ordering::SeqCst);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The background thread is awake; `rung` if the bell was readable.
    pub(crate) fn woke_up(&self, rung: bool) {
        self.asleep.store(false, Ordering::SeqCst);
        // Take every ring, also one that came late for an earlier sleep.
        while rung && self.bell.try_take() {}
        self.sleeps_until.store(0, Ordering::SeqCst);
    }

    pub(crate) fn bell_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    /// A set in which threads of the application sleep on these descriptors, in front of the background thread.
    pub(crate) fn front(&self, fds: &[RawFd]) -> io::Result<WaitSet> {
        let front = WaitSet::new()?;
        for &fd in fds {
            // If the kernel refuses that, the background thread handles this descriptor.
            let _ = front.enter_exclusive(fd);
        }
        let made = if self.back.get().is_none() { Some(WaitSet::new()?) } else { None };
        // A set that another thread made at the same time serves as well.
        let back = made.map_or_else(|| self.back.get(), |made| Some(self.back.get_or_init(|| made)));
        back.map_or(Ok(()), |back| back.enter_last(fds))?;
        self.wake();
        Ok(front)
    }

    /// Sleeps in such a set. Returns whether there are packets.
    pub(crate) fn sleep_in_front(&self, front: &WaitSet, most: Duration) -> bool {
        self.in_front.fetch_add(1, Ordering::Relaxed);
        let any_packets = front.sleep(most);
        self.in_front.fetch_sub(1, Ordering::Relaxed);
        any_packets
    }

    /// Whether an application thread sleeps in such a set, and so will handle arrivals.
    pub(crate) fn anybody_in_front(&self) -> bool {
        self.in_front.load(Ordering::Relaxed) > 0
    }

    /// Readable while there are packets and nobody sleeps in front; none if nobody ever did.
    pub(crate) fn back_fd(&self) -> Option<RawFd> {
        self.back.get().map(WaitSet::as_raw_fd)
    }
}
