//! Memory regions, as programs hold them.

use super::pd::{Pd, check_access, check_range};
use crate::error::Error;
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::{LKey, RKey};
use std::sync::Arc;

/// A registration. Dropping it waits for accesses in flight and then refuses every later one.
pub struct MemoryRegion {
    pd: Arc<Pd>,
    slot: u32,
    addr: usize,
    len: usize,
    iova: u64,
    access: Access,
    lkey: LKey,
    rkey: RKey,
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
        MemoryRegion { pd, slot, addr, len, iova, access, lkey, rkey }
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
    /// First byte as work requests and peers name it.
    pub fn iova(&self) -> u64 {
        self.iova
    }
    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// What it allows.
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

    /// Registers anew with other rights or in another domain. Both keys change, so that whoever holds the old ones
    /// is out.
    pub fn reregister(&mut self, pd: Option<&Arc<Pd>>, access: Option<Access>) -> Result<(), Error> {
        let (new_pd, new_access) = self.check_change(pd, access)?;
        let keys = self.pd.nic.engine.regions.change(self.slot, |region| {
            (region.pd, region.access) = (new_pd.id, new_access);
        });
        if let Some((lkey, rkey)) = keys {
            (self.lkey, self.rkey) = (lkey, rkey);
        }
        (self.pd, self.access) = (new_pd, new_access);
        Ok(())
    }

    /// The same with the keys it has, as hardware does it: who holds them meets the new rights.
    pub fn change_rights(&mut self, pd: Option<&Arc<Pd>>, access: Option<Access>) -> Result<(), Error> {
        let (new_pd, new_access) = self.check_change(pd, access)?;
        self.pd.nic.engine.regions.adjust(self.slot, |region| {
            (region.pd, region.access) = (new_pd.id, new_access);
        });
        (self.pd, self.access) = (new_pd, new_access);
        Ok(())
    }

    fn check_change(&self, pd: Option<&Arc<Pd>>, access: Option<Access>) -> Result<(Arc<Pd>, Access), Error> {
        self.pd.nic.alive()?;
        let new_access = access.unwrap_or(self.access);
        check_access(new_access)?;
        let new_pd = pd.unwrap_or(&self.pd).clone();
        if !Arc::ptr_eq(&new_pd.nic, &self.pd.nic) {
            return Err(Error::Invalid { attribute: "pd", why: "belongs to another device" });
        }
        // Whether addresses count from zero is part of the region, not of its rights.
        Ok((new_pd, (new_access - Access::ZERO_BASED) | (self.access & Access::ZERO_BASED)))
    }

    /// Moves the registration to other bytes.
    ///
    /// # Safety
    /// As for [`Pd::register`].
    pub unsafe fn retranslate(&mut self, addr: usize, len: usize, iova: u64) -> Result<(), Error> {
        self.pd.nic.alive()?;
        let iova = if self.access.contains(Access::ZERO_BASED) { 0 } else { iova };
        check_range(addr, len, iova)?;
        let keys = self.pd.nic.engine.regions.change(self.slot, |region| {
            (region.base, region.len, region.iova) = (addr, len as u64, iova);
        });
        if let Some((lkey, rkey)) = keys {
            (self.lkey, self.rkey) = (lkey, rkey);
        }
        (self.addr, self.len, self.iova) = (addr, len, iova);
        Ok(())
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        if self.pd.nic.alive().is_ok() {
            self.pd.nic.engine.regions.remove(self.slot);
        }
    }
}
