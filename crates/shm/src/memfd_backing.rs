//! Registered memory that a local peer can map: its pages are moved into a memfd, which is mapped at the same address.
//!
//! Pointers stay valid, and a second mapping of the memfd sees every store. When the last holder is dropped, the pages become private
//! memory again, with the same contents. No store of another thread is lost in either direction; `write_protect` describes how, and the
//! exceptions. Stores of a *local peer* arrive only until the pages are private again: deregistration must wait for them first.
//!
//! Pages move in pieces. If the kernel refuses to move a piece, the file ends there, and the earlier pieces stay in it.
//!
//! Only ordinary private memory is moved into a memfd, and private huge pages into a file of huge pages of the same size. Other properties of
//! the mapping are lost, and are not restored: `mlock`, `madvise` (`MADV_DONTFORK`, `MADV_HUGEPAGE`...), memory policies, protection keys,
//! names, growing downwards. One mapping becomes several, so the program's own `mremap` of the whole may fail (glibc's `realloc` then copies).
//! A forked child shares pages in a memfd with its parent; it must not access registered memory anyway.
//!
//! The stacks of other threads cannot be distinguished from other memory. A region there must be deregistered before its frame ends.
//!
//! The program must not unmap or remap the pages during these calls. Before and after them it may.

use super::address_space::Errno;
use super::vma::{self, Origin, Vma};
use super::write_protect::{Means, is_own_stack};
use ferroce_os::fork::{self, Generation};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Weak};

mod memfd;
#[cfg(test)]
mod tests;

use memfd::{Memfd, PrivateCopy};
pub(crate) use memfd::{huge_pages, is_strict, memory_device, page_len};

/// Most bytes that one registration moves. All of them may have to be copied, which takes half a second per GiB, and again at deregistration.
pub(crate) const MAX_BACKED: usize = 4 << 30;
/// The largest huge page of any processor that has fewer than [`MAX_BACKED`] bytes.
pub(crate) const LARGEST_PAGE: usize = 1 << 30;

/// Why memory, or the end of it, is not in a memfd. That memory is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WhyNot {
    /// The region lies within one page, or across two without filling either.
    #[error("no whole page lies inside the region")]
    NoWholePage,
    /// More than [`MAX_BACKED`].
    #[error("the region is larger than {} GiB", MAX_BACKED >> 30)]
    TooLarge,
    /// Shared, of a file, the stack, not for reading and writing, with a gap, or partly in a memfd already.
    #[error("not all of it is private memory without a file, readable and writable, and not the stack")]
    NotPlainMemory,
    /// A system call failed with this `errno`.
    #[error("the kernel refused (errno {0})")]
    Refused(Errno),
}

impl WhyNot {
    fn of(errno: Errno) -> WhyNot {
        if errno == libc::EDEADLK { WhyNot::NotPlainMemory } else { WhyNot::Refused(errno) }
    }
}

/// Pages of this process in a memfd, so that a local peer can map them too.
#[derive(Debug)]
pub(crate) struct MemfdPages {
    file: Memfd,
    pages: Range<usize>,
    /// Why these are not all requested pages.
    rest: Option<WhyNot>,
    means: Means,
    process: Generation,
    /// The number of forks of the process when the pages moved in. Children that are forked later have the pages too.
    forks: u32,
}

impl MemfdPages {
    /// Moves the whole pages inside `[addr, addr + len)`, or only the first of them; [`Self::rest`] is the reason. If an existing
    /// memfd contains them, returns that one, which may begin before `addr`.
    pub(crate) fn move_in(addr: usize, len: usize) -> Result<Arc<MemfdPages>, WhyNot> {
        MemfdPages::move_in_with(addr, len, Means::Everyone)
    }

    fn move_in_with(addr: usize, len: usize, most: Means) -> Result<Arc<MemfdPages>, WhyNot> {
        let (page, mut pages) = match huge_page(&whole_pages(addr, len, page_len())?) {
            Some(page) => (page, whole_pages(addr, len, page)?),
            None => (page_len(), whole_pages(addr, len, page_len())?),
        };
        let too_large = (pages.len() > MAX_BACKED).then_some(WhyNot::TooLarge);
        pages.end = pages.end.min(pages.start + MAX_BACKED / page * page);
        let table = table();
        let mut ranges = match table.look(&pages) {
            Ok(holder) => return Ok(holder),
            Err(ranges) => ranges,
        };
        let found = mappings(&pages)?;
        let is_plain = if page == page_len() { Vma::is_plain } else { Vma::is_huge };
        if !vma::covers(&found, &pages) || !found.iter().all(is_plain) || is_own_stack(&pages) {
            return Err(WhyNot::NotPlainMemory);
        }
        let file = Memfd::new(pages.len(), page).map_err(WhyNot::Refused)?;
        let key = (pages.start, file.descriptor.inode);
        ranges.insert(key, &pages, file.descriptor.device);
        drop(ranges);
        let forks = fork::count();
        let moved = table.take_in(&file, &pages, most);
        let backed = moved.map(|(pages, means, refused)| {
            let rest = refused.or(too_large);
            Arc::new(MemfdPages { file, pages, rest, means, process: table.process, forks })
        });
        let mut ranges = table.ranges.lock();
        match &backed {
            Ok(backed) => ranges.complete(key, backed),
            Err(_) => ranges.remove(key),
        }
        table.settled.notify_all();
        backed
    }

