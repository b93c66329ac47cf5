//! Memory as a file: how pages get in and out.
//!
//! Files of huge pages cannot be read or written by system calls, so those are copied through a second mapping. All their pages are
//! brought in by a call that can fail before any is touched: where there is none to be had, touching one is a signal.

use super::super::address_space::{self, Errno, What, last_errno, populate};
use super::super::held_fd::{HeldFd, check, identity, leave_rest_to_program};
use super::super::vma::Vma;
use super::super::write_protect::{Kind, Means, SignalsHeld, WriteProtect, own};
use super::is_in_file;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// Bytes of an ordinary page.
pub(crate) fn page_len() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    // SAFETY: asks for a number.
    *PAGE.get_or_init(|| unsafe { libc::sysconf(libc::_SC_PAGESIZE) }.max(4096) as usize)
}

/// The huge pages of this machine: the device on which files of them lie, and their length. Private memory of huge pages
/// lies on the same.
pub(crate) fn huge_pages() -> &'static [(u64, usize)] {
    static SIZES: OnceLock<Vec<(u64, usize)>> = OnceLock::new();
    SIZES.get_or_init(|| {
        let sizes = (page_len().ilog2() + 1..usize::BITS - 1).map(|bits| 1_usize << bits);
        sizes
            .filter_map(|page| {
                Some((Memfd::create(page).and_then(|fd| identity(fd.as_raw_fd())).ok()?.1, page))
            })
            .collect()
    })
}

/// The device on which memfds of ordinary pages lie, and System V segments.
pub(crate) fn memory_device() -> Option<u64> {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    let ask = || Memfd::create(page_len()).and_then(|fd| identity(fd.as_raw_fd())).ok();
    DEVICE.get_or_init(|| Some(ask()?.1)).to_owned()
}

/// What `mmap` and `memfd_create` want to be told of pages that are not the ordinary ones.
fn page_flags(page: usize, huge: libc::c_uint) -> libc::c_uint {
    if page == page_len() { 0 } else { huge | page.ilog2() << libc::MAP_HUGE_SHIFT }
}

/// Memory as a file.
#[derive(Debug)]
pub(crate) struct Memfd {
    pub(crate) descriptor: HeldFd,
    /// Bytes of a page.
    page: usize,
}

/// Linux 6.3. Machines that forbid executable memfds insist on it.
const MFD_NOEXEC_SEAL: libc::c_uint = 8;

impl Memfd {
    fn create(page: usize) -> Result<OwnedFd, Errno> {
        let always = page_flags(page, libc::MFD_HUGETLB) | libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        let make = |flags| {
            // SAFETY: makes a descriptor; the name is a C string, by which `vma` knows what was moved into a memfd.
            own(unsafe { libc::memfd_create(c"ferroce".as_ptr(), flags | always) })
        };
        make(MFD_NOEXEC_SEAL).or_else(|errno| if errno == libc::EINVAL { make(0) } else { Err(errno) })
    }

