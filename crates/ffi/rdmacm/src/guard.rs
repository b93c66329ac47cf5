//! The wrapper of every call: it stops panics, and turns a refusal into what C expects.

use crate::device;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Why a call is refused: the error number of its manual page, and a sentence unless libibverbs has logged one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) errno: c_int,
    why: &'static str,
}

/// A refusal with its reason.
pub(crate) const fn refused(errno: c_int, why: &'static str) -> Refused {
    Refused { errno, why }
}

/// An invalid argument.
pub(crate) const fn invalid(why: &'static str) -> Refused {
    refused(libc::EINVAL, why)
}

/// A refusal of libibverbs, which has logged the reason.
pub(crate) const fn reported(errno: c_int) -> Refused {
    refused(errno, "")
}

/// The result of a function of libibverbs: 0, or a number.
pub(crate) fn check(errno: c_int) -> Result<(), Refused> {
    if errno == 0 { Ok(()) } else { Err(reported(errno)) }
}

/// An object of libibverbs, or the number in `errno`.
pub(crate) fn made<T>(object: *mut T) -> Result<*mut T, Refused> {
    if object.is_null() { Err(reported(errno())) } else { Ok(object) }
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: the C library has an `errno` for every thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Runs a call.
pub(crate) fn run<T>(name: &'static str, call: impl FnOnce() -> Result<T, Refused>) -> Result<T, c_int> {
    // A panic may leave an id inconsistent. The state of the NIC is unknown, so the device becomes fatal.
    let refused = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(refused)) => refused,
        Err(_) => {
            let _ = catch_unwind(device::fail);
            refused(libc::EIO, "an error inside ferroce; please report it")
        }
    };
    if !refused.why.is_empty() {
        device::say(name, refused.why);
    }
    set_errno(refused.errno);
    Err(refused.errno)
}

/// Refuses calls that need the kernel's connection manager: asynchronous name resolution, events that the program writes.
pub(crate) extern "C" fn unsupported() -> c_int {
    set_errno(libc::EOPNOTSUPP);
    -1
}

/// For calls that return 0, or -1 with the number in `errno`.
pub(crate) fn minus_one(name: &'static str, call: impl FnOnce() -> Result<(), Refused>) -> c_int {
    if run(name, call).is_ok() { 0 } else { -1 }
}

/// For calls that return an object, or NULL with the number in `errno`.
pub(crate) fn pointer<T>(name: &'static str, call: impl FnOnce() -> Result<*mut T, Refused>) -> *mut T {
    run(name, call).unwrap_or(ptr::null_mut())
}

/// For calls without a result.
pub(crate) fn quiet(name: &'static str, call: impl FnOnce() -> Result<(), Refused>) {
    let _ = run(name, call);
}
