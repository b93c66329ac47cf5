//! Messages of one packet and packets from the middle of WRITEs, in fewer steps, and messages whose bytes are fetched.
//!
//! Nothing here is another protocol: the packet is the same, and so is all that follows from it. A message that is in order, as
//! nearly all are, is sent while it is posted and placed without the detours that packets of every kind need; anything else is left to
//! [`Qp::poll_requests`] and [`Qp::handle_packet`], as if nobody had looked at it. A message that the peer named is taken if it is in order;
//! if not, its packets will come.

use super::flush::io;
use super::io::Io;
use super::post::signals;
use super::{Host, Machine, Qp, TxPayload};
use crate::Time;
use crate::ids::PKey;
use crate::verbs::{Payload, QpState, SendFlags, SendOp, SendWr, Transport};
use crate::wire::{Rider, SendOnly};

/// A message of data in one piece: what programs post one at a time while somebody waits for it.
#[derive(Clone, Copy, Debug)]
pub struct PlainSend<'a> {
    /// The caller's number for it.
    pub wr_id: u64,
    /// Modifiers.
    pub flags: SendFlags,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// Inline data, or one entry.
    pub data: Payload<'a>,
}

impl<'a> PlainSend<'a> {
    /// The request, if it is such a message. That its data is in one piece is looked at later.
    #[inline(always)]
    pub fn of(wr: &SendWr<'a>) -> Option<PlainSend<'a>> {
        let imm = match wr.op {
            SendOp::Send => None,
            SendOp::SendImm(imm) => Some(imm),
            _ => return None,
        };
        Some(PlainSend { wr_id: wr.wr_id, flags: wr.flags, imm, data: wr.payload })
    }
}

impl Qp {
    /// Posts a message and sends it, if it is one of one packet that nothing holds back, and the host has an express way: what
    /// [`Qp::post_send`] and [`Qp::send_express`] do, in another order. The peer waits for the packet and not for our books, so those are kept
    /// once it is out, and `now` is asked then. False: nothing was done.
    #[inline(always)] // one caller each, who knows most of the request
    pub fn send_at_once<H: Host>(
        &mut self,
        send: PlainSend<'_>,
        host: &mut H,
        now: impl FnOnce() -> Time,
    ) -> bool {
        let (len, payload) = match send.data {
            Payload::Sges(sges @ [sge]) if self.attr.cap.max_send_sge > 0 => {
                (sge.len, TxPayload::Local { pd: self.id.pd, sges, offset: 0, len: sge.len })
            }
            Payload::Inline(bytes) if bytes.len() <= self.attr.cap.max_inline_data as usize => {
                (bytes.len() as u32, TxPayload::Bytes(bytes))
            }
            _ => return false,
        };
        let (mtu, is_signaled) = (self.attr.path_mtu.bytes(), signals(send.flags, self.id.signal_all));
        let is_up = self.attr.state == QpState::Rts && self.id.transport == Transport::Rc;
        let Machine::Rc(rc) = &mut self.machine else { return false };
        let (requester, responder) = &mut **rc;
        if !is_up || len == 0 || len > mtu || !requester.may_send_at_once(send.flags, mtu, &self.sq) {
            return false;
        }
        let ack_req = is_signaled || requester.wants_ack_at_once(mtu, &self.sq);
        let may_carry = requester.may_carry() && len as usize + Rider::LEN <= mtu as usize;
        let rider = if may_carry { responder.rider() } else { None };
        let solicited = send.flags.contains(SendFlags::SOLICITED);
        let (dest_qpn, psn) = (self.attr.dest_qpn, requester.next_psn());
        let head = SendOnly {
            dest_qpn,
            pkey: PKey::DEFAULT,
            psn,
            ack_req,
            solicited,
            selective: false,
            imm: send.imm,
            rider,
        };
        let (bytes, head_len) = head.to_bytes(len as usize);
        if !host.express(&self.route, &bytes[..head_len], payload) {
            return false;
        }
        // It is out; from here on nobody waits.
        let op = send.imm.map_or(SendOp::Send, SendOp::SendImm);
        let wr = SendWr { wr_id: send.wr_id, op, flags: send.flags, payload: send.data, ud: None, srq: None };
        let wqe = self.sq.push(&wr, len, self.id.signal_all);
        (wqe.segment, wqe.packets) = (mtu, 1);
        let mut io = io!(self, now(), host);
        requester.on_sent_at_once(len, ack_req, &mut io);
        if rider.is_some() {
            responder.on_ridden(&mut io);
        }
        true
    }

    /// Sends the request that was just posted, if it is a message of one packet, nothing waits before it, and the host has an express
    /// way. Otherwise it waits for [`Qp::poll_requests`].
    #[inline]
    pub fn send_express<H: Host>(&mut self, now: Time, host: &mut H) {
        if self.attr.state != QpState::Rts || self.id.transport != Transport::Rc {
            return;
        }
        let mut io = io!(self, now, host);
        let Machine::Rc(rc) = &mut self.machine else { return };
        let (requester, responder) = &mut **rc;
        let rider = if requester.may_carry() { responder.rider() } else { None };
        io.rider = rider;
        requester.send_express(&mut self.sq, &mut io);
        if io.rider != rider {
            responder.on_ridden(&mut io);
        }
    }

    /// Whether a request waits for [`Qp::poll_requests`].
    #[inline]
    pub fn has_unsent(&self) -> bool {
        match &self.machine {
            Machine::Rc(rc) => rc.0.has_unsent(&self.sq),
            _ => !self.sq.is_empty(),
        }
    }
}
