//! The background thread: drives the engine while no application thread does.
//!
//! One-sided operations must progress while the target's program does nothing, and a program that sleeps on a
//! completion channel must be woken. The thread starts with the device, since packets for a local peer may arrive
//! immediately. While an application thread polls, the background thread does not drive; it only checks every few
//! milliseconds whether the polling continues. If it has a processor to itself, it also wakes for what a post leaves to be
//! sent. Otherwise a long call of an application thread counts as a poll at the next two checks.
//!
//! Some programs poll for their own completion, and after that watch their memory for the peer's data. They leave gaps in
//! which no thread drives. When the background thread finds unhandled packets in such a gap, it watches for packets for a while
//! although an application thread polls. It stops when that thread always handles them first, with a processor to itself after
//! [`WATCHER_CHECKS`] more checks. It delays the ACK of a WRITE until the program answers, so that both reach a peer that still
//! polls for the ACK. A program can announce that it polls irregularly
//! ([`Cq::set_interrupt_driven`](crate::Cq::set_interrupt_driven)). A program that sleeps for packets itself
//! ([`Cq::sleep`](crate::Cq::sleep)) is woken first.
//!
//! The thread also does the chores of the device, which are independent of packets: it follows address changes and answers
//! requests for counters. Chores never affect the threads of the application.

use super::Engine;
use super::drive::Found;
use crate::error::Error;
use crate::link::{Sleep, now};
use crate::poller_activity::{PollerActivity, PollerChecks};
use ferroce_os::thread::{shorten_slices, spawn};
use ferroce_proto::Time;
use std::os::fd::RawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// How long the thread leaves the work to a poller before it checks again: at first, and at most.
const STAND_OFF_MS: std::ops::RangeInclusive<i32> = 1..=4;
/// How long it lingers, which means that it continues polling after it found work: at first (a wake-up costs more than this), and at
/// most, if packets keep arriving soon after it sleeps.
const LINGER_NS: std::ops::RangeInclusive<u64> = 50_000..=200_000;
/// How often it sleeps without lingering, and leaves all work to pollers, after another thread took the processor from it. A thread that spins on
/// that processor would get a whole time slice each time. Packets wake a sleeping thread, but not one that waits for the processor.
const CROWDED_SLEEPS: u32 = 256;
/// How often lingering may find nothing before the thread stops lingering, if a program sleeps for packets itself. Such a
/// program handles the next packet when it wakes.
const VAIN_LINGERS: u32 = 16;
/// The largest credit for work found in gaps, and the amount that each wake-up adds that finds work in a gap. A wake-up that finds
/// nothing subtracts one, so a third of them must be useful: a program that leaves gaps polls for one packet and misses another.
const GAP_CREDIT: u32 = 16;
const GAP_GAIN: u32 = 2;
/// The shortest gap between polls in which the thread drives. In a shorter one it would compete for a packet that the program is about to poll.
const MIN_GAP_NS: u64 = 4_000;
/// How long the acknowledgement of a WRITE waits for the answer of a program that watches its memory.
const ANSWER_NS: u64 = 10_000;
/// How many arrivals are acknowledged immediately after a missing answer: at first, and at most, if answers are missing repeatedly.
const UNANSWERED: std::ops::RangeInclusive<u32> = 4..=256;
/// For how many checks the thread remembers that a program watches its memory. It may stop polling at any time, so the interval stays short, and
/// with a processor to itself the thread goes on polling, whatever the credit is.
const WATCHER_CHECKS: u32 = 1024;
/// The longest sleep. It limits the delay that a lost wake-up causes.
const MAX_SLEEP_MS: u64 = 1_000;
const NS_PER_MS: u64 = 1_000_000;
/// How often it checks for chores while packets keep it from sleeping.
const CHORES_EVERY_NS: u64 = 20_000_000;
/// How long chores wait after one was done. Otherwise chores could keep the thread from the packets.
const CHORES_REST_NS: u64 = 5_000_000;

/// Work that the thread does besides packets.
pub(crate) trait Chore: Send {
    /// Descriptor that is readable while there is something to do.
    fn descriptor(&self) -> RawFd;

    /// Does the work. Must be short and must not block, since packets wait meanwhile.
    fn attend(&mut self);
}

