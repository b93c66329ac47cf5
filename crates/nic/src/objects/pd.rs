//! Protection domains: what may work together.

use super::event::EventQueue;
use super::region::MemoryRegion;
use crate::error::Error;
use crate::memory::Region;
use crate::nic::NicInner;
use ferroce_proto::PdId;
use ferroce_proto::verbs::Access;
use std::any::Any;
use std::sync::Arc;

/// A protection domain. Regions, queue pairs, shared receive queues and address handles belong to one.
pub struct Pd {
    pub(crate) id: PdId,
    pub(crate) nic: Arc<NicInner>,
    /// Where events of its queue pairs and shared receive queues go.
    pub(crate) events: Arc<EventQueue>,
}

impl Pd {
    /// Its number within the device.
    pub fn id(&self) -> PdId {
        self.id
    }

    /// Registers `len` bytes at `addr`; work requests and peers name them from `iova` on. With
    /// [`Access::ZERO_BASED`] the `iova` is ignored and zero.
    ///
    /// # Safety
    /// The bytes must stay mapped, readable, and writable if any write access is granted, until the region is
    /// dropped. `owner` is kept until then, and is the way to make sure of it. The NIC reads and writes the bytes at
    /// any time; the program must order its own accesses by completions.
    pub unsafe fn register(
        self: &Arc<Self>,
        addr: usize,
        len: usize,
        iova: u64,
        access: Access,
        owner: Option<Arc<dyn Any + Send + Sync>>,
    ) -> Result<MemoryRegion, Error> {
        self.nic.alive()?;
        check_access(access)?;
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { iova };
        check_range(addr, len, iova)?;
        let make = |lkey, rkey| Region {
            base: addr,
            len: len as u64,
            iova,
            pd: self.id,
            access,
            lkey,
            rkey,
            remote_open: true,
            _owner: owner,
        };
        let (slot, lkey, rkey) = self
            .nic
            .engine
            .regions
            .insert(make)
            .ok_or(Error::Exhausted { what: "memory regions", limit: 1 << 20 })?;
        Ok(MemoryRegion::new(self.clone(), slot, addr, len, iova, access, lkey, rkey))
    }
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

pub(super) fn check_range(addr: usize, len: usize, iova: u64) -> Result<(), Error> {
    if len == 0 {
        return Err(Error::Invalid { attribute: "length", why: "a memory region has at least one byte" });
    }
    // The last byte must have an address, in this process and in the remote view.
    if addr.checked_add(len - 1).is_none() || iova.checked_add(len as u64 - 1).is_none() {
        return Err(Error::Invalid { attribute: "length", why: "the region wraps around the address space" });
    }
    Ok(())
}
