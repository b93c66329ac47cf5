//! Work requests.

use super::{Access, Route};
use crate::ids::{LKey, Qkey, Qpn, RKey, Srqn};
use bitflags::bitflags;

/// Scatter/gather entry: a piece of registered local memory. Laid out as in the verbs ABI, so that a C program's
/// list is used without a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Sge {
    /// First byte, as a virtual address (or offset in a zero-based region).
    pub addr: u64,
    /// Number of bytes.
    pub len: u32,
    /// Key of the region.
    pub lkey: LKey,
}

bitflags! {
    /// Modifiers of a send work request; the bit values are those of the verbs ABI.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SendFlags: u32 {
        /// Wait for earlier READs and atomics first.
        const FENCE = 1;
        /// Make a completion even if the QP does not signal all.
        const SIGNALED = 1 << 1;
        /// Raise an event at the receiver if its CQ is armed for solicited completions.
        const SOLICITED = 1 << 2;
        /// The data was copied at posting time.
        const INLINE = 1 << 3;
    }
}

/// An atomic operation on eight bytes of the peer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicOp {
    /// Store `swap` if the value equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add to the value.
    FetchAdd {
        /// The addend.
        add: u64,
    },
}

impl AtomicOp {
    /// The new value of memory that contains `old`.
    pub const fn apply(self, old: u64) -> u64 {
        match self {
            AtomicOp::CompareSwap { compare, swap } if old == compare => swap,
            AtomicOp::CompareSwap { .. } => old,
            AtomicOp::FetchAdd { add } => old.wrapping_add(add),
        }
    }
}

/// Placement type and range of a flush.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FlushWhat {
    /// Earlier writes become globally visible.
    pub global: bool,
    /// Earlier writes become persistent. No region of ferroce grants that.
    pub persistent: bool,
    /// All bytes of the region, not only those named.
    pub whole_region: bool,
}

/// Which bytes of a memory region a window opens to the peer, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MwBind {
    /// Number of the window within its device.
    pub window: u32,
    /// Its low eight bits become those of the window's key. Its other 24 bits are ignored: those of the window's key stay.
    pub rkey: RKey,
    /// The region.
    pub lkey: LKey,
    /// Address of the first byte, in the addresses of the region.
    pub addr: u64,
    /// Number of bytes; none leaves a window of type 1 unbound, and is refused for type 2.
    pub len: u64,
    /// Rights of the peer there, and whether addresses count from zero.
    pub access: Access,
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendOp {
    /// Two-sided message.
    Send,
    /// Message with four bytes of immediate data.
    SendImm(u32),
    /// Message that also invalidates a key of the receiver.
    SendInv(RKey),
    /// Write into the peer's memory.
    Write {
        /// Where.
        addr: u64,
        /// With which key.
        rkey: RKey,
    },
    /// Write, then consume a receive of the peer with immediate data.
    WriteImm {
        /// Where.
        addr: u64,
        /// With which key.
        rkey: RKey,
        /// Immediate data.
        imm: u32,
    },
    /// Read from the peer's memory.
    Read {
        /// Where.
        addr: u64,
        /// With which key.
        rkey: RKey,
    },
    /// Atomic on the peer's memory; the original value is scattered to the entries.
    Atomic {
        /// Where, a multiple of 8.
        addr: u64,
        /// With which key.
        rkey: RKey,
        /// What.
        op: AtomicOp,
    },
    /// Store eight bytes atomically into the peer's memory. They are part of the request, so it has no other data.
    AtomicWrite {
        /// Where, a multiple of 8.
        addr: u64,
        /// With which key.
        rkey: RKey,
        /// The bytes, in the order of memory.
        value: [u8; 8],
    },
    /// Complete once earlier writes have the placement that `what` requests.
    Flush {
        /// First byte.
        addr: u64,
        /// With which key.
        rkey: RKey,
        /// Number of bytes.
        len: u32,
        /// Placement type and range.
        what: FlushWhat,
    },
    /// Make a local key invalid.
    LocalInv(RKey),
    /// Bind a memory window.
    BindMw(MwBind),
}

/// Where the bytes of a send come from.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, read when the packet is made (or written, for READ and atomics).
    Sges(&'a [Sge]),
    /// Bytes that are copied when the request is posted.
    Inline(&'a [u8]),
}

/// Destination of a datagram: an address handle, resolved, with the receiver's QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UdTarget {
    /// Outer addresses.
    pub route: Route,
    /// The receiver's QP, or [`Qpn::MULTICAST`].
    pub qpn: Qpn,
    /// The receiver's key.
    pub qkey: Qkey,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// The application's work request id.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// Modifiers.
    pub flags: SendFlags,
    /// Data.
    pub payload: Payload<'a>,
    /// Destination, for datagram QPs.
    pub ud: Option<UdTarget>,
    /// The peer's shared receive queue, for extended reliable connections.
    pub srq: Option<Srqn>,
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// The application's work request id.
    pub wr_id: u64,
    /// Where to put the message.
    pub sges: &'a [Sge],
}