/// The background thread of one NIC.
pub(crate) struct Background {
    activity: Arc<PollerActivity>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Calls `on_panic` if the thread panics. Otherwise the program would not notice that the device has failed.
    pub(crate) fn start(
        engine: Arc<Engine>,
        chores: Vec<Box<dyn Chore>>,
        on_panic: impl FnOnce() + Send + 'static,
    ) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let activity = engine.activity.clone();
        let flag = stop.clone();
        let run = move || {
            // If the kernel refuses, the thread keeps the default time slices.
            let _ = shorten_slices();
            report_panic(|| Sleeper::new(engine, chores).run(&flag), on_panic);
        };
        let thread = spawn("ferroce", run).map_err(Error::system("starting the background thread"))?;
        Ok(Background { activity, stop, thread: Some(thread) })
    }

    /// In a forked child the thread does not exist; there is nothing to stop or join.
    pub(crate) fn forget(mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.activity.wake();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

/// Runs `work`; if that panics, `on_panic` as well.
fn report_panic(work: impl FnOnce(), on_panic: impl FnOnce()) {
    // Any inconsistent state belongs to the device, which `on_panic` reports as failed.
    if catch_unwind(AssertUnwindSafe(work)).is_err() {
        on_panic();
    }
}

struct Sleeper {
    // Dropped before the engine, which releases the slot.
    chores: Vec<Box<dyn Chore>>,
    engine: Arc<Engine>,
    /// The wake-up eventfd, then the chores, then the links. Once an application thread sleeps in front of this thread, one descriptor
    /// replaces the links.
    fds: Vec<libc::pollfd>,
    /// The links, once that descriptor replaced them.
    links: Vec<libc::pollfd>,
    is_behind: bool,
    pollers: PollerChecks,
    stand_off_ms: i32,
    /// Evidence that pollers leave gaps. At 0 the thread does not wake for packets while an application thread polls, unless it has a processor
    /// to itself and `watcher_checks` are left.
    gap_credit: u32,
    /// Arrivals that are still acknowledged without waiting for an answer.
    unanswered: u32,
    /// The next value of `unanswered` when no answer comes.
    next_unanswered: u32,
    /// Checks for which it remembers that a program watches its memory.
    watcher_checks: u32,
    /// Remaining sleeps for which it has no processor to itself.
    crowded: u32,
    /// Evidence that lingering finds nothing.
    vain: u32,
    /// How long it lingers.
    linger_ns: u64,
    /// Whether the last step left the work to a poller.
    stood_off: bool,
    checked_for_chores: Time,
    chores_rest_until: Time,
}

impl Sleeper {
    fn new(engine: Arc<Engine>, chores: Vec<Box<dyn Chore>>) -> Self {
        let bell = [engine.activity.bell_fd()].into_iter();
        let fds = bell.chain(chores.iter().map(|chore| chore.descriptor())).chain(engine.link.wait_fds());
        Sleeper {
            fds: fds.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }).collect(),
            links: Vec::new(),
            is_behind: false,
            chores,
            engine,
            pollers: PollerChecks::default(),
            stand_off_ms: *STAND_OFF_MS.start(),
            gap_credit: 0,
            unanswered: 0,
            next_unanswered: *UNANSWERED.start(),
            watcher_checks: 0,
            stood_off: false,
            crowded: 0,
            vain: 0,
            linger_ns: *LINGER_NS.start(),
            checked_for_chores: now(),
            chores_rest_until: Time(0),
        }
    }

    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            self.let_others_in_front();
            if self.pollers.does_anybody_poll(&self.engine.activity, self.has_processor()) {
                if self.gap_credit > 0 || self.watcher_checks > 0 && self.has_processor() {
                    self.watch_gaps();
                } else {
                    self.stand_off();
                }
                self.watcher_checks = self.watcher_checks.saturating_sub(1);
            } else {
                self.stand_off_ms = *STAND_OFF_MS.start();
                self.take_over(stop);
            }
        }
    }

    /// Lets threads of the application that sleep for packets be woken first.
    fn let_others_in_front(&mut self) {
        if let Some(fd) = self.engine.activity.back_fd().filter(|_| !self.is_behind) {
            self.links = self.fds.split_off(1 + self.chores.len());
            self.fds.push(libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
            self.is_behind = true;
        }
    }

    /// An application thread polls: checks again later, whatever arrives.
    fn stand_off(&mut self) {
        let (stand_off_ns, has_processor) = (self.stand_off_ms as u64 * NS_PER_MS, self.has_processor());
        self.engine.activity.leaving_work_to_poller((now() + stand_off_ns).0, has_processor);
        self.crowded = self.crowded.saturating_sub(1);
        self.sleep_unless_armed(1 + self.chores.len(), stand_off_ns);
        if has_processor && self.pollers.is_rung() && !self.engine.activity.any_armed() {
            // Finds out whether another thread waits for this processor. Then posts wake this thread no more for a while.
            self.yield_processor();
        }
        let longest_ms = if self.watcher_checks > 0 { *STAND_OFF_MS.start() } else { *STAND_OFF_MS.end() };
        self.stand_off_ms = (self.stand_off_ms + 1).min(longest_ms);
        self.stood_off = true;
    }

    /// An application thread polls but leaves gaps, for example because it watches its memory. Polls too while the processor is free,
    /// otherwise wakes for packets, and rates which of the two threads was first.
    fn watch_gaps(&mut self) {
        let start = now();
        let mut polls = self.engine.activity.polls();
        let mut last_poll = start;
        while self.has_processor() && now().since_ns(start) < *LINGER_NS.end() {
            self.yield_processor();
            let seen = std::mem::replace(&mut polls, self.engine.activity.polls());
            if polls != seen {
                last_poll = now();
            }
            let is_gap = now().since_ns(last_poll) >= MIN_GAP_NS;
            let found = if is_gap { self.drive_in_gap() } else { Found::Nothing };
            if found != Found::Nothing {
                if found == Found::Packets {
                    self.watcher_checks = WATCHER_CHECKS;
                }
                self.rate(found);
                return self.attend_overdue_chores();
            }
        }
        let has_processor = self.has_processor();
        self.crowded = self.crowded.saturating_sub(1);
        let stand_off_ns = *STAND_OFF_MS.start() as u64 * NS_PER_MS;
        self.engine.activity.going_to_sleep((now() + stand_off_ns).0);
        self.sleep_unless_armed(self.fds.len(), stand_off_ns);
        // With a processor to itself, the thread finds out in the next check whether this is a gap.
        let may_be_gap = !has_processor || self.engine.activity.polls() == polls;
        let found = if may_be_gap { self.drive_in_gap() } else { Found::Nothing };
        self.rate(found);
    }

    /// Sleeps on the first `count` descriptors, unless a CQ was armed before this sleep was announced, which sent no wake-up.
    fn sleep_unless_armed(&mut self, count: usize, sleep_ns: u64) {
        self.sleep_on(count, if self.engine.activity.any_armed() { 0 } else { sleep_ns });
        self.woke_up();
        self.attend_chores();
    }

    /// Whether no other thread has lately needed the processor of this one.
    fn has_processor(&self) -> bool {
        self.crowded == 0
    }

    /// Drives unless an application thread is in a call: it probably polls soon, and it needs the locks. A program that only sends and polls
    /// loses its credit that way, and is forgotten.
    fn drive_in_gap(&mut self) -> Found {
        if self.engine.activity.is_in_call() { Found::Nothing } else { self.drive_for_watcher() }
    }

    /// Drives, and delays the ACK until the program answers, for at most [`ANSWER_NS`]. ACK and answer then arrive together while the peer still
    /// polls for the ACK, so that no background thread has to handle the answer there.
    fn drive_for_watcher(&mut self) -> Found {
        if self.unanswered > 0 {
            let found = self.engine.drive_in_background(true);
            self.unanswered -= u32::from(found != Found::Nothing);
            return found;
        }
        let found = self.engine.drive_for_watcher();
        let start = now();
        while self.engine.owes_acks() {
            if now().since_ns(start) > ANSWER_NS {
                self.unanswered = self.next_unanswered;
                self.next_unanswered = (2 * self.next_unanswered).min(*UNANSWERED.end());
                let _ = self.engine.drive_in_background(false);
                return found;
            }
            self.yield_processor();
        }
        if found == Found::Packets {
            self.next_unanswered = *UNANSWERED.start();
        }
        found
    }

    /// Rates what was found in a gap.
    fn rate(&mut self, found: Found) {
        self.gap_credit = match found {
            Found::Packets => GAP_CREDIT.min(self.gap_credit + GAP_GAIN),
            Found::Nothing => self.gap_credit.saturating_sub(1),
            // The program polls for these itself.
            Found::Completions => self.gap_credit.saturating_sub(GAP_GAIN),
        };
    }

    /// Whether packets wait. A sleep would not report them: the application thread that the kernel woke for them may have left them to
    /// this thread, because this thread was driving.
    fn any_packets(&mut self) -> bool {
        for link in &mut self.links {
            link.revents = 0;
        }
        // SAFETY: the count is the length of the vector that the pointer leads to.
        unsafe { libc::poll(self.links.as_mut_ptr(), self.links.len() as libc::nfds_t, 0) > 0 }
    }

    /// Whether to continue polling after work was found. Returns `false` if other threads need the core. If an application thread sleeps
    /// for packets itself, returns `false` while it sleeps, since it is woken first. Also returns `false` there if lingering found nothing
    /// lately: packets for such a program come one by one, with its own work in between.
    fn may_linger(&self) -> bool {
        let is_useful = || !self.engine.activity.anybody_in_front() && self.vain < VAIN_LINGERS;
        self.has_processor() && (!self.is_behind || is_useful())
    }

    /// Lets other threads run that wait for this processor.
    fn yield_processor(&mut self) {
        let before = now();
        std::thread::yield_now();
        // It takes this long only if another thread ran: this thread shares the processor.
        if now().since_ns(before) > *LINGER_NS.start() {
            self.crowded = CROWDED_SLEEPS;
        }
    }

    /// No application thread polls: drives until no work is left, then sleeps until there is some.
    fn take_over(&mut self, stop: &AtomicBool) {
        let mut last_work = now();
        // Packets that already wait arrived while the thread left the work to a poller that had stopped.
        if std::mem::take(&mut self.stood_off) {
            if self.engine.polling.any_ready() {
                self.engine.polling.stop_coalescing();
            }
            // Neither a program that left requests to be sent nor one that is about to sleep watches its memory.
            let activity = &self.engine.activity;
            let is_gap =
                self.engine.polling.count_ready() == 0 && !activity.is_in_call() && !activity.any_armed();
            if self.drive_for_watcher() == Found::Packets && is_gap {
                self.gap_credit = GAP_CREDIT;
                self.watcher_checks = WATCHER_CHECKS;
            }
        }
        let mut is_thorough = !self.is_behind;
        let mut lingers = false;
        loop {
            if self.engine.drive_in_background(is_thorough) != Found::Nothing {
                last_work = now();
                if std::mem::take(&mut lingers) {
                    self.vain = 0;
                }
                self.attend_overdue_chores();
                if self.is_behind && !self.may_linger() && !self.any_packets() {
                    break;
                }
            } else if !is_thorough {
                // Most packets come from the same source as the last ones, but not all.
                is_thorough = true;
            } else if !self.may_linger() || now().since_ns(last_work) > self.linger_ns {
                self.crowded = self.crowded.saturating_sub(1);
                self.vain = VAIN_LINGERS.min(self.vain + u32::from(lingers));
                break;
            } else {
                // Lingering must not keep a core from threads that need it.
                lingers = true;
                self.yield_processor();
            }
            if self.pollers.has_polled_since(&self.engine.activity) || stop.load(Ordering::Relaxed) {
                return;
            }
        }
        let deadline = self.engine.next_deadline_ns();
        self.engine.activity.going_to_sleep(deadline);
        // After announcing the sleep, check once more: a deadline or work that came before it sent no wake-up.
        let wait_ns = self.engine.next_deadline_ns().min(deadline).saturating_sub(now().0);
        // A poller that delayed ACKs until its next poll sent no wake-up either, and it may never poll again.
        let stay = stop.load(Ordering::SeqCst) || self.engine.owes_acks();
        let mut slept_ns = u64::MAX;
        if !stay && wait_ns > 0 {
            let before = now();
            self.sleep_on(self.fds.len(), wait_ns);
            slept_ns = now().since_ns(before);
        }
        let any_packets = self.fds[1 + self.chores.len()..].iter().any(|fd| fd.revents != 0);
        if slept_ns < *LINGER_NS.start() {
            // Lingering would have found it.
            self.vain = self.vain.saturating_sub(VAIN_LINGERS / 4);
        }
        if any_packets {
            let is_soon = slept_ns < *LINGER_NS.end();
            let linger_ns = if is_soon { self.linger_ns * 2 } else { self.linger_ns / 2 };
            self.linger_ns = linger_ns.clamp(*LINGER_NS.start(), *LINGER_NS.end());
        }
        self.woke_up();
        self.attend_chores();
        // If an application thread polled meanwhile, the next step leaves the work to it. But it may have stopped, and these packets
        // already wait.
        if any_packets && !self.engine.activity.any_armed() {
            let _ = self.engine.drive_in_background(true);
        }
    }

    fn woke_up(&mut self) {
        let is_rung = std::mem::take(&mut self.fds[0].revents) != 0;
        self.pollers.woke_up(&self.engine.activity, is_rung);
    }

    /// Sleeps on the first `count` descriptors. The time is exact to some tens of microseconds: a paced packet may wait for it.
    fn sleep_on(&mut self, count: usize, timeout_ns: u64) {
        self.checked_for_chores = now();
        let rest_ns = self.chores_rest_until.since_ns(self.checked_for_chores);
        let timeout_ns = match rest_ns {
            0 => timeout_ns,
            // New chores may arrive during their pause, so the sleep must not exceed it.
            _ => timeout_ns.min(rest_ns),
        };
        for (fd, chore) in self.fds[1..].iter_mut().zip(&self.chores) {
            // The kernel ignores negative descriptors.
            fd.fd = if rest_ns == 0 { chore.descriptor() } else { -1 };
        }
        for fd in &mut self.fds {
            fd.revents = 0;
        }
        debug_assert!(count <= self.fds.len());
        let for_packets = count == self.fds.len();
        let timeout_ns = match for_packets.then(|| self.engine.link.prepare_sleep()) {
            Some(Sleep::Pending) => 0,
            Some(Sleep::Allowed { deadline: Some(at) }) => timeout_ns.min(at.since_ns(now())),
            Some(Sleep::Allowed { deadline: None }) | None => timeout_ns,
        };
        let timeout = timeout_of(timeout_ns);
        // SAFETY: `count` is at most the length of the vector that the pointer leads to; the signal mask stays as it is.
        unsafe { libc::ppoll(self.fds.as_mut_ptr(), count as libc::nfds_t, &timeout, std::ptr::null()) };
        if for_packets {
            self.engine.link.end_sleep();
        }
    }

    /// Checks for chores every [`CHORES_EVERY_NS`] although packets keep the thread from sleeping.
    fn attend_overdue_chores(&mut self) {
        if now().since_ns(self.checked_for_chores) > CHORES_EVERY_NS {
            self.sleep_on(1 + self.chores.len(), 0);
            self.attend_chores();
        }
    }

    /// Does the chores that the last sleep found.
    fn attend_chores(&mut self) {
        for (fd, chore) in self.fds[1..].iter_mut().zip(&mut self.chores) {
            if std::mem::take(&mut fd.revents) != 0 {
                chore.attend();
                self.chores_rest_until = now() + CHORES_REST_NS;
            }
        }
    }
}

/// The timeout of a `ppoll`.
fn timeout_of(wait_ns: u64) -> libc::timespec {
    let wait_ns = wait_ns.min(MAX_SLEEP_MS * NS_PER_MS);
    libc::timespec { tv_sec: (wait_ns / 1_000_000_000) as _, tv_nsec: (wait_ns % 1_000_000_000) as _ }
}

#[cfg(test)]
mod tests {
    use super::{report_panic, timeout_of};
    use std::cell::Cell;

    /// A paced packet waits for less than a millisecond. With rounding up, only one packet would leave per millisecond.
    #[test]
    fn a_sleep_is_neither_rounded_nor_endless() {
        let parts = |ns| (timeout_of(ns).tv_sec, timeout_of(ns).tv_nsec);
        assert_eq!((parts(0), parts(130_001), parts(u64::MAX)), ((0, 0), (0, 130_001), (1, 0)));
    }

    #[test]
    fn only_a_panic_is_reported() {
        let reported = Cell::new(0);
        report_panic(|| (), || reported.set(1));
        assert_eq!(reported.get(), 0);
        report_panic(|| panic!("on purpose"), || reported.set(1));
        assert_eq!(reported.get(), 1);
    }
}
