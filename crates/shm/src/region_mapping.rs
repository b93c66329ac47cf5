//! Memory of a local peer that is mapped here.
//!
//! A mapping stays mapped as long as the local peer publishes its region, so that a program that alternates between regions does not map
//! them repeatedly. Mappings of withdrawn regions are unmapped when another region is mapped, and by `clear`.

use super::descriptors::PublishedRegion;
use super::gpu_allocations::GpuAllocation;
use super::mapping::{BackingFile, FileSource, MappedBytes, Mapping, sysv_len};
use super::segment::{GPU_ALLOCATIONS, ShmSegment};
use super::shared::{keeps_its_length, sysv_namespace};
use ferroce_os::lock::Mutex;
use ferroce_proto::verbs::Access;
use std::any::Any;
use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

/// Pages of the local peer that are mapped here.
pub struct RegionMapping {
    memory: Arc<Mapping>,
    /// The address of the first page in the local peer's address space.
    start: usize,
    len: usize,
}

impl RegionMapping {
    /// The address in this process of a byte of the local peer. Valid only if that byte is mapped.
    #[inline(always)]
    pub fn address_of(&self, at: usize) -> usize {
        (self.memory.start() as usize).wrapping_add(at.wrapping_sub(self.start))
    }

    /// The address in this process of `len` bytes of the local peer, if all of them are mapped.
    #[inline(always)]
    pub fn here(&self, at: usize, len: usize) -> Option<usize> {
        let offset = at.wrapping_sub(self.start);
        let is_inside = offset <= self.len && len <= self.len - offset;
        is_inside.then(|| self.memory.start() as usize + offset)
    }

    /// The mapped part of `len` bytes of the local peer, as offsets from the first byte, and the address in this process of that part.
    pub fn part(&self, at: usize, len: usize) -> Option<(Range<usize>, usize)> {
        // The local peer chose `start`, and it may lie.
        let own_end = self.start.saturating_add(self.len);
        let (start, end) = (self.start.max(at), own_end.min(at.checked_add(len)?));
        (start < end).then(|| (start - at..end - at, self.address_of(start)))
    }
}

/// All mappings of one local peer.
#[derive(Debug, Default)]
pub(crate) struct RegionMappings {
    pages: Mutex<HashMap<Key, Kept<Mapping>>>,
    gpus: Mutex<HashMap<GpuAllocation, Kept<OpenedGpu>>>,
}

/// A GPU allocation that the GPU's driver opened here.
type OpenedGpu = dyn Any + Send + Sync;

/// Identifies mapped pages. Several regions may be parts of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Key {
    file: BackingFile,
    writable: bool,
}

#[derive(Debug)]
struct Kept<Memory: ?Sized> {
    memory: Arc<Memory>,
    /// The region for which the mapping was last requested.
    published: PublishedRegion,
}

impl RegionMappings {
    /// The mapping of a region, if it can be mapped.
    pub(crate) fn open(&self, segment: &ShmSegment, published: &PublishedRegion) -> Option<RegionMapping> {
        let file = published.descriptor.file?;
        let changes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let writable = published.descriptor.access.intersects(changes);
        // The local peer may have the same pages at several addresses.
        let key = Key { file: BackingFile { start: 0, ..file }, writable };
        let mut mappings = self.pages.lock();
        let memory = match mappings.get_mut(&key) {
            Some(kept) => {
                kept.published = *published;
                kept.memory.clone()
            }
            None => {
                let memory = Arc::new(map(segment, &file, writable)?);
                mappings.retain(|_, kept| kept.is_used() || kept.is_published(segment));
                mappings.insert(key, Kept { memory: memory.clone(), published: *published });
                memory
            }
        };
        Some(RegionMapping { memory, start: file.start as usize, len: file.len as usize })
    }

    /// The GPU allocation that contains a region, opened with `open`. It is opened once, and dropped like mappings.
    pub(crate) fn open_gpu<Opened: Any + Send + Sync>(
        &self,
        segment: &ShmSegment,
        published: &PublishedRegion,
        open: impl FnOnce(&GpuAllocation) -> Option<Opened>,
    ) -> Option<Arc<Opened>> {
        let allocation = published.gpu_allocation(segment)?;
        let mut gpus = self.gpus.lock();
        let memory = match gpus.get_mut(&allocation) {
            Some(kept) => {
                kept.published = *published;
                kept.memory.clone()
            }
            None => {
                // First closes freed allocations: the new one may have the same address.
                gpus.retain(|_, kept| kept.is_used() || kept.is_published(segment));
                // Only a hostile owner publishes more.
                if gpus.len() >= GPU_ALLOCATIONS {
                    return None;
                }
                let memory: Arc<OpenedGpu> = Arc::new(open(&allocation)?);
                gpus.insert(allocation, Kept { memory: memory.clone(), published: *published });
                memory
            }
        };
        memory.downcast().ok()
    }

    /// Unmaps unused mappings of regions that are no longer published; all unused mappings, if the local peer is dead.
    pub(crate) fn clear(&self, segment: &ShmSegment, lives: bool) {
        self.pages.lock().retain(|_, kept| kept.is_used() || lives && kept.is_published(segment));
        self.gpus.lock().retain(|_, kept| kept.is_used() || lives && kept.is_published(segment));
    }
}

