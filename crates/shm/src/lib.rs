//! The same-host fabric: how processes of one user find each other, exchange packets and map each other's memory.
//!
//! Every NIC has a slot in the [`registry`] and one file in its directory, the *shared segment* of the NIC. The segment holds
//! what local peers need: descriptors of queue pairs, regions, multicast groups and shared receive queues, and one ring of
//! packets to each peer. A process may die at any instruction: nothing here waits for a live partner, and the next owner of the slot
//! removes the segment of a dead one.
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
//! | `address_space`, `vma` | mapping and moving pages by bare system calls; the kernel's list of mappings |
//! | `write_protect`, `held_fd` | holding back stores to pages; a descriptor that is kept open although the program does not know about it |
//! | `memfd_backing` | how registered memory moves into a memfd that a local peer can map |
//! | `mapping` | memory of a file that several processes map |
//! | `segment` | layout of the shared segment; creating one, opening that of a peer |
//! | `shared` | memory that the program shares itself |
//! | `pages` | whether a region is in a memfd, in shared memory or in memory of a GPU |
//! | `access` | how deregistration and the end of a queue pair wait for living peers that access a region |
//! | `ring`, `backlog` | packets from one process to another; packets that wait because a ring is full |
//! | `descriptors`, `gpu_allocations`, `srq_descriptors`, `groups` | the descriptor tables |
//! | `source_ports` | the UDP ports that a process sends from, so that receivers detect packets of other users |
//! | `region_mapping` | regions of a local peer that are mapped here |
//! | `local_peers`, `rx_rings` | the other NICs of this host; the rings from them |
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
