//! Locks that never allocate, even when a thread has to wait.
//!
//! Posting and polling must not allocate: a program's signal handler may interrupt them and allocate itself. The mutex of parking_lot
//! keeps a table of waiting threads, which it allocates at the first wait and grows with the number of threads. This mutex sleeps on the lock
//! word itself. State that is read far more often than changed uses parking_lot's [`RwLock`]: a reader waits there only while an object is
//! created or destroyed. (The standard library's mutex does not allocate either. But its slow path is compiled without ThreadSanitizer,
//! which then reports false races.) A lock whose holder panicked stays usable: its state is consistent, or belongs to a device that is
//! reported as broken.

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

/// Attempts of [`lock_within`] without a pause: a poller that holds a lock releases it every microsecond, but only for a moment.
const SPINS: u32 = 256;
/// The time between two later attempts.
const RETRY_EVERY: Duration = Duration::from_micros(200);

/// Under loom, [`Mutex`] does not use [`RawLock`]: loom's atomics exist only inside a model.
#[cfg(loom)]
type Raw = parking_lot::RawMutex;
#[cfg(not(loom))]
type Raw = RawLock;

/// A mutex that never allocates.
pub type Mutex<T> = lock_api::Mutex<Raw, T>;
/// Proof that the calling thread holds a [`Mutex`].
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, Raw, T>;

/// Takes a lock, but waits at most `max_wait`. While a process exits, the holder may be a thread that no longer runs.
pub fn lock_within<T>(mutex: &Mutex<T>, max_wait: Duration) -> Option<MutexGuard<'_, T>> {
    for _ in 0..SPINS {
        if let Some(guard) = mutex.try_lock() {
            return Some(guard);
        }
        std::hint::spin_loop();
    }
    let start = Instant::now();
    loop {
        match mutex.try_lock() {
            None if start.elapsed() < max_wait => std::thread::sleep(RETRY_EVERY),
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
