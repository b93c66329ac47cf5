//! The gate that every call goes through: a panic never reaches the program, and a refusal becomes what C expects.

use std::ffi::c_int;

/// A call that is not there yet.
pub(crate) extern "C" fn absent() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library gives every thread a place for it.
    unsafe { *libc::__errno_location() = errno };
}
