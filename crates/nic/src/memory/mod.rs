//! Registered memory: who may touch which bytes, and the few lines that really do.
//!
//! | file | question |
//! |---|---|
//! | `keys` | how a key names a region without telling anything about it |
//! | `region` | whether an access is inside a region and allowed |
//! | `table` | which region a key names; how deregistration waits for accesses |
//! | `access` | the operations of work requests on keys, built from the three above |
//! | `copy` | how bytes move between packets and regions |
//! | `landing` | bytes that the kernel may put straight into a region |

mod access;
mod copy;
mod keys;
mod landing;
mod region;
mod table;

pub(crate) use landing::Landing;
pub(crate) use region::Region;
pub(crate) use table::RegionTable;
