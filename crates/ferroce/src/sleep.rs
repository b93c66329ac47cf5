//! Sleeping on file descriptors.

use crate::error::Error;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::time::Instant;

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

/// Wakes a thread that sleeps on descriptors, as a waker wakes a task: so that both kinds of waiters can stand in one
/// list.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<(Arc<Bell>, Waker), Error> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(Error::system("creating an event descriptor"))?;
        let bell = Arc::new(Bell(fd));
        Ok((bell.clone(), bell.into()))
    }

    /// Forgets that it rang.
    pub(crate) fn silence(&self) {
        // Not readable is just as well.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Fails only when 2^64 rings wait, and then it rings already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
