//! An epoll set whose entries have tokens: one descriptor for any number of sockets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// What an entry waits for. Errors and the end of a stream are always reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes to read, or a connection to accept.
    Read,
    /// Space in the send buffer, or the end of a connection attempt.
    Write,
    /// Both.
    ReadWrite,
}

impl Interest {
    const fn bits(self) -> u32 {
        let bits = match self {
            Interest::Read => libc::EPOLLIN,
            Interest::Write => libc::EPOLLOUT,
            Interest::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
        };
        bits as u32
    }
}

/// A set of descriptors. Level-triggered: an entry is reported as long as it is ready.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

/// Most entries that one call reports.
const MAX_READY: usize = 64;

impl Epoll {
    /// An empty set.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a plain system call; the result is checked and owned from here on.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is a descriptor that nobody else owns.
        Ok(Epoll(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Watches a descriptor, or changes what it is watched for, and its token.
    pub fn watch(&self, fd: BorrowedFd<'_>, interest: Interest, token: u64) -> io::Result<()> {
        match self.control(libc::EPOLL_CTL_MOD, fd, interest.bits(), token) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                self.control(libc::EPOLL_CTL_ADD, fd, interest.bits(), token)
            }
            other => other,
        }
    }

    /// Removes a descriptor. Do so before it is closed: a forked child may keep what it refers to open.
    pub fn remove(&self, fd: BorrowedFd<'_>) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd, 0, 0);
    }

    fn control(&self, what: i32, fd: BorrowedFd<'_>, events: u32, token: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: one structure of ours, which the kernel only reads; both descriptors are open while they are borrowed.
        let rc = unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd.as_raw_fd(), &raw mut event) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Calls `each` for at most 64 ready entries, without waiting. The arguments are the token, and whether the entry is writable or has
    /// failed. Returns the number of ready entries.
    pub fn ready(&self, mut each: impl FnMut(u64, bool)) -> usize {
        const WRITABLE: u32 = (libc::EPOLLOUT | libc::EPOLLERR | libc::EPOLLHUP) as u32;
        let mut found = [libc::epoll_event { events: 0, u64: 0 }; MAX_READY];
        // SAFETY: `found` holds `MAX_READY` events, the count that is passed.
        let count =
            unsafe { libc::epoll_wait(self.0.as_raw_fd(), found.as_mut_ptr(), MAX_READY as libc::c_int, 0) };
        let count = usize::try_from(count).unwrap_or(0);
        found[..count].iter().for_each(|event| each(event.u64, event.events & WRITABLE != 0));
        count
    }
}

/// Readable while an entry is ready.
impl AsFd for Epoll {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Epoll {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    #[test]
    fn entries_are_reported_as_long_as_they_are_ready() {
        let set = Epoll::new().unwrap();
        let (mut near, far) = UnixStream::pair().unwrap();
        let tokens = || {
            let mut tokens = Vec::new();
            set.ready(|token, is_writable| tokens.push((token, is_writable)));
            tokens
        };
        set.watch(far.as_fd(), Interest::Read, 7).unwrap();
        assert_eq!(tokens(), []);
        near.write_all(b"x").unwrap();
        assert_eq!((tokens(), tokens()), (vec![(7, false)], vec![(7, false)]));
        set.watch(far.as_fd(), Interest::Write, 8).unwrap();
        assert_eq!(tokens(), [(8, true)]);
        set.remove(far.as_fd());
        assert_eq!(tokens(), []);
    }
}
