//! The interface between a queue pair and its NIC.
//!
//! A queue pair does not access memory, sockets or completion queues itself; it calls its [`Host`]. The NIC implements
//! it with real memory and links, the simulator with vectors and virtual time.

use super::{HistoryEvent, RecvWqe, RefusalReason, Segment, WriteHeaders};
use crate::ids::{PdId, RKey, Srqn};
use crate::listed::listed;
use crate::verbs::{Access, AtomicOp, Completion, EventKind, MemoryFault, MwBind, Route, Sge};
use crate::wire::{RendezvousSend, SourceRef};
use core::fmt;

/// Source of an outgoing payload. The host reads it, so it can choose between a copy and a reference.
#[derive(Clone, Copy, Debug)]
pub enum TxPayload<'a> {
    /// No payload.
    None,
    /// Bytes stored in the queue pair (inline data).
    Bytes(&'a [u8]),
    /// `len` bytes at `offset` of the concatenated SGEs, readable by the local QP.
    Local {
        /// Protection domain of the SGEs.
        pd: PdId,
        /// The whole scatter/gather list of the message.
        sges: &'a [Sge],
        /// Offset of this packet in the message.
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
        /// Bytes from `addr` on that the peer waits for: those of this READ, and of the READs that continue it.
        rest: u32,
        /// Whether this is the first packet of that range.
        is_first: bool,
        /// Whether the response is repeated. The peer may have the first one, and the program may have freed the memory.
        is_repeated: bool,
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
    /// Whether the payload is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why a packet was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxError {
    /// The link is full; retry later. The state of the queue pair is unchanged.
    Full,
    /// The payload's memory may not be read.
    Fault(MemoryFault),
}

/// Which of a queue pair's completion queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Side {
    /// The send CQ.
    Send,
    /// The receive CQ.
    #[default]
    Recv,
    /// The CQ of the XRC shared receive queue of the request.
    Xrc(Srqn),
}

listed! {
    /// Why a packet was dropped. Each reason has a counter.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    #[non_exhaustive]
    pub enum DropReason {
        /// The bytes are not a RoCE packet.
        Malformed => "malformed",
        /// The ICRC is wrong.
        BadIcrc => "bad_icrc",
        /// No queue pair has this number.
        NoSuchQp => "no_such_qp",
        /// The queue pair is not in a state that receives.
        WrongState => "wrong_state",
        /// The packet's transport differs from the queue pair's.
        WrongTransport => "wrong_transport",
        /// The packet's addresses differ from the connection's.
        WrongAddress => "wrong_address",
        /// The packet's UDP source port does not belong to the process of the local peer.
        WrongPort => "wrong_port",
        /// Partition key mismatch.
        BadPkey => "bad_pkey",
        /// Queue key mismatch.
        BadQkey => "bad_qkey",
        /// A PSN outside the expected range, or a response without a request.
        BadPsn => "bad_psn",
        /// A UC message lost a packet or arrived out of order.
        BrokenMessage => "broken_message",
        /// No receive was posted for a UD or UC message.
        NoReceive => "no_receive",
        /// A UD or UC message exceeds its receive, or a READ response its request.
        Unfit => "unfit",
        /// An opcode that is not valid at this point of a message.
        UnexpectedOpcode => "unexpected_opcode",
        /// A duplicate atomic or READ that is no longer in the replay list.
        StaleDuplicate => "stale_duplicate",
        /// A UC WRITE that memory protection refused.
        AccessDenied => "access_denied",
    }
    /// The name for tables.
    fn name
}

/// Payload bytes of a packet that is sent only through shared memory. Each such packet of a message uses one PSN.
pub const LARGE_SEGMENT: u32 = 32 * 1024;

/// Longest payload of a packet between two ferroce ends whose path carries datagrams of 64 KiB, as loopback does: with its headers
/// it fits one. Each such packet uses one PSN.
pub const JUMBO_SEGMENT: u32 = 60 * 1024;

