//! A SEND or WRITE that is next in sequence.

use super::super::super::inbound::Refusal;
use super::super::super::io::{Fatal, Io};
use super::super::super::view::View;
use super::super::super::{HistoryEvent, Host, Reason, RecvQueue, RefusalReason};
use super::Responder;
use crate::verbs::WcStatus;
use crate::wire::{NakCode, Packet, Syndrome};

impl Responder {
    #[inline(always)] // as `Inbound::accept`
    pub(super) fn on_request<V: View, H: Host>(
        &mut self,
        view: &V,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        match self.inbound.accept(view, rq, io) {
            Ok(ends_message) => {
                let last = view.psn().plus(view.packets() - 1);
                self.step(view.packets(), ends_message);
                if view.ack_req() {
                    self.replies.ack(last, self.msn);
                }
                Ok(())
            }
            Err(refusal) => self.on_refusal(refusal, &view.to_packet(), io),
        }
    }

    /// Sends an RNR NAK because no receive is posted; the requester retries after `min_rnr_timer`. Packets already in
    /// flight behind this one are out of sequence and are dropped silently.
    fn not_ready<H: Host>(&mut self, io: &mut Io<'_, H>) {
        io.counters.rnr_sent += 1;
        io.host.record(HistoryEvent::RnrSent, 1);
        (self.asked_again, self.not_ready) = (Some(self.expected), true);
        self.replies.nak(self.expected, self.msn, Syndrome::RnrNak { timer: io.attr.min_rnr_timer });
    }

    #[inline(never)]
    fn on_refusal<H: Host>(
        &mut self,
        refusal: Refusal,
        pkt: &Packet<'_>,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let (qpn, peer) = (io.id.qpn, io.attr.dest_qpn);
        Err(match refusal {
            Refusal::NoReceive => {
                self.not_ready(io);
                return Ok(());
            }
            // Treat the packets of the message as lost: the requester retransmits them.
            Refusal::NotFetched => {
                self.on_gap(pkt, false, io);
                return Ok(());
            }
            Refusal::TooLong { capacity, needed } => {
                let why = format_args!(
                    "QP {qpn}: a message of at least {needed} bytes from QP {peer} exceeds the receive of {capacity} bytes"
                );
                io.host.refused(RefusalReason::ReceiveTooSmall, why);
                self.inbound.fail_recv(WcStatus::LocLenErr, Reason::ReceiveTooSmall, io);
                self.refuse(NakCode::InvalidRequest, None, RefusalReason::ReceiveTooSmall, io)
            }
            Refusal::Local(fault) => {
                let why = format_args!(
                    "QP {qpn}: a message from QP {peer} cannot be placed into its receive: {fault}"
                );
                io.host.refused(RefusalReason::ReceiveMemory, why);
                self.inbound.fail_recv(WcStatus::LocProtErr, Reason::LocalMemory, io);
                self.refuse(NakCode::RemoteOperational, None, RefusalReason::ReceiveMemory, io)
            }
            Refusal::Invalidate(fault) => {
                let why = format_args!("QP {qpn}: QP {peer} may not invalidate: {fault}");
                io.host.refused(RefusalReason::from(&fault), why);
                self.inbound.fail_recv(WcStatus::LocProtErr, Reason::InvalidateRefused, io);
                self.refuse(NakCode::RemoteAccess, None, RefusalReason::from(&fault), io)
            }
            Refusal::Access(fault) => {
                // A WRITE with immediate consumes a receive, which completes with the error (11.6.2).
                if self.inbound.fail_recv(WcStatus::LocAccessErr, Reason::LocalMemory, io) {
                    let why = format_args!("QP {qpn}: WRITE with immediate from QP {peer}: {fault}");
                    io.host.refused(RefusalReason::from(&fault), why);
                    self.refuse(NakCode::RemoteAccess, None, RefusalReason::from(&fault), io)
                } else {
                    self.refuse_access("WRITE", fault, io)
                }
            }
            Refusal::Sequence | Refusal::Length => {
                let op = pkt.headers.bth.opcode.operation;
                let (len, mtu) = (pkt.payload.len(), io.mtu());
                self.refuse_invalid(
                    format_args!(
                        "{op:?} with {len} bytes is not valid at this point of a message, or differs from path_mtu, which is {mtu} here"
                    ),
                    io,
                )
            }
        })
    }
}
