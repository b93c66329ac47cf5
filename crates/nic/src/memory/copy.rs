//! The only place where bytes of registered memory move.
//!
//! Applications read and write this memory concurrently with the NIC, as with hardware, and order their accesses by completions.
//! So this module never creates references to the memory; it uses raw copies and atomics.
//!
//! A program must not unmap ordinary registered memory. If it does, the next access raises SIGSEGV, and `freed` reports the reason:
//! hardware would have pinned the pages, which an ordinary user cannot. Memory that the program unmaps at will is registered for on-demand
//! paging, and the kernel copies it (`on_demand`). The CUDA driver copies memory of a GPU (`gpu`).

use super::gpu::{MessagePart, ReadAhead};
use super::region::{Backing, Span};
use super::{gpu, in_flight, on_demand};
use ferroce_os::memory;
use ferroce_proto::verbs::{AtomicOp, MemoryFault};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Copies out of registered memory; `out` is as long as the span. `ahead` returns the position of the span in its message.
#[inline]
pub(crate) fn read(span: Span, out: &mut [u8], ahead: impl FnOnce() -> ReadAhead) -> Result<(), MemoryFault> {
    debug_assert_eq!(span.len, out.len());
    match span.backing {
        Backing::Mapped => {
            // SAFETY: `span` came from a `Region` check while its lock is held, so the bytes belong to a registration
            // whose owner promised that they stay mapped until it is gone; `out` is ours and cannot overlap memory of a
            // region unless the application registered the NIC's own buffers, which it cannot name.
            unsafe { memory::copy(span.start as *const u8, out.as_mut_ptr(), span.len) }
            Ok(())
        }
        Backing::Watched => {
            read_watched(span, out);
            Ok(())
        }
        Backing::OnDemand => on_demand::read(span, out),
        Backing::Gpu(gpu) => gpu::read(gpu, span, out, ahead()),
        Backing::Null => {
            out.fill(0);
            Ok(())
        }
    }
}

/// Copies into registered memory. The last byte becomes visible last, as with hardware: programs poll it. `memcpy` guarantees no order.
#[inline(always)] // on the latency path of every short message
pub(crate) fn write(span: Span, data: &[u8], part: MessagePart) -> Result<(), MemoryFault> {
    debug_assert_eq!(span.len, data.len());
    match span.backing {
        Backing::Mapped => {
            // SAFETY: as in `read`; the span is as long as `data`.
            unsafe { put(data.as_ptr(), span.start as *mut u8, data.len()) };
            Ok(())
        }
        Backing::Watched => {
            write_watched(span, data);
            Ok(())
        }
        Backing::OnDemand => on_demand::write(span, data),
        Backing::Gpu(gpu) => gpu::write(gpu, span, data, part),
        Backing::Null => Ok(()),
    }
}

/// Copies out of memory whose buffers are watched. Not inlined, to keep [`read`] small.
#[cold]
#[inline(never)]
fn read_watched(span: Span, out: &mut [u8]) {
    // SAFETY: as in `read`; the watch never removes the right to read.
    unsafe {
        std::ptr::copy_nonoverlapping(span.start as *const u8, out.as_mut_ptr(), span.len.min(out.len()))
    }
}

/// Copies into memory whose buffers are watched.
#[cold]
#[inline(never)]
fn write_watched(span: Span, data: &[u8]) {
    in_flight::before_nic_write(span);
    // SAFETY: as in `write`; the pages are writable again.
    unsafe { put(data.as_ptr(), span.start as *mut u8, data.len().min(span.len)) };
}

/// Copies so that the last byte becomes visible last. Eight aligned bytes become visible together.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes. They may overlap, and other threads may change them concurrently.
#[inline]
unsafe fn put(from: *const u8, to: *mut u8, len: usize) {
    if len == 0 {
        return;
    }
    if len == 8 && to.cast::<u64>().is_aligned() {
        // SAFETY: eight bytes on both sides, the destination aligned.
        unsafe { to.cast::<u64>().write_volatile(from.cast::<u64>().read_unaligned()) };
        return;
    }
    // SAFETY: within the bytes that the caller guarantees.
    unsafe {
        let last = from.add(len - 1).read_volatile();
        memory::copy(from, to, len - 1);
        fence(Ordering::Release);
        to.add(len - 1).write_volatile(last);
    }
}

/// Copies between the concatenated `near` spans of this process and the `far` span, which is as long as all of them: towards `far`, or
/// from it.
#[inline]
pub(super) fn spread(near: &[Span], far: Span, towards_far: bool) {
    debug_assert_eq!(near.iter().map(|span| span.len).sum::<usize>(), far.len);
    let mut at = far.start;
    for span in near {
        let (from, to) = if towards_far { (span.start, at) } else { (at, span.start) };
        // SAFETY: the near spans are bytes of a request, or came from `Region` checks whose locks are held, or cached; the far one is memory of a local peer that
        // is mapped here, or of this process, and stays as long as the local peer's region does, which the caller holds.
        unsafe { put(from as *const u8, to as *mut u8, span.len) };
        at += span.len;
    }
}

/// Eight aligned bytes.
enum Word<'a> {
    Mapped(&'a AtomicU64),
    Gpu(u8),
    /// In a null region.
    Null,
}

#[inline(always)]
fn word<'a>(span: Span) -> Result<Word<'a>, MemoryFault> {
    debug_assert!(span.len == 8 && span.start.is_multiple_of(8));
    match span.backing {
        Backing::Mapped => {}
        Backing::Watched => in_flight::before_nic_write(span),
        Backing::OnDemand => on_demand::prefetch(span, on_demand::Prefetch::Write)?,
        Backing::Gpu(gpu) => return Ok(Word::Gpu(gpu)),
        Backing::Null => return Ok(Word::Null),
    }
    // SAFETY: the span has eight bytes of a live registration and is aligned; concurrent access by the application
    // is atomic too if it means anything. On-demand pages were just brought in. The caller keeps the region's lock as
    // long as it uses the reference.
    Ok(Word::Mapped(unsafe { AtomicU64::from_ptr(span.start as *mut u64) }))
}

/// Stores eight aligned bytes atomically.
pub(super) fn store(span: Span, value: u64) -> Result<(), MemoryFault> {
    match word(span)? {
        Word::Mapped(cell) => cell.store(value, Ordering::SeqCst),
        Word::Gpu(gpu) => gpu::write(gpu, span, &value.to_ne_bytes(), MessagePart::WHOLE)?,
        Word::Null => {}
    }
    Ok(())
}

/// Runs an atomic on eight aligned bytes and returns the original value.
#[inline(always)] // a direct atomic is little more
pub(super) fn atomic(span: Span, op: AtomicOp) -> Result<u64, MemoryFault> {
    let cell = match word(span)? {
        Word::Mapped(cell) => cell,
        Word::Gpu(gpu) => return gpu::atomic(gpu, span, |old| op.apply(old)),
        Word::Null => return Ok(0),
    };
    Ok(match op {
        AtomicOp::FetchAdd { add } => cell.fetch_add(add, Ordering::SeqCst),
        AtomicOp::CompareSwap { compare, swap } => {
            match cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }
    })
}
