//! The RDMAP opcodes (RFC 5040, 4.3; RFC 7306, 4).

use crate::listed::listed;

listed! {
    /// The kind of an RDMAP message.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum RdmapOpcode {
        /// RDMA WRITE.
        Write = 0 => "WRITE",
        /// READ request.
        ReadRequest = 1 => "READ request",
        /// READ response.
        ReadResponse = 2 => "READ response",
        /// SEND.
        Send = 3 => "SEND",
        /// SEND that invalidates an STag.
        SendInv = 4 => "SEND with invalidate",
        /// SEND that requests a solicited event.
        SendSe = 5 => "SEND with solicited event",
        /// SEND with both.
        SendSeInv = 6 => "SEND with solicited event and invalidate",
        /// Terminate.
        Terminate = 7 => "Terminate",
        /// Immediate data.
        Immediate = 8 => "immediate data",
        /// Immediate data that requests a solicited event.
        ImmediateSe = 9 => "immediate data with solicited event",
        /// Atomic request.
        AtomicRequest = 10 => "atomic request",
        /// Atomic response.
        AtomicResponse = 11 => "atomic response",
    }
    /// The name for sentences.
    fn name
}

impl RdmapOpcode {
    /// The opcode with this number.
    pub fn from_bits(bits: u8) -> Option<RdmapOpcode> {
        RdmapOpcode::ALL.get(usize::from(bits)).copied()
    }
    /// Whether its segments name the target buffer by STag and offset.
    pub const fn is_tagged(self) -> bool {
        matches!(self, RdmapOpcode::Write | RdmapOpcode::ReadResponse)
    }
    /// The queue of its untagged buffer; 0 for a tagged one.
    pub const fn queue(self) -> u32 {
        match self {
            RdmapOpcode::ReadRequest | RdmapOpcode::AtomicRequest => 1,
            RdmapOpcode::Terminate => 2,
            RdmapOpcode::AtomicResponse => 3,
            _ => 0,
        }
    }
    /// Whether it is one of the four SENDs.
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            RdmapOpcode::Send | RdmapOpcode::SendInv | RdmapOpcode::SendSe | RdmapOpcode::SendSeInv
        )
    }
    /// Whether its segments carry payload of any length.
    pub const fn has_payload(self) -> bool {
        self.is_tagged() || self.is_send()
    }
    /// Whether it requests a solicited event.
    pub const fn solicits(self) -> bool {
        matches!(self, RdmapOpcode::SendSe | RdmapOpcode::SendSeInv | RdmapOpcode::ImmediateSe)
    }
    /// Whether it invalidates an STag of the receiver.
    pub const fn invalidates(self) -> bool {
        matches!(self, RdmapOpcode::SendInv | RdmapOpcode::SendSeInv)
    }
    /// Whether it belongs to RFC 7306, which two ends must agree on.
    pub const fn is_extension(self) -> bool {
        self as u8 >= RdmapOpcode::Immediate as u8
    }
    /// Whether `len` is a possible length of its body. Payload may have any.
    pub const fn takes_body(self, len: usize) -> bool {
        match self {
            RdmapOpcode::ReadRequest => len == super::ReadRequest::LEN,
            RdmapOpcode::AtomicRequest => len == super::AtomicRequest::LEN,
            RdmapOpcode::AtomicResponse => len == super::AtomicResponse::LEN,
            RdmapOpcode::Immediate | RdmapOpcode::ImmediateSe => len == super::ImmediateData::LEN,
            RdmapOpcode::Terminate => 4 <= len && len <= super::MAX_BODY,
            _ => true,
        }
    }
}
