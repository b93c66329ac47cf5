//! Placing arriving packets, with the region held between them.
//!
//! The packets of a message go to the same region. Giving it up after each means an atomic instruction behind each copy,
//! which waits until the last byte of the copy is in the cache; so it is held until the last packet of the batch. All checks
//! are made for each packet nevertheless.

use super::access::region;
use super::copy;
use super::gpu::MessagePart;
use super::region::{Peer, Region};
use super::table::{Held, RegionTable};
use ferroce_proto::verbs::{Access, MemoryFault, Sge};
use ferroce_proto::{LKey, PdId, RKey};

/// The region that the last packet was placed in. Whoever holds it must not wait for a region in any way but
/// [`RegionTable::by_lkey`]'s: a `dereg` may be waiting for this one.
pub(crate) struct RegionGuard<'a> {
    table: &'a RegionTable,
    held: Option<Held<'a>>,
}

impl<'a> RegionGuard<'a> {
    pub(crate) fn new(table: &'a RegionTable) -> Self {
        RegionGuard { table, held: None }
    }

    /// Lets go of the region.
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

    /// The region in hand if it is the right one, else the one that `find` finds.
    #[inline(always)] // the region in hand is the right one nearly always, and that is two comparisons
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
