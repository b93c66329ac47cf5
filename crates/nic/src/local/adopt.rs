//! Registered memory that a neighbour can map: its pages are moved into a memfd, which is mapped at the same address.
//!
//! Pointers stay valid and a second mapping of the memfd sees every store. When the last holder goes, the pages become private
//! memory again, with what they hold. No store of another thread is lost either way; `standstill` says how, and where
//! not. Stores of a *neighbour* arrive until the restoration and not after it: deregistration must wait for them first.
//!
//! Only ordinary memory is adopted. What the kernel knows of a mapping beyond that is lost, and does not come back: `mlock`, `madvise`
//! (`MADV_DONTFORK`, `MADV_HUGEPAGE`...), memory policies, protection keys, names, growing downwards. A mapping that was one
//! is several afterwards, so that the program's own `mremap` of the whole may fail (that of glibc's `realloc`
//! copies instead then). A forked child shares adopted pages with its parent; registered memory is off limits to it
//! anyway.
//!
//! The stacks of other threads cannot be told from other memory. A region there must be deregistered before its frame ends.
//!
//! The program must not unmap or remap the pages during these calls; before and after, it may.

use super::maps::{self, Mapping};
use super::standstill::{
    Errno, Kind, Means, SignalsHeld, Standstill, is_own_stack, last_errno, own, populate,
};
use crate::fork::Generation;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, OnceLock, Weak};

#[cfg(test)]
mod tests;

/// What one registration may move. Twice that much is in use for a moment, and all of it is copied.
pub(crate) const MAX_ADOPTED: usize = 64 << 20;

/// Why memory was not adopted. It is then as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WhyNot {
    /// The region lies within one page, or across two without filling either.
    #[error("no whole page lies inside the region")]
    NoWholePage,
    /// More than [`MAX_ADOPTED`].
    #[error("the region is larger than {} MiB", MAX_ADOPTED >> 20)]
    TooLarge,
    /// Shared, of a file, of huge pages, the stack, not for reading and writing, with a gap, or partly adopted already.
    #[error("not all of it is private memory without a file, readable and writable, and not the stack")]
    NotPlainMemory,
    /// The kernel would not, with this `errno`.
    #[error("the kernel refused (errno {0})")]
    Refused(Errno),
}

/// Pages of this process that lie in a memfd, so that a neighbour can map them too.
#[derive(Debug)]
pub(crate) struct Adopted {
    file: Memfd,
    pages: Range<usize>,
    means: Means,
    process: Generation,
}

impl Adopted {
    /// Adopts the whole pages inside `[addr, addr + len)`. If they lie inside what is adopted already, that is shared, and
    /// so may begin before `addr`.
    pub(crate) fn adopt(addr: usize, len: usize) -> Result<Arc<Adopted>, WhyNot> {
        Adopted::adopt_with(addr, len, Means::Everyone)
    }

    fn adopt_with(addr: usize, len: usize, most: Means) -> Result<Arc<Adopted>, WhyNot> {
        let pages = whole_pages(addr, len)?;
        let table = table();
        let mut ranges = match table.look(&pages) {
            Ok(holder) => return Ok(holder),
            Err(ranges) => ranges,
        };
        let found = mappings(&pages)?;
        if !maps::covers(&found, &pages) || !found.iter().all(Mapping::is_plain) || is_own_stack(&pages) {
            return Err(WhyNot::NotPlainMemory);
        }
        let file = Memfd::new(pages.len()).map_err(WhyNot::Refused)?;
        let means = file.take_in(&pages, most).map_err(|errno| match errno {
            libc::EDEADLK => WhyNot::NotPlainMemory,
            errno => WhyNot::Refused(errno),
        })?;
        // Spares the data path its page faults; an error here would be one there as well.
        let _ = populate(&pages, libc::MADV_POPULATE_WRITE);
        let adopted = Arc::new(Adopted { file, pages, means, process: table.process });
        let (pages, device, holder) = (adopted.pages.clone(), adopted.device(), Arc::downgrade(&adopted));
        ranges.insert((pages.start, adopted.inode()), Entry { pages, device, holder });
        Ok(adopted)
    }

    /// The memfd. It cannot change its length, so that a neighbour that maps it need not fear SIGBUS.
    pub(crate) fn fd(&self) -> RawFd {
        self.file.fd.as_raw_fd()
    }

    /// The memfd's inode, by which a neighbour knows that what it opened is this.
    pub(crate) fn inode(&self) -> u64 {
        self.file.inode
    }

