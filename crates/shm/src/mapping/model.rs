//! A loom model of a mapping.
//!
//! Loom's atomics are not plain words and cannot be stored in a mapping. So in a model each word of a mapping has a separate atomic, and each
//! cache line has a separate cell that loom checks. Bytes are copied in the mapping itself, and each copy is reported to the cells of its
//! lines. Loom reports a race between unordered copies of one line. The zeros that pad the last word of a packet are written to an atomic and
//! not to the mapping; so models use packets of whole words.
//!
//! Loom requires that an atomic is created before the threads that use it. So a model accesses each word and line once before it starts them.

use ferroce_os::sync::loom::cell::UnsafeCell;
use ferroce_os::sync::{AtomicU32, AtomicU64};
use std::collections::BTreeMap;
use std::sync::Mutex;

const LINE: usize = 64;

/// Objects by their offset, created on first use, and never moved.
#[derive(Debug)]
struct Made<T>(Mutex<BTreeMap<usize, Box<T>>>);

impl<T> Default for Made<T> {
    fn default() -> Self {
        Made(Mutex::default())
    }
}

impl<T> Made<T> {
    fn get(&self, at: usize, make: impl FnOnce() -> T) -> &T {
        let mut made = self.0.lock().expect("nobody panics with it");
        let found: *const T = &**made.entry(at).or_insert_with(|| Box::new(make()));
        // SAFETY: the contents of a box do not move, and the box is dropped with the map.
        unsafe { &*found }
    }
}

/// The words and lines of a mapping.
#[derive(Debug, Default)]
pub(crate) struct Shadow {
    words: Made<AtomicU32>,
    longs: Made<AtomicU64>,
    lines: Made<UnsafeCell<()>>,
}

// SAFETY: loom runs one thread at a time, and its cells only check whether an access is allowed.
unsafe impl Send for Shadow {}
// SAFETY: as above.
unsafe impl Sync for Shadow {}

impl Shadow {
    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        self.words.get(at, || AtomicU32::new(0))
    }

    pub(super) fn long(&self, at: usize) -> &AtomicU64 {
        self.longs.get(at, || AtomicU64::new(0))
    }

    pub(super) fn write(&self, at: usize, len: usize) {
        self.lines(at, len).for_each(|line| line.with_mut(|_| ()));
    }

    pub(super) fn read(&self, at: usize, len: usize) {
        self.lines(at, len).for_each(|line| line.with(|_| ()));
    }

    fn lines(&self, at: usize, len: usize) -> impl Iterator<Item = &UnsafeCell<()>> {
        (at / LINE..(at + len).div_ceil(LINE)).map(|line| self.lines.get(line, || UnsafeCell::new(())))
    }
}

#[cfg(test)]
impl super::Mapping {
    /// Makes this mapping a view of the same memory as `other`.
    pub(crate) fn with_shadow_of(mut self, other: &impl super::MappedBytes) -> Self {
        self.shadow.clone_from(other.shadow());
        self
    }
}
