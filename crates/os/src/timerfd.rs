//! A descriptor that becomes readable periodically.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A `timerfd` with a period.
pub struct Interval(OwnedFd);

impl Interval {
    /// A descriptor that becomes readable once per period.
    pub fn new(period: Duration) -> io::Result<Interval> {
        // SAFETY: a plain system call; the result is checked and owned from here on.
        let fd =
            unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a descriptor that nobody else owns.
        let interval = Interval(unsafe { OwnedFd::from_raw_fd(fd) });
        let period = libc::timespec {
            tv_sec: period.as_secs() as libc::time_t,
            tv_nsec: period.subsec_nanos().into(),
        };
        let spec = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: our own descriptor, and a structure that lives during the call.
        let set = unsafe { libc::timerfd_settime(fd, 0, &raw const spec, std::ptr::null_mut()) };
        if set == 0 { Ok(interval) } else { Err(io::Error::last_os_error()) }
    }

    /// Clears the descriptor until the next period ends. Returns the number of periods that ended since the last call.
    pub fn take(&self) -> u64 {
        let mut count = [0u8; 8];
        // SAFETY: reads at most eight bytes into a buffer of eight.
        let n = unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), 8) };
        if n == 8 { u64::from_ne_bytes(count) } else { 0 }
    }
}

impl AsRawFd for Interval {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_readable_once_per_period() {
        let interval = Interval::new(Duration::from_millis(1)).expect("a descriptor");
        let mut passed = 0;
        while passed < 3 {
            passed += interval.take();
        }
        let never = Interval::new(Duration::from_secs(3600)).expect("a descriptor");
        assert_eq!(never.take(), 0);
    }
}
