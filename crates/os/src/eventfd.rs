//! A counting event descriptor: one unit per event, readable while there is one.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// An `eventfd` in semaphore mode.
pub struct EventFd(OwnedFd);

impl EventFd {
    /// A descriptor that is not readable yet.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the result is checked and owned from here on.
        let fd = unsafe { libc::eventfd(0, libc::EFD_SEMAPHORE | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a descriptor that nobody else owns.
        Ok(EventFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds one unit. The counter holds 2^64 of them, so this neither blocks nor fails.
    pub fn add(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of ours to our own descriptor.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    /// Takes one unit. Blocks if there is none, unless the descriptor was made non-blocking. A signal ends the wait:
    /// programs end their loops that way.
    pub fn take(&self) -> io::Result<()> {
        let mut unit = [0u8; 8];
        // SAFETY: reads at most eight bytes into a buffer of eight.
        let n = unsafe { libc::read(self.0.as_raw_fd(), unit.as_mut_ptr().cast(), 8) };
        if n == 8 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes one unit if there is one. Never blocks, although the descriptor itself does unless the program changed
    /// that: looking first and reading then would hang if another thread came between.
    pub fn try_take(&self) -> bool {
        let mut unit = [0u8; 8];
        let piece = libc::iovec { iov_base: unit.as_mut_ptr().cast(), iov_len: 8 };
        // SAFETY: one piece of eight writable bytes; offset -1 means the current position, as for `read`.
        let n = unsafe { libc::preadv2(self.0.as_raw_fd(), &piece, 1, -1, libc::RWF_NOWAIT) };
        let errno = if n < 0 { io::Error::last_os_error().raw_os_error() } else { None };
        match errno {
            // Kernels before 5.8 and some sandboxes: look first, then read, and take the small risk above.
            Some(libc::EOPNOTSUPP | libc::ENOSYS) => self.is_readable() && self.take().is_ok(),
            _ => n == 8,
        }
    }

    fn is_readable(&self) -> bool {
        self.sleep(Duration::ZERO)
    }

    /// Sleeps until there is a unit, for at most `most`. Returns whether there is one.
    pub fn sleep(&self, most: Duration) -> bool {
        let mut poll = libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let most = libc::timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos().into() };
        // SAFETY: one pollfd, and the count says one; the time is read only, and no signals are named.
        unsafe { libc::ppoll(&mut poll, 1, &most, std::ptr::null()) == 1 }
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
