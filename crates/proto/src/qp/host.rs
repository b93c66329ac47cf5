//! The port between a queue pair and the NIC around it.
//!
//! A queue pair never touches memory, sockets or completion queues. It asks its [`Host`]; the NIC answers with real
//! memory and real links, the simulator with vectors and virtual time.

use super::{RecvWqe, RefusalReason, Segment, WriteHeaders};
use crate::ids::{PdId, RKey, Srqn};
use crate::verbs::{Access, AtomicOp, Completion, EventKind, MemoryFault, MwBind, Route, Sge};
use crate::wire::{RendezvousSend, SourceRef};
use core::fmt;

/// Where the payload of an outgoing packet comes from. The host fetches it, so that it can choose between copying
/// and pointing.
#[derive(Clone, Copy, Debug)]
pub enum TxPayload<'a> {
    /// No payload.
    None,
    /// Bytes the queue pair holds itself (inline data).
    Bytes(&'a [u8]),
    /// `len` bytes from `offset` on of the concatenated entries, readable by the local QP.
    Local {
        /// Domain that the entries must belong to.
        pd: PdId,
        /// The whole scatter/gather list of the message.
        sges: &'a [Sge],
        /// Where in the message this packet starts.
        offset: u64,
        /// Payload bytes of this packet.
        len: u32,
    },
    /// Memory that the peer reads: the payload of a READ response.
    Remote {
        /// Domain of the QP.
        pd: PdId,
        /// Key the peer presented.
        rkey: RKey,
        /// First byte.
        addr: u64,
        /// Number of bytes.
        len: u32,
    },
}

impl TxPayload<'_> {
    /// Payload bytes, without padding.
    pub fn len(&self) -> usize {
        match self {
            TxPayload::None => 0,
            TxPayload::Bytes(b) => b.len(),
            TxPayload::Local { len, .. } | TxPayload::Remote { len, .. } => *len as usize,
        }
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// No room now; offer it again later. The queue pair keeps its state as if it had not tried.
    Full,
    /// The payload's memory may not be read.
    Fault(MemoryFault),
}

/// Which of a queue pair's completion queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Side {
    /// The one for sends.
    Send,
    /// The one for receives.
    #[default]
    Recv,
    /// The one of the XRC shared receive queue that the request came from.
    Xrc(Srqn),
}

/// Why a packet was dropped; each has its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum DropReason {
    /// The bytes are no RoCE packet.
    Malformed,
    /// The invariant checksum is wrong.
    BadIcrc,
    /// No queue pair has this number.
    NoSuchQp,
    /// The queue pair is not in a state that receives.
    WrongState,
    /// The packet's transport is not the queue pair's.
    WrongTransport,
    /// The packet does not come from, or go to, the connection's addresses.
    WrongAddress,
    /// Partition key mismatch.
    BadPkey,
    /// Queue key mismatch.
    BadQkey,
    /// A sequence number outside the window, or a response to nothing.
    BadPsn,
    /// An unreliable message lost a part, or came out of order.
    BrokenMessage,
    /// A datagram or unreliable message found no receive posted.
    NoReceive,
    /// A datagram does not fit its receive buffer, or an unreliable write its region.
    Unfit,
    /// An opcode that may not stand here.
    UnexpectedOpcode,
    /// A duplicate atomic or READ that is no longer remembered.
    StaleDuplicate,
    /// An unreliable WRITE that memory protection refused.
    AccessDenied,
}

