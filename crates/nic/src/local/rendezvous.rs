//! Rendezvous sends: the receiver copies a SEND, or a WRITE with immediate data, from the sender's memory.
//!
//! A message through the ring is copied twice. A rendezvous send is copied once, on the receiver's processor: from a mapping of its region if
//! that can be mapped, otherwise by the kernel. The receiver's descriptor contains whether the receiver can read the sender's memory, which it
//! has tested. The sender's memory is in use until the acknowledgement arrives. A sender that gives up a message earlier withdraws its
//! descriptor before it reports that to its program. So a receiver that still finds the descriptor after the copy has copied what was sent.

use super::gpu;
use super::link::meta_of;
use super::reach::{Path, partly_mapped};
use crate::memory::{FetchTarget, OpenedAllocation, PartlyMapped, RegionGuard, Span, is_readable};
use ferroce_proto::RKey;
use ferroce_proto::qp::{Attempt, TxPayload};
use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{RendezvousSend, SourcePiece, SourceRef};
use ferroce_shm::{LocalPeer, PublishedRegion, RegionMapping};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

impl Path {
    /// Whether the peer accepts rendezvous sends.
    pub(crate) fn may_send_rendezvous(&self) -> bool {
        let terms = self.local_peer.find_qp(self.peer);
        terms.is_some_and(|found| found.descriptor.fetches && found.descriptor.partner == self.own)
            && self.local_peers.uses_memfd()
            && !self.local_peer.is_gone()
    }

    /// Puts the record of a rendezvous send into the ring. Returns its length, or `None` if nothing was sent.
    pub(crate) fn send_rendezvous(
        &mut self,
        guard: &mut RegionGuard<'_>,
        route: &Route,
        head: &RendezvousSend,
        payload: TxPayload<'_>,
    ) -> Option<usize> {
        // The data of a WRITE in host memory takes less time through the ring, where both processors copy: NCCL's all_reduce of 64 MiB took 10 ms
        // through the ring and 18 ms by rendezvous.
        let may_send = if guard.is_on_gpu(payload) {
            self.local_peer.find_qp(self.peer)?.descriptor.fetches_gpu
        } else {
            head.reth.is_none()
        };
        let source = if may_send { guard.source_ref(payload)? } else { return None };
        let (record, len) = head.to_bytes(&source);
        let attempt = self.local_peer.push_bytes_now(&meta_of(route), &record[..len]);
        attempt.is_done().then_some(len)
    }

    /// Whether messages of the peer can be fetched.
    pub(crate) fn can_fetch(&self) -> bool {
        self.local_peers.uses_memfd() && self.local_peer.is_readable(is_readable)
    }

    /// Whether the peer sends this message from the memory of a GPU.
    pub(crate) fn is_on_gpu(&self, source: &SourceRef) -> bool {
        let region = source.region().and_then(|rkey| self.local_peer.find_region(rkey));
        region.is_some_and(|published| published.is_of_gpu())
    }

    /// Whether the peer is a queue pair of the local peer that has this slot.
    pub(crate) fn leads_to(&self, slot: u8) -> bool {
        self.local_peer.slot() == slot
    }

    /// Copies a rendezvous send of the peer. After [`Attempt::Declined`] the bytes that it goes to are undefined.
    pub(crate) fn fetch(
        &mut self,
        guard: &mut RegionGuard<'_>,
        to: FetchTarget<'_>,
        source: &SourceRef,
    ) -> Attempt {
        let attempt = self.fetch_mapped(guard, to, source).unwrap_or_else(|| {
            let owner = self.local_peer.owner();
            owner.map_or(Attempt::Declined, |owner| guard.fetch(to, &owner, source))
        });
        // The descriptor must be read after the bytes.
        fence(Ordering::Acquire);
        let is_published =
            || self.local_peer.find_qp(self.peer).is_some_and(|found| found.descriptor.partner == self.own);
        Attempt::of(attempt.is_done() && is_published())
    }

