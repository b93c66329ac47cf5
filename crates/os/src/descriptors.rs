//! The number of descriptors that the process may have (`RLIMIT_NOFILE`).

use crate::lock::Mutex;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The soft limit grows by this factor. The hard limit can be a billion, and some programs close every possible descriptor one by one.
const GROWTH: libc::rlim_t = 4;

/// Held while the limit is read and changed.
static CHANGING: Mutex<()> = Mutex::new(());

/// Opens a descriptor. If the soft limit does not allow another one, raises it within the hard limit and tries again. Only for calls of the program: a
/// peer must not change a limit of the process.
pub fn open_within_hard_limit<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    match open() {
        Err(error) if is_limit(&error) => {}
        result => return result,
    }
    let _changing = CHANGING.lock();
    loop {
        // Another thread may have raised the limit since the first attempt.
        match open() {
            Err(error) if is_limit(&error) && raise_soft_limit(libc::rlim_t::MAX) => {}
            result => return result,
        }
    }
}

/// Raises the soft limit within the hard limit, so that `spare` descriptors with higher numbers than `fd` are possible.
pub fn reserve_above(fd: BorrowedFd<'_>, spare: usize) {
    let needed = fd.as_raw_fd() as libc::rlim_t + 1 + spare as libc::rlim_t;
    let _changing = CHANGING.lock();
    while raise_soft_limit(needed) {}
}

/// Whether the error means that the process has as many descriptors as its limit allows (`EMFILE`).
pub fn is_limit(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMFILE)
}

/// Raises the soft limit one step if it is below `needed`. Returns whether it grew.
fn raise_soft_limit(needed: libc::rlim_t) -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0
        || limit.rlim_cur >= limit.rlim_max.min(needed)
    {
        return false;
    }
    limit.rlim_cur = limit.rlim_cur.saturating_mul(GROWTH).clamp(1, limit.rlim_max);
    // SAFETY: reads it.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 }
}
