//! The local peers of a NIC, and the addresses of this host.

mod host_addresses;
mod outgoing;

use super::access::{self, AccessToken, Announcement, Awaited, StoppedPeer};
use super::backlog::Backlog;
use super::descriptors::{
    PublishedQp, PublishedRegion, QpDescriptor, QpVersion, RegionDescriptors, find_qp, find_region,
    publish_qp,
};
use super::gpu_allocations::GpuAllocation;
use super::groups::{GroupDescriptors, listens};
use super::region_mapping::{RegionMapping, RegionMappings};
use super::registry::{self, Registry};
use super::ring::{Piece, RxMeta, Writer};
use super::segment::{ADDRESSES, Owner, SLOTS, ShmSegment, retire_the_dead};
use super::source_ports::{SourcePorts, is_published};
use super::srq_descriptors::{SrqDescriptors, find_srq};
use ferroce_os::clock::{coarse_now, now};
use ferroce_os::lock::{Mutex, RwLock};
use ferroce_os::sync::{AtomicU64, Ordering, fence};
use ferroce_proto::qp::Attempt;
use ferroce_proto::wire::pad_of;
use ferroce_proto::{Gid, PdId, Qpn, RKey, Srqn};
use host_addresses::HostAddresses;
use outgoing::Outgoing;
use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, OnceLock};

/// How long the result that a slot has no local peer is cached.
pub const NOBODY_FOR_NS: u64 = 20_000_000;

/// How long the result of a liveness check is cached, rounded up to a tick of the coarse clock. The memory of a process that dies meanwhile
/// stays mapped here. Bytes written to it then count as if they had arrived just before its death.
const BELIEVED_ALIVE_NS: u64 = 1_000_000;
const GONE: u64 = u64::MAX;

/// The end of the list of a NIC's addresses, and the wildcards for all IPv4 and all IPv6 addresses.
const NOWHERE: Gid = Gid::ZERO;
const EVERY_V4: Gid = Gid::from_ip(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
const EVERY_V6: Gid = Gid([0xff; 16]);

/// A progress context of a NIC of this user on this host.
#[derive(Debug)]
pub struct LocalPeer {
    slot: u8,
    segment: ShmSegment,
    /// The segment in which its NIC publishes regions and shared receive queues. If it is the same segment, it is mapped a second time, so
    /// that the fast path has no branch.
    tables: ShmSegment,
    /// It belongs to this very NIC.
    is_self: bool,
    /// The slot of this NIC.
    own_slot: u8,
    registry: Arc<Registry>,
    /// The instance of the slot: each owner of a slot has another.
    instance: u64,
    /// Shared with earlier owners of the slot: there is one ring to a slot.
    out: Arc<Mutex<Outgoing>>,
    /// The number of packets that wait because the ring is full.
    waiting: AtomicUsize,
    /// When its process was last found alive; [`GONE`] once it is dead.
    seen_ns: AtomicU64,
    mappings: RegionMappings,
    /// Whether the kernel lets this process read its memory. Set by the first probe.
    is_readable: OnceLock<bool>,
    /// The addresses it receives at.
    addresses: Vec<Gid>,
}

/// The result of sending a packet to a local peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Pushed {
    /// It is in the ring.
    Done,
    /// It waits until the ring has space.
    Waits,
    /// It is lost: ring and backlog are full, or the local peer is gone.
    Lost,
}

impl LocalPeer {
    /// Its slot.
    #[inline]
    pub fn slot(&self) -> u8 {
        self.slot
    }

    /// Whether it belongs to this very NIC.
    #[inline(always)]
    pub fn is_self(&self) -> bool {
        self.is_self
    }

    /// Its process, if that is in the PID namespace of this process.
    pub fn owner(&self) -> Option<Owner> {
        self.segment.owner()
    }

