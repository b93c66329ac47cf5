//! On-demand paging: copies that return an error where a plain copy would raise SIGSEGV.
//!
//! The kernel copies within this process (`process_vm_readv` and `process_vm_writev`, which a process may always use on itself). It faults
//! pages in as any access does, and returns an error for unmapped pages. This costs a system call per packet, so only regions registered
//! for on-demand paging use it.

use super::in_flight;
use super::region::{Backing, Span};
use ferroce_os::memory::page_len;
use ferroce_proto::verbs::{Access, MemoryFault};
use std::io::{Error, ErrorKind};

/// The pages that a prefetch requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Prefetch {
    /// Pages that can be read.
    Read,
    /// Pages that can be written.
    Write,
    /// Only pages that are present already. This NIC has no page tables of its own, so nothing is to be done.
    NoFault,
}

fn fault(span: Span) -> MemoryFault {
    MemoryFault::NotPresent { addr: span.start as u64, len: span.len as u64 }
}

fn iovec(start: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start as *mut libc::c_void, iov_len: len }
}

/// Whether the kernel lacks the two calls, or a sandbox forbids them. The fallback prefetches the pages and copies them. It cannot handle a
/// page that is unmapped between these two steps.
fn is_missing(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Unsupported | ErrorKind::PermissionDenied)
        || error.raw_os_error() == Some(libc::ENOSYS)
}

pub(super) fn read(span: Span, out: &mut [u8]) -> Result<(), MemoryFault> {
    let (ours, theirs) = (iovec(out.as_mut_ptr() as usize, span.len), iovec(span.start, span.len));
    // SAFETY: `ours` is `out`; `theirs` is checked by the kernel.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &ours, 1, &theirs, 1, 0) };
    if copied >= 0 {
        return if copied as usize == span.len { Ok(()) } else { Err(fault(span)) };
    }
    if !is_missing(&Error::last_os_error()) {
        return Err(fault(span));
    }
    prefetch(span, Prefetch::Read)?;
    // SAFETY: the pages were present just before. This fallback cannot exclude that the program unmaps them in between.
    unsafe { std::ptr::copy_nonoverlapping(span.start as *const u8, out.as_mut_ptr(), span.len) };
    Ok(())
}

pub(super) fn write(span: Span, data: &[u8]) -> Result<(), MemoryFault> {
    in_flight::before_nic_write(span);
    let (ours, theirs) = (iovec(data.as_ptr() as usize, span.len), iovec(span.start, span.len));
    // SAFETY: `ours` is `data`, which is only read; `theirs` is checked by the kernel.
    let copied = unsafe { libc::process_vm_writev(libc::getpid(), &ours, 1, &theirs, 1, 0) };
    if copied >= 0 {
        return if copied as usize == span.len { Ok(()) } else { Err(fault(span)) };
    }
    if !is_missing(&Error::last_os_error()) {
        return Err(fault(span));
    }
    prefetch(span, Prefetch::Write)?;
    // SAFETY: the pages were present and writable just before. This fallback cannot exclude that the program unmaps them in between.
    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), span.start as *mut u8, span.len) };
    Ok(())
}

/// Faults pages in. An error if some are not mapped, or do not allow the access.
pub(super) fn prefetch(span: Span, how: Prefetch) -> Result<(), MemoryFault> {
    let advice = match how {
        _ if span.len == 0 => return Ok(()),
        // No mapping is that long. The kernel rounds such a length up to the next page, which may be zero.
        _ if span.len > isize::MAX as usize => return Err(fault(span)),
        Prefetch::NoFault => return Ok(()),
        Prefetch::Read => libc::MADV_POPULATE_READ,
        Prefetch::Write => {
            in_flight::before_nic_write(span);
            libc::MADV_POPULATE_WRITE
        }
    };
    let populate = |advice| {
        let (start, len) = pages(span.start, span.len);
        // SAFETY: populating pages changes nothing that they hold; the kernel checks the range.
        match unsafe { libc::madvise(start as *mut libc::c_void, len, advice) } {
            0 => None,
            _ => Error::last_os_error().raw_os_error(),
        }
    };
    let is_there = match populate(advice) {
        None => true,
        // The pages are readable but not writable; or they map a device; or the kernel is older than Linux 5.14, which knows neither
        // advice. In the last two cases, check only whether the range is mapped.
        Some(libc::EINVAL) => {
            let only_readable = how == Prefetch::Write && populate(libc::MADV_POPULATE_READ).is_none();
            !only_readable && is_mapped(span.start, span.len)
        }
        Some(_) => false,
    };
    if is_there { Ok(()) } else { Err(fault(span)) }
}

/// The check at registration that all pages are mapped, and writable if the access requires it. Hardware pins the pages at this point.
/// Faulting them in costs about the same, and avoids page faults on the data path.
pub(crate) fn check_mapped(
    addr: usize,
    len: usize,
    access: Access,
    backing: Backing,
) -> Result<(), MemoryFault> {
    if backing != Backing::Mapped {
        return Ok(());
    }
    let how = if access.contains(Access::LOCAL_WRITE) { Prefetch::Write } else { Prefetch::Read };
    prefetch(Span { start: addr, len, backing }, how)
}

/// Whether every page of the range belongs to a mapping. Checks mappings instead of pages, so it is cheap.
fn is_mapped(start: usize, len: usize) -> bool {
    let (start, len) = pages(start, len);
    // SAFETY: an asynchronous `msync` only checks the range for unmapped pages.
    unsafe { libc::msync(start as *mut libc::c_void, len, libc::MS_ASYNC) == 0 }
}

/// The range extended to the beginning of its first page, as the kernel requires.
fn pages(start: usize, len: usize) -> (usize, usize) {
    let first = start & !(page_len() - 1);
    (first, len + (start - first))
}