    /// The memfd. Its length is sealed, so a local peer that maps it gets no SIGBUS.
    pub(crate) fn fd(&self) -> RawFd {
        self.file.descriptor.raw()
    }

    /// The memfd's inode, by which a local peer checks that it opened this one.
    pub(crate) fn inode(&self) -> u64 {
        self.file.descriptor.inode
    }

    /// The memfd's device, as `stat` writes it.
    pub(crate) fn device(&self) -> u64 {
        self.file.descriptor.device
    }

    /// The address of the first page, which is offset 0 of the memfd.
    pub(crate) fn start(&self) -> usize {
        self.pages.start
    }

    /// Bytes, a whole number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Why only the first of the pages are in the memfd, if so.
    pub(crate) fn rest(&self) -> Option<WhyNot> {
        self.rest
    }

    /// Whether stores of other threads were held back while the pages moved in. Otherwise a store may have been lost.
    pub(crate) fn held_stores_back(&self) -> bool {
        self.means != Means::Nothing
    }
}

impl Drop for MemfdPages {
    /// Makes the pages private again, except for those that the program has unmapped or replaced. If a system call fails, the remaining
    /// pages stay in the memfd, which then exists as long as they are mapped.
    fn drop(&mut self) {
        // A child has its parent's mapping but not its registrations, and perhaps not the program's other threads.
        if !self.process.is_current() {
            return;
        }
        let table = table();
        let found = vma::mappings(&self.pages).unwrap_or_default();
        for mapping in found.iter().filter(|mapping| self.file.is_in(mapping, self.pages.start)) {
            let _ = self.give_back(mapping, table);
        }
        table.ranges.lock().remove((self.pages.start, self.file.descriptor.inode));
        table.settled.notify_all();
    }
}

impl MemfdPages {
    /// Makes those of the pages private that a mapping still maps.
    fn give_back(&self, mapping: &Vma, table: &Table) -> Result<(), Errno> {
        let shown = mapping.pages.start.max(self.pages.start)..mapping.pages.end.min(self.pages.end);
        let mut copy = PrivateCopy::new(&self.file, shown.len())?;
        for piece in self.file.pieces(&shown) {
            let _alone = table.exchange.lock();
            if !self.file.descriptor.is_open() {
                return Err(libc::EBADF);
            }
            let offset = piece.start - self.pages.start;
            self.file.give_back(&piece, offset, mapping, &mut copy, self.means)?;
            // Only if no child was forked meanwhile: a child has the file's pages. A local peer may read them, and discards the bytes it read.
            if self.file.may_have_holes() && fork::count() == self.forks {
                self.file.release(offset, piece.len());
            }
        }
        Ok(())
    }
}

/// The pages of this process that are in memfds.
struct Table {
    process: Generation,
    ranges: Mutex<Ranges>,
    /// Notified when pages have moved in, or back.
    settled: Condvar,
    /// One thread at a time exchanges pages: two could deadlock, if each write-protected the other's stack.
    exchange: Mutex<()>,
}

/// Keyed by start and inode: the program may replace pages that are in a memfd and register the new ones while the old memfd exists.
#[derive(Default)]
struct Ranges {
    entries: BTreeMap<Key, Entry>,
    /// Length of the longest entry so far, in bytes.
    longest: usize,
}

type Key = (usize, u64);

struct Entry {
    pages: Range<usize>,
    device: u64,
    /// Has no strong reference while the pages move in or back.
    holder: Weak<MemfdPages>,
}

impl Ranges {
    /// Adds pages that are about to move in.
    fn insert(&mut self, key: Key, pages: &Range<usize>, device: u64) {
        self.longest = self.longest.max(pages.len());
        self.entries.insert(key, Entry { pages: pages.clone(), device, holder: Weak::new() });
    }

    /// Records that the pages of an entry have moved in.
    fn complete(&mut self, key: Key, backed: &Arc<MemfdPages>) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.pages, entry.holder) = (backed.pages.clone(), Arc::downgrade(backed));
        }
    }

    fn remove(&mut self, key: Key) {
        self.entries.remove(&key);
    }

    /// The entries that contain any of these pages.
    fn overlapping(&self, pages: &Range<usize>) -> impl Iterator<Item = (u64, &Entry)> + Clone {
        let (start, first) = (pages.start, (pages.start.saturating_sub(self.longest), 0));
        let near = self.entries.range(first..(pages.end, 0));
        near.filter(move |(_, entry)| entry.pages.end > start).map(|((_, inode), entry)| (*inode, entry))
    }
}