impl<Memory: ?Sized> Kept<Memory> {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.memory) > 1
    }

    fn is_published(&self, segment: &ShmSegment) -> bool {
        !segment.is_closed() && self.published.is_valid(segment)
    }
}

/// Maps pages of a local peer.
pub(crate) fn map(segment: &ShmSegment, descriptor: &BackingFile, writable: bool) -> Option<Mapping> {
    match descriptor.source {
        FileSource::Fd(number) => map_file(segment, descriptor, number, writable),
        FileSource::SystemV => {
            let is_same =
                descriptor.device == sysv_namespace() && sysv_len(descriptor.inode)? as u64 >= descriptor.len;
            is_same.then(|| Mapping::attach(descriptor.inode, descriptor.len as usize, writable).ok())?
        }
    }
}

/// Maps pages of a file through the owner's descriptor. The kernel allows this if it allows this process to trace the owner.
fn map_file(segment: &ShmSegment, descriptor: &BackingFile, number: u32, writable: bool) -> Option<Mapping> {
    let process = segment.process()?;
    let path = format!("/proc/{process}/fd/{number}");
    // Opening another kind of file could block or have side effects.
    std::fs::metadata(&path).ok().filter(Metadata::is_file)?;
    let file = File::options().read(true).write(writable).open(&path).ok()?;
    let meta = file.metadata().ok()?;
    // The process ID or the descriptor may belong to another one by now. The last page of a file is always complete.
    let pages_end = meta.size().checked_next_multiple_of(meta.blksize().max(1))?;
    let is_it = meta.ino() == descriptor.inode && meta.dev() == descriptor.device;
    let is_long_enough = pages_end >= descriptor.offset.checked_add(descriptor.len)?;
    let is_mapped = is_it && is_long_enough && meta.is_file() && keeps_its_length(&file, &meta, &path);
    is_mapped.then(|| Mapping::new(&file, descriptor.offset, descriptor.len as usize, writable).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptors::find_region;
    use crate::registry::Registry;
    use crate::{RegionDescriptor, RegionDescriptors};
    use ferroce_proto::{PdId, RKey};

    /// A region of pages of its own, and its descriptor.
    fn publish(table: &RegionDescriptors, bytes: &[u8], rkey: u32) -> (usize, crate::Pages) {
        let (base, len) = (bytes.as_ptr().addr(), bytes.len());
        let pages = table.pages(base, len, len).expect("in a memfd");
        let number = table.publish(
            &RegionDescriptor {
                rkey: RKey(rkey),
                access: Access::REMOTE,
                pd: PdId(1),
                iova: 0,
                len: len as u64,
                base: base as u64,
                only_qp: None,
                file: pages.descriptor(),
            },
            None,
        );
        (number.expect("room"), pages)
    }

    #[test]
    fn a_start_near_the_end_of_the_address_space_does_not_overflow() {
        let path = std::env::temp_dir().join(format!("ferroce-part-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.set_len(1 << 12).unwrap();
        let memory = Arc::new(Mapping::new(&file, 0, 1 << 12, true).unwrap());
        let here = memory.start() as usize;
        let mapping = RegionMapping { memory, start: usize::MAX - 9, len: 1 << 12 };
        assert_eq!(mapping.part(usize::MAX - 19, 15), Some((10..15, here)));
        assert_eq!(mapping.part(4096, 64), None);
    }

    #[test]
    fn a_mapping_stays_as_long_as_its_region_is_shown() {
        let base = std::env::temp_dir().join(format!("ferroce-mappings-{}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        let registry = Arc::new(Registry::open(&base).unwrap());
        let segment = Arc::new(ShmSegment::create(&registry, &[], None).unwrap());
        let table = RegionDescriptors::new(segment.clone(), registry.clone(), true);
        let bytes = [vec![1_u8; 1 << 16], vec![2_u8; 1 << 16]];
        let [first, second] = [0, 1].map(|n| publish(&table, &bytes[n], n as u32 + 1));
        let theirs = ShmSegment::open(registry.directory(), registry.slot()).unwrap();
        let mappings = RegionMappings::default();
        let open = |rkey| {
            let mapping = mappings.open(&theirs, &find_region(&theirs, RKey(rkey)).unwrap()).expect("mapped");
            mapping.memory.start() as usize
        };
        // The first mapping has no user while the second is used.
        let segments = [open(1), open(2)];
        assert_eq!([open(1), open(2)], segments, "they were not mapped again");
        table.withdraw(first.0);
        mappings.clear(&theirs, true);
        assert_eq!(mappings.pages.lock().len(), 1, "one region is gone");
        assert_eq!(open(2), segments[1]);
        mappings.clear(&theirs, false);
        assert_eq!(mappings.pages.lock().len(), 0, "its owner is gone");
        table.withdraw(second.0);
        drop((first, second, table, segment, registry));
        std::fs::remove_dir_all(base).unwrap();
    }
}
