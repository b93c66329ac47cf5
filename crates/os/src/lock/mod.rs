//! Locks that ask the system for no memory, not even when somebody has to wait.
//!
//! Posting and polling must not allocate: a program's signal handler may interrupt them and allocate itself. The mutex of parking_lot
//! keeps a table of those who wait, which is made at the first wait and grows with the threads; this one sleeps on the lock itself.
//! What is read far more often than changed stays behind parking_lot's [`RwLock`]: there only those wait who meet the maker of what
//! they look for, or its destroyer. (The standard library's allocates nothing either, but its slow path is compiled without
//! ThreadSanitizer, which then sees races where there are none.) A lock whose holder panicked stays usable: the state behind it is whole,
//! or belongs to a device that is then reported as broken.

#[cfg(not(loom))]
mod kernel;
#[cfg(loom)]
#[path = "kernel_model.rs"]
mod kernel;
mod raw;

use parking_lot::lock_api;
use std::time::{Duration, Instant};

pub use kernel::announce;
pub use parking_lot::RwLock;
pub use raw::RawLock;

/// How often a lock is tried that may be waited for only so long.
const RETRY_EVERY: Duration = Duration::from_micros(200);

/// Where loom runs [`RawLock`], everything else keeps away from it: loom's atomics exist only inside of a model.
#[cfg(loom)]
type Raw = parking_lot::RawMutex;
#[cfg(not(loom))]
type Raw = RawLock;

/// For one holder at a time.
pub type Mutex<T> = lock_api::Mutex<Raw, T>;
/// Who holds a [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Raw, T>;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_that_panicked_does_not_lock_others_out() {
        let mutex = Mutex::new(1);
        let died = std::thread::scope(|scope| {
            let holder = scope.spawn(|| {
                let _held = mutex.lock();
                panic!("on purpose");
            });
            holder.join().is_err()
        });
        assert!(died && mutex.try_lock().is_some());
        assert_eq!(*mutex.lock(), 1);
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
