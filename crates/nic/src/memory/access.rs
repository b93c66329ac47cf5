//! The memory accesses of work requests and of peers, by key.

use super::copy;
use super::gpu::{MessagePart, ReadAhead};
use super::on_demand::{self, Prefetch};
use super::region::{Backing, Kind, Peer, Region, Span, WindowType};
use super::table::{Held, RegionTable};
use ferroce_proto::verbs::{Access, AtomicOp, MemoryFault, Sge};
use ferroce_proto::{PdId, RKey};
use std::sync::atomic::{Ordering, fence};

/// The region of a slot that the table found occupied.
pub(super) fn region<'a>(held: &'a Held<'_>) -> &'a Region {
    held.as_ref().expect("the table hands out occupied slots only")
}

/// Bytes that the peer READs. Holds their region.
pub(crate) struct RemoteRead<'a> {
    held: Held<'a>,
    span: Span,
    reader: usize,
    rest: u32,
    is_first: bool,
}

impl RemoteRead<'_> {
    /// Copies bytes from `offset` on.
    pub(crate) fn copy(&self, offset: usize, out: &mut [u8]) -> Result<(), MemoryFault> {
        let part = self.span.part(offset, out.len());
        let (rest, is_first) = (u64::from(self.rest) - offset as u64, self.is_first && offset == 0);
        copy::read(part, out, || region(&self.held).ahead(part, self.reader, rest, is_first))
    }
}

impl RegionTable {
    /// Copies `out.len()` bytes of the concatenated entries, from `offset` on. They belong to a message of `reader`; 0 means to none.
    #[inline]
    pub(crate) fn gather(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        out: &mut [u8],
        reader: usize,
    ) -> Result<(), MemoryFault> {
        if let [only] = sges
            && !out.is_empty()
            && offset.saturating_add(out.len() as u64) <= u64::from(only.len)
        {
            let held = self.by_lkey(only.lkey)?;
            let (addr, region) = (only.addr.wrapping_add(offset), region(&held));
            let span = region.local(pd, addr, out.len() as u64, Access::empty())?;
            let rest = u64::from(only.len) - offset;
            return copy::read(span, out, || region.ahead(span, reader, rest, offset == 0));
        }
        let mut done = 0;
        for piece in pieces(sges, offset, out.len()) {
            let held = self.by_lkey(piece.lkey)?;
            let span = region(&held).local(pd, piece.addr, u64::from(piece.len), Access::empty())?;
            let end = done + piece.len as usize;
            copy::read(span, &mut out[done..end], || ReadAhead::NONE)?;
            done = end;
        }
        Ok(())
    }

    /// Copies `data` to the concatenated entries from `offset` on. Checks all entries before it writes.
    pub(crate) fn scatter(
        &self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
    ) -> Result<(), MemoryFault> {
        let place = |piece: Sge, data: Option<&[u8]>| -> Result<(), MemoryFault> {
            let held = self.by_lkey(piece.lkey)?;
            let span = region(&held).local(pd, piece.addr, u64::from(piece.len), Access::LOCAL_WRITE)?;
            if let Some(data) = data {
                copy::write(span, data, MessagePart::WHOLE)?;
            }
            Ok(())
        };
        if sges.len() > 1 {
            pieces(sges, offset, data.len()).try_for_each(|piece| place(piece, None))?;
        }
        let mut rest = data;
        for piece in pieces(sges, offset, data.len()) {
            let (now, later) = rest.split_at(piece.len as usize);
            place(piece, Some(now))?;
            rest = later;
        }
        Ok(())
    }

    /// Whether the peer may do `need`.
    pub(crate) fn check_remote(
        &self,
        peer: Peer,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault> {
        let held = self.by_rkey(rkey)?;
        region(&held).remote(peer, addr, len, need).map(|_| ())
    }

    /// `len` bytes that the peer READs; `rest` bytes of its message are left, these included. `reader` answers it. If the response
    /// `is_repeated`, the peer may already have the data, and the program may have unmapped the memory, as UCX does before it deregisters. The
    /// kernel then copies, because its copy returns an error where a plain one would raise SIGSEGV.
    pub(crate) fn remote_read(
        &self,
        peer: Peer,
        rkey: RKey,
        (addr, len): (u64, usize),
        (reader, rest, is_first): (usize, u32, bool),
        is_repeated: bool,
    ) -> Result<RemoteRead<'_>, MemoryFault> {
        let held = self.by_rkey(rkey)?;
        let span = region(&held).remote(peer, addr, len as u64, Access::REMOTE_READ)?;
        let span = if is_repeated { span.checked_by_kernel() } else { span };
        Ok(RemoteRead { held, span, reader, rest, is_first })
    }

