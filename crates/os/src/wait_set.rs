//! An epoll set of descriptors to sleep on. It also decides who is woken for packets: a thread of the application that sleeps for them comes
//! before the background thread.
//!
//! Both sleep on the descriptors of the link, each through an epoll set of its own. The entries are exclusive: the kernel wakes a
//! sleeper of one set only, the first in the order of registration that has a sleeper. So the background thread registers its descriptors
//! again, behind all others, whenever another set is added.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// The kind of an entry: whether it delivers packets.
const PACKETS: u64 = 1;
const OTHER: u64 = 0;

/// A set of descriptors to sleep on. It is itself a descriptor, readable while one of its entries is.
#[derive(Debug)]
pub struct WaitSet(OwnedFd);

impl WaitSet {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the result is checked and owned from here on.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a descriptor that nobody else owns.
        Ok(WaitSet(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Adds a descriptor that delivers no packets.
    pub fn enter_other(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, OTHER)
    }

    /// Adds a descriptor that delivers packets, until it is closed.
    pub fn enter(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN, PACKETS)
    }

    /// Adds a descriptor that delivers packets. Its sleepers are woken only if no earlier set has one. The kernel refuses descriptors that
    /// are epoll sets.
    pub fn enter_exclusive(&self, fd: RawFd) -> io::Result<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN | libc::EPOLLEXCLUSIVE, PACKETS)
    }

    /// Adds all of these, behind all other sets that have them.
    pub fn enter_last(&self, fds: &[RawFd]) -> io::Result<()> {
        for &fd in fds {
            // Fails if the set does not have it yet.
            let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, PACKETS);
            match self.enter_exclusive(fd).or_else(|_| self.enter(fd)) {
                // Another thread added it just now.
                Err(error) if error.raw_os_error() != Some(libc::EEXIST) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn control(&self, what: i32, fd: RawFd, events: i32, kind: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: kind };
        // SAFETY: one structure of ours, which the kernel only reads.
        let rc = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, &raw mut event) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sleeps until an entry is readable, for at most `most`. Returns whether there are packets. Signals end the sleep, too.
    pub fn sleep(&self, most: Duration) -> bool {
        let most_ns = libc::timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos().into() };
        // At most one entry is of the other kind, so two events always show whether there are packets.
        let mut ready = [libc::epoll_event { events: 0, u64: OTHER }; 2];
        let (fd, none) = (self.0.as_raw_fd(), std::ptr::null::<libc::sigset_t>());
        // SAFETY: `ready` holds two events, the count that is passed; the call only reads the time, and the signal mask is null.
        let rc = unsafe {
            libc::syscall(libc::SYS_epoll_pwait2, fd, ready.as_mut_ptr(), 2, &raw const most_ns, none, 0)
        };
        if rc < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS) {
            // Linux before 5.11 supports only milliseconds.
            let ms = most.as_micros().div_ceil(1000).min(1000) as i32;
            // SAFETY: as above.
            unsafe { libc::epoll_wait(fd, ready.as_mut_ptr(), 2, ms) };
        }
        ready.iter().any(|event| event.u64 == PACKETS)
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for WaitSet {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventfd::EventFd;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Instant;

    const LONG: Duration = Duration::from_secs(20);

    /// Sleeps in `set` until there is a unit, takes it, and counts.
    fn take_one(set: &WaitSet, bell: &EventFd, taken: &AtomicU32) {
        while !bell.try_take() {
            set.sleep(LONG);
        }
        taken.fetch_add(1, Ordering::SeqCst);
    }

    #[test]
    fn a_set_without_sleepers_leaves_the_waking_to_the_next() {
        let bell = EventFd::new().expect("an event descriptor");
        let (front, back) = (WaitSet::new().expect("a set"), WaitSet::new().expect("a set"));
        // Entered before the front: must go behind it.
        back.enter_last(&[bell.as_raw_fd()]).expect("entered");
        front.enter_exclusive(bell.as_raw_fd()).expect("entered");
        back.enter_last(&[bell.as_raw_fd()]).expect("entered anew");
        let taken = AtomicU32::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| take_one(&back, &bell, &taken));
            bell.add();
            sleeper.join().expect("no panic");
            let sleeper = scope.spawn(|| take_one(&front, &bell, &taken));
            bell.add();
            sleeper.join().expect("no panic");
        });
        assert_eq!(taken.load(Ordering::SeqCst), 2);
        assert!(start.elapsed() < LONG, "somebody slept through the bell");
    }

    #[test]
    fn a_set_may_be_slept_on_by_another() {
        let (bell, inner) = (EventFd::new().expect("an event descriptor"), WaitSet::new().expect("a set"));
        inner.enter(bell.as_raw_fd()).expect("entered");
        let outer = WaitSet::new().expect("a set");
        assert!(outer.enter_exclusive(inner.as_raw_fd()).is_err(), "the kernel refuses that");
        outer.enter_last(&[inner.as_raw_fd()]).expect("entered as any other");
        bell.add();
        assert!(outer.sleep(LONG), "what it has counts as packets");
        assert!(bell.try_take());
        outer.enter_other(bell.as_raw_fd()).expect("entered");
        bell.add();
        assert!(!WaitSet::new().expect("a set").sleep(Duration::ZERO));
    }
}
