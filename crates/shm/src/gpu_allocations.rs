//! Memory of GPUs that local peers can open by a handle of the GPU's driver, and the table in which its owner publishes it.
//!
//! Many regions may be parts of one allocation, so the table lists allocations. The descriptor of a region names its allocation. The entry does
//! not change as long as the region is published. So a reader that finds the region's version unchanged after it read the entry has a
//! consistent entry.

use super::segment::{GPU_ALLOCATION_LEN, GPU_ALLOCATIONS, ShmSegment};
use ferroce_os::sync::Ordering;

/// An allocation in the memory of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GpuAllocation {
    /// The GPU's UUID.
    pub uuid: [u64; 2],
    /// The address of the first byte in the owner's address space.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// The handle that the driver exports for other processes.
    pub handle: GpuHandle,
}

/// How a process opens memory of a GPU that belongs to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuHandle {
    /// By a handle of the driver.
    Ipc([u64; 8]),
    /// By a file descriptor of the owner. The number is reused once it is closed.
    Fd {
        /// Its number in the owner's process.
        fd: u32,
        /// A number that is unique among the exports of that process.
        serial: u64,
    },
}

const FD: u64 = 1;

const FIELDS: usize = 13;
const _: () = assert!(FIELDS * 8 <= GPU_ALLOCATION_LEN);

impl GpuAllocation {
    /// Whether it contains all of the `len` bytes at `start`.
    pub fn contains(&self, start: u64, len: u64) -> bool {
        let offset = start.checked_sub(self.start);
        offset.is_some_and(|offset| offset <= self.len && len <= self.len - offset)
    }

    fn fields(&self) -> [u64; FIELDS] {
        let (kind, handle) = match self.handle {
            GpuHandle::Ipc(handle) => (0, handle),
            GpuHandle::Fd { fd, serial } => (FD, [fd.into(), serial, 0, 0, 0, 0, 0, 0]),
        };
        let ([u0, u1], [h0, h1, h2, h3, h4, h5, h6, h7]) = (self.uuid, handle);
        [u0, u1, self.start, self.len, kind, h0, h1, h2, h3, h4, h5, h6, h7]
    }

    fn from_fields([u0, u1, start, len, kind, handle @ ..]: [u64; FIELDS]) -> GpuAllocation {
        let handle = match kind {
            FD => GpuHandle::Fd { fd: handle[0] as u32, serial: handle[1] },
            _ => GpuHandle::Ipc(handle),
        };
        GpuAllocation { uuid: [u0, u1], start, len, handle }
    }
}

/// The entry of a local peer under a number. Valid only if the region that names it is still published after the read.
pub(crate) fn read(segment: &ShmSegment, number: usize) -> GpuAllocation {
    let field = |index| segment.gpu_allocation_field(number, index).load(Ordering::Relaxed);
    GpuAllocation::from_fields(std::array::from_fn(field))
}

/// The owner's side: the used entries, each with its number of regions.
#[derive(Default)]
pub(crate) struct UsedEntries(Vec<Option<(GpuAllocation, u32)>>);

impl UsedEntries {
    /// Publishes an allocation for one more region. Returns its number; `None` if the table is full.
    pub(crate) fn add(&mut self, segment: &ShmSegment, allocation: &GpuAllocation) -> Option<usize> {
        let UsedEntries(entries) = self;
        let known = entries.iter_mut().position(|entry| match entry {
            Some((same, regions)) if same == allocation => {
                *regions += 1;
                true
            }
            _ => false,
        });
        if known.is_some() {
            return known;
        }
        let number = entries.iter().position(Option::is_none).unwrap_or(entries.len());
        if number == GPU_ALLOCATIONS {
            return None;
        }
        if number == entries.len() {
            entries.push(None);
        }
        entries[number] = Some((*allocation, 1));
        for (index, value) in allocation.fields().into_iter().enumerate() {
            segment.gpu_allocation_field(number, index).store(value, Ordering::Relaxed);
        }
        Some(number)
    }

    /// Removes one region from an allocation. The entry is free once it has no region.
    pub(crate) fn remove(&mut self, number: usize) {
        let Some(entry) = self.0.get_mut(number) else { return };
        match entry {
            Some((_, regions)) if *regions > 1 => *regions -= 1,
            _ => *entry = None,
        }
    }
}
