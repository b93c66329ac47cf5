//! How application threads that poll and the background thread stay out of each other's way.
//!
//! While somebody polls, the background thread must not wake for packets: on a machine with two cores it would take
//! one from the very thread it wants to help. So pollers leave a trace here, a plain counter, and the background
//! thread looks at it now and then. An armed CQ says the opposite: its owner is about to sleep.

use crate::eventfd::EventFd;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct Pulse {
    polls: AtomicU64,
    /// What `polls` was when a poller last drove.
    driven_at: AtomicU64,
    armed: AtomicUsize,
    /// The background thread sleeps and will not look again by itself before `sleeps_until`.
    asleep: AtomicBool,
    sleeps_until: AtomicU64,
    bell: EventFd,
}

impl Pulse {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Pulse {
            polls: AtomicU64::new(0),
            driven_at: AtomicU64::new(0),
            armed: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(u64::MAX),
            bell: EventFd::new()?,
        })
    }

    /// An application thread was here.
    pub(crate) fn polled(&self) {
        // Lost increments do not matter, only that the number changes: no read-modify-write on the hot path.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The same, and it drives.
    pub(super) fn drives(&self) {
        self.polled();
        self.driven_at.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// How often application threads were here since one of them drove.
    pub(crate) fn polls_since_drive(&self) -> u64 {
        self.polls.load(Ordering::Relaxed).wrapping_sub(self.driven_at.load(Ordering::Relaxed))
    }

    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    pub(crate) fn armed(&self) {
        self.armed.fetch_add(1, Ordering::SeqCst);
    }

    pub(crate) fn disarmed(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }

    pub(super) fn any_armed(&self) -> bool {
        self.armed.load(Ordering::SeqCst) > 0
    }

    /// Rings for the background thread if it sleeps.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.add();
        }
    }

    /// Rings if the background thread would oversleep `deadline_ns`.
    pub(super) fn wake_before(&self, deadline_ns: u64) {
        if deadline_ns < self.sleeps_until.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The background thread is about to sleep. It must look for work once more after this call.
    pub(super) fn going_to_sleep(&self, until_ns: u64) {
        self.sleeps_until.store(until_ns, Ordering::SeqCst);
        self.asleep.store(true, Ordering::SeqCst);
    }

    pub(super) fn woke_up(&self) {
        self.asleep.store(false, Ordering::SeqCst);
        // Every ring, also one that came late for an earlier sleep.
        while self.bell.try_take() {}
        self.sleeps_until.store(0, Ordering::SeqCst);
    }

    pub(super) fn bell_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}
