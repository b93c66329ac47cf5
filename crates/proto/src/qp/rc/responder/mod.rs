//! Responder half of a reliable connection: requests in, acknowledgements out.
//!
//! IBA 9.7.4 defines the order of checks: PSN, opcode, resources, length, memory. A packet with two faults is answered
//! for the first one, because the requester recovers differently from each.
//!
//! | file | question |
//! |---|---|
//! | `request` | a SEND or WRITE that is next in sequence |
//! | `read`, `atomic` | requests that return data |
//! | `placement` | flush and atomic write |
//! | `duplicate` | duplicate requests |
//! | `gap`, `kept` | out-of-order requests |
//! | `reply` | the order of responses |
//! | `replay` | records of executed READs and atomics |

mod atomic;
mod duplicate;
mod gap;
mod kept;
mod placement;
mod read;
mod replay;
mod reply;
mod request;

use super::super::inbound::Inbound;
use super::super::io::{Fatal, Io};
use super::super::notification::NotificationPoint;
use super::super::view::View;
use super::super::{HistoryEvent, Host, RecvQueue, RefusalReason};
use crate::Time;
use crate::ids::{Psn, Srqn};
use crate::verbs::{EventKind, MemoryFault, QpAttr, Transport};
use crate::wire::{NakCode, Operation, Packet, Syndrome};
use kept::Kept;
pub use kept::REPORT_LEN;
use replay::ReplayStore;
use reply::Replies;

const MASK_24: u32 = 0x00ff_ffff;

#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The next expected PSN.
    expected: Psn,
    /// Completed messages modulo 2^24.
    msn: u32,
    inbound: Inbound,
    replies: Replies,
    replay: ReplayStore,
    /// A NAK for `expected` was sent; this is the last out-of-order PSN since.
    asked_again: Option<Psn>,
    /// Out-of-order packets.
    kept: Kept,
    /// No receive was posted for `expected`: the requester retransmits everything from there.
    not_ready: bool,
    /// The peer supports selective repeat.
    peer_selects: bool,
    /// The peer's first request had the hello bit. The peer uses the extensions after an answer with that bit.
    peer_extends: bool,
    /// It accepts jumbo packets of a peer that supports the extensions.
    takes_jumbo: bool,
    notification: NotificationPoint,
    /// A switch marked a request since the last ACK.
    was_marked: bool,
    /// Why the last request was refused.
    refused: Option<RefusalReason>,
}

impl Responder {
    pub(crate) fn new(notification: NotificationPoint) -> Responder {
        Responder { notification, ..Responder::default() }
    }

    /// Enters RTR from RESET.
    pub(crate) fn start(&mut self, attr: &QpAttr, takes_jumbo: bool) {
        (self.expected, self.takes_jumbo) = (attr.rq_psn, takes_jumbo);
        self.replay.resize(usize::from(attr.max_dest_rd_atomic));
    }

    /// Records that a switch marked a request: the responder sends a CNP, and the next ACK to a ferroce end has the BECN bit.
    pub(crate) fn on_marked(&mut self) {
        self.was_marked = true;
        self.replies.notify();
    }

    /// Applies a changed `max_dest_rd_atomic`.
    pub(crate) fn reconfigure(&mut self, attr: &QpAttr) {
        self.replay.resize(usize::from(attr.max_dest_rd_atomic));
    }

    /// Whether the peer's requests may be [extended](crate::wire::Bth::extended).
    #[inline(always)]
    pub(crate) fn peer_extends(&self) -> bool {
        self.peer_extends
    }

    /// Whether jumbo packets are announced to the peer and accepted from it.
    #[inline]
    pub(crate) fn exchanges_jumbo(&self) -> bool {
        self.takes_jumbo && self.peer_extends
    }

    /// Whether a packet with this jumbo bit is a jumbo packet. Other peers may set the bit, too.
    #[inline(always)]
    fn is_jumbo(&self, bit: bool) -> bool {
        bit && self.exchanges_jumbo()
    }

    pub(crate) fn inbound(&mut self) -> &mut Inbound {
        &mut self.inbound
    }

    /// Handles a request packet.
    #[inline(always)] // as `Inbound::accept`
    pub(crate) fn handle_request<V: View, H: Host>(
        &mut self,
        view: &V,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        self.peer_selects |= view.selective();
        io.is_jumbo = self.is_jumbo(view.jumbo());
        if view.psn() != self.expected {
            return self.out_of_sequence(&view.to_packet(), V::CAN_BE_KEPT, io);
        }
        // The bit counts on the first request only. The responder always executes that request, and a foreign end may set the bit on others.
        if view.hello() && view.psn() == io.attr.rq_psn {
            self.peer_extends = io.id.transport == Transport::Rc;
        }
        self.in_sequence(view, rq, io)?;
        if self.kept.is_empty() { Ok(()) } else { self.catch_up(rq, io) }
    }

