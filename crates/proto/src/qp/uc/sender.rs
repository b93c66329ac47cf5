//! Sending side of an unreliable connection. A request completes when its last packet is sent.

use super::super::io::{Fatal, Io};
use super::super::local::execute;
use super::super::segment::{add_extensions, operation_of};
use super::super::sq::{SendQueue, SendWqe};
use super::super::{DropReason, Host, Reason, Side, TxError};
use super::pace::Pace;
use crate::Time;
use crate::cc::Controller;
use crate::ids::Psn;
use crate::verbs::{QpAttr, QpState, WcStatus};
use crate::wire::Packet;

#[derive(Debug)]
pub(crate) struct Sender {
    psn: Psn,
    /// Packets of the oldest request that were sent.
    sent: u32,
    /// Packets were sent that the peer may not have processed.
    maybe_in_flight: bool,
    pace: Pace,
}

impl Sender {
    pub(crate) fn new(congestion: Controller) -> Sender {
        // Packets from before a RESET may still be in flight and could also be overtaken.
        Sender { psn: Psn::default(), sent: 0, maybe_in_flight: true, pace: Pace::new(congestion) }
    }

    pub(crate) fn cc(&self) -> &Controller {
        self.pace.cc()
    }

    pub(crate) fn congestion(&mut self) -> &mut Controller {
        self.pace.congestion()
    }

    /// Enters RTS, fresh from RESET.
    pub(crate) fn start(&mut self, attr: &QpAttr) {
        self.psn = attr.sq_psn;
    }

    /// Whether no packet is in flight that a direct operation could overtake.
    #[inline]
    pub(crate) fn is_alone<H: Host>(&mut self, host: &mut H) -> bool {
        self.maybe_in_flight = self.maybe_in_flight && !host.has_drained();
        self.sent == 0 && !self.maybe_in_flight
    }

    /// Whether no message is partially sent.
    pub(crate) fn is_drained(&self) -> bool {
        self.sent == 0
    }

    pub(crate) fn halt(&mut self, _sq: &SendQueue) {
        self.sent = 0;
        self.pace.restart();
    }

    /// Handles the ACK of a marked packet.
    pub(crate) fn handle_answer<H: Host>(&mut self, pkt: &Packet<'_>, io: &mut Io<'_, H>) {
        let psn = pkt.headers.bth.psn;
        if !psn.is_before(self.psn) {
            io.host.dropped(
                DropReason::BadPsn,
                format_args!("QP {}: PSN {psn} is answered and was not sent", io.id.qpn),
            );
            return;
        }
        self.pace.on_answer(io.now, psn);
    }

    /// Time at which [`Self::handle_timeout`] is due.
    pub(crate) fn deadline(&self) -> Option<Time> {
        self.pace.deadline()
    }

    pub(crate) fn handle_timeout(&mut self) {
        self.pace.on_timeout();
    }

    pub(crate) fn poll_transmit<H: Host>(
        &mut self,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        while let Some(wqe) = sq.get(sq.head()).copied() {
            if self.sent == 0 && io.attr.state != QpState::Rts {
                break;
            }
            if let Some(done) = execute(&wqe.op, wqe.wr_id, io) {
                sq.pop();
                if let Err((status, why)) = done {
                    io.complete_failed(Side::Send, wqe.wr_id, wqe.wc_opcode(), status, why);
                    return Err(Fatal);
                }
                io.complete_send(&wqe);
                continue;
            }
            let outcome = self.send_message(&wqe, sq, io);
            match outcome {
                Ok(true) => {}
                Ok(false) | Err(TxError::Full) => break,
                Err(TxError::Fault(fault)) => {
                    io.host.explain(format_args!(
                        "QP {}: send wr_id {:#x} failed: {fault}",
                        io.id.qpn, wqe.wr_id
                    ));
                    sq.pop();
                    self.sent = 0;
                    io.complete_failed(
                        Side::Send,
                        wqe.wr_id,
                        wqe.wc_opcode(),
                        WcStatus::LocProtErr,
                        Reason::LocalMemory,
                    );
                    return Err(Fatal);
                }
            }
            sq.pop();
            self.sent = 0;
            io.complete_send(&wqe);
        }
        Ok(())
    }

    /// Returns whether the message is sent completely. The rest waits for the peer's ACK.
    fn send_message<H: Host>(
        &mut self,
        wqe: &SendWqe,
        sq: &SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<bool, TxError> {
        let mtu = io.mtu();
        let packets = wqe.packets_at(mtu);
        while self.sent < packets {
            let (first, last) = (self.sent == 0, self.sent + 1 == packets);
            let offset = u64::from(self.sent) * u64::from(mtu);
            let len = (wqe.len - offset as u32).min(mtu);
            if !self.pace.allows(len) {
                return Ok(false);
            }
            let is_marked = self.pace.wants_mark(len, last && sq.outstanding() == 1);
            let mut headers = io.headers(operation_of(&wqe.op, first, last), self.psn, len);
            headers.bth.solicited = last && wqe.solicited;
            headers.bth.selective = is_marked;
            add_extensions(&mut headers, wqe, first, last);
            io.send_unacknowledged(&headers, sq.payload(sq.head(), io.pd, offset, len))?;
            self.maybe_in_flight = true;
            self.pace.on_sent(io.now, self.psn, len, is_marked);
            self.psn = self.psn.plus(1);
            self.sent += 1;
        }
        Ok(true)
    }
}
