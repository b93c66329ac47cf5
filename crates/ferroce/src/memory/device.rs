//! Device memory: memory of the NIC itself. The program accesses it by copy only.

use super::{RemoteRegion, resolve, sge_of};
use crate::device::Device;
use crate::error::Error;
use crate::macros::debug;
use crate::pd::Pd;
use ferroce_nic::MemoryRegion;
use ferroce_proto::verbs::{Access, Sge};
use ferroce_proto::{LKey, RKey};
use std::ops::RangeBounds;
use std::sync::Arc;

/// A block of device memory, made by [`Device::alloc_device_memory`]. Cheap to clone; it lives until the last clone and the
/// last region on it are dropped.
#[derive(Clone)]
pub struct DeviceMemory {
    nic: Arc<ferroce_nic::DeviceMemory>,
    device: Device,
}

impl Device {
    /// Allocates zeroed device memory whose first byte is aligned to `align`, a power of two up to 4096. A device has 4 MiB.
    pub fn alloc_device_memory(&self, len: usize, align: usize) -> Result<DeviceMemory, Error> {
        if !align.is_power_of_two() {
            return Err(Error::invalid("alloc_dm", "align", "is not a power of two"));
        }
        let nic = self.nic().alloc_device_memory(len, align.trailing_zeros());
        let nic = nic.map_err(Error::in_call("alloc_dm"))?;
        Ok(DeviceMemory { nic, device: self.clone() })
    }
}

impl DeviceMemory {
    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.nic.len()
    }
    /// Always `false`: device memory has at least one byte.
    pub fn is_empty(&self) -> bool {
        self.nic.is_empty()
    }

    /// Copies bytes in. `offset` and the length of `data` are multiples of 4.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<(), Error> {
        self.nic.copy_to(offset, data).map_err(Error::in_call("memcpy_to_dm"))
    }

    /// Copies bytes out. `offset` and the length of `out` are multiples of 4.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        self.nic.copy_from(offset, out).map_err(Error::in_call("memcpy_from_dm"))
    }

    /// Registers a part of it. Work requests and peers count from the first byte of that part:
    /// [`Access::ZERO_BASED`] is implied.
    pub fn register(
        &self,
        pd: &Pd,
        range: impl RangeBounds<u64>,
        access: Access,
    ) -> Result<DeviceRegion, Error> {
        if !pd.device.is(&self.device) {
            return Err(Error::invalid("reg_dm_mr", "pd", "belongs to another device"));
        }
        let (offset, len) = resolve(range, self.len() as u64)?;
        let access = access | Access::ZERO_BASED;
        let region = pd.nic.register_device_memory(&self.nic, offset, len as usize, access);
        let region = region.map_err(Error::in_call("reg_dm_mr"))?;
        Ok(DeviceRegion { region: Arc::new(region), pd: pd.clone() })
    }
}

debug!(DeviceMemory, |this| "DeviceMemory({} bytes)", this.len());

/// A memory region on device memory. Cheap to clone; it keeps the device memory alive.
#[derive(Clone)]
pub struct DeviceRegion {
    region: Arc<MemoryRegion>,
    pd: Pd,
}

impl DeviceRegion {
    /// Whether it was registered over an empty range.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }
}

region_methods!(DeviceRegion, region, pd);

debug!(DeviceRegion, |this| "DeviceRegion({} bytes, {:?}, rkey {})", this.len(), this.access(), this.rkey());
