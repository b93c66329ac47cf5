//! Atomics and locks of the code that the model checker [loom](https://docs.rs/loom) runs.
//!
//! They are the standard library's and [`lock`](crate::lock)'s. With `RUSTFLAGS="--cfg loom"` they are loom's. Loom runs a test in every
//! interleaving of its threads, and lets a load return every value that the memory model allows. `cargo xtask test --filter models` runs it.

#[cfg(loom)]
mod model;

#[cfg(loom)]
pub use ::loom;
#[cfg(loom)]
pub use model::*;

#[cfg(not(loom))]
pub use crate::lock::{Mutex, MutexGuard, RwLock};
#[cfg(not(loom))]
pub use parking_lot::RwLockReadGuard;
#[cfg(not(loom))]
pub use std::hint::spin_loop;
pub use std::sync::atomic::Ordering;
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
#[cfg(not(loom))]
pub use std::thread::yield_now;
