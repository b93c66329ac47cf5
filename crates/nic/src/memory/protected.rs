//! Write-protected pages, in a table that a signal handler reads without a lock. The faulting thread may hold any lock, such as one of
//! malloc, so a handler that took a lock could deadlock.
//!
//! Callers hold the lock of `in_flight`, except for [`on_write`] and [`removals`].

#![expect(unsafe_code, reason = "protects pages, and shares a table with a signal handler")]

use super::in_flight::PostedTo;
use ferroce_os::memory::page_len;
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize};

/// Most ranges protected at a time. Each may split a mapping in three, and Linux allows a process 65530 mappings by default.
const MAX_PROTECTED: usize = 8192;

/// The entry has no range.
const FREE: u8 = 0;
/// The program has not written to the range.
const CLEAN: u8 = 1;
/// The program has written to the range, or may: no further write is reported.
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
    /// Handlers that may be reading the range. A used range does not change while this is not 0.
    handlers: AtomicU32,
    range: UnsafeCell<Option<(Range<usize>, Owner)>>,
}

// SAFETY: the cell is written while the entry is free and no handler uses it, by one thread at a time; see `Protected`.
unsafe impl Sync for Entry {}

static ENTRIES: [Entry; MAX_PROTECTED] = [const {
    Entry { state: AtomicU8::new(FREE), handlers: AtomicU32::new(0), range: UnsafeCell::new(None) }
}; MAX_PROTECTED];
/// All entries from this index on are unused.
static USED: AtomicUsize = AtomicUsize::new(0);
/// No entry before this one is free.
static FIRST_FREE: AtomicUsize = AtomicUsize::new(0);
static REMOVALS: AtomicU64 = AtomicU64::new(0);

/// The number of protections removed so far.
pub(super) fn removals() -> u64 {
    REMOVALS.load(SeqCst)
}

fn set_protection(pages: &Range<usize>, protection: libc::c_int) -> bool {
    // SAFETY: pages inside a registration whose owner may read and write them. While they are protected, a write of the program raises a
    // signal, whose handler restores the right to write; the NIC restores it before it writes.
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
        let entry = (FIRST_FREE.load(SeqCst)..MAX_PROTECTED).find(free).unwrap_or(MAX_PROTECTED);
        FIRST_FREE.store(entry, SeqCst);
        let Entry { state, range, .. } = ENTRIES.get(entry)?;
        // SAFETY: the entry is free, and `end` has waited for the handlers that used it; a handler that starts now finds it free.
        unsafe { *range.get() = Some((pages.clone(), owner)) };
        // Before the pages are protected: from then on the handler must find the entry.
        state.store(CLEAN, SeqCst);
        USED.fetch_max(entry + 1, SeqCst);
        let is_protected = set_protection(&pages, libc::PROT_READ);
        let protected = Protected { entry, pages };
        if is_protected {
            return Some(protected);
        }
        // A failed `mprotect` may have protected some of the pages.
        let pages = protected.pages.clone();
        protected.end([pages]);
        None
    }

    /// Whether the program wrote to the pages, or may.
    pub(super) fn is_exempt(&self) -> bool {
        ENTRIES[self.entry].state.load(SeqCst) == EXEMPT
    }

    /// Stops reporting writes to the pages.
    pub(super) fn exempt(&self) {
        ENTRIES[self.entry].state.store(EXEMPT, SeqCst);
    }

    /// Ends the protection and makes `pages` writable: those that no other range contains.
    pub(super) fn end(self, pages: impl IntoIterator<Item = Range<usize>>) {
        // Fails if the program has unmapped them.
        pages.into_iter().for_each(|pages| {
            let _ = set_writable(&pages);
        });
        // After the pages are writable: a handler that does not find the entry retries the write, which must succeed.
        let Entry { state, handlers, .. } = &ENTRIES[self.entry];
        state.store(FREE, SeqCst);
        // The program may map other memory there once this returns. Handlers never block, so this wait is short.
        while handlers.load(SeqCst) > 0 {
            std::thread::yield_now();
        }
        FIRST_FREE.fetch_min(self.entry, SeqCst);
    }
}

/// A write to a write-protected page.
pub(super) enum Write {
    /// The first one to a range. Its pages are writable now.
    First(Owner),
    /// A later one.
    Again,
    /// No range contains the page.
    Other,
}

/// Makes all ranges writable that contain this address. Called by the signal handler, so it takes no lock and does not allocate.
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
            // If part of the range is unmapped, make only this page writable.
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

/// In a child after `fork`: handlers of other threads exist only in the parent.
pub(super) fn forget_handlers() {
    ENTRIES[..USED.load(SeqCst)].iter().for_each(|entry| entry.handlers.store(0, SeqCst));
}