impl Table {
    /// The holder that has all these pages already. Otherwise the locked table, in which none of the pages is moving in or back.
    fn look(&self, pages: &Range<usize>) -> Result<Arc<MemfdPages>, MutexGuard<'_, Ranges>> {
        let mut ranges = self.ranges.lock();
        loop {
            let mut near = ranges.overlapping(pages);
            if near.clone().any(|(_, entry)| entry.holder.strong_count() == 0) {
                drop(near);
                self.settled.wait(&mut ranges);
                continue;
            }
            let Some((_, entry)) = near.find(|(inode, entry)| entry.has(pages, *inode)) else {
                drop(near);
                break Err(ranges);
            };
            // Upgraded only to be returned: the last holder must not be dropped here, under the lock.
            if let Some(holder) = entry.holder.upgrade() {
                break Ok(holder);
            }
        }
    }

    /// Moves pages in, perhaps only the first pieces. Returns the moved pages, how stores were held back, and why not all pages moved.
    fn take_in(
        &self,
        file: &Memfd,
        pages: &Range<usize>,
        most: Means,
    ) -> Result<(Range<usize>, Means, Option<WhyNot>), WhyNot> {
        let mut means = Means::Everyone;
        for piece in file.pieces(pages) {
            let offset = piece.start - pages.start;
            let moved = file.prepare(&piece, offset).and_then(|prepared| {
                let _alone = self.exchange.lock();
                file.take_in(&piece, offset, prepared, most)
            });
            match moved {
                Ok(used) => means = means.max(used),
                Err(errno) if piece.start == pages.start => return Err(WhyNot::of(errno)),
                Err(errno) => {
                    file.release(offset, pages.end - piece.start);
                    return Ok((pages.start..piece.start, means, Some(WhyNot::of(errno))));
                }
            }
        }
        Ok((pages.clone(), means, None))
    }
}

impl Entry {
    /// Whether the entry contains the pages, and they are still mapped to the memfd.
    fn has(&self, pages: &Range<usize>, inode: u64) -> bool {
        let inside = self.pages.start <= pages.start && pages.end <= self.pages.end;
        let found = if inside { vma::mappings(pages).unwrap_or_default() } else { Vec::new() };
        let is_in = |mapping| is_in_file(mapping, inode, self.device, self.pages.start);
        vma::covers(&found, pages) && found.iter().all(|mapping| is_in(mapping) && mapping.writable)
    }
}

/// The table of this process. A forked child gets a table of its own: a thread of the parent may have held the lock at the moment of the
/// fork.
fn table() -> &'static Table {
    static TABLE: AtomicPtr<Table> = AtomicPtr::new(ptr::null_mut());
    let process = Generation::current();
    let found = TABLE.load(Ordering::Acquire);
    // SAFETY: a table is never freed once it is stored.
    if let Some(table) = unsafe { found.as_ref() }.filter(|table| table.process == process) {
        return table;
    }
    let (ranges, settled, exchange) = (Mutex::default(), Condvar::new(), Mutex::default());
    let fresh = Box::into_raw(Box::new(Table { process, ranges, settled, exchange }));
    match TABLE.compare_exchange(found, fresh, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: `fresh` was just created, and is never freed once it is stored.
        Ok(_) => unsafe { &*fresh },
        Err(_) => {
            // SAFETY: no other thread has `fresh`.
            drop(unsafe { Box::from_raw(fresh) });
            table()
        }
    }
}

/// The size of the huge page at the start of a range, if it is one.
fn huge_page(pages: &Range<usize>) -> Option<usize> {
    let first = vma::mappings(&(pages.start..pages.start + 1)).ok()?.pop()?;
    let is_huge = |(device, _): &&(u64, usize)| *device == first.device;
    let may_be = matches!(first.origin, Origin::HugeMemory | Origin::MemfdPages);
    may_be.then(|| huge_pages().iter().find(is_huge))?.map(|(_, page)| *page)
}

fn whole_pages(addr: usize, len: usize, page: usize) -> Result<Range<usize>, WhyNot> {
    let start = addr.checked_next_multiple_of(page).ok_or(WhyNot::NoWholePage)?;
    let end = addr.checked_add(len).ok_or(WhyNot::NoWholePage)? & !(page - 1);
    match end.checked_sub(start) {
        None | Some(0) => Err(WhyNot::NoWholePage),
        Some(_) => Ok(start..end),
    }
}

fn mappings(pages: &Range<usize>) -> Result<Vec<Vma>, WhyNot> {
    vma::mappings(pages).map_err(|error| WhyNot::Refused(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Whether a mapping maps this file, at the addresses that result if the file's first byte is at `start`.
fn is_in_file(mapping: &Vma, inode: u64, device: u64, start: usize) -> bool {
    let same_file = mapping.shared && mapping.inode == inode && mapping.device == device;
    same_file && mapping.pages.start.checked_sub(start) == Some(mapping.offset as usize)
}
