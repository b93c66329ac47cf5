//! Poller activity: how polling application threads and the background thread share the work.
//!
//! While an application thread polls, the background thread must not wake for packets: on a machine with two cores it would
//! take a core from that thread. So pollers increment a plain counter, and the background thread reads it every few
//! milliseconds. An armed CQ means the opposite: its owner is about to sleep. So does interrupt-driven mode: the polls of
//! such a program do not show whether it will poll again soon.

use ferroce_os::eventfd::EventFd;
use ferroce_os::wait_set::WaitSet;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Most progress contexts of one NIC: each takes one of the 254 slots of its user.
pub(crate) const MAX_CONTEXTS: usize = 16;

/// How many CQs of each progress context are armed, or interrupt-driven.
#[derive(Default)]
pub(crate) struct ArmedCqs([ArmedInContext; MAX_CONTEXTS]);

#[derive(Default)]
#[repr(align(128))] // no cache line shared with another object that another core writes
struct ArmedInContext(AtomicUsize);

impl ArmedCqs {
    /// Makes the background threads of these contexts, a bit each, wake for packets from now on. Returns whether the caller must wake them: one
    /// of them did not do so before.
    #[must_use]
    pub(crate) fn armed(&self, contexts: u32) -> bool {
        // Not `any`: it would stop at the first that was 0 and leave the others uncounted.
        self.of(contexts).filter(|armed| armed.0.fetch_add(1, Ordering::SeqCst) == 0).count() > 0
    }

    pub(crate) fn disarmed(&self, contexts: u32) {
        self.of(contexts).for_each(|armed| {
            armed.0.fetch_sub(1, Ordering::SeqCst);
        });
    }

    fn any(&self, context: usize) -> bool {
        self.0[context].0.load(Ordering::SeqCst) > 0
    }

    fn of(&self, contexts: u32) -> impl Iterator<Item = &ArmedInContext> {
        self.0.iter().enumerate().filter(move |(index, _)| contexts >> index & 1 == 1).map(|(_, armed)| armed)
    }
}

#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct PollerActivity {
    polls: AtomicU64,
    /// The value of `polls` when a poller last drove.
    driven_at: AtomicU64,
    armed: Arc<ArmedCqs>,
    /// The number of its progress context.
    context: usize,
    /// Threads of the application that sleep for packets.
    in_front: AtomicUsize,
    /// The background thread sleeps and will not wake by itself before `sleeps_until`.
    asleep: AtomicBool,
    sleeps_until: AtomicU64,
    bell: EventFd,
    /// The set in which the background thread sleeps for packets, once an application thread sleeps in front of it.
    back: OnceLock<WaitSet>,
}

impl PollerActivity {
    pub(crate) fn new(armed: Arc<ArmedCqs>, context: usize) -> io::Result<Self> {
        Ok(PollerActivity {
            polls: AtomicU64::new(0),
            driven_at: AtomicU64::new(0),
            armed,
            context,
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

    /// Whether a CQ with queue pairs in this context is armed.
    pub(crate) fn any_armed(&self) -> bool {
        self.armed.any(self.context)
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

    /// The background thread is awake. `rung`: its eventfd was readable.
    pub(crate) fn woke_up(&self, rung: bool) {
        self.asleep.store(false, Ordering::SeqCst);
        // Consume every wake-up, also a late one for an earlier sleep.
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

    /// A descriptor that is readable while there are packets and no thread sleeps in front. `None` if no thread ever did.
    pub(crate) fn back_fd(&self) -> Option<RawFd> {
        self.back.get().map(WaitSet::as_raw_fd)
    }
}
