//! The shared segment of a NIC: its layout, creating it, opening that of a local peer.
//!
//! ```text
//! 0        head: magic, instance, process, namespace, address of the instance in the owner's memory, closed, asleep, bits of new senders,
//!          addresses, source ports of echoes, the slot whose segment has the tables of regions and shared receive queues
//! 4 KiB    accesses in progress: one line per slot
//! 20 KiB   senders: per slot, two lines: the instance that sends to the owner and its start; the owner's read position
//! 52 KiB   table of queue pairs
//! …        table of regions
//! …        table of groups
//! …        table of shared receive queues
//! …        source ports, one bit each
//! …        table of GPU allocations
//! …        rings to every slot: a file with holes, filled when first used
//! ```

use super::mapping::{FixedMapping, MappedBytes, Mapping};
use crate::registry::Registry;
use ferroce_os::sync::{AtomicU32, AtomicU64, Ordering};
use ferroce_proto::Gid;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Another process, with a mark that distinguishes it from a later process with the same ID.
#[derive(Clone, Copy, Debug)]
pub struct Owner {
    /// Its process ID.
    pub process: libc::pid_t,
    /// The address of the mark in its memory.
    pub mark_at: usize,
    /// The mark: a random number that no other process has at this address.
    pub mark: u64,
}

/// Slots of a host. Loom models use small tables, so that they terminate.
pub(crate) const SLOTS: usize = if cfg!(loom) { 2 } else { 256 };
/// Bytes of one ring: what one queue pair may have in flight by default.
pub(crate) const RING_LEN: usize = if cfg!(loom) { 256 } else { 1 << 20 };

/// Also the version: a segment of another layout is not opened.
const MAGIC: u64 = 0x0008_6563_6172_7266;

const INSTANCE_AT: usize = 8;
const PROCESS_AT: usize = 16;
const NAMESPACE_AT: usize = 24;
const MARK_AT: usize = 32;
const TABLES_SLOT_AT: usize = 40;
/// Each in a cache line of its own, because they are written while other processes read the rest.
const CLOSED_AT: usize = 128;
const ASLEEP_AT: usize = 256;
const NEW_SENDERS_AT: usize = 384;

const ADDRESSES_AT: usize = 512;
/// Published addresses of a NIC. At further addresses it is reached by UDP.
pub(crate) const ADDRESSES: usize = 128;
const ECHOES_AT: usize = ADDRESSES_AT + ADDRESSES * 16;
/// Sockets that send multicast packets which the sender also writes into rings (echoes).
pub(crate) const ECHOES: usize = 32;

const ACCESSES_AT: usize = 4096;
/// Accesses that one process may have in progress in another's memory: a line of words, less the first two.
pub(crate) const ACCESSES_PER_SLOT: usize = if cfg!(loom) { 2 } else { 14 };
const SENDERS_AT: usize = ACCESSES_AT + SLOTS * 64;
const SENDER_LEN: usize = 128;

const QPS_AT: usize = SENDERS_AT + SLOTS * SENDER_LEN;
const QP_DESCRIPTOR_LEN: usize = 16;
const QP_DESCRIPTORS: usize = 1 << 16;

const REGIONS_AT: usize = QPS_AT + QP_DESCRIPTORS * QP_DESCRIPTOR_LEN;
pub(crate) const REGION_DESCRIPTOR_LEN: usize = 128;
/// Regions that can be accessed directly. Further regions are accessed by packets.
pub(crate) const REGION_DESCRIPTORS: usize = 4096;

const GROUPS_AT: usize = REGIONS_AT + REGION_DESCRIPTORS * REGION_DESCRIPTOR_LEN;
const GROUP_DESCRIPTOR_LEN: usize = 32;
/// Published memberships, one per group and interface. Packets for further memberships arrive by UDP.
pub(crate) const GROUP_DESCRIPTORS: usize = 256;

