//! A lock that is given back with a plain store, and that whoever takes it all the time takes with one, too.
//!
//! Sending and receiving a small message takes eleven locks, nearly always free ones. Each costs a locked instruction to take; an
//! ordinary mutex needs a second one to give it back, since it must find out in the same moment whether somebody sleeps. Here
//! whoever sleeps pays for that instead: it has the kernel run a memory barrier on all threads of the process (`membarrier`), after
//! which every thread that gives the lock back is certain to see that somebody sleeps. Where the kernel does not do that,
//! sleepers look for themselves now and then.
//!
//! Most locks are taken by one thread only, again and again: the one that posts and polls. After so many times in a row it becomes the lock's *owner*, and says
//! that it is inside by a plain store as well. Anybody else who comes takes the ordinary lock, ends the ownership, and pays for it with the same barrier:
//! after that either it sees the owner inside, and waits, or the owner sees that it is none any more.

use parking_lot::lock_api::{GuardNoSend, RawMutex};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, compiler_fence};
use std::time::Duration;

const FREE: u32 = 0;
const HELD: u32 = 1;

/// The owner is not there.
const OUTSIDE: u32 = 0;
/// It is about to look whether it is still the owner.
const AT_THE_DOOR: u32 = 1;
/// It holds the lock, as its owner.
const INSIDE: u32 = 2;

/// Whether threads can be told from each other at no cost.
const HAS_OWNERS: bool = cfg!(all(target_arch = "x86_64", not(miri)));

/// No thread.
const NOBODY: usize = 0;

/// A thread that takes a lock so often in a row becomes its owner. To end that takes some microseconds, so it must not happen often.
const OWNER_AFTER: u32 = if cfg!(debug_assertions) { 32 } else { 1024 };

/// Rounds of waiting without sleeping: first short ones, then with the processor given to others.
const SPINS: u32 = 6;
const YIELDS: u32 = 4;
/// How long a sleeper sleeps at most: where it is certain to be woken (a lost wake-up shall be a hiccup and not a hang), and where not.
const LONGEST_SLEEP_NS: i64 = 100_000_000;
const UNSURE_SLEEP_NS: i64 = 1_000_000;

/// The kernel runs barriers for us. Without them there are no owners.
static HAS_BARRIERS: AtomicBool = AtomicBool::new(false);

/// The lock without what it guards.
pub struct RawLock {
    /// Whether somebody has it who is not its owner, or is about to.
    state: AtomicU32,
    /// Threads that sleep or are about to.
    sleepers: AtomicU32,
    /// Which thread is the owner. Set while `state` is held, and taken back.
    owner: AtomicUsize,
    /// Where the owner is. Only threads that are owners, or were a moment ago, change it.
    whereabouts: AtomicU32,
    /// How often in a row the same thread had `state`, and which. Changed by who has it.
    streak: AtomicU32,
    last: AtomicUsize,
}

// SAFETY: `state` goes from free to held in one atomic step, and only whoever took that step gives it back. Who has it has ended the
// ownership, and after a barrier on all threads has seen the owner outside; an owner is inside only if after it came to the door it still was the owner.
unsafe impl RawMutex for RawLock {
    const INIT: RawLock = RawLock {
        state: AtomicU32::new(FREE),
        sleepers: AtomicU32::new(0),
        owner: AtomicUsize::new(NOBODY),
        whereabouts: AtomicU32::new(OUTSIDE),
        streak: AtomicU32::new(0),
        last: AtomicUsize::new(NOBODY),
    };
    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.enter_as_owner() {
            self.lock_as_other();
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.enter_as_owner() || self.try_as_other()
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.whereabouts.load(Ordering::Relaxed) == INSIDE {
            self.whereabouts.store(OUTSIDE, Ordering::Release);
        } else {
            self.leave_as_other();
        }
        // The processor may look at the sleepers before others see the store; the sleepers' barrier is what orders the two.
        compiler_fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_one();
        }
    }
}