    /// The length is final. Huge pages are all there; ordinary ones when they are written, which is next, so that lack of memory is an error
    /// then and not SIGBUS later.
    pub(crate) fn new(len: usize, page: usize) -> Result<Memfd, Errno> {
        let fd = Memfd::create(page)?;
        leave_rest_to_program(&fd, len)?;
        // A signal makes `fallocate` undo its work and fail; with a profiler's timer it would never get through.
        let _signals = SignalsHeld::new();
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: three calls on a descriptor of ours; `len` is at most `MAX_BACKED`.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t))?;
            if page != page_len() {
                check(libc::fallocate(fd.as_raw_fd(), 0, 0, len as libc::off_t))?;
            }
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
        }
        Ok(Memfd { descriptor: HeldFd::new(fd)?, page })
    }

    /// Moves private pages in. If it fails, they are as before.
    #[inline(never)]
    pub(crate) fn take_in(&self, pages: &Range<usize>, most: Means) -> Result<Means, Errno> {
        if self.is_huge() {
            populate(pages, libc::MADV_POPULATE_READ)?;
        }
        // Where userfaultfd cannot protect huge pages, it is as if there were none.
        let kind = if self.is_huge() { Kind::Memfd } else { Kind::Anonymous };
        let write_protect = WriteProtect::begin(pages, kind, most)?;
        self.write(pages)?;
        if let Err(errno) = self.map_over(pages, 0) {
            if !is_mapped(pages) {
                self.fill_hole(pages);
            }
            return Err(errno);
        }
        let means = write_protect.means();
        write_protect.end_exchanged();
        Ok(means)
    }

    /// Makes private memory of what a mapping still shows of `backed`. If it fails, the pages stay shared.
    #[inline(never)]
    pub(crate) fn give_back(&self, mapping: &Vma, backed: &Range<usize>, most: Means) -> Result<(), Errno> {
        let piece = mapping.pages.start.max(backed.start)..mapping.pages.end.min(backed.end);
        let offset = piece.start - backed.start;
        let copy = Scratch::new(piece.len(), self.page)?;
        let write_protect = WriteProtect::begin(&piece, Kind::Memfd, most)?;
        self.read(offset, &copy.0)?;
        copy.protect(mapping)?;
        if let Err(errno) = copy.move_over(&piece) {
            if !is_mapped(&piece) && self.map_over(&piece, offset).is_err() {
                give_up();
            }
            return Err(errno);
        }
        write_protect.end_exchanged();
        Ok(())
    }

    pub(crate) fn map_over(&self, pages: &Range<usize>, offset: usize) -> Result<(), Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_SHARED | libc::MAP_FIXED;
        map(pages.start, pages.len(), rights, how, self.descriptor.raw(), offset).map(drop)
    }

    /// The kernel unmaps before it maps, and old ones may fail in between. The contents are in the file by then.
    pub(crate) fn fill_hole(&self, pages: &Range<usize>) {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = private_memory(self.page) | libc::MAP_FIXED;
        let filled = map(pages.start, pages.len(), rights, how, -1, 0).and_then(|_| self.read(0, pages));
        if filled.is_err() {
            give_up();
        }
    }

    fn is_huge(&self) -> bool {
        self.page != page_len()
    }

    /// A second mapping of part of the file.
    fn view(&self, offset: usize, len: usize) -> Result<Scratch, Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(0, len, rights, libc::MAP_SHARED, self.descriptor.raw(), offset)?;
        let view = Scratch(start..start + len);
        populate(&view.0, libc::MADV_POPULATE_WRITE)?;
        Ok(view)
    }

    /// The kernel copies: to it, memory that others write at the same time is nothing special.
    pub(crate) fn write(&self, from: &Range<usize>) -> Result<(), Errno> {
        if self.is_huge() {
            let to = self.view(0, from.len())?;
            // SAFETY: `from` was brought in and may be read, the view is ours; they are as long, and different pages.
            unsafe {
                std::ptr::copy_nonoverlapping(from.start as *const u8, to.0.start as *mut u8, from.len())
            };
            return Ok(());
        }
        let mut at = from.start;
        while at < from.end {
            let offset = (at - from.start) as libc::off_t;
            // SAFETY: the kernel checks the pages that it reads from.
            let n = unsafe { libc::pwrite(self.descriptor.raw(), at as *const _, from.end - at, offset) };
            at += progress(n)?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, offset: usize, to: &Range<usize>) -> Result<(), Errno> {
        if self.is_huge() {
            let from = self.view(offset, to.len())?;
            // SAFETY: as below; the view is ours, and as long.
            unsafe {
                std::ptr::copy_nonoverlapping(from.0.start as *const u8, to.start as *mut u8, to.len())
            };
            return Ok(());
        }
        let mut at = to.start;
        while at < to.end {
            let offset = (offset + at - to.start) as libc::off_t;
            // SAFETY: only called for pages that nobody has a reference to: a copy in the making, or a hole just filled.
            let n = unsafe { libc::pread(self.descriptor.raw(), at as *mut _, to.end - at, offset) };
            at += progress(n)?;
        }
        Ok(())
    }

    pub(crate) fn is_in(&self, mapping: &Vma, start: usize) -> bool {
        is_in_file(mapping, self.descriptor.inode, self.descriptor.device, start)
    }
}

/// Pages of ours: private memory in the making, or a second mapping.
struct Scratch(Range<usize>);

impl Scratch {
    fn new(len: usize, page: usize) -> Result<Scratch, Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(0, len, rights, private_memory(page) | libc::MAP_POPULATE, -1, 0)?;
        let made = Scratch(start..start + len);
        if page != page_len() {
            populate(&made.0, libc::MADV_POPULATE_WRITE)?;
        }
        Ok(made)
    }

    /// Gives it the rights that the program gave to the pages it replaces.
    fn protect(&self, like: &Vma) -> Result<(), Errno> {
        let bits = [
            (like.readable, libc::PROT_READ),
            (like.writable, libc::PROT_WRITE),
            (like.executable, libc::PROT_EXEC),
        ];
        let rights = bits.iter().filter(|(has, _)| *has).fold(0, |rights, (_, bit)| rights | bit);
        // SAFETY: pages of ours that nobody has a reference to.
        unsafe { address_space::protect(&self.0, rights) }
    }

    /// Puts it in the place of other pages of the same length, in one step as far as other threads can see.
    fn move_over(self, pages: &Range<usize>) -> Result<(), Errno> {
        // SAFETY: `pages` hold the same bytes, so nobody can tell; and our own range is not used again.
        unsafe { address_space::move_over(&self.0, pages.start) }?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: pages of ours that nobody has a reference to.
        let _ = unsafe { address_space::unmap(&self.0) };
    }
}

fn private_memory(page: usize) -> libc::c_int {
    libc::MAP_PRIVATE
        | libc::MAP_ANONYMOUS
        | page_flags(page, libc::MAP_HUGETLB as libc::c_uint) as libc::c_int
}

pub(crate) fn map(
    addr: usize,
    len: usize,
    rights: libc::c_int,
    how: libc::c_int,
    fd: RawFd,
    offset: usize,
) -> Result<usize, Errno> {
    // SAFETY: either anywhere, or over pages whose bytes the file holds too; so nobody can tell.
    unsafe { address_space::map(addr, len, &What { rights, how, fd, offset: offset as u64 }) }
}

/// Whether every page belongs to some mapping.
pub(crate) fn is_mapped(pages: &Range<usize>) -> bool {
    // SAFETY: an asynchronous `msync` does nothing but look for holes in the range.
    unsafe { libc::msync(pages.start as *mut libc::c_void, pages.len(), libc::MS_ASYNC) == 0 }
}

/// Memory of the program is gone and cannot be brought back; it must not run on into whatever is mapped there next.
fn give_up() -> ! {
    std::process::abort()
}

fn progress(answer: isize) -> Result<usize, Errno> {
    match answer {
        1.. => Ok(answer as usize),
        0 => Err(libc::EIO),
        _ => Err(last_errno()),
    }
}
