//! Places the packets of a batch and holds the region's lock between them.
//!
//! The packets of a message go to the same region. Releasing its lock after each packet costs an atomic instruction, which waits until
//! the copy has reached the cache. So the lock is held until the last packet of the batch. Each packet still passes all checks.

use super::access::region;
use super::copy;
use super::gpu::MessagePart;
use super::region::{Peer, Region};
use super::table::{Held, RegionTable};
use ferroce_proto::verbs::{Access, MemoryFault, Sge};
use ferroce_proto::{LKey, PdId, RKey};

/// The region of the last packet, locked for reading. Its holder may take other regions only with recursive read locks, as
/// [`RegionTable::by_lkey`] does: a `dereg` may be waiting for this one.
pub(crate) struct RegionGuard<'a> {
    table: &'a RegionTable,
    held: Option<Held<'a>>,
}

impl<'a> RegionGuard<'a> {
    pub(crate) fn new(table: &'a RegionTable) -> Self {
        RegionGuard { table, held: None }
    }

    /// Releases the region.
    #[inline]
    pub(crate) fn release(&mut self) {
        self.held = None;
    }

    pub(super) fn table(&self) -> &'a RegionTable {
        self.table
    }

    /// The region with this local key.
    #[inline(always)]
    pub(super) fn local(&mut self, lkey: LKey) -> Result<&Region, MemoryFault> {
        let table = self.table;
        self.hold(|r| r.lkey == lkey, || table.by_lkey(lkey))
    }

    /// The region with this remote key.
    #[inline(always)]
    pub(super) fn remote(&mut self, rkey: RKey) -> Result<&Region, MemoryFault> {
        let table = self.table;
        self.hold(|r| r.rkey == rkey, || table.by_rkey(rkey))
    }

    /// The peer's WRITE.
    pub(crate) fn write_remote(
        &mut self,
        peer: Peer,
        rkey: RKey,
        addr: u64,
        data: &[u8],
        part: MessagePart,
    ) -> Result<(), MemoryFault> {
        let region = self.remote(rkey)?;
        copy::write(region.remote(peer, addr, data.len() as u64, Access::REMOTE_WRITE)?, data, part)
    }

    /// As [`RegionTable::scatter`].
    #[inline]
    pub(crate) fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
        part: MessagePart,
    ) -> Result<(), MemoryFault> {
        let table = self.table;
        let [sge] = sges else { return table.scatter(pd, sges, offset, data) };
        if offset.saturating_add(data.len() as u64) > u64::from(sge.len) {
            return table.scatter(pd, sges, offset, data);
        }
        let region = self.local(sge.lkey)?;
        let addr = sge.addr.wrapping_add(offset);
        copy::write(region.local(pd, addr, data.len() as u64, Access::LOCAL_WRITE)?, data, part)
    }

    /// The held region if `is_right` accepts it, else the one that `find` returns.
    #[inline(always)] // the held region is nearly always the right one, which takes two comparisons
    fn hold(
        &mut self,
        is_right: impl FnOnce(&Region) -> bool,
        find: impl FnOnce() -> Result<Held<'a>, MemoryFault>,
    ) -> Result<&Region, MemoryFault> {
        if !self.held.as_ref().is_some_and(|held| is_right(region(held))) {
            self.held = None;
            self.held = Some(find()?);
        }
        Ok(region(self.held.as_ref().expect("just taken")))
    }
}
