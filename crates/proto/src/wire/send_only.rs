//! A single-packet SEND: the most frequent small message.
//!
//! The bytes equal those of [`Headers`]. The general code spends most of its time on headers that a SEND lacks.

use super::bth::{ACK_REQ, EXTENDED, HELLO, JUMBO, MIG_REQ, SELECTIVE, SOLICITED, is_hello};
use super::{Bth, Headers, Opcode, Operation, PiggybackedAck, Service, Syndrome};
use crate::ids::{PKey, Psn, Qpn};

const SEND_ONLY: u8 = 0x04;
const SEND_ONLY_IMM: u8 = 0x05;

/// The bits of the BTH's first word that identify a SEND of one packet: either opcode, version 0.
const KIND: u32 = (SEND_ONLY as u32) << 24;
const KIND_MASK: u32 = 0xfe0f_0000;

/// The headers of a SEND of one packet of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendOnly {
    /// Queue pair that it goes to.
    pub dest_qpn: Qpn,
    /// Partition key.
    pub pkey: PKey,
    /// Packet sequence number.
    pub psn: Psn,
    /// Whether the packet requests an ACK.
    pub ack_req: bool,
    /// Solicited event.
    pub solicited: bool,
    /// The hello bit.
    pub hello: bool,
    /// The selective-repeat bit.
    pub selective: bool,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// Piggybacked ACK.
    pub piggybacked_ack: Option<PiggybackedAck>,
}

impl SendOnly {
    /// Most bytes on the wire.
    pub const MAX_LEN: usize = Bth::LEN + 4 + PiggybackedAck::LEN;

    /// Returns the encoded headers for a payload of this length, and their length.
    #[inline(always)] // most fields are constants of the caller
    pub fn to_bytes(&self, payload_len: usize) -> ([u8; SendOnly::MAX_LEN], usize) {
        let mut out = [0; SendOnly::MAX_LEN];
        let flag = |on: bool, bit: u8| if on { u32::from(bit) } else { 0 };
        let opcode = u32::from(if self.imm.is_some() { SEND_ONLY_IMM } else { SEND_ONLY });
        let flags = flag(self.solicited, SOLICITED) | u32::from(MIG_REQ) | (pad_of(payload_len) as u32) << 4;
        let requests = flag(self.ack_req, ACK_REQ)
            | flag(self.hello, HELLO)
            | flag(self.piggybacked_ack.is_some(), EXTENDED)
            | flag(self.selective, SELECTIVE);
        let words = [
            opcode << 24 | flags << 16 | u32::from(self.pkey.0),
            self.dest_qpn.value(),
            requests << 24 | self.psn.value(),
        ];
        for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        let mut len = Bth::LEN;
        if let Some(imm) = self.imm {
            out[len..len + 4].copy_from_slice(&imm.to_be_bytes());
            len += 4;
        }
        if let Some(piggybacked_ack) = self.piggybacked_ack {
            out[len..len + PiggybackedAck::LEN].copy_from_slice(&piggybacked_ack.to_bytes());
            len += PiggybackedAck::LEN;
        }
        (out, len)
    }

    /// Bytes on the wire.
    #[inline(always)]
    pub const fn encoded_len(&self) -> usize {
        Bth::LEN
            + if self.imm.is_some() { 4 } else { 0 }
            + if self.piggybacked_ack.is_some() { PiggybackedAck::LEN } else { 0 }
    }

    /// Its opcode.
    #[inline(always)]
    pub const fn opcode(&self) -> Opcode {
        let operation = if self.imm.is_some() { Operation::SendOnlyImm } else { Operation::SendOnly };
        Opcode::new(Service::Rc, operation)
    }

    /// The same headers in parsed form.
    pub fn to_headers(&self, payload_len: usize) -> Headers {
        let SendOnly { dest_qpn, pkey, psn, ack_req, solicited, hello, selective, imm, piggybacked_ack } =
            *self;
        let (pad, extended) = (pad_of(payload_len) as u8, piggybacked_ack.is_some());
        let bth = Bth {
            pkey,
            ack_req,
            solicited,
            hello,
            selective,
            pad,
            extended,
            ..Bth::new(self.opcode(), dest_qpn, psn)
        };
        Headers { imm, piggybacked_ack, ..Headers::new(bth) }
    }

    /// Parses a valid packet of this kind and returns it with its payload. Returns `None` for anything else; the
    /// general parser then handles it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(SendOnly, &[u8])> {
        let (&[w0, w1, w2, w3, _, q0, q1, q2, b8, p0, p1, p2], rest) =
            bytes.split_first_chunk::<{ Bth::LEN }>()?;
        let kind = u32::from_be_bytes([w0, w1, w2, w3]);
        if kind & KIND_MASK != KIND || b8 & JUMBO != 0 {
            return None;
        }
        let has_imm = w0 == SEND_ONLY_IMM;
        let (imm, piggybacked_ack, rest) = imm_and_ack(rest, has_imm, b8 & EXTENDED != 0)?;
        if !rest.len().is_multiple_of(4) {
            return None;
        }
        let payload = rest.get(..rest.len().checked_sub(usize::from(w1 >> 4 & 3))?)?;
        let head = SendOnly {
            dest_qpn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            pkey: PKey(kind as u16),
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
            ack_req: b8 & ACK_REQ != 0,
            solicited: w1 & SOLICITED != 0,
            hello: is_hello(b8),
            selective: b8 & SELECTIVE != 0,
            imm,
            piggybacked_ack,
        };
        Some((head, payload))
    }
}

