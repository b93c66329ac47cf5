//! A SEND, or a WRITE with immediate data, that refers to the sender's memory. It is sent through a shared memory ring, never over a network.
//!
//! ```text
//! BTH | RETH, by opcode | ImmDt, by opcode | piggybacked ACK, by extended bit | 4 packets | 4 key | 12 for each piece: address, length
//! ```
//!
//! The opcode is reserved for manufacturers (IBA 9.2.1), so [`Packet`](super::Packet) rejects it. Only a link that can identify
//! the process that wrote the bytes may call [`RendezvousSend::parse`]. The message uses the same PSNs as its packets, so it
//! can be retransmitted as packets.

use super::bth::{ACK_REQ, EXTENDED, MIG_REQ, SOLICITED};
use super::send_only::imm_and_ack;
use super::{Bth, MAX_MESSAGE, PiggybackedAck, Reth};
use crate::ids::{PKey, Psn, Qpn, RKey};

const RENDEZVOUS_SEND: u8 = 0xc4;
const RENDEZVOUS_SEND_IMM: u8 = 0xc5;
const RENDEZVOUS_WRITE_IMM: u8 = 0xc6;

/// A range of bytes in the sender's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourcePiece {
    /// First address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u32,
}

impl SourcePiece {
    const LEN: usize = 12;
}

/// The bytes of a message: its pieces in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceRef {
    list: [SourcePiece; SourceRef::MAX_PIECES],
    count: usize,
    len: u32,
    /// 0 for none.
    key: u32,
}

impl SourceRef {
    /// Most pieces that a message may have.
    pub const MAX_PIECES: usize = 4;

    /// Creates a reference to these pieces. `None` if there are none or too many, if one is empty, or if the message is too
    /// long.
    pub fn new(pieces: impl IntoIterator<Item = SourcePiece>) -> Option<SourceRef> {
        let mut all =
            SourceRef { list: [SourcePiece::default(); SourceRef::MAX_PIECES], count: 0, len: 0, key: 0 };
        for piece in pieces {
            *all.list.get_mut(all.count)? = piece;
            all.count += 1;
            all.len = all.len.checked_add(piece.len).filter(|&len| piece.len > 0 && len <= MAX_MESSAGE)?;
        }
        (all.count > 0).then_some(all)
    }

    /// Sets the rkey of the region, if there is only one piece.
    pub fn of_region(self, key: RKey) -> SourceRef {
        SourceRef { key: if self.count == 1 { key.0 } else { 0 }, ..self }
    }

    /// The rkey of the region of the only piece, if known.
    pub fn region(&self) -> Option<RKey> {
        (self.key != 0).then_some(RKey(self.key))
    }

    /// The pieces.
    pub fn pieces(&self) -> &[SourcePiece] {
        &self.list[..self.count]
    }

    /// Bytes of the message.
    pub fn message_len(&self) -> u32 {
        self.len
    }
}

/// The record before the pieces. It always requests an ACK: the sender's memory is in use until the ACK arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RendezvousSend {
    /// Queue pair that it goes to.
    pub dest_qpn: Qpn,
    /// Partition key.
    pub pkey: PKey,
    /// The first sequence number.
    pub psn: Psn,
    /// Number of PSNs: the number of packets of the message.
    pub packets: u32,
    /// Solicited event.
    pub solicited: bool,
    /// Where a WRITE goes; `None` for a SEND. A WRITE always has immediate data.
    pub reth: Option<Reth>,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// Piggybacked ACK.
    pub piggybacked_ack: Option<PiggybackedAck>,
}

impl RendezvousSend {
    /// Maximum record size in bytes.
    pub const MAX_LEN: usize =
        Bth::LEN + Reth::LEN + 4 + PiggybackedAck::LEN + 8 + SourceRef::MAX_PIECES * SourcePiece::LEN;

