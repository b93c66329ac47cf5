//! Responder half of a reliable connection: requests in, acknowledgements out.
//!
//! The order of checks is part of the protocol, not taste (IBA 9.7.4). A packet with two faults must be answered for
//! the first, because the requester recovers differently from each: sequence number, then opcode, then resources,
//! then length, then memory.
//!
//! | file | question |
//! |---|---|
//! | `request` | a SEND or WRITE that is next in sequence |
//! | `read`, `atomic` | the requests that are answered with data |
//! | `placement` | flush and atomic write, answered without |
//! | `duplicate` | a request that was executed before |
//! | `reply` | in which order answers leave |
//! | `replay` | what is remembered of READs and atomics |

mod atomic;
mod duplicate;
mod placement;
mod read;
mod replay;
mod reply;
mod request;

use super::super::inbound::Inbound;
use super::super::io::{Fatal, Io};
use super::super::{Host, RecvQueue, RefusalReason, Target};
use crate::ids::Psn;
use crate::verbs::{EventKind, MemoryFault, QpAttr};
use crate::wire::{NakCode, Operation, Packet, Syndrome};
use replay::ReplayStore;
use reply::Replies;

const MASK_24: u32 = 0x00ff_ffff;

#[derive(Debug, Default)]
pub(crate) struct Responder {
    /// The next sequence number due.
    expected: Psn,
    /// Messages finished, modulo 2^24.
    msn: u32,
    inbound: Inbound,
    replies: Replies,
    replay: ReplayStore,
    /// A NAK for `expected` is out: the last out-of-order number seen since.
    asked_again: Option<Psn>,
}

impl Responder {
    /// Enters RTR.
    pub(crate) fn start(&mut self, attr: &QpAttr) {
        *self = Responder { expected: attr.rq_psn, ..Responder::default() };
        self.replay.resize(usize::from(attr.max_dest_rd_atomic));
    }

    /// Takes over a changed `max_dest_rd_atomic`.
    pub(crate) fn reconfigure(&mut self, attr: &QpAttr) {
        self.replay.resize(usize::from(attr.max_dest_rd_atomic));
    }

    pub(crate) fn inbound(&mut self) -> &mut Inbound {
        &mut self.inbound
    }

    /// The middle packets of a WRITE that come next: first sequence number, place, and how many.
    pub(crate) fn expected_write(&self, mtu: u32) -> Option<(Psn, Target, u32)> {
        self.inbound.expected_write(mtu).map(|(target, packets)| (self.expected, target, packets))
    }

    /// A request packet.
    pub(crate) fn handle_request<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let psn = pkt.headers.bth.psn;
        let named = pkt.headers.xrceth.map(|srq| (srq, io.host.xrc_pd(srq)));
        if let Some((_, Some(pd))) = named {
            io.pd = pd;
        }
        match psn.distance_from(self.expected) {
            0 => {}
            d if d < 0 => return self.on_duplicate(pkt, io),
            _ => {
                self.on_gap(psn, io);
                return Ok(());
            }
        }
        self.asked_again = None;
        if let Some((srq, None)) = named {
            // Before the opcode is looked at: a wrong one is an invalid request too, so the requester sees no
            // difference.
            return Err(self.refuse_request(
                RefusalReason::NoSuchSrq,
                format_args!("it names XRC shared receive queue {srq}, which is not in this QP's XRC domain"),
                io,
            ));
        }
        match pkt.headers.bth.opcode.operation {
            Operation::ReadRequest => self.on_read(pkt, io),
            Operation::CompareSwap | Operation::FetchAdd => self.on_atomic(pkt, io),
            Operation::Flush | Operation::AtomicWrite => self.on_placement(pkt, io),
            _ => self.on_request(pkt, rq, io),
        }
    }

    /// Something before this packet was lost. One NAK says so; another only when the numbers start over, which
    /// shows that the packet was sent again and lost again.
    fn on_gap<H: Host>(&mut self, psn: Psn, io: &mut Io<'_, H>) {
        io.counters.out_of_order += 1;
        let ask = self.asked_again.is_none_or(|seen| !psn.is_after(seen));
        self.asked_again = Some(psn);
        if ask {
            io.counters.naks_sent += 1;
            self.replies.nak(self.expected, self.msn, Syndrome::Nak(NakCode::PsnSequence));
        }
    }

    /// Finishes `packets` sequence numbers of a request.
    fn step(&mut self, packets: u32, ends_message: bool) {
        self.expected = self.expected.plus(packets);
        if ends_message {
            self.msn = (self.msn + 1) & MASK_24;
        }
    }

    /// Refuses the packet in hand for good.
    fn refuse<H: Host>(&mut self, code: NakCode, event: Option<EventKind>, io: &mut Io<'_, H>) -> Fatal {
        io.counters.naks_sent += 1;
        self.replies.nak(self.expected, self.msn, Syndrome::Nak(code));
        if let Some(kind) = event {
            io.host.event(kind);
        }
        Fatal
    }

    fn refuse_access<H: Host>(&mut self, what: &str, fault: MemoryFault, io: &mut Io<'_, H>) -> Fatal {
        let why = format_args!("QP {}: {what} from QP {} refused: {fault}", io.id.qpn, io.attr.dest_qpn);
        io.host.refused(RefusalReason::from(&fault), why);
        self.refuse(NakCode::RemoteAccess, Some(EventKind::QpAccessErr), io)
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
        self.refuse(NakCode::InvalidRequest, Some(EventKind::QpReqErr), io)
    }
}
