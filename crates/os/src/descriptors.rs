//! The number of descriptors that the process may have (`RLIMIT_NOFILE`).

use std::io;

/// The soft limit grows by this factor. The hard limit can be a billion, and some programs close every possible descriptor one by one.
const GROWTH: libc::rlim_t = 4;

/// Opens a descriptor. If the soft limit does not allow another one, raises it within the hard limit and tries again.
pub fn open_within_hard_limit<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match open() {
            Err(error) if is_limit(&error) && raise_soft_limit() => {}
            result => return result,
        }
    }
}

/// Whether the process has as many descriptors as it may have.
pub fn is_limit(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EMFILE)
}

/// Returns whether the soft limit grew.
fn raise_soft_limit() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: fills it.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0
        || limit.rlim_cur >= limit.rlim_max
    {
        return false;
    }
    limit.rlim_cur = limit.rlim_cur.saturating_mul(GROWTH).clamp(1, limit.rlim_max);
    // SAFETY: reads it.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) == 0 }
}
