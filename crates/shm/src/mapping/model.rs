//! What loom sees of a mapping.
//!
//! Loom's atomics are no plain words and cannot lie in a mapping. So in a model every word of a mapping is an atomic beside it, and every
//! line of it has a cell beside it that loom watches. Bytes are copied in the mapping itself, and each copy is reported to the cells of its lines: whatever
//! does not happen before or after another copy of the same line is a race, which loom reports. Zeros that fill up the last word of a
//! packet go to an atomic of their own; models use packets of whole words.
//!
//! Loom demands that an atomic is made before the threads are that use it. So a model touches each word and line once before it starts them.

use ferroce_os::sync::loom::cell::UnsafeCell;
use ferroce_os::sync::{AtomicU32, AtomicU64};
use std::collections::BTreeMap;
use std::sync::Mutex;

const LINE: usize = 64;

/// Things by where they lie, made when they are first asked for, and never moved.
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
        // SAFETY: a box stays where it is, and is dropped with the map.
        unsafe { &*found }
    }
}

/// The words and lines of a mapping.
#[derive(Debug, Default)]
pub(super) struct Shadow {
    words: Made<AtomicU32>,
    longs: Made<AtomicU64>,
    lines: Made<UnsafeCell<()>>,
}

// SAFETY: loom runs one thread at a time, and its cells are only asked whether they may be used.
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
    /// This mapping shows the same memory as another.
    pub(crate) fn with_shadow_of(mut self, other: &Self) -> Self {
        self.shadow.clone_from(&other.shadow);
        self
    }
}
