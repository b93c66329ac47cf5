//! FPDUs of posted work, and the order in which it completes.
//!
//! A SEND or WRITE is done when the stream has taken its last byte: TCP delivers it, but does not report that. A READ or atomic is
//! done when its response is placed. Completions keep the order of posting.

use super::super::wire::{
    AtomicRequest, DdpBuffer, DdpHeader, ImmediateData, RdmapOpcode, ReadRequest, TerminateCode,
};
use super::receive::Stop;
use super::transmit::{Current, Source};
use super::{StreamHost, StreamQp};
use crate::Time;
use crate::ids::RKey;
use crate::qp::{HostServices, Reason, SendWqe, Side, execute, flush_one, io};
use crate::verbs::{MemoryFault, QpState, SendOp, WcStatus};

/// A request that waits for its response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Awaited {
    pub(super) number: u64,
    /// Sequence number of its request message.
    pub(super) msn: u32,
}

/// The STag that names the buffer of a READ to the peer. It is compared with the oldest READ only, so it gives no access
/// to other memory. The lkey stays secret, and the buffer may have several SGEs. It is never 0, which hardware refuses.
pub(super) fn sink_stag(number: u64) -> RKey {
    RKey(number as u32 | 0x8000_0000)
}

/// Why a request does not start.
enum Block {
    /// It waits.
    Waits,
    /// It fails once every earlier request has completed.
    Fails(WcStatus, Reason),
}

impl StreamQp {
    /// Whether the message of a request is partially sent.
    pub(super) fn in_request(&self) -> bool {
        self.sent > 0 || self.owes_immediate
    }

    /// The next FPDU of posted work.
    pub(super) fn next_request<H: StreamHost>(&mut self, now: Time, host: &mut H) -> Option<Current> {
        loop {
            let number = self.next;
            let wqe = *self.sq.get(number)?;
            if self.in_request() {
                return Some(self.request_fpdu(number, &wqe));
            }
            if self.attr.state != QpState::Rts {
                return None;
            }
            match self.block(&wqe) {
                None if wqe.is_local() => {
                    if !self.run_locally(number, &wqe, now, host) {
                        return None;
                    }
                }
                None => return Some(self.request_fpdu(number, &wqe)),
                Some(Block::Fails(status, why)) if self.sq.head() == number => {
                    let (qpn, wr_id) = (self.id.qpn, wqe.wr_id);
                    host.explain(format_args!("QP {qpn}: wr_id {wr_id:#x} failed: {}", why.text()));
                    self.fail_request(number, status, why, now, host);
                    return None;
                }
                Some(_) => return None,
            }
        }
    }

    /// Returns what keeps a request from starting, if anything.
    fn block(&self, wqe: &SendWqe) -> Option<Block> {
        let (is_read, depth) = (wqe.awaits_response(), self.attr.max_rd_atomic);
        if self.unreadable {
            Some(Block::Fails(WcStatus::LocProtErr, Reason::LocalMemory))
        } else if is_read && depth == 0 {
            Some(Block::Fails(WcStatus::LocQpOpErr, Reason::NoReadResources))
        } else if matches!(wqe.op, SendOp::Atomic { .. }) && wqe.len != 8 {
            Some(Block::Fails(WcStatus::LocLenErr, Reason::AtomicLength))
        } else if wqe.fence && !self.awaited.is_empty() {
            Some(Block::Waits)
        } else {
            (is_read && self.awaited.len() >= usize::from(depth)).then_some(Block::Waits)
        }
    }

    /// Executes a local request once every earlier one has completed. Returns whether the next one may start.
    fn run_locally<H: StreamHost>(&mut self, number: u64, wqe: &SendWqe, now: Time, host: &mut H) -> bool {
        if self.sq.head() != number {
            return false;
        }
        match execute(&wqe.op, wqe.wr_id, &mut io!(self, now, host)) {
            Some(Err((status, why))) => {
                self.fail_request(number, status, why, now, host);
                false
            }
            _ => {
                self.on_request_sent(number, now, host);
                true
            }
        }
    }

    fn request_fpdu(&mut self, number: u64, wqe: &SendWqe) -> Current {
        let (offset, left) = (self.sent, wqe.len - self.sent);
        let source = Source::Request { number, offset };
        match wqe.op {
            SendOp::WriteImm { imm, .. } if self.owes_immediate => {
                let opcode = if wqe.solicited { RdmapOpcode::ImmediateSe } else { RdmapOpcode::Immediate };
                let header = self.untagged(opcode, RKey(0), 0, true);
                Current::new(Source::Immediate { number }, &header, &ImmediateData(imm).to_bytes(), 0)
            }
            SendOp::Write { addr, rkey } | SendOp::WriteImm { addr, rkey, .. } => {
                let len = self.segment_len(DdpHeader::TAGGED_LEN, left);
                let buffer = DdpBuffer::Tagged { stag: rkey, to: addr.wrapping_add(offset.into()) };
                let header = DdpHeader { opcode: RdmapOpcode::Write, last: len == left, buffer };
                Current::new(source, &header, &[], len)
            }
            SendOp::Read { addr, rkey } => {
                let sink_stag = sink_stag(number);
                let read =
                    ReadRequest { sink_stag, sink_to: 0, len: wqe.len, source_stag: rkey, source_to: addr };
                let header = self.untagged(RdmapOpcode::ReadRequest, RKey(0), 0, true);
                Current::new(source, &header, &read.to_bytes(), 0)
            }
            SendOp::Atomic { addr, rkey, op } => {
                let request = AtomicRequest::new(number as u32, rkey, addr, op);
                let header = self.untagged(RdmapOpcode::AtomicRequest, RKey(0), 0, true);
                Current::new(source, &header, &request.to_bytes(), 0)
            }
            // Everything else was refused when it was posted, or runs locally.
            _ => {
                let len = self.segment_len(DdpHeader::UNTAGGED_LEN, left);
                let (opcode, stag) = match (wqe.op, wqe.solicited) {
                    (SendOp::SendInv(stag), false) => (RdmapOpcode::SendInv, stag),
                    (SendOp::SendInv(stag), true) => (RdmapOpcode::SendSeInv, stag),
                    (_, false) => (RdmapOpcode::Send, RKey(0)),
                    (_, true) => (RdmapOpcode::SendSe, RKey(0)),
                };
                let header = self.untagged(opcode, stag, offset, len == left);
                Current::new(source, &header, &[], len)
            }
        }
    }

