//! Messages of communication management (IBA 12.6): management class 7, one per MAD.
//!
//! Each message has one description of its field offsets. The parser and the writer both use it, so they cannot
//! disagree. Reserved bits are written as zero and ignored when read. A field narrower than its type keeps its low bits.
//!
//! | file | messages |
//! |---|---|
//! | `layout` | reading and writing a message by its description |
//! | `req`, `rep` | the offer and its answer; the path in them |
//! | `refusal` | REJ with its reasons, and MRA |
//! | `closing` | RTU, DREQ, DREP |
//! | `sidr` | service resolution for datagrams |
//! | `alternate` | LAP and APR: alternate paths, which RoCE does not have |
//! | `ip` | service ids of IP ports, and the IP addresses in front of the private data |

mod alternate;
mod closing;
mod ip;
mod layout;
mod message;
mod refusal;
mod rep;
mod req;
mod sidr;

pub use alternate::{Apr, Lap};
pub use closing::{Drep, Dreq, Rtu};
pub use ip::{IpHeader, PortSpace, ServiceId};
pub use message::{CmMad, CmMessage, MadTarget, offered_service};
pub use refusal::{Mra, Rej, RejectReason, RejectedMessage};
pub use rep::Rep;
pub use req::{CmPath, CmTransport, Req};
pub use sidr::{SidrRep, SidrReq, SidrStatus};

use core::fmt;

/// Communication id: identifies one end of a connection to the other. Zero is invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommId(pub u32);

impl CommId {
    /// The id of no connection.
    pub const NONE: CommId = CommId(0);

    /// The slot of the ferroce process that assigned it: the high eight bits, as in queue pair numbers.
    pub const fn slot(self) -> u8 {
        (self.0 >> 24) as u8
    }
}

impl fmt::Display for CommId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}
