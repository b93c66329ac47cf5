//! A SEND of one packet, or a packet from the middle of a WRITE, that is next in sequence and in order in every way.

use super::super::super::io::Io;
use super::super::super::{Host, RecvQueue};
use super::Responder;
use crate::ids::Psn;
use crate::wire::{SendOnly, WriteMiddle};

impl Responder {
    /// Whether a packet with this number is the next, nothing was kept behind it, and no message is half received.
    #[inline]
    pub(crate) fn is_next(&self, psn: Psn) -> bool {
        psn == self.expected && self.kept.is_unused() && !self.inbound.in_message()
    }

    /// Places the message. False: it is not in order, and as if it had not come, but that its receive may be in hand.
    #[inline(always)] // one caller
    pub(crate) fn on_send_only<H: Host>(
        &mut self,
        head: &SendOnly,
        payload: &[u8],
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> bool {
        if !self.inbound.accept_whole(head, payload, rq, io) {
            return false;
        }
        (self.asked_again, self.not_ready) = (None, false);
        self.step(1, true);
        if head.ack_req {
            self.replies.ack(head.psn, self.msn);
        }
        true
    }

    /// Places a packet of the WRITE under way. False: it is not in order, and as if it had not come.
    #[inline]
    pub(crate) fn on_write_middle<H: Host>(
        &mut self,
        head: &WriteMiddle,
        payload: &[u8],
        io: &mut Io<'_, H>,
    ) -> bool {
        let is_next = head.psn == self.expected && self.kept.is_empty();
        if !is_next || !self.inbound.accept_write_middle(payload, io) {
            return false;
        }
        (self.asked_again, self.not_ready) = (None, false);
        self.step(1, false);
        self.kept.on_sequence();
        if head.ack_req {
            self.replies.ack(head.psn, self.msn);
        }
        true
    }
}
