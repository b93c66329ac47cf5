//! Poller activity: how polling application threads and the background thread share the work.
//!
//! While an application thread polls, the background thread must not wake for packets: on a machine with two cores it would
//! take a core from that thread. So pollers increment a plain counter, and the background thread reads it every few
//! milliseconds. Because a call that sends or polls may take longer than that, such calls set a mark as well.
//!
//! An armed CQ means the opposite: its owner is about to sleep. So does interrupt-driven mode: the polls of such a program do not
//! show whether it will poll again soon.

use ferroce_os::eventfd::EventFd;
use ferroce_os::wait_set::WaitSet;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Most progress contexts of one NIC: each takes one of the 254 slots of its user.
pub(crate) const MAX_CONTEXTS: usize = 16;

/// In place of the number of polls: the background thread does any work that it is woken for.
const ANY_WORK: u64 = u64::MAX;
/// In place of the number of polls: an application thread was in a call that sends or polls.
const IN_CALL: u64 = u64::MAX - 1;
/// For how many checks in a row without a poll the mark of a call counts. A thread that never leaves its call may have died in it.
const MAX_CHECKS_IN_CALL: u32 = 2;

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

/// An application thread is in a call that sends or polls until this is dropped.
pub(crate) struct CallGuard<'a>(&'a AtomicBool);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

#[repr(align(128))] // no cache line shared with another object that another core writes
pub(crate) struct PollerActivity {
    polls: AtomicU64,
    /// The value of `polls` when a poller last drove.
    driven_at: AtomicU64,
    /// An application thread is in a call that sends or polls. Not every such call sets it: the shortest ways to send do not.
    is_in_call: AtomicBool,
    armed: Arc<ArmedCqs>,
    /// The number of its progress context.
    context: usize,
    /// Threads of the application that sleep for packets.
    in_front: AtomicUsize,
    /// The background thread sleeps and will not wake by itself before `sleeps_until`.
    asleep: AtomicBool,
    sleeps_until: AtomicU64,
    /// The value of `polls` when the background thread left all work to a poller, [`ANY_WORK`] or [`IN_CALL`].
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
            is_in_call: AtomicBool::new(false),
            armed,
            context,
            in_front: AtomicUsize::new(0),
            asleep: AtomicBool::new(false),
            sleeps_until: AtomicU64::new(u64::MAX),
            left_at: AtomicU64::new(ANY_WORK),
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

