//! Operations in the memory of a GPU that belongs to a local peer: this process opens the allocation, and a GPU copies.
//!
//! As in host memory, the owner of a region that is withdrawn waits for announced accesses, and what cannot be done from here travels as packets.

use super::reach::{Path, region_of};
use crate::memory::{FetchTarget, OpenedAllocation, Peer, Region, RegionGuard};
use ferroce_proto::qp::{Attempt, OneSided, OneSidedKind};
use ferroce_proto::verbs::Access;
use ferroce_proto::{PdId, RKey};
use ferroce_shm::{LocalPeer, PublishedRegion};
use std::sync::Arc;

/// A region of a local peer in the memory of a GPU.
pub(super) struct GpuRegion {
    published: PublishedRegion,
    region: Region,
    /// `None` if it cannot be opened. It is not tried again.
    allocation: Option<Arc<OpenedAllocation>>,
}

impl GpuRegion {
    fn find(local_peer: &LocalPeer, rkey: RKey, may_open: bool) -> Option<GpuRegion> {
        let published = local_peer.find_region(rkey)?;
        let allocation = if may_open { open(local_peer, &published) } else { None };
        published.is_of_gpu().then(|| GpuRegion { published, region: region_of(&published), allocation })
    }

    fn is_of(&self, local_peer: &LocalPeer, rkey: RKey) -> bool {
        self.published.descriptor.rkey == rkey && local_peer.still_publishes(&self.published)
    }
}

/// The GPU allocation that a region of a local peer is in, if it is in one and can be opened.
pub(super) fn open(local_peer: &LocalPeer, published: &PublishedRegion) -> Option<Arc<OpenedAllocation>> {
    local_peer.open_gpu(published, |allocation| match local_peer.is_self() {
        true => OpenedAllocation::own(allocation),
        false => OpenedAllocation::open(allocation, local_peer.owner().as_ref()),
    })
}

impl Path {
    /// As [`reaches`](Self::reaches), for a region in the memory of a GPU. Opens it if necessary: a request that first waits for those before it
    /// and is then declined takes an extra round trip.
    #[cold]
    pub(super) fn reaches_on_gpu(&mut self, rkey: RKey, need: Access) -> bool {
        need != Access::REMOTE_ATOMIC && self.select_gpu(rkey).is_some_and(|known| known.allocation.is_some())
    }

    /// The region with this key in the memory of a GPU.
    fn select_gpu(&mut self, rkey: RKey) -> Option<&GpuRegion> {
        if self.gpu.as_ref().is_none_or(|known| !known.is_of(&self.local_peer, rkey)) {
            if self.gpu.take().is_some() {
                self.local_peer.unmap_stale();
            }
            let may_open = self.local_peers.uses_memfd();
            self.gpu = GpuRegion::find(&self.local_peer, rkey, may_open).map(Box::new);
        }
        self.gpu.as_deref()
    }

    /// As [`perform`](Self::perform), for a region in the memory of a GPU.
    #[cold]
    #[inline(never)] // requests in host memory that are declined end here too
    pub(super) fn perform_on_gpu(
        &mut self,
        guard: &mut RegionGuard<'_>,
        pd: PdId,
        request: &OneSided<'_>,
        len: u64,
        need: Access,
    ) -> Attempt {
        // The kernel of the owner's process orders atomics.
        if matches!(request.kind, OneSidedKind::Atomic { .. }) {
            return Attempt::Declined;
        }
        let Some(domain) = self.check_qp(request.srq, len, need) else { return Attempt::Declined };
        self.select_gpu(request.rkey);
        let Some(known) = &self.gpu else { return Attempt::Declined };
        let checked = known.region.remote(Peer { pd: domain, qp: self.peer }, request.addr, len, need);
        let opened = known.allocation.as_ref().zip(checked.ok());
        let Some(far) = opened.and_then(|(allocation, there)| allocation.here(there)) else {
            return Attempt::Declined;
        };
        let announcement = known.published.announcement(self.peer);
        let Some(token) = self.local_peer.begin_access(announcement, &mut self.free_access) else {
            return Attempt::Declined;
        };
        let is_good = self.local_peer.still_publishes(&known.published)
            && self.local_peer.still_publishes_qp(self.peer, self.terms);
        let attempt = match &request.kind {
            OneSidedKind::Write { data } if is_good => guard.send_by_gpu(pd, data, far),
            OneSidedKind::Read { sges, .. } if is_good => {
                guard.fetch_by_gpu(FetchTarget::Sges { pd, sges }, far)
            }
            _ => Attempt::Declined,
        };
        self.local_peer.end_access(token);
        attempt
    }
}
