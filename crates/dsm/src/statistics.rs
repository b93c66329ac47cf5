//! What a process counted.

use crate::heat::Heat;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

macro_rules! counted {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one process did since it joined.
        #[derive(Debug, Clone, Default, serde::Serialize)]
        pub struct Statistics { $($(#[$doc])* pub $name: u64,)* }

        /// The same while it grows.
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
    /// Reads of a page that was not here.
    read_faults,
    /// First writes of a page in an interval.
    write_faults,
    /// Pages fetched from their homes because somebody waited for them.
    fetches,
    /// Pages prefetched with an adjacent page.
    prefetches,
    /// Pages whose changes went home.
    diffs,
    /// Those of them that went in a parcel, because many single words changed.
    packed_diffs,
    /// Bytes of all those changes.
    diff_bytes,
    /// Bytes of pages that came from their homes.
    fetched_bytes,
    /// Pages that were dropped because somebody else wrote them.
    invalidations,
    /// Pages that had to leave the cache for others.
    evictions,
    /// Pages at home at another process of this host that are used right there.
    shared_pages,
    /// Pages whose home moved to this process.
    migrations,
    /// Locks taken.
    locks,
    /// Time from asking for a lock to having it.
    lock_wait_ns,
    /// Barriers passed, with coherence and without.
    barriers,
    /// Time in them. Two processes on one host look at no clock where both come within a moment.
    barrier_wait_ns,
    /// Time until a faulting thread could go on.
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