impl DropReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [DropReason; 15] = [
        DropReason::Malformed,
        DropReason::BadIcrc,
        DropReason::NoSuchQp,
        DropReason::WrongState,
        DropReason::WrongTransport,
        DropReason::WrongAddress,
        DropReason::BadPkey,
        DropReason::BadQkey,
        DropReason::BadPsn,
        DropReason::BrokenMessage,
        DropReason::NoReceive,
        DropReason::Unfit,
        DropReason::UnexpectedOpcode,
        DropReason::StaleDuplicate,
        DropReason::AccessDenied,
    ];

    /// A name for tables.
    pub const fn name(self) -> &'static str {
        match self {
            DropReason::Malformed => "malformed",
            DropReason::BadIcrc => "bad_icrc",
            DropReason::NoSuchQp => "no_such_qp",
            DropReason::WrongState => "wrong_state",
            DropReason::WrongTransport => "wrong_transport",
            DropReason::WrongAddress => "wrong_address",
            DropReason::BadPkey => "bad_pkey",
            DropReason::BadQkey => "bad_qkey",
            DropReason::BadPsn => "bad_psn",
            DropReason::BrokenMessage => "broken_message",
            DropReason::NoReceive => "no_receive",
            DropReason::Unfit => "unfit",
            DropReason::UnexpectedOpcode => "unexpected_opcode",
            DropReason::StaleDuplicate => "stale_duplicate",
            DropReason::AccessDenied => "access_denied",
        }
    }
}

/// Payload of a packet that never sees a wire. A message of several such packets takes a sequence number for each.
pub const LARGE_SEGMENT: u32 = 32 * 1024;

/// A one-sided operation as a whole: what a host may do at once where the peer's memory is within its own reach.
#[derive(Clone, Copy, Debug)]
pub struct OneSided<'a> {
    /// The shared receive queue of the peer that a request of an extended reliable connection names: its domain is the one
    /// that counts.
    pub srq: Option<Srqn>,
    /// The peer's key.
    pub rkey: RKey,
    /// The peer's address.
    pub addr: u64,
    /// What to do there.
    pub kind: OneSidedKind<'a>,
}

/// The kinds of one-sided operations.
#[derive(Clone, Copy, Debug)]
pub enum OneSidedKind<'a> {
    /// WRITE.
    Write {
        /// The whole message.
        data: TxPayload<'a>,
    },
    /// READ.
    Read {
        /// Where the bytes go.
        sges: &'a [Sge],
        /// How many there are.
        len: u32,
    },
    /// An atomic on eight bytes.
    Atomic {
        /// Which.
        op: AtomicOp,
        /// Where the original value goes.
        sges: &'a [Sge],
    },
}

/// What became of something that a host may or may not be able to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Attempt {
    /// It was done.
    Done,
    /// Nothing was done; another path has to do it.
    Declined,
}

impl Attempt {
    /// [`Attempt::Done`] if `is_done`.
    #[inline(always)]
    pub const fn of(is_done: bool) -> Attempt {
        if is_done { Attempt::Done } else { Attempt::Declined }
    }

    /// Whether it was done.
    #[inline(always)]
    pub const fn is_done(self) -> bool {
        matches!(self, Attempt::Done)
    }
}

/// How segments leave a queue pair, and how it reaches the memory of a peer on the same host. A host without such a peer leaves
/// everything but [`Self::send`] as it is here.
pub trait Egress {
    /// Sends packets. Returns how many were taken, from the first on; an error only if none was.
    fn send<W: WriteHeaders>(&mut self, route: &Route, segment: &Segment<'_, W>) -> Result<u32, TxError>;

    /// Executes a one-sided operation in the memory of the peer, if that can be accessed and every check of this end and of the
    /// peer's passes. If it is declined, packets have to do it; then the peer finds out what is wrong, if anything is. Called for the oldest
    /// request only, when nothing before it is in flight.
    fn try_direct(&mut self, pd: PdId, request: &OneSided<'_>) -> Attempt {
        let _ = (pd, request);
        Attempt::Declined
    }

    /// Whether [`Self::try_direct`] could execute an operation with this key now, as far as one can tell beforehand.
    fn can_access(&mut self, rkey: RKey) -> bool {
        let _ = rkey;
        false
    }

    /// Whether the peer has taken everything that this queue pair sent: then a direct operation overtakes nothing. Asked for unreliable
    /// connections, which have no acknowledgements.
    fn has_drained(&mut self) -> bool {
        false
    }

    /// Sends a whole message as one record that [refers](RendezvousSend) to this end's memory, from which the peer [copies](Memory::fetch)
    /// it. If it is declined, packets have to carry the message; they also report what is wrong with the memory. Called for
    /// messages that are sent for the first time and longer than the path MTU.
    fn try_rendezvous(&mut self, route: &Route, head: &RendezvousSend, payload: TxPayload<'_>) -> Attempt {
        let _ = (route, head, payload);
        Attempt::Declined
    }

    /// Payload of the packets to the peer, if they may be longer than the path MTU: [`LARGE_SEGMENT`].
    fn large_segment(&mut self) -> Option<u32> {
        None
    }
}

/// Memory of the local end. All calls check key, domain, range and rights, and do either everything or nothing.
pub trait Memory {
    /// Whether the peer is a queue pair of the process that has this slot.
    fn is_peer(&mut self, slot: u8) -> bool {
        let _ = slot;
        false
    }

