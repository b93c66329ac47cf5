//! System calls that change this process's address space. They bypass libc.
//!
//! Communication libraries hook these functions of libc, to notice when memory is unmapped. Our calls must not reach the hooks: the contents
//! at an address stay the same, but a hook would drop registrations of it from its cache. A hook may also allocate, which is not allowed
//! during write protection. And UCX before 1.14 (its issue 8820) drops the last argument of `mremap`, so pages would move to an arbitrary
//! address.

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
/// `MAP_FIXED` replaces the pages that are mapped there. Nothing may still need them.
pub(crate) unsafe fn map(addr: usize, len: usize, what: &What) -> Result<usize, Errno> {
    let (rights, how) = (libc::c_long::from(what.rights), libc::c_long::from(what.how));
    let fd = libc::c_long::from(what.fd);
    // SAFETY: the caller vouches for what was there; the kernel checks the rest.
    answer(unsafe { libc::syscall(libc::SYS_mmap, addr, len, rights, how, fd, what.offset) })
}

/// Unmaps pages.
///
/// # Safety
/// Nothing may use them again.
pub(crate) unsafe fn unmap(pages: &Range<usize>) -> Result<(), Errno> {
    // SAFETY: the caller vouches for it.
    answer(unsafe { libc::syscall(libc::SYS_munmap, pages.start, pages.len()) }).map(drop)
}

/// Moves pages to `to`, where they replace those that are mapped. For other threads this is one atomic step.
///
/// # Safety
/// Nothing may use the pages at their old address again, or still need the pages that were at the new one.
pub(crate) unsafe fn move_over(pages: &Range<usize>, to: usize) -> Result<(), Errno> {
    let how = libc::c_long::from(libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
    // SAFETY: the caller vouches for it.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, pages.start, pages.len(), pages.len(), how, to) };
    answer(moved).map(drop)
}

/// Sets the access rights of pages.
///
/// # Safety
/// No access that the new rights forbid may follow.
pub(crate) unsafe fn protect(pages: &Range<usize>, rights: libc::c_int) -> Result<(), Errno> {
    let rights = libc::c_long::from(rights);
    // SAFETY: the caller vouches for it.
    answer(unsafe { libc::syscall(libc::SYS_mprotect, pages.start, pages.len(), rights) }).map(drop)
}

/// Populates pages for reading or for writing, depending on `advice`.
pub(crate) fn populate(pages: &Range<usize>, advice: libc::c_int) -> Result<(), Errno> {
    debug_assert!(matches!(advice, libc::MADV_POPULATE_READ | libc::MADV_POPULATE_WRITE));
    let advice = libc::c_long::from(advice);
    // SAFETY: populating changes nothing that the pages hold.
    answer(unsafe { libc::syscall(libc::SYS_madvise, pages.start, pages.len(), advice) }).map(drop)
}

fn answer(returned: libc::c_long) -> Result<usize, Errno> {
    if returned == -1 { Err(last_errno()) } else { Ok(returned as usize) }
}