    /// Handles a duplicate or out-of-order request.
    #[inline(never)]
    fn out_of_sequence<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        can_be_kept: bool,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        if pkt.headers.bth.psn.is_before(self.expected) {
            self.select_srq_domain(pkt.headers.xrceth, io);
            return self.on_duplicate(pkt, io);
        }
        self.on_gap(pkt, can_be_kept, io);
        Ok(())
    }

    /// Whether handling a request with this PSN needs the time: the first out-of-order packet arms a timer.
    #[inline(always)]
    pub(crate) fn needs_time(&self, psn: Psn) -> bool {
        psn != self.expected && self.kept.needs_time()
    }

    /// Time at which [`Self::handle_timeout`] is due.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.kept.deadline()
    }

    /// Discards expired out-of-order packets.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        self.kept.expire(now);
    }

    /// Discards out-of-order packets: the queue pair receives no more.
    pub(crate) fn halt(&mut self) {
        self.kept.clear();
    }

    /// Heap bytes of out-of-order packets.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.kept.heap_bytes()
    }

    /// Looks up the XRC shared receive queue of a request and switches to its protection domain. Returns the queue and
    /// whether it exists.
    #[inline(always)]
    fn select_srq_domain<H: Host>(&self, srq: Option<Srqn>, io: &mut Io<'_, H>) -> Option<(Srqn, bool)> {
        let srq = srq?;
        let pd = io.host.xrc_pd(srq);
        io.pd = pd.unwrap_or(io.pd);
        Some((srq, pd.is_some()))
    }

    /// Handles a request that is next in sequence.
    #[inline(always)] // as `Inbound::accept`
    fn in_sequence<V: View, H: Host>(
        &mut self,
        view: &V,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        (self.asked_again, self.not_ready) = (None, false);
        if let Some((srq, false)) = self.select_srq_domain(view.xrceth(), io) {
            // This check precedes that of the opcode. Both faults are invalid requests, so the requester sees no difference.
            return Err(self.refuse_request(
                RefusalReason::NoSuchSrq,
                format_args!("it names XRC shared receive queue {srq}, which is not in this QP's XRC domain"),
                io,
            ));
        }
        match view.opcode().operation {
            Operation::ReadRequest => self.on_read(&view.to_packet(), io),
            Operation::CompareSwap | Operation::FetchAdd => self.on_atomic(&view.to_packet(), io),
            Operation::Flush | Operation::AtomicWrite => self.on_placement(&view.to_packet(), io),
            _ => self.on_request(view, rq, io),
        }
    }

    /// Advances by `packets` PSNs of a request.
    #[inline]
    fn step(&mut self, packets: u32, ends_message: bool) {
        if packets > 1 {
            self.kept.pass(self.expected.plus(1), packets - 1);
        }
        self.expected = self.expected.plus(packets);
        if ends_message {
            self.msn = (self.msn + 1) & MASK_24;
        }
    }

    /// Refuses the current packet and ends the connection.
    fn refuse<H: Host>(
        &mut self,
        code: NakCode,
        event: Option<EventKind>,
        reason: RefusalReason,
        io: &mut Io<'_, H>,
    ) -> Fatal {
        io.counters.naks_sent += 1;
        io.host.record(HistoryEvent::NakSent(code), 1);
        self.refused = Some(reason);
        self.replies.nak(self.expected, self.msn, Syndrome::Nak(code));
        if let Some(kind) = event {
            io.host.event(kind);
        }
        Fatal
    }

    fn refuse_access<H: Host>(&mut self, what: &str, fault: MemoryFault, io: &mut Io<'_, H>) -> Fatal {
        let why = format_args!("QP {}: {what} from QP {} refused: {fault}", io.id.qpn, io.attr.dest_qpn);
        let reason = RefusalReason::from(&fault);
        io.host.refused(reason, why);
        self.refuse(NakCode::RemoteAccess, Some(EventKind::QpAccessErr), reason, io)
    }

    /// Refuses a READ, atomic, flush or atomic write beyond the number that the queue pair allows.
    #[inline]
    fn check_depth<H: Host>(&mut self, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        let depth = self.replay.depth();
        if self.replies.reading() < depth {
            return Ok(());
        }
        let why = format_args!("more READs and atomics outstanding than max_dest_rd_atomic {depth}");
        Err(self.refuse_invalid(why, io))
    }

    fn refuse_invalid<H: Host>(&mut self, why: core::fmt::Arguments<'_>, io: &mut Io<'_, H>) -> Fatal {
        self.refuse_request(RefusalReason::InvalidRequest, why, io)
    }

    fn refuse_request<H: Host>(
        &mut self,
        reason: RefusalReason,
        why: core::fmt::Arguments<'_>,
        io: &mut Io<'_, H>,
    ) -> Fatal {
        let (qpn, peer) = (io.id.qpn, io.attr.dest_qpn);
        io.host.refused(reason, format_args!("QP {qpn}: request from QP {peer} is invalid: {why}"));
        self.refuse(NakCode::InvalidRequest, Some(EventKind::QpReqErr), reason, io)
    }
}