/// Parses immediate data and a piggybacked positive ACK after the BTH, and returns them with the rest.
#[inline]
pub(super) fn imm_and_ack(
    mut rest: &[u8],
    has_imm: bool,
    has_piggybacked_ack: bool,
) -> Option<(Option<u32>, Option<PiggybackedAck>, &[u8])> {
    let (mut imm, mut piggybacked_ack) = (None, None);
    if has_imm {
        let (field, behind) = rest.split_first_chunk()?;
        (imm, rest) = (Some(u32::from_be_bytes(*field)), behind);
    }
    if has_piggybacked_ack {
        let (field, behind) = rest.split_first_chunk::<{ PiggybackedAck::LEN }>()?;
        let ack = PiggybackedAck::parse(field).ok()?;
        if !matches!(ack.aeth.syndrome, Syndrome::Ack { .. }) {
            return None;
        }
        (piggybacked_ack, rest) = (Some(ack), behind);
    }
    Some((imm, piggybacked_ack, rest))
}

/// Bytes that fill a payload up to a multiple of four.
#[inline]
pub const fn pad_of(payload_len: usize) -> usize {
    payload_len.wrapping_neg() & 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Aeth, Packet};
    use alloc::vec::Vec;

    fn all_kinds() -> impl Iterator<Item = (SendOnly, usize)> {
        let piggybacked_ack = PiggybackedAck {
            psn: Psn::new(0xff_fffe),
            aeth: Aeth { syndrome: Syndrome::ACK_NO_CREDIT, msn: 77 },
            jumbo: false,
        };
        (0..16 * 7).map(move |n: usize| {
            let bit = |k: usize| n >> k & 1 != 0;
            let head = SendOnly {
                dest_qpn: Qpn::new(0x12_3456),
                pkey: if bit(1) { PKey::DEFAULT } else { PKey(0x7123) },
                psn: Psn::new(0x89_abcd),
                ack_req: bit(0),
                solicited: bit(1),
                hello: bit(0) != bit(1) && !bit(3),
                selective: bit(2) != bit(3),
                imm: bit(2).then_some(0xdead_beef),
                piggybacked_ack: bit(3).then_some(piggybacked_ack),
            };
            (head, n / 16)
        })
    }

    #[test]
    fn the_bytes_equal_those_of_the_general_encoder() {
        for (head, len) in all_kinds() {
            let payload: Vec<u8> = (0..len as u8).collect();
            let (bytes, head_len) = head.to_bytes(len);
            let mut packet = bytes[..head_len].to_vec();
            packet.extend_from_slice(&payload);
            packet.resize(head_len + len + pad_of(len), 0);

            let headers = head.to_headers(len);
            assert_eq!((headers.encoded_len(), head.encoded_len()), (head_len, head_len));
            assert_eq!(Packet::parse(&packet), Ok(Packet { headers, payload: &payload }));
            assert_eq!(SendOnly::parse(&packet), Some((head, &payload[..])));
        }
    }

    /// Bytes of a hostile local peer never panic. An accepted packet means the same to the general parser.
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
            let len = random() as usize % 48;
            let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            if len >= Bth::LEN {
                let kinds = [SEND_ONLY, SEND_ONLY_IMM, 0x17, 0x24];
                (bytes[0], bytes[1]) = (kinds[random() as usize % 4], bytes[1] & 0xf0);
            }
            if let Some((head, payload)) = SendOnly::parse(&bytes) {
                let packet = Packet::parse(&bytes).expect("it is a packet");
                let (bth, headers) = (packet.headers.bth, packet.headers);
                assert_eq!(packet.payload, payload);
                assert_eq!(
                    (headers.imm, headers.piggybacked_ack, bth.psn),
                    (head.imm, head.piggybacked_ack, head.psn)
                );
                assert_eq!((bth.dest_qpn, bth.pkey, bth.ack_req), (head.dest_qpn, head.pkey, head.ack_req));
                assert_eq!(
                    (bth.solicited, bth.hello, bth.selective, bth.opcode.service),
                    (head.solicited, head.hello, head.selective, Service::Rc)
                );
                taken += 1;
            }
        }
        assert!(taken > 1000, "{taken}");
    }

    #[test]
    fn other_packets_are_left_to_the_general_parser() {
        for (head, len) in all_kinds() {
            let (bytes, head_len) = head.to_bytes(len);
            let whole = head_len + len + pad_of(len);
            let mut packet = bytes[..head_len].to_vec();
            packet.resize(whole, 7);
            for cut in 0..whole {
                // The general parser accepts whatever this one accepts.
                if SendOnly::parse(&packet[..cut]).is_some() {
                    assert!(Packet::parse(&packet[..cut]).is_ok());
                }
            }
            for (at, flip) in [(0, 0x01), (0, 0x20), (1, 0x01), (2, 0x80), (8, SELECTIVE), (8, JUMBO)] {
                let mut other = packet.clone();
                other[at] ^= flip;
                if let Some((_, payload)) = SendOnly::parse(&other) {
                    assert_eq!(Packet::parse(&other).unwrap().payload, payload);
                    assert_ne!((at, flip), (0, 0x20), "another service");
                    assert_ne!((at, flip), (1, 0x01), "another version");
                    assert_ne!((at, flip), (8, JUMBO), "longer than the path MTU");
                }
            }
        }
        let nak = PiggybackedAck {
            psn: Psn::new(1),
            aeth: Aeth { syndrome: Syndrome::RnrNak { timer: 1 }, msn: 1 },
            jumbo: false,
        };
        let (head, _) = all_kinds().next().unwrap();
        let (bytes, head_len) = SendOnly { piggybacked_ack: Some(nak), ..head }.to_bytes(0);
        assert_eq!(SendOnly::parse(&bytes[..head_len]), None);
    }
}