    /// The record, and how long it is.
    pub fn to_bytes(&self, source: &SourceRef) -> ([u8; RendezvousSend::MAX_LEN], usize) {
        let mut out = [0; RendezvousSend::MAX_LEN];
        let mut len = 0;
        let mut put = |bytes: &[u8]| {
            out[len..len + bytes.len()].copy_from_slice(bytes);
            len += bytes.len();
        };
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let opcode = match (self.reth, self.imm) {
            (Some(_), _) => RENDEZVOUS_WRITE_IMM,
            (None, Some(_)) => RENDEZVOUS_SEND_IMM,
            (None, None) => RENDEZVOUS_SEND,
        };
        put(&[opcode, flag(self.solicited, SOLICITED) | MIG_REQ]);
        put(&self.pkey.0.to_be_bytes());
        put(&self.dest_qpn.value().to_be_bytes());
        put(&[ACK_REQ | flag(self.piggybacked_ack.is_some(), EXTENDED)]);
        put(&self.psn.value().to_be_bytes()[1..]);
        if let Some(reth) = self.reth {
            put(&reth.to_bytes());
        }
        if let Some(imm) = self.imm {
            put(&imm.to_be_bytes());
        }
        if let Some(piggybacked_ack) = self.piggybacked_ack {
            put(&piggybacked_ack.to_bytes());
        }
        put(&self.packets.to_be_bytes());
        put(&source.key.to_be_bytes());
        for piece in source.pieces() {
            put(&piece.addr.to_be_bytes());
            put(&piece.len.to_be_bytes());
        }
        (out, len)
    }

    /// Reads a record, if it is one.
    pub fn parse(bytes: &[u8]) -> Option<(RendezvousSend, SourceRef)> {
        let (&b, rest) = bytes.split_first_chunk::<{ Bth::LEN }>()?;
        let is_write = b[0] == RENDEZVOUS_WRITE_IMM;
        let has_imm = b[0] == RENDEZVOUS_SEND_IMM || is_write;
        let is_plain = b[1] & !SOLICITED == MIG_REQ;
        if !(b[0] == RENDEZVOUS_SEND || has_imm) || !is_plain || b[8] & !EXTENDED != ACK_REQ {
            return None;
        }
        let (reth, rest) =
            if is_write { (Some(Reth::parse(rest).ok()?), rest.get(Reth::LEN..)?) } else { (None, rest) };
        let (imm, piggybacked_ack, rest) = imm_and_ack(rest, has_imm, b[8] & EXTENDED != 0)?;
        let (packets, rest) = rest.split_first_chunk::<4>()?;
        let (key, rest) = rest.split_first_chunk::<4>()?;
        let (pieces, rest) = rest.as_chunks::<{ SourcePiece::LEN }>();
        let source =
            SourceRef::new(pieces.iter().map(|&[a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3]| {
                SourcePiece {
                    addr: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
                    len: u32::from_be_bytes([l0, l1, l2, l3]),
                }
            }))?;
        let head = RendezvousSend {
            dest_qpn: Qpn::new(u32::from_be_bytes([0, b[5], b[6], b[7]])),
            pkey: PKey(u16::from_be_bytes([b[2], b[3]])),
            psn: Psn::new(u32::from_be_bytes([0, b[9], b[10], b[11]])),
            packets: u32::from_be_bytes(*packets),
            solicited: b[1] & SOLICITED != 0,
            reth,
            imm,
            piggybacked_ack,
        };
        rest.is_empty().then_some((head, source.of_region(RKey(u32::from_be_bytes(*key)))))
    }