    /// The memfd's device, as `stat` writes it.
    pub(crate) fn device(&self) -> u64 {
        self.file.device
    }

    /// The address of the first page, which is offset 0 of the memfd.
    pub(crate) fn start(&self) -> usize {
        self.pages.start
    }

    /// Bytes, a whole number of pages.
    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }

    /// Whether stores of other threads were held back while the pages moved in. If not, one may have been lost.
    pub(crate) fn held_stores_back(&self) -> bool {
        self.means != Means::Nothing
    }
}

impl Drop for Adopted {
    /// Makes the pages private again. What the program unmapped or mapped anew meanwhile is left alone; and where the kernel
    /// refuses, the pages stay in the memfd, which then lives as long as they are mapped.
    fn drop(&mut self) {
        // A child has its parent's mapping but not its registrations, and perhaps not the program's other threads.
        if !self.process.is_current() {
            return;
        }
        let table = table();
        let mut ranges = table.ranges.lock();
        if self.file.is_still_open() {
            let found = maps::mappings(&self.pages).unwrap_or_default();
            for mapping in found.iter().filter(|mapping| self.file.is_in(mapping, self.pages.start)) {
                let _ = self.file.give_back(mapping, &self.pages, self.means);
            }
        }
        ranges.remove(&(self.pages.start, self.file.inode));
        table.restored.notify_all();
    }
}

/// What is adopted in this process.
struct Table {
    process: Generation,
    /// By start and inode: the program may map anew what is adopted and register it again while the old one lives.
    ranges: Mutex<Ranges>,
    restored: Condvar,
}

type Ranges = BTreeMap<(usize, u64), Entry>;

struct Entry {
    pages: Range<usize>,
    device: u64,
    holder: Weak<Adopted>,
}

impl Table {
    /// Who has all these pages already; otherwise the table, with no restoration of any of them under way.
    fn look(&self, pages: &Range<usize>) -> Result<Arc<Adopted>, MutexGuard<'_, Ranges>> {
        let mut ranges = self.ranges.lock();
        loop {
            let first = (pages.start.saturating_sub(MAX_ADOPTED), 0);
            let mut near = ranges
                .range(first..(pages.end, 0))
                .filter(|(_, entry)| entry.pages.end > pages.start)
                .map(|((_, inode), entry)| (*inode, entry));
            let has_gone = |entry: &Entry| entry.holder.strong_count() == 0;
            if near.clone().any(|(_, entry)| has_gone(entry)) {
                self.restored.wait(&mut ranges);
                continue;
            }
            let Some((_, entry)) = near.find(|(inode, entry)| entry.has(pages, *inode)) else {
                break Err(ranges);
            };
            // Upgraded only to be handed out: the last holder must not be dropped here, under the lock.
            if let Some(holder) = entry.holder.upgrade() {
                break Ok(holder);
            }
        }
    }
}

