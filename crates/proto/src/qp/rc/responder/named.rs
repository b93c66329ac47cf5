//! A SEND that the peer named instead of sending its bytes.
//!
//! It is taken only if it is next in sequence and all is in order. Otherwise it is as if its packets had been lost: the requester goes
//! back and sends the bytes, and whatever is wrong is found then.

use super::super::super::inbound::Refusal;
use super::super::super::io::{Fatal, Io};
use super::super::super::{DropReason, Host, LARGE_SEGMENT, RecvQueue};
use super::Responder;
use crate::wire::{Names, Packet, SendNamed};

impl Responder {
    /// `pkt` is what its only packet would say if it had one.
    pub(crate) fn handle_named<H: Host>(
        &mut self,
        head: &SendNamed,
        names: &Names,
        pkt: &Packet<'_>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let packets_at = |segment| names.message_len().div_ceil(segment);
        if ![io.mtu(), LARGE_SEGMENT].map(packets_at).contains(&head.packets) {
            let (packets, len) = (head.packets, names.message_len());
            let why = format_args!("QP {}: {len} bytes are not {packets} packets", io.id.qpn);
            io.host.dropped(DropReason::Malformed, why);
            return Ok(());
        }
        match head.psn.distance_from(self.expected) {
            0 => self.on_named(head, names, pkt, rq, io),
            d if d < 0 => self.on_duplicate(pkt, io),
            _ => {
                self.ask_for_bytes(head, io);
                Ok(())
            }
        }
    }

    fn on_named<H: Host>(
        &mut self,
        head: &SendNamed,
        names: &Names,
        pkt: &Packet<'_>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        (self.asked_again, self.not_ready) = (None, false);
        if !self.kept.is_empty() || self.inbound.in_message() {
            self.ask_for_bytes(head, io);
            return Ok(());
        }
        match self.inbound.accept_named(head, names, rq, io) {
            Ok(true) => {
                let last = head.psn.plus(head.packets - 1);
                self.step(head.packets, true);
                self.kept.on_sequence();
                self.replies.ack(last, self.msn);
                io.counters.rx_packets += u64::from(head.packets);
                io.counters.rx_bytes += u64::from(names.message_len());
            }
            Ok(false) => self.ask_for_bytes(head, io),
            Err(Refusal::NoReceive) => self.not_ready(io),
            Err(refusal) => return Err(self.on_refusal(refusal, pkt, io)),
        }
        Ok(())
    }

    /// Asks once for what is missing. All that was named behind it comes again too.
    fn ask_for_bytes<H: Host>(&mut self, head: &SendNamed, io: &mut Io<'_, H>) {
        io.counters.out_of_order += 1;
        let is_news = self.asked_again.is_none_or(|seen| !head.psn.is_after(seen));
        self.asked_again = Some(head.psn);
        if is_news {
            self.ask_for_missing(io);
        }
    }
}
