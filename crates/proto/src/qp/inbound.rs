//! A message on its way in: what both connected transports do with the data of a SEND or WRITE.
//!
//! Every check on an inbound message (sequence of opcodes, lengths, receive present, key, range, rights) is made
//! here and nowhere else, so that a reliable and an unreliable connection cannot come to differ. What follows from
//! a refusal does differ: RC turns it into a NAK, UC into a dropped message.

use super::io::Io;
use super::rq::capacity;
use super::{Host, LARGE_SEGMENT, Reason, RecvQueue, RecvWqe, Side};
use crate::ids::{RKey, Srqn};
use crate::verbs::{Access, Completion, MemoryFault, Sge, WcFlags, WcOpcode, WcStatus};
use crate::wire::{Headers, Names, Operation, Packet, SendNamed, SendOnly};

/// Why a packet of a message was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No receive is posted; the state is as if the packet had not come.
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
    /// The key named by SEND with invalidate cannot be invalidated.
    Invalidate(MemoryFault),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    Idle,
    Send,
    Write,
}

/// What a message says beside its data.
struct Told {
    imm: Option<u32>,
    invalidated: Option<RKey>,
    solicited: bool,
}

impl Told {
    fn of(headers: &Headers) -> Told {
        Told { imm: headers.imm, invalidated: headers.ieth, solicited: headers.bth.solicited }
    }
}

/// The state of the message being received.
#[derive(Debug, Default)]
pub(crate) struct Inbound {
    kind: Kind,
    /// The receive in hand. It survives a broken unreliable message and serves the next one.
    recv: RecvWqe,
    has_recv: bool,
    /// Which completion queue that receive reports to.
    side: Side,
    /// Bytes of the message already placed.
    placed: u64,
    /// Payload of each of its packets but the last.
    segment: u32,
    /// Rest of a WRITE.
    rkey: RKey,
    addr: u64,
    left: u32,
}

impl Inbound {
    /// Whether a message is half received.
    pub(crate) fn in_message(&self) -> bool {
        self.kind != Kind::Idle
    }

    /// Forgets a half-received message but keeps the receive for the next one.
    pub(crate) fn abandon(&mut self) {
        self.kind = Kind::Idle;
        self.placed = 0;
    }

    /// Gives up the receive in hand, for flushing.
    pub(crate) fn take_recv(&mut self) -> Option<(Side, u64)> {
        self.abandon();
        core::mem::take(&mut self.has_recv).then_some((self.side, self.recv.wr_id))
    }

    /// Places one packet of a SEND or WRITE. True when it was the last of its message.
    pub(crate) fn accept<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<bool, Refusal> {
        let op = pkt.headers.bth.opcode.operation;
        self.check_sequence(op)?;
        if op.starts_message() {
            let is_large = pkt.payload.len() > io.mtu() as usize && io.host.takes_large();
            self.segment = if is_large { LARGE_SEGMENT } else { io.mtu() };
        }
        check_payload(op, pkt.payload.len(), self.segment)?;
        if op.is_send() { self.accept_send(pkt, rq, io) } else { self.accept_write(pkt, rq, io) }
    }

