//! Operations between registered memory and bytes of a local peer.
//!
//! This module makes all checks of this end before it copies. The caller has made those of the other end, and keeps the bytes there
//! mapped. Operations that cannot be done in one step are declined and go as packets, which report faults.

use super::access::{pieces, region};
use super::across::{fetch, store};
use super::cached_region::CachedRegion;
use super::copy;
use super::gpu::{self, MessagePart};
use super::guard::RegionGuard;
use super::region::{Backing, Region, Span};
use super::table::{Held, RegionTable};
use ferroce_proto::PdId;
use ferroce_proto::qp::{Attempt, TxPayload};
use ferroce_proto::verbs::{Access, AtomicOp, MemoryFault, Sge};
use ferroce_proto::wire::SourcePiece;
use ferroce_shm::Owner;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

/// Bytes of a local peer, and how to access them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Far {
    /// They are mapped in this process.
    Mapped(Span),
    /// The kernel copies the bytes that are not mapped here, from or to the memory of this process.
    Copied(Owner, PartlyMapped),
}

/// Bytes of a local peer, of which some or none are mapped in this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PartlyMapped {
    /// Their address in the local peer.
    pub(crate) at: usize,
    /// Number of bytes.
    pub(crate) len: usize,
    /// Number of bytes before the mapped ones.
    pub(crate) head: usize,
    /// The mapped ones.
    pub(crate) mapped: Span,
}

impl PartlyMapped {
    /// Copies towards these bytes or from them. `copy_rest` copies those that are not mapped. The last written byte becomes visible last.
    pub(super) fn copy(
        &self,
        near: &[Span],
        towards: bool,
        copy_rest: impl FnOnce(&[SourcePiece], &[Span]) -> Attempt,
    ) -> Attempt {
        let (head, tail) = (0..self.head, self.head + self.mapped.len..self.len);
        let piece = |range: &Range<usize>| SourcePiece {
            addr: (self.at + range.start) as u64,
            len: range.len() as u32,
        };
        let ends_mapped = tail.is_empty();
        let rest: SmallVec<[Range<usize>; 2]> = [head, tail].into_iter().filter(|r| !r.is_empty()).collect();
        let far: SmallVec<[SourcePiece; 2]> = rest.iter().map(piece).collect();
        let near_rest: SmallVec<[Span; 4]> = rest.into_iter().flat_map(|range| part(near, range)).collect();
        let copy_mapped = || {
            let inner: SmallVec<[Span; 4]> = part(near, self.head..self.head + self.mapped.len).collect();
            copy::spread(&inner, self.mapped, towards);
        };
        if !ends_mapped {
            copy_mapped();
            fence(Ordering::Release);
        }
        let attempt = copy_rest(&far, &near_rest);
        if ends_mapped && attempt.is_done() {
            copy_mapped();
        }
        attempt
    }
}

/// The part `range` of the concatenated spans.
fn part(near: &[Span], range: Range<usize>) -> impl Iterator<Item = Span> {
    let mut before = 0;
    near.iter().filter_map(move |span| {
        let [start, end] = [range.start, range.end].map(|at| at.clamp(before, before + span.len) - before);
        before += span.len;
        (start < end).then(|| Span { start: span.start + start, len: end - start, ..*span })
    })
}

/// Local memory of one operation, checked and locked.
pub(super) struct Near<'a> {
    pub(super) spans: SmallVec<[Span; 4]>,
    /// Held until the copy is done.
    _held: SmallVec<[Held<'a>; 4]>,
}

