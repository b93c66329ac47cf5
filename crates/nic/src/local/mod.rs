//! The same-host fabric: how two processes of one user communicate without a wire.
//!
//! `ferroce-shm` owns what processes share. This module uses it: packets go through rings, one-sided operations directly into the memory of
//! other processes. Packets are those of the wire, so a local peer is handled as any peer. Only one-sided operations that pass every check
//! take the fast path: the requester's own processor executes them in the target's memory.
//!
//! | file | question |
//! |---|---|
//! | `reach` | one-sided operations in the memory of a local peer |
//! | `gpu` | the same in the memory of a GPU |
//! | `rendezvous` | messages that are copied once, from the memory of the sender |
//! | `link` | the link that uses rings where it can and UDP where it must |
//! | `everybody` | packets to the queue pair numbers that every process has |
//! | `cast` | packets to multicast groups, delivered once to every member |
//!
//! No code here relies on a live peer: a process may die at any instruction.

mod cast;
mod everybody;
mod gpu;
mod link;
mod reach;
mod rendezvous;

pub(crate) use ferroce_shm::LocalPeers;
pub(crate) use link::LocalLink;
pub(crate) use reach::{Path, Reaching};
