//! Memory of a file that several processes map, and private memory with the same interface.

use super::address_space::{self, What};
use ferroce_os::memory;
use ferroce_os::sync::{AtomicU32, AtomicU64};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;
#[cfg(loom)]
use std::sync::Arc;

#[cfg(loom)]
mod model;

const SYSTEM_V: u64 = 1 << 32;

/// The file that contains the pages of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackingFile {
    /// Address of the first page in the owner's address space, and length of the pages in bytes.
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Offset of the first page in the file.
    pub(crate) offset: u64,
    pub(crate) source: FileSource,
    /// The file's inode and device, or the System V segment's ID and IPC namespace.
    pub(crate) inode: u64,
    pub(crate) device: u64,
}

/// How a local peer opens the file. The file never becomes shorter than `offset + len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FileSource {
    /// Through a file descriptor of the owner.
    Fd(u32),
    /// As a System V segment.
    SystemV,
}

impl BackingFile {
    /// The words of a region descriptor that describe the file.
    pub(crate) fn fields(self) -> [u64; 6] {
        let source = match self.source {
            FileSource::Fd(number) => number.into(),
            FileSource::SystemV => SYSTEM_V,
        };
        [self.start, self.len, self.offset, source, self.inode, self.device]
    }

    /// Returns `None` if the length is zero: there is no file.
    pub(crate) fn from_fields([start, len, offset, source, inode, device]: [u64; 6]) -> Option<BackingFile> {
        let source = if source == SYSTEM_V { FileSource::SystemV } else { FileSource::Fd(source as u32) };
        (len > 0).then_some(BackingFile { start, len, offset, source, inode, device })
    }
}

/// Part of a file in memory, shared with every process that maps it. Other processes may change it at any time, so it is only
/// accessed through atomics and raw copies.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    #[cfg(loom)]
    shadow: Arc<model::Shadow>,
}

// SAFETY: the memory belongs to the mapping until it is dropped, and is only accessed through atomics and raw copies, which
// any thread may execute.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of the file from `offset` on.
    pub(crate) fn new(file: &File, offset: u64, len: usize, writable: bool) -> io::Result<Mapping> {
        let protection = if writable { libc::PROT_READ | libc::PROT_WRITE } else { libc::PROT_READ };
        Mapping::map(len, protection, libc::MAP_SHARED, file.as_raw_fd(), offset)
    }

    /// `len` bytes of private memory, all zero. Pages that are never touched take no memory.
    pub(crate) fn private(len: usize) -> io::Result<Mapping> {
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Mapping::map(len, libc::PROT_READ | libc::PROT_WRITE, how, -1, 0)
    }

    fn map(len: usize, rights: i32, how: i32, fd: RawFd, offset: u64) -> io::Result<Mapping> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let at = unsafe { address_space::map(0, len, &What { rights, how, fd, offset }) };
        let at = at.map_err(io::Error::from_raw_os_error)?;
        let start = NonNull::new(at as *mut u8).ok_or_else(|| io::Error::other("mapped at zero"))?;
        Ok(Mapping::at(start, len))
    }

    fn at(start: NonNull<u8>, len: usize) -> Mapping {
        Mapping {
            start,
            len,
            #[cfg(loom)]
            shadow: Arc::default(),
        }
    }

    /// Attaches a System V segment, of which `len` bytes are used.
    pub(crate) fn attach(segment: u64, len: usize, writable: bool) -> io::Result<Mapping> {
        let how = if writable { 0 } else { libc::SHM_RDONLY };
        let id = libc::c_int::try_from(segment).map_err(io::Error::other)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours. `munmap` may unmap an attached segment,
        // as `shmdt` does.
        let at = unsafe { libc::shmat(id, std::ptr::null(), how) };
        if at as isize == -1 {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(at.cast::<u8>()).ok_or_else(|| io::Error::other("attached at zero"))?;
        Ok(Mapping::at(start, len))
    }

    /// The same mapping as one of at least `LEN` bytes, of which only these are used.
    ///
    /// # Panics
    /// If it is shorter.
    pub(crate) fn fixed<const LEN: usize>(self) -> FixedMapping<LEN> {
        assert!(self.len >= LEN);
        FixedMapping(self)
    }
}

/// A mapping of which `LEN` bytes are used. The compiler knows that most offsets in a ring or a table are inside, and removes their checks: 30
/// instructions of a WRITE, 50 of a message.
#[derive(Debug)]
pub(crate) struct FixedMapping<const LEN: usize>(Mapping);

