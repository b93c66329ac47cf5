//! What an ACK or NAK means.

use super::super::super::io::{Fatal, Io};
use super::super::super::sq::SendQueue;
use super::super::super::{DropReason, Host, Reason};
use super::Requester;
use crate::ids::Psn;
use crate::verbs::WcStatus;
use crate::wire::{Bth, NakCode, Packet, PiggybackedAck, Syndrome};

/// An acknowledgement, in a packet of its own or piggybacked on a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    psn: Psn,
    syndrome: Syndrome,
    extended: bool,
    selective: bool,
    /// Which packets behind a missing one have arrived.
    report: &'a [u8],
}

impl<'a> Ack<'a> {
    /// The acknowledgement in a packet that has an AETH.
    pub(super) fn of(pkt: &Packet<'a>) -> Option<Ack<'a>> {
        let (Bth { psn, extended, selective, .. }, aeth) = (pkt.headers.bth, pkt.headers.aeth?);
        Some(Ack { psn, syndrome: aeth.syndrome, extended, selective, report: pkt.payload })
    }
}

impl From<PiggybackedAck> for Ack<'_> {
    #[inline(always)]
    fn from(PiggybackedAck { psn, aeth }: PiggybackedAck) -> Self {
        Ack { psn, syndrome: aeth.syndrome, extended: true, selective: false, report: &[] }
    }
}

/// How far an acknowledgement reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Everything it covers is answered.
    Whole,
    /// A READ or atomic before it has no response yet, so that response is late or lost.
    Gap,
}

impl Requester {
    /// Takes an acknowledgement, positive or negative.
    #[inline(always)] // one caller for each of the two ways it comes
    pub(crate) fn handle_ack<H: Host>(
        &mut self,
        ack: &Ack<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        if !self.was_sent(ack.psn, io) {
            return Ok(());
        }
        let Syndrome::Ack { .. } = ack.syndrome else { return self.on_nak(ack, sq, io) };
        self.on_extended(ack);
        match self.advance(ack.psn.plus(1), sq, io) {
            Reach::Whole if self.stall.is_some() => self.raise_stall(sq, io),
            _ => Ok(()),
        }
    }

    /// Whether a packet with this number was sent. An answer to any other is dropped.
    #[inline(always)]
    pub(super) fn was_sent<H: Host>(&self, psn: Psn, io: &mut Io<'_, H>) -> bool {
        let was_sent = psn.is_before(self.high);
        if !was_sent {
            self.drop_unasked(psn, io);
        }
        was_sent
    }

    #[cold]
    #[inline(never)]
    fn drop_unasked<H: Host>(&self, psn: Psn, io: &mut Io<'_, H>) {
        let (qpn, high) = (io.id.qpn, self.high);
        let why = format_args!("QP {qpn}: response to PSN {psn}, but only PSNs before {high} were sent");
        io.host.dropped(DropReason::BadPsn, why);
    }

    /// The peer shows that it reads what the specification does not have. Believed only of an answer to what is under way: a forger
    /// would have to guess its number.
    #[inline(always)]
    fn on_extended(&mut self, ack: &Ack<'_>) {
        self.peer_reads_piggybacked_acks |= ack.extended && !ack.psn.is_before(self.una);
    }

    #[inline(never)]
    fn on_nak<H: Host>(
        &mut self,
        ack: &Ack<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let psn = ack.psn;
        if psn.is_before(self.una) {
            io.host.dropped(
                DropReason::BadPsn,
                format_args!("QP {}: NAK for PSN {psn}, which is already acknowledged", io.id.qpn),
            );
            return Ok(());
        }
        self.peer_selects |= ack.selective;
        self.on_extended(ack);
        // A NAK names the packet it refuses and so acknowledges those before it.
        let reach = self.advance(psn, sq, io);
        match ack.syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => {
                let missing = if reach == Reach::Gap { psn } else { self.una };
                self.on_sequence_nak(missing, ack.report, sq, io);
            }
            // It is about a request that must not fail before the older ones are done. They are asked for again, and
            // then it.
            _ if reach == Reach::Gap => self.recover(self.una, sq, io),
            Syndrome::RnrNak { timer } => return self.on_rnr(timer, sq, io),
            Syndrome::Nak(code) => return Err(self.on_error_nak(code, sq, io)),
            Syndrome::Ack { .. } => {}
        }
        Ok(())
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