    /// Places a SEND of one packet, if nothing is wrong with it. False: nothing was placed that counts. The receive is where
    /// [`Self::accept`] finds it: in the queue, or in hand if it came from a shared one.
    #[inline(always)] // one caller
    pub(crate) fn accept_whole<H: Host>(
        &mut self,
        head: &SendOnly,
        payload: &[u8],
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> bool {
        let is_large = payload.len() > io.mtu() as usize && io.host.takes_large();
        let segment = if is_large { LARGE_SEGMENT } else { io.mtu() };
        if payload.len() > segment as usize {
            return false;
        }
        if self.has_recv || io.id.shared_recv {
            if !self.place_in_hand(payload, rq, io) {
                return false;
            }
        } else {
            // Used where it lies: to take it into the hand would be to copy it.
            match rq.oldest() {
                Some((wr_id, sges)) if place_whole(sges, payload, io) => {
                    (self.recv.wr_id, self.side) = (wr_id, Side::Recv);
                    rq.forget_oldest();
                }
                _ => return false,
            }
        }
        let told = Told { imm: head.imm, invalidated: None, solicited: head.solicited };
        self.finish_recv(told, WcOpcode::Recv, payload.len() as u32, io);
        true
    }

    /// Places a whole message in the receive in hand, or in the next one of the shared queue.
    #[inline(never)]
    fn place_in_hand<H: Host>(&mut self, payload: &[u8], rq: &mut RecvQueue, io: &mut Io<'_, H>) -> bool {
        self.ensure_recv(None, rq, io).is_ok() && place_whole(&self.recv.sges, payload, io)
    }

    /// Fetches a SEND that the peer named. False: it cannot be fetched, and a receive that was taken for it stays in hand.
    pub(crate) fn accept_named<H: Host>(
        &mut self,
        head: &SendNamed,
        names: &Names,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<bool, Refusal> {
        self.ensure_recv(None, rq, io)?;
        let (needed, capacity) = (u64::from(names.message_len()), self.recv.capacity());
        if needed > capacity {
            return Err(Refusal::TooLong { capacity, needed });
        }
        if !io.host.fetch(io.pd, &self.recv.sges, names) {
            return Ok(false);
        }
        let told = Told { imm: head.imm, invalidated: None, solicited: head.solicited };
        self.finish_recv(told, WcOpcode::Recv, names.message_len(), io);
        Ok(true)
    }

    fn check_sequence(&self, op: Operation) -> Result<(), Refusal> {
        let fits = match self.kind {
            Kind::Idle => op.starts_message(),
            Kind::Send => op.is_send() && !op.starts_message(),
            Kind::Write => op.is_write() && !op.starts_message(),
        };
        if fits { Ok(()) } else { Err(Refusal::Sequence) }
    }

    fn accept_send<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<bool, Refusal> {
        let op = pkt.headers.bth.opcode.operation;
        if op.starts_message() {
            self.ensure_recv(pkt.headers.xrceth, rq, io)?;
            self.kind = Kind::Send;
            self.placed = 0;
        }
        let needed = self.placed + pkt.payload.len() as u64;
        let capacity = self.recv.capacity();
        if needed > capacity {
            return Err(Refusal::TooLong { capacity, needed });
        }
        if !pkt.payload.is_empty() {
            io.host.scatter(io.pd, &self.recv.sges, self.placed, pkt.payload).map_err(Refusal::Local)?;
        }
        self.placed = needed;
        if !op.ends_message() {
            return Ok(false);
        }
        if let Some(rkey) = pkt.headers.ieth {
            io.host.invalidate(io.pd, rkey).map_err(Refusal::Invalidate)?;
        }
        self.finish_recv(Told::of(&pkt.headers), WcOpcode::Recv, needed as u32, io);
        Ok(true)
    }

    fn accept_write<H: Host>(
        &mut self,
        pkt: &Packet<'_>,
        rq: &mut RecvQueue,
        io: &mut Io<'_, H>,
    ) -> Result<bool, Refusal> {
        let op = pkt.headers.bth.opcode.operation;
        // Before anything is written: a WRITE answered by RNR NAK comes again as a whole packet.
        if pkt.headers.imm.is_some() {
            self.ensure_recv(pkt.headers.xrceth, rq, io)?;
        }
        if op.starts_message() {
            self.start_write(&pkt.headers, io)?;
        }
        let len = pkt.payload.len() as u32;
        if if op.ends_message() { len != self.left } else { len >= self.left } {
            return Err(Refusal::Length);
        }
        if len > 0 {
            io.host.write_remote(io.pd, self.rkey, self.addr, pkt.payload).map_err(Refusal::Access)?;
        }
        self.addr = self.addr.wrapping_add(u64::from(len));
        self.left -= len;
        self.placed += u64::from(len);
        if !op.ends_message() {
            return Ok(false);
        }
        let written = self.placed as u32;
        if pkt.headers.imm.is_some() {
            self.finish_recv(Told::of(&pkt.headers), WcOpcode::RecvRdmaWithImm, written, io);
        } else {
            self.abandon();
        }
        Ok(true)
    }

    /// Places a packet from the middle of the WRITE under way, if nothing is wrong with it. False: nothing was placed.
    #[inline]
    pub(crate) fn accept_write_middle<H: Host>(&mut self, payload: &[u8], io: &mut Io<'_, H>) -> bool {
        let is_middle =
            self.kind == Kind::Write && payload.len() == self.segment as usize && self.segment < self.left;
        if !is_middle || io.host.write_remote(io.pd, self.rkey, self.addr, payload).is_err() {
            return false;
        }
        self.addr = self.addr.wrapping_add(u64::from(self.segment));
        self.left -= self.segment;
        self.placed += u64::from(self.segment);
        true
    }

    /// Places a packet that is `ahead` packets early, if it is from the middle of the WRITE under way: where its bytes belong is known,
    /// and that the peer may write there was checked with the first packet. Never the last one, which programs watch for. False if
    /// this is another kind of packet, or it cannot be placed; it then has to wait for its turn.
    pub(crate) fn place_early<H: Host>(&self, pkt: &Packet<'_>, ahead: u32, io: &mut Io<'_, H>) -> bool {
        let is_middle = pkt.headers.bth.opcode.operation == Operation::WriteMiddle;
        if !is_middle || self.kind != Kind::Write || pkt.headers.xrceth.is_some() {
            return false;
        }
        let offset = u64::from(ahead) * u64::from(self.segment);
        let is_inside = offset + u64::from(self.segment) < u64::from(self.left);
        is_inside
            && pkt.payload.len() == self.segment as usize
            && io.host.write_remote(io.pd, self.rkey, self.addr.wrapping_add(offset), pkt.payload).is_ok()
    }

    /// The turn of a packet has come that was placed early.
    pub(crate) fn pass_placed<H: Host>(&mut self, io: &mut Io<'_, H>) -> Result<(), MemoryFault> {
        let len = self.segment;
        // Had it come in its turn, memory that has gone since would have refused it.
        io.host.check_remote(io.pd, self.rkey, self.addr, u64::from(len), Access::REMOTE_WRITE)?;
        self.addr = self.addr.wrapping_add(u64::from(len));
        self.left = self.left.saturating_sub(len);
        self.placed += u64::from(len);
        Ok(())
    }

    fn start_write<H: Host>(&mut self, headers: &Headers, io: &mut Io<'_, H>) -> Result<(), Refusal> {
        let reth = headers.reth.ok_or(Refusal::Sequence)?;
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

    fn ensure_recv<H: Host>(
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

    #[inline(always)] // then the completion is made where it will lie
    fn finish_recv<H: Host>(&mut self, told: Told, opcode: WcOpcode, byte_len: u32, io: &mut Io<'_, H>) {
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::WITH_IMM, told.imm.is_some());
        flags.set(WcFlags::WITH_INV, told.invalidated.is_some());
        self.abandon();
        self.has_recv = false;
        io.host.complete(
            self.side,
            Completion {
                wr_id: self.recv.wr_id,
                opcode,
                byte_len,
                imm: told.imm.unwrap_or_default(),
                invalidated: told.invalidated.unwrap_or_default(),
                qpn: io.id.qpn,
                src_qpn: io.attr.dest_qpn,
                flags,
                solicited: told.solicited,
                ..Completion::default()
            },
        );
    }

    /// Completes the receive in hand with an error, if there is one. False if there was none to tell.
    pub(crate) fn fail_recv<H: Host>(&mut self, status: WcStatus, why: Reason, io: &mut Io<'_, H>) -> bool {
        match self.take_recv() {
            Some((side, wr_id)) => {
                io.complete_failed(side, wr_id, WcOpcode::Recv, status, why);
                true
            }
            None => false,
        }
    }
}

/// Places a whole message. False if it does not fit, or the memory cannot be used.
#[inline(always)]
fn place_whole<H: Host>(sges: &[Sge], payload: &[u8], io: &mut Io<'_, H>) -> bool {
    payload.len() as u64 <= capacity(sges)
        && (payload.is_empty() || io.host.scatter(io.pd, sges, 0, payload).is_ok())
}

/// First and middle packets carry exactly one MTU, last ones 1 to MTU, only ones up to it (C9-22 … C9-27).
fn check_payload(op: Operation, len: usize, mtu: u32) -> Result<(), Refusal> {
    let mtu = mtu as usize;
    let fits = if !op.ends_message() {
        len == mtu
    } else if op.starts_message() {
        len <= mtu
    } else {
        (1..=mtu).contains(&len)
    };
    if fits { Ok(()) } else { Err(Refusal::Length) }
}
