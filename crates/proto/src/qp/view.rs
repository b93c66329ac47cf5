//! The view of a packet that the checks read.
//!
//! Every check on an incoming packet is written once, generic over this trait. [`Packet`] reads parsed headers. The
//! fast views return constants where their parser has already decided, so the compiler removes the checks.

use super::inbound::Refusal;
use super::io::Io;
use super::{Attempt, HostServices, Placement};
use crate::ids::{PKey, Psn, RKey, Srqn};
use crate::verbs::Sge;
use crate::wire::{
    AckOnly, Bth, Headers, Opcode, Operation, Packet, PiggybackedAck, RendezvousSend, Reth, SendOnly,
    Service, SourceRef, WriteMiddle,
};

/// The part of a message that a packet, or a piece of a byte stream, carries.
pub(crate) trait MessagePart {
    /// The kind of message, and the position of this part in it.
    fn operation(&self) -> Operation;
    /// The bytes that the packet carries.
    fn payload(&self) -> &[u8];

    fn solicited(&self) -> bool {
        false
    }
    fn imm(&self) -> Option<u32> {
        None
    }
    fn ieth(&self) -> Option<RKey> {
        None
    }
    fn xrceth(&self) -> Option<Srqn> {
        None
    }
    fn reth(&self) -> Option<Reth> {
        None
    }
    /// Whether data of the message follows this part.
    #[inline(always)]
    fn placement(&self) -> Placement {
        Placement::of(self.operation().ends_message())
    }
    /// Message bytes that the packet represents.
    #[inline(always)]
    fn len(&self) -> usize {
        self.payload().len()
    }
    /// Whether the length matches the opcode: first and middle packets carry exactly `segment` bytes, last ones 1 to
    /// `segment`, only ones at most `segment` (C9-22 … C9-27).
    #[inline(always)]
    fn has_valid_len(&self, segment: u32) -> bool {
        let (op, len, segment) = (self.operation(), self.len(), segment as usize);
        if !op.ends_message() { len == segment } else { len <= segment && (op.starts_message() || len > 0) }
    }
    /// Places the data of a WRITE.
    #[inline(always)]
    fn place_remote<H: HostServices>(
        &self,
        rkey: RKey,
        addr: u64,
        io: &mut Io<'_, H>,
    ) -> Result<(), Refusal> {
        io.host.write_remote(io.pd, rkey, addr, self.payload(), self.placement()).map_err(Refusal::Access)
    }
    /// Places the data at `offset` of a receive's SGEs.
    #[inline(always)]
    fn place<H: HostServices>(&self, sges: &[Sge], offset: u64, io: &mut Io<'_, H>) -> Result<(), Refusal> {
        match self.payload() {
            [] => Ok(()),
            data => {
                io.host.scatter(io.recv_pd(), sges, offset, data, self.placement()).map_err(Refusal::Local)
            }
        }
    }
}

/// A packet.
pub(crate) trait View: MessagePart {
    /// Whether an out-of-order packet of this kind can be kept.
    const CAN_BE_KEPT: bool = true;

    fn opcode(&self) -> Opcode;
    fn pkey(&self) -> PKey;
    fn psn(&self) -> Psn;
    fn ack_req(&self) -> bool;
    /// The same packet with parsed headers, for slow paths.
    fn to_packet(&self) -> Packet<'_>;

    fn hello(&self) -> bool {
        false
    }
    fn jumbo(&self) -> bool {
        false
    }
    fn selective(&self) -> bool {
        false
    }
    fn piggybacked_ack(&self) -> Option<PiggybackedAck> {
        None
    }
    /// Number of PSNs that the packet uses.
    fn packets(&self) -> u32 {
        1
    }
}

impl MessagePart for Packet<'_> {
    fn operation(&self) -> Operation {
        self.headers.bth.opcode.operation
    }
    fn payload(&self) -> &[u8] {
        self.payload
    }
    /// Every packet of a UC message counts as the last: the rest of the message may never arrive, and the data must be visible then.
    fn placement(&self) -> Placement {
        let Opcode { service, operation } = self.headers.bth.opcode;
        Placement::of(operation.ends_message() || service == Service::Uc)
    }
    fn solicited(&self) -> bool {
        self.headers.bth.solicited
    }
    fn imm(&self) -> Option<u32> {
        self.headers.imm
    }
    fn ieth(&self) -> Option<RKey> {
        self.headers.ieth
    }
    fn xrceth(&self) -> Option<Srqn> {
        self.headers.xrceth
    }
    fn reth(&self) -> Option<Reth> {
        self.headers.reth
    }
}

impl View for Packet<'_> {
    fn opcode(&self) -> Opcode {
        self.headers.bth.opcode
    }
    fn pkey(&self) -> PKey {
        self.headers.bth.pkey
    }
    fn psn(&self) -> Psn {
        self.headers.bth.psn
    }
    fn ack_req(&self) -> bool {
        self.headers.bth.ack_req
    }
    fn to_packet(&self) -> Packet<'_> {
        *self
    }
    fn hello(&self) -> bool {
        self.headers.bth.hello
    }
    fn jumbo(&self) -> bool {
        self.headers.bth.jumbo
    }
    fn selective(&self) -> bool {
        self.headers.bth.selective
    }
    fn piggybacked_ack(&self) -> Option<PiggybackedAck> {
        self.headers.piggybacked_ack
    }
}

impl MessagePart for (SendOnly, &[u8]) {
    #[inline(always)]
    fn operation(&self) -> Operation {
        self.0.opcode().operation
    }
    #[inline(always)]
    fn payload(&self) -> &[u8] {
        self.1
    }
    #[inline(always)]
    fn solicited(&self) -> bool {
        self.0.solicited
    }
    #[inline(always)]
    fn imm(&self) -> Option<u32> {
        self.0.imm
    }
}

