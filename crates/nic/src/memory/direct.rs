//! Operations between registered memory and bytes of a local peer.
//!
//! All checks on this end are made before a byte moves. The caller has made those of the other end, and keeps the bytes there
//! mapped. Whatever cannot be done in one step is left to packets, which report faults.

use super::access::{pieces, region};
use super::across::copy_across;
use super::cached_region::CachedRegion;
use super::copy;
use super::guard::RegionGuard;
use super::region::{Backing, Region, Span};
use super::table::{Held, RegionTable};
use ferroce_proto::PdId;
use ferroce_proto::qp::{Attempt, TxPayload};
use ferroce_proto::verbs::{Access, AtomicOp, MemoryFault, Sge};
use smallvec::SmallVec;

/// Bytes of a local peer, and how to get at them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Far {
    /// They are in our memory too.
    Mapped(Span),
    /// The kernel can copy them.
    Copied {
        /// The local peer's process.
        process: libc::pid_t,
        /// Where they are there.
        at: usize,
        /// How many there are.
        len: usize,
    },
}

/// Local memory of one operation, checked and held.
pub(super) struct Near<'a> {
    pub(super) spans: SmallVec<[Span; 4]>,
    /// Kept until the bytes have moved.
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
            return Attempt::of(copy::write(*there, bytes).is_ok());
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

    /// The payload of a packet, if it is in one piece, readable and always mapped. Valid until the region is released, or the lock
    /// under which the cache is used.
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
    ) -> Result<(), MemoryFault> {
        match cache.region(sge.lkey) {
            Some(region) => {
                copy::write(region.local(pd, sge.addr, data.len() as u64, Access::LOCAL_WRITE)?, data)
            }
            None => self.place_and_cache(cache, pd, sge, data),
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
    ) -> Result<(), MemoryFault> {
        let number = self.table().number_of(sge.lkey);
        let region = self.local(sge.lkey)?;
        cache.renew(number, region);
        copy::write(region.local(pd, sge.addr, data.len() as u64, Access::LOCAL_WRITE)?, data)
    }

    /// The bytes of an entry, if all of them may be used and are there to stay.
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

/// The bytes of an entry in its region, if all of them may be used and are there to stay.
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
    /// Bytes of ours.
    #[inline(always)]
    pub(crate) fn of(bytes: &[u8]) -> Span {
        Span { start: bytes.as_ptr() as usize, len: bytes.len(), backing: Backing::Mapped }
    }

    /// Copies the bytes into a span of a local peer, as many and mapped here. Both are held, or cached.
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

/// Eight bytes of ours as a span.
fn value(bytes: &[u8; 8]) -> Span {
    Span::of(bytes)
}

/// What needs more than one entry, or the kernel.
impl RegionTable {
    fn send_direct(&self, pd: PdId, data: TxPayload<'_>, far: &Far) -> Attempt {
        match (data, far) {
            (TxPayload::Bytes(bytes), Far::Copied { process, at, .. }) => {
                copy_across(*process, *at, &[Span::of(bytes)], true)
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
                    Far::Copied { process, at, .. } => copy_across(*process, *at, &near.spans, true),
                }
            }
            _ => Attempt::Declined,
        }
    }

    fn fetch_direct(&self, pd: PdId, sges: &[Sge], far: &Far) -> Attempt {
        let len = match far {
            Far::Mapped(span) => span.len,
            Far::Copied { len, .. } => *len,
        };
        let Some(near) = self.near(pd, sges, len, Access::LOCAL_WRITE) else { return Attempt::Declined };
        match far {
            Far::Mapped(span) => {
                copy::spread(&near.spans, *span, false);
                Attempt::Done
            }
            Far::Copied { process, at, .. } => copy_across(*process, *at, &near.spans, false),
        }
    }

    fn atomic_direct(&self, pd: PdId, op: AtomicOp, sges: &[Sge], there: Span) -> Attempt {
        let Some(near) = self.near(pd, sges, 8, Access::LOCAL_WRITE) else { return Attempt::Declined };
        let Ok(original) = copy::atomic(there, op) else { return Attempt::Declined };
        copy::spread(&near.spans, value(&original.to_ne_bytes()), false);
        Attempt::Done
    }

    /// The local memory of an operation on `len` bytes, if all of it may be used and is there to stay.
    pub(super) fn near(&self, pd: PdId, sges: &[Sge], len: usize, need: Access) -> Option<Near<'_>> {
        let mut near = Near { spans: SmallVec::new(), _held: SmallVec::new() };
        let mut found = 0;
        for piece in pieces(sges, 0, len) {
            let held = self.by_lkey(piece.lkey).ok()?;
            let span = region(&held).local(pd, piece.addr, u64::from(piece.len), need).ok()?;
            if span.backing != Backing::Mapped {
                return None;
            }
            found += span.len;
            near.spans.push(span);
            near._held.push(held);
        }
        (found == len).then_some(near)
    }
}