/// A complete one-sided operation, which the host may execute directly if it can access the peer's memory.
#[derive(Clone, Copy, Debug)]
pub struct OneSided<'a> {
    /// The peer's shared receive queue of an XRC request; its protection domain applies.
    pub srq: Option<Srqn>,
    /// The rkey.
    pub rkey: RKey,
    /// The remote address.
    pub addr: u64,
    /// The operation.
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
        /// The local SGEs.
        sges: &'a [Sge],
        /// Length in bytes.
        len: u32,
    },
    /// An atomic on eight bytes.
    Atomic {
        /// The operation.
        op: AtomicOp,
        /// The local SGEs for the original value.
        sges: &'a [Sge],
    },
}

/// Result of an operation that a host may decline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Attempt {
    /// It was done.
    Done,
    /// Declined without any effect; the caller uses another path.
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

/// Transmission of segments, and direct access to the memory of a local peer. A host without local peers implements
/// only [`Self::send`].
pub trait Egress {
    /// Sends packets. Returns the number accepted, counted from the first; an error only if none was.
    fn send<W: WriteHeaders>(&mut self, route: &Route, segment: &Segment<'_, W>) -> Result<u32, TxError>;

    /// Executes a one-sided operation directly in the peer's memory if it is accessible and all checks of both ends
    /// pass. If declined, packets carry the operation and the peer reports any fault. Called only for the oldest
    /// request, with nothing in flight before it.
    fn try_direct(&mut self, pd: PdId, request: &OneSided<'_>) -> Attempt {
        let _ = (pd, request);
        Attempt::Declined
    }

    /// Whether [`Self::try_direct`] is expected to succeed for an operation with this rkey that needs this right.
    fn can_access(&mut self, rkey: RKey, need: Access) -> bool {
        let _ = (rkey, need);
        false
    }

    /// Whether the peer has processed every packet of this queue pair, so that a direct operation overtakes none. Used
    /// for UC, which has no ACKs.
    fn has_drained(&mut self) -> bool {
        false
    }

    /// Sends a whole message as one record that [refers](RendezvousSend) to local memory; the peer
    /// [copies](Memory::fetch) it. If declined, packets carry the message and report any memory fault. Called for the
    /// first transmission of messages longer than the path MTU.
    fn try_rendezvous(&mut self, route: &Route, head: &RendezvousSend, payload: TxPayload<'_>) -> Attempt {
        let _ = (route, head, payload);
        Attempt::Declined
    }

    /// Whether a short request may wait in the send queue while earlier packets are in flight, so that several requests
    /// leave in one batch. The host then calls [`Qp::poll_requests`](super::Qp::poll_requests) soon, whether or not an
    /// ACK arrives.
    fn coalesces(&mut self) -> bool {
        false
    }

    /// Payload bytes of packets to the peer if they may exceed the path MTU: [`LARGE_SEGMENT`].
    fn large_segment(&mut self) -> Option<u32> {
        None
    }

    /// Whether the path to the peer carries packets of [`JUMBO_SEGMENT`] payload bytes.
    fn carries_jumbo(&mut self, route: &Route) -> bool {
        let _ = route;
        false
    }
}

/// Whether a completion or an ACK may follow the arriving data. A host may defer data until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// More data of the message follows, and nothing is reported before it: neither a completion, nor the ACK of the message.
    More,
    /// A completion or the ACK of the message may follow. All data of the queue pair must be visible before.
    Last,
}

impl Placement {
    /// [`Placement::Last`] if `is_last`.
    #[inline(always)]
    pub(crate) const fn of(is_last: bool) -> Placement {
        if is_last { Placement::Last } else { Placement::More }
    }
}

/// Local memory. Every call checks key, domain, range and rights, and has either its full effect or none.
pub trait Memory {
    /// Whether the peer is a queue pair of the process in this slot.
    fn is_peer(&mut self, slot: u8) -> bool {
        let _ = slot;
        false
    }

    /// Copies a rendezvous message from the peer's memory to the SGEs, which must allow local writes and be long
    /// enough. If declined, the contents of the SGEs are undefined: the packets of the message overwrite them.
    fn fetch(&mut self, pd: PdId, sges: &[Sge], source: &SourceRef) -> Attempt {
        let _ = (pd, sges, source);
        Attempt::Declined
    }