impl Entry {
    /// Whether the pages are among these, and still mapped to the memfd.
    fn has(&self, pages: &Range<usize>, inode: u64) -> bool {
        let inside = self.pages.start <= pages.start && pages.end <= self.pages.end;
        let found = if inside { maps::mappings(pages).unwrap_or_default() } else { Vec::new() };
        let is_in = |mapping| is_in_file(mapping, inode, self.device, self.pages.start);
        maps::covers(&found, pages) && found.iter().all(|mapping| is_in(mapping) && mapping.writable)
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
    let ranges = Mutex::default();
    let fresh = Box::into_raw(Box::new(Table { process, ranges, restored: Condvar::new() }));
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

fn whole_pages(addr: usize, len: usize) -> Result<Range<usize>, WhyNot> {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: asks for a number.
    let page = *PAGE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize);
    let start = addr.checked_next_multiple_of(page).ok_or(WhyNot::NoWholePage)?;
    let end = addr.checked_add(len).ok_or(WhyNot::NoWholePage)? & !(page - 1);
    match end.checked_sub(start) {
        None | Some(0) => Err(WhyNot::NoWholePage),
        Some(len) if len > MAX_ADOPTED => Err(WhyNot::TooLarge),
        Some(_) => Ok(start..end),
    }
}

fn mappings(pages: &Range<usize>) -> Result<Vec<Mapping>, WhyNot> {
    maps::mappings(pages).map_err(|error| WhyNot::Refused(error.raw_os_error().unwrap_or(libc::EIO)))
}

/// Whether a mapping shows a file whose first byte is at `start`, just there.
fn is_in_file(mapping: &Mapping, inode: u64, device: u64, start: usize) -> bool {
    let same_file = mapping.shared && mapping.inode == inode && mapping.device == device;
    same_file && mapping.pages.start.checked_sub(start) == Some(mapping.offset as usize)
}

/// Memory as a file.
#[derive(Debug)]
struct Memfd {
    fd: OwnedFd,
    inode: u64,
    device: u64,
}

/// Linux 6.3. Machines that forbid executable memfds insist on it.
const MFD_NOEXEC_SEAL: libc::c_uint = 8;

impl Memfd {
    /// Every page is there, so that lack of memory is an error here and not SIGBUS later; and the length is final.
    fn new(len: usize) -> Result<Memfd, Errno> {
        let make = |flags| {
            // SAFETY: makes a descriptor; the name is a C string.
            own(unsafe { libc::memfd_create(c"ferroce".as_ptr(), flags | libc::MFD_CLOEXEC) })
        };
        let fd = make(MFD_NOEXEC_SEAL | libc::MFD_ALLOW_SEALING).or_else(|errno| match errno {
            libc::EINVAL => make(libc::MFD_ALLOW_SEALING),
            errno => Err(errno),
        })?;
        leave_rest_to_program(&fd, len)?;
        // A signal makes `fallocate` undo its work and fail; with a profiler's timer it would never get through.
        let _signals = SignalsHeld::new();
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: three calls on a descriptor of ours; `len` is at most `MAX_ADOPTED`.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t))?;
            check(libc::fallocate(fd.as_raw_fd(), 0, 0, len as libc::off_t))?;
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
        }
        let (inode, device) = identity(&fd)?;
        Ok(Memfd { fd, inode, device })
    }

    /// Moves private pages in. If it fails, they are as before.
    #[inline(never)]
    fn take_in(&self, pages: &Range<usize>, most: Means) -> Result<Means, Errno> {
        let standstill = Standstill::begin(pages, Kind::Anonymous, most)?;
        self.write(pages)?;
        if let Err(errno) = self.map_over(pages, 0) {
            if !is_mapped(pages) {
                self.fill_hole(pages);
            }
            return Err(errno);
        }
        let means = standstill.means();
        standstill.end_exchanged();
        Ok(means)
    }

    /// Makes private memory of what a mapping still shows of `adopted`. If it fails, the pages stay shared.
    #[inline(never)]
    fn give_back(&self, mapping: &Mapping, adopted: &Range<usize>, most: Means) -> Result<(), Errno> {
        let piece = mapping.pages.start.max(adopted.start)..mapping.pages.end.min(adopted.end);
        let offset = piece.start - adopted.start;
        let copy = Scratch::new(piece.len())?;
        let standstill = Standstill::begin(&piece, Kind::Memfd, most)?;
        self.read(offset, &copy.0)?;
        copy.protect(mapping)?;
        if let Err(errno) = copy.move_over(&piece) {
            if !is_mapped(&piece) && self.map_over(&piece, offset).is_err() {
                give_up();
            }
            return Err(errno);
        }
        standstill.end_exchanged();
        Ok(())
    }

    fn map_over(&self, pages: &Range<usize>, offset: usize) -> Result<(), Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_SHARED | libc::MAP_FIXED;
        map(pages.start, pages.len(), rights, how, self.fd.as_raw_fd(), offset).map(drop)
    }

    /// The kernel unmaps before it maps, and old ones may fail in between. The contents are in the file by then.
    fn fill_hole(&self, pages: &Range<usize>) {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        let filled = map(pages.start, pages.len(), rights, how, -1, 0).and_then(|_| self.read(0, pages));
        if filled.is_err() {
            give_up();
        }
    }

    /// The kernel copies: to it, memory that others write at the same time is nothing special.
    fn write(&self, from: &Range<usize>) -> Result<(), Errno> {
        let mut at = from.start;
        while at < from.end {
            let offset = (at - from.start) as libc::off_t;
            // SAFETY: the kernel checks the pages that it reads from.
            let n = unsafe { libc::pwrite(self.fd.as_raw_fd(), at as *const _, from.end - at, offset) };
            at += progress(n)?;
        }
        Ok(())
    }

    fn read(&self, offset: usize, to: &Range<usize>) -> Result<(), Errno> {
        let mut at = to.start;
        while at < to.end {
            let offset = (offset + at - to.start) as libc::off_t;
            // SAFETY: only called for pages that nobody has a reference to: a copy in the making, or a hole just filled.
            let n = unsafe { libc::pread(self.fd.as_raw_fd(), at as *mut _, to.end - at, offset) };
            at += progress(n)?;
        }
        Ok(())
    }

    fn is_in(&self, mapping: &Mapping, start: usize) -> bool {
        is_in_file(mapping, self.inode, self.device, start)
    }

    /// Programs that become daemons close descriptors that they do not know.
    fn is_still_open(&self) -> bool {
        identity(&self.fd) == Ok((self.inode, self.device))
    }
}