/// The bytes of a mapping. Both kinds of mapping have the same accesses with the same checks.
///
/// # Safety
/// The `len` bytes from `start` on are mapped as long as the value lives. `start` is the beginning of a page.
pub(crate) unsafe trait MappedBytes {
    /// The first byte.
    fn start(&self) -> *mut u8;
    /// How many there are.
    fn len(&self) -> usize;
    #[cfg(loom)]
    fn shadow(&self) -> &Arc<model::Shadow>;

    /// Four bytes as an atomic.
    #[inline]
    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at <= self.len() - 4);
        #[cfg(loom)]
        return self.shadow().word(at);
        #[cfg(not(loom))]
        // SAFETY: inside the mapping and aligned, because mappings start at a page; every process accesses it as an atomic.
        unsafe {
            AtomicU32::from_ptr(self.start().add(at).cast())
        }
    }

    /// Eight bytes as an atomic.
    #[inline]
    fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at <= self.len() - 8);
        #[cfg(loom)]
        return self.shadow().long(at);
        #[cfg(not(loom))]
        // SAFETY: as above.
        unsafe {
            AtomicU64::from_ptr(self.start().add(at).cast())
        }
    }

    /// Copies bytes in.
    #[inline(always)] // the headers of a packet
    fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: a slice is readable.
        unsafe { self.write_raw(at, bytes.as_ptr(), bytes.len()) }
    }

    /// Copies bytes in from memory that others may change meanwhile.
    ///
    /// # Safety
    /// `from` has `len` readable bytes.
    #[inline(always)]
    unsafe fn write_raw(&self, at: usize, from: *const u8, len: usize) {
        assert!(at <= self.len() && len <= self.len() - at);
        #[cfg(loom)]
        self.shadow().write(at, len);
        // SAFETY: inside the mapping, which nobody has a reference into; the caller vouches for the source.
        unsafe { memory::copy(from, self.start().add(at), len) }
    }

    /// The address of the byte at an offset.
    #[inline]
    fn bytes_at(&self, at: usize) -> NonNull<u8> {
        assert!(at <= self.len());
        // SAFETY: inside the mapping or just behind it, and no mapping starts at zero.
        unsafe { NonNull::new_unchecked(self.start().add(at)) }
    }

    /// Copies bytes out.
    #[inline]
    fn read(&self, at: usize, out: &mut [u8]) {
        assert!(at <= self.len() && out.len() <= self.len() - at);
        #[cfg(loom)]
        self.shadow().read(at, out.len());
        // SAFETY: inside the mapping; `out` is ours.
        unsafe { std::ptr::copy_nonoverlapping(self.start().add(at), out.as_mut_ptr(), out.len()) }
    }
}

// SAFETY: the kernel mapped `len` bytes, and the mapping unmaps them when it is dropped.
unsafe impl MappedBytes for Mapping {
    #[inline]
    fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }
    #[inline]
    fn len(&self) -> usize {
        self.len
    }
    #[cfg(loom)]
    fn shadow(&self) -> &Arc<model::Shadow> {
        &self.shadow
    }
}

// SAFETY: the mapping inside has at least `LEN` bytes.
unsafe impl<const LEN: usize> MappedBytes for FixedMapping<LEN> {
    #[inline]
    fn start(&self) -> *mut u8 {
        self.0.start()
    }
    #[inline]
    fn len(&self) -> usize {
        LEN
    }
    #[cfg(loom)]
    fn shadow(&self) -> &Arc<model::Shadow> {
        &self.0.shadow
    }
}

/// The length of a System V segment in bytes, rounded up to whole pages.
pub(crate) fn sysv_len(segment: u64) -> Option<usize> {
    let id = libc::c_int::try_from(segment).ok()?;
    let mut state = std::mem::MaybeUninit::<libc::shmid_ds>::uninit();
    // SAFETY: fills the structure if it returns 0, and it is read only then.
    let len = unsafe {
        if libc::shmctl(id, libc::IPC_STAT, state.as_mut_ptr()) != 0 {
            return None;
        }
        state.assume_init().shm_segsz
    };
    len.checked_next_multiple_of(super::memfd_backing::page_len())
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let start = self.start().addr();
        // SAFETY: the mapping is ours, and nothing that was borrowed from it is left.
        let _ = unsafe { address_space::unmap(&(start..start + self.len)) };
    }
}
