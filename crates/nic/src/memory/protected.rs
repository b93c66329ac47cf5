//! Pages that are protected against writing, in a table that a signal handler reads without a lock: the thread that wrote to them may hold any
//! lock, such as one of malloc, and so may a thread that waits for it.
//!
//! The caller of all but [`on_write`] and [`removals`] holds the lock of `in_flight`.

#![expect(unsafe_code, reason = "protects pages, and shares a table with a signal handler")]

use super::in_flight::PostedTo;
use ferroce_os::memory::page_len;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

/// Ranges of pages that are protected at a time. Each may split a mapping in three, and Linux allows a process 65530 mappings.
const MOST_PROTECTED: usize = 8192;

/// No range.
const FREE: u8 = 0;
/// Nobody has written to the range.
const CLEAN: u8 = 1;
/// Somebody has, or may: no further write is reported.
const EXEMPT: u8 = 2;

/// The request whose buffer is protected.
#[derive(Clone, Debug)]
pub(super) struct Owner {
    pub(super) queue: PostedTo,
    pub(super) name: &'static str,
    pub(super) wr_id: u64,
    /// The buffer.
    pub(super) bytes: Range<usize>,
}

struct Entry {
    state: AtomicU8,
    /// Handlers that use the range. It is not changed while there are any, unless it is free.
    handlers: AtomicU32,
    range: UnsafeCell<Option<(Range<usize>, Owner)>>,
}

// SAFETY: the cell is written while the entry is free and no handler uses it, by one thread at a time; see `Protected`.
unsafe impl Sync for Entry {}

static ENTRIES: [Entry; MOST_PROTECTED] = [const {
    Entry { state: AtomicU8::new(FREE), handlers: AtomicU32::new(0), range: UnsafeCell::new(None) }
}; MOST_PROTECTED];
/// Entries from here on were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// No entry before this one is free.
static FIRST_FREE: AtomicUsize = AtomicUsize::new(0);
static REMOVALS: AtomicU64 = AtomicU64::new(0);

/// How often a protection was removed.
pub(super) fn removals() -> u64 {
    REMOVALS.load(SeqCst)
}

fn set_protection(pages: &Range<usize>, protection: libc::c_int) -> bool {
    // SAFETY: pages inside a registration whose owner may read and write them. Without the right to write, an access of the program
    // raises a signal, whose handler restores it; the NIC restores it before it writes.
    unsafe { libc::mprotect(pages.start as *mut libc::c_void, pages.len(), protection) == 0 }
}

fn set_writable(pages: &Range<usize>) -> bool {
    let is_writable = set_protection(pages, libc::PROT_READ | libc::PROT_WRITE);
    REMOVALS.fetch_add(1, SeqCst);
    is_writable
}

/// A range of pages that is protected, until [`Self::end`].
#[derive(Clone, Debug)]
pub(super) struct Protected {
    entry: usize,
    pub(super) pages: Range<usize>,
}

impl Protected {
    /// Protects pages. `None` if they cannot be, or too many are.
    pub(super) fn new(pages: Range<usize>, owner: Owner) -> Option<Protected> {
        let free = |entry: &usize| ENTRIES[*entry].state.load(SeqCst) == FREE;
        let entry = (FIRST_FREE.load(SeqCst)..MOST_PROTECTED).find(free).unwrap_or(MOST_PROTECTED);
        FIRST_FREE.store(entry, SeqCst);
        let Entry { state, range, .. } = ENTRIES.get(entry)?;
        // SAFETY: the entry is free, and `end` has waited for the handlers that used it; one that comes now sees that it is free.
        unsafe { *range.get() = Some((pages.clone(), owner)) };
        // Before the pages are: from then on the handler must find them.
        state.store(CLEAN, SeqCst);
        USED.fetch_max(entry + 1, SeqCst);
        let is_protected = set_protection(&pages, libc::PROT_READ);
        let protected = Protected { entry, pages };
        if is_protected {
            return Some(protected);
        }
        // Those of the first mappings may be.
        let pages = protected.pages.clone();
        protected.end([pages]);
        None
    }

    /// Whether somebody wrote to the pages, or may.
    pub(super) fn is_exempt(&self) -> bool {
        ENTRIES[self.entry].state.load(SeqCst) == EXEMPT
    }

    /// No write to the pages is reported any more.
    pub(super) fn exempt(&self) {
        ENTRIES[self.entry].state.store(EXEMPT, SeqCst);
    }

    /// Makes the pages writable that no other range contains.
    pub(super) fn end(self, pages: impl IntoIterator<Item = Range<usize>>) {
        // It fails if they are unmapped by now.
        pages.into_iter().for_each(|pages| {
            let _ = set_writable(&pages);
        });
        // Only now: a handler that does not find them tries the write again, which must succeed.
        let Entry { state, handlers, .. } = &ENTRIES[self.entry];
        state.store(FREE, SeqCst);
        // The program may map other memory there as soon as this returns. A handler waits for nobody.
        while handlers.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
        FIRST_FREE.fetch_min(self.entry, SeqCst);
    }
}

/// What a write to a page without the right to was.
pub(super) enum Write {
    /// The first one to a range. Its pages are writable now.
    First(Owner),
    /// Another one.
    Again,
    /// No range contains the page, or not any more.
    Other,
}

/// Makes the ranges writable that contain this address. For the signal handler: it takes no lock, and allocates nothing.
pub(super) fn on_write(address: usize) -> Write {
    let mut found = Write::Other;
    for Entry { state, handlers, range } in &ENTRIES[..USED.load(SeqCst)] {
        if state.load(SeqCst) == FREE {
            continue;
        }
        handlers.fetch_add(1, SeqCst);
        if state.load(SeqCst) != FREE
            // SAFETY: the entry was not free after this thread was counted, so it is not written before it leaves.
            && let Some((pages, owner)) = unsafe { &*range.get() }
            && pages.contains(&address)
        {
            // If part of the range is unmapped, only that page is.
            let page = address & !(page_len() - 1);
            let is_writable = set_writable(pages) || set_writable(&(page..page + page_len()));
            let is_first = state.compare_exchange(CLEAN, EXEMPT, SeqCst, SeqCst).is_ok();
            found = match found {
                Write::Other | Write::Again if is_first && is_writable => Write::First(owner.clone()),
                Write::Other if is_writable => Write::Again,
                found => found,
            };
        }
        handlers.fetch_sub(1, SeqCst);
    }
    found
}

/// In a child after `fork`: handlers of other threads are the parent's.
pub(super) fn forget_handlers() {
    ENTRIES[..USED.load(SeqCst)].iter().for_each(|entry| entry.handlers.store(0, SeqCst));
}
