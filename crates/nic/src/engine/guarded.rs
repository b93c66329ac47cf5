//! What belongs to a queue pair and is only touched under its lock.

use std::cell::UnsafeCell;

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
