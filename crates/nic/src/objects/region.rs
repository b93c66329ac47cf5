//! Memory regions, as programs hold them.

use super::pd::{Pd, check_access, check_range};
use crate::error::Error;
use crate::locked_memory::LockedPages;
use crate::memory::{Backing, Region, Unpinned, check_mapped};
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::{LKey, RKey};
use std::sync::Arc;

/// A registration. Dropping it waits for accesses in flight and then refuses every later one.
pub struct MemoryRegion {
    pd: Arc<Pd>,
    /// `None` once it is deregistered: the slot may belong to another region then.
    slot: Option<u32>,
    addr: usize,
    len: usize,
    iova: u64,
    access: Access,
    lkey: LKey,
    rkey: RKey,
    /// `Some` if the program may unmap the bytes and the log is to report it.
    unpinned: Option<Unpinned>,
    /// Strict mode: the pages that a NIC would pin.
    pub(super) locked: Option<LockedPages>,
}

impl MemoryRegion {
    #[allow(clippy::too_many_arguments)] // the fields of the one caller, `Pd::register`
    pub(super) fn new(
        pd: Arc<Pd>,
        slot: u32,
        addr: usize,
        len: usize,
        iova: u64,
        access: Access,
        lkey: LKey,
        rkey: RKey,
    ) -> Self {
        MemoryRegion {
            pd,
            slot: Some(slot),
            addr,
            len,
            iova,
            access,
            lkey,
            rkey,
            unpinned: None,
            locked: None,
        }
    }

