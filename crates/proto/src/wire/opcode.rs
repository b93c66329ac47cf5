//! The BTH opcode: a service, an operation, and the extension headers that follow from the two (IBA 9.2.1).

use crate::listed::listed;

/// Transport service: bits 7..5 of the opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram. Listed for completeness; its packets are not accepted.
    Rd = 2,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification (RoCEv2, IBA annex A17).
    Cnp = 4,
    /// Extended reliable connection (IBA annex A14).
    Xrc = 5,
    /// Opcodes reserved for manufacturers (IBA 9.2.1); used only between ferroce peers.
    Own = 6,
}

impl Service {
    const fn from_bits(bits: u8) -> Option<Service> {
        Some(match bits {
            0 => Service::Rc,
            1 => Service::Uc,
            2 => Service::Rd,
            3 => Service::Ud,
            4 => Service::Cnp,
            5 => Service::Xrc,
            6 => Service::Own,
            _ => return None,
        })
    }
}

listed! {
    /// What a packet does: bits 4..0 of the opcode.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u8)]
    pub enum Operation {
        /// First packet of a SEND.
        SendFirst = 0,
        /// Packet inside a SEND.
        SendMiddle = 1,
        /// Last packet of a SEND.
        SendLast = 2,
        /// Last packet of a SEND, with immediate data.
        SendLastImm = 3,
        /// A whole SEND.
        SendOnly = 4,
        /// A whole SEND with immediate data.
        SendOnlyImm = 5,
        /// First packet of an RDMA WRITE.
        WriteFirst = 6,
        /// Packet inside an RDMA WRITE.
        WriteMiddle = 7,
        /// Last packet of an RDMA WRITE.
        WriteLast = 8,
        /// Last packet of an RDMA WRITE, with immediate data.
        WriteLastImm = 9,
        /// A whole RDMA WRITE.
        WriteOnly = 10,
        /// A whole RDMA WRITE with immediate data.
        WriteOnlyImm = 11,
        /// RDMA READ request.
        ReadRequest = 12,
        /// First packet of a READ response.
        ReadResponseFirst = 13,
        /// Packet inside a READ response.
        ReadResponseMiddle = 14,
        /// Last packet of a READ response.
        ReadResponseLast = 15,
        /// A whole READ response.
        ReadResponseOnly = 16,
        /// Positive or negative acknowledgement.
        Acknowledge = 17,
        /// Acknowledgement of an atomic, with the original value.
        AtomicAcknowledge = 18,
        /// Atomic compare and swap.
        CompareSwap = 19,
        /// Atomic fetch and add.
        FetchAdd = 20,
        /// Last packet of a SEND, with a key to invalidate.
        SendLastInv = 22,
        /// A whole SEND with a key to invalidate.
        SendOnlyInv = 23,
        /// Flush: earlier writes of the connection are placed before it is answered (IBA annex A19).
        Flush = 28,
        /// Atomic write of eight bytes (IBA annex A19).
        AtomicWrite = 29,
        /// Congestion notification, only under [`Service::Cnp`]. Bits 4..0 are 1, which is
        /// SEND middle in every other service. Bit 5 of this number distinguishes the two; it is not on the wire.
        CongestionNotification = 0x21,
    }
}

use Operation as Op;

impl Operation {
    const fn from_bits(bits: u8) -> Option<Operation> {
        Some(match bits {
            0..=20 => Operation::ALL[bits as usize],
            22 => Op::SendLastInv,
            23 => Op::SendOnlyInv,
            28 => Op::Flush,
            29 => Op::AtomicWrite,
            _ => return None,
        })
    }

