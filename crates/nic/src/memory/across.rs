//! Copies between this process and another of the same user, by the kernel.

use super::region::Span;
use ferroce_proto::qp::Attempt;
use ferroce_proto::wire::{SourcePiece, SourceRef};
use ferroce_shm::Owner;
use smallvec::SmallVec;

/// Whether the memory of a process may be read.
pub(crate) fn is_readable(owner: &Owner) -> bool {
    fetch(owner, &[], &[]).is_done()
}

/// Copies pieces of another process to spans of this one of the same total length. Declines if the kernel copied only a part, or if the
/// process is not the owner. The kernel looks up the process once per call, so the mark proves which process was read.
pub(super) fn fetch(owner: &Owner, from: &[SourcePiece], near: &[Span]) -> Attempt {
    let mut found = 0_u64;
    let size = size_of_val(&found);
    let mark_here = iovec(&raw mut found as usize, size);
    let mut theirs = [iovec(owner.mark_at, size); 1 + SourceRef::MAX_PIECES];
    let Some(pieces) = theirs.get_mut(1..1 + from.len()) else { return Attempt::Declined };
    for (there, piece) in pieces.iter_mut().zip(from) {
        *there = iovec(piece.addr as usize, piece.len as usize);
    }
    let spans = near.iter().map(|span| iovec(span.start, span.len));
    let ours: SmallVec<[libc::iovec; 5]> = std::iter::once(mark_here).chain(spans).collect();
    let len = size + near.iter().map(|span| span.len).sum::<usize>();
    let [our_count, their_count] = [ours.len(), 1 + from.len()].map(|count| count as libc::c_ulong);
    // SAFETY: `ours` is a number on the stack and spans that came from `Region` checks whose locks are held; the other
    // process's side is checked by the kernel.
    let copied = unsafe {
        libc::process_vm_readv(owner.process, ours.as_ptr(), our_count, theirs.as_ptr(), their_count, 0)
    };
    Attempt::of(usize::try_from(copied) == Ok(len) && found == owner.mark)
}

fn iovec(start: usize, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start as *mut libc::c_void, iov_len: len }
}

/// Copies spans of this process to pieces of another one of the same total length. Declines if the kernel copied only a part, or if the
/// process is not the owner. A write cannot prove whose bytes it changes, so the mark is read just before. The wrong process is written
/// only if the owner dies and its PID is reused by a process of this user between the two system calls.
pub(super) fn store(owner: &Owner, to: &[SourcePiece], near: &[Span]) -> Attempt {
    if !is_readable(owner) {
        return Attempt::Declined;
    }
    let ours: SmallVec<[libc::iovec; 4]> = near.iter().map(|span| iovec(span.start, span.len)).collect();
    let len: usize = near.iter().map(|span| span.len).sum();
    let theirs: SmallVec<[libc::iovec; 2]> =
        to.iter().map(|piece| iovec(piece.addr as usize, piece.len as usize)).collect();
    let [our_count, their_count] = [ours.len(), theirs.len()].map(|count| count as libc::c_ulong);
    // SAFETY: the spans came from `Region` checks whose locks are held, or are slices of the caller; the other process's
    // side is checked by the kernel.
    let copied = unsafe {
        libc::process_vm_writev(owner.process, ours.as_ptr(), our_count, theirs.as_ptr(), their_count, 0)
    };
    Attempt::of(usize::try_from(copied) == Ok(len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_with_the_same_number_is_neither_read_nor_written() {
        let (mark, mut theirs, near) = (0x1234_5678_u64, vec![1_u8; 8], [2_u8; 8]);
        let piece = [SourcePiece { addr: theirs.as_mut_ptr() as u64, len: 8 }];
        let process = std::process::id() as libc::pid_t;
        let owner = Owner { process, mark_at: &raw const mark as usize, mark };
        let later = Owner { mark: mark + 1, ..owner };
        assert_eq!(store(&later, &piece, &[Span::of(&near)]), Attempt::Declined);
        assert_eq!(fetch(&later, &piece, &[]), Attempt::Declined);
        assert_eq!(std::hint::black_box(&theirs)[..], [1; 8]);
        assert_eq!(store(&owner, &piece, &[Span::of(&near)]), Attempt::Done);
        assert_eq!(std::hint::black_box(&theirs)[..], [2; 8]);
    }
}
