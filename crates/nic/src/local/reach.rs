//! One-sided operations in the memory of a local peer, by the requester's own processor.
//!
//! This is only the fast path for requests without faults. All others, and those that cannot be checked from here, travel as packets; the
//! target detects the fault, answers and reports it as for any peer.

use super::gpu::GpuRegion;
use super::link::meta_of;
use super::rendezvous::SourceRegion;
use crate::counters::Tally;
use crate::memory::{CachedRegion, Far, MessagePart, PartlyMapped, Peer, Region, RegionGuard, Span};
use ferroce_os::memory::prefetch_for_write;
use ferroce_proto::qp::{Attempt, LARGE_SEGMENT, OneSided, OneSidedKind, TxPayload};
use ferroce_proto::verbs::{Access, MemoryFault, Route, Sge};
use ferroce_proto::{LKey, PdId, Qpn, RKey, Srqn};
use ferroce_shm::{
    AccessToken, Announcement, LocalPeer, LocalPeers, Partner, Piece, PublishedRegion, QpDomain, QpVersion,
    RegionMapping,
};
use std::sync::Arc;

/// Operations of one list between two liveness checks of the local peer.
const CHECK_EVERY: u64 = 32;

/// Fewest mapped bytes that this process copies itself while the kernel copies the rest. With 16 KiB the two copies take longer than one
/// copy by the kernel; with 64 KiB they take three quarters of its time, with 256 KiB less than two thirds.
const MIN_MAPPED: usize = 24 << 10;

/// How a queue pair reaches the memory of its peer.
pub(crate) struct Path {
    pub(super) local_peers: Arc<LocalPeers>,
    pub(super) local_peer: Arc<LocalPeer>,
    pub(super) peer: Qpn,
    /// This end, which the peer must be connected to.
    pub(super) own: Partner,
    /// Which descriptor of the peer's queue pair the last check read.
    pub(super) terms: QpVersion,
    /// The region of the last operation: most programs use one repeatedly.
    last: Option<Known>,
    /// The announced access to it, kept from one operation to the next while a list of them is posted.
    access: Option<AccessToken>,
    /// The index where it was announced.
    pub(super) free_access: usize,
    /// This end's region that operations use repeatedly.
    cache: CachedRegion,
    /// The region that messages of the peer are placed in.
    recv_cache: CachedRegion,
    /// The region of the peer that its last message was fetched from.
    pub(super) source: Option<SourceRegion>,
    /// The region of the last operation in the memory of a GPU.
    pub(super) gpu: Option<Box<GpuRegion>>,
    /// Address of the next packet in the ring, unless another queue pair writes there first.
    next_line: usize,
    /// Operations that were not counted yet: through a mapping, and by the kernel.
    mapped: u64,
    copied: u64,
    /// Messages that were fetched through a mapping.
    pub(super) fetched: u64,
}

/// A path in use. Dropping it releases the local peer's memory.
pub(crate) struct Reaching<'q> {
    path: &'q mut Option<Path>,
    tally: &'q Tally,
}

impl<'q> Reaching<'q> {
    #[inline]
    pub(crate) fn new(path: &'q mut Option<Path>, tally: &'q Tally) -> Self {
        Reaching { path, tally }
    }

    /// The path, if there is one.
    #[inline]
    pub(crate) fn path(&mut self) -> Option<&mut Path> {
        self.path.as_mut()
    }
}

impl Drop for Reaching<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.path {
            path.release_memory();
            self.tally.mapped.add(std::mem::take(&mut path.mapped));
            self.tally.copied.add(std::mem::take(&mut path.copied));
            self.tally.fetched.add(std::mem::take(&mut path.fetched));
        }
    }
}

/// A region of the local peer, and how it is accessed from here.
struct Known {
    published: PublishedRegion,
    announcement: Announcement,
    region: Region,
    mapping: Option<RegionMapping>,
}

impl Drop for Path {
    fn drop(&mut self) {
        self.forget();
        (self.source, self.gpu) = (None, None);
        self.local_peer.unmap_stale();
    }
}

