//! State of a queue pair outside of its mutex that is only accessed with the mutex held.

use std::cell::UnsafeCell;

/// A value that the lock of a queue pair guards, although it is not inside the mutex. A second, uncontended lock would cost a
/// request as much as its copy does.
#[derive(Default)]
pub(crate) struct Guarded<T>(UnsafeCell<T>);

// SAFETY: a thread that accesses the value holds the queue pair's lock, so only one does at a time.
unsafe impl<T: Send> Sync for Guarded<T> {}

impl<T> Guarded<T> {
    pub(crate) fn new(inside: T) -> Self {
        Guarded(UnsafeCell::new(inside))
    }

    /// The value.
    ///
    /// # Safety
    /// The caller holds the queue pair's lock for as long as it uses the reference, and has no other one.
    #[expect(clippy::mut_from_ref, reason = "the lock excludes a second reference")]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0.get() }
    }
}