    /// Whether a requester sends it.
    pub const fn is_request(self) -> bool {
        self.is_send()
            || self.is_write()
            || self.is_placement()
            || matches!(self, Op::ReadRequest | Op::CompareSwap | Op::FetchAdd)
    }
    /// Whether a responder sends it.
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Op::Acknowledge | Op::AtomicAcknowledge)
    }
    /// Whether it is the first of several packets.
    pub const fn is_first(self) -> bool {
        matches!(self, Op::SendFirst | Op::WriteFirst | Op::ReadResponseFirst)
    }
    /// Whether packets of its message come before and after it.
    pub const fn is_middle(self) -> bool {
        matches!(self, Op::SendMiddle | Op::WriteMiddle | Op::ReadResponseMiddle)
    }
    /// Whether it is the last of several packets.
    pub const fn is_last(self) -> bool {
        matches!(
            self,
            Op::SendLast
                | Op::SendLastImm
                | Op::SendLastInv
                | Op::WriteLast
                | Op::WriteLastImm
                | Op::ReadResponseLast
        )
    }
    /// Whether it is a whole message by itself; READ requests, atomics and acknowledgements always are.
    pub const fn is_only(self) -> bool {
        !self.is_first() && !self.is_middle() && !self.is_last()
    }
    /// Whether a message begins with it.
    pub const fn starts_message(self) -> bool {
        self.is_first() || self.is_only()
    }
    /// Whether a message ends with it.
    pub const fn ends_message(self) -> bool {
        self.is_last() || self.is_only()
    }
    /// Whether it belongs to a SEND, with immediate data or invalidation or without.
    pub const fn is_send(self) -> bool {
        matches!(self as u8, 0..=5 | 22 | 23)
    }
    /// Whether it belongs to an RDMA WRITE, with immediate data or without.
    pub const fn is_write(self) -> bool {
        matches!(self as u8, 6..=11)
    }
    /// Whether it belongs to a READ response.
    pub const fn is_read_response(self) -> bool {
        matches!(self as u8, 13..=16)
    }
    /// Whether it requests an atomic.
    pub const fn is_atomic(self) -> bool {
        matches!(self, Op::CompareSwap | Op::FetchAdd)
    }
    /// Whether it is a flush or an atomic write. Both are answered like a READ of no bytes.
    pub const fn is_placement(self) -> bool {
        matches!(self, Op::Flush | Op::AtomicWrite)
    }
    /// Whether it ends with immediate data.
    pub const fn is_imm(self) -> bool {
        matches!(self, Op::SendLastImm | Op::SendOnlyImm | Op::WriteLastImm | Op::WriteOnlyImm)
    }
    /// Whether it carries a key to invalidate.
    pub const fn is_inv(self) -> bool {
        matches!(self, Op::SendLastInv | Op::SendOnlyInv)
    }
}

/// A whole opcode. Any pair can be built; [`Opcode::from_byte`] gives only those that the specification or ferroce defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    /// Transport service.
    pub service: Service,
    /// What the packet does.
    pub operation: Operation,
}

/// The opcode of each byte. A table, because every packet needs one and most would take a dozen comparisons.
static DEFINED: [Option<Opcode>; 256] = {
    let mut defined = [None; 256];
    let mut byte = 0;
    while byte < 256 {
        defined[byte] = Opcode::decode(byte as u8);
        byte += 1;
    }
    defined
};

impl Opcode {
    /// Congestion notification packet, the only opcode of its service.
    pub const CNP: Opcode = Opcode::new(Service::Cnp, Op::CongestionNotification);

    /// ACK of a marked packet of an unreliable connection. Sent only to a ferroce peer, which requests it with a reserved bit.
    pub const UC_ACK: Opcode = Opcode::new(Service::Own, Op::Acknowledge);

    /// An opcode from its two parts.
    pub const fn new(service: Service, operation: Operation) -> Opcode {
        Opcode { service, operation }
    }

    /// The byte on the wire.
    pub const fn to_byte(self) -> u8 {
        (self.service as u8) << 5 | self.operation as u8 & 0x1f
    }