    /// The descriptor that it publishes for a queue pair.
    #[inline(always)]
    pub fn find_qp(&self, qpn: Qpn) -> Option<PublishedQp> {
        find_qp(&self.segment, qpn)
    }

    /// Whether it still publishes a queue pair, unchanged.
    #[inline(always)]
    pub fn still_publishes_qp(&self, qpn: Qpn, version: QpVersion) -> bool {
        version.is_valid(&self.segment, qpn)
    }

    /// The region that it publishes under this key. Before an access, the caller must announce it and then check that the region is
    /// [still published](Self::still_publishes).
    pub fn find_region(&self, rkey: RKey) -> Option<PublishedRegion> {
        find_region(&self.tables, rkey)
    }

    /// The protection domain of the XRC shared receive queue that it publishes under this number.
    pub fn find_srq(&self, number: Srqn, domain: u32) -> Option<PdId> {
        find_srq(&self.tables, number, domain)
    }

    /// Whether it still publishes a region, unchanged.
    #[inline(always)]
    pub fn still_publishes(&self, region: &PublishedRegion) -> bool {
        region.is_valid(&self.tables)
    }

    /// Whether it listens to a multicast group on an interface. Valid only if [`GroupDescriptors::changes`] is the same before and after.
    pub fn listens(&self, group: Gid, interface: u32) -> bool {
        listens(&self.segment, group, interface)
    }

    /// Whether its NIC sends from this UDP port.
    pub fn sends_from(&self, port: u16) -> bool {
        is_published(&self.segment, port)
    }

    /// Announces an access, until it is [ended](Self::end_access). Returns `None` if too many others are in progress. `free` is the index of
    /// the word that the caller used last.
    #[inline(always)]
    pub fn begin_access(&self, access: Announcement, free: &mut usize) -> Option<AccessToken> {
        access::begin(&self.tables, self.own_slot, access, free)
    }

    /// Ends an access.
    #[inline]
    pub fn end_access(&self, token: AccessToken) {
        access::end(&self.tables, self.own_slot, token);
    }

    /// Maps a region, if it can be.
    pub fn map(&self, region: &PublishedRegion) -> Option<RegionMapping> {
        self.mappings.open(&self.tables, region)
    }

    /// The GPU allocation that contains a region, opened with `open`. It is opened once, and dropped when neither the caller nor a
    /// region that this local peer publishes uses it.
    pub fn open_gpu<Opened: Any + Send + Sync>(
        &self,
        region: &PublishedRegion,
        open: impl FnOnce(&GpuAllocation) -> Option<Opened>,
    ) -> Option<Arc<Opened>> {
        self.mappings.open_gpu(&self.tables, region, open)
    }

    /// Unmaps unused mappings of regions that are no longer published; all unused mappings, if the local peer is gone.
    pub fn unmap_stale(&self) {
        self.mappings.clear(&self.tables, self.lives());
    }

    /// Sends a packet in pieces.
    ///
    /// # Safety
    /// The pieces are readable and have `len` bytes together.
    pub unsafe fn push(
        &self,
        meta: &RxMeta,
        len: usize,
        pieces: impl Iterator<Item = Piece> + Clone,
    ) -> Pushed {
        let consumed = self.segment.consumed(self.own_slot);
        let mut out = self.out.lock();
        if out.reader != self.instance {
            return Pushed::Lost;
        }
        // SAFETY: the caller's promise.
        if out.flush(consumed) && unsafe { out.ring.push(meta, len, pieces.clone(), consumed) } {
            self.waiting.store(0, Ordering::Relaxed);
            return Pushed::Done;
        }
        // SAFETY: the caller's promise.
        if !unsafe { out.waiting.keep(meta, len, pieces) } {
            return Pushed::Lost;
        }
        self.waiting.store(out.waiting.len(), Ordering::Relaxed);
        Pushed::Waits
    }

