//! The port between a queue pair and the NIC around it.
//!
//! A queue pair never touches memory, sockets or completion queues. It asks its [`Host`]; the NIC answers with real
//! memory and real links, the simulator with vectors and virtual time.

use super::{RecvWqe, RefusalReason};
use crate::ids::{PdId, RKey, Srqn};
use crate::verbs::{Access, AtomicOp, Completion, EventKind, MemoryFault, MwBind, Payload, Route, Sge};
use crate::wire::{Headers, Names, SendNamed};
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

/// Packet `n` of a row that begins with these.
pub fn in_row<'a>(headers: &Headers, payload: TxPayload<'a>, n: u32) -> (Headers, TxPayload<'a>) {
    let mut headers = *headers;
    headers.bth.psn = headers.bth.psn.plus(n);
    let payload = match payload {
        TxPayload::Local { pd, sges, offset, len } => {
            TxPayload::Local { pd, sges, offset: offset + u64::from(n) * u64::from(len), len }
        }
        other => other,
    };
    (headers, payload)
}

/// What a queue pair may ask of the NIC around it. All memory calls check key, domain, range and rights, and do
/// either everything or nothing.
pub trait Host {
    /// Sends one packet: `headers`, then the payload padded to four bytes. `headers.bth.pad` is already right.
    fn transmit(&mut self, route: &Route, headers: &Headers, payload: TxPayload<'_>) -> Result<(), TxError>;

    /// Does a one-sided operation at once, where the peer's memory is within reach and every check of this end and of
    /// the peer's passes. False: nothing was done, and packets must do it; then the peer finds out what is wrong, if
    /// anything is. Asked for the oldest request only, when nothing before it is under way.
    fn perform(&mut self, pd: PdId, request: &OneSided<'_>) -> bool {
        let _ = (pd, request);
        false
    }

    /// The same for a WRITE of inline data or of one entry, where nothing has to be looked up. False: nothing was done, and
    /// [`Self::perform`] may still do it.
    fn write(&mut self, pd: PdId, rkey: RKey, addr: u64, data: Payload<'_>) -> bool {
        let _ = (pd, rkey, addr, data);
        false
    }

    /// Whether the peer has taken everything that this queue pair sent: then what is done at once overtakes nothing. Asked for unreliable
    /// connections, which hear no acknowledgements. False where one cannot tell.
    fn has_caught_up(&mut self) -> bool {
        false
    }

    /// Whether [`Self::perform`] could do an operation with this key now, as far as one can tell beforehand.
    fn reaches(&mut self, rkey: RKey) -> bool {
        let _ = rkey;
        false
    }

    /// Sends a message of one packet whose headers are written already: these, then the payload, padded to four bytes. False: nothing
    /// was sent, and [`Self::transmit`] takes it or says what is wrong with it.
    fn express(&mut self, route: &Route, head: &[u8], payload: TxPayload<'_>) -> bool {
        let _ = (route, head, payload);
        false
    }

    /// Sends a whole message as one record that [names](SendNamed) this end's memory, which the peer then [fetches](Self::fetch). False: nothing was
    /// sent, and packets must do it; if there is something wrong with the memory, they will tell. Asked for messages that are
    /// sent for the first time and longer than the path MTU.
    fn express_by_name(&mut self, route: &Route, head: &SendNamed, payload: TxPayload<'_>) -> bool {
        let _ = (route, head, payload);
        false
    }

    /// Copies a message that the peer named from its memory to the entries, which must allow local writes and are long enough. False: what
    /// is in them now does not count, and the peer must send the message as packets.
    fn fetch(&mut self, pd: PdId, sges: &[Sge], names: &Names) -> bool {
        let _ = (pd, sges, names);
        false
    }

    /// Whether the peer is a queue pair of the process that has this slot.
    fn is_peer(&mut self, slot: u8) -> bool {
        let _ = slot;
        false
    }

    /// How much longer than the path MTU packets to the peer may be, on a path without a wire whose other end
    /// takes them: [`LARGE_SEGMENT`] or nothing.
    fn segment(&mut self) -> Option<u32> {
        None
    }

    /// Sends a row of packets: each has the number behind the last and as many bytes of payload, those that follow in the
    /// entries. `payload` is that of the first, and is [`TxPayload::Local`]. Returns how many were taken; an error only if
    /// none was.
    fn transmit_row(
        &mut self,
        route: &Route,
        headers: &Headers,
        payload: TxPayload<'_>,
        count: u32,
    ) -> Result<u32, TxError> {
        for n in 0..count {
            let (headers, payload) = in_row(headers, payload, n);
            match self.transmit(route, &headers, payload) {
                Ok(()) => {}
                Err(error) if n == 0 => return Err(error),
                Err(_) => return Ok(n),
            }
        }
        Ok(count)
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
