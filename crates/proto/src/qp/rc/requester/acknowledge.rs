//! Handles ACKs and NAKs.

use super::super::super::io::{Fatal, Io};
use super::super::super::sq::SendQueue;
use super::super::super::{DropReason, HistoryEvent, Host, Reason, RefusalReason};
use super::Requester;
use crate::ids::Psn;
use crate::verbs::WcStatus;
use crate::wire::{AckOnly, Bth, NakCode, Packet, PiggybackedAck, Syndrome};

/// An acknowledgement, in a packet of its own or piggybacked on a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack<'a> {
    psn: Psn,
    syndrome: Syndrome,
    hello: bool,
    jumbo: bool,
    selective: bool,
    /// A switch marked packets that it covers.
    is_marked: bool,
    /// Of a sequence NAK: bitmap of the packets that the peer holds beyond a missing one. Of another NAK: the reason.
    report: &'a [u8],
}

impl<'a> Ack<'a> {
    /// The acknowledgement in a packet that has an AETH.
    pub(super) fn of(pkt: &Packet<'a>) -> Option<Ack<'a>> {
        let (Bth { psn, jumbo, hello, selective, becn, .. }, aeth) = (pkt.headers.bth, pkt.headers.aeth?);
        Some(Ack {
            psn,
            syndrome: aeth.syndrome,
            hello,
            jumbo,
            selective,
            is_marked: becn,
            report: pkt.payload,
        })
    }
}

impl From<PiggybackedAck> for Ack<'_> {
    #[inline(always)]
    fn from(PiggybackedAck { psn, aeth, jumbo }: PiggybackedAck) -> Self {
        let (syndrome, hello) = (aeth.syndrome, true);
        Ack { psn, syndrome, hello, jumbo, selective: false, is_marked: false, report: &[] }
    }
}

impl From<&AckOnly> for Ack<'_> {
    #[inline(always)]
    fn from(&AckOnly { psn, jumbo, hello, selective, becn, credit, .. }: &AckOnly) -> Self {
        let syndrome = Syndrome::Ack { credit };
        Ack { psn, syndrome, hello, jumbo, selective, is_marked: becn, report: &[] }
    }
}

/// Whether an ACK covers the whole range up to its PSN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// Every request that it covers is answered.
    Whole,
    /// A READ or atomic before it has no response yet. That response is late or lost.
    Gap,
}

impl Requester {
    /// Handles an ACK or NAK.
    #[inline(always)] // one caller per packet kind
    pub(crate) fn handle_ack<H: Host>(
        &mut self,
        ack: &Ack<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        if !self.was_sent(ack.psn, io) {
            return Ok(());
        }
        self.ack_is_marked = ack.is_marked;
        let Syndrome::Ack { .. } = ack.syndrome else { return self.on_nak(ack, sq, io) };
        self.on_hello(ack);
        match self.advance(ack.psn.plus(1), sq, io) {
            Reach::Whole if self.stall.is_some() => self.raise_stall(sq, io),
            _ => Ok(()),
        }
    }

    /// Whether a packet with this PSN was sent. Responses to any other PSN are dropped.
    #[inline(always)]
    pub(super) fn was_sent<H: Host>(&self, psn: Psn, io: &mut Io<'_, H>) -> bool {
        let was_sent = psn.is_before(self.high);
        if !was_sent {
            self.drop_unsent(psn, io);
        }
        was_sent
    }

    #[cold]
    #[inline(never)]
    fn drop_unsent<H: Host>(&self, psn: Psn, io: &mut Io<'_, H>) {
        let (qpn, high, first) = (io.id.qpn, self.high, io.attr.sq_psn);
        let why = if self.una == first {
            format_args!(
                "QP {qpn}: response to PSN {psn}, but only PSNs before {high} were sent, from sq_psn {first} on: rq_psn of the peer must be the same"
            )
        } else {
            format_args!("QP {qpn}: response to PSN {psn}, but only PSNs before {high} were sent")
        };
        io.host.dropped(DropReason::BadPsn, why);
    }

    /// Records that the peer supports the extensions, and whether it accepts jumbo packets. Only an ACK of an outstanding packet counts: a forger would have
    /// to guess its PSN.
    #[inline(always)]
    fn on_hello(&mut self, ack: &Ack<'_>) {
        self.learn_peer(ack.hello && !ack.psn.is_before(self.una), ack.jumbo);
    }

    /// Records what the reserved bits of an answer announce.
    #[inline(always)]
    pub(super) fn learn_peer(&mut self, hello: bool, jumbo: bool) {
        self.peer_extends |= hello;
        self.peer_takes_jumbo |= hello && jumbo;
    }