    /// Sends a packet in pieces, if no packet waits and the ring has space for it. Declines otherwise.
    ///
    /// # Safety
    /// As for [`Self::push`].
    unsafe fn push_now(&self, meta: &RxMeta, len: usize, pieces: impl Iterator<Item = Piece>) -> Attempt {
        let mut out = self.out.lock();
        if out.reader != self.instance || !out.waiting.is_empty() {
            return Attempt::Declined;
        }
        // SAFETY: the caller's promise.
        Attempt::of(unsafe { out.ring.push(meta, len, pieces, self.segment.consumed(self.own_slot)) })
    }

    /// Like [`Self::push_bytes_now`], for a short packet of headers and a payload, which is padded. Returns the address of the next packet, or
    /// `None` if nothing was sent.
    ///
    /// # Safety
    /// The payload is readable.
    #[inline(always)] // as `Path::push_packet` of the NIC
    pub unsafe fn push_short(&self, meta: &RxMeta, head: &[u8], payload: Piece) -> Option<usize> {
        let mut out = self.out.lock();
        if out.reader != self.instance || !out.waiting.is_empty() {
            return None;
        }
        // SAFETY: the caller's promise.
        let is_sent = unsafe {
            out.ring.push_short(meta, head, payload) || {
                let pad = &[0; 3][..pad_of(payload.len)];
                let pieces = [Piece::of(head), payload, Piece::of(pad)];
                let len = pieces.iter().map(|piece| piece.len).sum();
                out.ring.push(meta, len, pieces.into_iter(), self.segment.consumed(self.own_slot))
            }
        };
        is_sent.then(|| out.ring.next_line())
    }

    /// Sends a packet, if no packet waits and the ring has space for it. Declines otherwise.
    pub fn push_bytes_now(&self, meta: &RxMeta, bytes: &[u8]) -> Attempt {
        // SAFETY: the piece is the slice.
        unsafe { self.push_now(meta, bytes.len(), std::iter::once(Piece::of(bytes))) }
    }

    /// Whether the kernel lets this process read its memory, which requires the right to trace it. `probe` tests it once.
    pub fn is_readable(&self, probe: impl FnOnce(&Owner) -> bool) -> bool {
        *self.is_readable.get_or_init(|| self.segment.owner().as_ref().is_some_and(probe))
    }

    /// Whether it receives packets to this address of the host.
    fn receives_at(&self, dgid: Gid) -> bool {
        let every = if dgid.to_ipv4().is_some() { EVERY_V4 } else { EVERY_V6 };
        self.addresses.iter().any(|&address| address == every || address == dgid)
    }

    /// Whether its process is alive at this moment.
    pub fn lives_now(&self) -> bool {
        let lives = !self.is_gone() && self.registry.is_alive(self.slot);
        if !lives {
            self.seen_ns.store(GONE, Ordering::Relaxed);
        }
        lives
    }

    /// Whether its process is alive. The result is cached for about a millisecond.
    #[inline(always)]
    pub fn lives(&self) -> bool {
        let now_ns = coarse_now().0;
        let seen_ns = self.seen_ns.load(Ordering::Relaxed);
        let was_just_seen = now_ns.saturating_sub(seen_ns) < BELIEVED_ALIVE_NS && seen_ns != GONE;
        was_just_seen || self.lives_still(now_ns)
    }

    #[inline(never)]
    fn lives_still(&self, now_ns: u64) -> bool {
        if self.seen_ns.load(Ordering::Relaxed) == GONE {
            return false;
        }
        let lives = !self.segment.is_closed() && self.registry.is_alive(self.slot);
        self.seen_ns.store(if lives { now_ns } else { GONE }, Ordering::Relaxed);
        lives
    }

    /// Whether its process is known to be gone.
    #[inline]
    pub fn is_gone(&self) -> bool {
        self.seen_ns.load(Ordering::Relaxed) == GONE || self.segment.is_closed()
    }

