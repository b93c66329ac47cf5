//! A memfd, and how pages move into it and out of it.
//!
//! Both directions work in pieces: a thread that stores to the pages waits for one piece only, and only one piece is in memory twice. In a
//! piece of full length, pages that contain only zeros stay holes of the file.
//!
//! `read` and `write` do not work on files of huge pages, so these are copied through a second mapping. A call that can fail populates all
//! huge pages before any is accessed: an access for which no huge page is available raises a signal.

use super::super::address_space::{self, Errno, What, last_errno, populate};
use super::super::held_fd::{HeldFd, check, identity, leave_rest_to_program};
use super::super::vma::Vma;
use super::super::write_protect::{Kind, Means, SignalsHeld, WriteProtect, own};
use super::is_in_file;
pub(crate) use ferroce_os::memory::page_len;
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

/// The huge pages of this machine: the device of their files, and their size. Private memory of huge pages has the same device.
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

/// The device of memfds of ordinary pages, and of System V segments.
pub(crate) fn memory_device() -> Option<u64> {
    static DEVICE: OnceLock<Option<u64>> = OnceLock::new();
    let probe = || Memfd::create(page_len()).and_then(|fd| identity(fd.as_raw_fd())).ok();
    DEVICE.get_or_init(|| Some(probe()?.1)).to_owned()
}

