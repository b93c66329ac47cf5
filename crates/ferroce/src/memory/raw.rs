//! The unsafe code of this crate: allocation, registration, and access without references.
//!
//! The NIC runs on other threads, and peers decide when it reads and writes. So shared memory is accessed only through raw
//! pointers and atomics. Only [`Exclusive`] creates references to bytes: while the program holds it, no work request of the
//! NIC refers to its memory.

use super::region::{PAGE, Region, RegionBuilder};
use super::{RemoteRegion, sge_of};
use crate::error::Error;
use crate::macros::debug;
use ferroce_nic::{MemoryRegion, Pd};
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::{LKey, RKey};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::any::Any;
use std::ops::RangeBounds;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

/// Zeroed memory of this crate, or memory of another owner. The NIC holds a reference to it while it is registered.
pub(super) struct Memory {
    start: NonNull<u8>,
    len: usize,
    /// The allocation: whole pages if it is page-aligned, so that the last page contains no other data.
    layout: Layout,
    /// The owner; `None` if this crate frees the memory.
    keeper: Option<Arc<dyn Any + Send + Sync>>,
}

// SAFETY: `Memory` is a range of bytes without any thread's data in it; all access goes through the methods below.
unsafe impl Send for Memory {}
// SAFETY: as above; the methods use copies and atomics, which any number of threads may run at a time.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` bytes (at least one), aligned to `align`.
    pub(super) fn zeroed(len: usize, align: usize) -> Result<Arc<Memory>, Error> {
        let refused = || Error::OutOfMemory { bytes: len };
        let len = len.max(1);
        let layout = Layout::from_size_align(len, align).map_err(|_| refused())?;
        let layout = if align >= PAGE { layout.pad_to_align() } else { layout };
        // SAFETY: the layout has at least one byte.
        let start = unsafe { alloc_zeroed(layout) };
        Ok(Arc::new(Memory { start: NonNull::new(start).ok_or_else(refused)?, len, layout, keeper: None }))
    }

    /// `len` zeroed bytes (at least one) without pages; the kernel adds each page on first access. An allocator may touch all of them.
    pub(super) fn without_pages(len: usize) -> Result<Arc<Memory>, Error> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, rights, flags) };
        let start = start.ok().and_then(|start| NonNull::new(start.cast()));
        let start = start.ok_or(Error::OutOfMemory { bytes: len })?;
        Memory::external(start, len, Arc::new(Mapping { start, len }))
    }

    /// Memory that `keeper` keeps mapped, readable and writable while it lives.
    fn external(
        start: NonNull<u8>,
        len: usize,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Result<Arc<Memory>, Error> {
        let aligned = (start.as_ptr() as usize).is_multiple_of(8);
        let layout = Layout::from_size_align(len, if aligned { 8 } else { 1 });
        let layout = layout.map_err(|_| Error::OutOfMemory { bytes: len })?;
        Ok(Arc::new(Memory { start, len, layout, keeper: Some(keeper) }))
    }

    /// Registers all of it.
    pub(super) fn register(self: &Arc<Self>, pd: &Arc<Pd>, access: Access) -> Result<MemoryRegion, Error> {
        let (addr, len, room) = (self.start.as_ptr() as usize, self.len, self.layout.size());
        let region = match self.keeper {
            // SAFETY: the memory lives until the last `Arc` of it is dropped, and the NIC gets one. Only `Exclusive` creates
            // Rust references to it; see there.
            None => unsafe { pd.register_with_capacity(addr, len, room, access, Some(self.clone())) },
            // SAFETY: as above; the caller of `register_at` promised the rest.
            Some(_) => unsafe { pd.register_sparse(addr, len, access, Some(self.clone())) },
        };
        region.map_err(Error::in_call("register"))
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let size = self.len;
        assert!(offset <= size && len <= size - offset, "checked by the callers in `region` and `buffer`");
        // SAFETY: the offset is inside the allocation, or one past its end for empty accesses.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Copies out. If a peer writes concurrently, the copy may mix old and new bytes.
    pub(super) fn read(&self, offset: usize, out: &mut [u8]) {
        let from = self.at(offset, out.len());
        fence(Ordering::Acquire);
        // SAFETY: `at` checked the range; `out` is a Rust slice and so no part of this memory.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) }
    }

    /// Copies in.
    pub(super) fn write(&self, offset: usize, data: &[u8]) {
        let to = self.at(offset, data.len());
        // SAFETY: as in `read`.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), to, data.len()) }
        fence(Ordering::Release);
    }

    /// Sets `len` bytes.
    pub(super) fn fill(&self, offset: usize, len: usize, value: u8) {
        let to = self.at(offset, len);
        // SAFETY: as in `read`.
        unsafe { std::ptr::write_bytes(to, value, len) }
        fence(Ordering::Release);
    }

    /// One byte as an atomic, for programs that poll for a peer's write.
    pub(super) fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: `at` checked the range; the memory outlives `self`, and concurrent accesses to a byte that means
        // anything are atomic or volatile.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    /// Eight bytes as an atomic. `offset` is a multiple of eight.
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && self.layout.align() >= 8, "checked by the callers in `region`");
        // SAFETY: as in `byte`; aligned, since the allocation is.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }
}