    /// The stream has taken a segment of a request.
    pub(super) fn on_segment_sent<H: HostServices>(
        &mut self,
        number: u64,
        current: &Current,
        now: Time,
        host: &mut H,
    ) {
        self.sent += current.len;
        if current.ends_message {
            self.sent = 0;
            let op = self.sq.get(number).map(|wqe| wqe.op);
            self.owes_immediate = matches!(op, Some(SendOp::WriteImm { .. }));
            if !self.owes_immediate {
                self.on_request_sent(number, now, host);
            }
        }
    }

    /// The stream has taken all of a request.
    pub(super) fn on_request_sent<H: HostServices>(&mut self, number: u64, now: Time, host: &mut H) {
        self.next = number + 1;
        self.owes_immediate = false;
        if self.sq.get(number).is_some_and(SendWqe::awaits_response) {
            let msn = self.send_msn[RdmapOpcode::ReadRequest.queue() as usize].wrapping_sub(1);
            self.awaited.push_back(Awaited { number, msn });
        }
        self.complete_done(now, host);
    }

    /// The response of the oldest READ or atomic is placed.
    pub(super) fn on_response_placed<H: HostServices>(&mut self, now: Time, host: &mut H) {
        self.awaited.pop_front();
        self.placed = 0;
        self.complete_done(now, host);
    }

    fn complete_done<H: HostServices>(&mut self, now: Time, host: &mut H) {
        let awaited = self.awaited.front().map_or(self.next, |awaited| awaited.number);
        while self.sq.head() < awaited.min(self.next)
            && let Some(wqe) = self.sq.pop()
        {
            io!(self, now, host).complete_send(&wqe);
        }
    }

    /// Fails one request, flushes the others, and reports the failure of this end to the peer.
    pub(super) fn fail_request<H: StreamHost>(
        &mut self,
        number: u64,
        status: WcStatus,
        why: Reason,
        now: Time,
        host: &mut H,
    ) {
        self.complete_failed(number, status, why, now, host);
        self.terminate_with(TerminateCode::RDMAP_LOCAL, None, now, host);
    }

    /// Ends the stream because the answer to a READ or atomic cannot be placed.
    pub(super) fn unplaceable<H: HostServices>(
        &mut self,
        number: u64,
        fault: &MemoryFault,
        now: Time,
        host: &mut H,
    ) -> Stop {
        let (qpn, wr_id) = (self.id.qpn, self.sq.get(number).map_or(0, |wqe| wqe.wr_id));
        host.explain(format_args!("QP {qpn}: the answer to wr_id {wr_id:#x} cannot be placed: {fault}"));
        self.complete_failed(number, WcStatus::LocProtErr, Reason::LocalMemory, now, host);
        Stop { code: TerminateCode::DDP_LOCAL, quoted: None, event: None }
    }

    /// Completes one request with an error, after it has flushed those before it.
    pub(super) fn complete_failed<H: HostServices>(
        &mut self,
        number: u64,
        status: WcStatus,
        why: Reason,
        now: Time,
        host: &mut H,
    ) {
        while self.sq.head() <= number
            && let is_it = self.sq.head() == number
            && let Some(wqe) = self.sq.pop()
        {
            let mut io = io!(self, now, host);
            if is_it {
                io.complete_failed(Side::Send, wqe.wr_id, wqe.wc_opcode(), status, why);
            } else {
                flush_one(&mut io, Side::Send, wqe.wr_id, wqe.wc_opcode());
            }
        }
    }

    /// The memory of a request may not be read. If nothing of it is sent, earlier requests complete first.
    pub(super) fn on_unreadable_request<H: StreamHost>(
        &mut self,
        number: u64,
        is_partial: bool,
        fault: MemoryFault,
        now: Time,
        host: &mut H,
    ) {
        host.explain(format_args!("QP {}: the data of a request cannot be read: {fault}", self.id.qpn));
        if is_partial {
            self.fail_request(number, WcStatus::LocProtErr, Reason::LocalMemory, now, host);
        } else {
            self.current = None;
            self.unreadable = true;
        }
    }
}
