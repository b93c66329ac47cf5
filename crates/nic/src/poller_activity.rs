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

/// In place of the number of polls: the background thread sleeps for packets.
const FOR_PACKETS: u64 = u64::MAX;
/// In place of the number of polls: the thread that the background thread left the work to was sending or polling.
const IN_CALL: u64 = u64::MAX - 1;

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

/// An application thread sends or polls until this is dropped.
pub(crate) struct Inside<'a>(&'a AtomicBool);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct PollerActivity {
    polls: AtomicU64,
    /// The value of `polls` when a poller last drove.
    driven_at: AtomicU64,
    /// An application thread sends or polls at this moment.
    is_inside: AtomicBool,
    armed: Arc<ArmedCqs>,
    /// The number of its progress context.
    context: usize,
    /// Threads of the application that sleep for packets.
    in_front: AtomicUsize,
    /// The background thread sleeps and will not wake by itself before `sleeps_until`.
    asleep: AtomicBool,
    sleeps_until: AtomicU64,
    /// The value of `polls` when the background thread left the work to a poller, [`FOR_PACKETS`] or [`IN_CALL`].
    left_at: AtomicU64,
    bell: EventFd,
    /// The set in which the background thread sleeps for packets, once an application thread sleeps in front of it.
    back: OnceLock<WaitSet>,
}

impl PollerActivity {
    pub(crate) fn new(armed: Arc<ArmedCqs>, context: usize) -> io::Result<Self> {
        Ok(PollerActivity {
            polls: AtomicU64::new(0),
            driven_at: AtomicU64::new(0),
            is_inside: AtomicBool::new(false),
            armed,
            context,
            in_front: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(u64::MAX),
            left_at: AtomicU64::new(FOR_PACKETS),
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

    /// An application thread begins to send or to poll. It will poll soon, however long this takes.
    pub(crate) fn enter(&self) -> Inside<'_> {
        // Several threads may overlap: then the first that leaves ends the mark of all. They poll soon, too.
        self.is_inside.store(true, Ordering::Relaxed);
        Inside(&self.is_inside)
    }

    /// Whether an application thread sends or polls at this moment.
    pub(crate) fn is_inside(&self) -> bool {
        self.is_inside.load(Ordering::Relaxed)
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

    /// Wakes the background thread if it would oversleep `deadline_ns`. If it has left the work to a thread that has polled since, it would
    /// only leave it again.
    pub(crate) fn wake_before(&self, deadline_ns: u64) {
        if deadline_ns < self.sleeps_until.load(Ordering::SeqCst) {
            let left_at = self.left_at.load(Ordering::Relaxed);
            if left_at == FOR_PACKETS || left_at == self.polls() {
                self.wake();
            }
        }
    }

    /// The background thread leaves the work to a poller and is about to sleep. It will check at `until_ns` whether there were polls since.
    pub(crate) fn leaves_work(&self, until_ns: u64) {
        let left_at = if self.is_inside() { IN_CALL } else { self.polls() };
        self.left_at.store(left_at, Ordering::Relaxed);
        self.going_to_sleep(until_ns);
    }

    /// The background thread is about to sleep. It must check for work once more after this call.
    pub(crate) fn going_to_sleep(&self, until_ns: u64) {
        self.sleeps_until.store(until_ns, Ordering::SeqCst);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The background thread is awake. `rung`: its eventfd was readable.
    pub(crate) fn woke_up(&self, rung: bool) {
        self.asleep.store(false, Ordering::SeqCst);
        self.left_at.store(FOR_PACKETS, Ordering::Relaxed);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether work with this deadline wakes the background thread, which sleeps until time 10.
    fn wakes(activity: &PollerActivity, deadline_ns: u64) -> bool {
        activity.wake_before(deadline_ns);
        let is_rung = activity.bell.try_take();
        activity.woke_up(false);
        is_rung
    }

    #[test]
    fn a_poller_does_not_wake_the_thread_that_left_the_work_to_it() {
        let activity = PollerActivity::new(Arc::default(), 0).unwrap();
        activity.going_to_sleep(10);
        assert!(!wakes(&activity, 11), "it wakes in time");
        activity.going_to_sleep(10);
        assert!(wakes(&activity, 9), "it sleeps for packets");
        activity.leaves_work(10);
        assert!(wakes(&activity, 9), "nobody has polled since");
        activity.leaves_work(10);
        activity.polled();
        assert!(!wakes(&activity, 9), "a thread polls");
        activity.leaves_work(10);
        assert!(wakes(&activity, 0), "the number of polls is compared anew");
    }

    #[test]
    fn a_thread_that_is_sending_is_expected_to_poll() {
        let activity = PollerActivity::new(Arc::default(), 0).unwrap();
        let inside = activity.enter();
        assert!(activity.is_inside());
        activity.leaves_work(10);
        assert!(!wakes(&activity, 9));
        drop(inside);
        assert!(!activity.is_inside());
        activity.leaves_work(10);
        assert!(wakes(&activity, 9));
    }
}
