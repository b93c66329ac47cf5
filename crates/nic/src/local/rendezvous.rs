//! Messages that name the sender's memory, from which the receiver copies them.
//!
//! A message through the ring is copied twice, one that is named once, on the receiver's processor: from a mapping of the region that it lies
//! in where that can be mapped, else by the kernel. The receiver says on its descriptor whether it may read the sender's memory; it has tried.
//! The sender's memory is in use until it hears of the copy. Should it give the message up before, it withdraws its descriptor before it says so to
//! its program; so a receiver that finds the descriptor in its place when it has copied has copied what was sent.

use super::link::meta_of;
use super::reach::Path;
use crate::memory::{RegionGuard, Span, is_readable};
use ferroce_proto::qp::TxPayload;
use ferroce_proto::verbs::{Route, Sge};
use ferroce_proto::wire::{RendezvousSend, SourcePiece, SourceRef};
use ferroce_proto::{PdId, RKey};
use ferroce_shm::{LocalPeer, PublishedRegion, RegionMapping};
use std::sync::atomic::{Ordering, fence};

impl Path {
    /// Whether the peer may be told to fetch messages.
    pub(crate) fn may_send_rendezvous(&self) -> bool {
        let terms = self.local_peer.find_qp(self.peer);
        terms.is_some_and(|terms| terms.fetches && terms.partner == self.own)
            && self.local_peers.uses_memfd()
            && !self.local_peer.is_gone()
    }

    /// Puts a message that names memory into the ring, and says how long the record is. Nothing: nothing was sent.
    pub(crate) fn send_rendezvous(
        &mut self,
        guard: &mut RegionGuard<'_>,
        route: &Route,
        head: &RendezvousSend,
        payload: TxPayload<'_>,
    ) -> Option<usize> {
        let (record, len) = head.to_bytes(&guard.source_ref(payload)?);
        let is_sent = self.local_peer.push_bytes_now(&meta_of(route), &record[..len]);
        is_sent.then_some(len)
    }

    /// Whether messages of the peer can be fetched.
    pub(crate) fn can_fetch(&self) -> bool {
        self.local_peers.uses_memfd() && self.local_peer.is_readable(is_readable)
    }

    /// Whether the peer is a queue pair of the local peer that has this slot.
    pub(crate) fn leads_to(&self, slot: u8) -> bool {
        self.local_peer.slot() == slot
    }

    /// Copies a message that the peer named to the entries. False: what is in them now does not count.
    pub(crate) fn fetch(
        &mut self,
        guard: &mut RegionGuard<'_>,
        pd: PdId,
        sges: &[Sge],
        source: &SourceRef,
    ) -> bool {
        let is_copied = self.fetch_mapped(guard, pd, sges, source).unwrap_or_else(|| {
            let owner = self.local_peer.owner();
            owner.is_some_and(|owner| guard.fetch(pd, sges, &owner, source))
        });
        // The bytes were read before the descriptor is.
        fence(Ordering::Acquire);
        is_copied && self.local_peer.find_qp(self.peer).is_some_and(|terms| terms.partner == self.own)
    }

    /// The same through a mapping. Nothing: there is none, and nothing was copied.
    fn fetch_mapped(
        &mut self,
        guard: &mut RegionGuard<'_>,
        pd: PdId,
        sges: &[Sge],
        from: &SourceRef,
    ) -> Option<bool> {
        let ([piece], rkey) = (from.pieces(), from.region()?) else { return None };
        let local_peer = &self.local_peer;
        if self.source.as_ref().is_none_or(|source| !source.is_of(local_peer, rkey)) {
            self.source = None;
            self.source = SourceRegion::find(local_peer, rkey);
        }
        let source = self.source.as_ref()?;
        let there = source.here(piece)?;
        let is_copied = guard.fetch_mapped(pd, sges, there);
        // Who finds the region published now has read its pages: they are the program's as long as it is.
        fence(Ordering::Acquire);
        let is_good = is_copied && local_peer.still_publishes(&source.published);
        self.fetched += u64::from(is_good);
        Some(is_good)
    }
}

/// The region of the peer that the last message was fetched from.
pub(super) struct SourceRegion {
    published: PublishedRegion,
    mapping: RegionMapping,
}

impl SourceRegion {
    /// A mapping stays when its region goes, and so needs no announcement. Bytes of this very process would not, so to
    /// itself it sends by the kernel.
    fn find(local_peer: &LocalPeer, rkey: RKey) -> Option<SourceRegion> {
        let published = local_peer.find_region(rkey).filter(|_| !local_peer.is_self())?;
        let mapping = local_peer.map(&published)?;
        Some(SourceRegion { published, mapping })
    }

    fn is_of(&self, local_peer: &LocalPeer, rkey: RKey) -> bool {
        self.published.descriptor.rkey == rkey && local_peer.still_publishes(&self.published)
    }

    /// Where bytes of the peer are here, if they are all of the region. Who named them may be wrong, but not beyond its own memory.
    fn here(&self, piece: &SourcePiece) -> Option<Span> {
        let descriptor = &self.published.descriptor;
        let offset = piece.addr.checked_sub(descriptor.base)?;
        let is_inside = offset <= descriptor.len && u64::from(piece.len) <= descriptor.len - offset;
        let (at, len) = (piece.addr as usize, piece.len as usize);
        self.mapping.here(at, len).filter(|_| is_inside).map(|here| Span::at(here, len))
    }
}

#[cfg(test)]
mod tests;
