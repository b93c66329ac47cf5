//! Memory owned by a socket, registered with the NIC.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::ptr::NonNull;

use super::calls::{ibv_dereg_mr, ibv_reg_mr};
use super::errno::{Errno, Outcome};
use super::stream::Span;
use super::vectors::Vectors;
use crate::abi::{ibv_mr, ibv_pd};

/// Memory is allocated in whole pages, which nothing else shares.
const PAGE: usize = 4096;

/// Zeroed pages that the NIC may read, and the peer may write. No reference into them exists, since the peer can
/// write at any moment.
pub(crate) struct Registered {
    start: NonNull<u8>,
    layout: Layout,
    mr: *mut ibv_mr,
}

// SAFETY: plain memory and a handle that any thread may use; the rings decide which thread accesses which bytes.
unsafe impl Send for Registered {}
// SAFETY: as above.
unsafe impl Sync for Registered {}

impl Registered {
    /// Registers at least `length` bytes in the domain.
    ///
    /// # Safety
    /// The domain outlives the value.
    pub(crate) unsafe fn new(pd: *mut ibv_pd, length: usize, access: c_int) -> Outcome<Self> {
        let no_memory = Errno(libc::ENOMEM);
        let length = length.max(1).next_multiple_of(PAGE);
        let layout = Layout::from_size_align(length, PAGE).map_err(|_| no_memory)?;
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(no_memory)?;
        // SAFETY: the memory is ours until `drop`, which first deregisters it.
        let mr = unsafe { ibv_reg_mr(pd, start.as_ptr().cast(), length, access) };
        match Errno::not_null(mr) {
            Ok(mr) => Ok(Self { start, layout, mr }),
            Err(errno) => {
                // SAFETY: allocated above with this layout.
                unsafe { dealloc(start.as_ptr(), layout) };
                Err(errno)
            }
        }
    }

    pub(crate) fn addr(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(crate) fn lkey(&self) -> u32 {
        // SAFETY: the region lives as long as we do.
        unsafe { (*self.mr).lkey }
    }

    pub(crate) fn rkey(&self) -> u32 {
        // SAFETY: the region lives as long as we do.
        unsafe { (*self.mr).rkey }
    }

    fn at(&self, span: Span) -> *mut u8 {
        let (offset, length) = (span.offset as usize, span.length as usize);
        assert!(offset + length <= self.layout.size(), "a span outside its ring");
        self.start.as_ptr().wrapping_add(offset)
    }

    /// Copies the bytes of a span to `to`.
    ///
    /// # Safety
    /// `to` is writable for the length of the span.
    pub(crate) unsafe fn read(&self, span: Span, to: *mut u8) {
        // SAFETY: `at` checks that the span lies inside. A peer that writes during the copy corrupts only its own data.
        unsafe { std::ptr::copy_nonoverlapping(self.at(span), to, span.length as usize) };
    }

    /// Copies bytes from `from` to a span.
    ///
    /// # Safety
    /// `from` is readable for the length of the span.
    pub(crate) unsafe fn write(&self, span: Span, from: *const u8) {
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(from, self.at(span), span.length as usize) };
    }

    /// Copies the next bytes of the program's buffers to spans.
    pub(crate) fn fill(&self, spans: impl IntoIterator<Item = Span>, from: &mut Vectors<'_>) {
        // SAFETY: the program's buffers have the lengths in its list.
        walk(spans, from, |part, start| unsafe { self.write(part, start) });
    }

    /// Copies spans to the program's next buffers, as many bytes as fit.
    pub(crate) fn drain(&self, spans: impl IntoIterator<Item = Span>, into: &mut Vectors<'_>) {
        // SAFETY: as in `fill`.
        walk(spans, into, |part, start| unsafe { self.read(part, start) });
    }

    /// A few bytes at an offset.
    pub(crate) fn bytes<const N: usize>(&self, offset: usize) -> [u8; N] {
        let mut bytes = [0; N];
        let span = Span { offset: offset as u32, length: N as u32 };
        // SAFETY: the array has N bytes.
        unsafe { self.read(span, bytes.as_mut_ptr()) };
        bytes
    }
}

/// Calls `each` for every contiguous piece of the program's buffers, with the corresponding part of the spans.
fn walk(spans: impl IntoIterator<Item = Span>, buffers: &mut Vectors<'_>, each: impl Fn(Span, *mut u8)) {
    for Span { mut offset, length } in spans {
        buffers.walk(length as usize, |start, count| {
            each(Span { offset, length: count as u32 }, start);
            offset += count as u32;
        });
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: registered and allocated in `new`. If deregistration fails, the NIC may still write, so the memory is leaked.
        unsafe {
            if ibv_dereg_mr(self.mr) == 0 {
                dealloc(self.start.as_ptr(), self.layout);
            }
        }
    }
}
