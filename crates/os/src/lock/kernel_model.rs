//! A loom model of the system calls of the lock.
//!
//! A sleep has no limit and ends only by a wake-up, so a lost wake-up is a deadlock, which loom reports. `membarrier` and the light barriers
//! are modelled as `SeqCst` fences. Two light barriers order each other here, which the real ones do not. The model does not cover kernels
//! without `membarrier`, where sleepers retry periodically.

use crate::sync::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};

loom::lazy_static! {
    /// The kernel compares the word and puts the sleeper into the queue under one lock, which a waker takes too.
    static ref QUEUE: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
}

pub(super) fn sleep_while(word: &AtomicU32, value: u32, _most_ns: i64) {
    let (lock, sleepers) = &*QUEUE;
    let held = lock.lock().expect("nobody panics with it");
    if word.load(Ordering::Relaxed) == value {
        drop(sleepers.wait(held));
    }
}

pub(super) fn wake_one(_word: &AtomicU32) {
    let (lock, sleepers) = &*QUEUE;
    let _held = lock.lock().expect("nobody panics with it");
    sleepers.notify_one();
}

pub(super) fn light_barrier() {
    fence(Ordering::SeqCst);
}

pub(super) fn barrier_everywhere() -> bool {
    fence(Ordering::SeqCst);
    true
}

/// There is nobody to announce it to.
pub fn announce() -> bool {
    true
}
