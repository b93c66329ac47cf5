//! The same-host fabric: how processes of one user find each other, exchange packets and map each other's memory.
//!
//! Every NIC has a slot in the [`registry`] and one file in its directory, the *shared segment* of the NIC. The segment holds
//! what local peers need: descriptors of queue pairs, regions, multicast groups and shared receive queues, and one ring of
//! packets to each peer. A process may die at any instruction: nothing here waits for a live partner, and whoever gets the slot
//! next removes a segment that was left behind.
//!
//! # Public interface
//!
//! | item | what it does |
//! |---|---|
//! | [`registry`] | claims slots; assigns the ports of connection management |
//! | [`LocalPeers`] | the segment of this NIC; finds local peers by address and queue pair |
//! | [`LocalPeer`] | sends packets to one of them, reads its descriptors, accesses and maps its memory |
//! | [`RxRings`] | receives the packets of all of them |
//! | [`QpDescriptor`], [`RegionDescriptors`], [`SrqDescriptors`], [`GroupDescriptors`] | what this NIC publishes |
//! | [`Pages`] | pages of registered memory that local peers can map |
//!
//! # Modules, from the bottom up
//!
//! | module | question |
//! |---|---|
//! | `address_space`, `vma` | mapping and moving pages by bare system calls; what the kernel lists of them |
//! | `write_protect`, `held_fd` | how nobody writes to pages for a moment; a descriptor kept open in a foreign program |
//! | `memfd_backing` | how registered memory moves into a memfd that a local peer can map |
//! | `mapping` | memory of a file that several processes see |
//! | `segment` | layout of the shared segment; creating one, opening that of a peer |
//! | `shared` | memory that the program shares itself |
//! | `pages` | which of the two a region is |
//! | `access` | how deregistration and the end of a queue pair wait for peers that access a region, and never for a dead one |
//! | `ring`, `backlog` | packets from one process to another; packets that found no room |
//! | `descriptors`, `gpu_allocations`, `srq_descriptors`, `groups` | the descriptor tables |
//! | `source_ports` | from which UDP ports a process sends, so that a stranger's packets are told from its own |
//! | `region_mapping` | regions of a local peer that are mapped here |
//! | `local_peers`, `rx_rings` | who else is there; the rings that lead here |
//! | `hostile` | a fuzz target, not part of the library |

mod access;
mod address_space;
mod backlog;
mod descriptors;
mod gpu_allocations;
mod groups;
mod held_fd;
#[cfg(any(fuzzing, all(test, not(loom))))]
pub mod hostile;
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
mod source_ports;
mod srq_descriptors;
mod vma;
mod write_protect;

pub use access::{AccessToken, Announcement, StoppedPeer};
pub use descriptors::{
    Partner, PublishedQp, PublishedRegion, QpDescriptor, QpDomain, QpVersion, RegionDescriptor,
    RegionDescriptors,
};
pub use gpu_allocations::{GpuAllocation, GpuHandle};
pub use groups::GroupDescriptors;
pub use local_peers::{LocalPeer, LocalPeers, NOBODY_FOR_NS, Pushed};
pub use pages::Pages;
pub use region_mapping::RegionMapping;
pub use ring::{Piece, RxMeta};
pub use rx_rings::{RxRings, Taken};
pub use segment::Owner;
pub use source_ports::SourcePorts;
pub use srq_descriptors::SrqDescriptors;