    /// The same through a mapping. Returns `None`, with nothing copied, if there is none.
    fn fetch_mapped(
        &mut self,
        guard: &mut RegionGuard<'_>,
        to: FetchTarget<'_>,
        from: &SourceRef,
    ) -> Option<Attempt> {
        let ([piece], rkey) = (from.pieces(), from.region()?) else { return None };
        let local_peer = &self.local_peer;
        if self.source.as_ref().is_none_or(|source| !source.is_of(local_peer, rkey)) {
            let old = self.source.take().map(|source| source.published);
            // Closes the memory of a region that was withdrawn.
            if old.is_some_and(|old| !local_peer.still_publishes(&old)) {
                local_peer.unmap_stale();
            }
            self.source = SourceRegion::find(local_peer, rkey);
        }
        let source = self.source.as_ref()?;
        let there = source.find_bytes(piece)?;
        let is_copied = match there {
            Source::Mapped(there) => guard.fetch_mapped(to, there),
            Source::OnGpu(there) => {
                let announcement = source.published.announcement(self.peer);
                let token = local_peer.begin_access(announcement, &mut self.free_access)?;
                let is_published = local_peer.still_publishes(&source.published);
                let attempt = if is_published { guard.fetch_by_gpu(to, there) } else { Attempt::Declined };
                local_peer.end_access(token);
                attempt
            }
            Source::Partly(there) => guard.fetch_partly_mapped(to, &local_peer.owner()?, &there),
        };
        // A region that is still published has had these pages during the whole copy: they belong to it as long as it is published.
        fence(Ordering::Acquire);
        let is_good = is_copied.is_done() && local_peer.still_publishes(&source.published);
        self.fetched += u64::from(is_good && matches!(there, Source::Mapped(_)));
        Some(Attempt::of(is_good))
    }
}

/// How the bytes of a message are reached.
enum Source {
    /// All of them are mapped.
    Mapped(Span),
    /// The kernel copies some of them.
    Partly(PartlyMapped),
    /// All of them are in the memory of a GPU, opened here.
    OnGpu(Span),
}

/// The region of the peer that the last message was fetched from.
pub(super) struct SourceRegion {
    published: PublishedRegion,
    mapping: SourceMapping,
}

/// How the region is reached.
enum SourceMapping {
    Pages(RegionMapping),
    Gpu(Arc<OpenedAllocation>),
}

impl SourceRegion {
    /// A mapping outlives its region, so it needs no announced access. Memory of this process itself does not outlive its region, so the
    /// kernel copies messages that a process sends to itself. CUDA does not guarantee it for opened memory, so a copy from there is announced.
    fn find(local_peer: &LocalPeer, rkey: RKey) -> Option<SourceRegion> {
        let published = local_peer.find_region(rkey)?;
        let mapping = match published.is_of_gpu() {
            true => SourceMapping::Gpu(gpu::open(local_peer, &published)?),
            false if local_peer.is_self() => return None,
            false => SourceMapping::Pages(local_peer.map(&published)?),
        };
        Some(SourceRegion { published, mapping })
    }

    fn is_of(&self, local_peer: &LocalPeer, rkey: RKey) -> bool {
        self.published.descriptor.rkey == rkey && local_peer.still_publishes(&self.published)
    }

    /// How bytes of the peer are reached, if all of them are in the region and enough of them are mapped. A wrong record can select only other
    /// memory of the sender.
    fn find_bytes(&self, piece: &SourcePiece) -> Option<Source> {
        let descriptor = &self.published.descriptor;
        let offset = piece.addr.checked_sub(descriptor.base)?;
        let is_inside = offset <= descriptor.len && u64::from(piece.len) <= descriptor.len - offset;
        let (at, len) = (piece.addr as usize, piece.len as usize);
        if !is_inside {
            return None;
        }
        let mapping = match &self.mapping {
            SourceMapping::Pages(mapping) => mapping,
            SourceMapping::Gpu(allocation) => return allocation.here(Span::at(at, len)).map(Source::OnGpu),
        };
        if let Some(here) = mapping.here(at, len) {
            return Some(Source::Mapped(Span::at(here, len)));
        }
        let there = partly_mapped(Some(mapping), at, len);
        (there.mapped.len() > 0).then_some(Source::Partly(there))
    }
}

#[cfg(test)]
mod tests;