    /// The opcode of a byte, if the specification or ferroce defines one. Reliable datagrams are not supported.
    #[inline]
    pub const fn from_byte(byte: u8) -> Option<Opcode> {
        DEFINED[byte as usize]
    }

    /// Service and operation of a byte, even if the specification does not combine them.
    pub(super) const fn of_bits(byte: u8) -> Option<Opcode> {
        match (Service::from_bits(byte >> 5), Operation::from_bits(byte & 0x1f)) {
            (Some(service), Some(operation)) => Some(Opcode { service, operation }),
            _ => None,
        }
    }

    const fn decode(byte: u8) -> Option<Opcode> {
        let Some(Opcode { service, operation }) = Opcode::of_bits(byte) else { return None };
        let defined = match service {
            Service::Rc => true,
            Service::Xrc => !operation.is_placement(),
            Service::Uc => (operation.is_send() && !operation.is_inv()) || operation.is_write(),
            Service::Ud => matches!(operation, Op::SendOnly | Op::SendOnlyImm),
            Service::Cnp => return if byte == Opcode::CNP.to_byte() { Some(Opcode::CNP) } else { None },
            Service::Own => matches!(operation, Op::Acknowledge),
            Service::Rd => false,
        };
        if defined { Some(Opcode { service, operation }) } else { None }
    }

    /// Whether an RETH follows.
    pub const fn has_reth(self) -> bool {
        matches!(
            self.operation,
            Op::WriteFirst | Op::WriteOnly | Op::WriteOnlyImm | Op::ReadRequest | Op::Flush | Op::AtomicWrite
        )
    }
    /// Whether an FETH follows.
    pub const fn has_feth(self) -> bool {
        matches!(self.operation, Op::Flush)
    }
    /// Whether an AETH follows; READ response middle packets have none.
    pub const fn has_aeth(self) -> bool {
        self.operation.is_response() && !self.operation.is_middle()
    }
    /// Whether an AtomicETH follows.
    pub const fn has_atomic(self) -> bool {
        self.operation.is_atomic()
    }
    /// Whether an AtomicAckETH follows.
    pub const fn has_atomic_ack(self) -> bool {
        matches!(self.operation, Op::AtomicAcknowledge)
    }
    /// Whether a DETH follows.
    pub const fn has_deth(self) -> bool {
        matches!(self.service, Service::Ud | Service::Rd) && self.operation.is_request()
    }
    /// Whether immediate data follows.
    pub const fn has_imm(self) -> bool {
        self.operation.is_imm()
    }
    /// Whether an IETH follows.
    pub const fn has_ieth(self) -> bool {
        self.operation.is_inv()
    }
    /// Whether the packet may carry a piggybacked ACK: if it is a whole SEND or WRITE of a reliable connection. Messages of several
    /// packets leave in batches of equal length, so their packets carry none.
    pub const fn may_carry_ack(self) -> bool {
        let is_whole = matches!(
            self.operation,
            Op::SendOnly | Op::SendOnlyImm | Op::SendOnlyInv | Op::WriteOnly | Op::WriteOnlyImm
        );
        matches!(self.service, Service::Rc) && is_whole
    }
    /// Whether the packet may repeat the RETH of the message. Its only purpose is that all packets of a WRITE have equal length
    /// and leave in one GSO batch.
    pub const fn may_repeat_reth(self) -> bool {
        let is_later = matches!(self.operation, Op::WriteMiddle | Op::WriteLast | Op::WriteLastImm);
        matches!(self.service, Service::Rc) && is_later
    }
    /// The same for the AETH of a READ response.
    pub const fn may_repeat_aeth(self) -> bool {
        matches!((self.service, self.operation), (Service::Rc, Op::ReadResponseMiddle))
    }
    /// Whether an XRCETH follows; only requests carry one (IBA annex A14).
    pub const fn has_xrceth(self) -> bool {
        matches!(self.service, Service::Xrc) && self.operation.is_request()
    }
}
