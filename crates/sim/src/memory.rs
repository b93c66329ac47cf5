//! The registered memory of one simulated NIC.
//!
//! A region owns its bytes; its addresses are arbitrary, so a test can place one at the very end of the address space
//! and see whether a range check wraps. Every access has its full effect or none.

use ferroce_proto::qp::Placement;
use ferroce_proto::verbs::{Access, AtomicOp, MemoryFault, Sge};
use ferroce_proto::{LKey, PdId, Qpn, RKey};
use std::collections::BTreeMap;
use std::ops::Range;

/// A memory region as the NIC keeps it.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    /// Key for local work requests.
    pub(crate) lkey: LKey,
    /// Key for peers.
    pub(crate) rkey: RKey,
    /// Protection domain.
    pub(crate) pd: PdId,
    /// First address.
    pub(crate) start: u64,
    /// Access rights.
    pub(crate) access: Access,
    /// The bytes.
    pub(crate) bytes: Vec<u8>,
}

impl Region {
    /// Returns the range of `len` bytes at `addr` in `bytes`. The order of the comparisons prevents a wrap.
    fn span(&self, key: u32, addr: u64, len: u64) -> Result<Range<usize>, MemoryFault> {
        let region_len = self.bytes.len() as u64;
        let offset = addr.wrapping_sub(self.start);
        if addr < self.start || offset > region_len || len > region_len - offset {
            return Err(MemoryFault::OutOfRange { key, addr, len, start: self.start, region_len });
        }
        Ok(offset as usize..(offset + len) as usize)
    }

    fn admit(&self, key: u32, pd: PdId, need: Access) -> Result<(), MemoryFault> {
        if self.pd != pd {
            return Err(MemoryFault::WrongPd { key, region: self.pd, qp: pd });
        }
        if !self.access.contains(need) {
            return Err(MemoryFault::Denied { key, need, have: self.access });
        }
        Ok(())
    }
}

/// Bytes for a region, and where they go.
type Placed = (LKey, Range<usize>, Vec<u8>);

/// All regions of a NIC, by the keys that name them.
#[derive(Default, Debug)]
pub(crate) struct Memory {
    regions: BTreeMap<LKey, Region>,
    remote: BTreeMap<RKey, LKey>,
    /// Bytes that queue pairs have placed and programs must not read yet. So a test that reads after a premature completion finds
    /// the old bytes.
    deferred: BTreeMap<Qpn, Vec<Placed>>,
}

impl Memory {
    /// Adds a region under its two keys.
    pub(crate) fn insert(&mut self, region: Region) {
        self.remote.insert(region.rkey, region.lkey);
        self.regions.insert(region.lkey, region);
    }

    /// Deregisters: both keys stop working.
    pub(crate) fn remove(&mut self, lkey: LKey) -> Option<Region> {
        let region = self.regions.remove(&lkey)?;
        self.remote.remove(&region.rkey);
        Some(region)
    }

    /// The region with that local key.
    pub(crate) fn region_mut(&mut self, lkey: LKey) -> Option<&mut Region> {
        self.regions.get_mut(&lkey)
    }

    /// Whether either kind of key is taken.
    pub(crate) fn knows(&self, key: u32) -> bool {
        self.regions.contains_key(&LKey(key)) || self.remote.contains_key(&RKey(key))
    }

    fn by_remote(&self, pd: PdId, rkey: RKey, need: Access) -> Result<&Region, MemoryFault> {
        let unknown = MemoryFault::NoSuchKey { key: rkey.0 };
        let lkey = self.remote.get(&rkey).ok_or(unknown)?;
        let region = self.regions.get(lkey).ok_or(unknown)?;
        region.admit(rkey.0, pd, need)?;
        Ok(region)
    }

    /// Whether a peer may do `need` there.
    pub(crate) fn check_remote(
        &self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        if len == 0 {
            return Ok(());
        }
        self.by_remote(pd, rkey, need)?.span(rkey.0, addr, len).map(drop)
    }

