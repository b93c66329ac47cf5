//! The calls that change this process's address space, made to the kernel itself and not to libc.
//!
//! Libraries for communication put functions of their own in the place of libc's, to learn which memory goes. Ours is not
//! for them: what the program sees at an address stays, while hooks would drop registrations of it from their caches, and
//! allocate, which nobody may during write protection. And UCX before 1.14 (its issue 8820) forgets the last argument of
//! `mremap`: pages land wherever a register points.

use std::ops::Range;
use std::os::fd::RawFd;

/// An `errno`.
pub(crate) type Errno = i32;

pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// What is mapped, and how.
pub(crate) struct What {
    pub(crate) rights: libc::c_int,
    pub(crate) how: libc::c_int,
    pub(crate) fd: RawFd,
    pub(crate) offset: u64,
}

/// Maps `len` bytes, at `addr` if `how` requires that address.
///
/// # Safety
/// With `MAP_FIXED`: whatever was there is gone, and nobody may miss it.
pub(crate) unsafe fn map(addr: usize, len: usize, what: &What) -> Result<usize, Errno> {
    let (rights, how) = (libc::c_long::from(what.rights), libc::c_long::from(what.how));
    let fd = libc::c_long::from(what.fd);
    // SAFETY: the caller vouches for what was there; the kernel checks the rest.
    answer(unsafe { libc::syscall(libc::SYS_mmap, addr, len, rights, how, fd, what.offset) })
}

/// Unmaps pages.
///
/// # Safety
/// Nobody may use them again.
pub(crate) unsafe fn unmap(pages: &Range<usize>) -> Result<(), Errno> {
    // SAFETY: the caller vouches for it.
    answer(unsafe { libc::syscall(libc::SYS_munmap, pages.start, pages.len()) }).map(drop)
}

/// Moves pages to `to`, in the place of those that are there, in one step as far as other threads can see.
///
/// # Safety
/// Nobody may use the pages at their old address again, nor miss what was at the new one.
pub(crate) unsafe fn move_over(pages: &Range<usize>, to: usize) -> Result<(), Errno> {
    let how = libc::c_long::from(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
    // SAFETY: the caller vouches for it.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, pages.start, pages.len(), pages.len(), how, to) };
    answer(moved).map(drop)
}

/// Sets what may be done with pages.
///
/// # Safety
/// Nobody may be about to do what is no longer allowed.
pub(crate) unsafe fn protect(pages: &Range<usize>, rights: libc::c_int) -> Result<(), Errno> {
    let rights = libc::c_long::from(rights);
    // SAFETY: the caller vouches for it.
    answer(unsafe { libc::syscall(libc::SYS_mprotect, pages.start, pages.len(), rights) }).map(drop)
}

/// Brings pages in, for reading or for writing, as `advice` says.
pub(crate) fn populate(pages: &Range<usize>, advice: libc::c_int) -> Result<(), Errno> {
    debug_assert!(matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE));
    let advice = libc::c_long::from(advice);
    // SAFETY: populating changes nothing that the pages hold.
    answer(unsafe { libc::syscall(libc::SYS_madvise, pages.start, pages.len(), advice) }).map(drop)
}

fn answer(returned: libc::c_long) -> Result<usize, Errno> {
    if returned == -1 { Err(last_errno()) } else { Ok(returned as usize) }
}
