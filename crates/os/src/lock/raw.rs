//! A lock that is released with a plain store.
//!
//! Sending and receiving a small message takes nine locks, and nearly always they are free. Taking a lock costs one atomic read-modify-write
//! instruction. An ordinary mutex needs a second one for the release, because it must check for sleepers in the same step. Here the sleeper
//! pays instead: the kernel executes a memory barrier on all threads of the process (`membarrier`). After it, every thread that releases the
//! lock sees that another thread sleeps. Where the kernel does not support this, sleepers retry periodically.

use super::kernel;
use crate::sync::{AtomicU32, Ordering, spin_loop, yield_now};
use parking_lot::lock_api::{GuardNoSend, RawMutex};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// Rounds of waiting without sleeping: first with spinning, then with `yield`.
const SPINS: u32 = 6;
const YIELDS: u32 = 4;
/// Rounds in total. One is enough for loom, which tries every order anyway.
const ROUNDS: u32 = if cfg!(loom) { 1 } else { SPINS + YIELDS };
/// The longest sleep with `membarrier`, where every sleeper is woken. The limit bounds the effect of a lost wake-up.
const MAX_SLEEP_NS: i64 = 100_000_000;
/// The longest sleep without `membarrier`, where a wake-up can be missed.
const UNSURE_SLEEP_NS: i64 = 1_000_000;

/// The lock, without the data that it guards.
pub struct RawLock {
    state: AtomicU32,
    /// Threads that sleep or are about to.
    sleepers: AtomicU32,
}

// SAFETY: `state` changes from free to held in one atomic step, and only the thread that made this step releases it.
unsafe impl RawMutex for RawLock {
    #[cfg(not(loom))]
    const INIT: RawLock = RawLock { state: AtomicU32::new(FREE), sleepers: AtomicU32::new(0) };
    #[cfg(loom)]
    const INIT: RawLock = panic!("loom has no constant atomics");
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.lock_slowly();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.state.store(FREE, Ordering::Release);
        // The processor may load `sleepers` before other threads see the store. The barrier of the sleeper orders the two.
        kernel::light_barrier();
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            kernel::wake_one(&self.state);
        }
    }
}

impl RawLock {
    #[cold]
    fn lock_slowly(&self) {
        for round in 0..ROUNDS {
            match round {
                0..SPINS => (0..1 << round).for_each(|_| spin_loop()),
                _ => yield_now(),
            }
            if self.try_lock() {
                return;
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // If a thread released the lock before the barrier, `try_lock` below sees its store. A thread that releases it later sees the count.
        let sleep_ns = if kernel::barrier_everywhere() { MAX_SLEEP_NS } else { UNSURE_SLEEP_NS };
        while !self.try_lock() {
            kernel::sleep_while(&self.state, HELD, sleep_ns);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::lock::Mutex;

    #[test]
    fn one_at_a_time_and_nobody_is_forgotten() {
        const THREADS: u64 = 6;
        const ROUNDS: u64 = 20_000;
        let count = Mutex::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        let mut held = count.lock();
                        let seen = *held;
                        if round % 512 == 0 {
                            std::thread::yield_now();
                        }
                        *held = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), THREADS * ROUNDS);
    }

    #[test]
    fn a_held_lock_is_not_given_twice() {
        let lock = Mutex::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }

    #[test]
    fn a_sleeper_wakes() {
        let lock = Mutex::new(0);
        let mut held = lock.lock();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| *lock.lock());
            // SAFETY: only reads a counter of the raw lock.
            while unsafe { lock.raw() }.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            *held = 7;
            drop(held);
            assert_eq!(sleeper.join().unwrap(), 7);
        });
    }
}