    /// An application thread begins a call that sends or polls. It probably polls soon after it.
    pub(crate) fn begin_call(&self) -> CallGuard<'_> {
        // Several threads may overlap: then the first that leaves ends the mark of all.
        self.is_in_call.store(true, Ordering::Relaxed);
        CallGuard(&self.is_in_call)
    }

    /// Whether an application thread is in a call that sends or polls.
    pub(crate) fn is_in_call(&self) -> bool {
        self.is_in_call.load(Ordering::Relaxed)
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

    /// Wakes the background thread if it would oversleep `deadline_ns`, unless it has left all work to a thread that has polled since or was in
    /// a call: if that thread stops polling, this work waits as long as packets that arrive, for at most three more checks.
    ///
    /// The caller stores the work that the background thread looks for with `SeqCst` before this call. The background thread announces its sleep
    /// before it looks, so one of the two sees the other.
    pub(crate) fn wake_before(&self, deadline_ns: u64) {
        if deadline_ns < self.sleeps_until.load(Ordering::SeqCst) {
            let left_at = self.left_at.load(Ordering::Relaxed);
            if left_at == ANY_WORK || left_at == self.polls() {
                self.wake();
            }
        }
    }

    /// The background thread leaves the packets to a poller and is about to sleep. It will check at `until_ns` whether there were polls since.
    /// If it `has_processor`, it also wakes for what a post leaves to be sent. Otherwise it would take the processor from a poller, so it leaves
    /// all work.
    pub(crate) fn leaving_work_to_poller(&self, until_ns: u64, has_processor: bool) {
        let left_at = match (has_processor, self.is_in_call()) {
            (true, _) => ANY_WORK,
            (false, true) => IN_CALL,
            (false, false) => self.polls(),
        };
        self.announce_sleep(left_at, until_ns);
    }

    /// The background thread is about to sleep for packets. It must check for work once more after this call.
    pub(crate) fn going_to_sleep(&self, until_ns: u64) {
        self.announce_sleep(ANY_WORK, until_ns);
    }

    fn announce_sleep(&self, left_at: u64, until_ns: u64) {
        self.left_at.store(left_at, Ordering::Relaxed);
        self.sleeps_until.store(until_ns, Ordering::SeqCst);
        self.asleep.store(true, Ordering::SeqCst);
    }

    /// The background thread is awake. `rung`: its eventfd was readable.
    fn woke_up(&self, rung: bool) {
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

/// What the background thread remembers of the pollers between its checks.
#[derive(Default)]
pub(crate) struct PollerChecks {
    seen_polls: u64,
    checks_without_poll: u32,
    /// The eventfd ended the last sleep: an application thread leaves work to the background thread.
    is_rung: bool,
}

impl PollerChecks {
    /// Whether the work can be left to an application thread: one has polled since the last check, or is in a call, and none is about to sleep.
    /// Calls count unless the background thread `has_processor`.
    pub(crate) fn does_anybody_poll(&mut self, activity: &PollerActivity, has_processor: bool) -> bool {
        if activity.any_armed() {
            return false;
        }
        let polls = activity.polls();
        if std::mem::replace(&mut self.seen_polls, polls) != polls {
            self.checks_without_poll = 0;
            return true;
        }
        self.checks_without_poll = self.checks_without_poll.saturating_add(1);
        let may_poll_soon = self.checks_without_poll <= MAX_CHECKS_IN_CALL && activity.is_in_call();
        may_poll_soon && !has_processor && !self.is_rung
    }

    /// Whether an application thread has polled since that check, and none is about to sleep. Does not count as a check.
    pub(crate) fn has_polled_since(&self, activity: &PollerActivity) -> bool {
        activity.polls() != self.seen_polls && !activity.any_armed()
    }

    /// Whether an application thread ended the last sleep.
    pub(crate) fn is_rung(&self) -> bool {
        self.is_rung
    }

    /// The background thread is awake. `is_rung`: its eventfd was readable.
    pub(crate) fn woke_up(&mut self, activity: &PollerActivity, is_rung: bool) {
        self.is_rung = is_rung;
        activity.woke_up(is_rung);
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
        activity.leaving_work_to_poller(10, false);
        assert!(wakes(&activity, 9), "nobody has polled since");
        activity.leaving_work_to_poller(10, false);
        activity.polled();
        assert!(!wakes(&activity, 9), "a thread polls");
        activity.leaving_work_to_poller(10, false);
        assert!(wakes(&activity, 0), "the number of polls is compared anew");
        activity.leaving_work_to_poller(10, false);
        activity.polled();
        activity.woke_up(false);
        activity.going_to_sleep(10);
        assert!(wakes(&activity, 9), "it sleeps for packets again");
        activity.leaving_work_to_poller(10, true);
        activity.polled();
        assert!(wakes(&activity, 9), "it has a processor to help with");
    }

    #[test]
    fn a_thread_that_is_sending_is_expected_to_poll() {
        let activity = PollerActivity::new(Arc::default(), 0).unwrap();
        let call = activity.begin_call();
        activity.leaving_work_to_poller(10, false);
        assert!(!wakes(&activity, 9));
        drop(call);
        activity.leaving_work_to_poller(10, false);
        assert!(wakes(&activity, 9));
    }

    #[test]
    fn a_call_counts_as_a_poll_for_two_checks() {
        let activity = PollerActivity::new(Arc::default(), 0).unwrap();
        let mut checks = PollerChecks::default();
        let mut polls = || checks.does_anybody_poll(&activity, false);
        assert!(!polls(), "nobody polls");
        activity.polled();
        assert_eq!([polls(), polls()], [true, false], "one poll, one check");
        let call = activity.begin_call();
        activity.polled();
        assert_eq!([polls(), polls(), polls(), polls()], [true, true, true, false]);
        activity.polled();
        assert!(polls());
        drop(call);
        assert!(!polls(), "the call has ended");
    }

    #[test]
    fn work_is_not_left_to_a_call_that_rang_or_beside_an_armed_cq() {
        let activity = PollerActivity::new(Arc::default(), 0).unwrap();
        let mut checks = PollerChecks::default();
        let _call = activity.begin_call();
        assert!(checks.does_anybody_poll(&activity, false));
        assert!(!checks.does_anybody_poll(&activity, true), "it has a processor to help with");
        checks.woke_up(&activity, true);
        assert!(!checks.does_anybody_poll(&activity, false), "it was woken for this work");
        activity.polled();
        assert!(checks.has_polled_since(&activity));
        let _ = activity.armed.armed(1);
        assert!(
            !checks.has_polled_since(&activity) && !checks.does_anybody_poll(&activity, false),
            "its owner is about to sleep"
        );
    }
}
