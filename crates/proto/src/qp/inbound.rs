//! Placement of an inbound SEND or WRITE, shared by RC and UC.
//!
//! This module owns every check on an inbound message: opcode sequence, lengths, receive, key, range and rights. RC
//! answers a refusal with a NAK; UC drops the message.

use super::io::Io;
use super::rq::capacity;
use super::view::MessagePart;
use super::{HostServices, Placement, Reason, RecvQueue, RecvWqe, Side};
use crate::ids::{RKey, Srqn};
use crate::verbs::{Access, Completion, MemoryFault, Sge, WcFlags, WcOpcode, WcStatus};
use crate::wire::{Operation, Packet, Reth};

/// Why a packet of a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted; the state is unchanged.
    NoReceive,
    /// This opcode may not follow the previous one.
    Sequence,
    /// The payload's length contradicts the opcode, the MTU or the RETH.
    Length,
    /// The message does not fit the receive.
    TooLong { capacity: u64, needed: u64 },
    /// The peer may not write there.
    Access(MemoryFault),
    /// The receive's own memory is unusable.
    Local(MemoryFault),
    /// The rkey of a SEND with invalidate cannot be invalidated.
    Invalidate(MemoryFault),
    /// The data of a rendezvous send cannot be copied; its packets can still carry it.
    NotFetched,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Idle,
    Send,
    Write,
}

/// The state of the message being received.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    kind: Kind,
    /// The current receive. It survives a broken UC message and serves the next one.
    recv: RecvWqe,
    has_recv: bool,
    /// The completion queue of that receive.
    side: Side,
    /// Bytes of the message already placed.
    placed: u64,
    /// Payload bytes of each packet except the last.
    segment: u32,
    /// The rest of a WRITE.
    rkey: RKey,
    addr: u64,
    left: u32,
}

impl Inbound {
    /// Whether a message is partially received.
    pub(crate) fn in_message(&self) -> bool {
        self.kind != Kind::Idle
    }

    /// Discards a partial message. The receive stays for the next one.
    pub(crate) fn abandon(&mut self) {
        self.kind = Kind::Idle;
        self.placed = 0;
    }

    /// Removes the current receive, for flushing.
    pub(crate) fn take_recv(&mut self) -> Option<(Side, u64)> {
        self.abandon();
        core::mem::take(&mut self.has_recv).then_some((self.side, self.recv.wr_id))
    }