impl Path {
    pub(crate) fn new(
        local_peers: Arc<LocalPeers>,
        local_peer: Arc<LocalPeer>,
        peer: Qpn,
        own: Partner,
        [cache, recv_cache]: [CachedRegion; 2],
    ) -> Path {
        let (last, access, free_access, source, gpu, next_line) = (None, None, 0, None, None, 0);
        let (mapped, copied, fetched) = (0, 0, 0);
        Path {
            local_peers,
            local_peer,
            peer,
            own,
            terms: QpVersion::default(),
            last,
            access,
            free_access,
            cache,
            recv_cache,
            source,
            gpu,
            next_line,
            mapped,
            copied,
            fetched,
        }
    }

    /// Executes the whole operation, or declines. Declined operations travel as packets.
    #[inline]
    pub(crate) fn perform(
        &mut self,
        guard: &mut RegionGuard<'_>,
        pd: PdId,
        request: &OneSided<'_>,
    ) -> Attempt {
        let (need, len) = match &request.kind {
            OneSidedKind::Write { data } => (Access::REMOTE_WRITE, data.len() as u64),
            OneSidedKind::Read { len, .. } => (Access::REMOTE_READ, u64::from(*len)),
            OneSidedKind::Atomic { .. } => (Access::REMOTE_ATOMIC, 8),
        };
        let Some(there) = self.check(request.srq, request.rkey, request.addr, len, need) else {
            return self.perform_on_gpu(guard, pd, request, len, need);
        };
        let Some(there) = self.here(there).map(Far::Mapped).or_else(|| self.by_process(there)) else {
            return Attempt::Declined;
        };
        if !self.announce() {
            return Attempt::Declined;
        }
        // By reference: copying the request with wide loads would wait for its recent narrower stores.
        let attempt = match &request.kind {
            OneSidedKind::Write { data } => guard.send_direct(&mut self.cache, pd, data, &there),
            OneSidedKind::Read { sges, .. } => guard.fetch_direct(&mut self.cache, pd, sges, &there),
            OneSidedKind::Atomic { op, sges } => guard.atomic_direct(&mut self.cache, pd, *op, sges, &there),
        };
        let count = if matches!(there, Far::Mapped(_)) { &mut self.mapped } else { &mut self.copied };
        *count += u64::from(attempt.is_done());
        attempt
    }

    /// The same for a WRITE of inline data or of one entry. Declines unless the entry's region is cached and the local peer's memory mapped.
    #[inline(always)]
    pub(crate) fn write(&mut self, pd: PdId, request: &OneSided<'_>) -> Attempt {
        let (&OneSidedKind::Write { data }, None) = (&request.kind, request.srq) else {
            return Attempt::Declined;
        };
        self.prefetch(request.addr);
        let near = match data {
            TxPayload::Bytes(bytes) => Some(Span::of(bytes)),
            TxPayload::Local { sges: [sge], .. } => self.cache.near(pd, sge),
            _ => None,
        };
        match near {
            Some(near) => self.put(near.start(), near.len(), request.rkey, request.addr),
            None => Attempt::Declined,
        }
    }

    /// Prefetches the cache line of a byte that will be written to the region of the last operation, if the checks pass. The local peer
    /// may be polling it, and the transfer of the line takes as long as the checks.
    #[inline(always)]
    fn prefetch(&self, addr: u64) {
        if let Some(known) = &self.last
            && let Some(mapping) = &known.mapping
        {
            let offset = addr.wrapping_sub(known.region.iova) as usize;
            prefetch_for_write(mapping.address_of(known.region.base.wrapping_add(offset)));
        }
    }

    /// Writes bytes of this end that stay mapped.
    #[inline(never)] // its few values all stay in registers, which is not so when it is inlined into its callers
    fn put(&mut self, start: usize, len: usize, rkey: RKey, addr: u64) -> Attempt {
        let checked = self.check(None, rkey, addr, len as u64, Access::REMOTE_WRITE);
        let Some(there) = checked.and_then(|there| self.here(there)) else { return Attempt::Declined };
        if !self.announce() {
            return Attempt::Declined;
        }
        there.moved_to(start).put_into(there);
        self.mapped += 1;
        Attempt::Done
    }

    /// Releases the local peer's memory.
    fn release_memory(&mut self) {
        if let Some(token) = self.access.take() {
            self.local_peer.end_access(token);
        }
    }

