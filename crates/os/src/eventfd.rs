//! A counting event descriptor: one unit per event, readable while there is one.

use crate::descriptors::open_within_hard_limit;
use crate::wait_set::WaitSet;
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

    /// Adds one unit. The counter holds almost 2^64 units, so this call never blocks in practice.
    pub fn add(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: writes eight bytes of ours to our own descriptor.
        let _ = unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), 8) };
    }

    /// Takes one unit. Blocks while there is none, unless the descriptor was made non-blocking. A signal ends the wait,
    /// because programs end their loops that way.
    pub fn take(&self) -> io::Result<()> {
        let mut unit = [0u8; 8];
        // SAFETY: reads at most eight bytes into a buffer of eight.
        let n = unsafe { libc::read(self.0.as_raw_fd(), unit.as_mut_ptr().cast(), 8) };
        if n == 8 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes one unit if there is one. Never blocks, even if the descriptor is a blocking one. A `poll` followed by a `read`
    /// would block if another thread took the unit in between.
    pub fn try_take(&self) -> bool {
        let mut unit = [0u8; 8];
        let piece = libc::iovec { iov_base: unit.as_mut_ptr().cast(), iov_len: 8 };
        // SAFETY: one piece of eight writable bytes; offset -1 means the current position, as for `read`.
        let n = unsafe { libc::preadv2(self.0.as_raw_fd(), &piece, 1, -1, libc::RWF_NOWAIT) };
        let errno = if n < 0 { io::Error::last_os_error().raw_os_error() } else { None };
        match errno {
            // Kernels before 5.8 and some sandboxes: `poll`, then `read`, with the risk above.
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
        // SAFETY: one pollfd and a count of one; the call only reads the time, and the signal mask is null.
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

/// An [`EventFd`] for programs: readable while there is a unit, and never writable, like the kernel's event files of RDMA devices.
///
/// An `eventfd` is always writable. A program that polls for both events, as InfiniStore does, would never sleep. So programs get an
/// epoll set that has the `eventfd` as its only entry.
pub struct EventFile {
    units: EventFd,
    set: WaitSet,
}

impl EventFile {
    /// A descriptor that is not readable yet.
    pub fn new() -> io::Result<Self> {
        let units = open_within_hard_limit(EventFd::new)?;
        let set = open_within_hard_limit(WaitSet::new)?;
        set.enter_other(units.as_raw_fd())?;
        Ok(EventFile { units, set })
    }

    /// Adds one unit.
    pub fn add(&self) {
        self.units.add();
    }

    /// Takes one unit. Blocks if there is none, unless the program made the descriptor non-blocking. A signal ends the wait.
    pub fn take(&self) -> io::Result<()> {
        match self.try_take() {
            true => Ok(()),
            false if self.is_nonblocking() => Err(io::Error::from_raw_os_error(libc::EAGAIN)),
            false => self.units.take(),
        }
    }

    /// Takes one unit if there is one.
    pub fn try_take(&self) -> bool {
        self.units.try_take()
    }

    /// Sleeps until there is a unit, for at most `most`. Returns whether there is one.
    pub fn sleep(&self, most: Duration) -> bool {
        self.units.sleep(most)
    }

    fn is_nonblocking(&self) -> bool {
        // SAFETY: reads the flags of our own descriptor.
        let flags = unsafe { libc::fcntl(self.set.as_raw_fd(), libc::F_GETFL) };
        flags & libc::O_NONBLOCK != 0
    }
}

impl AsFd for EventFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(fd: BorrowedFd<'_>) -> i16 {
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        // SAFETY: one pollfd and a count of one.
        unsafe { libc::poll(&mut poll, 1, 0) };
        poll.revents
    }

    #[test]
    fn an_event_file_is_readable_per_unit_and_never_writable() {
        let file = EventFile::new().expect("descriptors");
        assert_eq!(ready(file.as_fd()), 0);
        file.add();
        file.add();
        for _ in 0..2 {
            assert_eq!(ready(file.as_fd()), libc::POLLIN);
            file.take().expect("a unit");
        }
        assert_eq!(ready(file.as_fd()), 0);
        // SAFETY: sets a flag of our own descriptor, as programs do.
        unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
        assert_eq!(file.take().expect_err("no unit").raw_os_error(), Some(libc::EAGAIN));
    }
}
