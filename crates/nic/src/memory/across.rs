//! Copies between this process and another of the same user, by the kernel.

use super::region::Span;
use smallvec::SmallVec;

/// Copies between spans of this process, one behind the other, and as many bytes at `at` of another process: towards that one,
/// or from it. False if the kernel could not, or not everything.
pub(super) fn copy_across(process: libc::pid_t, at: usize, near: &[Span], towards: bool) -> bool {
    let iovec = |start: usize, len| libc::iovec { iov_base: start as *mut libc::c_void, iov_len: len };
    let ours: SmallVec<[libc::iovec; 4]> = near.iter().map(|span| iovec(span.start, span.len)).collect();
    let len: usize = near.iter().map(|span| span.len).sum();
    let theirs = iovec(at, len);
    let (count, no_flags) = (ours.len() as libc::c_ulong, 0);
    // SAFETY: the spans came from `Region` checks whose locks are held, or are slices of the caller; the other process's
    // side is checked by the kernel.
    let copied = unsafe {
        match towards {
            true => libc::process_vm_writev(process, ours.as_ptr(), count, &theirs, 1, no_flags),
            false => libc::process_vm_readv(process, ours.as_ptr(), count, &theirs, 1, no_flags),
        }
    };
    usize::try_from(copied) == Ok(len)
}
