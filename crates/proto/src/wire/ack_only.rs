//! A positive acknowledgement: the most frequent answer.
//!
//! As with [`SendOnly`](super::SendOnly), the bytes are those of any packet, read and written without the work that other headers need.

use super::bth::{BECN, EXTENDED, HELLO, JUMBO, MIG_REQ, PARTIAL_ICRC, SELECTIVE, is_hello};
use super::{Aeth, Bth, Headers, Opcode, Operation, Service, Syndrome};
use crate::ids::{PKey, Psn, Qpn};

const ACKNOWLEDGE: u32 = 0x11;

/// The bits of the BTH's first word that identify such a packet: the opcode, no pad, version 0.
const KIND: u32 = ACKNOWLEDGE << 24;
const KIND_MASK: u32 = 0xff3f_0000;

/// The headers of a positive acknowledgement of a reliable connection. It has no payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckOnly {
    /// Queue pair that it goes to.
    pub dest_qpn: Qpn,
    /// Partition key.
    pub pkey: PKey,
    /// The last request that it acknowledges.
    pub psn: Psn,
    /// The jumbo bit.
    pub jumbo: bool,
    /// The hello bit.
    pub hello: bool,
    /// The selective-repeat bit.
    pub selective: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Encoded end-to-end credit, 5 bits.
    pub credit: u8,
    /// Message sequence number, 24 bits.
    pub msn: u32,
}

impl AckOnly {
    /// Bytes on the wire.
    pub const LEN: usize = Bth::LEN + Aeth::LEN;

    /// Its opcode.
    pub const OPCODE: Opcode = Opcode::new(Service::Rc, Operation::Acknowledge);

    /// Encodes the headers.
    #[inline]
    pub fn to_bytes(&self) -> [u8; AckOnly::LEN] {
        let flag = |on: bool, bit: u8| if on { u32::from(bit) } else { 0 };
        let words = [
            KIND | u32::from(MIG_REQ) << 16 | u32::from(self.pkey.0),
            flag(self.becn, BECN) << 24 | self.dest_qpn.value(),
            (flag(self.jumbo, JUMBO) | flag(self.hello, HELLO) | flag(self.selective, SELECTIVE)) << 24
                | self.psn.value(),
            u32::from_be_bytes(self.aeth().to_bytes()),
        ];
        let mut out = [0; AckOnly::LEN];
        for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// The same headers in parsed form.
    pub fn to_headers(&self) -> Headers {
        let AckOnly { dest_qpn, pkey, psn, jumbo, hello, selective, becn, .. } = *self;
        let bth = Bth { pkey, jumbo, hello, selective, becn, ..Bth::new(AckOnly::OPCODE, dest_qpn, psn) };
        Headers { aeth: Some(self.aeth()), ..Headers::new(bth) }
    }

    #[inline]
    fn aeth(&self) -> Aeth {
        Aeth { syndrome: Syndrome::Ack { credit: self.credit }, msn: self.msn }
    }

    /// Parses a valid packet of this kind. Returns `None` for anything else; the general parser then handles it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<AckOnly> {
        let &[w0, w1, w2, w3, b4, q0, q1, q2, b8, p0, p1, p2, syndrome, m0, m1, m2]: &[u8; AckOnly::LEN] =
            bytes.try_into().ok()?;
        if u32::from_be_bytes([w0, w1, w2, w3]) & KIND_MASK != KIND || b8 & (EXTENDED | PARTIAL_ICRC) != 0 {
            return None;
        }
        let Ok(Syndrome::Ack { credit }) = Syndrome::from_byte(syndrome) else { return None };
        Some(AckOnly {
            dest_qpn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            pkey: PKey(u16::from_be_bytes([w2, w3])),
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
            jumbo: b8 & JUMBO != 0,
            hello: is_hello(b8),
            selective: b8 & SELECTIVE != 0,
            becn: b4 & BECN != 0,
            credit,
            msn: u32::from_be_bytes([0, m0, m1, m2]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Packet;

    fn all_kinds() -> impl Iterator<Item = AckOnly> {
        (0..32).map(|n: u8| AckOnly {
            dest_qpn: Qpn::new(0x12_3456),
            pkey: PKey(if n & 1 == 0 { 0xffff } else { 0x8001 }),
            psn: Psn::new(0xff_fff0 + u32::from(n)),
            jumbo: n & 16 != 0,
            hello: n & 2 != 0,
            selective: n & 4 != 0,
            becn: n & 8 != 0,
            credit: 31 - n,
            msn: 0xab_cdef,
        })
    }

    #[test]
    fn agrees_with_the_general_code() {
        for ack in all_kinds() {
            let mut general = [0; AckOnly::LEN];
            assert_eq!(ack.to_headers().write(&mut general), AckOnly::LEN);
            assert_eq!(ack.to_bytes(), general, "{ack:?}");
            assert_eq!(AckOnly::parse(&general), Some(ack));
            let packet = Packet::parse(&general).expect("it is a packet");
            assert_eq!((packet.headers, packet.payload), (ack.to_headers(), &[][..]));
        }
    }

    #[test]
    fn other_packets_are_left_to_the_general_parser() {
        let whole = all_kinds().next().expect("some").to_bytes();
        let mut longer = whole.to_vec();
        longer.extend([0; 4]);
        assert_eq!(AckOnly::parse(&longer), None, "with a payload");
        for cut in 0..whole.len() {
            assert_eq!(AckOnly::parse(&whole[..cut]), None, "{cut}");
        }
        // Either both parsers read a bit the same way, or both ignore it.
        for bit in 0..AckOnly::LEN * 8 {
            let mut other = whole;
            other[bit / 8] ^= 0x80 >> (bit % 8);
            let Some(ack) = AckOnly::parse(&other) else { continue };
            let headers = Packet::parse(&other).expect("it is a packet").headers;
            let expected = ack.to_headers();
            assert_eq!(headers.aeth, expected.aeth, "{bit}");
            let ignored = Bth {
                solicited: headers.bth.solicited,
                mig_req: headers.bth.mig_req,
                fecn: headers.bth.fecn,
                ack_req: headers.bth.ack_req,
                ..expected.bth
            };
            assert_eq!(headers.bth, ignored, "{bit}");
        }
        let taken = |bit: usize| {
            let mut other = whole;
            other[bit / 8] ^= 0x80 >> (bit % 8);
            AckOnly::parse(&other).is_some()
        };
        let refused = (0..AckOnly::LEN * 8).filter(|bit| !taken(*bit));
        // Opcode, pad, version; partial ICRC, extended; the kind of syndrome.
        let expected = (0..8).chain(10..16).chain([67, 70]).chain(96..99);
        assert!(refused.eq(expected));
    }
}
