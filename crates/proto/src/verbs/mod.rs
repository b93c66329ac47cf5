//! The verbs types shared by all crates: work requests, completions, attributes and events.

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