impl RegionGuard<'_> {
    /// WRITE.
    #[inline(always)]
    pub(crate) fn send_direct(
        &mut self,
        cache: &mut CachedRegion,
        pd: PdId,
        data: &TxPayload<'_>,
        far: &Far,
    ) -> Attempt {
        if let (TxPayload::Local { sges: [sge], len, .. }, Far::Mapped(there)) = (data, far)
            && sge.len == *len
        {
            let Some(near) = self.near_cached(cache, pd, sge, Access::empty()) else {
                return Attempt::Declined;
            };
            return near.moves(*there, true);
        }
        if let (TxPayload::Bytes(bytes), Far::Mapped(there)) = (data, far) {
            return Attempt::of(copy::write(*there, bytes, MessagePart::WHOLE).is_ok());
        }
        self.table().send_direct(pd, *data, far)
    }

    /// READ. After [`Attempt::Declined`] the local bytes are undefined.
    #[inline]
    pub(crate) fn fetch_direct(
        &mut self,
        cache: &mut CachedRegion,
        pd: PdId,
        sges: &[Sge],
        far: &Far,
    ) -> Attempt {
        if let ([sge], Far::Mapped(there)) = (sges, far)
            && sge.len as usize == there.len
        {
            let Some(near) = self.near_cached(cache, pd, sge, Access::LOCAL_WRITE) else {
                return Attempt::Declined;
            };
            return near.moves(*there, false);
        }
        self.table().fetch_direct(pd, sges, far)
    }

    /// ATOMIC. Only on memory that is mapped: the kernel has no atomic copy between processes.
    #[inline]
    pub(crate) fn atomic_direct(
        &mut self,
        cache: &mut CachedRegion,
        pd: PdId,
        op: AtomicOp,
        sges: &[Sge],
        far: &Far,
    ) -> Attempt {
        let Far::Mapped(there) = far else { return Attempt::Declined };
        if !there.start.is_multiple_of(8) || there.len != 8 {
            return Attempt::Declined;
        }
        let [sge] = sges else { return self.table().atomic_direct(pd, op, sges, *there) };
        let near = self.near_cached(cache, pd, sge, Access::LOCAL_WRITE);
        let Some(near) = near.filter(|near| near.len == 8) else { return Attempt::Declined };
        let Ok(original) = copy::atomic(*there, op) else { return Attempt::Declined };
        near.moves(value(&original.to_ne_bytes()), false)
    }

    /// The payload of a packet, if it is in one piece, readable and always mapped. Valid until the region is released, or until the lock
    /// that protects the cache is released.
    #[inline]
    pub(crate) fn readable(&mut self, cache: &mut CachedRegion, payload: TxPayload<'_>) -> Option<Span> {
        match payload {
            TxPayload::Bytes(bytes) => Some(Span::of(bytes)),
            TxPayload::Local { pd, sges: [sge], offset: 0, len } if sge.len == len => {
                self.near_cached(cache, pd, sge, Access::empty())
            }
            TxPayload::None => Some(Span::of(&[])),
            _ => None,
        }
    }

    /// As [`Self::scatter`], from the start of one entry, without the region's lock if it is cached.
    #[inline(always)]
    pub(crate) fn place(
        &mut self,
        cache: &mut CachedRegion,
        pd: PdId,
        sge: &Sge,
        data: &[u8],
        part: MessagePart,
    ) -> Result<(), MemoryFault> {
        match cache.region(sge.lkey) {
            Some(region) => {
                copy::write(region.local(pd, sge.addr, data.len() as u64, Access::LOCAL_WRITE)?, data, part)
            }
            None => self.place_and_cache(cache, pd, sge, data, part),
        }
    }

    /// The same for a region that is not cached yet.
    #[inline(never)]
    fn place_and_cache(
        &mut self,
        cache: &mut CachedRegion,
        pd: PdId,
        sge: &Sge,
        data: &[u8],
        part: MessagePart,
    ) -> Result<(), MemoryFault> {
        let number = self.table().number_of(sge.lkey);
        let region = self.local(sge.lkey)?;
        cache.renew(number, region);
        copy::write(region.local(pd, sge.addr, data.len() as u64, Access::LOCAL_WRITE)?, data, part)
    }

    /// The bytes of an entry, if the access is granted and they are always mapped.
    #[inline(always)]
    pub(super) fn near(&mut self, pd: PdId, sge: &Sge, need: Access) -> Option<Span> {
        usable(self.local(sge.lkey).ok()?, pd, sge, need)
    }

    /// The same without the region's lock, if it is cached.
    #[inline(always)]
    fn near_cached(&mut self, cache: &mut CachedRegion, pd: PdId, sge: &Sge, need: Access) -> Option<Span> {
        match cache.region(sge.lkey) {
            Some(region) => usable(region, pd, sge, need),
            None => self.near_caching(cache, pd, sge, need),
        }
    }

    /// The same for a region that is not cached yet.
    #[inline(never)]
    fn near_caching(&mut self, cache: &mut CachedRegion, pd: PdId, sge: &Sge, need: Access) -> Option<Span> {
        let number = self.table().number_of(sge.lkey);
        let region = self.local(sge.lkey).ok()?;
        cache.renew(number, region);
        usable(region, pd, sge, need)
    }
}

