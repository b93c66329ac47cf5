//! A lock that is held for moments, or only ever tried.
//!
//! Nobody sleeps on it, so whoever gives it up need not look whether somebody does: a plain store, where other locks need a second
//! locked instruction, which costs as much as fifty others. Whoever polls takes two of them each time.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A lock on which nobody sleeps.
#[derive(Debug, Default)]
pub(crate) struct BriefLock<T> {
    is_taken: AtomicBool,
    inside: UnsafeCell<T>,
}

// SAFETY: the inside is reached through a guard only, of which there is one at a time.
unsafe impl<T: Send> Sync for BriefLock<T> {}

impl<T> BriefLock<T> {
    pub(crate) fn new(inside: T) -> Self {
        BriefLock { is_taken: AtomicBool::new(false), inside: UnsafeCell::new(inside) }
    }

    /// The inside, unless somebody else has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<BriefGuard<'_, T>> {
        let is_free = !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::Acquire);
        is_free.then(|| BriefGuard { lock: self })
    }

    /// The inside. For what is held for moments: whoever finds it taken for longer naps, and sees late that it is free.
    #[inline]
    pub(crate) fn lock(&self) -> BriefGuard<'_, T> {
        match self.try_lock() {
            Some(guard) => guard,
            None => self.lock_later(),
        }
    }

    #[cold]
    fn lock_later(&self) -> BriefGuard<'_, T> {
        let mut tries = 0_u32;
        loop {
            if tries < SPINS {
                std::hint::spin_loop();
            } else if tries < PATIENCE {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            tries = tries.saturating_add(1);
        }
    }
}

/// Looks at a lock before others get the processor: who has it may wait for that.
const SPINS: u32 = 64;
/// Looks before a short sleep instead: one with a lower priority may have the lock.
const PATIENCE: u32 = SPINS + 16;
const NAP: Duration = Duration::from_micros(50);

/// The inside of a [`BriefLock`], for one thread.
pub(crate) struct BriefGuard<'a, T> {
    lock: &'a BriefLock<T>,
}

impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard.
        unsafe { &*self.lock.inside.get() }
    }
}

impl<T> DerefMut for BriefGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, and it is borrowed alone.
        unsafe { &mut *self.lock.inside.get() }
    }
}

impl<T> Drop for BriefGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.lock.is_taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_is_lost() {
        let lock = BriefLock::new(0_u64);
        let taken = std::thread::scope(|s| {
            let count =
                || (0..20_000).filter(|_| lock.try_lock().map(|mut inside| *inside += 1).is_some()).count();
            let threads: Vec<_> = (0..4).map(|_| s.spawn(count)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap() as u64).sum::<u64>()
        });
        let inside = lock.try_lock().unwrap();
        assert_eq!(*inside, taken);
        assert!(lock.try_lock().is_none());
    }

    #[test]
    fn whoever_waits_gets_it() {
        let lock = BriefLock::new(0_u64);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| (0..10_000).for_each(|_| *lock.lock() += 1));
            }
        });
        assert_eq!(*lock.lock(), 80_000);
    }
}
