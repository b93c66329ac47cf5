//! Registered memory that the program shares itself: local peers map the same file, and nothing is moved.
//!
//! This is possible only for files that cannot become shorter. An access behind the end of a file raises a signal, and the owner of the memory
//! must not be able to end a local peer. Such files are memfds that are sealed against shrinking (or allow the seal, and then get it), System V
//! segments, and memory that is shared with children only. The owner may punch holes into all of these; an access to a hole gets a fresh page.
//! Huge pages are excluded, because there may be no free one for a hole.
//!
//! Files with names are never mapped: any process with access may make them shorter. The kernel copies instead, which fails cleanly.

use super::address_space::{Errno, last_errno};
use super::held_fd::{HeldFd, identity, leave_rest_to_program, stat};
use super::mapping::{BackingFile, FileSource, sysv_len};
use super::memfd_backing::{huge_pages, is_strict, memory_device, page_len};
use super::vma::{self, Origin, Vma};
use super::write_protect::own;
use ferroce_os::lock::Mutex;
use std::collections::HashMap;
use std::fs::{self, File};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, OnceLock, Weak};

#[cfg(test)]
mod tests;

/// Why local peers cannot map memory that a program shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WhyNot {
    /// Private, or in a memfd of ours.
    #[error("it is not shared memory")]
    NotShared,
    /// A gap, several files, or one file in the wrong order.
    #[error("it is not one piece of one file")]
    NotOnePiece,
    /// A file with a name, or a memfd that cannot be sealed.
    #[error("its file may become shorter (a memfd sealed with F_SEAL_SHRINK may not)")]
    MayShrink,
    /// The mapping is longer than the file.
    #[error("its file ends before the region does")]
    TooShort,
    /// Huge pages that the program shares.
    #[error("its huge pages may be given back, and there may be no others")]
    Huge,
    /// `vm.overcommit_memory` is 2.
    #[error("this machine refuses memory when it is used (vm.overcommit_memory is 2)")]
    Strict,
    /// No open descriptor refers to the file.
    #[error("the program has closed its descriptor of the file")]
    Closed,
    /// A system call failed with this `errno`.
    #[error("the kernel refused (errno {0})")]
    Refused(Errno),
}

/// Pages that a local peer can map as this process does.
#[derive(Debug)]
pub(crate) struct Shared {
    pages: Range<usize>,
    offset: u64,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// A file, held by a descriptor of ours, because the program may close its own.
    File(Arc<HeldFd>),
    /// A System V segment.
    Segment { id: u64, namespace: u64 },
}

impl Shared {
    /// The part of the region's descriptor by which local peers map it.
    pub(crate) fn descriptor(&self) -> BackingFile {
        let (source, inode, device) = match &self.source {
            Source::File(held) => (FileSource::Fd(held.raw() as u32), held.inode, held.device),
            Source::Segment { id, namespace } => (FileSource::SystemV, *id, *namespace),
        };
        let (start, len) = (self.pages.start as u64, self.pages.len() as u64);
        BackingFile { start, len, offset: self.offset, source, inode, device }
    }
}

/// Descriptors of the files that contain registered memory: one per file, independent of the number of regions.
#[derive(Debug, Default)]
pub(crate) struct SharedFiles(Mutex<HashMap<(u64, u64), Weak<HeldFd>>>);

impl SharedFiles {
    /// Determines how a local peer can map `[addr, addr + len)`.
    pub(crate) fn find(&self, addr: usize, len: usize) -> Result<Shared, WhyNot> {
        let pages = outward(addr, len).ok_or(WhyNot::NotOnePiece)?;
        // Checks the first page alone: private memory may be large, and consist of many mappings.
        let first = mappings(&(pages.start..pages.start + 1))?;
        if !first.first().is_some_and(|first| first.shared) {
            return Err(WhyNot::NotShared);
        }
        let found = mappings(&pages)?;
        let piece = one_piece(&found, &pages)?;
        let is_huge = huge_pages().iter().any(|(device, _)| *device == piece.device);
        match piece.origin {
            _ if is_huge => Err(WhyNot::Huge),
            Origin::SystemV if Some(piece.device) == memory_device() => segment(piece),
            Origin::Memfd | Origin::SharedMemory => self.file(piece, &found, pages),
            _ => Err(WhyNot::MayShrink),
        }
    }

    fn file(&self, piece: &Vma, found: &[Vma], pages: Range<usize>) -> Result<Shared, WhyNot> {
        if is_strict() {
            return Err(WhyNot::Strict);
        }
        let held = self.hold(piece, found)?;
        if piece.origin == Origin::Memfd {
            seal(held.raw())?;
        }
        let offset = piece.offset + (pages.start - piece.pages.start) as u64;
        let file_len = stat(held.raw()).map_err(WhyNot::Refused)?.st_size as u64;
        if file_len.next_multiple_of(page_len() as u64) < offset + pages.len() as u64 {
            return Err(WhyNot::TooShort);
        }
        Ok(Shared { pages, offset, source: Source::File(held) })
    }

