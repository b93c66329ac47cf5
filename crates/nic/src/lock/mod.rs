//! Locks that ask the system for no memory, not even when somebody has to wait.
//!
//! Posting and polling must not allocate: a program's signal handler may interrupt them and allocate itself. The locks of parking_lot
//! keep a table of those who wait, which is made at the first wait and grows with the threads; these sleep on the lock itself.
//! Where a thread may read what it reads already, as with the regions that a list of scatter/gather entries names, those of
//! parking_lot stay; there only a key that is used while it is registered or deregistered waits. A lock whose holder panicked stays
//! usable: the state behind it is whole, or belongs to a device that is then reported as broken.

mod raw;

use parking_lot::lock_api;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

pub use raw::RawLock;

/// How often a lock is tried that may be waited for only so long.
const RETRY_EVERY: Duration = Duration::from_micros(200);

/// For one holder at a time.
pub type Mutex<T> = lock_api::Mutex<RawLock, T>;
/// Who holds a [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawLock, T>;
/// Who reads what is in a [`RwLock`].
pub type RwLockReadGuard<'a, T> = std::sync::RwLockReadGuard<'a, T>;
/// Who changes what is in a [`RwLock`].
pub type RwLockWriteGuard<'a, T> = std::sync::RwLockWriteGuard<'a, T>;

/// Takes a lock, but waits no longer than this: for the exit of a process, where the holder may be a thread that is gone.
pub fn lock_within<T>(mutex: &Mutex<T>, patience: Duration) -> Option<MutexGuard<'_, T>> {
    let start = Instant::now();
    loop {
        match mutex.try_lock() {
            None if start.elapsed() < patience => std::thread::sleep(RETRY_EVERY),
            outcome => return outcome,
        }
    }
}

/// For many readers, or one who changes.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(std::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// Around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits until nobody changes it.
    #[inline]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until nobody else is at it.
    #[inline]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_panicked_does_not_lock_others_out() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(1));
        let died = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = (mutex.lock(), lock.write());
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(died && mutex.try_lock().is_some());
        assert_eq!(*mutex.lock() + *lock.read(), 2);
        assert_eq!(*lock.write(), 1);
    }

    #[test]
    fn patience_ends() {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none() && lock_within(&mutex, Duration::from_millis(1)).is_none());
        drop(held);
        assert!(lock_within(&mutex, Duration::ZERO).is_some());
    }
}