/// The bytes of an entry in its region, if the access is granted and they are always mapped.
#[inline(always)]
fn usable(region: &Region, pd: PdId, sge: &Sge, need: Access) -> Option<Span> {
    let span = region.local(pd, sge.addr, u64::from(sge.len), need).ok()?;
    (span.backing == Backing::Mapped).then_some(span)
}

impl CachedRegion {
    /// The bytes of an entry that a request reads, if its region is cached.
    #[inline(always)]
    pub(crate) fn near(&mut self, pd: PdId, sge: &Sge) -> Option<Span> {
        usable(self.region(sge.lkey)?, pd, sge, Access::empty())
    }
}

impl Span {
    /// Bytes of this process.
    #[inline(always)]
    pub(crate) fn of(bytes: &[u8]) -> Span {
        Span { start: bytes.as_ptr() as usize, len: bytes.len(), backing: Backing::Mapped }
    }

    /// Copies the bytes into a span of a local peer that has the same length and is mapped here. Both regions are held, or cached.
    #[inline(always)]
    pub(crate) fn put_into(self, there: Span) {
        copy::spread(std::slice::from_ref(&self), there, true);
    }

    /// Copies towards another span of the same length, or from it. Never declines.
    #[inline(always)]
    fn moves(self, far: Span, towards_far: bool) -> Attempt {
        copy::spread(std::slice::from_ref(&self), far, towards_far);
        Attempt::Done
    }
}

/// Eight bytes of this process as a span.
fn value(bytes: &[u8; 8]) -> Span {
    Span::of(bytes)
}

/// Operations copied by a GPU, with one end or both in its memory.
impl RegionGuard<'_> {
    /// WRITE.
    #[cold]
    pub(crate) fn send_by_gpu(&mut self, pd: PdId, data: &TxPayload<'_>, far: Span) -> Attempt {
        match *data {
            TxPayload::Bytes(bytes) => gpu::exchange(&[Span::of(bytes)], far, true),
            TxPayload::Local { sges, len, .. } => {
                let near = self.table().near_of_gpu(pd, sges, len as usize, Access::empty());
                near.map_or(Attempt::Declined, |near| gpu::exchange(&near.spans, far, true))
            }
            _ => Attempt::Declined,
        }
    }
}

/// Operations with several entries, or copied by the kernel.
impl RegionTable {
    fn send_direct(&self, pd: PdId, data: TxPayload<'_>, far: &Far) -> Attempt {
        match (data, far) {
            (TxPayload::Bytes(bytes), Far::Copied(owner, there)) => {
                there.copy(&[Span::of(bytes)], true, |far, near| store(owner, far, near))
            }
            (TxPayload::Local { sges, len, .. }, far) => {
                let Some(near) = self.near(pd, sges, len as usize, Access::empty()) else {
                    return Attempt::Declined;
                };
                match far {
                    Far::Mapped(span) => {
                        copy::spread(&near.spans, *span, true);
                        Attempt::Done
                    }
                    Far::Copied(owner, there) => {
                        there.copy(&near.spans, true, |far, near| store(owner, far, near))
                    }
                }
            }
            _ => Attempt::Declined,
        }
    }

    fn fetch_direct(&self, pd: PdId, sges: &[Sge], far: &Far) -> Attempt {
        let len = match far {
            Far::Mapped(span) => span.len,
            Far::Copied(_, there) => there.len,
        };
        let Some(near) = self.near(pd, sges, len, Access::LOCAL_WRITE) else { return Attempt::Declined };
        match far {
            Far::Mapped(span) => {
                copy::spread(&near.spans, *span, false);
                Attempt::Done
            }
            Far::Copied(owner, there) => there.copy(&near.spans, false, |far, near| fetch(owner, far, near)),
        }
    }

