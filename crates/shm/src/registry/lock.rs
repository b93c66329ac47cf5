//! Byte locks that the kernel releases when their owner dies.
//!
//! They are "open file description" locks. A classic POSIX lock is lost when the process closes any descriptor of the file, and
//! does not exclude two NICs of one process.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// A file whose bytes can be locked one by one.
#[derive(Debug)]
pub(crate) struct ByteLocks(File);

impl ByteLocks {
    /// Opens the file, creating it if needed. Two `ByteLocks` of one file exclude each other, in one process too.
    pub(crate) fn open(path: &Path) -> io::Result<ByteLocks> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        options.open(path).map(ByteLocks)
    }

    /// Opens the file if it exists.
    pub(crate) fn open_existing(path: &Path) -> io::Result<ByteLocks> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC);
        options.open(path).map(ByteLocks)
    }

    /// Whether this is still the file at `path`, which may have been removed or replaced.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let here = self.0.metadata().map(|meta| (meta.dev(), meta.ino()));
        let there = std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
        matches!((here, there), (Ok(here), Ok(there)) if here == there)
    }

    /// Locks a byte. Returns `false` if it is held elsewhere.
    pub(crate) fn try_lock(&self, byte: u8) -> io::Result<bool> {
        match self.fcntl(libc::F_OFD_SETLK, &mut range(byte, libc::F_WRLCK)) {
            Ok(()) => Ok(true),
            Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Releases a byte; nothing happens if it was not locked.
    pub(crate) fn unlock(&self, byte: u8) {
        // Unlocking fails only for an invalid descriptor.
        let _ = self.fcntl(libc::F_OFD_SETLK, &mut range(byte, libc::F_UNLCK));
    }

    /// Whether the byte is held elsewhere.
    pub(crate) fn is_held(&self, byte: u8) -> io::Result<bool> {
        self.is_any_held(byte..=byte)
    }

    /// Whether any of the bytes is held elsewhere. Makes one system call for all of them.
    pub(crate) fn is_any_held(&self, bytes: RangeInclusive<u8>) -> io::Result<bool> {
        let mut answer = range(*bytes.start(), libc::F_WRLCK);
        answer.l_len = bytes.count() as libc::off_t;
        self.fcntl(libc::F_OFD_GETLK, &mut answer)?;
        Ok(answer.l_type != libc::F_UNLCK as libc::c_short)
    }

    fn fcntl(&self, command: libc::c_int, range: &mut libc::flock) -> io::Result<()> {
        // SAFETY: the descriptor is open and `range` is a valid `flock` for the kernel to read and write.
        match unsafe { libc::fcntl(self.0.as_raw_fd(), command, range as *mut libc::flock) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The argument of `fcntl` for one byte.
fn range(byte: u8, kind: libc::c_int) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(byte),
        l_len: 1,
        // Must be zero for this kind of lock.
        l_pid: 0,
    }
}
