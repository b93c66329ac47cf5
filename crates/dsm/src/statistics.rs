//! The counters of a process.

use crate::heat::Heat;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of one process since it joined.
        #[derive(Debug, Clone, Default, serde::Serialize)]
        #[non_exhaustive]
        pub struct Statistics { $($(#[$doc])* pub $name: u64,)* }

        /// The counters while they change.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            /// Page by page.
            pub(crate) heat: Heat,
        }

        impl Counters {
            pub(crate) fn snapshot(&self) -> Statistics {
                Statistics { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counted! {
    /// Read faults: pages that were not here.
    read_faults,
    /// Write faults: first writes of a page in an interval.
    write_faults,
    /// Fetches, on a fault or at a barrier: the first page of each.
    fetches,
    /// Pages fetched with another one, or received with the arrival of their home at a barrier.
    prefetches,
    /// Pages whose changes were sent home.
    diffs,
    /// Those of them that were sent in a parcel, because many single words changed.
    packed_diffs,
    /// Bytes of all those changes.
    diff_bytes,
    /// Bytes of pages that were fetched from their homes.
    fetched_bytes,
    /// Copies that were invalidated because another process wrote the page.
    invalidations,
    /// Copies that were evicted from the cache.
    evictions,
    /// Pages of co-located homes that are used in place.
    shared_pages,
    /// Pages whose home moved to this process.
    migrations,
    /// Locks taken.
    locks,
    /// Time from the request of a lock to its acquisition.
    lock_wait_ns,
    /// Barriers passed, with coherence and without.
    barriers,
    /// Time in them. Unless the calls are recorded (`--stat`), two processes on one host do not read the clock if both arrive within a moment.
    barrier_wait_ns,
    /// Time from a fault until the thread continued.
    fault_ns,
    /// Messages sent by the program.
    messages,
    /// Bytes of those.
    message_bytes,
}

pub(crate) fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

/// Adds the time that `work` takes to `counter`.
pub(crate) fn timed<T>(counter: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = work();
    add(counter, u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX));
    result
}
