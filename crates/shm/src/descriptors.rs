//! Which queue pairs and regions of this process local peers may access directly.
//!
//! A descriptor contains the fields that the checks need. Only its owner writes it, and every local peer reads it. The descriptor of a queue
//! pair has two words that appear to change atomically (a number is not reused for a long time). The first word counts the changes. The
//! descriptor of a region has a version that changes with it.

use super::access::{self, Announcement, Awaited};
use super::gpu_allocations::{self, GpuAllocation, UsedEntries};
use super::mapping::BackingFile;
use super::memfd_backing::{LARGEST_PAGE, MAX_BACKED};
use super::pages::Pages;
use super::segment::{REGION_DESCRIPTORS, ShmSegment};
use super::shared::SharedFiles;
use crate::registry::Registry;
use ferroce_os::lock::Mutex;
use ferroce_proto::verbs::Access;
use ferroce_proto::wire::Service;
use ferroce_proto::{PdId, Qpn, RKey};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

const OPEN: u64 = 1 << 63;
const LARGE: u64 = 1 << 62;
const FETCHES: u64 = 1 << 61;
const XRC: u64 = 1 << 60;
/// The lowest of the twelve bits that count the changes of a queue pair's descriptor.
const ONE_CHANGE: u64 = 1 << 48;
const CHANGES: u64 = 0xfff << 48;
const FETCHES_GPU: u64 = 1 << 47;
/// The access rights of a queue pair, in the fifteen bits below.
const ACCESS: u32 = 0x7fff;
/// Number of indices to probe for a region's descriptor, starting at the one that its key selects.
const PROBES: usize = 8;

/// The published properties of a queue pair that can receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpDescriptor {
    /// The operations that its peer may execute.
    pub access: Access,
    /// The domain that the memory must belong to.
    pub domain: QpDomain,
    /// The queue pair it is connected to.
    pub partner: Partner,
    /// It accepts packets that are longer than the path MTU.
    pub takes_large: bool,
    /// It accepts rendezvous sends: it fetches the message from its peer's memory.
    pub fetches: bool,
    /// It also accepts rendezvous sends from the memory of a GPU.
    pub fetches_gpu: bool,
}

/// The queue pair at the other end of a connection, and the service. A queue pair drops packets of any other partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partner(u64);

impl Partner {
    /// Differs from the partner in every descriptor, because no service and number encode to it.
    pub const NONE: Partner = Partner(u64::MAX);

    /// Queue pair `qpn` with this service.
    pub fn new(service: Service, qpn: Qpn) -> Partner {
        Partner(u64::from(service as u8) << 32 | u64::from(qpn.value()))
    }

    /// The number of the queue pair.
    #[inline]
    pub fn qpn(self) -> Qpn {
        Qpn::new(self.0 as u32)
    }
}

/// The domain of the memory that a queue pair may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpDomain {
    /// A protection domain.
    Pd(PdId),
    /// The protection domain of the shared receive queue that a request names, if that queue is in this XRC domain.
    Xrc(u32),
}

impl QpDescriptor {
    fn first_word(self) -> u64 {
        let large = if self.takes_large { LARGE } else { 0 };
        let fetches = if self.fetches { FETCHES } else { 0 } | if self.fetches_gpu { FETCHES_GPU } else { 0 };
        let domain = match self.domain {
            QpDomain::Pd(pd) => u64::from(pd.0),
            QpDomain::Xrc(domain) => XRC | u64::from(domain),
        };
        OPEN | large | fetches | u64::from(self.access.bits() & ACCESS) << 32 | domain
    }
}

/// Publishes a queue pair to local peers, or withdraws it. The caller excludes concurrent calls for one queue pair.
pub(crate) fn publish_qp(segment: &ShmSegment, qpn: Qpn, descriptor: Option<QpDescriptor>) {
    let (first, second) = segment.qp_descriptor(qpn.value() as u16);
    let changes = first.load(Ordering::Relaxed).wrapping_add(ONE_CHANGE) & CHANGES;
    match descriptor {
        // `SeqCst`, because `wait_for_qp` reads the announced accesses afterwards.
        None => first.store(changes, Ordering::SeqCst),
        Some(descriptor) => {
            second.store(descriptor.partner.0, Ordering::Release);
            first.store(changes | descriptor.first_word(), Ordering::Release);
        }
    }
}

/// The descriptor of a local peer's queue pair, and its version.
#[derive(Clone, Copy, Debug)]
pub struct PublishedQp {
    /// Its descriptor.
    pub descriptor: QpDescriptor,
    /// Its version.
    pub version: QpVersion,
}

/// Distinguishes the successive descriptors of one queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QpVersion(u64);