const SRQS_AT: usize = GROUPS_AT + GROUP_DESCRIPTORS * GROUP_DESCRIPTOR_LEN;
const SRQ_DESCRIPTOR_LEN: usize = 16;
/// Published XRC shared receive queues. One-sided operations that name another one use packets.
pub(crate) const SRQ_DESCRIPTORS: usize = 1024;

const PORTS_AT: usize = SRQS_AT + SRQ_DESCRIPTORS * SRQ_DESCRIPTOR_LEN;

const GPU_ALLOCATIONS_AT: usize = PORTS_AT + (1 << 16) / 8;
pub(crate) const GPU_ALLOCATION_LEN: usize = 128;
/// GPU allocations that local peers can open. Regions in further ones are accessed by packets.
pub(crate) const GPU_ALLOCATIONS: usize = 256;

/// The part of a segment that local peers map.
pub(crate) const TABLES_LEN: usize = GPU_ALLOCATIONS_AT + GPU_ALLOCATIONS * GPU_ALLOCATION_LEN;
const WHOLE_LEN: usize = TABLES_LEN + SLOTS * RING_LEN;

/// The head and the tables of a segment, one's own or another's.
#[derive(Debug)]
pub(crate) struct ShmSegment {
    memory: FixedMapping<TABLES_LEN>,
    file: Arc<File>,
    path: PathBuf,
    is_own: bool,
}

impl ShmSegment {
    /// Creates the segment of this slot, whose owner receives at these addresses. Its regions are published in the segment of `tables_slot`, if
    /// that is another slot. The segment of a dead owner of the slot is marked as closed, for the processes that still map it, and removed.
    pub(crate) fn create(
        registry: &Registry,
        addresses: &[Gid],
        tables_slot: Option<u8>,
    ) -> io::Result<ShmSegment> {
        let path = path_of(registry.directory(), registry.slot());
        retire(&path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
        let made = Self::set_size(&file).and_then(|()| Mapping::new(&file, 0, WHOLE_LEN, true));
        let memory = made.inspect_err(|_| {
            let _ = std::fs::remove_file(&path);
        })?;
        let segment = ShmSegment { memory: memory.fixed(), file: Arc::new(file), path, is_own: true };
        segment.memory.long(INSTANCE_AT).store(ferroce_os::random::number::<u64>() | 1, Ordering::Relaxed);
        segment.memory.word(PROCESS_AT).store(std::process::id(), Ordering::Relaxed);
        segment.memory.long(NAMESPACE_AT).store(process_namespace(), Ordering::Relaxed);
        let mark_at = segment.memory.start().addr() + INSTANCE_AT;
        segment.memory.long(MARK_AT).store(mark_at as u64, Ordering::Relaxed);
        segment
            .memory
            .word(TABLES_SLOT_AT)
            .store(tables_slot.unwrap_or(registry.slot()).into(), Ordering::Relaxed);
        for (index, &address) in addresses.iter().take(ADDRESSES).enumerate() {
            store_gid(segment.address_words(index), address);
        }
        segment.memory.long(0).store(MAGIC, Ordering::Release);
        Ok(segment)
    }

    /// Sets the size of the file, and allocates all memory that other processes access: a full file system must be an error here, and
    /// not a signal there.
    fn set_size(file: &File) -> io::Result<()> {
        file.set_len(WHOLE_LEN as u64)?;
        allocate(file, 0, TABLES_LEN)
    }

    /// Opens the segment of a slot.
    pub(crate) fn open(directory: &Path, slot: u8) -> io::Result<ShmSegment> {
        let path = path_of(directory, slot);
        let file = open_file(&path)?;
        if file.metadata()?.size() != WHOLE_LEN as u64 {
            return Err(io::Error::other("of another version, or half made"));
        }
        let memory = Mapping::new(&file, 0, TABLES_LEN, true)?;
        let segment = ShmSegment { memory: memory.fixed(), file: Arc::new(file), path, is_own: false };
        if segment.memory.long(0).load(Ordering::Acquire) != MAGIC || segment.is_closed() {
            return Err(io::Error::other("of another version, half made, or left"));
        }
        Ok(segment)
    }

    /// A second mapping of the same segment.
    pub(crate) fn twin(&self) -> io::Result<ShmSegment> {
        let memory = Mapping::new(&self.file, 0, TABLES_LEN, true)?;
        let (file, path) = (self.file.clone(), self.path.clone());
        Ok(ShmSegment { memory: memory.fixed(), file, path, is_own: false })
    }

    /// A random number that distinguishes the successive owners of the slot; never zero.
    pub(crate) fn instance(&self) -> u64 {
        self.memory.long(INSTANCE_AT).load(Ordering::Relaxed)
    }

    /// The slot of the segment that has the tables of the owner's regions and shared receive queues.
    pub(crate) fn tables_slot(&self) -> u8 {
        self.memory.word(TABLES_SLOT_AT).load(Ordering::Relaxed) as u8
    }

    /// The owner's process ID, if it is in the PID namespace of this process.
    pub(crate) fn process(&self) -> Option<libc::pid_t> {
        let same = self.memory.long(NAMESPACE_AT).load(Ordering::Relaxed) == process_namespace();
        let process = self.memory.word(PROCESS_AT).load(Ordering::Relaxed);
        same.then_some(process as libc::pid_t).filter(|&process| process > 0)
    }

    /// The owner, if it is in the PID namespace of this process. The mark is the instance number, at its address in the owner's memory.
    pub(crate) fn owner(&self) -> Option<Owner> {
        let mark_at = self.memory.long(MARK_AT).load(Ordering::Relaxed) as usize;
        Some(Owner { process: self.process()?, mark_at, mark: self.instance() })
    }

    /// Whether its owner has closed it, or another process has found the owner dead.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.memory.word(CLOSED_AT).load(Ordering::Acquire) != 0
    }