/// Private memory in the making.
struct Scratch(Range<usize>);

impl Scratch {
    fn new(len: usize) -> Result<Scratch, Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(0, len, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, -1, 0)?;
        Ok(Scratch(start..start + len))
    }

    /// Gives it the rights that the program gave to the pages it replaces.
    fn protect(&self, like: &Mapping) -> Result<(), Errno> {
        let bits = [
            (like.readable, libc::PROT_READ),
            (like.writable, libc::PROT_WRITE),
            (like.executable, libc::PROT_EXEC),
        ];
        let rights = bits.iter().filter(|(has, _)| *has).fold(0, |rights, (_, bit)| rights | bit);
        // SAFETY: pages of ours that nobody has a reference to.
        check(unsafe { libc::mprotect(self.0.start as *mut libc::c_void, self.0.len(), rights) })
    }

    /// Puts it in the place of other pages of the same length, in one step as far as other threads can see.
    fn move_over(self, pages: &Range<usize>) -> Result<(), Errno> {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (self.0.start as *mut libc::c_void, pages.start as *mut libc::c_void);
        // SAFETY: `pages` hold the same bytes, so nobody can tell; and our own range is not used again.
        if unsafe { libc::mremap(from, self.0.len(), self.0.len(), how, to) } == libc::MAP_FAILED {
            return Err(last_errno());
        }
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: pages of ours that nobody has a reference to.
        unsafe { libc::munmap(self.0.start as *mut libc::c_void, self.0.len()) };
    }
}

fn map(
    addr: usize,
    len: usize,
    rights: libc::c_int,
    how: libc::c_int,
    fd: RawFd,
    offset: usize,
) -> Result<usize, Errno> {
    // SAFETY: either anywhere, or over pages whose bytes the file holds too; so nobody can tell.
    let at = unsafe { libc::mmap(addr as *mut libc::c_void, len, rights, how, fd, offset as libc::off_t) };
    if at == libc::MAP_FAILED { Err(last_errno()) } else { Ok(at as usize) }
}

/// Whether every page belongs to some mapping.
fn is_mapped(pages: &Range<usize>) -> bool {
    // SAFETY: an asynchronous `msync` does nothing but look for holes in the range.
    unsafe { libc::msync(pages.start as *mut libc::c_void, pages.len(), libc::MS_ASYNC) == 0 }
}

/// Memory of the program is gone and cannot be brought back; it must not run on into whatever is mapped there next.
fn give_up() -> ! {
    std::process::abort()
}

/// Refuses a descriptor from the upper half of what the process may have, since the program needs some too; and a length that the
/// kernel would answer with a signal.
fn leave_rest_to_program(fd: &OwnedFd, len: usize) -> Result<(), Errno> {
    let unlimited = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    let (mut descriptors, mut length) = (unlimited, unlimited);
    // SAFETY: fills both.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut descriptors);
        libc::getrlimit(libc::RLIMIT_FSIZE, &mut length);
    }
    if fd.as_raw_fd() as libc::rlim_t >= descriptors.rlim_cur / 2 {
        return Err(libc::EMFILE);
    }
    if len as libc::rlim_t > length.rlim_cur { Err(libc::EFBIG) } else { Ok(()) }
}

fn identity(fd: &OwnedFd) -> Result<(u64, u64), Errno> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` fills it if it answers 0, and it is used only then.
    let stat = unsafe {
        check(libc::fstat(fd.as_raw_fd(), stat.as_mut_ptr()))?;
        stat.assume_init()
    };
    Ok((stat.st_ino, stat.st_dev))
}

fn check(answer: libc::c_int) -> Result<(), Errno> {
    if answer < 0 { Err(last_errno()) } else { Ok(()) }
}

fn progress(answer: isize) -> Result<usize, Errno> {
    match answer {
        1.. => Ok(answer as usize),
        0 => Err(libc::EIO),
        _ => Err(last_errno()),
    }
}
