//! Rendezvous sends: which memory a record may refer to, and where the receiver copies the bytes.
//!
//! This module makes all checks of this end before it copies, and holds the target regions during the copy. Messages that cannot be copied
//! in one step are declined and go as packets, which report faults.

use super::across;
use super::copy;
use super::direct::PartlyMapped;
use super::gpu;
use super::guard::RegionGuard;
use super::region::{Backing, Peer, Span};
use ferroce_proto::qp::{Attempt, TxPayload};
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::wire::{SourcePiece, SourceRef};
use ferroce_proto::{PdId, RKey};
use ferroce_shm::{GpuAllocation, Owner, Pages};
use std::sync::atomic::Ordering::Relaxed;

/// The destination of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FetchTarget<'a> {
    /// To the entries of a receive, or of a READ.
    Sges { pd: PdId, sges: &'a [Sge] },
    /// To the target of the peer's WRITE.
    Remote { peer: Peer, rkey: RKey, addr: u64 },
}

fn piece_of(span: &Span) -> SourcePiece {
    SourcePiece { addr: span.start as u64, len: span.len as u32 }
}

impl RegionGuard<'_> {
    /// A reference to the bytes of a message, if they are readable, always mapped and in few pieces.
    pub(crate) fn source_ref(&mut self, payload: TxPayload<'_>) -> Option<SourceRef> {
        match payload {
            TxPayload::Local { pd, sges: [sge], offset: 0, len } if sge.len == len => {
                let region = self.local(sge.lkey).ok()?;
                let span = region.local(pd, sge.addr, u64::from(len), Access::empty()).ok()?;
                let is_reached = match span.backing {
                    Backing::Mapped => true,
                    // Only the CUDA driver can read it, and only if the peer can open the allocation.
                    Backing::Gpu(_) => {
                        let allocation = region.pages.as_ref().and_then(Pages::gpu_allocation);
                        let is_inside = |allocation: &GpuAllocation| {
                            allocation.contains(span.start as u64, span.len as u64)
                        };
                        region.descriptor.is_some() && allocation.is_some_and(is_inside)
                    }
                    Backing::Watched | Backing::OnDemand | Backing::Null => false,
                };
                let source = SourceRef::new([piece_of(&span)]).filter(|_| is_reached)?;
                if region.descriptor.is_none() {
                    return Some(source);
                }
                if !region.lent.load(Relaxed) {
                    region.lent.store(true, Relaxed);
                }
                Some(source.of_region(region.rkey))
            }
            TxPayload::Local { pd, sges, offset: 0, len } if sges.len() <= SourceRef::MAX_PIECES => {
                let near = self.table().near(pd, sges, len as usize, Access::empty())?;
                SourceRef::new(near.spans.iter().map(piece_of))
            }
            _ => None,
        }
    }

    /// Whether the bytes of a message are in one region, in the memory of a GPU.
    pub(crate) fn is_on_gpu(&mut self, payload: TxPayload<'_>) -> bool {
        let TxPayload::Local { sges: [sge], .. } = payload else { return false };
        self.local(sge.lkey).is_ok_and(|region| matches!(region.backing, Backing::Gpu(_)))
    }

    /// Copies a message from its sender's memory. After [`Attempt::Declined`] the target bytes are undefined.
    pub(crate) fn fetch(&mut self, to: FetchTarget<'_>, owner: &Owner, source: &SourceRef) -> Attempt {
        self.fill(to, source.message_len(), |near| across::fetch(owner, source.pieces(), near))
    }

    /// The same from bytes of the sender that are mapped here.
    pub(crate) fn fetch_mapped(&mut self, to: FetchTarget<'_>, there: Span) -> Attempt {
        let attempt = self.fill(to, there.len as u32, |near| {
            copy::spread(near, there, false);
            Attempt::Done
        });
        if attempt.is_done() { attempt } else { self.fetch_by_gpu(to, there) }
    }

    /// The same from bytes of the sender of which some are mapped here.
    pub(crate) fn fetch_partly_mapped(
        &mut self,
        to: FetchTarget<'_>,
        owner: &Owner,
        there: &PartlyMapped,
    ) -> Attempt {
        self.fill(to, there.len as u32, |near| {
            there.copy(near, false, |far, near| across::fetch(owner, far, near))
        })
    }

    /// Calls `copy` with the first `len` bytes of the target, if it is long enough and all of them are writable.
    fn fill(&mut self, to: FetchTarget<'_>, len: u32, copy: impl FnOnce(&[Span]) -> Attempt) -> Attempt {
        match to {
            FetchTarget::Sges { pd, sges: [sge] } => {
                let part = Sge { len, ..*sge };
                let near = self.near(pd, &part, Access::LOCAL_WRITE).filter(|_| sge.len >= len);
                near.map_or(Attempt::Declined, |near| copy(&[near]))
            }
            FetchTarget::Sges { pd, sges } => {
                let near = self.table().near(pd, sges, len as usize, Access::LOCAL_WRITE);
                near.map_or(Attempt::Declined, |near| copy(&near.spans))
            }
            FetchTarget::Remote { peer, rkey, addr } => {
                let near = self.written(peer, rkey, addr, len as usize);
                let near = near.filter(|near| near.backing == Backing::Mapped);
                near.map_or(Attempt::Declined, |near| copy(&[near]))
            }
        }
    }

    /// The target bytes of the peer's WRITE, if it may write them. Valid while `self` holds their region.
    fn written(&mut self, peer: Peer, rkey: RKey, addr: u64, len: usize) -> Option<Span> {
        self.remote(rkey).ok()?.remote(peer, addr, len as u64, Access::REMOTE_WRITE).ok()
    }

    /// As [`Self::fetch_mapped`], for a source or target in the memory of a GPU, which copies.
    #[cold]
    pub(crate) fn fetch_by_gpu(&mut self, to: FetchTarget<'_>, far: Span) -> Attempt {
        match to {
            FetchTarget::Sges { pd, sges } => {
                let near = self.table().near_of_gpu(pd, sges, far.len, Access::LOCAL_WRITE);
                near.map_or(Attempt::Declined, |near| gpu::exchange(&near.spans, far, false))
            }
            FetchTarget::Remote { peer, rkey, addr } => {
                let near = self.written(peer, rkey, addr, far.len);
                let near = near.filter(|near| matches!(near.backing, Backing::Mapped | Backing::Gpu(_)));
                near.map_or(Attempt::Declined, |near| gpu::exchange(&[near], far, false))
            }
        }
    }
}
