//! Protection domains.

use super::region::MemoryRegion;
use crate::device_memory::DeviceMemory;
use crate::error::Error;
use crate::locked_memory::LockedPages;
use crate::memory::{Backing, Prefetch, Region, check_mapped, gpu_of, is_driver_loaded};
use crate::nic::{Nic, NicInner};
use crate::queues::EventQueue;
use crate::quota::Permit;
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::{LKey, PdId, RKey};
use std::any::Any;
use std::sync::Arc;

/// A protection domain. Regions, queue pairs, shared receive queues and address handles belong to one.
pub struct Pd {
    pub(crate) id: PdId,
    pub(crate) nic: Arc<NicInner>,
    /// Receives the events of its queue pairs and shared receive queues.
    pub(crate) events: Arc<EventQueue>,
    /// `None` for an internal one, which does not count against the limit.
    pub(super) permit: Option<Arc<Permit>>,
}

impl Nic {
    /// Makes a protection domain.
    pub fn alloc_pd(&self) -> Result<Arc<Pd>, Error> {
        self.inner().alive()?;
        let permit = Some(Arc::new(self.inner().quotas.pds.take()?));
        let id = PdId(self.inner().next_id());
        Ok(Arc::new(Pd { id, nic: self.inner().clone(), events: self.event_queue().clone(), permit }))
    }

    /// The same protection domain, for objects whose events go to this handle of the device.
    pub fn share_pd(&self, pd: &Pd) -> Arc<Pd> {
        let (nic, events, permit) = (pd.nic.clone(), self.event_queue().clone(), pd.permit.clone());
        Arc::new(Pd { id: pd.id, nic, events, permit })
    }
}

impl Pd {
    /// Its number within the device.
    pub fn id(&self) -> PdId {
        self.id
    }

