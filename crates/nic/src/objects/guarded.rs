//! What belongs to a queue pair and is only touched under its lock.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Something that the lock of a queue pair guards, although it does not lie inside: a second lock, always free, would cost a
/// request as much as its copy does.
#[derive(Default)]
pub(crate) struct Guarded<T>(UnsafeCell<T>);

// SAFETY: whoever gets at the inside holds the queue pair's lock, so it is one thread at a time.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) fn new(inside: T) -> Self {
        Guarded(UnsafeCell::new(inside))
    }

    /// The inside.
    ///
    /// # Safety
    /// The caller holds the queue pair's lock for as long as it uses the reference, and has no other one.
    #[expect(clippy::mut_from_ref, reason = "the lock makes it the only one")]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.get() }
    }
}

/// What a queue pair counted for its device. Written under its lock, read by anybody.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) completions: Count,
    pub(crate) failed_completions: Count,
    /// One-sided operations in the memory of a neighbour: mapped, and by the kernel.
    pub(crate) mapped: Count,
    pub(crate) copied: Count,
    /// Packets that went past the link, and their bytes.
    pub(crate) express: Count,
    pub(crate) express_bytes: Count,
    /// Messages among them that named memory.
    pub(crate) named: Count,
    /// Messages of the peer that were copied from its memory, mapped here.
    pub(crate) fetched: Count,
}

/// A number with one writer at a time.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    /// Only under the lock: a plain addition, for a locked one takes longer than some requests.
    #[inline]
    pub(crate) fn add(&self, count: u64) {
        self.0.store(self.0.load(Relaxed) + count, Relaxed);
    }

    pub(crate) fn value(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Tally {
    /// Takes over what another counted.
    pub(crate) fn add(&self, other: &Tally) {
        self.completions.add(other.completions.value());
        self.failed_completions.add(other.failed_completions.value());
        self.mapped.add(other.mapped.value());
        self.copied.add(other.copied.value());
        self.express.add(other.express.value());
        self.express_bytes.add(other.express_bytes.value());
        self.named.add(other.named.value());
        self.fetched.add(other.fetched.value());
    }
}