    /// Bytes that a peer reads.
    pub(crate) fn read_remote(
        &self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len: u32,
    ) -> Result<Vec<u8>, MemoryFault> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let region = self.by_remote(pd, rkey, Access::REMOTE_READ)?;
        let span = region.span(rkey.0, addr, len.into())?;
        Ok(region.bytes[span].to_vec())
    }

    /// Bytes that a peer writes.
    pub(crate) fn write_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        data: &[u8],
        by: (Qpn, Placement),
    ) -> Result<(), MemoryFault> {
        if data.is_empty() {
            return Ok(());
        }
        let region = self.by_remote(pd, rkey, Access::REMOTE_WRITE)?;
        let (lkey, span) = (region.lkey, region.span(rkey.0, addr, data.len() as u64)?);
        self.place(vec![(lkey, span, data.to_vec())], by);
        Ok(())
    }

    /// Whether a peer may flush there; there is nothing to flush.
    pub(crate) fn flush_remote(
        &self,
        pd: PdId,
        rkey: RKey,
        range: Option<(u64, u64)>,
    ) -> Result<(), MemoryFault> {
        let region = self.by_remote(pd, rkey, Access::FLUSH_GLOBAL)?;
        range.map_or(Ok(()), |(addr, len)| region.span(rkey.0, addr, len).map(drop))
    }

    /// Runs an atomic for a peer; the operands are in host order, as a NIC keeps them.
    pub(crate) fn atomic(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        op: AtomicOp,
    ) -> Result<u64, MemoryFault> {
        let region = self.by_remote(pd, rkey, Access::REMOTE_ATOMIC)?;
        let (lkey, span) = (region.lkey, region.span(rkey.0, addr, 8)?);
        if !addr.is_multiple_of(8) {
            return Err(MemoryFault::Misaligned { addr });
        }
        let word = &mut self.regions.get_mut(&lkey).expect("found above").bytes[span];
        let old = u64::from_ne_bytes(word.try_into().expect("eight bytes"));
        word.copy_from_slice(&op.apply(old).to_ne_bytes());
        Ok(old)
    }

    /// Makes a remote key invalid; the region stays usable locally.
    pub(crate) fn invalidate(&mut self, pd: PdId, rkey: RKey) -> Result<(), MemoryFault> {
        self.by_remote(pd, rkey, Access::empty())?;
        self.remote.remove(&rkey);
        Ok(())
    }

    /// Returns the pieces of regions that hold `len` bytes of the entries from `offset` on. All pieces are checked.
    fn pieces(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        len: u64,
        need: Access,
    ) -> Result<Vec<(LKey, Range<usize>)>, MemoryFault> {
        let (mut skip, mut left, mut pieces) = (offset, len, Vec::new());
        for sge in sges {
            let entry = u64::from(sge.len);
            if skip >= entry {
                skip -= entry;
                continue;
            }
            let take = left.min(entry - skip);
            if take == 0 {
                break;
            }
            let key = sge.lkey.0;
            let region = self.regions.get(&sge.lkey).ok_or(MemoryFault::NoSuchKey { key })?;
            region.admit(key, pd, need)?;
            // The whole entry must be inside, not only the part this packet touches: a NIC checks the entry.
            let whole = region.span(key, sge.addr, entry)?;
            let start = whole.start + skip as usize;
            pieces.push((sge.lkey, start..start + take as usize));
            (skip, left) = (0, left - take);
        }
        assert_eq!(left, 0, "the queue pair asked for more bytes than its scatter/gather list has");
        Ok(pieces)
    }

    /// Collects bytes for sending.
    pub(crate) fn gather(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        len: u32,
    ) -> Result<Vec<u8>, MemoryFault> {
        let mut data = Vec::with_capacity(len as usize);
        for (lkey, span) in self.pieces(pd, sges, offset, len.into(), Access::empty())? {
            data.extend_from_slice(&self.regions[&lkey].bytes[span]);
        }
        Ok(data)
    }

    /// Spreads received bytes.
    pub(crate) fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
        by: (Qpn, Placement),
    ) -> Result<(), MemoryFault> {
        let (mut rest, mut placed) = (data, Vec::new());
        for (lkey, span) in self.pieces(pd, sges, offset, data.len() as u64, Access::LOCAL_WRITE)? {
            let (now, later) = rest.split_at(span.len());
            placed.push((lkey, span, now.to_vec()));
            rest = later;
        }
        self.place(placed, by);
        Ok(())
    }

    /// Defers bytes as long as a host may.
    fn place(&mut self, placed: Vec<Placed>, (qpn, placement): (Qpn, Placement)) {
        self.deferred.entry(qpn).or_default().extend(placed);
        if placement == Placement::More {
            return;
        }
        for (lkey, span, data) in self.deferred.remove(&qpn).unwrap_or_default() {
            if let Some(region) = self.regions.get_mut(&lkey) {
                region.bytes[span].copy_from_slice(&data);
            }
        }
    }

    /// Discards the deferred bytes of a failed queue pair.
    pub(crate) fn forget_deferred(&mut self, qpn: Qpn) {
        self.deferred.remove(&qpn);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PD: PdId = PdId(1);
    const BY: (Qpn, Placement) = (Qpn::GSI, Placement::Last);

    fn memory(start: u64, len: usize, access: Access) -> Memory {
        let mut memory = Memory::default();
        let bytes = (0..len).map(|i| i as u8).collect();
        memory.insert(Region { lkey: LKey(1), rkey: RKey(2), pd: PD, start, access, bytes });
        memory
    }

    #[test]
    fn the_last_bytes_of_the_address_space_do_not_wrap() {
        let start = u64::MAX - 15;
        let memory = memory(start, 16, Access::REMOTE_READ);
        let ask = |addr, len| memory.check_remote(PD, RKey(2), addr, len, Access::REMOTE_READ);
        assert_eq!(ask(start, 16), Ok(()));
        assert_eq!(ask(u64::MAX, 1), Ok(()));
        for (addr, len) in [(start, 17), (u64::MAX, 2), (u64::MAX, u64::MAX), (start - 1, 1), (0, 1)] {
            assert!(matches!(ask(addr, len), Err(MemoryFault::OutOfRange { .. })), "{len} at {addr:#x}");
        }
        assert_eq!(memory.check_remote(PdId(9), RKey(77), 5, 0, Access::all()), Ok(()), "no bytes, no check");
    }

    #[test]
    fn entries_are_read_and_written_as_one_string() {
        let mut memory = memory(100, 32, Access::LOCAL_WRITE);
        let entry = |addr, len| Sge { addr, len, lkey: LKey(1) };
        let sges = [entry(100, 4), entry(0, 0), entry(120, 2), entry(110, 5)];
        assert_eq!(memory.gather(PD, &sges, 3, 4).unwrap(), [3, 20, 21, 10]);
        memory.scatter(PD, &sges, 5, &[0xaa, 0xbb], BY).unwrap();
        assert_eq!(memory.regions[&LKey(1)].bytes[21], 0xaa);
        assert_eq!(memory.regions[&LKey(1)].bytes[10], 0xbb);
    }

    #[test]
    fn a_refused_scatter_writes_nothing() {
        let mut memory = memory(0, 8, Access::LOCAL_WRITE);
        let sges = [Sge { addr: 0, len: 4, lkey: LKey(1) }, Sge { addr: 0, len: 4, lkey: LKey(9) }];
        assert_eq!(memory.scatter(PD, &sges, 0, &[0xff; 8], BY), Err(MemoryFault::NoSuchKey { key: 9 }));
        assert_eq!(memory.regions[&LKey(1)].bytes, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn rights_domains_and_alignment_are_checked() {
        let mut memory = memory(0, 16, Access::REMOTE_ATOMIC);
        let add = AtomicOp::FetchAdd { add: 1 };
        assert!(memory.atomic(PD, RKey(2), 8, add).is_ok());
        assert_eq!(memory.atomic(PD, RKey(2), 4, add), Err(MemoryFault::Misaligned { addr: 4 }));
        assert!(matches!(memory.atomic(PdId(5), RKey(2), 8, add), Err(MemoryFault::WrongPd { .. })));
        assert!(matches!(memory.write_remote(PD, RKey(2), 0, &[1], BY), Err(MemoryFault::Denied { .. })));
        memory.invalidate(PD, RKey(2)).unwrap();
        assert_eq!(memory.atomic(PD, RKey(2), 8, add), Err(MemoryFault::NoSuchKey { key: 2 }));
    }
}
