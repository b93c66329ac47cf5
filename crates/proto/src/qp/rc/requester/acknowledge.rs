//! What an ACK or NAK means.

use super::super::super::io::{Fatal, Io};
use super::super::super::sq::SendQueue;
use super::super::super::{DropReason, Host, Reason};
use super::Requester;
use crate::ids::Psn;
use crate::verbs::WcStatus;
use crate::wire::{Bth, Headers, NakCode, Opcode, Operation, Packet, Rider, Service, Syndrome};

/// How far an acknowledgement reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Everything it covers is answered.
    Whole,
    /// A READ or atomic before it has no response yet, so that response is late or lost.
    Gap,
}

impl Requester {
    pub(super) fn on_acknowledge<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let psn = pkt.headers.bth.psn;
        let Some(aeth) = pkt.headers.aeth else { return Ok(()) };
        let nak = !matches!(aeth.syndrome, Syndrome::Ack { .. });
        if nak && psn.is_before(self.una) {
            io.host.dropped(
                DropReason::BadPsn,
                format_args!("QP {}: NAK for PSN {psn}, which is already acknowledged", io.id.qpn),
            );
            return Ok(());
        }
        if nak {
            self.peer_selects |= pkt.headers.bth.selective;
        }
        // Only from an answer to what is under way: a forger would have to guess its number.
        self.peer_reads_riders |= pkt.headers.bth.extended && !psn.is_before(self.una);
        // A NAK names the packet it refuses and so acknowledges those before it.
        let next = if nak { psn } else { psn.plus(1) };
        if self.advance(next, sq, io) == Reach::Gap {
            match aeth.syndrome {
                Syndrome::Ack { .. } => {}
                Syndrome::Nak(NakCode::PsnSequence) => {
                    self.on_sequence_nak(psn, pkt.payload, sq, io);
                }
                // It is about a request that must not fail before the older ones are done. They are asked for again, and
                // then it.
                _ => self.recover(self.una, sq, io),
            }
            return Ok(());
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => self.raise_stall(sq, io),
            Syndrome::RnrNak { timer } => self.on_rnr(timer, sq, io),
            Syndrome::Nak(NakCode::PsnSequence) => {
                self.on_sequence_nak(self.una, pkt.payload, sq, io);
                Ok(())
            }
            Syndrome::Nak(code) => Err(self.on_error_nak(code, sq, io)),
        }
    }

    /// An acknowledgement that came in a request: what it says is what an ACK packet would say.
    pub(crate) fn handle_rider<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let Some(Rider { psn, aeth }) = pkt.headers.rider else { return Ok(()) };
        let opcode = Opcode::new(Service::Rc, Operation::Acknowledge);
        let mut headers = Headers::new(Bth { opcode, psn, ..pkt.headers.bth });
        headers.aeth = Some(aeth);
        self.handle_response(&Packet { headers, payload: &[] }, sq, io)
    }

    /// The peer misses packet `psn`, and may report which of those behind it are there.
    fn on_sequence_nak<H: Host>(&mut self, psn: Psn, report: &[u8], sq: &SendQueue, io: &mut Io<'_, H>) {
        io.counters.naks_received += 1;
        if report.is_empty() { self.recover(psn, sq, io) } else { self.on_report(psn, report, sq, io) }
    }

    /// Marks everything before `next` as executed, completing requests on the way.
    #[inline(always)]
    pub(super) fn advance<H: Host>(&mut self, next: Psn, sq: &mut SendQueue, io: &mut Io<'_, H>) -> Reach {
        if next.is_after(self.reached) {
            self.reached = next;
        }
        let moved = self.settle(sq, io);
        if moved > 0 {
            self.on_progress(moved, io);
        }
        if next.is_after(self.una) { Reach::Gap } else { Reach::Whole }
    }

    /// Counts as answered whatever is, up to the oldest answer that is missing. Returns how many packets that were.
    #[inline(always)] // as `answer`
    pub(super) fn settle<H: Host>(&mut self, sq: &mut SendQueue, io: &mut Io<'_, H>) -> u32 {
        let mut moved = 0;
        while self.una.is_before(self.reached) {
            let Some(wqe) = sq.oldest() else { break };
            let packets = wqe.packets;
            let step = if !wqe.awaits_response() {
                (packets - self.acked).min(self.reached.distance_from(self.una) as u32)
            } else if self.early.take(self.una) {
                1
            } else {
                break;
            };
            if step == 0 {
                break;
            }
            moved += step;
            self.answer(step, packets, sq, io);
        }
        moved
    }

    /// Counts `packets` of the oldest request as answered and completes it if that was all.
    #[inline(always)] // nearly every answer is to one request, whose completion is made here
    pub(super) fn answer<H: Host>(&mut self, packets: u32, of: u32, sq: &mut SendQueue, io: &mut Io<'_, H>) {
        self.acked += packets;
        self.una = self.una.plus(packets);
        if self.acked == of {
            self.acked = 0;
            self.oldest += 1;
            if let Some(wqe) = sq.oldest() {
                io.complete_send(wqe);
                sq.forget_oldest();
            }
        }
    }

    fn on_error_nak<H: Host>(&mut self, code: NakCode, sq: &mut SendQueue, io: &mut Io<'_, H>) -> Fatal {
        let (status, why) = match code {
            NakCode::InvalidRequest => (WcStatus::RemInvReqErr, Reason::PeerSaysInvalid),
            NakCode::RemoteAccess => (WcStatus::RemAccessErr, Reason::PeerRefusesAccess),
            NakCode::InvalidRdRequest => (WcStatus::RemInvRdReqErr, Reason::PeerSaysInvalidRd),
            NakCode::RemoteOperational | NakCode::PsnSequence => (WcStatus::RemOpErr, Reason::PeerFailed),
        };
        io.host.explain(format_args!(
            "QP {}: QP {} at {} answered PSN {} with NAK {code:?}: {}",
            io.id.qpn,
            io.attr.dest_qpn,
            io.route.dgid,
            self.una,
            why.text()
        ));
        self.fail_oldest(status, why, sq, io)
    }
}