impl QpVersion {
    /// Whether the descriptor is unchanged.
    #[inline(always)]
    pub(crate) fn is_valid(self, segment: &ShmSegment, qpn: Qpn) -> bool {
        segment.qp_descriptor(qpn.value() as u16).0.load(Ordering::SeqCst) == self.0
    }
}

/// The descriptor of a local peer's queue pair. Before an access, the caller must announce it and then find the version unchanged.
#[inline(always)]
pub(crate) fn find_qp(segment: &ShmSegment, qpn: Qpn) -> Option<PublishedQp> {
    let (first, second) = segment.qp_descriptor(qpn.value() as u16);
    let word = first.load(Ordering::Acquire);
    (word & OPEN != 0).then(|| PublishedQp {
        descriptor: QpDescriptor {
            access: Access::from_bits_truncate((word >> 32) as u32 & ACCESS),
            domain: if word & XRC == 0 {
                QpDomain::Pd(PdId(word as u32))
            } else {
                QpDomain::Xrc(word as u32)
            },
            partner: Partner(second.load(Ordering::Acquire)),
            takes_large: word & LARGE != 0,
            fetches: word & FETCHES != 0,
            fetches_gpu: word & FETCHES_GPU != 0,
        },
        version: QpVersion(word),
    })
}

/// The published properties of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionDescriptor {
    /// Its remote key.
    pub rkey: RKey,
    /// The operations that peers may execute.
    pub access: Access,
    /// Its protection domain.
    pub pd: PdId,
    /// The address of its first byte in requests.
    pub iova: u64,
    /// Length in bytes.
    pub len: u64,
    /// The address of its first byte in the owner's address space.
    pub base: u64,
    /// The only queue pair that may access it, if it is limited to one.
    pub only_qp: Option<Qpn>,
    /// The part of it that can be mapped, if any.
    pub file: Option<BackingFile>,
}

const VERSION: usize = 0;
const FIELDS: usize = 12;
/// The field with the number of the region's GPU allocation, counted from one; zero if it is memory of the host.
const GPU: usize = FIELDS + 1;
const ONLY_QP: u64 = 1 << 32;

impl RegionDescriptor {
    pub(crate) fn fields(&self) -> [u64; FIELDS] {
        let file = self.file.map_or([0; 6], BackingFile::fields);
        let [start, len, offset, source, inode, device] = file;
        [
            u64::from(self.access.bits()) << 32 | u64::from(self.rkey.0),
            self.pd.0.into(),
            self.iova,
            self.len,
            self.base,
            self.only_qp.map_or(0, |qpn| ONLY_QP | u64::from(qpn.value())),
            start,
            len,
            offset,
            source,
            inode,
            device,
        ]
    }

    pub(crate) fn from_fields(fields: [u64; FIELDS]) -> RegionDescriptor {
        let [key, pd, iova, len, base, only_qp, file @ ..] = fields;
        RegionDescriptor {
            rkey: RKey(key as u32),
            access: Access::from_bits_truncate((key >> 32) as u32),
            pd: PdId(pd as u32),
            iova,
            len,
            base,
            only_qp: (only_qp & ONLY_QP != 0).then(|| Qpn::new(only_qp as u32)),
            file: BackingFile::from_fields(file),
        }
    }
}

fn first_probe(rkey: RKey) -> usize {
    (rkey.0.wrapping_mul(0x9E37_79B9) >> 20) as usize % REGION_DESCRIPTORS
}

fn probes(rkey: RKey) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |step| (first_probe(rkey) + step) % REGION_DESCRIPTORS)
}

/// The descriptor of a local peer's region, and its version.
#[derive(Clone, Copy, Debug)]
pub struct PublishedRegion {
    pub(crate) number: usize,
    pub(crate) version: u64,
    /// The number of the GPU allocation that contains it.
    pub(crate) gpu: Option<u32>,
    /// Its descriptor.
    pub descriptor: RegionDescriptor,
}

impl PublishedRegion {
    /// Whether it is memory of a GPU, which the CPU cannot access.
    #[inline]
    pub fn is_of_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// The GPU allocation that contains it, if there is one and the region is still published.
    pub(crate) fn gpu_allocation(&self, segment: &ShmSegment) -> Option<GpuAllocation> {
        let allocation = gpu_allocations::read(segment, self.gpu? as usize);
        // Orders the reads of the entry before the read of the version.
        fence(Ordering::Acquire);
        self.is_valid(segment).then_some(allocation)
    }

    /// The announcement of an access to it through this queue pair of its owner.
    pub fn announcement(&self, qpn: Qpn) -> Announcement {
        Announcement::new(self.number, qpn)
    }

    /// Whether the descriptor is unchanged.
    #[inline(always)]
    pub(crate) fn is_valid(&self, segment: &ShmSegment) -> bool {
        segment.region_field(self.number, VERSION).load(Ordering::SeqCst) == self.version
    }
}

