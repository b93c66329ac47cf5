//! Base transport header: the first 12 bytes of every packet (IBA 9.2).
//!
//! ```text
//!  0 opcode | 1 S M pad(2) TVer(4) | 2..4 P_Key | 4 F B reserved(6) | 5..8 destination QPN
//!  8 A reserved(2) partial jumbo hello extended selective | 9..12 PSN
//! ```

use super::malformed::first_bytes;
use super::{Malformed, Opcode};
use crate::ids::{PKey, Psn, Qpn};

pub(super) const SOLICITED: u8 = 0x80;
pub(super) const MIG_REQ: u8 = 0x40;
const PAD_SHIFT: u8 = 4;
const VERSION_MASK: u8 = 0x0f;
const FECN: u8 = 0x80;
pub(super) const BECN: u8 = 0x40;
pub(super) const ACK_REQ: u8 = 0x80;
pub(super) const PARTIAL_ICRC: u8 = 0x10;
pub(super) const JUMBO: u8 = 0x08;
pub(super) const HELLO: u8 = 0x04;
pub(super) const EXTENDED: u8 = 0x02;
pub(super) const SELECTIVE: u8 = 0x01;

/// Base transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bth {
    /// Service and operation of the packet.
    pub opcode: Opcode,
    /// Solicited event: the completion at the receiver raises an event on a CQ that is armed for solicited completions.
    pub solicited: bool,
    /// Migration state. Set, as hardware does while no path migration is in progress.
    pub mig_req: bool,
    /// Pad bytes after the payload, 0..=3.
    pub pad: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Queue pair that the packet goes to.
    pub dest_qpn: Qpn,
    /// Whether the packet requests an ACK.
    pub ack_req: bool,
    /// A reserved bit with which ferroce peers recognise each other. On the first request of a connection, it means that the
    /// requester supports the extensions. On an ACK, or a READ response with a regular AETH, it means that the responder
    /// supports them and has received such a request. Ignored on an [extended](Bth::extended) packet.
    pub hello: bool,
    /// A reserved bit used between ferroce peers that exchange jumbo packets. Together with the [jumbo](Bth::jumbo) bit it means that the
    /// ICRC covers the headers up to the BTH, and neither the extension headers nor the payload. Ignored without that bit. A link clears it
    /// in a received packet whose ICRC covers everything: a foreign end may set any reserved bit.
    pub partial_icrc: bool,
    /// A reserved bit used between ferroce peers that have recognised each other. On an answer with a valid [hello](Bth::hello), the
    /// responder accepts jumbo packets, which may be longer than the path MTU. On a SEND or WRITE, the packet is one. On a READ request of at
    /// most [`JUMBO_SEGMENT`](crate::qp::JUMBO_SEGMENT) bytes, the response is one.
    pub jumbo: bool,
    /// A reserved bit used between ferroce peers that have recognised each other; other peers' packets are parsed without it. On a
    /// request that [may carry one](Opcode::may_carry_ack), a [`PiggybackedAck`](super::PiggybackedAck) follows the other
    /// headers. On packets that [may repeat](Opcode::may_repeat_reth) the RETH or [the AETH](Opcode::may_repeat_aeth), that
    /// header is repeated. On a READ request, the responder may repeat the AETH.
    pub extended: bool,
    /// Selective repeat, in a reserved bit that other implementations leave zero and ignore. Set on sequence NAKs, and
    /// on retransmissions to a peer that sent such a NAK. On UC, the sender requests an [`Opcode::UC_ACK`] for this
    /// packet.
    pub selective: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

impl Bth {
    /// Bytes on the wire.
    pub const LEN: usize = 12;

    /// A header in the default partition with no flag set but the migration state.
    pub const fn new(opcode: Opcode, dest_qpn: Qpn, psn: Psn) -> Bth {
        Bth {
            opcode,
            solicited: false,
            mig_req: true,
            pad: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qpn,
            ack_req: false,
            partial_icrc: false,
            jumbo: false,
            hello: false,
            extended: false,
            selective: false,
            psn,
        }
    }