    /// Non-zero while the owner sleeps and must be woken for packets.
    #[inline]
    pub(crate) fn asleep(&self) -> &AtomicU32 {
        self.memory.word(ASLEEP_AT)
    }

    /// A bit for every slot that has begun to send to the owner and whose ring the owner has not opened yet.
    pub(crate) fn new_senders(&self, index: usize) -> &AtomicU64 {
        self.memory.long(NEW_SENDERS_AT + (index % SLOTS.div_ceil(64)) * 8)
    }

    /// A counter that changes with the bits, so that one read shows whether there are new senders.
    #[inline]
    pub(crate) fn new_sender_count(&self) -> &AtomicU32 {
        self.memory.word(NEW_SENDERS_AT + 64)
    }

    /// A word for an access of `slot` in progress in the owner's memory: an [announcement](super::access::Announcement).
    #[inline(always)]
    pub(crate) fn access(&self, slot: u8, index: usize) -> &AtomicU32 {
        // Nearly always inside, and a division takes longer than the comparison.
        let index = if index < ACCESSES_PER_SLOT { index } else { index % ACCESSES_PER_SLOT };
        self.memory.word(ACCESSES_AT + usize::from(slot) * 64 + 8 + index * 4)
    }

    /// The instance of `slot` that owns these words.
    pub(crate) fn accessor(&self, slot: u8) -> &AtomicU64 {
        self.memory.long(ACCESSES_AT + usize::from(slot) * 64)
    }

    /// The instance of `slot` that sends to the owner, and the position in its ring at which it began.
    pub(crate) fn sender(&self, slot: u8) -> (&AtomicU64, &AtomicU64) {
        let at = SENDERS_AT + usize::from(slot) * SENDER_LEN;
        (self.memory.long(at), self.memory.long(at + 8))
    }

    /// The position up to which the owner has released the ring of `slot`; zero before it opened the ring.
    #[inline]
    pub(crate) fn consumed(&self, slot: u8) -> &AtomicU64 {
        self.memory.long(SENDERS_AT + usize::from(slot) * SENDER_LEN + 64)
    }

