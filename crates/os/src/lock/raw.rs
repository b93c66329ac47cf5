//! A lock that is given back with a plain store.
//!
//! Sending and receiving a small message takes nine locks, nearly always free ones. Each costs a locked instruction to take; an
//! ordinary mutex needs a second one to give it back, since it must find out in the same moment whether somebody sleeps. Here
//! whoever sleeps pays for that instead: it has the kernel run a memory barrier on all threads of the process (`membarrier`), after
//! which every thread that gives the lock back is certain to see that somebody sleeps. Where the kernel does not do that,
//! sleepers look for themselves now and then.

use parking_lot::lock_api::{GuardNoSend, RawMutex};
use std::sync::atomic::{AtomicU32, Ordering, compiler_fence};

const FREE: u32 = 0;
const HELD: u32 = 1;

/// Rounds of waiting without sleeping: first short ones, then with the processor given to others.
const SPINS: u32 = 6;
const YIELDS: u32 = 4;
/// How long a sleeper sleeps at most: where it is certain to be woken (a lost wake-up shall be a hiccup and not a hang), and where not.
const LONGEST_SLEEP_NS: i64 = 100_000_000;
const UNSURE_SLEEP_NS: i64 = 1_000_000;

/// The lock without what it guards.
pub struct RawLock {
    state: AtomicU32,
    /// Threads that sleep or are about to.
    sleepers: AtomicU32,
}

// SAFETY: `state` goes from free to held in one atomic step, and only whoever took that step gives it back.
unsafe impl RawMutex for RawLock {
    const INIT: RawLock = RawLock { state: AtomicU32::new(FREE), sleepers: AtomicU32::new(0) };
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
        // The processor may look at the sleepers before others see the store; the sleepers' barrier is what orders the two.
        compiler_fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_one();
        }
    }
}

impl RawLock {
    #[cold]
    fn lock_slowly(&self) {
        for round in 0..SPINS + YIELDS {
            match round {
                0..SPINS => (0..1 << round).for_each(|_| std::hint::spin_loop()),
                _ => std::thread::yield_now(),
            }
            if self.try_lock() {
                return;
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // From here on: who gave the lock back before the barrier has its store seen below, who does so after it sees the count.
        let sleep_ns = if barrier_everywhere() { LONGEST_SLEEP_NS } else { UNSURE_SLEEP_NS };
        while !self.try_lock() {
            self.sleep(sleep_ns);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Sleeps while the lock is held, and no longer than so long.
    fn sleep(&self, most_ns: i64) {
        let most = libc::timespec { tv_sec: 0, tv_nsec: most_ns };
        let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word and the time are readable; the call changes neither. Waking for no reason is allowed.
        unsafe { libc::syscall(libc::SYS_futex, self.state.as_ptr(), op, HELD, &raw const most) };
    }

    #[cold]
    fn wake_one(&self) {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word is only an address to the call.
        unsafe { libc::syscall(libc::SYS_futex, self.state.as_ptr(), op, 1) };
    }
}

/// Makes every thread of the process pass a memory barrier. Returns whether the kernel supports that.
fn barrier_everywhere() -> bool {
    // A process that has not announced it is refused.
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        || (announce() && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
}

/// Announces to the kernel that locks may have to be waited for. In a process of several threads that takes it a grace
/// period, 10 to 40 ms on a busy machine. So it is done before there is anything to hold up: a thread that found the lock of a
/// queue pair taken for the first time would otherwise stop the whole device for so long.
pub fn announce() -> bool {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: a call without memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(test)]
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
            // SAFETY: `raw` is only looked at.
            while unsafe { lock.raw() }.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            *held = 7;
            drop(held);
            assert_eq!(sleeper.join().unwrap(), 7);
        });
    }
}
