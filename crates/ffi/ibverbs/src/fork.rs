//! `fork()`: hardware needs its pages kept from the child. Software reads the parent's pages as the parent does, so a
//! child's copy-on-write never comes between, and there is nothing to set up.

use std::ffi::{c_int, c_void};

/// What `ibv_is_fork_initialized` answers when no preparation is needed.
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
