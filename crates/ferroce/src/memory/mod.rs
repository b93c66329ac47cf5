//! Memory that the NIC may access.
//!
//! | type | contents |
//! |---|---|
//! | [`Region`] | memory that peers may read and write at any time, so no `&[u8]` of it exists |
//! | [`ImplicitRegion`] | the whole address space, for on-demand paging |
//! | [`DeviceMemory`], [`DeviceRegion`] | memory of the NIC itself, and a region on it |
//! | [`GpuRegion`] | memory of a GPU |
//! | [`MemoryWindow`] | a part of a region under a key of its own |
//! | [`RemoteRegion`] | the description of a region for a peer |
//! | [`Buffer`] | memory of one message, owned either by the program or by the NIC |
//! | `raw` | the unsafe code of this crate: allocation, registration, copies |

/// Methods of every region with a protection domain of its own.
macro_rules! region_methods {
    ($type:ty, $($region:ident).+, $($pd:ident).+) => {
        impl $type {
            /// Size in bytes.
            pub fn len(&self) -> usize {
                self.$($region).+.len()
            }
            /// Access rights.
            pub fn access(&self) -> Access {
                self.$($region).+.access()
            }
            /// Key for local work requests.
            pub fn lkey(&self) -> LKey {
                self.$($region).+.lkey()
            }
            /// Key for peers.
            pub fn rkey(&self) -> RKey {
                self.$($region).+.rkey()
            }
            /// Its protection domain.
            pub fn pd(&self) -> &crate::Pd {
                &self.$($pd).+
            }

            /// The scatter/gather entry for a range of its bytes.
            pub fn sge(&self, range: impl RangeBounds<u64>) -> Result<Sge, Error> {
                sge_of(&self.$($region).+, range)
            }

            /// The description of the region for a peer.
            pub fn remote(&self) -> RemoteRegion {
                RemoteRegion { addr: self.$($region).+.iova(), len: self.len() as u64, rkey: self.rkey() }
            }
        }
    };
}

mod buffer;
mod device;
#[allow(unsafe_code)]
mod raw;
mod region;
mod remote;
mod window;

pub use buffer::Buffer;
pub use device::{DeviceMemory, DeviceRegion};
pub use raw::{GpuRegion, ImplicitRegion};
pub use region::{Region, RegionBuilder};
pub use remote::{BadRemoteRegion, RemoteRegion};
pub use window::{MemoryWindow, Type1, Type2, WindowKind};

use crate::error::Error;
use ferroce_nic::MemoryRegion;
use ferroce_proto::verbs::Sge;
use std::ops::{Bound, RangeBounds};

/// The scatter/gather entry for a range of a region.
fn sge_of(region: &MemoryRegion, range: impl RangeBounds<u64>) -> Result<Sge, Error> {
    let (offset, len) = resolve(range, region.len() as u64)?;
    let too_long = ferroce_nic::Error::Limit { what: "sge length", value: len, limit: u32::MAX.into() };
    let len = u32::try_from(len).map_err(|_| Error::in_call("sge")(too_long))?;
    Ok(region.sge(offset as usize, len))
}

/// Offset and length of `range` within `len` bytes.
fn resolve(range: impl RangeBounds<u64>, len: u64) -> Result<(u64, u64), Error> {
    let start = match range.start_bound() {
        Bound::Included(n) => Some(*n),
        Bound::Excluded(n) => n.checked_add(1),
        Bound::Unbounded => Some(0),
    };
    let end = match range.end_bound() {
        Bound::Included(n) => n.checked_add(1),
        Bound::Excluded(n) => Some(*n),
        Bound::Unbounded => Some(len),
    };
    match (start, end) {
        (Some(start), Some(end)) if start <= end && end <= len => Ok((start, end - start)),
        (start, end) => {
            Err(Error::Range { start: start.unwrap_or(u64::MAX), end: end.unwrap_or(u64::MAX), len })
        }
    }
}
