//! The thread that drives when no application thread does.
//!
//! One-sided operations must progress while the target's program does nothing, and a program that sleeps on a
//! completion channel must be woken. The thread starts with the first queue pair or armed CQ. While somebody polls
//! it stays out of the way and only looks every millisecond whether that is still so.

use super::{Engine, Pulse};
use crate::error::Error;
use crate::link::now;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How long the thread keeps out of the way of a poller before it looks again, at first and at most.
const STAND_OFF_MS: std::ops::RangeInclusive<i32> = 1..=4;
/// How long it goes on looking after work was found: a wake-up costs more than this.
const LINGER_NS: u64 = 50_000;
/// A pause between two trains of packets: too short to yield the core, which may not come back as soon.
const BREATH_NS: u64 = 5_000;
/// The longest sleep, so that a lost wake-up is a hiccup and not a hang.
const LONGEST_SLEEP_MS: u64 = 1_000;

/// The background thread of one NIC.
pub(crate) struct Background {
    pulse: Arc<Pulse>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    pub(crate) fn start(
        engine: Arc<Engine>,
        watch: Arc<dyn Fn() + Send + Sync>,
        extra: Vec<RawFd>,
    ) -> Result<Self, Error> {
        let stop = Arc::new(AtomicBool::new(false));
        let pulse = engine.pulse.clone();
        let flag = stop.clone();
        let thread = std::thread::Builder::new()
            .name("ferroce".into())
            .spawn(move || Sleeper::new(engine, watch, extra).run(&flag))
            .map_err(Error::system("starting the background thread"))?;
        Ok(Background { pulse, stop, thread: Some(thread) })
    }

    pub(crate) fn wake(&self) {
        self.pulse.wake();
    }

    /// In a forked child the thread does not exist; there is nothing to stop or join.
    pub(crate) fn forget(mut self) {
        std::mem::forget(self.thread.take());
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        self.pulse.wake();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
    }
}

struct Sleeper {
    engine: Arc<Engine>,
    /// Called when one of the extra descriptors is readable (address changes).
    watch: Arc<dyn Fn() + Send + Sync>,
    fds: Vec<libc::pollfd>,
    extra_from: usize,
    seen_polls: u64,
    stand_off_ms: i32,
}

impl Sleeper {
    fn new(engine: Arc<Engine>, watch: Arc<dyn Fn() + Send + Sync>, extra: Vec<RawFd>) -> Self {
        let readable = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut fds = vec![readable(engine.pulse.bell_fd())];
        fds.extend(engine.link.wait_fds().into_iter().map(readable));
        let extra_from = fds.len();
        fds.extend(extra.into_iter().map(readable));
        Sleeper { engine, watch, fds, extra_from, seen_polls: 0, stand_off_ms: *STAND_OFF_MS.start() }
    }

    fn run(&mut self, stop: &AtomicBool) {
        while !stop.load(Ordering::SeqCst) {
            let polls = self.engine.pulse.polls();
            if polls != self.seen_polls && !self.engine.pulse.any_armed() {
                self.seen_polls = polls;
                self.stand_off();
            } else {
                self.stand_off_ms = *STAND_OFF_MS.start();
                self.take_over(stop);
            }
        }
    }

    /// Somebody polls: look again later, whatever arrives.
    fn stand_off(&mut self) {
        let until = now() + u64::from(self.stand_off_ms.unsigned_abs()) * 1_000_000;
        self.engine.pulse.going_to_sleep(until.0);
        self.sleep_on(1, self.stand_off_ms);
        self.engine.pulse.woke_up();
        self.stand_off_ms = (self.stand_off_ms + 1).min(*STAND_OFF_MS.end());
    }

    /// Nobody polls: drive until there is nothing to do, then sleep until there is.
    fn take_over(&mut self, stop: &AtomicBool) {
        let mut last_work = now();
        // While there is work, quiet sources are looked at now and then; all of them before going to sleep.
        let mut busy = false;
        loop {
            if self.engine.drive_in_background(!busy) {
                (busy, last_work) = (true, now());
            } else {
                let idle_ns = now().since_ns(last_work);
                busy = idle_ns < BREATH_NS;
                if idle_ns > LINGER_NS {
                    break;
                }
                if !busy {
                    // Lingering must not keep a core from whoever has work on it.
                    std::thread::yield_now();
                }
            }
            let someone_polls =
                self.engine.pulse.polls() != self.seen_polls && !self.engine.pulse.any_armed();
            if someone_polls || stop.load(Ordering::Relaxed) {
                return;
            }
        }
        let deadline = self.engine.next_deadline_ns();
        self.engine.pulse.going_to_sleep(deadline);
        // After announcing the sleep, look once more: a deadline or work that came before it rang no bell.
        let wait_ns = self.engine.next_deadline_ns().min(deadline).saturating_sub(now().0);
        let stay = stop.load(Ordering::SeqCst);
        if !stay && wait_ns > 0 {
            let ms = Duration::from_nanos(wait_ns).as_millis() as u64 + 1;
            self.sleep_on(self.fds.len(), ms.min(LONGEST_SLEEP_MS) as i32);
        }
        self.engine.pulse.woke_up();
        if self.fds[self.extra_from..].iter().any(|fd| fd.revents != 0) {
            (self.watch)();
        }
    }

    fn sleep_on(&mut self, count: usize, timeout_ms: i32) {
        for fd in &mut self.fds {
            fd.revents = 0;
        }
        // SAFETY: `count` is at most the length of the vector that the pointer leads to.
        unsafe { libc::poll(self.fds.as_mut_ptr(), count as libc::nfds_t, timeout_ms) };
    }
}
