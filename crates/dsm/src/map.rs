//! Creates, maps and accesses memory that several processes map, or that one process maps several times. The rest of the
//! crate needs no pointers.

#![expect(unsafe_code, reason = "maps memory that other processes access at the same time")]

use crate::coherence::Access;
use crate::error::Error;
use ferroce::{Region, RegionBuilder};
use rustix::fs::{self, FallocateFlags, MemfdFlags};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Anonymous memory of `len` zeroed bytes, which are allocated on access.
pub(crate) fn anonymous_file(name: &'static std::ffi::CStr, len: usize) -> Result<File, Error> {
    let failed = |call| move |source: std::io::Error| Error::System { call, source };
    let fd = fs::memfd_create(name, MemfdFlags::CLOEXEC).map_err(|e| failed("memfd_create")(e.into()))?;
    let file = File::from(fd);
    file.set_len(len as u64).map_err(failed("ftruncate of shared memory"))?;
    Ok(file)
}

/// Frees the pages of a part of `file`; they read as zeros afterwards, through every mapping.
pub(crate) fn punch(file: &File, at: usize, len: usize) -> Result<(), Error> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let punched = fs::fallocate(file, mode, at as u64, len as u64);
    punched.map_err(|e| Error::System { call: "fallocate of shared memory", source: e.into() })
}

/// Whether the system changed a part of a mapping.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Done,
    /// Nothing changed: the limit of mappings per process is reached (vm.max_map_count).
    TooManyMappings,
}

/// A shared mapping of a part of a file; unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len: usize,
}

// SAFETY: the memory is shared between processes anyway; every access here is atomic or a plain copy of bytes whose
// order the protocol above guarantees.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps for reading and writing, at any address.
    pub(crate) fn anywhere(file: &File, at: usize, len: usize) -> Result<Self, Error> {
        Self::fixed(file, at, len, 0, libc::PROT_READ | libc::PROT_WRITE)
    }

    /// Maps at one address, which must be free; 0 for any.
    pub(crate) fn fixed(
        file: &File,
        at: usize,
        len: usize,
        address: usize,
        access: i32,
    ) -> Result<Self, Error> {
        let place = if address == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | place;
        // SAFETY: a new mapping that replaces none.
        let base = unsafe {
            libc::mmap(address as *mut libc::c_void, len, access, flags, file.as_raw_fd(), at as i64)
        };
        if base == libc::MAP_FAILED {
            let source = std::io::Error::last_os_error();
            let call = match source.raw_os_error() {
                Some(libc::ENOMEM) => "mmap of the shared heap (FERROCE_DSM_HEAP sets its size)",
                _ => "mmap of the shared heap",
            };
            return Err(Error::System { call, source });
        }
        let mapping = Self { base: base.cast(), len };
        if address != 0 && base as usize != address {
            let source = std::io::Error::from_raw_os_error(libc::EEXIST);
            return Err(Error::System { call: "mmap of the shared heap at its address", source });
        }
        Ok(mapping)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    /// Changes the access rights of `len` bytes from `offset` on.
    pub(crate) fn protect(&self, offset: usize, len: usize, access: Access) -> Result<Change, Error> {
        let rights = match access {
            Access::None => libc::PROT_NONE,
            Access::Read => libc::PROT_READ,
            Access::Write => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: pages of this mapping; no reference of this crate points into them.
        let rc = unsafe { libc::mprotect(self.at(offset, len, crate::PAGE).cast(), len, rights) };
        if rc == 0 {
            return Ok(Change::Done);
        }
        let error = Error::system("mprotect of the shared heap");
        match &error {
            Error::System { source, .. } if source.raw_os_error() == Some(libc::ENOMEM) => {
                Ok(Change::TooManyMappings)
            }
            _ => Err(error),
        }
    }

    /// Maps a part of another file over `len` bytes from `offset` on, without access rights. With `taken`, it unmaps the old
    /// part first, and never returns [`Change::TooManyMappings`].
    pub(crate) fn replace(
        &self,
        (offset, len): (usize, usize),
        (file, at): (&File, usize),
        taken: bool,
    ) -> Result<Change, Error> {
        let place: *mut libc::c_void = self.at(offset, len, crate::PAGE).cast();
        let fixed = if taken { libc::MAP_FIXED_NOREPLACE } else { libc::MAP_FIXED };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | fixed;
        if taken {
            // SAFETY: pages of this mapping, which are mapped again below; no reference of this crate points into them.
            unsafe { libc::munmap(place, len) };
        }
        // SAFETY: pages of this mapping, to which no reference of this crate points; or, with `taken`, a range where nothing is mapped.
        let base = unsafe { libc::mmap(place, len, libc::PROT_NONE, flags, file.as_raw_fd(), at as i64) };
        if base == place {
            return Ok(Change::Done);
        }
        let source = std::io::Error::last_os_error();
        match source.raw_os_error() {
            Some(libc::ENOMEM) if !taken => Ok(Change::TooManyMappings),
            _ => Err(Error::System { call: "mmap of another part of the heap", source }),
        }
    }

    /// Closes pages by removing their entries from the page table; their content stays.
    pub(crate) fn unmap_entries(&self, offset: usize, len: usize) -> Result<(), Error> {
        // SAFETY: pages of this mapping, which is shared, so that nothing is lost.
        let rc = unsafe { libc::madvise(self.at(offset, len, crate::PAGE).cast(), len, libc::MADV_DONTNEED) };
        if rc == 0 { Ok(()) } else { Err(Error::system("madvise of the shared heap")) }
    }

    /// Allocates the page of this byte.
    pub(crate) fn touch(&self, offset: usize) {
        // SAFETY: inside the mapping; the value is ignored.
        unsafe { ptr::read_volatile(self.at(offset, 1, 1)) };
    }

    /// Registers all of it, for peers to read and write.
    pub(crate) fn register(self: &Arc<Self>, builder: RegionBuilder) -> Result<Region, ferroce::Error> {
        let start = NonNull::new(self.base).ok_or(ferroce::Error::OutOfMemory { bytes: self.len })?;
        // SAFETY: mapped while `self` lives, and only accessed through pointers and atomics.
        unsafe { builder.register_at(start, self.clone()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[track_caller]
    fn at(&self, offset: usize, len: usize, align: usize) -> *mut u8 {
        assert!(
            offset <= self.len && len <= self.len - offset && offset.is_multiple_of(align),
            "offset {offset}"
        );
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.add(offset) }
    }

    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: aligned and inside a mapping that lives as long as `self`; all access to such words is atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4, 4).cast()) }
    }

    pub(crate) fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8, 8).cast()) }
    }

    /// Copies bytes in.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len(), 1);
        // SAFETY: inside the mapping; the atomic words of the protocol decide who may write there at a time.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies bytes within the mapping; the ranges may overlap.
    pub(crate) fn copy_within(&self, from: usize, to: usize, len: usize) {
        let (from, to) = (self.at(from, len, 1), self.at(to, len, 1));
        // SAFETY: both inside the mapping.
        unsafe { ptr::copy(from, to, len) }
    }

    /// Copies bytes out.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len(), 1);
        // SAFETY: inside the mapping; the atomic words of the protocol decide who may write there at a time.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, and no borrow of it is left.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_without_address_space_names_the_setting() {
        // More than a process can address.
        let len = 1 << 50;
        let file = anonymous_file(c"test", len).expect("it costs nothing");
        let error = Mapping::anywhere(&file, 0, len).expect_err("no address space").to_string();
        assert!(error.starts_with("mmap of the shared heap (FERROCE_DSM_HEAP sets its size): "), "{error}");
    }
}