/// The descriptor that a local peer publishes under this key. Before an access, the caller must announce it and then find the version
/// unchanged.
pub(crate) fn find_region(segment: &ShmSegment, rkey: RKey) -> Option<PublishedRegion> {
    probes(rkey).find_map(|number| {
        let version = segment.region_field(number, VERSION).load(Ordering::Acquire);
        let is_published = version != 0 && version.is_multiple_of(2);
        let key = segment.region_field(number, 1).load(Ordering::Relaxed) as u32;
        if !is_published || key != rkey.0 {
            return None;
        }
        let field = |index| segment.region_field(number, index + 1).load(Ordering::Relaxed);
        let descriptor = RegionDescriptor::from_fields(std::array::from_fn(field));
        let gpu = (segment.region_field(number, GPU).load(Ordering::Relaxed) as u32).checked_sub(1);
        Some(PublishedRegion { number, version, gpu, descriptor })
    })
}

/// The owner's side of the table of region descriptors.
pub struct RegionDescriptors {
    segment: Arc<ShmSegment>,
    registry: Arc<Registry>,
    used: Mutex<Used>,
    uses_memfd: bool,
    files: SharedFiles,
}

/// The entries of the tables that are in use.
struct Used {
    /// For each region, the number of its GPU allocation.
    regions: Box<[Option<Option<usize>>]>,
    gpu_allocations: UsedEntries,
}

impl std::fmt::Debug for RegionDescriptors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RegionDescriptors").finish_non_exhaustive()
    }
}

impl RegionDescriptors {
    pub(crate) fn new(segment: Arc<ShmSegment>, registry: Arc<Registry>, uses_memfd: bool) -> Self {
        let regions = vec![None; REGION_DESCRIPTORS].into();
        let used = Mutex::new(Used { regions, gpu_allocations: UsedEntries::default() });
        RegionDescriptors { segment, registry, used, uses_memfd, files: SharedFiles::default() }
    }

    /// Makes it possible for local peers to map the pages of a region, where that is sound. The `capacity` bytes from `base` on belong to the
    /// region's buffer only.
    pub fn pages(&self, base: usize, len: usize, capacity: usize) -> Option<Pages> {
        if self.uses_memfd { Pages::of(&self.files, base, len, capacity) } else { None }
    }

    /// Makes it possible for local peers to open the GPU allocation that contains a region. Keeps the file descriptor of the export open.
    pub fn gpu_pages(
        &self,
        export: impl FnOnce() -> Option<(GpuAllocation, Option<OwnedFd>)>,
    ) -> Option<Pages> {
        let (allocation, fd) = if self.uses_memfd { export()? } else { return None };
        Pages::of_gpu(allocation, fd)
    }

    /// The most bytes from the start of a region that [`pages`](Self::pages) may move.
    pub fn most_moved(&self) -> usize {
        // The first moved page may be a huge one that begins after the start.
        if self.uses_memfd { MAX_BACKED + LARGEST_PAGE } else { 0 }
    }

    /// Publishes a region, which may be part of a GPU allocation. Returns `None` if the table is full: operations on the region then use
    /// packets.
    pub fn publish(&self, descriptor: &RegionDescriptor, gpu: Option<&GpuAllocation>) -> Option<usize> {
        let mut used = self.used.lock();
        let number = probes(descriptor.rkey).find(|&number| used.regions[number].is_none())?;
        let gpu = match gpu {
            Some(allocation) => Some(used.gpu_allocations.add(&self.segment, allocation)?),
            None => None,
        };
        used.regions[number] = Some(gpu);
        let version = self.segment.region_field(number, VERSION);
        // The version is odd while the descriptor changes. The lock excludes other writers.
        let odd = version.load(Ordering::Relaxed) | 1;
        version.store(odd, Ordering::SeqCst);
        for (index, value) in descriptor.fields().into_iter().enumerate() {
            self.segment.region_field(number, index + 1).store(value, Ordering::Relaxed);
        }
        let gpu = gpu.map_or(0, |number| number as u64 + 1);
        self.segment.region_field(number, GPU).store(gpu, Ordering::Relaxed);
        version.store(odd + 1, Ordering::Release);
        Some(number)
    }

    /// Withdraws a region and waits for accesses in progress.
    pub fn withdraw(&self, number: usize) {
        let version = self.segment.region_field(number, VERSION);
        version.store(version.load(Ordering::Relaxed) | 1, Ordering::SeqCst);
        // The wait for a region never gives up.
        let _ = access::wait_for(&self.segment, Awaited::Region(number), &self.registry);
        let mut used = self.used.lock();
        if let Some(gpu) = used.regions[number].take().flatten() {
            used.gpu_allocations.remove(gpu);
        }
    }
}

