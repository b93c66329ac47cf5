//! Waiting for a word in shared memory. A waiter spins briefly, because the other process often writes the word soon,
//! and then sleeps, because that process may need the core.

use rustix::thread::futex::{self, Flags, Timespec};
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::time::Duration;

/// Maximum length of one sleep. It only bounds the cost of a missed wake-up.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// The kernel counts sleepers with a signed number.
pub(crate) const MAX_SLEEPERS: u32 = i32::MAX as u32;

/// Sleeps while `word` is `expected`, for at most `most`. May return early, so the caller checks the word again.
pub(crate) fn sleep(word: &AtomicU32, expected: u32, most: Duration) {
    let _ = futex::wait(word, Flags::empty(), expected, Timespec::try_from(most).ok().as_ref());
}

/// Wakes up to `count` sleepers, in any process.
pub(crate) fn wake(word: &AtomicU32, count: u32) {
    let _ = futex::wake(word, Flags::empty(), count);
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const CONTENDED: u32 = 2;

/// Acquires the lock in this word.
pub(crate) fn acquire(word: &AtomicU32, limit: SpinLimit) {
    if word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
        return;
    }
    for _ in 0..limit.0 {
        let free = word.load(Ordering::Relaxed) == FREE;
        if free && word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        std::hint::spin_loop();
    }
    // Other threads may still sleep, so a thread that slept marks the lock as contended.
    while word.swap(CONTENDED, Ordering::Acquire) != FREE {
        sleep(word, CONTENDED, MAX_SLEEP);
    }
}

/// Tries to acquire the lock; if that fails, sleeps for at most `most`.
pub(crate) fn try_acquire(word: &AtomicU32, most: Duration) -> bool {
    let taken = word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
        || word.swap(CONTENDED, Ordering::Acquire) == FREE;
    if !taken {
        sleep(word, CONTENDED, most);
    }
    taken
}

/// Releases the lock.
pub(crate) fn release(word: &AtomicU32) {
    if word.swap(FREE, Ordering::Release) == CONTENDED {
        wake(word, 1);
    }
}

/// How long to spin: not at all if the processes outnumber the cores.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SpinLimit(u32);

impl SpinLimit {
    /// For a job with `processes` on this host.
    pub(crate) fn new(processes: u32) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        Self(if processes as usize <= cores { 4000 } else { 50 })
    }

    /// For waits that take long.
    pub(crate) fn brief() -> Self {
        Self(20)
    }

    /// Polls `word` for less than a microsecond. Returns whether it became `ready`.
    pub(crate) fn poll_briefly(word: &AtomicU32, ready: impl Fn(u32) -> bool) -> bool {
        (0..16).any(|_| {
            let is_ready = ready(word.load(Ordering::Acquire));
            if !is_ready {
                std::hint::spin_loop();
            }
            is_ready
        })
    }

    /// Waits until `word` is `ready`, and returns its value. `sleepers` counts the threads that need a wake-up.
    pub(crate) fn wait(self, word: &AtomicU32, sleepers: &AtomicU32, ready: impl Fn(u32) -> bool) -> u32 {
        for _ in 0..self.0 {
            let value = word.load(Ordering::Acquire);
            if ready(value) {
                return value;
            }
            std::hint::spin_loop();
        }
        sleepers.fetch_add(1, Ordering::SeqCst);
        let value = loop {
            let value = word.load(Ordering::SeqCst);
            if ready(value) {
                break value;
            }
            sleep(word, value, MAX_SLEEP);
        };
        sleepers.fetch_sub(1, Ordering::SeqCst);
        value
    }
}

/// Wakes all sleepers of a changed `word`, without a system call if there are none.
pub(crate) fn announce(word: &AtomicU32, sleepers: &AtomicU32) {
    fence(Ordering::SeqCst);
    if sleepers.load(Ordering::SeqCst) > 0 {
        wake(word, MAX_SLEEPERS);
    }
}
