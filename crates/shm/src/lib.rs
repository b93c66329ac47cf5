//! Memory that the processes of one host share: what a NIC publishes of itself, and how its registered memory can be mapped.
//!
//! Every NIC keeps one file in the registry's directory, its *shared segment*. What others need to know of it lies there: which queue
//! pairs may be reached, which memory is registered and where, and the rings through which it sends packets to others.
//!
//! | file | question |
//! |---|---|
//! | `mapping` | memory of a file that several processes see |
//! | `segment` | what lies where in a segment; making one, finding another's |
//! | `descriptors` | which queue pairs and regions local peers may reach directly |
//! | `srq_descriptors` | which XRC shared receive queues they may name |
//! | `groups` | who listens to which multicast group |
//! | `access` | how deregistration waits for local peers that access a region, and never for a dead one |
//! | `memfd_backing` | how registered memory becomes memory that a local peer can map |
//! | `shared` | how a local peer maps memory that the program shares itself |
//! | `pages` | which of the two it is |
//! | `held_fd` | a file that we keep open in somebody else's process |
//! | `address_space` | mapping and moving pages, past whatever the program puts in the place of libc's calls |
//! | `vma`, `write_protect` | what the kernel says of a mapping; how nobody writes to one for a moment |
//!
//! Nothing here needs a live partner: a process may die at any instruction. A segment that is left behind is marked and removed by
//! whoever gets its slot next.

mod access;
mod address_space;
mod backlog;
mod descriptors;
mod groups;
mod held_fd;
mod local_peers;
mod mapping;
mod memfd_backing;
mod pages;
mod region_mapping;
pub mod registry;
mod ring;
mod rx_rings;
mod segment;
mod shared;
mod srq_descriptors;
mod vma;
mod write_protect;

pub use access::AccessToken;
pub use descriptors::{
    Partner, PublishedRegion, QpDescriptor, QpDomain, RegionDescriptor, RegionDescriptors,
};
pub use groups::GroupDescriptors;
pub use local_peers::{LocalPeer, LocalPeers, NOBODY_FOR_NS, Pushed};
pub use pages::Pages;
pub use region_mapping::RegionMapping;
pub use ring::{Piece, RxMeta};
pub use rx_rings::{RxRings, Taken};
pub use segment::Owner;
pub use srq_descriptors::SrqDescriptors;
