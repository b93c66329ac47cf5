//! A program's buffers: one or a list, read or written from the first byte to the last.

use std::ffi::c_int;

use libc::iovec;

use super::errno::{Errno, Outcome};

/// Buffers that are read or filled in order. The program may change their bytes at any time, so no slice of them is made.
pub(crate) struct Vectors<'a> {
    list: &'a [iovec],
    /// The number of processed bytes of the first buffer.
    done: usize,
    left: usize,
}

impl<'a> Vectors<'a> {
    pub(crate) fn new(list: &'a [iovec]) -> Outcome<Self> {
        let sum = list.iter().try_fold(0usize, |sum, one| sum.checked_add(one.iov_len));
        match sum {
            Some(left) if left <= isize::MAX as usize => Ok(Self { list, done: 0, left }),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// The list of `readv` and `writev`.
    ///
    /// # Safety
    /// `list` has `count` entries, and the buffers that they name are valid.
    pub(crate) unsafe fn of_list(list: *const iovec, count: c_int) -> Outcome<Self> {
        const MOST: c_int = 1024;
        match count {
            0 => Self::new(&[]),
            1..=MOST if !list.is_null() => {
                // SAFETY: what the caller promises.
                Self::new(unsafe { std::slice::from_raw_parts(list, count as usize) })
            }
            1..=MOST => Err(Errno(libc::EFAULT)),
            _ => Err(Errno(libc::EINVAL)),
        }
    }

    /// The number of unprocessed bytes.
    pub(crate) fn left(&self) -> usize {
        self.left
    }

    /// Returns the next contiguous bytes, at most `limit`, and counts them as processed.
    fn take(&mut self, limit: usize) -> Option<(*mut u8, usize)> {
        while let Some(first) = self.list.first() {
            let length = (first.iov_len - self.done).min(limit);
            if length == 0 && self.done == first.iov_len {
                self.list = &self.list[1..];
                self.done = 0;
                continue;
            }
            let start = first.iov_base.cast::<u8>().wrapping_add(self.done);
            self.done += length;
            self.left -= length;
            return (length > 0).then_some((start, length));
        }
        None
    }

    /// Calls `each` for the next `length` bytes of the buffers, piece by piece.
    pub(crate) fn walk(&mut self, mut length: usize, mut each: impl FnMut(*mut u8, usize)) {
        while length > 0 {
            let Some((start, taken)) = self.take(length) else { break };
            each(start, taken);
            length -= taken;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list_of(buffers: &mut [Vec<u8>]) -> Vec<iovec> {
        buffers.iter_mut().map(|b| iovec { iov_base: b.as_mut_ptr().cast(), iov_len: b.len() }).collect()
    }

    #[test]
    fn empty_buffers_are_passed_over() {
        let mut buffers = [vec![1, 2], vec![], vec![3], vec![], vec![4, 5, 6]];
        let list = list_of(&mut buffers);
        let mut vectors = Vectors::new(&list).unwrap();
        assert_eq!(vectors.left(), 6);
        let mut seen = Vec::new();
        for length in [1, 3, 9] {
            vectors.walk(length, |start, count| {
                // SAFETY: bytes of the buffers above.
                seen.extend_from_slice(unsafe { std::slice::from_raw_parts(start, count) });
            });
        }
        assert_eq!(seen, [1, 2, 3, 4, 5, 6]);
        assert_eq!(vectors.left(), 0);
    }

    #[test]
    fn impossible_lists_are_refused() {
        let huge = iovec { iov_base: std::ptr::null_mut(), iov_len: usize::MAX };
        assert!(Vectors::new(&[huge, huge]).is_err());
        // SAFETY: nothing is read.
        unsafe {
            assert!(Vectors::of_list(std::ptr::null(), 1).is_err());
            assert!(Vectors::of_list(&huge, -1).is_err());
            assert_eq!(Vectors::of_list(std::ptr::null(), 0).unwrap().left(), 0);
        }
    }
}
