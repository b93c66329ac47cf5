//! Why a socket call failed: an error number of the socket manual pages.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::guard::set_errno;

/// A number of <errno.h>.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Errno(pub(crate) c_int);

/// The result of a call.
pub(crate) type Outcome<T> = Result<T, Errno>;

impl Errno {
    pub(crate) const WOULD_BLOCK: Errno = Errno(libc::EWOULDBLOCK);

    /// The error of the last C call, from `errno`.
    pub(crate) fn last() -> Errno {
        match std::io::Error::last_os_error().raw_os_error() {
            Some(number) if number != 0 => Errno(number),
            // The call failed without setting `errno`.
            _ => Errno(libc::EIO),
        }
    }

    /// The outcome of a call that returns 0, or -1 with a reason in `errno`.
    pub(crate) fn check(returned: c_int) -> Outcome<c_int> {
        if returned < 0 { Err(Errno::last()) } else { Ok(returned) }
    }

    /// The outcome of a verb that returns 0 or the reason itself.
    pub(crate) fn of_verb(returned: c_int) -> Outcome<()> {
        match returned {
            0 => Ok(()),
            number if number > 0 => Err(Errno(number)),
            _ => Err(Errno::last()),
        }
    }

    /// The outcome of a call that returns an object, or NULL with a reason in `errno`.
    pub(crate) fn not_null<T>(pointer: *mut T) -> Outcome<*mut T> {
        if pointer.is_null() { Err(Errno::last()) } else { Ok(pointer) }
    }
}

/// Runs a call of a program. Stops panics, and turns a failure into -1 with `errno`.
pub(crate) fn answer<T: From<i8>>(call: impl FnOnce() -> Outcome<T>) -> T {
    // A panic may leave this socket inconsistent. Other sockets are not affected.
    let refused = match catch_unwind(AssertUnwindSafe(call)) {
        Ok(Ok(value)) => return value,
        Ok(Err(errno)) => errno,
        Err(_) => Errno(libc::EIO),
    };
    set_errno(refused.0);
    T::from(-1)
}
