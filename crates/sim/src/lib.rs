//! The ferroce protocol machines under virtual time: nodes, a network with random or scripted faults, and a clock that
//! jumps to the next event. Nothing here reads a real clock, so a run depends on its seed alone.
//!
//! ```
//! use ferroce_proto::verbs::Mtu;
//! use ferroce_sim::{Pair, Rule, Wr, filter};
//!
//! let pair = Pair::rc(Mtu::B1024);
//! let lost = pair.world.rule(Rule::on(filter::is_request).first().drop());
//! pair.b.post_recv(7, 0, 100);
//! pair.a.qp.post(Wr::send(1).sge(pair.a.sge(0, 100)));
//! pair.run();
//! lost.once();
//! assert_eq!(pair.b.recv_cq.only().wr_id, 7);
//! ```
//!
//! | module | contents |
//! |---|---|
//! | [`World`] | nodes, network, clock |
//! | [`Node`], [`Mr`], [`Cq`], [`Srq`], [`QueuePair`] | the verbs objects of a simulated NIC |
//! | [`Pair`], [`PairSetup`] | two connected queue pairs, ready to use |
//! | [`Wr`] | work requests as a test writes them |
//! | [`Rule`], [`filter`], [`Faults`] | scripted and random faults |
//! | [`StreamPair`], [`StreamSetup`] | two iWARP queue pairs and the byte streams between them |
//! | [`cm`] | two communication managers and the network between them |
//! | [`journal`] | a record of every event, to print and to compare |
#![forbid(unsafe_code)]

pub mod cm;
pub mod filter;
mod frame;
mod host;
pub mod journal;
mod memory;
mod network;
mod nic;
mod node;
mod pair;
mod queue_pair;
mod queues;
mod stream;
mod work;
mod world;

pub use filter::{Hits, Rule};
pub use journal::NodeId;
pub use network::{Faults, LATENCY_NS};
pub use node::{Cq, Mr, Node, Srq, pattern};
pub use pair::{Endpoint, Pair, PairSetup, QKEY};
pub use queue_pair::{LIMITS, QpSetup, QueuePair, steps_to_rts};
pub use stream::{StreamEnd, StreamPair, StreamSetup};
pub use work::Wr;
pub use world::World;
