//! The queue pair over a stream.
//!
//! # How to drive a [`StreamQp`]
//! 1. Negotiate ([`super::negotiation`]), then call [`StreamQp::start`] with the terms.
//! 2. **In:** [`StreamQp::post_send`], [`StreamQp::post_recv`], [`StreamQp::receive`] for the bytes of the stream in any pieces,
//!    [`StreamQp::disconnect`], and [`StreamQp::lost`] when the stream ends.
//! 3. **Out:** after each of these, and when the stream takes bytes again, call [`StreamQp::poll_transmit`]. Then
//!    [`StreamQp::close`] returns whether the stream must be closed.
//!
//! Always read the stream, also while it takes no bytes: two ends that answer READs and do not read would block each other. A READ
//! request occupies one entry of a list that IRD bounds.
//!
//! | module | question |
//! |---|---|
//! | `egress` | the interface to the stream |
//! | `post`, `modify` | posting work; changing attributes |
//! | `transmit` | which FPDU is next |
//! | `requests`, `responses` | FPDUs of posted work; of answers to the peer |
//! | `receive` | items of the reader, and the order of messages |
//! | `in_place` | payload that the host receives straight into its region |
//! | `tagged`, `untagged`, `peer_requests` | WRITE and READ response; SEND and immediate data; READ and atomic requests |
//! | `terminate` | Terminate in both directions |
//! | `ending` | ERR, flush, and the end of the stream |
//! | `waiting` | what a queue pair waits for |

mod egress;
mod ending;
mod in_place;
mod modify;
mod peer_requests;
mod post;
mod receive;
mod requests;
mod responses;
mod tagged;
mod terminate;
mod transmit;
mod untagged;
mod waiting;

pub use egress::{StreamEgress, StreamHost};
pub use ending::{Close, Lost};
pub use in_place::InPlace;
pub use waiting::StreamWaiting;

use super::negotiation::{Confirmation, Negotiated, Role, Rtr};
use super::reader::Reader;
use super::wire::Terminate;
use crate::ids::Qpn;
use crate::qp::{Identity, Inbound, QpConfig, QpCounters, RecvQueue, SendQueue};
use crate::verbs::{Access, QpAttr, QpState, Route, Transport};
use alloc::collections::VecDeque;
use receive::SendProgress;
use requests::Awaited;
use responses::Response;
use tagged::Written;
use transmit::{Current, Turn};

/// A queue pair over a stream. Work requests, completions, statuses and memory are those of [`crate::qp::Qp`].
#[derive(Debug)]
pub struct StreamQp {
    id: Identity,
    attr: QpAttr,
    /// Always the default, because TCP routes. The shared code of [`crate::qp`] requires one in its context.
    route: Route,
    sq: SendQueue,
    rq: RecvQueue,
    counters: QpCounters,
    reader: Reader,
    terms: Option<Negotiated>,
    /// Longest ULPDU to send (MULPDU).
    mulpdu: u16,
    /// Whether the peer is ready: a responder must not send before the first FPDU of the initiator.
    may_send: bool,

    // Sending.
    /// The first request that is not completely sent.
    next: u64,
    /// Bytes of its message in FPDUs before the current one.
    sent: u32,
    /// Its WRITE is sent, its immediate data is not.
    owes_immediate: bool,
    /// It cannot be sent, because its memory may not be read. It fails when every earlier request has completed.
    unreadable: bool,
    /// Requests that wait for a response.
    awaited: VecDeque<Awaited>,
    /// Response bytes placed for the oldest of them.
    placed: u32,
    /// The next message sequence number of each queue.
    send_msn: [u32; 4],
    current: Option<Current>,
    turn: Turn,
    responses: VecDeque<Response>,
    /// The RTR message to send.
    rtr: Option<Rtr>,
    /// An empty READ as RTR was sent and not answered.
    rtr_awaited: bool,
    terminate: Option<Terminate>,

    // Receiving.
    inbound: Inbound,
    /// With a key: the RTR message that must arrive first.
    confirmation: Option<Confirmation>,
    recv_msn: [u32; 4],
    receiving: SendProgress,
    written: Written,
    close: Option<Close>,
}

/// ULPDUs are at least this long (RFC 5044, 5.1.1), which every message without payload fits.
const MIN_MULPDU: u16 = 128;

