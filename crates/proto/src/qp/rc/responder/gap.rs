//! Out-of-order requests, and the NAKs that report missing ones.
//!
//! A go-back-N requester receives one NAK with the first missing PSN. Later packets are kept anyway, so their
//! retransmissions are duplicates. A selective-repeat requester receives a report of every missing packet.

use super::super::super::io::{Fatal, Io};
use super::super::super::{HistoryEvent, Host, RecvQueue};
use super::Responder;
use crate::wire::{NakCode, Packet, Syndrome};

impl Responder {
    /// Handles a packet behind a missing one, or a packet that counts as lost.
    pub(super) fn on_gap<H: Host>(&mut self, pkt: &Packet<'_>, can_be_kept: bool, io: &mut Io<'_, H>) {
        io.counters.out_of_order += 1;
        let psn = pkt.headers.bth.psn;
        // The PSN moved back: the requester retransmitted, and the missing packet was lost again.
        let starts_over = self.asked_again.is_none_or(|seen| !psn.is_after(seen));
        self.asked_again = Some(psn);
        let mut ask = starts_over;
        if can_be_kept && !self.not_ready {
            let next = self.kept.highest().map_or(self.expected, |highest| highest.plus(1));
            let is_news = psn.is_after(next) || pkt.headers.bth.ack_req;
            ask |= self.peer_selects && is_news;
            let limits = (io.mtu(), io.max_wire_payload(pkt.payload.len()));
            let (inbound, now, budget) = (&self.inbound, io.now, &io.id.reorder);
            self.kept
                .keep(self.expected, pkt, limits, now, budget, |ahead| inbound.place_early(pkt, ahead, io));
        }
        if ask {
            self.ask_for_missing(io);
        }
    }

    /// Executes the kept requests that are now next in sequence.
    pub(super) fn catch_up<H: Host>(&mut self, rq: &mut RecvQueue, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        while let Some(early) = self.kept.take(self.expected) {
            let outcome = match early.packet() {
                Some(packet) => {
                    // Packets that arrived through shared memory are kept only if they fit the path MTU.
                    (io.is_large, io.is_jumbo) = (false, self.is_jumbo(packet.headers.bth.jumbo));
                    self.in_sequence(&packet, rq, io)
                }
                None => self.pass_placed(early.ack_req(), io),
            };
            self.kept.reuse(early);
            outcome?;
        }
        if self.not_ready {
            self.kept.clear();
        } else if !self.kept.is_empty() {
            self.asked_again = self.kept.highest();
            self.ask_for_missing(io);
        }
        Ok(())
    }

    /// Advances over a packet that was placed on arrival.
    fn pass_placed<H: Host>(&mut self, ack_req: bool, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        (self.asked_again, self.not_ready) = (None, false);
        if let Err(fault) = self.inbound.pass_placed(io) {
            return Err(self.refuse_access("WRITE", fault, io));
        }
        let psn = self.expected;
        self.step(1, false);
        if ack_req {
            self.replies.ack(psn, self.msn);
        }
        Ok(())
    }

    pub(super) fn ask_for_missing<H: Host>(&mut self, io: &mut Io<'_, H>) {
        io.counters.naks_sent += 1;
        io.host.record(HistoryEvent::NakSent(NakCode::PsnSequence), 1);
        self.replies.nak(self.expected, self.msn, Syndrome::Nak(NakCode::PsnSequence));
    }
}