    /// Copies a message from the memory of the peer, as a rendezvous record refers to it, to the entries, which must allow local writes
    /// and are long enough. If it is declined, the contents of the entries do not count.
    fn fetch(&mut self, pd: PdId, sges: &[Sge], names: &SourceRef) -> Attempt {
        let _ = (pd, sges, names);
        Attempt::Declined
    }

    /// Copies `data` to the entries, starting `offset` bytes into them; they must allow local writes. The caller
    /// has checked that the entries are long enough.
    fn scatter(&mut self, pd: PdId, sges: &[Sge], offset: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Whether the peer may do `need` on those bytes. A length of zero always may (IBA 9.7.4.1.3: no key check).
    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault>;

    /// Writes the peer's data. Checks again: the region may have gone since the first packet of the message.
    fn write_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, data: &[u8]) -> Result<(), MemoryFault>;

    /// Runs an atomic and returns the original value.
    fn atomic(&mut self, pd: PdId, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryFault>;

    /// Stores eight bytes at once, on behalf of the peer. The address is a multiple of 8.
    fn store_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, value: [u8; 8]) -> Result<(), MemoryFault>;

    /// Sees to it that everything the peer wrote to these bytes, or to the whole region, can be seen by all.
    fn flush_remote(&mut self, pd: PdId, rkey: RKey, range: Option<(u64, u64)>) -> Result<(), MemoryFault>;

    /// Makes a remote key invalid, on behalf of the peer (SEND with invalidate) or of a local work request.
    fn invalidate(&mut self, pd: PdId, rkey: RKey) -> Result<(), MemoryFault>;

    /// Binds a memory window, on behalf of a local work request.
    fn bind_window(&mut self, pd: PdId, bind: &MwBind) -> Result<(), MemoryFault>;
}

/// Receives of shared queues, completions, events and explanations.
pub trait Events {
    /// Domain of the XRC shared receive queue with this number, if there is one in the XRC domain of this QP.
    fn xrc_pd(&mut self, srq: Srqn) -> Option<PdId>;

    /// Takes the next request of the shared receive queue, this QP's or the XRC one that is named; false if there is
    /// no such queue or it is empty.
    fn take_shared_recv(&mut self, xrc: Option<Srqn>, into: &mut RecvWqe) -> bool;

    /// Adds a completion to one of the QP's completion queues.
    fn complete(&mut self, side: Side, completion: Completion);

    /// Raises an asynchronous event of this QP.
    fn event(&mut self, kind: EventKind);

    /// A packet was dropped: count it, and say why if anybody listens.
    fn dropped(&mut self, reason: DropReason, why: fmt::Arguments<'_>);

    /// A request was refused, the peer's or a local bind or invalidation: count it, and say why if anybody listens.
    fn refused(&mut self, reason: RefusalReason, why: fmt::Arguments<'_>);

    /// Says why a completion is about to fail, if anybody listens.
    fn explain(&mut self, why: fmt::Arguments<'_>);
}

/// What a queue pair may ask of the NIC around it.
pub trait Host: Egress + Memory + Events {}

impl<T: Egress + Memory + Events> Host for T {}
