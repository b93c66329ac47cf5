//! The same-host fabric: what two processes of one user do without a wire.
//!
//! Every NIC keeps one file in the registry's directory, its *place*. What others need to know of it lies there: which queue
//! pairs may be reached, which memory is registered and where, and the rings through which it sends packets to others.
//! Packets are those of the wire, so a neighbour is treated as any peer is; only one-sided operations that find every
//! check passed take the short way and are done by the requester's own processor in the memory of the target.
//!
//! | file | question |
//! |---|---|
//! | `mapping` | memory of a file that several processes see |
//! | `place` | what lies where in a place; making one, finding another's |
//! | `ring` | packets from one process to another |
//! | `backlog` | packets that found no room in a ring |
//! | `boards` | which queue pairs and regions neighbours may reach directly |
//! | `srq_board` | which XRC shared receive queues they may name |
//! | `hold` | how deregistration waits for neighbours that access a region, and never for a dead one |
//! | `adopt` | how registered memory becomes memory that a neighbour can map |
//! | `shared` | how a neighbour maps memory that the program shares itself |
//! | `pages` | which of the two it is |
//! | `descriptor` | a file that we keep open in somebody else's process |
//! | `address_space` | mapping and moving pages, past whatever the program puts in the place of libc's calls |
//! | `maps`, `standstill` | what the kernel says of a mapping; how nobody writes to one for a moment |
//! | `neighbours` | who else is there, and which addresses are this host's |
//! | `reach` | one-sided operations in the memory of a neighbour |
//! | `naming` | messages that are copied once, from the memory of the sender |
//! | `window` | memory of a neighbour that is mapped here |
//! | `link` | the link that takes the ring where it can and UDP where it must |
//! | `everybody` | packets to the queue pair numbers that every process has |
//! | `groups` | who listens to which multicast group |
//! | `cast` | packets to multicast groups, each to every member once |
//!
//! Nothing here needs a live partner: a process may die at any instruction. A ring has one writer and one reader and no
//! lock; a place that is left behind is marked and removed by whoever gets its slot next.

mod address_space;
mod adopt;
mod backlog;
mod boards;
mod cast;
mod descriptor;
mod everybody;
mod groups;
mod hold;
mod link;
mod mapping;
mod maps;
mod naming;
mod neighbours;
mod pages;
mod place;
mod reach;
mod ring;
mod shared;
mod srq_board;
mod standstill;
mod window;

pub(crate) use boards::{Partner, QpCard, QpDomain, RegionBoard, RegionCard};
pub(crate) use link::LocalLink;
pub(crate) use naming::SHORTEST_NAMED;
pub(crate) use neighbours::Fabric;
pub(crate) use pages::Pages;
pub(crate) use reach::{Path, Reaching};
pub(crate) use srq_board::SrqBoard;
