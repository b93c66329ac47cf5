//! Loom models of the lock. Threads take it in every interleaving. The models check three properties: there is one holder at a time, it sees
//! the writes of earlier holders (otherwise loom's cell reports a race), and every sleeper wakes (otherwise loom reports a deadlock).

use super::{FREE, RawLock};
use crate::sync::AtomicU32;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread;
use parking_lot::lock_api::Mutex;
use std::sync::Arc;

/// A number that the lock guards and that loom checks for races.
type Counter = Mutex<RawLock, UnsafeCell<u32>>;

fn increment(counter: &Counter) {
    let held = counter.lock();
    // SAFETY: the pointer is valid, and loom reports any concurrent access.
    held.with_mut(|value| unsafe { *value += 1 });
}

/// Starts threads that take the lock `times` times each. The last of them is the test's own thread.
fn check(times: &'static [u32], preemptions: usize) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let raw = RawLock { state: AtomicU32::new(FREE), sleepers: AtomicU32::new(0) };
        let counter = Arc::new(Counter::from_raw(raw, UnsafeCell::new(0)));
        let (last, others) = times.split_last().expect("at least one thread");
        let spawn = |&times: &u32| {
            let counter = counter.clone();
            thread::spawn(move || (0..times).for_each(|_| increment(&counter)))
        };
        let threads: Vec<_> = others.iter().map(spawn).collect();
        (0..*last).for_each(|_| increment(&counter));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: as above.
        let sum = counter.lock().with(|value| unsafe { *value });
        assert_eq!(sum, times.iter().sum::<u32>());
    });
}

#[test]
fn two_threads_exclude_each_other_and_wake_up() {
    check(&[2, 2], 5);
}

#[test]
fn three_threads_exclude_each_other_and_wake_up() {
    check(&[1, 1, 1], 3);
}