#[cfg(all(test, loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::FileSource;

    fn descriptor(rkey: u32) -> RegionDescriptor {
        let source = if rkey.is_multiple_of(3) { FileSource::SystemV } else { FileSource::Fd(rkey) };
        RegionDescriptor {
            rkey: RKey(rkey),
            access: Access::REMOTE_READ | Access::LOCAL_WRITE,
            pd: PdId(7),
            iova: 1 << 40,
            len: 12_345,
            base: 4096,
            only_qp: rkey.is_multiple_of(2).then_some(Qpn::new(rkey)),
            file: Some(BackingFile { start: 4096, len: 8192, offset: 1 << 33, source, inode: 6, device: 7 }),
        }
    }

    #[test]
    fn what_is_published_is_found_until_it_is_withdrawn() {
        let base = std::env::temp_dir().join(format!("ferroce-tables-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let registry = Arc::new(Registry::open(&base).unwrap());
        let segment = Arc::new(ShmSegment::create(&registry, &[], None).unwrap());
        let table = RegionDescriptors::new(segment.clone(), registry.clone(), false);
        let numbers: Vec<usize> =
            (1..=500).map(|key| table.publish(&descriptor(key), None).unwrap()).collect();
        let theirs = ShmSegment::open(registry.directory(), registry.slot()).unwrap();
        for key in 1..=500 {
            assert_eq!(find_region(&theirs, RKey(key)).unwrap().descriptor, descriptor(key));
        }
        let published = find_region(&theirs, RKey(77)).unwrap();
        assert_eq!(published.descriptor, descriptor(77));
        assert!(published.is_valid(&theirs) && find_region(&theirs, RKey(501)).is_none());
        table.withdraw(numbers[76]);
        assert!(!published.is_valid(&theirs) && find_region(&theirs, RKey(77)).is_none());
        assert_eq!(table.publish(&descriptor(77), None).map(|number| number == numbers[76]), Some(true));
        assert!(!published.is_valid(&theirs), "the same descriptor in another life");

        let qpn = Qpn::new(0x01_1234);
        let terms = QpDescriptor {
            access: Access::REMOTE_WRITE,
            domain: QpDomain::Pd(PdId(9)),
            partner: Partner::new(Service::Uc, Qpn::new(0x02_5678)),
            takes_large: true,
            fetches: true,
            fetches_gpu: false,
        };
        let xrc = QpDescriptor { domain: QpDomain::Xrc(9), takes_large: false, ..terms };
        for descriptor in [terms, xrc] {
            publish_qp(&segment, qpn, Some(descriptor));
            assert_eq!(find_qp(&theirs, qpn).map(|found| found.descriptor), Some(descriptor));
        }
        let version = find_qp(&theirs, qpn).unwrap().version;
        assert!(version.is_valid(&theirs, qpn));
        assert_eq!(terms.partner.qpn(), Qpn::new(0x02_5678));
        publish_qp(&segment, qpn, None);
        assert!(find_qp(&theirs, qpn).is_none());
        publish_qp(&segment, qpn, Some(xrc));
        assert!(!version.is_valid(&theirs, qpn), "the same descriptor in another life");
        drop((table, segment));
        assert!(theirs.is_closed());
        drop(registry);
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn hiding_waits_for_the_living_and_not_for_the_dead() {
        let base = std::env::temp_dir().join(format!("ferroce-accesses-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let registry = Arc::new(Registry::open(&base).unwrap());
        let segment = Arc::new(ShmSegment::create(&registry, &[], None).unwrap());
        let table = RegionDescriptors::new(segment.clone(), registry.clone(), false);
        let number = table.publish(&descriptor(1), None).unwrap();
        let theirs = ShmSegment::open(registry.directory(), registry.slot()).unwrap();
        access::attach(&theirs, registry.slot(), theirs.instance());
        let announcement = |number| Announcement::new(number, Qpn::new(0x01_1234));
        let access = access::begin(&theirs, registry.slot(), announcement(number), &mut 0).unwrap();
        std::thread::scope(|s| {
            let hiding = s.spawn(|| table.withdraw(number));
            while find_region(&theirs, RKey(1)).is_some() {}
            std::thread::sleep(std::time::Duration::from_millis(20));
            assert!(!hiding.is_finished());
            access::end(&theirs, registry.slot(), access);
            hiding.join().unwrap();
        });
        let number = table.publish(&descriptor(2), None).unwrap();
        let dead_slot = registry.slot() + 1;
        access::attach(&theirs, dead_slot, 4711);
        access::begin(&theirs, dead_slot, announcement(number), &mut 0).unwrap();
        table.withdraw(number);
        drop((table, segment, registry));
        std::fs::remove_dir_all(base).unwrap();
    }
}