impl RawLock {
    /// Takes the lock if this thread is the owner.
    #[inline]
    fn enter_as_owner(&self) -> bool {
        let me = this_thread();
        // It may be inside already: then the lock is held, by this very thread or by what it interrupted.
        if !HAS_OWNERS
            || self.owner.load(Ordering::Relaxed) != me
            || self.whereabouts.load(Ordering::Relaxed) != OUTSIDE
        {
            return false;
        }
        self.whereabouts.store(AT_THE_DOOR, Ordering::Relaxed);
        // The processor may look first; the barrier of who ends the ownership is what orders the two.
        compiler_fence(Ordering::SeqCst);
        if self.owner.load(Ordering::Relaxed) != me {
            self.turn_away();
            return false;
        }
        self.whereabouts.store(INSIDE, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        true
    }

    /// Leaves the door: somebody else has ended the ownership, and may wait.
    #[cold]
    fn turn_away(&self) {
        self.whereabouts.store(OUTSIDE, Ordering::Release);
        compiler_fence(Ordering::SeqCst);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.wake_one();
        }
    }

    #[inline(never)]
    fn lock_as_other(&self) {
        if !self.try_state() {
            self.wait_until(|| self.try_state(), &self.state, HELD);
        }
        self.end_ownership();
        if self.whereabouts.load(Ordering::Acquire) != OUTSIDE {
            let is_out = || self.whereabouts.load(Ordering::Acquire) == OUTSIDE;
            self.wait_until(is_out, &self.whereabouts, INSIDE);
        }
        self.count();
    }

    #[inline(never)]
    fn try_as_other(&self) -> bool {
        let is_inside = || self.whereabouts.load(Ordering::Acquire) != OUTSIDE;
        // Looked at first: nobody shall lose the lock for a try that fails.
        if is_inside() || !self.try_state() {
            return false;
        }
        self.end_ownership();
        if is_inside() {
            self.state.store(FREE, Ordering::Release);
            return false;
        }
        self.count();
        true
    }

    #[inline]
    fn try_state(&self) -> bool {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Called with `state` held: from now on the owner is none, if there was one, and where it was can be seen.
    #[inline]
    fn end_ownership(&self) {
        if self.owner.load(Ordering::Relaxed) != NOBODY {
            self.owner.store(NOBODY, Ordering::Relaxed);
            if !barrier_everywhere() {
                self.wait_out();
            }
        }
    }

    /// What a barrier does, where the program has forbidden them since: no processor keeps a store to itself for so long.
    #[cold]
    fn wait_out(&self) {
        HAS_BARRIERS.store(false, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(10));
    }

    /// Called with the lock held by `state`: counts how often in a row this thread has it.
    #[inline]
    fn count(&self) {
        let (me, last) = (this_thread(), self.last.load(Ordering::Relaxed));
        let streak = if me == last { self.streak.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.streak.store(streak, Ordering::Relaxed);
        self.last.store(me, Ordering::Relaxed);
    }

    /// Gives `state` back, and becomes the owner if it was this thread's often enough.
    #[inline(never)]
    fn leave_as_other(&self) {
        if self.streak.load(Ordering::Relaxed) >= OWNER_AFTER {
            self.streak.store(0, Ordering::Relaxed);
            let may_own = HAS_BARRIERS.load(Ordering::Relaxed);
            self.owner.store(if may_own { this_thread() } else { NOBODY }, Ordering::Relaxed);
        }
        self.state.store(FREE, Ordering::Release);
    }

    /// Waits until `is_so`: first awake, then asleep while `word` has this value.
    #[cold]
    fn wait_until(&self, is_so: impl Fn() -> bool, word: &AtomicU32, value: u32) {
        for round in 0..SPINS + YIELDS {
            match round {
                0..SPINS => (0..1 << round).for_each(|_| std::hint::spin_loop()),
                _ => std::thread::yield_now(),
            }
            if is_so() {
                return;
            }
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        // From here on: who gave the lock back before the barrier has its store seen below, who does so after it sees the count.
        let sleep_ns = if barrier_everywhere() { LONGEST_SLEEP_NS } else { UNSURE_SLEEP_NS };
        while !is_so() {
            sleep(word, value, sleep_ns);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    fn wake_one(&self) {
        let op = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // Who waits for the owner has `state`, so that the others wait for that.
        for word in [&self.whereabouts, &self.state] {
            // SAFETY: the word is only an address to the call.
            unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, 1) };
        }
    }
}

/// Sleeps while the word has this value, and no longer than so long.
fn sleep(word: &AtomicU32, value: u32, most_ns: i64) {
    let most = libc::timespec { tv_sec: 0, tv_nsec: most_ns };
    let op = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word and the time are readable; the call changes neither. Waking for no reason is allowed.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, &raw const most) };
}

/// A number that no two living threads share, and that costs nothing; [`NOBODY`] where there is none.
#[inline(always)]
fn this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: reads the thread pointer, which the System V ABI keeps at the start of what it leads to.
        unsafe {
            std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, preserves_flags, readonly));
        }
        pointer
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    NOBODY
}