    /// Reads the header at the start of `bytes`.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Bth, Malformed> {
        let b: &[u8; Bth::LEN] = first_bytes(bytes)?;
        let version = b[1] & VERSION_MASK;
        if version != 0 {
            return Err(Malformed::BadVersion(version));
        }
        Ok(Bth {
            opcode: Opcode::from_byte(b[0]).ok_or(Malformed::UnknownOpcode(b[0]))?,
            solicited: b[1] & SOLICITED != 0,
            mig_req: b[1] & MIG_REQ != 0,
            pad: b[1] >> PAD_SHIFT & 3,
            pkey: PKey(u16::from_be_bytes([b[2], b[3]])),
            fecn: b[4] & FECN != 0,
            becn: b[4] & BECN != 0,
            dest_qpn: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            ack_req: b[8] & ACK_REQ != 0,
            partial_icrc: b[8] & PARTIAL_ICRC != 0,
            jumbo: b[8] & JUMBO != 0,
            hello: is_hello(b[8]),
            extended: b[8] & EXTENDED != 0,
            selective: b[8] & SELECTIVE != 0,
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
        })
    }

    /// Whether the packet announces a [partial ICRC](Self::partial_icrc).
    #[inline(always)]
    pub const fn has_partial_icrc(&self) -> bool {
        self.partial_icrc && self.jumbo
    }

    /// Encodes the header. Only two bits of `pad` fit.
    #[inline]
    pub fn to_bytes(&self) -> [u8; Bth::LEN] {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let pkey = self.pkey.0.to_be_bytes();
        let qpn = self.dest_qpn.value().to_be_bytes();
        let psn = self.psn.value().to_be_bytes();
        [
            self.opcode.to_byte(),
            flag(self.solicited, SOLICITED) | flag(self.mig_req, MIG_REQ) | (self.pad & 3) << PAD_SHIFT,
            pkey[0],
            pkey[1],
            flag(self.fecn, FECN) | flag(self.becn, BECN),
            qpn[1],
            qpn[2],
            qpn[3],
            flag(self.ack_req, ACK_REQ)
                | flag(self.partial_icrc, PARTIAL_ICRC)
                | flag(self.jumbo, JUMBO)
                | flag(self.hello, HELLO)
                | flag(self.extended, EXTENDED)
                | flag(self.selective, SELECTIVE),
            psn[1],
            psn[2],
            psn[3],
        ]
    }
}

/// Whether a packet announces by its BTH that its ICRC is [partial](Bth::partial_icrc).
#[inline(always)] // for each packet
pub fn has_partial_icrc(packet: &[u8]) -> bool {
    packet.get(8).is_some_and(|byte| byte & (PARTIAL_ICRC | JUMBO) == PARTIAL_ICRC | JUMBO)
}

/// Clears the bit of a packet that [announces](has_partial_icrc) a partial ICRC but has an ordinary one.
#[cold]
pub fn clear_partial_icrc(packet: &mut [u8]) {
    packet[8] &= !PARTIAL_ICRC;
}

/// Whether the byte with the acknowledge request has a valid hello bit. With the extended bit it is invalid, because a foreign end may set
/// every reserved bit.
#[inline(always)]
pub(super) const fn is_hello(byte: u8) -> bool {
    byte & (HELLO | EXTENDED) == HELLO
}

/// The BTHs of consecutive packets that differ only in PSN.
#[derive(Clone, Copy, Debug)]
pub struct BthRun {
    bytes: [u8; Bth::LEN],
    psn: Psn,
}

impl BthRun {
    /// A run that begins with this BTH.
    pub fn new(first: &Bth) -> BthRun {
        BthRun { bytes: first.to_bytes(), psn: first.psn }
    }

    /// Encodes the next BTH of the run.
    #[inline]
    pub fn next_bytes(&mut self) -> [u8; Bth::LEN] {
        let bytes = self.bytes;
        self.psn = self.psn.plus(1);
        self.bytes[9..].copy_from_slice(&self.psn.value().to_be_bytes()[1..]);
        bytes
    }
}

/// Destination of a packet, without parsing the rest. It is enough to steer the packet to a process.
#[inline]
pub fn dest_qpn(bytes: &[u8]) -> Option<Qpn> {
    let b: &[u8; Bth::LEN] = bytes.first_chunk()?;
    Some(Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])))
}