    /// Key for local work requests.
    pub fn lkey(&self) -> LKey {
        self.lkey
    }
    /// Key for peers.
    pub fn rkey(&self) -> RKey {
        self.rkey
    }
    /// First byte in this process.
    pub fn addr(&self) -> usize {
        self.addr
    }
    /// The address of the first byte in work requests and for peers.
    pub fn iova(&self) -> u64 {
        self.iova
    }
    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Whether it has no byte, which only a region on device memory can.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Its access rights.
    pub fn access(&self) -> Access {
        self.access
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
    /// A scatter/gather entry for part of it.
    pub fn sge(&self, offset: usize, len: u32) -> Sge {
        Sge { addr: self.iova.wrapping_add(offset as u64), len, lkey: self.lkey }
    }

    /// How many memory windows are bound to it.
    pub fn bound_windows(&self) -> usize {
        self.slot.map_or(0, |slot| self.pd.nic.engine.device.regions.bound_windows(slot))
    }

    /// Deregisters, unless memory windows are bound to it: then this returns an error. (Dropping the region unbinds the windows.)
    pub fn deregister(&mut self) -> Result<(), Error> {
        let Some(slot) = self.slot.filter(|_| self.pd.nic.alive().is_ok()) else { return Ok(()) };
        self.pd.nic.engine.device.regions.remove_unless_bound(slot).map_err(busy)?;
        (self.slot, self.unpinned, self.locked) = (None, None, None);
        Ok(())
    }

    /// The slot of a region that can be changed: not of a null region, and not of a deregistered one.
    fn changeable_slot(&self) -> Result<u32, Error> {
        self.pd.nic.alive()?;
        let refused = |why| Error::Invalid { attribute: "mr", why };
        if self.len == usize::MAX && !self.access.contains(Access::ON_DEMAND) {
            return Err(refused("a null region cannot be changed"));
        }
        self.slot.ok_or_else(|| refused("the region is deregistered already, so it cannot be changed"))
    }

    /// Registers again with other rights or in another domain. Both keys change, so the old keys become invalid. The pages are checked as at
    /// registration: write access to read-only pages is an error.
    pub fn reregister(&mut self, pd: Option<&Arc<Pd>>, access: Option<Access>) -> Result<(), Error> {
        let slot = self.changeable_slot()?;
        let new_access = access.unwrap_or(self.access);
        check_access(new_access)?;
        let new_pd = pd.unwrap_or(&self.pd).clone();
        if !Arc::ptr_eq(&new_pd.nic, &self.pd.nic) {
            return Err(Error::Invalid { attribute: "pd", why: "belongs to another device" });
        }
        // Zero-based addressing and on-demand paging are properties of the region, not access rights.
        let fixed = Access::ZERO_BASED | Access::ON_DEMAND;
        let new_access = (new_access - fixed) | (self.access & fixed);
        let backing = check_range(self.addr, self.len, self.iova, new_access)?;
        check_mapped(self.addr, self.len, new_access, backing).map_err(Error::Memory)?;
        let change = |region: &mut Region| (region.pd, region.access) = (new_pd.id, new_access);
        let keys = self.pd.nic.engine.device.regions.change(slot, change).map_err(busy)?;
        if let Some((lkey, rkey)) = keys {
            (self.lkey, self.rkey) = (lkey, rkey);
            self.unpinned.iter().for_each(|unpinned| unpinned.set_lkey(lkey.0));
        }
        (self.pd, self.access) = (new_pd, new_access);
        Ok(())
    }

    /// Registers again as the verb `rereg_mr` does: another domain, other rights, other bytes (address, length and iova), or several of
    /// these. The keys stay valid and refer to the new bytes.
    ///
    /// # Safety
    /// As for [`Pd::register`].
    pub unsafe fn modify(
        &mut self,
        pd: Option<&Arc<Pd>>,
        access: Option<Access>,
        place: Option<(usize, usize, u64)>,
    ) -> Result<(), Error> {
        let slot = self.changeable_slot()?;
        let new_pd = pd.unwrap_or(&self.pd).clone();
        if !Arc::ptr_eq(&new_pd.nic, &self.pd.nic) {
            return Err(Error::Invalid { attribute: "pd", why: "belongs to another device" });
        }
        let new_access = access.unwrap_or(self.access);
        check_access(new_access)?;
        let (addr, len, iova) = place.unwrap_or((self.addr, self.len, self.iova));
        let iova = if new_access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let backing = check_range(addr, len, iova, new_access)?;
        check_mapped(addr, len, new_access, backing).map_err(Error::Memory)?;
        // A change of the rights does not pin the pages again; device memory is never pinned.
        let is_pinned_again = place.is_some() || (self.access ^ new_access).contains(Access::ON_DEMAND);
        let locked = is_pinned_again.then(|| self.pd.lock_pages(addr, len, backing)).transpose()?;
        let change = |region: &mut Region| {
            (region.pd, region.access, region.backing) = (new_pd.id, new_access, new_pd.watched(backing));
            (region.base, region.len, region.capacity, region.iova) = (addr, len as u64, len, iova);
        };
        self.pd.nic.engine.device.regions.change_keeping_keys(slot, change).map_err(busy)?;
        if let Some(locked) = locked {
            self.locked = locked;
        }
        (self.pd, self.access) = (new_pd, new_access);
        (self.addr, self.len, self.iova) = (addr, len, iova);
        self.update_unpinned(backing);
        Ok(())
    }

    /// Records that the program may unmap the bytes.
    pub(super) fn note_unpinned(&mut self) {
        let is_strict = self.pd.nic.config.strict.is_some();
        self.unpinned = Unpinned::new(self.addr, self.len, self.lkey.0, is_strict);
    }

    /// The same for the new bytes, if it was recorded for the previous ones.
    fn update_unpinned(&mut self, backing: Backing) {
        if self.unpinned.take().is_some() && backing == Backing::Mapped {
            self.note_unpinned();
        }
    }

    /// Moves the registration to other bytes.
    ///
    /// # Safety
    /// As for [`Pd::register`].
    pub unsafe fn retranslate(&mut self, addr: usize, len: usize, iova: u64) -> Result<(), Error> {
        let slot = self.changeable_slot()?;
        let iova = if self.access.contains(Access::ZERO_BASED) { 0 } else { iova };
        let backing = check_range(addr, len, iova, self.access)?;
        check_mapped(addr, len, self.access, backing).map_err(Error::Memory)?;
        let locked = self.pd.lock_pages(addr, len, backing)?;
        let change = |region: &mut Region| {
            region.backing = self.pd.watched(backing);
            (region.base, region.len, region.capacity, region.iova) = (addr, len as u64, len, iova);
        };
        let keys = self.pd.nic.engine.device.regions.change(slot, change).map_err(busy)?;
        self.locked = locked;
        if let Some((lkey, rkey)) = keys {
            (self.lkey, self.rkey) = (lkey, rkey);
        }
        (self.addr, self.len, self.iova) = (addr, len, iova);
        self.update_unpinned(backing);
        Ok(())
    }
}

/// The error for a region that has this many windows bound to it.
fn busy(bound: usize) -> Error {
    let by = if bound == 1 { "1 memory window".into() } else { format!("{bound} memory windows").into() };
    Error::Busy { what: "the memory region", by }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.filter(|_| self.pd.nic.alive().is_ok()) {
            self.pd.nic.engine.device.regions.remove(slot);
        }
    }
}