    /// The two words of a queue pair's descriptor.
    #[inline]
    pub(crate) fn qp_descriptor(&self, low: u16) -> (&AtomicU64, &AtomicU64) {
        let at = QPS_AT + usize::from(low) * QP_DESCRIPTOR_LEN;
        (self.memory.long(at), self.memory.long(at + 8))
    }

    /// One of the eight-byte fields of a region's descriptor.
    #[inline]
    pub(crate) fn region_field(&self, descriptor: usize, field: usize) -> &AtomicU64 {
        self.memory
            .long(REGIONS_AT + (descriptor % REGION_DESCRIPTORS) * REGION_DESCRIPTOR_LEN + (field % 16) * 8)
    }

    /// An address at which the owner receives; zero behind the last one. It never changes.
    pub(crate) fn address(&self, index: usize) -> Gid {
        load_gid(self.address_words(index))
    }

    fn address_words(&self, index: usize) -> [&AtomicU64; 2] {
        let at = ADDRESSES_AT + (index % ADDRESSES) * 16;
        [self.memory.long(at), self.memory.long(at + 8)]
    }

    /// A socket that sends echoes: its port, and its address in two words.
    pub(crate) fn echo(&self, index: usize) -> (&AtomicU64, [&AtomicU64; 2]) {
        let at = ECHOES_AT + (index % ECHOES) * 24;
        (self.memory.long(at), [self.memory.long(at + 8), self.memory.long(at + 16)])
    }

    /// The descriptor of a membership: the interface, and the group in two words.
    pub(crate) fn group_descriptor(&self, index: usize) -> (&AtomicU64, [&AtomicU64; 2]) {
        let at = GROUPS_AT + (index % GROUP_DESCRIPTORS) * GROUP_DESCRIPTOR_LEN;
        (self.memory.long(at), [self.memory.long(at + 8), self.memory.long(at + 16)])
    }

    /// The two words of the descriptor of an XRC shared receive queue.
    pub(crate) fn srq_descriptor(&self, index: usize) -> (&AtomicU64, &AtomicU64) {
        let at = SRQS_AT + (index % SRQ_DESCRIPTORS) * SRQ_DESCRIPTOR_LEN;
        (self.memory.long(at), self.memory.long(at + 8))
    }

    /// The word with the bits of 64 source ports, including this one.
    pub(crate) fn source_ports(&self, port: u16) -> &AtomicU64 {
        self.memory.long(PORTS_AT + usize::from(port) / 64 * 8)
    }

    /// One of the eight-byte fields of a GPU allocation.
    pub(crate) fn gpu_allocation_field(&self, number: usize, field: usize) -> &AtomicU64 {
        let at = GPU_ALLOCATIONS_AT + (number % GPU_ALLOCATIONS) * GPU_ALLOCATION_LEN;
        self.memory.long(at + field * 8 % GPU_ALLOCATION_LEN)
    }

    /// Allocates and maps the ring to `slot`, for writing.
    pub(crate) fn make_ring(&self, slot: u8) -> io::Result<Mapping> {
        let at = ring_at(slot);
        allocate(&self.file, at, RING_LEN)?;
        Mapping::new(&self.file, at as u64, RING_LEN, true)
    }

    /// Maps the owner's ring to `slot`, for reading.
    pub(crate) fn ring_to(&self, slot: u8) -> io::Result<Mapping> {
        Mapping::new(&self.file, ring_at(slot) as u64, RING_LEN, false)
    }
}

#[cfg(all(test, loom))]
impl ShmSegment {
    /// A segment without a file, all zero; or a second view of `twin`, as another process has it.
    pub(crate) fn model(twin: Option<&ShmSegment>) -> ShmSegment {
        let mut memory = Mapping::private(TABLES_LEN).expect("memory");
        if let Some(twin) = twin {
            memory = memory.with_shadow_of(&twin.memory);
        }
        let file = File::open("/dev/null").expect("a file");
        ShmSegment { memory: memory.fixed(), file: Arc::new(file), path: PathBuf::new(), is_own: false }
    }
}