    /// Whether packets wait because the ring is full.
    pub fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Retries waiting packets. Returns whether some were sent.
    pub fn retry(&self) -> bool {
        let mut out = self.out.lock();
        if out.reader != self.instance {
            self.waiting.store(0, Ordering::Relaxed);
            return false;
        }
        let before = out.waiting.len();
        out.flush(self.segment.consumed(self.own_slot));
        self.waiting.store(out.waiting.len(), Ordering::Relaxed);
        out.waiting.len() < before
    }

    /// Whether everything that was sent will be read, even if this process ends.
    pub fn is_settled(&self) -> bool {
        let out = self.out.lock();
        let is_other = out.reader != self.instance || self.segment.is_closed();
        is_other || (out.waiting.is_empty() && out.ring.is_settled(self.segment.consumed(self.own_slot)))
    }

    /// Whether it has read and released everything that was sent.
    pub fn has_read_all(&self) -> bool {
        let out = self.out.lock();
        let is_reader = out.reader == self.instance && !self.is_gone();
        is_reader && out.waiting.is_empty() && out.ring.is_read(self.segment.consumed(self.own_slot))
    }

    /// Drops the waiting packets, which nobody will read.
    pub fn give_up(&self) {
        let mut out = self.out.lock();
        if out.reader == self.instance {
            out.waiting.clear();
        }
        self.waiting.store(0, Ordering::Relaxed);
    }

    /// Returns `true` if it sleeps and no other sender wakes it. The caller then must wake it.
    #[inline]
    pub fn must_be_woken(&self) -> bool {
        // Orders the store of the packet before the load. Otherwise the sleeper could miss the packet and the sender the sleeper.
        fence(Ordering::SeqCst);
        let asleep = self.segment.asleep();
        asleep.load(Ordering::Relaxed) != 0 && asleep.swap(0, Ordering::SeqCst) != 0
    }
}

#[derive(Default)]
enum Known {
    /// Not checked yet.
    #[default]
    Unknown,
    LocalPeer(Arc<LocalPeer>),
    /// No local peer had the slot at that time.
    Nobody {
        since_ns: u64,
    },
}

/// The same-host state of a progress context of a NIC: its own segment, and its local peers.
pub struct LocalPeers {
    pub(crate) segment: Arc<ShmSegment>,
    /// The segment in which the NIC publishes regions, and where local peers announce accesses.
    tables: Arc<ShmSegment>,
    pub(crate) registry: Arc<Registry>,
    /// Registered memory is moved into memfds that local peers can map, and long messages to them are rendezvous sends.
    uses_memfd: bool,
    /// Indexed by slot.
    known: Box<[RwLock<Known>]>,
    rings: Mutex<HashMap<u8, Arc<Mutex<Outgoing>>>>,
    /// Held to [register](access::attach) this sender: several slots of one NIC have their tables in one segment.
    attaching: Mutex<()>,
    addresses: HostAddresses,
}

impl LocalPeers {
    /// The part of a NIC that receives at `addresses`. The unspecified address stands for all addresses of its family. The first part publishes
    /// the NIC's regions.
    pub fn open(
        registry: Arc<Registry>,
        uses_memfd: bool,
        addresses: impl Iterator<Item = IpAddr>,
        first: Option<&LocalPeers>,
    ) -> io::Result<LocalPeers> {
        retire_the_dead(&registry);
        let addresses: Vec<Gid> = addresses
            .map(|address| match address {
                IpAddr::V6(v6) if v6.is_unspecified() => EVERY_V6,
                address => Gid::from_ip(address),
            })
            .collect();
        let segment = Arc::new(ShmSegment::create(&registry, &addresses, first.map(LocalPeers::slot))?);
        let tables = first.map_or(&segment, |first| &first.tables).clone();
        Ok(LocalPeers {
            segment,
            tables,
            registry,
            uses_memfd,
            known: (0..SLOTS).map(|_| RwLock::default()).collect(),
            rings: Mutex::default(),
            attaching: Mutex::default(),
            addresses: HostAddresses::new(),
        })
    }