/// Whether the first access to a page may fail with a signal.
pub(crate) fn is_strict() -> bool {
    std::fs::read("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim_ascii() == b"2")
}

/// The flags of `mmap` and `memfd_create` that select huge pages.
fn page_flags(page: usize, huge: libc::c_uint) -> libc::c_uint {
    if page == page_len() { 0 } else { huge | page.ilog2() << libc::MAP_HUGE_SHIFT }
}

/// Memory as a file.
#[derive(Debug)]
pub(crate) struct Memfd {
    pub(crate) descriptor: HeldFd,
    /// Bytes of a page.
    page: usize,
    /// The mapped part of the file has no holes: the file is short, or an access to a hole might raise a signal.
    is_filled: bool,
}

/// Bytes that move in one step, or one page if that is longer.
const PIECE: usize = 4 << 20;

/// Linux 6.3. Machines that forbid executable memfds require it.
const MFD_NOEXEC_SEAL: libc::c_uint = 8;

impl Memfd {
    fn create(page: usize) -> Result<OwnedFd, Errno> {
        let always = page_flags(page, libc::MFD_HUGETLB) | libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC;
        let make = |flags| {
            // SAFETY: creates a descriptor; the name is a C string. `vma` recognises our memfds by this name.
            own(unsafe { libc::memfd_create(c"ferroce".as_ptr(), flags | always) })
        };
        make(MFD_NOEXEC_SEAL).or_else(|errno| if errno == libc::EINVAL { make(0) } else { Err(errno) })
    }

    /// A memfd whose length cannot change.
    pub(crate) fn new(len: usize, page: usize) -> Result<Memfd, Errno> {
        let fd = Memfd::create(page)?;
        leave_rest_to_program(&fd, len)?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: two calls on a descriptor of ours; `len` is at most `MAX_BACKED`.
        unsafe {
            check(libc::ftruncate(fd.as_raw_fd(), len as libc::off_t))?;
            check(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
        }
        let is_filled = page != page_len() || len < PIECE || is_strict();
        Ok(Memfd { descriptor: HeldFd::new(fd)?, page, is_filled })
    }

    /// A memfd of ordinary pages, without holes where it is mapped.
    #[cfg(test)]
    pub(crate) fn filled(len: usize) -> Result<Memfd, Errno> {
        Ok(Memfd { is_filled: true, ..Memfd::new(len, page_len())? })
    }

    /// The pieces in which these pages move.
    pub(crate) fn pieces(&self, pages: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
        let (end, step) = (pages.end, PIECE.max(self.page));
        (pages.start..end).step_by(step).map(move |start| start..end.min(start + step))
    }

    /// The work that is possible before the write protection of a piece that moves to `offset`: finds pages that cannot be read, and allocates
    /// memory for a file without holes. A userfaultfd of the program may have to provide the pages.
    pub(crate) fn prepare(&self, piece: &Range<usize>, offset: usize) -> Result<Prepared, Errno> {
        if piece.len() < PIECE && !self.is_huge() {
            return Ok(Prepared { keeps_holes: false });
        }
        if self.is_filled {
            self.allocate(offset, piece.len())?;
        }
        match populate(piece, libc::MADV_POPULATE_READ) {
            Ok(()) => Ok(Prepared { keeps_holes: !self.is_huge() }),
            // Linux before 5.14.
            Err(libc::EINVAL) if !self.is_huge() => Ok(Prepared { keeps_holes: false }),
            Err(errno) => Err(errno),
        }
    }

    /// Moves a piece in. If it fails, the pages are unchanged.
    #[inline(never)]
    pub(crate) fn take_in(
        &self,
        piece: &Range<usize>,
        offset: usize,
        prepared: Prepared,
        most: Means,
    ) -> Result<Means, Errno> {
        // If userfaultfd cannot protect huge pages, stores are not held back.
        let kind = if self.is_huge() { Kind::Memfd } else { Kind::Anonymous };
        let write_protect = WriteProtect::begin(piece, kind, most)?;
        if prepared.keeps_holes {
            self.write_nonzero(piece, offset)?;
        } else {
            self.write(piece, offset)?;
        }
        if let Err(errno) = self.map_over(piece, offset) {
            if !is_mapped(piece) {
                self.fill_hole(piece, offset);
            }
            return Err(errno);
        }
        let means = write_protect.means();
        write_protect.end_exchanged();
        // Avoids page faults on the data path. An error would occur there as well.
        let bring_in = |run: Range<usize>| {
            let at = piece.start + (run.start - offset);
            populate(&(at..at + run.len()), libc::MADV_POPULATE_WRITE)
        };
        let _ = match prepared.keeps_holes {
            true => self.for_data(offset, piece.len(), &mut (0..0), bring_in),
            false => bring_in(offset..offset + piece.len()),
        };
        Ok(means)
    }

    /// Makes a piece private again; `like` is the mapping with its access rights. If it fails, the piece stays shared. `copy` has space for all
    /// remaining pieces, this one first.
    #[inline(never)]
    pub(crate) fn give_back(
        &self,
        piece: &Range<usize>,
        offset: usize,
        like: &Vma,
        copy: &mut PrivateCopy,
        most: Means,
    ) -> Result<(), Errno> {
        let PrivateCopy { pages: copy, data } = copy;
        let here = copy.0.start..copy.0.start + piece.len();
        let in_copy = |run: Range<usize>| here.start + run.start - offset..here.start + run.end - offset;
        self.for_data(offset, piece.len(), data, |run| {
            match populate(&in_copy(run), libc::MADV_POPULATE_WRITE) {
                Err(libc::EINVAL) if !self.is_huge() => Ok(()),
                answer => answer,
            }
        })?;
        let write_protect = WriteProtect::begin(piece, Kind::Memfd, most)?;
        self.for_data(offset, piece.len(), data, |run| self.read(run.start, &in_copy(run)))?;
        protect(&here, like)?;
        if let Err(errno) = copy.move_over(piece) {
            if !is_mapped(piece) && self.map_over(piece, offset).is_err() {
                give_up();
            }
            return Err(errno);
        }
        write_protect.end_exchanged();
        Ok(())
    }

    /// Frees memory of the file. The caller ensures that it is not mapped, or that the file [may have holes](Self::may_have_holes).
    pub(crate) fn release(&self, offset: usize, len: usize) {
        let _ = self.fallocate(libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, len);
    }

    /// Whether an access to a hole always gets a page, and never a signal.
    pub(crate) fn may_have_holes(&self) -> bool {
        !self.is_filled
    }

    /// Allocates pages of the file, so that lack of memory is an error here and not SIGBUS later.
    fn allocate(&self, offset: usize, len: usize) -> Result<(), Errno> {
        // A signal makes `fallocate` undo its work and fail. With a profiler's timer it would never succeed.
        let _signals = SignalsHeld::new();
        self.fallocate(0, offset, len)
    }

    fn fallocate(&self, mode: libc::c_int, offset: usize, len: usize) -> Result<(), Errno> {
        let (offset, len) = (offset as libc::off_t, len as libc::off_t);
        // SAFETY: allocates or frees pages of a file of ours.
        check(unsafe { libc::fallocate(self.descriptor.raw(), mode, offset, len) })
    }

    /// Calls `each` for each run of pages of the file that are not holes, from `offset` on. The kernel searches the whole file for the end of a
    /// run. So `known` caches the last run for callers that proceed piece by piece.
    fn for_data(
        &self,
        offset: usize,
        len: usize,
        known: &mut Range<usize>,
        mut each: impl FnMut(Range<usize>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            if !known.contains(&at) {
                let start = self.seek(at, libc::SEEK_DATA)?;
                if start >= end {
                    break;
                }
                *known = start..self.seek(start, libc::SEEK_HOLE)?;
            }
            let run = at.max(known.start)..end.min(known.end);
            at = run.end;
            each(run)?;
        }
        Ok(())
    }

    /// Offset of the next data of the file, or of the next hole.
    fn seek(&self, from: usize, what: libc::c_int) -> Result<usize, Errno> {
        // SAFETY: returns an offset, and changes a file position that nothing uses.
        let found = unsafe { libc::lseek(self.descriptor.raw(), from as libc::off_t, what) };
        match usize::try_from(found) {
            Ok(found) => Ok(found),
            Err(_) if last_errno() == libc::ENXIO => Ok(usize::MAX),
            Err(_) => Err(last_errno()),
        }
    }

    pub(crate) fn map_over(&self, pages: &Range<usize>, offset: usize) -> Result<(), Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_SHARED | libc::MAP_FIXED;
        map(pages.start, pages.len(), rights, how, self.descriptor.raw(), offset).map(drop)
    }

    /// Maps private memory with the file's contents where nothing is mapped. `mmap` unmaps before it maps, and an old kernel may fail in
    /// between. The file has the contents by then.
    pub(crate) fn fill_hole(&self, pages: &Range<usize>, offset: usize) {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = private_memory(self.page) | libc::MAP_FIXED;
        let filled = map(pages.start, pages.len(), rights, how, -1, 0).and_then(|_| self.read(offset, pages));
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

    /// Writes the pages that contain other bytes than zeros. The others stay holes. All of them are populated and readable.
    fn write_nonzero(&self, from: &Range<usize>, offset: usize) -> Result<(), Errno> {
        let page = |at: usize| at..at + page_len();
        let mut at = from.start;
        while at < from.end {
            let start = at;
            while at < from.end && !is_zero(&page(at)) {
                at += page_len();
            }
            self.write(&(start..at), offset + (start - from.start))?;
            while at < from.end && is_zero(&page(at)) {
                at += page_len();
            }
        }
        Ok(())
    }

    /// Copies with a system call: the kernel may read memory that other threads write at the same time.
    pub(crate) fn write(&self, from: &Range<usize>, offset: usize) -> Result<(), Errno> {
        if self.is_huge() {
            let to = self.view(offset, from.len())?;
            // SAFETY: `from` is populated and readable, and the view is ours; both have the same length, and are different pages.
            unsafe {
                std::ptr::copy_nonoverlapping(from.start as *const u8, to.0.start as *mut u8, from.len())
            };
            return Ok(());
        }
        let mut at = from.start;
        while at < from.end {
            let offset = (offset + at - from.start) as libc::off_t;
            // SAFETY: the kernel checks the pages that it reads from.
            let n = unsafe { libc::pwrite(self.descriptor.raw(), at as *const _, from.end - at, offset) };
            at += progress(n)?;
        }
        Ok(())
    }

    pub(crate) fn read(&self, offset: usize, to: &Range<usize>) -> Result<(), Errno> {
        if self.is_huge() {
            let from = self.view(offset, to.len())?;
            // SAFETY: as below; the view is ours, and has the same length.
            unsafe {
                std::ptr::copy_nonoverlapping(from.0.start as *const u8, to.start as *mut u8, to.len())
            };
            return Ok(());
        }
        let mut at = to.start;
        while at < to.end {
            let offset = (offset + at - to.start) as libc::off_t;
            // SAFETY: only called for pages that nothing refers to: a copy that is not in place yet, or a hole just filled.
            let n = unsafe { libc::pread(self.descriptor.raw(), at as *mut _, to.end - at, offset) };
            at += progress(n)?;
        }
        Ok(())
    }

    pub(crate) fn is_in(&self, mapping: &Vma, start: usize) -> bool {
        is_in_file(mapping, self.descriptor.inode, self.descriptor.device, start)
    }
}

/// A piece that is about to move in.
pub(crate) struct Prepared {
    /// Its pages are readable, and those that contain only zeros stay holes. In a short piece the check costs more than it saves.
    keeps_holes: bool,
}

/// Private memory that replaces a file's pages, piece by piece. It is one mapping for all pieces, so that the kernel merges adjacent pieces
/// again.
pub(crate) struct PrivateCopy {
    pages: Scratch,
    /// The run of the file's pages without holes that was found last.
    data: Range<usize>,
}

impl PrivateCopy {
    /// Maps the memory without populating a page.
    pub(crate) fn new(file: &Memfd, len: usize) -> Result<PrivateCopy, Errno> {
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let start = map(0, len, rights, private_memory(file.page), -1, 0)?;
        Ok(PrivateCopy { pages: Scratch(start..start + len), data: 0..0 })
    }
}

/// Pages of ours: private memory that is not in place yet, or a second mapping.
struct Scratch(Range<usize>);

impl Scratch {
    /// Moves its first pages over `pages`. For other threads this is one atomic step.
    fn move_over(&mut self, pages: &Range<usize>) -> Result<(), Errno> {
        let rest = self.0.start + pages.len();
        // SAFETY: `pages` hold the same bytes, so no thread can tell the difference; and these pages of ours are not used again.
        unsafe { address_space::move_over(&(self.0.start..rest), pages.start) }?;
        self.0.start = rest;
        Ok(())
    }
}

/// Sets the rights of our pages to those of the pages that they replace.
fn protect(pages: &Range<usize>, like: &Vma) -> Result<(), Errno> {
    let bits = [
        (like.readable, libc::PROT_READ),
        (like.writable, libc::PROT_WRITE),
        (like.executable, libc::PROT_EXEC),
    ];
    let rights = bits.iter().filter(|(has, _)| *has).fold(0, |rights, (_, bit)| rights | bit);
    // SAFETY: pages of ours that nothing refers to.
    unsafe { address_space::protect(pages, rights) }
}

/// Whether all bytes of a page are zero.
fn is_zero(page: &Range<usize>) -> bool {
    let is_zero = |at: usize| {
        // SAFETY: inside a readable page; other threads may write it, so the read is volatile.
        unsafe { (at as *const [u64; 8]).read_volatile() }.into_iter().fold(0, |all, word| all | word) == 0
    };
    page.clone().step_by(64).all(is_zero)
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            // SAFETY: pages of ours that nothing refers to.
            let _ = unsafe { address_space::unmap(&self.0) };
        }
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
    // SAFETY: either at a free address, or over pages whose bytes the file holds too; so no thread can tell the difference.
    unsafe { address_space::map(addr, len, &What { rights, how, fd, offset: offset as u64 }) }
}

/// Whether every page belongs to some mapping.
pub(crate) fn is_mapped(pages: &Range<usize>) -> bool {
    // SAFETY: an asynchronous `msync` only searches the range for unmapped pages.
    unsafe { libc::msync(pages.start as *mut libc::c_void, pages.len(), libc::MS_ASYNC) == 0 }
}

/// Aborts: memory of the program is lost and cannot be restored. The program must not access whatever is mapped there next.
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
