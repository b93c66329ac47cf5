//! Memory regions.

use super::raw::Memory;
use super::{RemoteRegion, resolve, sge_of};
use crate::error::Error;
use crate::macros::{debug, setters};
use crate::pd::Pd;
use ferroce_nic::{MemoryRegion, Prefetch};
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::{LKey, RKey};
use std::ops::RangeBounds;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Page size that regions are aligned to.
pub(super) const PAGE: usize = 4096;

/// Registered, page-aligned memory. Peers may access it at any time, as far as its access rights allow, so the program reads
/// and writes it by copy. Cheap to clone; the memory lives until the last clone is dropped and the NIC has finished with it.
#[derive(Clone)]
pub struct Region {
    inner: Arc<Inner>,
}

struct Inner {
    region: MemoryRegion,
    memory: Arc<Memory>,
    pd: Pd,
}

/// Settings of a region. Made by [`Pd::region`].
#[must_use = "`register` registers the region"]
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

    setters! {
        /// Replaces all access rights; the default is [`Access::LOCAL_WRITE`].
        access(access: Access) |b| b.access = access;
        /// Peers may READ.
        remote_read() |b| b.access |= Access::REMOTE_READ;
        /// Peers may WRITE.
        remote_write() |b| b.access |= Access::REMOTE_WRITE;
        /// Peers may execute atomics.
        remote_atomic() |b| b.access |= Access::REMOTE_ATOMIC;
        /// The address of the first byte is 0 in work requests and for peers.
        zero_based() |b| b.access |= Access::ZERO_BASED;
        /// Memory windows can be bound to the region.
        bind_windows() |b| b.access |= Access::MW_BIND;
        /// On-demand paging: registration brings no page in. The NIC brings each page in on first access;
        /// [`Region::prefetch`] does so earlier.
        on_demand() |b| b.access |= Access::ON_DEMAND;
    }

    /// Registers zeroed memory.
    pub fn register(self) -> Result<Region, Error> {
        if self.len == 0 {
            return Err(Error::invalid("register", "length", "a memory region has at least one byte"));
        }
        let memory = match self.access.contains(Access::ON_DEMAND) {
            true => Memory::without_pages(self.len)?,
            false => Memory::zeroed(self.len, PAGE)?,
        };
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

region_methods!(Region, inner.region, inner.pd);

impl Region {
    /// Always `false`: a region has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Brings the pages of a range in before the NIC accesses them. The region must be [on
    /// demand](RegionBuilder::on_demand).
    pub fn prefetch(&self, range: impl RangeBounds<u64>, how: Prefetch) -> Result<(), Error> {
        const STEP: u64 = 1 << 30;
        let (offset, len) = resolve(range, self.len() as u64)?;
        let sges: Result<Vec<Sge>, Error> = (offset..offset + len)
            .step_by(STEP as usize)
            .map(|at| self.sge(at..(at + STEP).min(offset + len)))
            .collect();
        self.inner.pd.prefetch(&sges?, how)
    }

    /// Copies bytes out, from `offset` on. If a peer writes concurrently, the copy may mix old and new bytes.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        self.check(offset, out.len())?;
        self.inner.memory.read(offset, out);
        Ok(())
    }

    /// Copies bytes in, from `offset` on.
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

    /// Loads one byte (acquire), for programs that poll for a peer's write. Bytes that the peer wrote before it are visible
    /// afterwards.
    pub fn load_u8(&self, offset: usize) -> Result<u8, Error> {
        self.check(offset, 1)?;
        Ok(self.inner.memory.byte(offset).load(Ordering::Acquire))
    }

    /// Stores one byte (release), after all earlier writes.
    pub fn store_u8(&self, offset: usize, value: u8) -> Result<(), Error> {
        self.check(offset, 1)?;
        self.inner.memory.byte(offset).store(value, Ordering::Release);
        Ok(())
    }

    /// Loads eight aligned bytes in host order, atomically with respect to the atomics of peers.
    pub fn load_u64(&self, offset: usize) -> Result<u64, Error> {
        self.check_word(offset)?;
        Ok(self.inner.memory.word(offset).load(Ordering::Acquire))
    }

    /// Stores eight aligned bytes in host order, atomically.
    pub fn store_u64(&self, offset: usize, value: u64) -> Result<(), Error> {
        self.check_word(offset)?;
        self.inner.memory.word(offset).store(value, Ordering::Release);
        Ok(())
    }

    /// Adds to eight aligned bytes, atomically with respect to the atomics of peers, and returns the old value.
    pub fn fetch_add(&self, offset: usize, add: u64) -> Result<u64, Error> {
        self.check_word(offset)?;
        Ok(self.inner.memory.word(offset).fetch_add(add, Ordering::SeqCst))
    }

    /// Registers again with other access rights. Both keys change, so the old keys are invalid. The region must have no other
    /// clones, because they would keep the old keys.
    pub fn reregister(&mut self, access: Access) -> Result<(), Error> {
        self.alone()?.region.reregister(None, Some(access)).map_err(Error::in_call("reregister"))
    }

    /// Moves the region to another protection domain of the same device, as [`Region::reregister`] does.
    pub fn move_to(&mut self, pd: &Pd) -> Result<(), Error> {
        let inner = self.alone()?;
        inner.region.reregister(Some(&pd.nic), None).map_err(Error::in_call("reregister"))?;
        inner.pd = pd.clone();
        Ok(())
    }

    /// Exclusive access, for changes that must not affect other clones.
    fn alone(&mut self) -> Result<&mut Inner, Error> {
        Arc::get_mut(&mut self.inner)
            .ok_or_else(|| Error::invalid("reregister", "region", "has other clones"))
    }

    pub(super) fn nic(&self) -> &MemoryRegion {
        &self.inner.region
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

debug!(
    Region,
    |this| "Region({} bytes, {:?}, lkey {}, rkey {})",
    this.len(),
    this.access(),
    this.lkey(),
    this.rkey()
);
