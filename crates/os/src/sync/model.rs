//! Loom's atomics and locks with the interface of the real ones.
//!
//! Loom treats `SeqCst` accesses as acquire and release ones, so it would report races in correct code. It models `SeqCst` fences fully.
//! So this module executes a fence between a `SeqCst` write of a thread and its next `SeqCst` read, or its next store if that is earlier.
//! The fence also orders the reads around it, which real accesses do not. There is no fence between a `SeqCst` write and weaker reads, nor
//! between a weaker write and a `SeqCst` read: a model that needs this order fails, as it should.

use super::Ordering;
use loom::sync::atomic as inner;
use std::cell::Cell;

pub use loom::hint::spin_loop;
pub use loom::sync::atomic::fence;
pub use loom::sync::{MutexGuard, RwLockReadGuard};
pub use loom::thread::yield_now;

loom::thread_local! {
    /// Whether this thread made a `SeqCst` write since its last fence.
    static WROTE: Cell<bool> = Cell::new(false);
}

fn close_write() {
    if WROTE.with(|wrote| wrote.replace(false)) {
        fence(Ordering::SeqCst);
    }
}

fn before_read(order: Ordering) {
    if order == Ordering::SeqCst {
        close_write();
    }
}

fn after_write(order: Ordering) {
    if order == Ordering::SeqCst {
        WROTE.with(|wrote| wrote.set(true));
    }
}

macro_rules! atomic {
    ($name:ident, $value:ty) => {
        /// Loom's atomic.
        #[derive(Debug)]
        pub struct $name(inner::$name);

        impl $name {
            /// Created at run time: loom has no constant ones.
            pub fn new(value: $value) -> Self {
                Self(inner::$name::new(value))
            }

            /// As the standard library's.
            pub fn load(&self, order: Ordering) -> $value {
                before_read(order);
                self.0.load(order)
            }

            /// As the standard library's.
            pub fn store(&self, value: $value, order: Ordering) {
                close_write();
                self.0.store(value, order);
                after_write(order);
            }

            /// As the standard library's.
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |inner| inner.swap(value, order))
            }

            /// As the standard library's.
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.update(success, |inner| inner.compare_exchange(current, new, success, failure))
            }

            /// As the standard library's.
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |inner| inner.fetch_or(value, order))
            }

            fn update<R>(&self, order: Ordering, run: impl FnOnce(&inner::$name) -> R) -> R {
                before_read(order);
                let outcome = run(&self.0);
                after_write(order);
                outcome
            }
        }
    };
}

macro_rules! arithmetic {
    ($name:ident, $value:ty) => {
        impl $name {
            /// As the standard library's.
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |inner| inner.fetch_add(value, order))
            }

            /// As the standard library's.
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.update(order, |inner| inner.fetch_sub(value, order))
            }
        }
    };
}

atomic!(AtomicBool, bool);
atomic!(AtomicU32, u32);
atomic!(AtomicU64, u64);
arithmetic!(AtomicU32, u32);
arithmetic!(AtomicU64, u64);

const UNPOISONED: &str = "a thread that panics ends the model";

/// Loom's mutex with the interface of [`lock::Mutex`](crate::lock::Mutex).
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect(UNPOISONED)
    }
}

/// Loom's lock with the interface of parking_lot's. A waiting writer keeps no reader out, so every read lock is a recursive one.
#[derive(Debug, Default)]
pub struct RwLock<T>(loom::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A free lock.
    pub fn new(value: T) -> Self {
        RwLock(loom::sync::RwLock::new(value))
    }

    /// Waits until nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(UNPOISONED)
    }

    /// Reads if nobody writes.
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        self.0.try_read().ok()
    }

    /// Waits until nobody writes.
    pub fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
        self.read()
    }

    /// Waits until there is no other holder.
    pub fn write(&self) -> loom::sync::RwLockWriteGuard<'_, T> {
        self.0.write().expect(UNPOISONED)
    }
}