    /// The peer's atomic.
    pub(crate) fn atomic(&self, peer: Peer, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryFault> {
        let held = self.by_rkey(rkey)?;
        let span = region(&held).remote(peer, addr, 8, Access::REMOTE_ATOMIC)?;
        if !span.start.is_multiple_of(8) {
            // With a chosen iova, an aligned remote address may belong to an unaligned local one.
            return Err(MemoryFault::Misaligned { addr });
        }
        copy::atomic(span, op)
    }

    /// The peer's atomic write.
    pub(crate) fn store_remote(
        &self,
        peer: Peer,
        rkey: RKey,
        addr: u64,
        value: [u8; 8],
    ) -> Result<(), MemoryFault> {
        let held = self.by_rkey(rkey)?;
        let span = region(&held).remote(peer, addr, 8, Access::REMOTE_WRITE)?;
        if !span.start.is_multiple_of(8) {
            return Err(MemoryFault::Misaligned { addr });
        }
        copy::store(span, u64::from_ne_bytes(value))
    }

    /// The peer's flush. This NIC stores with processor instructions, which other processors see in order. So after the check of the
    /// access rights a fence suffices: it keeps later stores behind.
    pub(crate) fn flush_remote(
        &self,
        peer: Peer,
        rkey: RKey,
        range: Option<(u64, u64)>,
    ) -> Result<(), MemoryFault> {
        let held = self.by_rkey(rkey)?;
        let region = region(&held);
        let (addr, len) = range.unwrap_or((region.iova, region.len));
        region.remote(peer, addr, len, Access::FLUSH_GLOBAL)?;
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Prefetches pages of on-demand regions. A page that cannot be faulted in is an error only if `wait` is set.
    pub(crate) fn prefetch(
        &self,
        pd: PdId,
        sges: &[Sge],
        how: Prefetch,
        wait: bool,
    ) -> Result<(), MemoryFault> {
        let mut spans = Vec::with_capacity(sges.len());
        for sge in sges {
            let held = self.by_lkey(sge.lkey)?;
            let need = if how == Prefetch::Write { Access::LOCAL_WRITE } else { Access::empty() };
            let span = region(&held).local(pd, sge.addr, u64::from(sge.len), need)?;
            if span.backing != Backing::OnDemand {
                return Err(MemoryFault::NotOnDemand { key: sge.lkey.0 });
            }
            spans.push(span);
        }
        for span in spans {
            let outcome = on_demand::prefetch(span, how);
            if wait {
                outcome?;
            }
        }
        Ok(())
    }

    /// Makes a remote key invalid.
    pub(crate) fn invalidate(&self, peer: Peer, rkey: RKey) -> Result<(), MemoryFault> {
        let window = {
            let held = self.by_rkey(rkey)?;
            let r = region(&held);
            r.remote(peer, r.iova, 0, Access::empty())?;
            match r.kind {
                Kind::Window { kind: WindowType::One, .. } => {
                    return Err(MemoryFault::NotInvalidatable { key: rkey.0 });
                }
                Kind::Window { kind: WindowType::Two, .. } => true,
                Kind::Memory { .. } => false,
            }
        };
        if window {
            self.unbind_key(rkey);
        } else {
            self.close_remote(rkey);
        }
        Ok(())
    }
}

/// The parts of the entries that cover `len` bytes from `offset` on.
pub(super) fn pieces(sges: &[Sge], offset: u64, len: usize) -> impl Iterator<Item = Sge> + '_ {
    let (mut skip, mut left) = (offset, len as u64);
    sges.iter().filter_map(move |sge| {
        let whole = u64::from(sge.len);
        if skip >= whole {
            skip -= whole;
            return None;
        }
        let take = (whole - skip).min(left);
        let piece = Sge { addr: sge.addr.wrapping_add(skip), len: take as u32, lkey: sge.lkey };
        skip = 0;
        left -= take;
        (take > 0).then_some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::{LKey, Qpn};

    const PEER: Peer = Peer { pd: PdId(1), qp: Qpn::GSI };

    #[test]
    fn pieces_cover_exactly_what_is_asked() {
        let sge = |addr, len| Sge { addr, len, lkey: LKey(1) };
        let list = [sge(100, 4), sge(0, 0), sge(200, 4), sge(300, 8)];
        let got: Vec<(u64, u32)> = pieces(&list, 2, 7).map(|s| (s.addr, s.len)).collect();
        assert_eq!(got, [(102, 2), (200, 4), (300, 1)]);
        assert_eq!(pieces(&list, 16, 0).count(), 0);
    }

    #[test]
    fn gather_and_scatter_respect_the_registration() {
        let mut memory = vec![0u8; 64];
        let table = RegionTable::new(None);
        let base = memory.as_mut_ptr() as usize;
        let make = |access| Region::plain(base, 64, PdId(1), access, LKey(0), RKey(0));
        let (_, lkey, rkey) = table.insert(make(Access::LOCAL_WRITE | Access::REMOTE_ATOMIC)).unwrap();
        let sges = [Sge { addr: 8, len: 4, lkey }, Sge { addr: 60, len: 8, lkey }];
        assert!(table.scatter(PdId(1), &sges, 0, &[1; 12]).is_err(), "reaches past the end");
        assert!(memory.iter().all(|b| *b == 0), "nothing was written");
        assert!(table.scatter(PdId(1), &sges, 0, &[7; 8]).is_ok());
        let mut out = [0; 8];
        assert!(table.gather(PdId(1), &sges, 0, &mut out, 0).is_ok() && out == [7; 8]);
        assert_eq!(table.atomic(PEER, rkey, 16, AtomicOp::FetchAdd { add: 5 }), Ok(0));
        assert_eq!(table.atomic(PEER, rkey, 16, AtomicOp::FetchAdd { add: 5 }), Ok(5));
        assert!(table.invalidate(Peer { pd: PdId(2), ..PEER }, rkey).is_err());
        assert!(table.invalidate(PEER, rkey).is_ok());
        assert!(matches!(
            table.atomic(PEER, rkey, 16, AtomicOp::FetchAdd { add: 5 }),
            Err(MemoryFault::StaleKey { .. })
        ));
        assert!(memory[8] == 7 && memory[16] == 10);
    }
}