    /// Registers `len` bytes at `addr`; work requests and peers name them from `iova` on. With
    /// [`Access::ZERO_BASED`] the `iova` is ignored and zero. A region of no bytes is valid for operations of no bytes.
    ///
    /// With [`Access::ON_DEMAND`] the bytes need not be mapped, now or later: an access to one that is not fails,
    /// and its completion reports it. All bytes from 0 to `usize::MAX` are the whole address space (implicit on-demand paging).
    ///
    /// # Safety
    /// Unless the region is on demand, the bytes must stay mapped, readable, and writable if any write access is granted, until the region is
    /// dropped. `owner` is kept until then, so it can guarantee that. The NIC reads and writes the bytes at
    /// any time; the program must order its own accesses by completions.
    pub unsafe fn register(
        self: &Arc<Self>,
        addr: usize,
        len: usize,
        iova: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<MemoryRegion, Error> {
        let range = Range { addr, len, capacity: len, iova };
        self.register_range(range, access, Memory::Present, owner)
    }

    /// As [`Pd::register`]. The caller guarantees that the `capacity` bytes from `addr` on contain no other data; the region is the first
    /// `len` of them. So even a last page that the region does not fill can be shared with processes of this host.
    ///
    /// # Safety
    /// As for [`Pd::register`]; and all of the capacity stays mapped, readable and writable.
    pub unsafe fn register_with_capacity(
        self: &Arc<Self>,
        addr: usize,
        len: usize,
        capacity: usize,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<MemoryRegion, Error> {
        let range = Range { addr, len, capacity: capacity.max(len), iova: addr as u64 };
        self.register_range(range, access, Memory::Present, owner)
    }

    /// As [`Pd::register`], but neither faults pages in nor checks them. For ranges that are mostly unused, such as the shared heap of a
    /// job.
    ///
    /// # Safety
    /// As for [`Pd::register`]; this call does not check that the bytes are mapped.
    pub unsafe fn register_sparse(
        self: &Arc<Self>,
        addr: usize,
        len: usize,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<MemoryRegion, Error> {
        let range = Range { addr, len, capacity: len, iova: addr as u64 };
        self.register_range(range, access, Memory::Sparse, owner)
    }

    fn register_range(
        self: &Arc<Self>,
        mut range: Range,
        access: Access,
        memory: Memory,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<MemoryRegion, Error> {
        self.nic.alive()?;
        check_access(access)?;
        if access.contains(Access::ZERO_BASED) {
            range.iova = 0;
        }
        let Range { addr, len, iova, .. } = range;
        let backing = check_range(addr, len, iova, access)?;
        if memory == Memory::OfGpu && !matches!(backing, Backing::Gpu(_)) {
            return Err(Error::Invalid { attribute: "addr", why: "is not a CUDA device pointer" });
        }
        let locked = self.lock_pages(addr, len, backing)?;
        // Without an owner, the caller must keep the memory mapped; C programs sometimes do not.
        let may_be_unmapped =
            owner.is_none() && memory == Memory::Present && backing == Backing::Mapped && len > 0;
        let stored = if memory == Memory::Present { self.watched(backing) } else { backing };
        let mut region = self.insert_region(range, stored, access, owner)?;
        region.locked = locked;
        // After the insertion: moving untouched pages into a memfd needs no copy. Nobody has the keys of the region yet.
        if memory == Memory::Present {
            check_mapped(addr, len, access, backing).map_err(Error::Memory)?;
        }
        if may_be_unmapped {
            region.note_unpinned();
        }
        Ok(region)
    }

    /// Registers memory of a GPU: `len` bytes at the CUDA device pointer `addr`. [`Pd::register`] accepts such a pointer too; this call
    /// accepts no other memory. The process must have loaded the CUDA driver.
    ///
    /// The driver copies the bytes, and each copy is complete before the completion or the ACK. Atomics are atomic among the operations
    /// of this process, but not to kernels of the GPU.
    ///
    /// # Safety
    /// The bytes must stay allocated until the region is dropped. `owner` is kept until then, so it can guarantee that.
    pub unsafe fn register_gpu(
        self: &Arc<Self>,
        addr: u64,
        len: usize,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<MemoryRegion, Error> {
        if !is_driver_loaded() {
            let source = std::io::Error::from_raw_os_error(libc::EOPNOTSUPP);
            return Err(Error::System {
                what: "the process has not loaded the CUDA driver (libcuda.so.1)",
                source,
            });
        }
        let range = Range { addr: addr as usize, len, capacity: len, iova: addr };
        self.register_range(range, access, Memory::OfGpu, owner)
    }

    /// Registers part of the device's own memory. Addresses of peers and work requests start at zero, so the access must contain
    /// [`Access::ZERO_BASED`].
    pub fn register_device_memory(
        self: &Arc<Self>,
        memory: &Arc<DeviceMemory>,
        offset: u64,
        len: usize,
        access: Access,
    ) -> Result<MemoryRegion, Error> {
        self.nic.alive()?;
        check_access(access)?;
        if !access.contains(Access::ZERO_BASED) || access.contains(Access::ON_DEMAND) {
            return Err(Error::Invalid {
                attribute: "access",
                why: "device memory is ZERO_BASED, and always there",
            });
        }
        let size = memory.len() as u64;
        if offset > size || len as u64 > size - offset {
            return Err(Error::Invalid { attribute: "dm_offset", why: "past the end of the device memory" });
        }
        let range = Range { addr: memory.start() + offset as usize, len, capacity: len, iova: 0 };
        self.insert_region(range, Backing::Mapped, access, Some(memory.clone()))
    }

    /// Allocates a null region: it discards writes, and reads return zeros. Only its lkey is valid.
    pub fn alloc_null_region(self: &Arc<Self>) -> Result<MemoryRegion, Error> {
        self.nic.alive()?;
        let range = Range { addr: 0, len: usize::MAX, capacity: usize::MAX, iova: 0 };
        self.insert_region(range, Backing::Null, Access::LOCAL_WRITE, None)
    }

    /// Copies the bytes of scatter/gather entries, as the NIC does for a packet.
    pub fn gather(&self, sges: &[Sge], out: &mut [u8]) -> Result<(), Error> {
        self.nic.alive()?;
        self.nic.engine.device.regions.gather(self.id, sges, 0, out, 0).map_err(Error::Memory)
    }

    /// Prefetches pages of on-demand regions. Wrong keys, ranges and rights are errors. Pages that cannot be faulted in are errors only with
    /// `wait`.
    pub fn prefetch(&self, sges: &[Sge], how: Prefetch, wait: bool) -> Result<(), Error> {
        self.nic.alive()?;
        self.nic.engine.device.regions.prefetch(self.id, sges, how, wait).map_err(Error::Memory)
    }

    /// Strict mode: counts the pages that a NIC would pin, as Linux does for every registration that is not on demand.
    pub(super) fn lock_pages(
        &self,
        addr: usize,
        len: usize,
        backing: Backing,
    ) -> Result<Option<LockedPages>, Error> {
        let pins = self.nic.config.strict.is_some() && backing == Backing::Mapped;
        pins.then(|| LockedPages::take(addr, len)).transpose()
    }

    /// The backing in the table for memory of the program: with `Config::watch`, its buffers are watched.
    pub(super) fn watched(&self, backing: Backing) -> Backing {
        if self.nic.watch.is_some() && backing == Backing::Mapped { Backing::Watched } else { backing }
    }

    fn insert_region(
        self: &Arc<Self>,
        range: Range,
        backing: Backing,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<MemoryRegion, Error> {
        let Range { addr, len, capacity, iova } = range;
        let region = Region {
            iova,
            // Peers cannot access a null region.
            remote_open: backing != Backing::Null,
            backing,
            capacity,
            _owner: owner,
            ..Region::plain(addr, len as u64, self.id, access, LKey(0), RKey(0))
        };
        let (slot, lkey, rkey) = self
            .nic
            .engine
            .device
            .regions
            .insert(region)
            .ok_or(Error::Exhausted { what: "memory regions", limit: self.nic.limits.max_mr.into() })?;
        Ok(MemoryRegion::new(self.clone(), slot, addr, len, iova, access, lkey, rkey))
    }
}

/// The kind of memory that a registration expects.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Mapped, unless it is on demand or of a GPU. Registration checks this by faulting the pages in.
    Present,
    /// Not checked.
    Sparse,
    /// Of a GPU.
    OfGpu,
}

/// Where a region is.
struct Range {
    addr: usize,
    len: usize,
    /// Bytes from `addr` on that contain no other data.
    capacity: usize,
    iova: u64,
}

/// Remote write and atomic need local write (IBA 11.2.8.2): the NIC itself stores what the peer sends.
pub(super) fn check_access(access: Access) -> Result<(), Error> {
    let unknown = access.bits() & !(Access::all().bits() | Access::OPTIONAL);
    if unknown != 0 {
        return Err(Error::Limit {
            what: "access flags",
            value: access.bits().into(),
            limit: Access::all().bits().into(),
        });
    }
    let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    if writes && !access.contains(Access::LOCAL_WRITE) {
        return Err(Error::Invalid {
            attribute: "access",
            why: "REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE too",
        });
    }
    Ok(())
}

/// Checks a range and returns its backing.
pub(super) fn check_range(addr: usize, len: usize, iova: u64, access: Access) -> Result<Backing, Error> {
    // The last byte, if any, must have an address, in this process and in the remote view.
    let last = len.saturating_sub(1);
    if addr.checked_add(last).is_none() || iova.checked_add(last as u64).is_none() {
        return Err(Error::Invalid { attribute: "length", why: "the region wraps around the address space" });
    }
    Ok(match gpu_of(addr, len).map_err(Error::Memory)? {
        Some(gpu) => Backing::Gpu(gpu),
        None if access.contains(Access::ON_DEMAND) => Backing::OnDemand,
        None => Backing::Mapped,
    })
}
