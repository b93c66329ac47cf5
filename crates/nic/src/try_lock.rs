//! A lock that is only ever tried.
//!
//! Nobody waits for it, so whoever gives it up need not look whether somebody does: a plain store, where other locks need a second
//! locked instruction. Whoever polls takes and gives up two of them each time.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// A lock without waiting.
#[derive(Debug, Default)]
pub(crate) struct TryLock<T> {
    is_taken: AtomicBool,
    inside: UnsafeCell<T>,
}

// SAFETY: the inside is reached through a guard only, of which there is one at a time.
unsafe impl<T: Send> Sync for TryLock<T> {}

impl<T> TryLock<T> {
    pub(crate) fn new(inside: T) -> Self {
        TryLock { is_taken: AtomicBool::new(false), inside: UnsafeCell::new(inside) }
    }

    /// The inside, unless somebody else has it.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<TryGuard<'_, T>> {
        let is_free = !self.is_taken.load(Ordering::Relaxed) && !self.is_taken.swap(true, Ordering::Acquire);
        is_free.then(|| TryGuard { lock: self })
    }
}

/// The inside of a [`TryLock`], for one thread.
pub(crate) struct TryGuard<'a, T> {
    lock: &'a TryLock<T>,
}

impl<T> Deref for TryGuard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this is the only guard.
        unsafe { &*self.lock.inside.get() }
    }
}

impl<T> DerefMut for TryGuard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this is the only guard, and it is borrowed alone.
        unsafe { &mut *self.lock.inside.get() }
    }
}

impl<T> Drop for TryGuard<'_, T> {
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
        let lock = TryLock::new(0_u64);
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
}