impl RegionBuilder {
    /// Registers existing memory at `start` instead of allocating it; [`Pd::region`](crate::Pd::region) sets the length. No page
    /// is brought in, so the range may be much larger than the used part of it.
    ///
    /// # Safety
    /// `keeper` must keep the bytes mapped, readable and writable while it lives. No Rust reference may point to them,
    /// because peers and the NIC access them at any time.
    pub unsafe fn register_at(
        self,
        start: NonNull<u8>,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Result<Region, Error> {
        let memory = Memory::external(start, self.len(), keeper)?;
        self.finish(memory)
    }
}

/// The whole address space of the process as one region (implicit on-demand paging), made by
/// [`Pd::register_address_space`](crate::Pd::register_address_space). Cheap to clone.
///
/// An access to an address without a page fails, and its completion reports that.
#[derive(Clone)]
pub struct ImplicitRegion {
    region: Arc<MemoryRegion>,
}

impl ImplicitRegion {
    /// The scatter/gather entry for `len` bytes at an address of this process.
    pub fn sge(&self, start: *const u8, len: u32) -> Sge {
        self.region.sge(start as usize, len)
    }

    /// The description of `len` bytes at an address of this process for a peer.
    pub fn remote(&self, start: *const u8, len: u64) -> RemoteRegion {
        RemoteRegion { addr: start as u64, len, rkey: self.region.rkey() }
    }
}

debug!(ImplicitRegion, |this| "ImplicitRegion({:?}, rkey {})", this.region.access(), this.region.rkey());

impl crate::pd::Pd {
    /// Registers the whole address space of the process. [`Access::ON_DEMAND`] is implied.
    ///
    /// # Safety
    /// The keys of the region grant access to every byte of the process. While a clone of the region exists, no work request of
    /// this program and no peer may use them on bytes that Rust code holds a reference to or owns without synchronisation.
    pub unsafe fn register_address_space(&self, access: Access) -> Result<ImplicitRegion, Error> {
        let access = access | Access::ON_DEMAND;
        // SAFETY: on-demand regions need no mapped pages; the caller promises the rest.
        let region = unsafe { self.nic.register(0, usize::MAX, 0, access, None) };
        Ok(ImplicitRegion { region: Arc::new(region.map_err(Error::in_call("register"))?) })
    }
}

/// Memory of a GPU as a region, made by [`Pd::register_gpu`](crate::Pd::register_gpu). Cheap to clone; the program reads and writes the
/// bytes with CUDA.
#[derive(Clone)]
pub struct GpuRegion {
    region: Arc<MemoryRegion>,
    pd: crate::pd::Pd,
}

region_methods!(GpuRegion, region, pd);

impl GpuRegion {
    /// Whether it was registered over an empty range.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }
}

debug!(GpuRegion, |this| "GpuRegion({} bytes, {:?}, rkey {})", this.len(), this.access(), this.rkey());

impl crate::pd::Pd {
    /// Registers memory of a GPU: `len` bytes at the CUDA device pointer `start`. The call is refused if the program has not loaded the
    /// CUDA driver, or if `start` is not a device pointer.
    ///
    /// Data that a peer writes is in the memory of the GPU before the completion and the ACK. Atomics are atomic among the operations of
    /// this process, but not to kernels of the GPU.
    ///
    /// # Safety
    /// `keeper` must keep the bytes allocated while it lives. The NIC and peers access them at any time.
    pub unsafe fn register_gpu(
        &self,
        start: u64,
        len: usize,
        access: Access,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Result<GpuRegion, Error> {
        // SAFETY: as the caller promises.
        let region = unsafe { self.nic.register_gpu(start, len, access, Some(keeper)) };
        let region = region.map_err(Error::in_call("register_gpu"))?;
        Ok(GpuRegion { region: Arc::new(region), pd: self.clone() })
    }
}

/// Owns a mapping of `Memory::without_pages`.
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: owns a range of addresses, and gives no access to its bytes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping of `Memory::without_pages`; its last user has dropped it. `munmap` cannot fail for it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.keeper.is_some() {
            return;
        }
        // SAFETY: allocated in `zeroed` with this very layout, and this was the last `Arc`.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}

/// Registered memory that the NIC accesses only between a post and its completion.
pub(super) struct Exclusive {
    // Dropped first: waits for the NIC's accesses in flight and refuses later ones.
    region: MemoryRegion,
    memory: Arc<Memory>,
}

impl Exclusive {
    pub(super) fn new(pd: &Arc<Pd>, len: usize) -> Result<Self, Error> {
        let memory = Memory::zeroed(len, 64)?;
        // No remote rights: the NIC accesses this memory for local work requests only.
        let region = memory.register(pd, Access::LOCAL_WRITE)?;
        Ok(Exclusive { region, memory })
    }

    /// The entry for a work request. The caller moves the whole value into `InFlight` before it posts, and gets it back after
    /// the completion. The two methods below are sound because of that.
    pub(super) fn sge(&self, offset: usize, len: u32) -> Sge {
        self.region.sge(offset, len)
    }

    pub(super) fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: `at` checks the range; the bytes are initialised (zeroed); no request of the NIC names them while
        // the program holds `self`, see `sge`.
        unsafe { std::slice::from_raw_parts(self.memory.at(offset, len), len) }
    }

    pub(super) fn bytes_mut(&mut self, offset: usize, len: usize) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` keeps every other reference away.
        unsafe { std::slice::from_raw_parts_mut(self.memory.at(offset, len), len) }
    }
}
