//! Messages that are sent while they are posted.

use super::super::super::Host;
use super::super::super::io::Io;
use super::super::super::sq::SendQueue;
use super::Requester;
use super::transmit::ack_every;
use crate::Time;
use crate::ids::{PKey, Psn};
use crate::verbs::{SendFlags, SendOp};
use crate::wire::{Rider, SendOnly, Syndrome};

impl Requester {
    /// Whether a request in the queue has packets that were not sent in this round.
    #[inline]
    pub(crate) fn has_unsent(&self, sq: &SendQueue) -> bool {
        self.cur != sq.tail() || self.una.is_before(self.reached)
    }

    /// Sends the request that was just posted, if it is a message of one packet that nothing holds back.
    #[inline]
    pub(crate) fn send_express<H: Host>(&mut self, sq: &mut SendQueue, io: &mut Io<'_, H>) {
        let is_next = self.cur + 1 == sq.tail() && self.sent == 0 && self.psn == self.high;
        if !is_next || !self.is_undisturbed() {
            return;
        }
        let mtu = io.mtu();
        let Some(wqe) = sq.get_mut(self.cur) else { return };
        let imm = match wqe.op {
            SendOp::Send => None,
            SendOp::SendImm(imm) => Some(imm),
            _ => return,
        };
        let (len, solicited, is_signaled) = (wqe.len, wqe.solicited, wqe.signaled);
        let segment = if len > mtu { io.host.segment().unwrap_or(mtu).max(mtu) } else { mtu };
        let window = self.window_packets(segment);
        if wqe.fence && !self.reads.is_empty() {
            return;
        }
        (wqe.segment, wqe.packets) = (segment, 1);
        if len > mtu {
            wqe.packets = len.div_ceil(segment);
            let wqe = *wqe;
            if self.send_named(&wqe, sq, io) {
                return;
            }
        }
        if len > segment || self.in_flight() >= window {
            return;
        }
        let ack_req = is_signaled
            || sq.get(self.cur).is_some_and(|wqe| self.wants_ack(wqe, true, (window, segment), sq));
        let rider = io.rider.filter(|_| len as usize + Rider::LEN <= segment as usize);
        let head = SendOnly {
            dest_qpn: io.attr.dest_qpn,
            pkey: PKey::DEFAULT,
            psn: self.psn,
            ack_req,
            solicited,
            selective: false,
            imm,
            rider,
        };
        let (bytes, head_len) = head.to_bytes(len as usize);
        let payload = sq.payload(self.cur, io.pd, 0, len);
        if !io.host.express(io.route, &bytes[..head_len], payload) {
            return;
        }
        if rider.is_some() {
            io.rider = None;
        }
        self.on_sent_at_once(len, ack_req, io);
    }

    /// Whether a message of one packet, if it were posted now, could be sent in the same moment.
    #[inline]
    pub(crate) fn may_send_at_once(&self, flags: SendFlags, mtu: u32, sq: &SendQueue) -> bool {
        let is_next = self.cur == sq.tail() && self.sent == 0 && self.psn == self.high;
        let is_fenced = flags.contains(SendFlags::FENCE) && !self.reads.is_empty();
        let fits_window = self.una == self.psn || self.in_flight() < self.window_packets(mtu);
        is_next && self.is_undisturbed() && !is_fenced && fits_window && !sq.is_full()
    }

    /// What [`Self::wants_ack`] will say of such a message, if it has no completion.
    #[inline]
    pub(crate) fn wants_ack_at_once(&self, mtu: u32, sq: &SendQueue) -> bool {
        let window = self.window_packets(mtu);
        self.is_waited_behind
            || (sq.outstanding() + 1) * 2 >= sq.depth()
            || !self.clock.can_probe()
            || self.in_flight() + 1 >= window
            || self.since_ack_req + 1 >= ack_every(window, mtu)
    }

    /// The number of the next packet.
    #[inline]
    pub(crate) fn next_psn(&self) -> Psn {
        self.psn
    }

    /// Keeps the books of a message of one packet that was just sent, and is the last of the queue.
    #[inline]
    pub(crate) fn on_sent_at_once<H: Host>(&mut self, len: u32, ack_req: bool, io: &mut Io<'_, H>) {
        io.counters.tx_packets += 1;
        io.counters.tx_bytes += u64::from(len);
        self.one_sided_under_way = false;
        self.since_ack_req = if ack_req { 0 } else { self.since_ack_req + 1 };
        self.on_sent(1, len, 1, io);
    }

    /// Whether nothing is being repeated, asked for or waited out.
    #[inline]
    pub(super) fn is_undisturbed(&self) -> bool {
        self.stall.is_none()
            && !self.cautious
            && self.first_try.is_none()
            && !self.clock.has_pause()
            && !self.una.is_before(self.reached)
    }

    /// Whether a piggybacked acknowledgement must be taken with the time at which it came. One that answers all that is under way,
    /// and measures nothing, has the same effect at any time.
    #[inline]
    pub(crate) fn needs_time(&self, ack: &Rider) -> bool {
        let answers_all = ack.psn.plus(1) == self.high && self.psn == self.high && self.reads.is_empty();
        !answers_all || self.clock.is_measuring() || !matches!(ack.aeth.syndrome, Syndrome::Ack { .. })
    }

    /// The last time that was read, while something is under way.
    #[inline]
    pub(crate) fn last_time(&self) -> Time {
        self.clock.last_time()
    }
}