    /// Copies a rendezvous message from the peer's memory to the target of its WRITE. Checks as [`Self::write_remote`] does. If declined, the
    /// packets of the message write the bytes, or report the fault.
    fn fetch_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, source: &SourceRef) -> Attempt {
        let _ = (pd, rkey, addr, source);
        Attempt::Declined
    }

    /// Copies `data` to the SGEs at `offset`; they must allow local writes. The caller has checked their length.
    fn scatter(
        &mut self,
        pd: PdId,
        sges: &[Sge],
        offset: u64,
        data: &[u8],
        placement: Placement,
    ) -> Result<(), MemoryFault>;

    /// Checks that the peer has the rights `need` on these bytes. A length of zero needs no key check (IBA 9.7.4.1.3).
    fn check_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        len: u64,
        need: Access,
    ) -> Result<(), MemoryFault>;

    /// Writes the peer's data. Checks again, because the region may be deregistered in the middle of a message.
    fn write_remote(
        &mut self,
        pd: PdId,
        rkey: RKey,
        addr: u64,
        data: &[u8],
        placement: Placement,
    ) -> Result<(), MemoryFault>;

    /// Executes an atomic and returns the original value.
    fn atomic(&mut self, pd: PdId, rkey: RKey, addr: u64, op: AtomicOp) -> Result<u64, MemoryFault>;

    /// Stores eight bytes atomically on behalf of the peer. The address is a multiple of 8.
    fn store_remote(&mut self, pd: PdId, rkey: RKey, addr: u64, value: [u8; 8]) -> Result<(), MemoryFault>;

    /// Makes the peer's writes to these bytes, or to the whole region, visible to all readers.
    fn flush_remote(&mut self, pd: PdId, rkey: RKey, range: Option<(u64, u64)>) -> Result<(), MemoryFault>;

    /// Invalidates an rkey, for the peer (SEND with invalidate) or a local work request.
    fn invalidate(&mut self, pd: PdId, rkey: RKey) -> Result<(), MemoryFault>;

    /// Binds a memory window for a local work request.
    fn bind_window(&mut self, pd: PdId, bind: &MwBind) -> Result<(), MemoryFault>;
}

/// Shared receives, completions, events and explanations.
pub trait Events {
    /// Protection domain of the XRC shared receive queue with this number, if this QP's XRC domain has it.
    fn xrc_pd(&mut self, srq: Srqn) -> Option<PdId>;

    /// Takes the next request of this QP's shared receive queue or of the given XRC one. Returns whether there was one.
    fn take_shared_recv(&mut self, xrc: Option<Srqn>, into: &mut RecvWqe) -> bool;

    /// Adds a completion to one of the QP's completion queues.
    fn complete(&mut self, side: Side, completion: Completion);

    /// Raises an asynchronous event of this QP.
    fn event(&mut self, kind: EventKind);

    /// Counts a dropped packet and logs the reason if logging is enabled.
    fn dropped(&mut self, reason: DropReason, why: fmt::Arguments<'_>);

    /// Counts a refused request, remote or local, and logs the reason if logging is enabled.
    fn refused(&mut self, reason: RefusalReason, why: fmt::Arguments<'_>);

    /// Logs why the next completion fails, if logging is enabled.
    fn explain(&mut self, why: fmt::Arguments<'_>);

    /// Keeps an event that happened `count` times, if the host keeps a history. Drops, refusals, completions and asynchronous events are
    /// not among them: the host receives those by other calls.
    fn record(&mut self, event: HistoryEvent, count: u32) {
        let _ = (event, count);
    }
}

/// Services of the NIC for every wire: memory and events.
pub trait HostServices: Memory + Events {}

impl<T: Memory + Events> HostServices for T {}

/// Everything a queue pair calls in its NIC.
pub trait Host: Egress + HostServices {}

impl<T: Egress + HostServices> Host for T {}
