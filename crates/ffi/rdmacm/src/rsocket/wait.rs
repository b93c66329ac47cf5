//! Sleeping on descriptors, and waking sleepers.
//!
//! Several threads may wait for the same socket. A thread that reads an event from a shared descriptor takes it from all of them.
//! So each sleeping thread has a *bell*: an eventfd of its own, to which other threads write when the socket changes.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::pollfd;
use rustix::event::{EventfdFlags, eventfd};

use super::errno::{Errno, Outcome};

/// Makes a descriptor non-blocking.
pub(crate) fn set_nonblocking(fd: RawFd) -> Outcome<()> {
    // SAFETY: flags of a descriptor; no memory is involved.
    unsafe {
        let flags = Errno::check(libc::fcntl(fd, libc::F_GETFL))?;
        Errno::check(libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK))?;
    }
    Ok(())
}

/// The entry of `poll` for a descriptor.
pub(crate) fn watch(fd: RawFd, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

/// `poll` until a deadline. EINTR is an error, as for any socket call.
pub(crate) fn sleep_on(fds: &mut [pollfd], until: Option<Instant>) -> Outcome<usize> {
    let timeout_ms = match until {
        None => -1,
        Some(until) => {
            // Rounded up: otherwise the last millisecond would be a busy loop.
            let left = until.saturating_duration_since(Instant::now()) + Duration::from_micros(999);
            i32::try_from(left.as_millis()).unwrap_or(i32::MAX)
        }
    };
    // SAFETY: a slice of such structures and its length.
    let ready = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
    Ok(Errno::check(ready)? as usize)
}

/// The eventfd that wakes a thread.
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Outcome<Arc<Self>> {
        let fd = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        Ok(Arc::new(Self(fd.map_err(|errno| Errno(errno.raw_os_error()))?)))
    }

    /// The calling thread's bell.
    pub(crate) fn of_thread() -> Outcome<Arc<Self>> {
        thread_local! {
            static BELL: std::cell::RefCell<Option<Arc<Bell>>> = const { std::cell::RefCell::new(None) };
        }
        // A thread that is ending has no thread-local storage, so it makes a new bell.
        let kept = BELL.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            match &*kept {
                Some(bell) => Ok(bell.clone()),
                None => Bell::new().inspect(|bell| *kept = Some(bell.clone())),
            }
        });
        kept.unwrap_or_else(|_| Bell::new())
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn ring(&self) {
        // The write fails only if the counter is full: then the bell is readable already.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn hush(&self) {
        // The read fails only if the descriptor is unreadable already.
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }
}

/// The bells of the threads that sleep on a socket.
#[derive(Default)]
pub(crate) struct Sleepers(Vec<Arc<Bell>>);

impl Sleepers {
    pub(crate) fn add(&mut self, bell: &Arc<Bell>) {
        self.0.push(bell.clone());
    }

    pub(crate) fn remove(&mut self, bell: &Arc<Bell>) {
        if let Some(at) = self.0.iter().position(|other| Arc::ptr_eq(other, bell)) {
            self.0.swap_remove(at);
        }
    }

    /// Wakes all sleepers except `except`, the caller.
    pub(crate) fn wake(&self, except: Option<&Arc<Bell>>) {
        let others = self.0.iter().filter(|bell| !except.is_some_and(|own| Arc::ptr_eq(own, bell)));
        others.for_each(|bell| bell.ring());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bell_wakes_and_is_hushed() {
        let bell = Bell::of_thread().unwrap();
        let mut sleepers = Sleepers::default();
        sleepers.add(&bell);
        let now = Some(Instant::now());
        let mut fds = [watch(bell.fd(), libc::POLLIN)];
        assert_eq!(sleep_on(&mut fds, now), Ok(0));
        sleepers.wake(Some(&bell));
        assert_eq!(sleep_on(&mut fds, now), Ok(0));
        sleepers.wake(None);
        sleepers.wake(None);
        assert_eq!(sleep_on(&mut fds, None), Ok(1));
        bell.hush();
        assert_eq!(sleep_on(&mut fds, now), Ok(0));
        sleepers.remove(&bell);
        sleepers.wake(None);
        assert_eq!(sleep_on(&mut fds, now), Ok(0));
    }
}
