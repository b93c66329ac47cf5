//! The memory of one side of a test: of the host, or of a GPU.

use super::super::gpu::Allocation;
use super::refused;
use crate::failure::Failure;
use ferroce::{Access, Error, GpuRegion, Pd, Region, RemoteRegion, Sge};
use std::ops::Range;
use std::sync::Arc;

/// Registered memory.
pub(super) enum Buffers {
    /// Memory of the host.
    Host(Region),
    /// Memory of a GPU.
    Gpu(GpuRegion, Arc<Allocation>),
}

impl Buffers {
    /// Registers zeroed memory with all remote access rights.
    pub(super) fn register(pd: &Pd, len: usize, on_gpu: bool) -> Result<Buffers, Failure> {
        if !on_gpu {
            let region = pd.region(len).remote_read().remote_write().remote_atomic().register();
            return region.map(Buffers::Host).map_err(refused);
        }
        let memory = Allocation::zeroed(len)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        // SAFETY: the region holds a reference to the allocation, which therefore outlives the registration.
        let region = unsafe { pd.register_gpu(memory.start(), len, access, memory.clone()) };
        Ok(Buffers::Gpu(region.map_err(refused)?, memory))
    }

    /// Memory of the host, which the tests of latency and of atomics use.
    pub(super) fn host(&self) -> &Region {
        match self {
            Buffers::Host(region) => region,
            Buffers::Gpu(..) => unreachable!("`Params::check` refuses --gpu for them"),
        }
    }

    pub(super) fn sge(&self, range: Range<u64>) -> Result<Sge, Error> {
        match self {
            Buffers::Host(region) => region.sge(range),
            Buffers::Gpu(region, _) => region.sge(range),
        }
    }

    pub(super) fn remote(&self) -> RemoteRegion {
        match self {
            Buffers::Host(region) => region.remote(),
            Buffers::Gpu(region, _) => region.remote(),
        }
    }

    pub(super) fn write(&self, at: u64, data: &[u8]) -> Result<(), Failure> {
        match self {
            Buffers::Host(region) => region.write(at as usize, data).map_err(refused),
            Buffers::Gpu(_, memory) => memory.write(at as usize, data),
        }
    }

    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), Failure> {
        match self {
            Buffers::Host(region) => region.read(at as usize, out).map_err(refused),
            Buffers::Gpu(_, memory) => memory.read(at as usize, out),
        }
    }
}