    /// Whether an operation with this key that needs this right could be executed directly.
    pub(crate) fn reaches(&mut self, rkey: RKey, need: Access) -> bool {
        let is_open =
            self.local_peer.find_qp(self.peer).is_some_and(|found| found.descriptor.partner == self.own);
        if !is_open || self.local_peer.is_gone() {
            return false;
        }
        let published = self.local_peer.find_region(rkey);
        published.is_some_and(|published| {
            let is_granted = published.descriptor.access.contains(need);
            is_granted && (!published.is_of_gpu() || self.reaches_on_gpu(rkey, need))
        })
    }

    /// Whether a packet from this UDP port comes from the peer's process.
    pub(crate) fn is_from_peer(&self, sport: u16) -> bool {
        self.local_peer.sends_from(sport)
    }

    /// Whether the local peer has read all packets in its ring.
    pub(crate) fn has_caught_up(&self) -> bool {
        self.local_peer.has_read_all()
    }

    /// The largest packet payload for the peer, if it accepts more than a wire could carry.
    pub(crate) fn segment(&self) -> Option<u32> {
        let terms = self.local_peer.find_qp(self.peer)?.descriptor;
        (terms.takes_large && terms.partner == self.own && !self.local_peer.is_gone())
            .then_some(LARGE_SEGMENT)
    }

    /// Puts a packet into the ring: these headers and this payload. If it declines, a batch must take the packet.
    #[inline(always)] // one caller for each kind of headers
    pub(crate) fn push_packet(
        &mut self,
        guard: &mut RegionGuard<'_>,
        route: &Route,
        head: &[u8],
        payload: TxPayload<'_>,
    ) -> Attempt {
        // Lock the region before the ring, as senders of batches do: the other order could deadlock.
        let Some(span) = guard.readable(&mut self.cache, payload) else { return Attempt::Declined };
        let payload = Piece { start: span.start() as *const u8, len: span.len() };
        // SAFETY: bytes of a request, or of a region that `guard` holds or that is cached.
        let next = unsafe { self.local_peer.push_short(&meta_of(route), head, payload) };
        self.next_line = next.unwrap_or(self.next_line);
        Attempt::of(next.is_some())
    }

    /// Places a message of the peer in one entry.
    #[inline(always)]
    pub(crate) fn place(
        &mut self,
        guard: &mut RegionGuard<'_>,
        pd: PdId,
        sge: &Sge,
        data: &[u8],
        part: MessagePart,
    ) -> Result<(), MemoryFault> {
        guard.place(&mut self.recv_cache, pd, sge, data, part)
    }

    /// Prefetches the cache line that the next packet will be written to: the local peer polls it, and the transfer of the line takes as
    /// long as the checks.
    #[inline(always)]
    pub(crate) fn prefetch_ring(&self) {
        prefetch_for_write(self.next_line);
    }

    /// The local peer's slot, if it sleeps and the caller must wake it.
    pub(crate) fn sleeper(&self) -> Option<u8> {
        self.local_peer.must_be_woken().then(|| self.local_peer.slot())
    }

    /// The local peer's bytes, as addresses of that process, if every check passes that the local peer itself would make. Valid only once an
    /// access to them is [announced](Self::announce).
    #[inline(always)]
    fn check(&mut self, srq: Option<Srqn>, rkey: RKey, addr: u64, len: u64, need: Access) -> Option<Span> {
        let pd = self.check_qp(srq, len, need)?;
        if self.last.as_ref().is_none_or(|known| known.published.descriptor.rkey != rkey) {
            self.select_region(rkey)?;
        }
        let checked = self.last.as_ref()?.region.remote(Peer { pd, qp: self.peer }, addr, len, need);
        if checked.is_err() {
            self.refresh();
        }
        checked.ok()
    }

    /// The protection domain of the memory that a request reaches through the peer's queue pair, if that grants the access.
    #[inline(always)]
    pub(super) fn check_qp(&mut self, srq: Option<Srqn>, len: u64, need: Access) -> Option<PdId> {
        // Within a list only every `CHECK_EVERY` operations: reading the clock takes as long as a short copy.
        let is_due = self.access.is_none() || self.mapped.is_multiple_of(CHECK_EVERY);
        if is_due && !self.local_peer.lives() {
            return None;
        }
        let found = self.local_peer.find_qp(self.peer)?;
        let terms = found.descriptor;
        self.terms = found.version;
        if terms.partner != self.own || !terms.access.contains(need) || len == 0 {
            return None;
        }
        match (terms.domain, srq) {
            (QpDomain::Pd(pd), None) => Some(pd),
            (QpDomain::Xrc(domain), Some(srq)) => self.local_peer.find_srq(srq, domain),
            _ => None,
        }
    }

