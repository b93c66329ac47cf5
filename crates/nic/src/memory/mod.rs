//! Registered memory: who may touch which bytes, and the few lines that really do.
//!
//! | file | question |
//! |---|---|
//! | `keys` | how a key names a region without telling anything about it |
//! | `region` | whether an access is inside a region and allowed |
//! | `table` | which region a key names; how deregistration waits for accesses |
//! | `access` | the operations of work requests on keys, built from the three above |
//! | `external` | how packets point into regions instead of copying |
//! | `copy` | the only place where bytes move |

mod access;
mod copy;
mod external;
mod keys;
mod region;
mod table;

pub(crate) use external::{External, Pins};
pub(crate) use region::Region;
pub(crate) use table::RegionTable;
