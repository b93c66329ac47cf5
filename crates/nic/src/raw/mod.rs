//! Raw packets: whole Ethernet frames through the verbs, where the process may (CAP_NET_RAW).
//!
//! | file | what lives there |
//! |---|---|
//! | `socket` | the packet socket on the port's interface |
//! | `port` | who sends and receives through it, and the thread that receives |
//! | `frame` | the headers of a frame |
//! | `flow` | rules: which frames go to which queue |
//! | `queue` | a receive queue, of a queue pair or on its own |
//! | `spread` | a table of receive queues, chosen by a hash of the headers |
//! | `qp` | queue pairs |
//!
//! Frames bypass the engine. A send is one system call; a thread that exists only while there are rules matches arriving frames and places them.
//!
//! The interface is that of the first entry of the GID table. A frame that a queue pair sends also reaches the rules of
//! this host, as if the NIC looped it back: on the loopback interface the kernel does that; elsewhere frames of this
//! process are matched as they leave, and those of other processes are seen by the socket as outgoing ones.

mod flow;
mod frame;
mod port;
mod qp;
mod queue;
mod socket;
mod spread;

pub use flow::{Flow, FlowCounts, FlowFilter, FlowKind, FlowLayer, FlowRule};
pub use spread::{HashFields, MAX_SPREAD, RxHash};

pub(crate) use flow::Destination;
pub(crate) use port::RawPort;
pub(crate) use qp::{RawInit, RawQp};
pub(crate) use queue::{FrameMemory, Phase, QueueInit, RawQueue};
pub(crate) use spread::Spread;
