//! Memory regions.

use super::raw::Memory;
use super::{RemoteRegion, resolve};
use crate::error::Error;
use crate::pd::Pd;
use ferroce_nic::MemoryRegion;
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::{LKey, RKey};
use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Page size that regions are aligned to.
pub(super) const PAGE: usize = 4096;

/// Registered, page-aligned memory that work requests name by key, and that peers may touch at any time if its rights
/// say so. So it is read and written by copy. Cheap to clone; the memory lives until the last clone is gone and the
/// NIC is done with it.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

struct Inner {
    region: MemoryRegion,
    memory: Arc<Memory>,
    pd: Pd,
}

/// Rights of a region to be. Made by [`Pd::region`].
#[must_use = "nothing is registered before `register`"]
#[derive(Clone)]
pub struct RegionBuilder {
    pd: Pd,
    len: usize,
    access: Access,
}

impl RegionBuilder {
    pub(crate) fn new(pd: &Pd, len: usize) -> Self {
        RegionBuilder { pd: pd.clone(), len, access: Access::LOCAL_WRITE }
    }

    /// Exactly these rights instead of those asked for so far; the default is [`Access::LOCAL_WRITE`].
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
    /// Peers may read.
    pub fn remote_read(mut self) -> Self {
        self.access |= Access::REMOTE_READ;
        self
    }
    /// Peers may write.
    pub fn remote_write(mut self) -> Self {
        self.access |= Access::REMOTE_WRITE;
        self
    }
    /// Peers may run atomics.
    pub fn remote_atomic(mut self) -> Self {
        self.access |= Access::REMOTE_ATOMIC;
        self
    }
    /// Work requests and peers name the first byte 0 instead of its address.
    pub fn zero_based(mut self) -> Self {
        self.access |= Access::ZERO_BASED;
        self
    }

    /// Registers zeroed memory.
    pub fn register(self) -> Result<Region, Error> {
        let call = Error::in_call("register");
        if self.len == 0 {
            let why = "a memory region has at least one byte";
            return Err(call(ferroce_nic::Error::Invalid { attribute: "length", why }));
        }
        let memory = Memory::zeroed(self.len, PAGE)?;
        self.finish(memory)
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn finish(self, memory: Arc<Memory>) -> Result<Region, Error> {
        let region = memory.register(&self.pd.nic, self.access)?;
        Ok(Region { inner: Arc::new(Inner { region, memory, pd: self.pd }) })
    }
}

impl Region {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.inner.region.len()
    }
    /// Never: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// What it allows.
    pub fn access(&self) -> Access {
        self.inner.region.access()
    }
    /// Key for local work requests.
    pub fn lkey(&self) -> LKey {
        self.inner.region.lkey()
    }
    /// Key for peers.
    pub fn rkey(&self) -> RKey {
        self.inner.region.rkey()
    }
    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// The entry that names some of its bytes in a work request.
    pub fn sge(&self, range: impl RangeBounds<u64>) -> Result<Sge, Error> {
        let (offset, len) = resolve(range, self.len() as u64)?;
        let too_long = ferroce_nic::Error::Limit { what: "sge length", value: len, limit: u32::MAX.into() };
        let len = u32::try_from(len).map_err(|_| Error::in_call("sge")(too_long))?;
        Ok(self.inner.region.sge(offset as usize, len))
    }

    /// What to tell a peer about it.
    pub fn remote(&self) -> RemoteRegion {
        RemoteRegion { addr: self.inner.region.iova(), len: self.len() as u64, rkey: self.rkey() }
    }

    /// Copies out from `offset` on. If a peer writes there meanwhile, the copy may hold some old and some new bytes.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        self.inner.memory.read(offset, out);
        Ok(())
    }

    /// Copies in from `offset` on.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.check(offset, data.len())?;
        self.inner.memory.write(offset, data);
        Ok(())
    }

    /// Sets all bytes.
    pub fn fill(&self, value: u8) {
        self.inner.memory.fill(0, self.len(), value);
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.len()];
        self.inner.memory.read(0, &mut copy);
        copy
    }

    /// One byte, read anew each time: for programs that wait for a peer's write. What was written before it is
    /// visible afterwards.
    pub fn load_u8(&self, offset: usize) -> Result<u8, Error> {
        self.check(offset, 1)?;
        Ok(self.inner.memory.byte(offset).load(Ordering::Acquire))
    }

    /// Sets one byte, after everything that was written before.
    pub fn store_u8(&self, offset: usize, value: u8) -> Result<(), Error> {
        self.check(offset, 1)?;
        self.inner.memory.byte(offset).store(value, Ordering::Release);
        Ok(())
    }

    /// Eight aligned bytes in host order, atomic with the atomics of peers.
    pub fn load_u64(&self, offset: usize) -> Result<u64, Error> {
        self.check_word(offset)?;
        Ok(self.inner.memory.word(offset).load(Ordering::Acquire))
    }

    /// Sets eight aligned bytes at once.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), Error> {
        self.check_word(offset)?;
        self.inner.memory.word(offset).store(value, Ordering::Release);
        Ok(())
    }

    /// Adds to eight aligned bytes, atomically with the atomics of peers, and returns what was there.
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Error> {
        self.check_word(offset)?;
        Ok(self.inner.memory.word(offset).fetch_add(add, Ordering::SeqCst))
    }

    /// Registers anew with other rights: both keys change, and whoever holds the old ones is out. The region must
    /// have no other clones, since they would go on using the old keys.
    pub fn reregister(&mut self, access: Access) -> Result<(), Error> {
        let call = Error::in_call("reregister");
        let Some(inner) = Arc::get_mut(&mut self.inner) else {
            return Err(call(ferroce_nic::Error::Invalid { attribute: "region", why: "has other clones" }));
        };
        inner.region.reregister(None, Some(access)).map_err(call)
    }

    /// Moves it to another protection domain of the same device; as [`Region::reregister`].
    pub fn move_to(&mut self, pd: &Pd) -> Result<(), Error> {
        let call = Error::in_call("reregister");
        let Some(inner) = Arc::get_mut(&mut self.inner) else {
            return Err(call(ferroce_nic::Error::Invalid { attribute: "region", why: "has other clones" }));
        };
        inner.region.reregister(Some(&pd.nic), None).map_err(call)?;
        inner.pd = pd.clone();
        Ok(())
    }

    fn check(&self, offset: usize, len: usize) -> Result<(), Error> {
        let (start, size) = (offset as u64, self.len());
        if offset > size || len > size - offset {
            return Err(Error::Range { start, end: start.saturating_add(len as u64), len: size as u64 });
        }
        Ok(())
    }

    fn check_word(&self, offset: usize) -> Result<(), Error> {
        self.check(offset, 8)?;
        if offset.is_multiple_of(8) { Ok(()) } else { Err(Error::Misaligned { offset }) }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Region({} bytes, {:?}, lkey {}, rkey {})",
            self.len(),
            self.access(),
            self.lkey(),
            self.rkey()
        )
    }
}