    /// The slot of this NIC.
    #[inline]
    pub fn slot(&self) -> u8 {
        self.registry.slot()
    }

    /// Whether some process holds `slot`.
    pub fn is_alive(&self, slot: u8) -> bool {
        self.registry.is_alive(slot)
    }

    /// Whether registered memory is moved into memfds that local peers can map, and long messages to them are rendezvous sends.
    #[inline]
    pub fn uses_memfd(&self) -> bool {
        self.uses_memfd
    }

    /// Sets whether this NIC sleeps and must be woken for packets. Returns the previous value. If the sender of a packet does not wake
    /// this NIC, the packet is in its ring when this call returns.
    pub fn set_asleep(&self, asleep: bool) -> bool {
        let before = self.segment.asleep().swap(asleep.into(), Ordering::SeqCst) != 0;
        if asleep {
            // Pairs with the fence of `must_be_woken`: orders the store before the loads of the rings, which only acquire.
            fence(Ordering::SeqCst);
        }
        before
    }

    /// This NIC's multicast memberships.
    pub fn group_descriptors(&self) -> io::Result<GroupDescriptors> {
        GroupDescriptors::open(&self.registry, self.segment.clone())
    }

    /// A table for this NIC's regions.
    pub fn region_descriptors(&self) -> RegionDescriptors {
        RegionDescriptors::new(self.segment.clone(), self.registry.clone(), self.uses_memfd)
    }

    /// The list of the UDP ports that this NIC sends from.
    pub fn source_ports(&self) -> SourcePorts {
        SourcePorts::new(self.segment.clone())
    }

    /// A table for this NIC's XRC shared receive queues.
    pub fn srq_descriptors(&self) -> SrqDescriptors {
        SrqDescriptors::new(self.segment.clone())
    }

    /// Publishes a queue pair to local peers, or withdraws it.
    pub fn publish_qp(&self, qpn: Qpn, descriptor: Option<QpDescriptor>) {
        publish_qp(&self.segment, qpn, descriptor);
    }

    /// Waits until no local peer accesses memory through a queue pair that was withdrawn. Gives up on a process that stays stopped.
    pub fn wait_for_qp(&self, qpn: Qpn) -> Result<(), StoppedPeer> {
        access::wait_for(&self.tables, Awaited::Qp(qpn), &self.registry)
    }

    /// The NIC that owns `qpn`, if it is a local peer with the address `dgid`.
    pub fn find(&self, dgid: Gid, qpn: Qpn) -> Option<Arc<LocalPeer>> {
        self.find_in_slot((qpn.value() >> 16) as u8, dgid)
    }

    /// The NIC in `slot`, if it is a local peer with the address `dgid`. The slot alone does not identify it: processes of another user on this
    /// host have the same slot numbers, but other addresses.
    #[inline]
    pub fn find_in_slot(&self, slot: u8, dgid: Gid) -> Option<Arc<LocalPeer>> {
        if !is_slot(slot) || !self.is_local(dgid) {
            return None;
        }
        self.in_slot(slot).filter(|local_peer| local_peer.receives_at(dgid))
    }

    /// The NIC in `slot`, if there is one.
    pub fn in_slot(&self, slot: u8) -> Option<Arc<LocalPeer>> {
        match &*self.known[usize::from(slot)].read() {
            Known::LocalPeer(local_peer) if !local_peer.is_gone() => return Some(local_peer.clone()),
            Known::Nobody { since_ns } if now().0.wrapping_sub(*since_ns) < NOBODY_FOR_NS => return None,
            _ => {}
        }
        self.open_slot(slot)
    }

    /// All local peers that are open.
    pub fn known(&self) -> impl Iterator<Item = Arc<LocalPeer>> {
        self.known.iter().filter_map(|known| match &*known.read() {
            Known::LocalPeer(local_peer) => Some(local_peer.clone()),
            _ => None,
        })
    }

