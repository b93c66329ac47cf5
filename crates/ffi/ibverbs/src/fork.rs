//! `fork()`. Hardware accesses physical pages, so the child must not share them. Software accesses memory through the parent's
//! page tables, so copy-on-write does no harm, and `ibv_fork_init` has nothing to do.

use std::ffi::{c_int, c_void};

/// The result of `ibv_is_fork_initialized` when no preparation is needed.
const IBV_FORK_UNNEEDED: c_int = 2;

pub(crate) extern "C" fn fork_init() -> c_int {
    0
}

pub(crate) extern "C" fn is_fork_initialized() -> c_int {
    IBV_FORK_UNNEEDED
}

pub(crate) extern "C" fn fork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}
