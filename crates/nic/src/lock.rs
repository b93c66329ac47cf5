//! Locks that ask the system for no memory, not even when somebody has to wait.
//!
//! Posting and polling must not allocate: a program's signal handler may interrupt them and allocate itself. The locks of parking_lot
//! keep a table of those who wait, which is made at the first wait and grows with the threads; those of the standard library sleep on
//! the lock itself. Where a thread may read what it reads already, as with the regions that a list of scatter/gather entries names,
//! those of parking_lot stay; there only a key that is used while it is registered or deregistered waits. A lock whose holder panicked stays usable, as the state behind it is whole or belongs to a device that is then
//! reported as broken.

use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How often a lock is tried that may be waited for only so long.
const RETRY_EVERY: Duration = Duration::from_micros(200);

/// Who holds a [`Mutex`].
pub type MutexGuard<'a, T> = std::sync::MutexGuard<'a, T>;
/// Who reads what is in a [`RwLock`].
pub type RwLockReadGuard<'a, T> = std::sync::RwLockReadGuard<'a, T>;
/// Who changes what is in a [`RwLock`].
pub type RwLockWriteGuard<'a, T> = std::sync::RwLockWriteGuard<'a, T>;

/// For one holder at a time.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// Around `value`.
    pub const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits until nobody holds it.
    #[inline]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it if nobody holds it.
    #[inline]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits no longer than this: for the exit of a process, where the holder may be a thread that is gone.
    pub fn try_lock_for(&self, patience: Duration) -> Option<MutexGuard<'_, T>> {
        let start = Instant::now();
        loop {
            match self.try_lock() {
                None if start.elapsed() < patience => std::thread::sleep(RETRY_EVERY),
                outcome => return outcome,
            }
        }
    }

    /// What is inside, for its only owner.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
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
        assert_eq!((*mutex.lock(), *lock.read(), *lock.write()), (1, 1, 1));
    }

    #[test]
    fn patience_ends() {
        let mutex = Mutex::new(());
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none() && mutex.try_lock_for(Duration::from_millis(1)).is_none());
        drop(held);
        assert!(mutex.try_lock_for(Duration::ZERO).is_some());
    }
}