    /// Length in bytes of the last piece of a record, usually the only one. Zero for an ordinary packet.
    #[inline]
    pub fn last_len(bytes: &[u8]) -> u32 {
        match (bytes.first(), bytes.last_chunk::<4>()) {
            (Some(&(RENDEZVOUS_SEND | RENDEZVOUS_SEND_IMM | RENDEZVOUS_WRITE_IMM)), Some(&len)) => {
                u32::from_be_bytes(len)
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Aeth, Packet, Syndrome, dest_qpn};
    use alloc::vec::Vec;

    fn all_kinds() -> impl Iterator<Item = (RendezvousSend, SourceRef)> {
        let piggybacked_ack = PiggybackedAck {
            psn: Psn::new(0xff_fffe),
            aeth: Aeth { syndrome: Syndrome::ACK_NO_CREDIT, msn: 77 },
            jumbo: false,
        };
        (0..16 * SourceRef::MAX_PIECES).map(move |n| {
            let bit = |k: usize| n >> k & 1 != 0;
            let head = RendezvousSend {
                dest_qpn: Qpn::new(0x12_3456),
                pkey: PKey::DEFAULT,
                psn: Psn::new(0x89_abcd),
                packets: 3,
                solicited: bit(0),
                reth: bit(3).then_some(Reth { addr: 1 << 50, rkey: RKey(77), len: 20_000 }),
                imm: (bit(1) || bit(3)).then_some(0xdead_beef),
                piggybacked_ack: bit(2).then_some(piggybacked_ack),
            };
            let pieces =
                (0..=n as u64 / 16).map(|k| SourcePiece { addr: (k + 1) << 40, len: 20_000 + k as u32 });
            let source = SourceRef::new(pieces).expect("few and short");
            (head, if bit(1) { source.of_region(RKey(0x1234_5678)) } else { source })
        })
    }

    #[test]
    fn parses_what_it_encodes_and_is_never_a_packet() {
        for (head, source) in all_kinds() {
            let (bytes, len) = head.to_bytes(&source);
            let bytes = &bytes[..len];
            assert_eq!(RendezvousSend::parse(bytes), Some((head, source)));
            assert_eq!(dest_qpn(bytes), Some(head.dest_qpn));
            assert_eq!(Some(RendezvousSend::last_len(bytes)), source.pieces().last().map(|piece| piece.len));
            assert!(Packet::parse(bytes).is_err(), "the general parser rejects a record");
            for cut in 0..len {
                let whole = RendezvousSend::parse(&bytes[..cut]);
                assert!(whole.is_none_or(|(_, fewer)| fewer.pieces().len() < source.pieces().len()));
            }
        }
    }

    #[test]
    fn invalid_pieces_are_refused() {
        let piece = |len| SourcePiece { addr: 1, len };
        assert!(SourceRef::new([]).is_none());
        assert!(SourceRef::new([piece(0)]).is_none());
        assert!(SourceRef::new([piece(1), piece(0)]).is_none());
        assert!(SourceRef::new([piece(1); SourceRef::MAX_PIECES + 1]).is_none());
        assert!(SourceRef::new([piece(MAX_MESSAGE + 1)]).is_none());
        assert!(SourceRef::new([piece(u32::MAX), piece(2)]).is_none());
        assert!(SourceRef::new([piece(MAX_MESSAGE), piece(1)]).is_none());
        assert_eq!(
            SourceRef::new([piece(MAX_MESSAGE)]).map(|source| source.message_len()),
            Some(MAX_MESSAGE)
        );
    }

    /// Bytes of a hostile local peer never panic.
    #[test]
    #[cfg_attr(miri, ignore = "takes an hour in Miri")]
    fn random_bytes_never_panic() {
        let (mut state, mut taken) = (0x9E37_79B9_7F4A_7C15_u64, 0);
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..200_000 {
            let mut bytes: Vec<u8> = (0..random() as usize % 90).map(|_| random() as u8).collect();
            if bytes.len() >= Bth::LEN {
                (bytes[0], bytes[1], bytes[8]) = (RENDEZVOUS_SEND + bytes[0] % 3, MIG_REQ, ACK_REQ);
                bytes[2..4].fill(0xff);
            }
            taken +=
                u32::from(RendezvousSend::parse(&bytes).is_some_and(|(_, source)| source.message_len() > 0));
        }
        assert!(taken > 100, "{taken}");
    }
}
