//! Handles READ responses and atomic acknowledgements.
//!
//! Either also acknowledges every request before it (implicit acknowledgement, IBA 9.7.3.1).

use super::super::super::io::{Fatal, Io};
use super::super::super::sq::{SendQueue, SendWqe};
use super::super::super::{DropReason, Host, Placement, Reason};
use super::Requester;
use super::acknowledge::Reach;
use super::early::Early;
use super::holes::SqPosition;
use crate::verbs::{MemoryFault, SendOp, WcStatus};
use crate::wire::{NakCode, Packet, Syndrome};

/// The position of a response.
struct Fit {
    position: SqPosition,
    /// It is the next response in order.
    due: bool,
}

impl Requester {
    pub(super) fn on_read_response<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let Some(fit) = self.fit(pkt, sq, io) else { return Ok(()) };
        let wqe = &fit.position.wqe;
        let segment = u64::from(wqe.segment);
        let offset = u64::from(fit.position.index) * segment;
        let expected = (u64::from(wqe.len).saturating_sub(offset)).min(segment) as usize;
        // The PSN alone determines the offset in the READ. First, middle and last depend on restarts of the READ, so a
        // late response of an earlier attempt still fits.
        if matches!(wqe.op, SendOp::Atomic { .. }) || !wqe.awaits_response() || pkt.payload.len() != expected
        {
            return self.misfit(&fit, pkt, expected, sq, io);
        }
        self.take_in(&fit, pkt, offset, pkt.payload, sq, io)
    }

    pub(super) fn on_atomic_acknowledge<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let Some(fit) = self.fit(pkt, sq, io) else { return Ok(()) };
        let (SendOp::Atomic { .. }, Some(original)) = (fit.position.wqe.op, pkt.headers.atomic_ack) else {
            return self.misfit(&fit, pkt, 8, sq, io);
        };
        self.take_in(&fit, pkt, 0, &original.to_ne_bytes(), sq, io)
    }

    /// Applies the implicit ACK of the response. Returns its position if its data is still missing.
    fn fit<H: Host>(&mut self, pkt: &Packet<'_>, sq: &mut SendQueue, io: &mut Io<'_, H>) -> Option<Fit> {
        let psn = pkt.headers.bth.psn;
        if psn.is_before(self.una) || self.early.holds(psn) {
            io.counters.duplicates += 1;
            self.on_reordering();
            return None;
        }
        self.learn_peer(pkt.headers.bth.hello, pkt.headers.bth.jumbo);
        if let Some(Syndrome::Nak(NakCode::PsnSequence)) = pkt.headers.aeth.map(|a| a.syndrome) {
            io.host.dropped(
                DropReason::UnexpectedOpcode,
                format_args!("QP {}: a response to PSN {psn} carries a NAK", io.id.qpn),
            );
            return None;
        }
        if psn.is_before(self.reached) {
            self.on_overtaken(psn, io.now);
        }
        let due = self.advance(psn, sq, io) == Reach::Whole;
        let position = self.position_of(psn, sq)?;
        (due || Early::can_hold(self.una, psn)).then_some(Fit { position, due })
    }

    /// Places the data of a response and counts it.
    fn take_in<H: Host>(
        &mut self,
        fit: &Fit,
        pkt: &Packet<'_>,
        offset: u64,
        data: &[u8],
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        // If the last response arrived early, any response that fills a gap before it may complete the request.
        let is_inner = fit.due
            && self.early.is_empty()
            && offset + (data.len() as u64) < u64::from(fit.position.wqe.len);
        let placement = Placement::of(!is_inner);
        if !data.is_empty()
            && let Err(fault) = io.host.scatter(io.pd, sq.sges(fit.position.number), offset, data, placement)
        {
            // If out-of-order data cannot be placed, the requester requests it again. The fault ends the request when the
            // response is in order.
            return if fit.due { Err(self.unplaceable(&fit.position.wqe, fault, sq, io)) } else { Ok(()) };
        }
        let next = pkt.headers.bth.psn.plus(1);
        if next.is_after(self.reached) {
            self.reached = next;
        }
        if !fit.due {
            self.early.insert(pkt.headers.bth.psn);
            self.clock.on_early(pkt.headers.bth.psn, io.now);
            return Ok(());
        }
        self.answer(1, fit.position.wqe.packets, fit.position.wqe.segment, sq, io);
        self.settle(sq, io);
        self.on_progress(io);
        self.raise_stall(sq, io)
    }

    /// Fails the request that a malformed response belongs to. Out of order, the response is only dropped, because
    /// earlier requests must complete first.
    fn misfit<H: Host>(
        &mut self,
        fit: &Fit,
        pkt: &Packet<'_>,
        expected: usize,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        if fit.due {
            return Err(self.bad_response(pkt, expected, sq, io));
        }
        io.host.dropped(
            DropReason::Unfit,
            format_args!(
                "QP {}: {:?} with {} bytes for PSN {}, where {expected} bytes are due, and not yet",
                io.id.qpn,
                pkt.headers.bth.opcode.operation,
                pkt.payload.len(),
                pkt.headers.bth.psn
            ),
        );
        Ok(())
    }

    fn bad_response<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        expected: usize,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Fatal {
        io.host.explain(format_args!(
            "QP {}: {:?} with {} bytes answers PSN {}, where {expected} bytes were due",
            io.id.qpn,
            pkt.headers.bth.opcode.operation,
            pkt.payload.len(),
            pkt.headers.bth.psn
        ));
        self.fail_oldest(WcStatus::BadRespErr, Reason::BadResponse, sq, io)
    }

    fn unplaceable<H: Host>(
        &mut self,
        wqe: &SendWqe,
        fault: MemoryFault,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Fatal {
        io.host.explain(format_args!(
            "QP {}: the answer to wr_id {:#x} cannot be placed: {fault}",
            io.id.qpn, wqe.wr_id
        ));
        self.fail_oldest(WcStatus::LocProtErr, Reason::LocalMemory, sq, io)
    }
}
