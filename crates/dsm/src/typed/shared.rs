//! Arrays in shared memory.

#![expect(unsafe_code, reason = "reads and writes shared memory")]

use super::plain::Plain;
use crate::error::Error;
use crate::heap::Placement;
use crate::job::Job;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// An array that all processes of a job see. Elements are copied in and out, since another process may write them at
/// any time. There are no references to them, except where the caller guarantees exclusive access
/// ([`Shared::slice`]).
///
/// Locks and barriers of the [`Job`] decide which writes are visible. Two processes may write different elements at
/// the same time if an element has at least four bytes.
pub struct Shared<T: ?Sized> {
    start: usize,
    len: usize,
    job: Job,
    elements: PhantomData<T>,
}

impl Job {
    /// An array of `len` zeros. As for [`Job::alloc`], all processes make the same calls in the same order.
    pub fn shared<T: Plain>(&self, len: usize, placement: &Placement) -> Result<Shared<[T]>, Error> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::HeapFull { asked: usize::MAX, left: 0 })?;
        let start = self.alloc(bytes, placement)? as usize;
        Ok(Shared { start, len, job: self.clone(), elements: PhantomData })
    }

    /// Frees an array. All processes call it, and it waits for all.
    pub fn free_shared<T: Plain>(&self, array: Shared<[T]>) -> Result<(), Error> {
        self.free(array.start as *mut u8)
    }
}

impl<T: Plain> Shared<[T]> {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Its address, in every process.
    pub fn as_ptr(&self) -> *mut T {
        self.start as *mut T
    }

    #[track_caller]
    fn at(&self, index: usize, count: usize) -> *mut T {
        let fits = index <= self.len && count <= self.len - index;
        assert!(fits, "elements {index} to {} of an array of {}", index.saturating_add(count), self.len);
        self.as_ptr().wrapping_add(index)
    }

    /// Returns a copy of an element. Panics if `index` is out of range.
    #[track_caller]
    pub fn get(&self, index: usize) -> T {
        // SAFETY: inside the allocation, which is mapped while the job lives; any bytes are a `T`.
        unsafe { self.at(index, 1).read_volatile() }
    }

    /// Sets an element. Panics if `index` is out of range.
    #[track_caller]
    pub fn set(&self, index: usize, value: T) {
        // SAFETY: inside the allocation, and no reference to it exists unless the caller of `slice` broke its promise.
        unsafe { self.at(index, 1).write_volatile(value) }
    }

    /// Replaces an element by `change` of it.
    #[track_caller]
    pub fn update(&self, index: usize, change: impl FnOnce(T) -> T) {
        self.set(index, change(self.get(index)));
    }

    /// Copies elements out, from `index` on; their pages are fetched together. Panics if the range is out of bounds.
    #[track_caller]
    pub fn read(&self, index: usize, into: &mut [T]) -> Result<(), Error> {
        let from = self.at(index, into.len());
        // SAFETY: a `T` is plain bytes, so its slice may be filled as one of bytes.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(into.as_mut_ptr().cast::<u8>(), size_of_val(into)) };
        self.job.get(bytes, from.cast())
    }

    /// Copies elements in, from `index` on. Panics if the range is out of bounds.
    #[track_caller]
    pub fn write(&self, index: usize, from: &[T]) -> Result<(), Error> {
        let to = self.at(index, from.len());
        // SAFETY: a `T` is plain bytes without padding.
        let bytes = unsafe { std::slice::from_raw_parts(from.as_ptr().cast::<u8>(), size_of_val(from)) };
        self.job.put(to.cast(), bytes)
    }

    /// The elements in place, for inner loops.
    ///
    /// # Safety
    /// While the slice lives, no thread of any process may write these elements, and this process must not pass a lock
    /// or a barrier after which they differ.
    #[track_caller]
    pub unsafe fn slice(&self, range: Range<usize>) -> &[T] {
        let start = self.at(range.start, range.len());
        // SAFETY: inside the allocation; the caller guarantees that no process writes there.
        unsafe { std::slice::from_raw_parts(start, range.len()) }
    }

    /// The elements in place, for writing.
    ///
    /// # Safety
    /// While the slice lives, no other thread of any process may use these elements, and this process must not pass a lock or
    /// a barrier after which they differ.
    #[track_caller]
    #[expect(
        clippy::mut_from_ref,
        reason = "the memory is shared between processes; exclusion is the caller's promise"
    )]
    pub unsafe fn slice_mut(&self, range: Range<usize>) -> &mut [T] {
        let start = self.at(range.start, range.len());
        // SAFETY: inside the allocation; the caller guarantees exclusive use.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }
}

impl<T> Clone for Shared<[T]> {
    fn clone(&self) -> Self {
        Self { start: self.start, len: self.len, job: self.job.clone(), elements: PhantomData }
    }
}

impl<T> fmt::Debug for Shared<[T]> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared({} elements at {:#x})", self.len, self.start)
    }
}