impl View for (SendOnly, &[u8]) {
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        self.0.opcode()
    }
    #[inline(always)]
    fn pkey(&self) -> PKey {
        self.0.pkey
    }
    #[inline(always)]
    fn psn(&self) -> Psn {
        self.0.psn
    }
    #[inline(always)]
    fn ack_req(&self) -> bool {
        self.0.ack_req
    }
    #[cold]
    fn to_packet(&self) -> Packet<'_> {
        Packet { headers: self.0.to_headers(self.1.len()), payload: self.1 }
    }
    #[inline(always)]
    fn hello(&self) -> bool {
        self.0.hello
    }
    #[inline(always)]
    fn selective(&self) -> bool {
        self.0.selective
    }
    #[inline(always)]
    fn piggybacked_ack(&self) -> Option<PiggybackedAck> {
        self.0.piggybacked_ack
    }
}

impl MessagePart for (WriteMiddle, &[u8]) {
    #[inline(always)]
    fn operation(&self) -> Operation {
        Operation::WriteMiddle
    }
    #[inline(always)]
    fn payload(&self) -> &[u8] {
        self.1
    }
}

impl View for (WriteMiddle, &[u8]) {
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        Opcode::new(Service::Rc, self.operation())
    }
    #[inline(always)]
    fn pkey(&self) -> PKey {
        self.0.pkey
    }
    #[inline(always)]
    fn psn(&self) -> Psn {
        self.0.psn
    }
    #[inline(always)]
    fn ack_req(&self) -> bool {
        self.0.ack_req
    }
    #[cold]
    fn to_packet(&self) -> Packet<'_> {
        let WriteMiddle { dest_qpn, pkey, psn, ack_req, selective } = self.0;
        let bth = Bth { pkey, ack_req, selective, ..Bth::new(self.opcode(), dest_qpn, psn) };
        Packet { headers: Headers::new(bth), payload: self.1 }
    }
    #[inline(always)]
    fn selective(&self) -> bool {
        self.0.selective
    }
}

impl MessagePart for AckOnly {
    #[inline(always)]
    fn operation(&self) -> Operation {
        AckOnly::OPCODE.operation
    }
    #[inline(always)]
    fn payload(&self) -> &[u8] {
        &[]
    }
}

impl View for AckOnly {
    #[inline(always)]
    fn opcode(&self) -> Opcode {
        AckOnly::OPCODE
    }
    #[inline(always)]
    fn pkey(&self) -> PKey {
        self.pkey
    }
    #[inline(always)]
    fn psn(&self) -> Psn {
        self.psn
    }
    #[inline(always)]
    fn ack_req(&self) -> bool {
        false
    }
    #[cold]
    fn to_packet(&self) -> Packet<'_> {
        Packet { headers: self.to_headers(), payload: &[] }
    }
}

impl MessagePart for (RendezvousSend, SourceRef) {
    fn operation(&self) -> Operation {
        match (self.0.reth, self.0.imm) {
            (Some(_), _) => Operation::WriteOnlyImm,
            (None, Some(_)) => Operation::SendOnlyImm,
            (None, None) => Operation::SendOnly,
        }
    }
    fn payload(&self) -> &[u8] {
        &[]
    }
    fn solicited(&self) -> bool {
        self.0.solicited
    }
    fn imm(&self) -> Option<u32> {
        self.0.imm
    }
    fn reth(&self) -> Option<Reth> {
        self.0.reth
    }
    fn len(&self) -> usize {
        self.1.message_len() as usize
    }
    /// [`Qp::receive`](super::Qp::receive) drops a record whose length and number of packets contradict each other.
    fn has_valid_len(&self, _segment: u32) -> bool {
        true
    }
    fn place<H: HostServices>(&self, sges: &[Sge], _offset: u64, io: &mut Io<'_, H>) -> Result<(), Refusal> {
        match io.host.fetch(io.recv_pd(), sges, &self.1) {
            Attempt::Done => Ok(()),
            Attempt::Declined => Err(Refusal::NotFetched),
        }
    }
    fn place_remote<H: HostServices>(
        &self,
        rkey: RKey,
        addr: u64,
        io: &mut Io<'_, H>,
    ) -> Result<(), Refusal> {
        match io.host.fetch_remote(io.pd, rkey, addr, &self.1) {
            Attempt::Done => Ok(()),
            Attempt::Declined => Err(Refusal::NotFetched),
        }
    }
}

/// The message uses the PSNs of its packets. The receiver copies its data from the sender's memory.
impl View for (RendezvousSend, SourceRef) {
    const CAN_BE_KEPT: bool = false;
    fn opcode(&self) -> Opcode {
        Opcode::new(Service::Rc, self.operation())
    }
    fn pkey(&self) -> PKey {
        self.0.pkey
    }
    fn psn(&self) -> Psn {
        self.0.psn
    }
    /// The sender's memory is in use until the ACK arrives.
    fn ack_req(&self) -> bool {
        true
    }
    fn to_packet(&self) -> Packet<'_> {
        let RendezvousSend { dest_qpn, pkey, psn, solicited, reth, imm, piggybacked_ack, .. } = self.0;
        let bth = Bth { pkey, ack_req: true, solicited, ..Bth::new(self.opcode(), dest_qpn, psn) };
        Packet { headers: Headers { reth, imm, piggybacked_ack, ..Headers::new(bth) }, payload: &[] }
    }
    /// Only a ferroce process sends such a record.
    fn hello(&self) -> bool {
        true
    }
    fn piggybacked_ack(&self) -> Option<PiggybackedAck> {
        self.0.piggybacked_ack
    }
    fn packets(&self) -> u32 {
        self.0.packets
    }
}