    /// The peer misses a packet before the oldest in flight: an old NAK, or the ends began with different PSNs.
    fn drop_old_nak<H: Host>(&self, psn: Psn, io: &mut Io<'_, H>) {
        let (qpn, first) = (io.id.qpn, io.attr.sq_psn);
        let why = if self.una == first {
            format_args!(
                "QP {qpn}: the peer expects PSN {psn}, but this QP began with sq_psn {first}: its rq_psn must be the same"
            )
        } else {
            format_args!("QP {qpn}: NAK for PSN {psn}, which is already acknowledged")
        };
        io.host.dropped(DropReason::BadPsn, why);
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
            self.drop_old_nak(psn, io);
            return Ok(());
        }
        self.peer_selects |= ack.selective;
        self.on_hello(ack);
        // A NAK also acknowledges every packet before its PSN.
        let reach = self.advance(psn, sq, io);
        match ack.syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => {
                let missing = if reach == Reach::Gap { psn } else { self.una };
                self.on_sequence_nak(missing, ack.report, sq, io);
            }
            // The refused request must not fail before the older ones complete. Retransmit those first, then it.
            _ if reach == Reach::Gap => self.recover(self.una, sq, io),
            Syndrome::RnrNak { timer } => return self.on_rnr(timer, sq, io),
            Syndrome::Nak(code) => return Err(self.on_error_nak(code, ack, sq, io)),
            Syndrome::Ack { .. } => {}
        }
        Ok(())
    }

    /// The peer misses packet `psn`. `report` may list the later packets that it holds.
    fn on_sequence_nak<H: Host>(&mut self, psn: Psn, report: &[u8], sq: &SendQueue, io: &mut Io<'_, H>) {
        io.counters.naks_received += 1;
        io.host.record(HistoryEvent::NakReceived, 1);
        if report.is_empty() { self.recover(psn, sq, io) } else { self.on_report(psn, report, sq, io) }
    }

    /// Marks everything before `next` as executed and completes requests.
    #[inline(always)]
    pub(super) fn advance<H: Host>(&mut self, next: Psn, sq: &mut SendQueue, io: &mut Io<'_, H>) -> Reach {
        if next.is_after(self.reached) {
            self.reached = next;
        }
        let moved = self.settle(sq, io);
        if moved > 0 {
            self.on_progress(io);
        }
        if next.is_after(self.una) { Reach::Gap } else { Reach::Whole }
    }

    /// Advances `una` to the oldest missing response. Returns the number of packets it moved.
    #[inline(always)] // as `answer`
    pub(super) fn settle<H: Host>(&mut self, sq: &mut SendQueue, io: &mut Io<'_, H>) -> u32 {
        let mut moved = 0;
        while self.una.is_before(self.reached) {
            let Some(wqe) = sq.oldest() else { break };
            let (packets, segment) = (wqe.packets, if wqe.jumbo { wqe.segment } else { io.mtu() });
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
            self.answer(step, packets, segment, sq, io);
        }
        moved
    }

    /// Counts `packets` of the oldest request, each as `segment` bytes, as answered. Completes the request when all are.
    #[inline(always)] // most ACKs complete exactly one request
    pub(super) fn answer<H: Host>(
        &mut self,
        packets: u32,
        of: u32,
        segment: u32,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) {
        self.acked_bytes = self.acked_bytes.saturating_add(packets.saturating_mul(segment));
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

    fn on_error_nak<H: Host>(
        &mut self,
        code: NakCode,
        ack: &Ack<'_>,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Fatal {
        let (status, why) = match code {
            NakCode::InvalidRequest => (WcStatus::RemInvReqErr, Reason::PeerSaysInvalid),
            NakCode::RemoteAccess => (WcStatus::RemAccessErr, Reason::PeerRefusesAccess),
            NakCode::InvalidRdRequest => (WcStatus::RemInvRdReqErr, Reason::PeerSaysInvalidRd),
            NakCode::RemoteOperational | NakCode::PsnSequence => (WcStatus::RemOpErr, Reason::PeerFailed),
        };
        // A foreign end sends no reason, and might send other bytes.
        let reason = if ack.hello { RefusalReason::from_payload(ack.report) } else { None };
        if let Some(wqe) = sq.oldest() {
            io.host.explain(format_args!(
                "QP {}: {wqe} was refused by QP {} at {} with NAK {code:?}: {}",
                io.id.qpn,
                io.attr.dest_qpn,
                io.route.dgid.to_ip(),
                reason.map_or(why.text(), RefusalReason::text)
            ));
        }
        self.fail_oldest(status, why, sq, io)
    }
}
