//! Loom runs the lock. Every test takes it in threads that may meet in every way, and asks for three things: one holder at a time, who
//! sees what the holders before wrote (loom's cell reports a race otherwise), and nobody sleeps for ever (loom reports a deadlock).

use super::{FREE, RawLock};
use crate::sync::AtomicU32;
use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::thread;
use parking_lot::lock_api::Mutex;
use std::sync::Arc;

/// A number behind the lock that loom watches.
type Counter = Mutex<RawLock, UnsafeCell<u32>>;

fn increment(counter: &Counter) {
    let held = counter.lock();
    // SAFETY: the pointer is good, and loom reports whoever else has it.
    held.with_mut(|value| unsafe { *value += 1 });
}

/// Threads that take the lock so many times each. The test's own thread is the last of them.
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