impl Drop for ShmSegment {
    fn drop(&mut self) {
        if self.is_own {
            self.memory.word(CLOSED_AT).store(1, Ordering::Release);
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

pub(crate) fn store_gid([high, low]: [&AtomicU64; 2], gid: Gid) {
    let both = u128::from_be_bytes(gid.0);
    high.store((both >> 64) as u64, Ordering::Relaxed);
    low.store(both as u64, Ordering::Relaxed);
}

pub(crate) fn load_gid([high, low]: [&AtomicU64; 2]) -> Gid {
    let [high, low] = [high, low].map(|word| u128::from(word.load(Ordering::Relaxed)));
    Gid((high << 64 | low).to_be_bytes())
}

fn ring_at(slot: u8) -> usize {
    TABLES_LEN + usize::from(slot) * RING_LEN
}

pub(crate) fn path_of(directory: &Path, slot: u8) -> PathBuf {
    directory.join(format!("slot-{slot}.shm"))
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).custom_flags(libc::O_NOFOLLOW).open(path)
}

/// Marks the segment of a dead process as closed, and removes it. The caller has checked that the process is dead.
pub(crate) fn retire(path: &Path) {
    if let Ok(file) = open_file(path)
        && file.metadata().is_ok_and(|meta| meta.size() >= 4096)
        && let Ok(head) = Mapping::new(&file, 0, 4096, true)
    {
        head.word(CLOSED_AT).store(1, Ordering::Release);
    }
    let _ = std::fs::remove_file(path);
}

/// Retires the segment of every slot that no process holds, unless a living process has yet to open a ring in it. No process can claim such a
/// slot meanwhile: claims need the roster.
pub(crate) fn retire_the_dead(registry: &Registry) {
    let dead = |registry: &Registry| {
        let Ok(entries) = std::fs::read_dir(registry.directory()) else { return };
        let slots = entries.flatten().filter_map(|entry| entry.file_name().to_str().and_then(slot_of));
        let (living, dead): (Vec<u8>, Vec<u8>) = slots.partition(|&slot| registry.is_alive(slot));
        for slot in dead.into_iter().filter(|&slot| !is_awaited(registry.directory(), slot, &living)) {
            retire(&path_of(registry.directory(), slot));
        }
    };
    // If the roster is locked for long, the next process does this.
    let _ = registry.try_update(Duration::from_millis(100), |registry, _| dead(registry));
}

/// Whether a living process has yet to open its ring from `slot`: a process may be killed right after it sent its first message.
fn is_awaited(directory: &Path, slot: u8, living: &[u8]) -> bool {
    let Ok(sender) = ShmSegment::open(directory, slot) else { return false };
    living.iter().filter_map(|&reader| ShmSegment::open(directory, reader).ok()).any(|reader| {
        let is_new =
            reader.new_senders(usize::from(slot) / 64).load(Ordering::SeqCst) >> (slot % 64) & 1 != 0;
        is_new && reader.sender(slot).0.load(Ordering::Acquire) == sender.instance()
    })
}

fn slot_of(name: &str) -> Option<u8> {
    name.strip_prefix("slot-")?.strip_suffix(".shm")?.parse().ok()
}

pub(crate) fn allocate(file: &File, at: usize, len: usize) -> io::Result<()> {
    // SAFETY: the file is open, and the call accesses no memory of the process.
    let error = unsafe { libc::posix_fallocate(file.as_raw_fd(), at as libc::off_t, len as libc::off_t) };
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}

fn process_namespace() -> u64 {
    use std::sync::OnceLock;
    static NAMESPACE: OnceLock<u64> = OnceLock::new();
    *NAMESPACE.get_or_init(|| std::fs::metadata("/proc/self/ns/pid").map_or(0, |meta| meta.ino()))
}

const _: () = assert!(cfg!(loom) || REGIONS_AT.is_multiple_of(4096) && TABLES_LEN.is_multiple_of(4096));
const _: () = assert!(ECHOES_AT + ECHOES * 24 <= ACCESSES_AT);
