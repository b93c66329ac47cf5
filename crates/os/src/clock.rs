//! The kernel's clocks.

use ferroce_proto::Time;

/// Now, on `CLOCK_MONOTONIC`.
#[inline]
pub fn now() -> Time {
    Time(nanoseconds(libc::CLOCK_MONOTONIC))
}

/// Now, with a resolution of some milliseconds. Takes a quarter of the time of [`now`].
#[inline]
pub fn coarse_now() -> Time {
    Time(nanoseconds(libc::CLOCK_MONOTONIC_COARSE))
}

/// Nanoseconds since 1970, for time stamps that people read.
pub fn wall_clock_ns() -> u64 {
    nanoseconds(libc::CLOCK_REALTIME)
}

#[inline]
fn nanoseconds(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is a valid `timespec` to write to; all these clocks exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
}
