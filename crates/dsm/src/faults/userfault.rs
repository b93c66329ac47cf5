//! userfaultfd opens and closes single pages of the heap in the page table, without changing the rights of the
//! mapping.
//!
//! A mapping with many pieces of different rights is slow to change, and the system limits the number of pieces. Here
//! the mapping stays one piece. A closed page has no entry in the page table. Opening it makes one, writable or
//! read-only. An access to a closed page raises SIGBUS in its own thread (UFFD_FEATURE_SIGBUS), so no other thread
//! wakes up for a fault.

#![expect(unsafe_code, reason = "system calls that libc has no wrapper for")]

use crate::PAGE;
use crate::coherence::Access;
use crate::error::Error;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Faults inside system calls are not handled, so no privilege is needed.
const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;
/// Write protection; no page in the file; SIGBUS; a page in the file that is not mapped; protection of files in memory.
const FEATURES: u64 = 1 | 1 << 5 | 1 << 7 | 1 << 10 | 1 << 12;
const MODE_MISSING: u64 = 1;
const MODE_PROTECT: u64 = 2;
const MODE_MINOR: u64 = 4;

/// The numbers of `ioctl`: direction, size of the structure, letter, number.
const fn request(direction: u64, words: u64, number: u64) -> u64 {
    direction << 30 | (words * 8) << 16 | API << 8 | number
}
const UFFDIO_API: u64 = request(3, 3, 0x3f);
const UFFDIO_REGISTER: u64 = request(3, 4, 0);
const UFFDIO_UNREGISTER: u64 = request(2, 2, 1);
const UFFDIO_WRITEPROTECT: u64 = request(3, 3, 6);
const UFFDIO_CONTINUE: u64 = request(3, 4, 7);
/// Of UFFDIO_CONTINUE: without the right to write.
const CONTINUE_PROTECTED: u64 = 2;

/// A registered range of a shared mapping.
#[derive(Debug)]
pub(super) struct Userfault {
    fd: OwnedFd,
    start: usize,
    len: usize,
}

/// Result of opening pages.
pub(super) enum Opened {
    All,
    /// The page at this offset is open already.
    Before(usize),
    /// All pages before a hole in the file.
    UpToHole,
}

impl Userfault {
    /// Registers `len` bytes at `start`, where nothing is mapped into the page table yet.
    pub(super) fn new(start: usize, len: usize) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        // SAFETY: a system call without pointers; the descriptor is checked below.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor without another owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let this = Self { fd, start, len };
        this.ask(UFFDIO_API, &mut [API, FEATURES, 0])?;
        this.register(0, len)?;
        Ok(this)
    }

    /// Registers a part of it that was mapped anew.
    pub(super) fn register(&self, offset: usize, len: usize) -> io::Result<()> {
        let mode = MODE_MISSING | MODE_PROTECT | MODE_MINOR;
        self.ask(UFFDIO_REGISTER, &mut [(self.start + offset) as u64, len as u64, mode, 0])
    }

    fn ask(&self, request: u64, words: &mut [u64]) -> io::Result<()> {
        // SAFETY: every structure of this interface is so many words, which live during the call.
        let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, words.as_mut_ptr()) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Makes entries for pages that have none.
    pub(super) fn open(&self, offset: usize, len: usize, access: Access) -> Result<Opened, Error> {
        let mode = if access == Access::Write { 0 } else { CONTINUE_PROTECTED };
        let (mut done, mut most) = (0, len);
        while done < len {
            let piece = most.min(len - done);
            let mut words = [(self.start + offset + done) as u64, piece as u64, mode, 0];
            let Err(error) = self.ask(UFFDIO_CONTINUE, &mut words) else {
                done += piece;
                continue;
            };
            // The number of bytes opened before it stopped, or a negative error.
            done += usize::try_from(words[3] as i64).unwrap_or(0);
            match error.raw_os_error() {
                // It stopped on the way, or the mappings are changing.
                Some(libc::EAGAIN) if done < len => {}
                // More than one mapping, although they show the same file.
                Some(libc::ENOENT) if piece > PAGE => most = PAGE,
                Some(libc::EEXIST) => return Ok(Opened::Before(offset + done)),
                Some(libc::EFAULT) => return Ok(Opened::UpToHole),
                _ => return Err(Error::System { call: "UFFDIO_CONTINUE", source: error }),
            }
        }
        Ok(Opened::All)
    }

    /// Revokes or grants write access to open pages.
    pub(super) fn protect(&self, offset: usize, len: usize, protect: bool) -> Result<(), Error> {
        let mut words = [(self.start + offset) as u64, len as u64, u64::from(protect)];
        loop {
            match self.ask(UFFDIO_WRITEPROTECT, &mut words) {
                Ok(()) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(source) => return Err(Error::System { call: "UFFDIO_WRITEPROTECT", source }),
            }
        }
    }

    /// Unregisters the range. Pages are then opened on access, as in any mapping.
    pub(super) fn unregister(&self) -> Result<(), Error> {
        self.ask(UFFDIO_UNREGISTER, &mut [self.start as u64, self.len as u64])
            .map_err(|source| Error::System { call: "UFFDIO_UNREGISTER", source })
    }
}
