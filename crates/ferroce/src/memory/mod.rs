//! Memory that the NIC may touch, in two kinds.
//!
//! | file | what lives there |
//! |---|---|
//! | [`Region`] | memory that peers may read and write at any time, so Rust never sees a `&[u8]` of it |
//! | [`RemoteRegion`] | what a peer needs to know of a region |
//! | [`Buffer`] | memory of one message, which belongs either to the program or to the NIC, never to both |
//! | `raw` | all that is unsafe in this crate: allocation, registration, copies |

mod buffer;
#[allow(unsafe_code)]
mod raw;
mod region;
mod remote;

pub use buffer::Buffer;
pub use region::{Region, RegionBuilder};
pub use remote::{BadRemoteRegion, RemoteRegion};

use crate::error::Error;
use std::ops::{Bound, RangeBounds};

/// The bytes that `range` names among `len`, as offset and length.
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