    /// Announces an access to the region of the last operation, until `release_memory`. Returns whether the access may start: not if the region or
    /// the peer's queue pair has changed since the check, or too many other accesses are in flight. Called as late as possible: the processor
    /// waits here until all stores are done.
    #[inline(always)]
    fn announce(&mut self) -> bool {
        let Some(known) = &self.last else { return false };
        if self.access.is_none() {
            self.access = self.local_peer.begin_access(known.announcement, &mut self.free_access);
        }
        let is_good = self.access.is_some()
            && self.local_peer.still_publishes(&known.published)
            && self.local_peer.still_publishes_qp(self.peer, self.terms);
        if !is_good {
            self.refresh();
        }
        is_good
    }

    /// Selects another region than that of the last operation.
    #[inline(never)]
    fn select_region(&mut self, rkey: RKey) -> Option<()> {
        self.forget();
        self.last = Some(find(&self.local_peer, self.peer, rkey)?);
        Some(())
    }

    /// Drops the cached region of the last operation if it was withdrawn.
    #[inline(never)]
    fn refresh(&mut self) {
        if self.last.as_ref().is_some_and(|known| !self.local_peer.still_publishes(&known.published)) {
            self.forget();
            self.local_peer.unmap_stale();
        }
    }

    /// Drops the cached region of the last operation.
    fn forget(&mut self) {
        self.release_memory();
        self.last = None;
    }

    /// The address in this process of bytes of the last operation's region, if they are mapped.
    #[inline(always)]
    fn here(&self, there: Span) -> Option<Span> {
        if self.local_peer.is_self() {
            return Some(there);
        }
        let mapping = self.last.as_ref()?.mapping.as_ref()?;
        mapping.here(there.start(), there.len()).map(|here| there.moved_to(here))
    }

    /// How the kernel accesses bytes of the local peer.
    #[inline(never)]
    fn by_process(&self, there: Span) -> Option<Far> {
        // Process IDs are reused, also while a child of the local peer holds its slot: every copy checks the owner's mark.
        let owner = self.local_peer.owner()?;
        let lives = self.local_peers.is_alive(self.local_peer.slot()) && !self.local_peer.is_gone();
        let mapping = self.last.as_ref().and_then(|known| known.mapping.as_ref());
        lives.then(|| Far::Copied(owner, partly_mapped(mapping, there.start(), there.len())))
    }
}

/// Bytes of a local peer that the kernel copies, except for those in whole pages of their region, if they are many.
pub(super) fn partly_mapped(mapping: Option<&RegionMapping>, at: usize, len: usize) -> PartlyMapped {
    match mapping.and_then(|mapping| mapping.part(at, len)) {
        Some((part, here)) if part.len() >= MIN_MAPPED => {
            PartlyMapped { at, len, head: part.start, mapped: Span::at(here, part.len()) }
        }
        _ => PartlyMapped { at, len, head: len, mapped: Span::at(0, 0) },
    }
}

/// A region of a local peer, for the checks of an access.
pub(super) fn region_of(published: &PublishedRegion) -> Region {
    let descriptor = published.descriptor;
    let (base, iova, rkey) = (descriptor.base as usize, descriptor.iova, descriptor.rkey);
    let plain = Region::plain(base, descriptor.len, descriptor.pd, descriptor.access, LKey(0), rkey);
    Region { iova, only_qp: descriptor.only_qp, ..plain }
}

fn find(local_peer: &LocalPeer, peer: Qpn, rkey: RKey) -> Option<Known> {
    let published = local_peer.find_region(rkey).filter(|published| !published.is_of_gpu())?;
    let region = region_of(&published);
    let mapping = if local_peer.is_self() { None } else { local_peer.map(&published) };
    let announcement = published.announcement(peer);
    Some(Known { published, announcement, region, mapping })
}