    fn atomic_direct(&self, pd: PdId, op: AtomicOp, sges: &[Sge], there: Span) -> Attempt {
        let Some(near) = self.near(pd, sges, 8, Access::LOCAL_WRITE) else { return Attempt::Declined };
        let Ok(original) = copy::atomic(there, op) else { return Attempt::Declined };
        copy::spread(&near.spans, value(&original.to_ne_bytes()), false);
        Attempt::Done
    }

    /// The local memory of an operation on `len` bytes, if the access is granted and the memory is always mapped.
    pub(super) fn near(&self, pd: PdId, sges: &[Sge], len: usize, need: Access) -> Option<Near<'_>> {
        self.near_if(pd, sges, len, need, |backing| backing == Backing::Mapped)
    }

    /// The same for memory that a GPU can copy.
    pub(super) fn near_of_gpu(&self, pd: PdId, sges: &[Sge], len: usize, need: Access) -> Option<Near<'_>> {
        self.near_if(pd, sges, len, need, |backing| matches!(backing, Backing::Mapped | Backing::Gpu(_)))
    }

    /// The same for memory with a backing that the caller can use.
    #[inline(always)]
    fn near_if(
        &self,
        pd: PdId,
        sges: &[Sge],
        len: usize,
        need: Access,
        is_usable: impl Fn(Backing) -> bool,
    ) -> Option<Near<'_>> {
        let mut near = Near { spans: SmallVec::new(), _held: SmallVec::new() };
        let mut found = 0;
        for piece in pieces(sges, 0, len) {
            let held = self.by_lkey(piece.lkey).ok()?;
            let span = region(&held).local(pd, piece.addr, u64::from(piece.len), need).ok()?;
            if !is_usable(span.backing) {
                return None;
            }
            found += span.len;
            near.spans.push(span);
            near._held.push(held);
        }
        (found == len).then_some(near)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU8;

    /// Copies the far bytes `0..32`, of which `mapped` are mapped, to three near spans or from them. Returns whether the mapped ones were
    /// copied before the others.
    fn copies(mapped: Range<usize>, towards: bool) -> bool {
        let (far, near): (Vec<_>, Vec<_>) =
            ((100..132).map(AtomicU8::new).collect(), (1..=32).map(AtomicU8::new).collect());
        let span = |bytes: &[AtomicU8]| Span::at(bytes.as_ptr() as usize, bytes.len());
        let now =
            |bytes: &[AtomicU8]| bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let spans = [0..5, 5..6, 6..32].map(|range| span(&near[range]));
        let there = PartlyMapped {
            at: far.as_ptr() as usize,
            len: 32,
            head: mapped.start,
            mapped: span(&far[mapped.clone()]),
        };
        let mut was_first = false;
        let attempt = there.copy(&spans, towards, |pieces, rest| {
            was_first = !mapped.is_empty() && now(&far[mapped.clone()]) == now(&near[mapped.clone()]);
            let far_len: u32 = pieces.iter().map(|piece| piece.len).sum();
            assert_eq!(far_len as usize, rest.iter().map(|span| span.len).sum::<usize>());
            let mut rest = rest.to_vec();
            for piece in pieces {
                let far = Span::at(piece.addr as usize, piece.len as usize);
                let mut len = 0;
                let count = rest.iter().take_while(|span| {
                    len += span.len;
                    len <= far.len
                });
                let of_piece: Vec<Span> = rest.drain(..count.count()).collect();
                copy::spread(&of_piece, far, towards);
            }
            Attempt::Done
        });
        assert!(attempt.is_done());
        let expected: Vec<u8> = if towards { (1..=32).collect() } else { (100..132).collect() };
        assert!(now(&far) == expected && now(&near) == expected);
        was_first
    }

    #[test]
    fn what_is_mapped_in_part_is_copied_whole_and_ends_last() {
        for towards in [true, false] {
            for mapped in [3..20, 5..6, 1..31, 0..31, 6..7] {
                assert!(copies(mapped.clone(), towards), "{mapped:?}: the end is not mapped");
            }
            for mapped in [3..32, 6..32, 31..32, 32..32] {
                assert!(!copies(mapped.clone(), towards), "{mapped:?}: the end is mapped, or nothing");
            }
        }
    }
}