/// Has every thread of the process pass a memory barrier. False if the kernel does not do that.
fn barrier_everywhere() -> bool {
    // A process that has not announced it is refused.
    membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
        || (announce() && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
}

/// Announces to the kernel that locks may have to be waited for. In a process of several threads that takes it a grace
/// period, 10 to 40 ms on a busy machine. So it is done before there is anything to hold up: a thread that found the lock of a
/// queue pair taken for the first time would otherwise stop the whole device for so long.
pub(crate) fn announce() -> bool {
    let is_done = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    let is_done = is_done && membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
    HAS_BARRIERS.store(is_done, Ordering::Relaxed);
    is_done
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
        const TURNS: u64 = 20_000;
        let count = Mutex::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for turn in 0..TURNS {
                        let mut held = count.lock();
                        let seen = *held;
                        if turn % 512 == 0 {
                            std::thread::yield_now();
                        }
                        *held = seen + 1;
                    }
                });
            }
        });
        assert_eq!(*count.lock(), THREADS * TURNS);
    }

    fn owner_of<T>(lock: &Mutex<T>) -> usize {
        // SAFETY: `raw` is only looked at.
        unsafe { lock.raw() }.owner.load(Ordering::SeqCst)
    }

    /// Takes the lock until this thread owns it.
    fn own<T>(lock: &Mutex<T>) {
        assert!(announce(), "this kernel has no barriers");
        (0..OWNER_AFTER + 2).for_each(|_| drop(lock.lock()));
        assert_eq!(owner_of(lock), this_thread());
    }

    #[test]
    fn who_takes_it_all_the_time_owns_it_until_another_comes() {
        if !HAS_OWNERS {
            return;
        }
        let lock = Mutex::new(0);
        own(&lock);
        let held = lock.lock();
        assert!(lock.try_lock().is_none(), "not even its owner gets it twice");
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| lock.try_lock().is_none());
            assert!(refused.join().unwrap(), "the owner is inside");
            assert_eq!(owner_of(&lock), this_thread(), "a try changes nothing");
            let other = scope.spawn(|| *lock.lock() += 1);
            // SAFETY: `raw` is only looked at.
            while unsafe { lock.raw() }.sleepers.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(*held, 0);
            drop(held);
            other.join().unwrap();
            assert_eq!(owner_of(&lock), NOBODY);
        });
        own(&lock);
        std::thread::scope(|scope| {
            assert!(scope.spawn(|| lock.try_lock().is_some()).join().unwrap(), "the owner is outside");
        });
        assert_eq!(*lock.lock(), 1);
    }

    /// One thread that is the owner nearly always, and others that come by, some of whom only try.
    #[test]
    fn owners_and_others_are_never_inside_together() {
        assert!(announce(), "this kernel has no barriers");
        let lock = Mutex::new((0_u64, 0_u64));
        let is_over = AtomicBool::new(false);
        let add = |both: &mut (u64, u64)| {
            // Both at once, or somebody was in between.
            assert_eq!(both.0, both.1);
            both.0 += 1;
            std::hint::black_box(&mut *both);
            both.1 += 1;
        };
        let (lock, is_over, add) = (&lock, &is_over, &add);
        let counted: u64 = std::thread::scope(|scope| {
            let others: Vec<_> = (0..3)
                .map(|number| {
                    scope.spawn(move || {
                        let mut count = 0;
                        while !is_over.load(Ordering::Relaxed) {
                            let tried = if number == 0 { lock.try_lock() } else { Some(lock.lock()) };
                            if let Some(mut held) = tried {
                                add(&mut held);
                                count += 1;
                            }
                            (0..2_000 * (number + 1)).for_each(|_| std::hint::spin_loop());
                        }
                        count
                    })
                })
                .collect();
            for _ in 0..2_000_000 {
                add(&mut lock.lock());
            }
            is_over.store(true, Ordering::Relaxed);
            others.into_iter().map(|other| other.join().unwrap()).sum()
        });
        assert_eq!(lock.lock().0, 2_000_000 + counted);
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
