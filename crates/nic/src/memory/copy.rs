//! How bytes move between packets and registered memory.
//!
//! Applications read and write this memory while the NIC does, as under hardware; races on it are theirs to order
//! (with completions). So no reference is ever made to it, only raw copies and atomics.

use super::region::Span;
use ferroce_proto::verbs::AtomicOp;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// Copies out of registered memory; `out` is as long as the span.
pub(super) fn read(span: Span, out: &mut [u8]) {
    debug_assert_eq!(span.len, out.len());
    // SAFETY: `span` came from a `Region` check while its lock is held, so the bytes belong to a registration whose
    // owner promised that they stay mapped until it is gone; `out` is ours and cannot overlap memory of a region
    // unless the application registered the NIC's own buffers, which it cannot name.
    unsafe { std::ptr::copy_nonoverlapping(span.start as *const u8, out.as_mut_ptr(), span.len) }
}

/// Copies into registered memory. The last bytes become visible last: programs poll on them (and hardware keeps
/// that order), while `memcpy` promises none.
pub(super) fn write(span: Span, data: &[u8]) {
    debug_assert_eq!(span.len, data.len());
    let Some((last, before)) = data.split_last() else { return };
    let start = span.start as *mut u8;
    // SAFETY: as in `read`; the span is as long as `data`, so both stores stay inside it.
    unsafe {
        std::ptr::copy_nonoverlapping(before.as_ptr(), start, before.len());
        fence(Ordering::Release);
        start.add(before.len()).write_volatile(*last);
    }
}

/// Runs an atomic on eight aligned bytes and returns the original value.
pub(super) fn atomic(span: Span, op: AtomicOp) -> u64 {
    debug_assert!(span.len == 8 && span.start.is_multiple_of(8));
    // SAFETY: the span has eight bytes of a live registration and is aligned; concurrent access by the application
    // is atomic too if it means anything.
    let cell = unsafe { AtomicU64::from_ptr(span.start as *mut u64) };
    match op {
        AtomicOp::FetchAdd { add } => cell.fetch_add(add, Ordering::SeqCst),
        AtomicOp::CompareSwap { compare, swap } => {
            match cell.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) | Err(old) => old,
            }
        }
    }
}
