//! The same-host fabric: what two processes of one user do without a wire.
//!
//! `ferroce-shm` owns what processes share. Here the NIC uses it: packets go through rings, one-sided operations into the memory of others.
//! Packets are those of the wire, so a local peer is treated as any peer is; only one-sided operations that find every
//! check passed take the fast path: the requester's own processor performs them in the memory of the target.
//!
//! | file | question |
//! |---|---|
//! | `reach` | one-sided operations in the memory of a local peer |
//! | `rendezvous` | messages that are copied once, from the memory of the sender |
//! | `link` | the link that takes the ring where it can and UDP where it must |
//! | `everybody` | packets to the queue pair numbers that every process has |
//! | `cast` | packets to multicast groups, each to every member once |
//!
//! Nothing here needs a live partner: a process may die at any instruction.

mod cast;
mod everybody;
mod link;
mod reach;
mod rendezvous;

pub(crate) use ferroce_shm::LocalPeers;
pub(crate) use link::LocalLink;
pub(crate) use reach::{Path, Reaching};