    /// Places one packet of a SEND or WRITE. Returns whether it was the last of its message.
    #[inline(always)] // the fast views then keep only the checks that apply to them
    pub(crate) fn accept<V: MessagePart, H: HostServices>(
        &mut self,
        view: &V,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<bool, Refusal> {
        let op = view.operation();
        self.check_sequence(op)?;
        if op.starts_message() {
            // If packets may be longer than the path MTU, the first one of a message defines the length of the others.
            self.segment = io.max_payload(view.len());
        }
        if !view.has_valid_len(self.segment) {
            return Err(Refusal::Length);
        }
        if op.is_send() { self.accept_send(view, rq, io) } else { self.accept_write(view, rq, io) }
    }

    #[inline(always)]
    fn check_sequence(&self, op: Operation) -> Result<(), Refusal> {
        let fits = match self.kind {
            Kind::Idle => op.starts_message(),
            Kind::Send => op.is_send() && !op.starts_message(),
            Kind::Write => op.is_write() && !op.starts_message(),
        };
        if fits { Ok(()) } else { Err(Refusal::Sequence) }
    }

    /// Places a part of a SEND. Returns whether it was the last.
    #[inline(always)]
    pub(crate) fn accept_send<V: MessagePart, H: HostServices>(
        &mut self,
        view: &V,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<bool, Refusal> {
        let op = view.operation();
        if op.starts_message() {
            self.placed = 0;
        }
        let is_whole = op.starts_message() && op.ends_message();
        if is_whole && !self.has_recv && !io.id.shared_recv {
            // Use the receive in place, without copying it out of the queue.
            let (wr_id, sges) = rq.oldest().ok_or(Refusal::NoReceive)?;
            if let Err(refusal) = place(view, sges, 0, io) {
                return Err(self.take_refused(refusal, rq));
            }
            (self.recv.wr_id, self.has_recv, self.side) = (wr_id, true, Side::Recv);
            rq.forget_oldest();
        } else {
            if op.starts_message() {
                self.ensure_recv(view.xrceth(), rq, io)?;
            }
            place(view, &self.recv.sges, self.placed, io)?;
        }
        self.placed += view.len() as u64;
        if !op.ends_message() {
            self.kind = Kind::Send;
            return Ok(false);
        }
        if let Some(rkey) = view.ieth() {
            io.host.invalidate(io.pd, rkey).map_err(Refusal::Invalidate)?;
        }
        self.finish_recv(view, WcOpcode::Recv, io);
        Ok(true)
    }

    /// Completes the next receive for immediate data that is a message of its own, behind a WRITE of `len` bytes.
    pub(crate) fn accept_immediate<V: MessagePart, H: HostServices>(
        &mut self,
        part: &V,
        len: u64,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Refusal> {
        self.ensure_recv(None, rq, io)?;
        // The length in a completion has 32 bits, and a WRITE on a stream may be longer.
        self.placed = len.min(u32::MAX.into());
        self.finish_recv(part, WcOpcode::RecvRdmaWithImm, io);
        Ok(())
    }

    /// Takes the oldest receive after a refusal, so that it can complete with the error.
    #[cold]
    fn take_refused(&mut self, refusal: Refusal, rq: &mut RecvQueue) -> Refusal {
        (self.has_recv, self.side) = (rq.pop(&mut self.recv), Side::Recv);
        refusal
    }

    #[inline(always)]
    fn accept_write<V: MessagePart, H: HostServices>(
        &mut self,
        view: &V,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<bool, Refusal> {
        let op = view.operation();
        // The receive is taken before anything is written: after an RNR NAK the requester retransmits the whole packet. A large packet
        // stands for several packets of the path MTU. Their first one would be refused for a bad key before the last one takes a
        // receive, so the key of a large packet is checked first.
        let (takes_recv, is_large) = (view.imm().is_some(), view.len() > io.mtu() as usize);
        if takes_recv && !is_large {
            self.ensure_recv(view.xrceth(), rq, io)?;
        }
        if op.starts_message() {
            self.start_write(view.reth(), io)?;
        }
        if takes_recv
            && is_large
            && let Err(refusal) = self.ensure_recv(view.xrceth(), rq, io)
        {
            if op.starts_message() {
                self.abandon();
            }
            return Err(refusal);
        }
        let len = view.len() as u32;
        if if op.ends_message() { len != self.left } else { len >= self.left } {
            return Err(Refusal::Length);
        }
        if len > 0
            && let Err(refusal) = view.place_remote(self.rkey, self.addr, io)
        {
            if refusal == Refusal::NotFetched {
                // The packets of the message start it again, and use the same receive.
                self.abandon();
            }
            return Err(refusal);
        }
        self.addr = self.addr.wrapping_add(u64::from(len));
        self.left -= len;
        self.placed += u64::from(len);
        if !op.ends_message() {
            return Ok(false);
        }
        if view.imm().is_some() {
            self.finish_recv(view, WcOpcode::RecvRdmaWithImm, io);
        } else {
            self.abandon();
        }
        Ok(true)
    }

    /// Places a packet that is `ahead` packets early. Only middle packets of the current WRITE qualify: their
    /// destination is known, and the first packet checked the rights. The last packet never qualifies, because
    /// applications poll for its bytes. Returns whether the packet was placed; otherwise it must be kept.
    pub(crate) fn place_early<H: HostServices>(
        &self,
        pkt: &Packet<'_>,
        ahead: u32,
        io: &mut Io<'_, H>,
    ) -> bool {
        let is_middle = pkt.headers.bth.opcode.operation == Operation::WriteMiddle;
        if !is_middle || self.kind != Kind::Write || pkt.headers.xrceth.is_some() {
            return false;
        }
        let offset = u64::from(ahead) * u64::from(self.segment);
        let is_inside = offset + u64::from(self.segment) < u64::from(self.left);
        is_inside
            && pkt.payload.len() == self.segment as usize
            && io
                .host
                .write_remote(io.pd, self.rkey, self.addr.wrapping_add(offset), pkt.payload, Placement::Last)
                .is_ok()
    }

    /// Advances over a packet that was placed early.
    pub(crate) fn pass_placed<H: HostServices>(&mut self, io: &mut Io<'_, H>) -> Result<(), MemoryFault> {
        let len = self.segment;
        // The region may have been deregistered after the packet was placed. Then this packet fails, as it would in order.
        io.host.check_remote(io.pd, self.rkey, self.addr, u64::from(len), Access::REMOTE_WRITE)?;
        self.addr = self.addr.wrapping_add(u64::from(len));
        self.left = self.left.saturating_sub(len);
        self.placed += u64::from(len);
        Ok(())
    }

    fn start_write<H: HostServices>(
        &mut self,
        reth: Option<Reth>,
        io: &mut Io<'_, H>,
    ) -> Result<(), Refusal> {
        let reth = reth.ok_or(Refusal::Sequence)?;
        if reth.len > super::MAX_MESSAGE {
            return Err(Refusal::Length);
        }
        if reth.len > 0 {
            io.check_remote(reth.rkey, reth.addr, u64::from(reth.len), Access::REMOTE_WRITE)
                .map_err(Refusal::Access)?;
        }
        self.kind = Kind::Write;
        self.placed = 0;
        (self.rkey, self.addr, self.left) = (reth.rkey, reth.addr, reth.len);
        Ok(())
    }

    fn ensure_recv<H: HostServices>(
        &mut self,
        xrc: Option<Srqn>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Refusal> {
        if !self.has_recv {
            self.has_recv = if io.id.shared_recv {
                io.host.take_shared_recv(xrc, &mut self.recv)
            } else {
                rq.pop(&mut self.recv)
            };
            self.side = xrc.map_or(Side::Recv, Side::Xrc);
        }
        if self.has_recv { Ok(()) } else { Err(Refusal::NoReceive) }
    }

    /// Completes the current receive.
    #[inline(always)] // so that the completion is built in its final location
    fn finish_recv<V: MessagePart, H: HostServices>(
        &mut self,
        view: &V,
        opcode: WcOpcode,
        io: &mut Io<'_, H>,
    ) {
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::WITH_IMM, view.imm().is_some());
        flags.set(WcFlags::WITH_INV, view.ieth().is_some());
        let byte_len = self.placed as u32;
        self.abandon();
        self.has_recv = false;
        io.host.complete(
            self.side,
            Completion {
                wr_id: self.recv.wr_id,
                opcode,
                byte_len,
                imm: view.imm().unwrap_or_default(),
                invalidated: view.ieth().unwrap_or_default(),
                qpn: io.id.qpn,
                src_qpn: io.attr.dest_qpn,
                flags,
                solicited: view.solicited(),
                ..Completion::default()
            },
        );
    }

    /// Completes the current receive with an error. Returns whether there was one.
    pub(crate) fn fail_recv<H: HostServices>(
        &mut self,
        status: WcStatus,
        why: Reason,
        io: &mut Io<'_, H>,
    ) -> bool {
        match self.take_recv() {
            Some((side, wr_id)) => {
                io.complete_failed(side, wr_id, WcOpcode::Recv, status, why);
                true
            }
            None => false,
        }
    }
}

/// Places the data of a packet, `offset` bytes into a receive.
#[inline(always)]
fn place<V: MessagePart, H: HostServices>(
    view: &V,
    sges: &[Sge],
    offset: u64,
    io: &mut Io<'_, H>,
) -> Result<(), Refusal> {
    let (needed, capacity) = (offset + view.len() as u64, capacity(sges));
    if needed > capacity {
        return Err(Refusal::TooLong { capacity, needed });
    }
    view.place(sges, offset, io)
}
