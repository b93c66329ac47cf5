//! The memory that out-of-order packets may occupy.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// The reorder memory that the queue pairs of a NIC share. Anyone with the addresses of two peers can forge
/// out-of-order packets to every queue pair, so the sum is bounded.
#[derive(Debug)]
pub struct ReorderBudget {
    left: AtomicUsize,
}

impl ReorderBudget {
    /// The budget of a NIC in bytes: 32 queue pairs with a full store.
    pub const DEFAULT: usize = 32 << 20;

    /// Creates a budget of `bytes`.
    pub fn new(bytes: usize) -> Arc<ReorderBudget> {
        Arc::new(ReorderBudget { left: AtomicUsize::new(bytes) })
    }

    /// Bytes that are not in use.
    pub fn left(&self) -> usize {
        self.left.load(Relaxed)
    }

    /// Takes `bytes`. Returns `false`, and takes none, if fewer are left.
    pub(super) fn take(&self, bytes: usize) -> bool {
        self.left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.left.fetch_add(bytes, Relaxed);
    }
}
