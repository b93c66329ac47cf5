//! The allocated parts of the heap. Every process makes the same calls in the same order, so all have the same result without
//! communication.

use crate::PAGE;
use crate::error::Error;
use std::collections::BTreeMap;

/// Offsets and lengths in bytes, all whole pages.
#[derive(Debug)]
pub(crate) struct Allocator {
    len: usize,
    taken: BTreeMap<usize, usize>,
}

impl Allocator {
    pub(crate) fn new(len: usize) -> Self {
        Self { len, taken: BTreeMap::new() }
    }

    /// Allocates the first gap that is large enough.
    pub(crate) fn alloc(&mut self, len: usize) -> Result<usize, Error> {
        let rounded = len.max(1).checked_next_multiple_of(PAGE).unwrap_or(usize::MAX);
        let (mut from, mut largest) = (0, 0);
        let ends = self.taken.iter().map(|(&at, &len)| (at, at + len)).chain([(self.len, self.len)]);
        for (start, end) in ends {
            if start - from >= rounded {
                self.taken.insert(from, rounded);
                return Ok(from);
            }
            largest = largest.max(start - from);
            from = end;
        }
        Err(Error::HeapFull { asked: len, left: largest })
    }

    /// Length of the allocation that starts at `at`.
    pub(crate) fn len_at(&self, at: usize) -> Option<usize> {
        self.taken.get(&at).copied()
    }

    /// Whether the whole pages of one allocation contain `len` bytes from `at` on.
    pub(crate) fn holds(&self, at: usize, len: usize) -> bool {
        let before = self.taken.range(..=at).next_back();
        before.is_some_and(|(&start, &whole)| at - start <= whole && len <= whole - (at - start))
    }

    /// Frees an allocation; the caller has zeroed its bytes.
    pub(crate) fn free(&mut self, at: usize) {
        self.taken.remove(&at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_used_again() {
        let mut heap = Allocator::new(8 * PAGE);
        let first = heap.alloc(1).unwrap();
        let second = heap.alloc(2 * PAGE).unwrap();
        let third = heap.alloc(PAGE + 1).unwrap();
        assert_eq!((first, second, third), (0, PAGE, 3 * PAGE));
        heap.free(second);
        assert_eq!(heap.len_at(second), None);
        assert_eq!(heap.alloc(3 * PAGE).unwrap(), 5 * PAGE);
        assert_eq!(heap.alloc(PAGE).unwrap(), PAGE);
        let error = heap.alloc(2 * PAGE).unwrap_err().to_string();
        assert!(
            error.starts_with("an allocation of 8192 bytes exceeds the 4096 free bytes of the shared heap"),
            "{error}"
        );
        // A length that cannot be rounded up to whole pages gives the same error.
        let error = heap.alloc(usize::MAX).unwrap_err().to_string();
        assert!(error.contains("exceeds the 4096 free bytes"), "{error}");
    }

    #[test]
    fn a_range_belongs_to_one_allocation() {
        let mut heap = Allocator::new(8 * PAGE);
        assert!(!heap.holds(0, 1));
        assert_eq!([heap.alloc(PAGE), heap.alloc(2 * PAGE)].map(Result::unwrap), [0, PAGE]);
        for (at, len) in [(0, PAGE), (PAGE - 1, 1), (PAGE, 2 * PAGE), (3 * PAGE, 0)] {
            assert!(heap.holds(at, len), "{len} bytes at {at}");
        }
        for (at, len) in
            [(0, PAGE + 1), (PAGE - 6, 100), (3 * PAGE, 1), (3 * PAGE + 1, 0), (PAGE, usize::MAX)]
        {
            assert!(!heap.holds(at, len), "{len} bytes at {at}");
        }
    }
}
