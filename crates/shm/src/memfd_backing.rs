//! Registered memory that a local peer can map: its pages are moved into a memfd, which is mapped at the same address.
//!
//! Pointers stay valid and a second mapping of the memfd sees every store. When the last holder goes, the pages become private
//! memory again, with what they hold. No store of another thread is lost either way; `write_protect` says how, and where
//! not. Stores of a *local peer* arrive until the restoration and not after it: deregistration must wait for them first.
//!
//! Pages move piece by piece. What the kernel refuses to move ends the file, and the pieces before stay in it.
//!
//! Only ordinary memory is moved into a memfd, and private huge pages, into a file of huge pages of the same length. What the kernel knows of a mapping beyond that is lost, and does not come back: `mlock`, `madvise`
//! (`MADV_DONTFORK`, `MADV_HUGEPAGE`...), memory policies, protection keys, names, growing downwards. A mapping that was one
//! is several afterwards, so that the program's own `mremap` of the whole may fail (that of glibc's `realloc`
//! copies instead then). A forked child shares in a memfd pages with its parent; registered memory is off limits to it
//! anyway.
//!
//! The stacks of other threads cannot be told from other memory. A region there must be deregistered before its frame ends.
//!
//! The program must not unmap or remap the pages during these calls; before and after, it may.

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

/// What one registration moves at most: all of it may have to be copied, which takes half a second per GiB, and again at deregistration.
pub(crate) const MAX_BACKED: usize = 4 << 30;
/// The largest huge page of any processor that has fewer than [`MAX_BACKED`] bytes.
pub(crate) const LARGEST_PAGE: usize = 1 << 30;

/// Why memory, or the end of it, is not in a memfd. It is then as it was before.
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
    /// The kernel would not, with this `errno`.
    #[error("the kernel refused (errno {0})")]
    Refused(Errno),
}

impl WhyNot {
    fn of(errno: Errno) -> WhyNot {
        if errno == libc::EDEADLK { WhyNot::NotPlainMemory } else { WhyNot::Refused(errno) }
    }
}

/// Pages of this process that lie in a memfd, so that a local peer can map them too.
#[derive(Debug)]
pub(crate) struct MemfdPages {
    file: Memfd,
    pages: Range<usize>,
    /// Why these are not all pages that were asked for.
    rest: Option<WhyNot>,
    means: Means,
    process: Generation,
    /// How often the process had forked when they moved in. Children that were forked later have them too.
    forks: u32,
}

impl MemfdPages {
    /// Moves the whole pages inside `[addr, addr + len)`, or the first of them; [`Self::rest`] says why. If they lie inside what is
    /// moved into a memfd already, that is shared, and so may begin before `addr`.
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

    /// The memfd. It cannot change its length, so that a local peer that maps it need not fear SIGBUS.
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

    /// Whether stores of other threads were held back while the pages moved in. If not, one may have been lost.
    pub(crate) fn held_stores_back(&self) -> bool {
        self.means != Means::Nothing
    }
}

impl Drop for MemfdPages {
    /// Makes the pages private again. What the program unmapped or mapped anew meanwhile is left alone; and where the kernel
    /// refuses, the pages stay in the memfd, which then lives as long as they are mapped.
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
    /// Makes private memory of what a mapping still shows.
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
            // A child that was forked since then has the file's pages. A local peer may read them and discards what it read.
            if self.file.may_have_holes() && fork::count() == self.forks {
                self.file.release(offset, piece.len());
            }
        }
        Ok(())
    }
}

/// What is moved into a memfd in this process.
struct Table {
    process: Generation,
    ranges: Mutex<Ranges>,
    /// Pages have moved in, or back.
    settled: Condvar,
    /// One thread at a time exchanges pages: two might wait for each other, if each had the other's stack.
    exchange: Mutex<()>,
}

/// By start and inode: the program may map anew what is moved into a memfd and register it again while the old one lives.
#[derive(Default)]
struct Ranges {
    entries: BTreeMap<Key, Entry>,
    /// Bytes of the longest entry that there ever was.
    longest: usize,
}

type Key = (usize, u64);

struct Entry {
    pages: Range<usize>,
    device: u64,
    /// Nobody while the pages move in or back.
    holder: Weak<MemfdPages>,
}

impl Ranges {
    /// Pages that are about to move in.
    fn insert(&mut self, key: Key, pages: &Range<usize>, device: u64) {
        self.longest = self.longest.max(pages.len());
        self.entries.insert(key, Entry { pages: pages.clone(), device, holder: Weak::new() });
    }

    /// They have moved in.
    fn complete(&mut self, key: Key, backed: &Arc<MemfdPages>) {
        if let Some(entry) = self.entries.get_mut(&key) {
            (entry.pages, entry.holder) = (backed.pages.clone(), Arc::downgrade(backed));
        }
    }

    fn remove(&mut self, key: Key) {
        self.entries.remove(&key);
    }

    /// Those that have one of these pages.
    fn overlapping(&self, pages: &Range<usize>) -> impl Iterator<Item = (u64, &Entry)> + Clone {
        let (start, first) = (pages.start, (pages.start.saturating_sub(self.longest), 0));
        let near = self.entries.range(first..(pages.end, 0));
        near.filter(move |(_, entry)| entry.pages.end > start).map(|((_, inode), entry)| (*inode, entry))
    }
}

impl Table {
    /// Who has all these pages already; otherwise the table, with none of them on the way in or back.
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
            // Upgraded only to be handed out: the last holder must not be dropped here, under the lock.
            if let Some(holder) = entry.holder.upgrade() {
                break Ok(holder);
            }
        }
    }

    /// Moves pages in, in the end perhaps only the first pieces of them. Returns which, how stores were held back, and why not all.
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
    /// Whether the pages are among these, and still mapped to the memfd.
    fn has(&self, pages: &Range<usize>, inode: u64) -> bool {
        let inside = self.pages.start <= pages.start && pages.end <= self.pages.end;
        let found = if inside { vma::mappings(pages).unwrap_or_default() } else { Vec::new() };
        let is_in = |mapping| is_in_file(mapping, inode, self.device, self.pages.start);
        vma::covers(&found, pages) && found.iter().all(|mapping| is_in(mapping) && mapping.writable)
    }
}

/// The table of this process. One per process of a chain of forks: some thread of the parent may have held the lock at the
/// moment of the fork.
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
        // SAFETY: `fresh` was just made, and is never freed now that it is stored.
        Ok(_) => unsafe { &*fresh },
        Err(_) => {
            // SAFETY: nobody has seen `fresh`.
            drop(unsafe { Box::from_raw(fresh) });
            table()
        }
    }
}

/// The length of the pages that these begin in, if they are huge ones.
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

/// Whether a mapping shows a file whose first byte is at `start`, just there.
fn is_in_file(mapping: &Vma, inode: u64, device: u64, start: usize) -> bool {
    let same_file = mapping.shared && mapping.inode == inode && mapping.device == device;
    same_file && mapping.pages.start.checked_sub(start) == Some(mapping.offset as usize)
}
