//! How application threads that poll and the background thread stay out of each other's way.
//!
//! While somebody polls, the background thread must not wake for packets: on a machine with two cores it would take
//! one from the very thread it wants to help. So pollers leave a trace here, a plain counter, and the background
//! thread looks at it now and then. An armed CQ says the opposite: its owner is about to sleep. So does a program
//! that says that it comes and goes: nobody can tell from its polls whether it is there.

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
    /// The background thread sleeps and will not look again by itself before `sleeps_until`.
    asleep: AtomicBool,
    sleeps_until: AtomicU64,
    bell: EventFd,
    /// What the background thread sleeps on for packets, once somebody sleeps in front of it.
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

    /// An application thread was here.
    pub(crate) fn polled(&self) {
        // Lost increments do not matter, only that the number changes: no read-modify-write on the hot path.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// The same, and it drives.
    pub(crate) fn drives(&self) {
        self.polled();
        self.driven_at.store(self.polls.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// How often application threads were here since one of them drove.
    pub(crate) fn polls_since_drive(&self) -> u64 {
        self.polls.load(Ordering::Relaxed).wrapping_sub(self.driven_at.load(Ordering::Relaxed))
    }

    pub(crate) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    /// The background thread must wake for packets. It does so already if this is not the `true` that says to wake it.
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

    /// Rings for the background thread if it sleeps.
    pub(crate) fn wake(&self) {
        if self.asleep.swap(false, Ordering::SeqCst) {
            self.bell.add();
        }
    }

    /// Rings if the background thread would oversleep `deadline_ns`.
    pub(crate) fn wake_before(&self, deadline_ns: u64) {
        if deadline_ns < self.sleeps_until.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// The background thread is about to sleep. It must look for work once more after this call.
    pub(crate) fn going_to_sleep(&self, until_ns: u64) {
        self.sleeps_until.store(until_ns, Ordering::SeqCst);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// It is awake; `rung` if the bell was found readable.
    pub(crate) fn woke_up(&self, rung: bool) {
        self.asleep.store(false, Ordering::SeqCst);
        // Every ring, also one that came late for an earlier sleep.
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
            // Where that is refused, the background thread does it.
            let _ = front.enter_exclusive(fd);
        }
        let made = if self.back.get().is_none() { Some(WaitSet::new()?) } else { None };
        // One that another thread made at the same time is as good.
        let back = made.map_or_else(|| self.back.get(), |made| Some(self.back.get_or_init(|| made)));
        back.map_or(Ok(()), |back| back.enter_last(fds))?;
        self.wake();
        Ok(front)
    }

    /// Sleeps in such a set; whether there are packets.
    pub(crate) fn sleep_in_front(&self, front: &WaitSet, most: Duration) -> bool {
        self.in_front.fetch_add(1, Ordering::Relaxed);
        let any_packets = front.sleep(most);
        self.in_front.fetch_sub(1, Ordering::Relaxed);
        any_packets
    }

    /// Whether anybody does, and so will see to what arrives.
    pub(crate) fn anybody_in_front(&self) -> bool {
        self.in_front.load(Ordering::Relaxed) > 0
    }

    /// Readable while there are packets and nobody sleeps in front; none if nobody ever did.
    pub(crate) fn back_fd(&self) -> Option<RawFd> {
        self.back.get().map(WaitSet::as_raw_fd)
    }
}
