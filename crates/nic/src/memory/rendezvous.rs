//! Rendezvous sends: which memory a record may refer to, and where the receiver copies the bytes.
//!
//! All checks on this end are made before a byte moves, and the target regions are held during the copy. Whatever cannot be done in one
//! step is left to packets, which report faults.

use super::across;
use super::copy;
use super::direct::PartlyMapped;
use super::guard::RegionGuard;
use super::region::{Backing, Span};
use ferroce_proto::PdId;
use ferroce_proto::qp::{Attempt, TxPayload};
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::wire::{SourcePiece, SourceRef};
use ferroce_shm::Owner;
use std::sync::atomic::Ordering::Relaxed;

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
                    // Only the driver can read it, and only if it opens it.
                    Backing::Gpu(_) => region.descriptor.is_some(),
                    Backing::OnDemand | Backing::Null => false,
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

    /// Copies a message from its sender's memory to the entries. After [`Attempt::Declined`] their bytes are undefined.
    pub(crate) fn fetch(&mut self, pd: PdId, sges: &[Sge], owner: &Owner, source: &SourceRef) -> Attempt {
        self.fill(pd, sges, source.message_len(), |near| across::fetch(owner, source.pieces(), near))
    }

    /// The same from bytes of the sender that are mapped here.
    pub(crate) fn fetch_mapped(&mut self, pd: PdId, sges: &[Sge], there: Span) -> Attempt {
        let attempt = self.fill(pd, sges, there.len as u32, |near| {
            copy::spread(near, there, false);
            Attempt::Done
        });
        if attempt.is_done() { attempt } else { self.fetch_by_gpu(pd, sges, there) }
    }

    /// The same from bytes of the sender of which some are mapped here.
    pub(crate) fn fetch_partly_mapped(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        owner: &Owner,
        there: &PartlyMapped,
    ) -> Attempt {
        self.fill(pd, sges, there.len as u32, |near| {
            there.copy(near, false, |far, near| across::fetch(owner, far, near))
        })
    }

    /// Fills the first `len` bytes of the entries with `copy`, if they have as many and all are writable.
    fn fill(&mut self, pd: PdId, sges: &[Sge], len: u32, copy: impl FnOnce(&[Span]) -> Attempt) -> Attempt {
        if let [sge] = sges {
            let part = Sge { len, ..*sge };
            let near = self.near(pd, &part, Access::LOCAL_WRITE).filter(|_| sge.len >= len);
            return near.map_or(Attempt::Declined, |near| copy(&[near]));
        }
        let near = self.table().near(pd, sges, len as usize, Access::LOCAL_WRITE);
        near.map_or(Attempt::Declined, |near| copy(&near.spans))
    }
}
