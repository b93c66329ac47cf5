//! A file descriptor of the library that the program does not know about.

use super::address_space::{Errno, last_errno};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// An open file that the program may close: daemons close descriptors that they did not open. The number may then belong to another file.
#[derive(Debug)]
pub(crate) struct HeldFd {
    fd: ManuallyDrop<OwnedFd>,
    pub(crate) inode: u64,
    /// The file's device, as `stat` writes it.
    pub(crate) device: u64,
}

impl HeldFd {
    pub(crate) fn new(fd: OwnedFd) -> Result<HeldFd, Errno> {
        let (inode, device) = identity(fd.as_raw_fd())?;
        Ok(HeldFd { fd: ManuallyDrop::new(fd), inode, device })
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Whether the descriptor still refers to the file.
    pub(crate) fn is_open(&self) -> bool {
        identity(self.raw()) == Ok((self.inode, self.device))
    }
}

impl Drop for HeldFd {
    fn drop(&mut self) {
        if self.is_open() {
            // SAFETY: dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

/// Refuses a descriptor in the upper half of the process's limit, because the program needs some too. Also refuses a length above
/// `RLIMIT_FSIZE`, for which the kernel would send a signal.
pub(crate) fn leave_rest_to_program(fd: &OwnedFd, len: usize) -> Result<(), Errno> {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let (mut descriptors, mut length) = (unlimited, unlimited);
    // SAFETY: fills both.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut descriptors);
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut length);
    }
    if fd.as_raw_fd() as libc::rlim_t >= descriptors.rlim_cur / 2 {
        return Err(libc::EMFILE);
    }
    if len as libc::rlim_t > length.rlim_cur { Err(libc::EFBIG) } else { Ok(()) }
}

/// Inode and device of an open file.
pub(crate) fn identity(fd: RawFd) -> Result<(u64, u64), Errno> {
    stat(fd).map(|stat| (stat.st_ino, stat.st_dev))
}

pub(crate) fn stat(fd: RawFd) -> Result<libc::stat, Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` fills it if it returns 0, and it is used only then.
    unsafe {
        check(libc::fstat(fd, stat.as_mut_ptr()))?;
        Ok(stat.assume_init())
    }
}

pub(crate) fn check(answer: libc::c_int) -> Result<(), Errno> {
    if answer < 0 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_number_that_is_another_files_by_now_is_left_alone() {
        let ours = HeldFd::new(File::open("/proc/self/maps").unwrap().into()).unwrap();
        let (number, other) = (ours.raw(), File::open("/dev/null").unwrap());
        assert!(ours.is_open());
        // SAFETY: the program reuses the number for another file, as it may.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
        assert!(!ours.is_open());
        drop(ours);
        assert_eq!(identity(number), identity(other.as_raw_fd()), "still open");
        // SAFETY: nobody owns the number now.
        assert_eq!(unsafe { libc::close(number) }, 0);
    }
}
