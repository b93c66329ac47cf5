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
use linux_raw_sys::{general, ioctl};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Write protection; faults for holes in the file; SIGBUS; faults for pages of the file that are not mapped; write protection of files in
/// memory.
const FEATURES: u32 = general::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | general::UFFD_FEATURE_MISSING_SHMEM
    | general::UFFD_FEATURE_SIGBUS
    | general::UFFD_FEATURE_MINOR_SHMEM
    | general::UFFD_FEATURE_WP_HUGETLBFS_SHMEM;
const MODES: u32 = general::UFFDIO_REGISTER_MODE_MISSING
    | general::UFFDIO_REGISTER_MODE_WP
    | general::UFFDIO_REGISTER_MODE_MINOR;
/// Mode of UFFDIO_CONTINUE: opens pages without the right to write.
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
        // Faults inside system calls are not handled, so no privilege is needed.
        let user_mode_only = UserfaultfdFlags::from_bits_retain(general::UFFD_USER_MODE_ONLY);
        // SAFETY: creates a descriptor, which changes no memory until a range is registered.
        let fd =
            unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | user_mode_only)? };
        let this = Self { fd, start, len };
        this.ioctl(ioctl::UFFDIO_API, &mut [general::UFFD_API.into(), FEATURES.into(), 0])?;
        this.register(0, len)?;
        Ok(this)
    }

    /// Registers a part of the range that was mapped again.
    pub(super) fn register(&self, offset: usize, len: usize) -> io::Result<()> {
        self.ioctl(ioctl::UFFDIO_REGISTER, &mut [(self.start + offset) as u64, len as u64, MODES.into(), 0])
    }

    fn ioctl(&self, request: u32, words: &mut [u64]) -> io::Result<()> {
        // SAFETY: every structure of this interface consists of words; the caller passes as many as the request needs, and they live
        // during the call.
        let rc = unsafe { libc::ioctl(self.fd.as_raw_fd(), request as _, words.as_mut_ptr()) };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Creates page-table entries for pages that have none.
    pub(super) fn open(&self, offset: usize, len: usize, access: Access) -> Result<Opened, Error> {
        let mode = if access == Access::Write { 0 } else { CONTINUE_PROTECTED };
        let (mut done, mut most) = (0, len);
        while done < len {
            let piece = most.min(len - done);
            let mut words = [(self.start + offset + done) as u64, piece as u64, mode, 0];
            let Err(error) = self.ioctl(ioctl::UFFDIO_CONTINUE, &mut words) else {
                done += piece;
                continue;
            };
            // The kernel stores the number of opened bytes, or a negative error.
            done += usize::try_from(words[3] as i64).unwrap_or(0);
            match error.raw_os_error() {
                // Only part of the range was opened, or the mappings are changing.
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
            match self.ioctl(ioctl::UFFDIO_WRITEPROTECT, &mut words) {
                Ok(()) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
                Err(source) => return Err(Error::System { call: "UFFDIO_WRITEPROTECT", source }),
            }
        }
    }

    /// Unregisters the range. Pages are then opened on access, as in any mapping.
    pub(super) fn unregister(&self) -> Result<(), Error> {
        self.ioctl(ioctl::UFFDIO_UNREGISTER, &mut [self.start as u64, self.len as u64])
            .map_err(|source| Error::System { call: "UFFDIO_UNREGISTER", source })
    }
}