impl StreamQp {
    /// A queue pair in INIT, as iWARP devices create them. `congestion`, `port_mtu` and `reorder` of the configuration have no
    /// meaning: TCP has its own.
    pub fn new(config: &QpConfig) -> StreamQp {
        StreamQp {
            id: Identity::new(config),
            attr: QpAttr { cap: config.cap, state: QpState::Init, ..QpAttr::default() },
            route: Route::default(),
            sq: SendQueue::new(&config.cap, Transport::Rc),
            rq: RecvQueue::for_qp(&config.cap, config.shared_recv.is_some()),
            counters: QpCounters::default(),
            reader: Reader::new(false),
            terms: None,
            mulpdu: MIN_MULPDU,
            may_send: false,
            next: 0,
            sent: 0,
            owes_immediate: false,
            unreadable: false,
            awaited: VecDeque::new(),
            placed: 0,
            send_msn: [1; 4],
            current: None,
            turn: Turn::Requests,
            responses: VecDeque::new(),
            rtr: None,
            rtr_awaited: false,
            terminate: None,
            inbound: Inbound::default(),
            confirmation: None,
            recv_msn: [1; 4],
            receiving: SendProgress::default(),
            written: Written::default(),
            close: None,
        }
    }

    /// Enters RTS with the terms of the negotiation. `access` are the rights of the peer. `mulpdu` is the longest ULPDU to send: one
    /// that fits a TCP segment, or up to 65,535 bytes between two ferroce ends. Returns `false` unless the queue pair is in INIT.
    #[must_use]
    pub fn start(&mut self, terms: Negotiated, access: Access, mulpdu: u16) -> bool {
        if self.attr.state != QpState::Init {
            return false;
        }
        self.attr.state = QpState::Rts;
        self.attr.access = access;
        (self.attr.max_rd_atomic, self.attr.max_dest_rd_atomic) = (terms.ord, terms.ird);
        self.reader = Reader::new(terms.crc);
        self.may_send = terms.role == Role::Initiator;
        self.rtr = terms.rtr.filter(|_| terms.role == Role::Initiator);
        self.confirmation = terms.confirmation.filter(|_| terms.role == Role::Responder);
        self.set_mulpdu(mulpdu);
        self.terms = Some(terms);
        true
    }

    /// Changes the longest ULPDU to send, for example when TCP's segment size changes.
    pub fn set_mulpdu(&mut self, mulpdu: u16) {
        self.mulpdu = mulpdu.max(MIN_MULPDU);
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.id.qpn
    }
    /// Its state.
    pub fn state(&self) -> QpState {
        self.attr.state
    }
    /// Its attributes.
    pub fn query(&self) -> QpAttr {
        QpAttr { cur_state: self.attr.state, ..self.attr }
    }
    /// Its counters. A packet is an FPDU.
    pub fn counters(&self) -> &QpCounters {
        &self.counters
    }
    /// The terms of the connection.
    pub fn terms(&self) -> Option<&Negotiated> {
        self.terms.as_ref()
    }
    /// Whether the peer has sent its first FPDU, or this end sends the first one.
    pub fn is_ready(&self) -> bool {
        self.may_send
    }
    /// Heap bytes owned by this queue pair.
    pub fn memory_footprint(&self) -> usize {
        let lists = self.awaited.capacity() * size_of::<Awaited>()
            + self.responses.capacity() * size_of::<Response>();
        lists + self.sq.memory_footprint() + self.rq.memory_footprint()
    }
    /// Sends posted and not completed.
    pub fn sends_outstanding(&self) -> usize {
        self.sq.outstanding()
    }
    /// Sends that can be posted before the queue is full.
    pub fn send_room(&self) -> usize {
        self.sq.depth() - self.sq.outstanding()
    }
    /// Receives posted and not consumed.
    pub fn recvs_waiting(&self) -> usize {
        self.rq.len()
    }
    /// Whether the peer supports RFC 7306.
    fn is_extended(&self) -> bool {
        self.terms.is_some_and(|terms| terms.is_ferroce)
    }
    fn has_crc(&self) -> bool {
        self.terms.is_some_and(|terms| terms.crc)
    }
}
