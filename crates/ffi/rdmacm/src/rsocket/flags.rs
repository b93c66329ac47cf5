//! The flags of a socket's descriptor. The underlying descriptors never block, so the socket stores its own flags.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};

use super::errno::{Errno, Outcome};

/// The flags that `rfcntl` reads and sets.
pub(crate) struct Flags {
    status: AtomicI32,
    descriptor: AtomicI32,
}

impl Flags {
    pub(crate) fn new(status: c_int, descriptor: c_int) -> Self {
        Self { status: AtomicI32::new(status), descriptor: AtomicI32::new(descriptor) }
    }

    /// The same flags for an accepted socket.
    pub(crate) fn inherited(&self) -> Self {
        Self::new(self.status.load(Ordering::Relaxed), self.descriptor.load(Ordering::Relaxed))
    }

    /// Whether a call with these `MSG_` flags must not wait.
    pub(crate) fn forbid_waiting(&self, flags: c_int) -> bool {
        (self.status.load(Ordering::Relaxed) & libc::O_NONBLOCK) | (flags & libc::MSG_DONTWAIT) != 0
    }

    /// `rfcntl`.
    pub(crate) fn control(&self, command: c_int, argument: c_int) -> Outcome<c_int> {
        match command {
            libc::F_GETFL => return Ok(self.status.load(Ordering::Relaxed)),
            libc::F_SETFL => self.status.store(argument, Ordering::Relaxed),
            libc::F_GETFD => return Ok(self.descriptor.load(Ordering::Relaxed)),
            libc::F_SETFD => self.descriptor.store(argument, Ordering::Relaxed),
            _ => return Err(Errno(libc::ENOTSUP)),
        }
        Ok(0)
    }
}
