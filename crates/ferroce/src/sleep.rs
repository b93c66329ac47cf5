//! Threads that sleep on file descriptors.

use crate::error::Error;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

/// Sleeps until `poll` returns a value. `fd` must be readable whenever `poll` can return one.
pub(crate) fn next<T>(
    fd: BorrowedFd<'_>,
    deadline: Option<Instant>,
    poll: impl Fn() -> Result<Option<T>, Error>,
) -> Result<T, Error> {
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        until_readable(&[fd], deadline)?;
    }
}

/// Sleeps until one of the descriptors is readable, or fails with [`Error::TimedOut`].
pub(crate) fn until_readable(fds: &[BorrowedFd<'_>], deadline: Option<Instant>) -> Result<(), Error> {
    let mut fds: Vec<PollFd<'_>> =
        fds.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
    loop {
        let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
        let timeout =
            left.map(|d| Timespec::try_from(d).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 }));
        match poll(&mut fds, timeout.as_ref()) {
            Ok(0) => return Err(Error::TimedOut),
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Error::system("waiting for a descriptor")(errno)),
        }
    }
}

/// An eventfd as a [`Waker`], so that waiting threads and tasks of a completion queue share one list of wakers.
pub(crate) struct WakeFd(OwnedFd);

impl WakeFd {
    pub(crate) fn new() -> Result<(Arc<WakeFd>, Waker), Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("creating an event descriptor"))?;
        let wake_fd = Arc::new(WakeFd(fd));
        Ok((wake_fd.clone(), wake_fd.into()))
    }

    /// Resets the eventfd.
    pub(crate) fn clear(&self) {
        // An error means that it is not readable, which is the desired state.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl Wake for WakeFd {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Fails only at the counter's maximum. Then the eventfd is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for WakeFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