    /// Closes local peers that are dead: the memory of a dead process is freed once nobody maps it. A queue pair that was connected to one
    /// keeps it open as long as the queue pair exists.
    pub(crate) fn forget_dead(&self) {
        let is_dead =
            |known: &Known| matches!(known, Known::LocalPeer(local_peer) if !local_peer.lives_now());
        for known in &self.known {
            if is_dead(&known.read()) {
                let mut known = known.write();
                if is_dead(&known) {
                    *known = Known::Unknown;
                }
            }
        }
    }

    /// Opens the segment of a local peer and announces this sender to it.
    fn open_slot(&self, slot: u8) -> Option<Arc<LocalPeer>> {
        let mut known = self.known[usize::from(slot)].write();
        if let Known::LocalPeer(local_peer) = &*known
            && !local_peer.is_gone()
        {
            return Some(local_peer.clone());
        }
        match self.try_open(slot) {
            Ok(local_peer) => {
                let local_peer = Arc::new(local_peer);
                *known = Known::LocalPeer(local_peer.clone());
                Some(local_peer)
            }
            Err(_) => {
                *known = Known::Nobody { since_ns: now().0 };
                None
            }
        }
    }

    fn try_open(&self, slot: u8) -> io::Result<LocalPeer> {
        if !self.registry.is_alive(slot) {
            return Err(io::Error::other("nobody there"));
        }
        let segment = ShmSegment::open(self.registry.directory(), slot)?;
        let addresses =
            (0..ADDRESSES).map(|index| segment.address(index)).take_while(|a| *a != NOWHERE).collect();
        let own = self.slot();
        let tables = match segment.tables_slot() {
            other if other != slot => ShmSegment::open(self.registry.directory(), other)?,
            _ => segment.twin()?,
        };
        let attaching = self.attaching.lock();
        access::attach(&tables, own, self.segment.instance());
        drop(attaching);
        let out = self.ring_to(slot)?;
        {
            let mut out = out.lock();
            out.reader = segment.instance();
            out.waiting.clear();
            let (instance, start) = segment.sender(own);
            start.store(out.ring.restart(), Ordering::Relaxed);
            instance.store(self.segment.instance(), Ordering::Release);
            segment.new_senders(usize::from(own) / 64).fetch_or(1 << (own % 64), Ordering::SeqCst);
            segment.new_sender_count().fetch_add(1, Ordering::SeqCst);
        }
        Ok(LocalPeer {
            slot,
            own_slot: own,
            registry: self.registry.clone(),
            instance: segment.instance(),
            is_self: segment.tables_slot() == self.segment.tables_slot(),
            segment,
            tables,
            out,
            waiting: AtomicUsize::new(0),
            seen_ns: AtomicU64::new(0),
            mappings: RegionMappings::default(),
            is_readable: OnceLock::new(),
            addresses,
        })
    }

    fn ring_to(&self, slot: u8) -> io::Result<Arc<Mutex<Outgoing>>> {
        let mut rings = self.rings.lock();
        if let Some(ring) = rings.get(&slot) {
            return Ok(ring.clone());
        }
        let ring = Writer::new(self.segment.make_ring(slot)?);
        let out = Outgoing { ring, reader: 0, waiting: Backlog::new()? };
        Ok(rings.entry(slot).or_insert(Arc::new(Mutex::new(out))).clone())
    }

    /// Whether packets to this address stay on this host.
    pub fn is_local(&self, dgid: Gid) -> bool {
        let ip = dgid.to_ip();
        if ip.is_loopback() {
            return true;
        }
        if dgid.is_multicast() {
            return false;
        }
        self.addresses.contains(dgid)
    }
}

#[cfg(all(test, loom))]
mod models;

fn is_slot(slot: u8) -> bool {
    (registry::FIRST_SLOT..=registry::LAST_SLOT).contains(&slot)
}