    /// A descriptor of the file: one that we hold already, a copy of the program's, or one from `/proc/self/map_files`, which only privileged
    /// processes may open.
    fn hold(&self, piece: &Vma, found: &[Vma]) -> Result<Arc<HeldFd>, WhyNot> {
        let (inode, device) = (piece.inode, piece.device);
        let mut files = self.0.lock();
        if let Some(held) = files.get(&(inode, device)).and_then(Weak::upgrade).filter(|held| held.is_open())
        {
            return Ok(held);
        }
        let fd = programs_own(inode, device)
            .or_else(|| found.iter().find_map(from_mapping))
            .filter(|fd| identity(fd.as_raw_fd()) == Ok((inode, device)))
            .ok_or(WhyNot::Closed)?;
        leave_rest_to_program(&fd, 0).map_err(WhyNot::Refused)?;
        let held = Arc::new(HeldFd::new(fd).map_err(WhyNot::Refused)?);
        files.retain(|_, held| held.strong_count() > 0);
        files.insert((inode, device), Arc::downgrade(&held));
        Ok(held)
    }
}

fn mappings(pages: &Range<usize>) -> Result<Vec<Vma>, WhyNot> {
    vma::mappings(pages).map_err(|error| WhyNot::Refused(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn outward(addr: usize, len: usize) -> Option<Range<usize>> {
    let page = page_len();
    let end = addr.checked_add(len)?.checked_next_multiple_of(page)?;
    (len > 0).then_some((addr & !(page - 1))..end)
}

/// The first of the mappings, if together they map one contiguous part of a file.
fn one_piece<'a>(found: &'a [Vma], pages: &Range<usize>) -> Result<&'a Vma, WhyNot> {
    let is_shared = |mapping: &Vma| mapping.shared && mapping.origin != Origin::MemfdPages;
    let first = found.first().filter(|first| is_shared(first)).ok_or(WhyNot::NotShared)?;
    let begin = |mapping: &Vma| mapping.offset.wrapping_sub(mapping.pages.start as u64);
    let is_same = |other: &Vma| {
        let file = |mapping: &Vma| (mapping.shared, mapping.inode, mapping.device, mapping.origin);
        file(other) == file(first) && begin(other) == begin(first) && other.readable
    };
    if vma::covers(found, pages) && first.pages.start <= pages.start && found.iter().all(is_same) {
        Ok(first)
    } else {
        Err(WhyNot::NotOnePiece)
    }
}

/// The whole System V segment of a mapping: a segment is attached as a whole. Its length never changes, and its memory is reserved.
fn segment(piece: &Vma) -> Result<Shared, WhyNot> {
    let start = piece.pages.start.checked_sub(piece.offset as usize).ok_or(WhyNot::NotOnePiece)?;
    let len = sysv_len(piece.inode).ok_or(WhyNot::Closed)?;
    let end = start.checked_add(len).ok_or(WhyNot::TooShort)?;
    let source = Source::Segment { id: piece.inode, namespace: sysv_namespace() };
    Ok(Shared { pages: start..end, offset: 0, source })
}

/// The inode of this process's IPC namespace. The ID of a System V segment is valid only within its namespace.
pub(crate) fn sysv_namespace() -> u64 {
    static NAMESPACE: OnceLock<u64> = OnceLock::new();
    *NAMESPACE.get_or_init(|| fs::metadata("/proc/self/ns/ipc").map_or(0, |meta| meta.ino()))
}

/// Seals the file against shrinking.
fn seal(fd: RawFd) -> Result<(), WhyNot> {
    // SAFETY: adds a seal to a file; the kernel refuses it for a file that may not be sealed.
    let is_sealed =
        || is_sealed(fd) || unsafe { libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) } == 0;
    if is_sealed() { Ok(()) } else { Err(WhyNot::MayShrink) }
}

/// Whether the file is sealed against shrinking.
fn is_sealed(fd: RawFd) -> bool {
    // SAFETY: reads the seals of a file.
    let seals = unsafe { libc::fcntl(fd, libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Whether the file can never become shorter. The owner checks this too, but an access behind the end would end the process that
/// maps the file. Memory that is shared with children only has neither a seal nor a name.
pub(crate) fn keeps_its_length(file: &File, meta: &fs::Metadata, path: &str) -> bool {
    let is_anonymous = || fs::read_link(path).is_ok_and(|name| name.as_os_str() == "/dev/zero (deleted)");
    is_sealed(file.as_raw_fd()) || Some(meta.dev()) == memory_device() && is_anonymous()
}

/// A copy of a descriptor of the program that refers to the file.
fn programs_own(inode: u64, device: u64) -> Option<OwnedFd> {
    let numbers = fs::read_dir("/proc/self/fd").ok()?.flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    let mut of_file = numbers.filter(|fd| identity(*fd) == Ok((inode, device)));
    of_file.find_map(|fd| copy_of(fd).ok())
}

fn copy_of(fd: RawFd) -> Result<OwnedFd, Errno> {
    // SAFETY: creates a descriptor of our own; the caller checks which file it refers to.
    own(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) }).map_err(|_| last_errno())
}

fn from_mapping(mapping: &Vma) -> Option<OwnedFd> {
    let Range { start, end } = mapping.pages;
    let path = format!("/proc/self/map_files/{start:x}-{end:x}");
    File::options().read(true).write(true).open(path).ok().map(OwnedFd::from)
}
