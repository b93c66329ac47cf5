//! The clocks of the interface.

use std::ffi::{c_double, c_ulong};
use std::sync::OnceLock;
use std::time::Instant;

/// The time of the first call, from which clocks count: programs store seconds in a `float`, which is exact only for small
/// numbers.
pub(crate) fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Seconds.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_clock() -> c_double {
    let start = start();
    start.elapsed().as_secs_f64()
}

/// Nanoseconds of the monotonic clock.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn jia_current_time() -> c_ulong {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills a structure of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as c_ulong * 1_000_000_000 + time.tv_nsec as c_ulong
}
