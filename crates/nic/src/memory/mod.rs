//! Registered memory: who may access which bytes, and the few lines that copy them.
//!
//! | file | question |
//! |---|---|
//! | `keys` | how a key leads to a region and reveals nothing about other keys |
//! | `region` | whether an access is inside a region and allowed |
//! | `table` | the region of a key; how deregistration waits for accesses |
//! | `windows` | memory windows: how part of a region gets its own key, and how the key becomes invalid |
//! | `access` | the operations of work requests on keys, built from the three above |
//! | `on_demand` | memory that the program may unmap at any time (on-demand paging) |
//! | `gpu` | memory of a GPU, which the CUDA driver copies |
//! | `external` | how packets point to payload in regions instead of copying it |
//! | `direct` | operations in the memory of a local peer |
//! | `across` | copies between processes, by the kernel |
//! | `guard` | how the packets of a batch are placed under one region lock |
//! | `cached_region` | how a queue pair uses the same region repeatedly without its lock |
//! | `freed` | memory that the program unmaps while it is registered |
//! | `in_flight` | buffers that the program changes before their requests complete |
//! | `protected`, `watched_sge` | pages of such buffers, protected against writing; one entry of such a request |
//! | `copy` | the only place where bytes move |

mod access;
mod across;
mod cached_region;
pub(crate) mod copy;
mod direct;
mod external;
mod freed;
mod gpu;
mod guard;
mod in_flight;
mod keys;
#[cfg(all(test, loom))]
mod models;
mod on_demand;
mod protected;
mod region;
mod rendezvous;
mod table;
mod watched_sge;
mod windows;

pub(crate) use access::RemoteRead;
pub(crate) use across::is_readable;
pub(crate) use cached_region::{CacheOwner, CachedRegion};
pub(crate) use direct::{Far, PartlyMapped};
pub(crate) use external::{External, Pins};
pub(crate) use freed::Unpinned;
pub use gpu::is_driver_loaded;
pub(crate) use gpu::{COPIES, MessagePart, OpenedAllocation, ReadAhead, answers_of, gpu_of, settle_stopped};
pub(crate) use guard::RegionGuard;
pub(crate) use in_flight::{InFlight, PostedTo, WatchedNic};
pub use on_demand::Prefetch;
pub(crate) use on_demand::check_mapped;
pub use region::WindowType;
pub(crate) use region::{Backing, MIN_RENDEZVOUS, Peer, Region, Span};
pub(crate) use rendezvous::FetchTarget;
pub(crate) use table::RegionTable;
pub use windows::MAX_MW;
