//! The vocabulary of the verbs, shared by every room above: what is posted, what completes, what is set and asked.

mod access;
mod address;
mod attr;
mod completion;
mod event;
mod fault;
mod work;

pub use access::Access;
pub use address::{AddressVector, Mtu, Route};
pub use attr::{AttrMask, MigState, QpAttr, QpCap, QpState, Transport};
pub use completion::{Completion, WcFlags, WcOpcode, WcStatus};
pub use event::{EventKind, QpEvent};
pub use fault::MemoryFault;
pub use work::{AtomicOp, FlushWhat, MwBind, Payload, RecvWr, SendFlags, SendOp, SendWr, Sge, UdTarget};
