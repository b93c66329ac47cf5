//! A middle packet of a WRITE: nearly all packets of large WRITEs.
//!
//! As with [`SendOnly`](super::SendOnly), the bytes are those of any packet, read without the work that other headers need.

use super::Bth;
use super::bth::{ACK_REQ, EXTENDED, JUMBO, SELECTIVE};
use crate::ids::{PKey, Psn, Qpn};

const WRITE_MIDDLE: u32 = 0x07;

/// The bits of the BTH's first word that identify such a packet: the opcode, no pad, version 0.
const KIND: u32 = WRITE_MIDDLE << 24;
const KIND_MASK: u32 = 0xff3f_0000;

/// The header of a packet from the middle of a WRITE of a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteMiddle {
    /// Queue pair that it goes to.
    pub dest_qpn: Qpn,
    /// Partition key.
    pub pkey: PKey,
    /// Packet sequence number.
    pub psn: Psn,
    /// Whether the packet requests an ACK.
    pub ack_req: bool,
    /// The selective-repeat bit.
    pub selective: bool,
}

impl WriteMiddle {
    /// Parses a valid packet of this kind and returns it with its payload. Returns `None` for anything else; the
    /// general parser then handles it.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Option<(WriteMiddle, &[u8])> {
        let (&[w0, w1, w2, w3, _, q0, q1, q2, b8, p0, p1, p2], payload) =
            bytes.split_first_chunk::<{ Bth::LEN }>()?;
        let is_middle = u32::from_be_bytes([w0, w1, w2, w3]) & KIND_MASK == KIND;
        let is_plain = is_middle && b8 & (EXTENDED | JUMBO) == 0 && payload.len().is_multiple_of(4);
        let head = WriteMiddle {
            dest_qpn: Qpn::new(u32::from_be_bytes([0, q0, q1, q2])),
            pkey: PKey(u16::from_be_bytes([w2, w3])),
            psn: Psn::new(u32::from_be_bytes([0, p0, p1, p2])),
            ack_req: b8 & ACK_REQ != 0,
            selective: b8 & SELECTIVE != 0,
        };
        is_plain.then_some((head, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Qpn;
    use crate::wire::{Headers, Opcode, Operation, Packet, Service};
    use alloc::vec::Vec;

    fn packet(change: impl FnOnce(&mut Bth), payload_len: usize) -> Vec<u8> {
        let opcode = Opcode::new(Service::Rc, Operation::WriteMiddle);
        let mut headers = Headers::new(Bth::new(opcode, Qpn::new(0x12_3456), Psn::new(0x89_abcd)));
        change(&mut headers.bth);
        let mut bytes = alloc::vec![0; headers.encoded_len()];
        headers.write(&mut bytes);
        bytes.resize(bytes.len() + payload_len, 7);
        bytes
    }

    #[test]
    fn agrees_with_the_general_parser() {
        for (ack_req, solicited, mig_req) in [(false, false, true), (true, false, false), (true, true, true)]
        {
            let bytes =
                packet(|bth| (bth.ack_req, bth.solicited, bth.mig_req) = (ack_req, solicited, mig_req), 256);
            let (head, payload) = WriteMiddle::parse(&bytes).expect("it is one");
            let all = Packet::parse(&bytes).expect("it is a packet");
            let bth = all.headers.bth;
            assert_eq!((head.dest_qpn, head.pkey, head.psn), (bth.dest_qpn, bth.pkey, bth.psn));
            assert_eq!((head.ack_req, head.selective, payload), (ack_req, bth.selective, all.payload));
        }
    }

    #[test]
    fn other_packets_are_left_to_the_general_parser() {
        let whole = packet(|_| {}, 64);
        for cut in 0..whole.len() {
            let taken = WriteMiddle::parse(&whole[..cut]);
            assert_eq!(taken.is_some(), cut >= Bth::LEN && cut.is_multiple_of(4), "{cut}");
            assert!(taken.is_none() || Packet::parse(&whole[..cut]).is_ok());
        }
        let bits = (0..4 * 8).chain(8 * 8..8 * 9);
        // Solicited, migration, partition key, acknowledge request, selective repeat.
        let harmless = |bit| matches!(bit, 8 | 9 | 16..=31 | 64 | 71);
        for bit in bits {
            let mut other = whole.clone();
            other[bit / 8] ^= 0x80 >> (bit % 8);
            let is_reserved = matches!(bit, 65..=67 | 69);
            assert_eq!(WriteMiddle::parse(&other).is_some(), harmless(bit) || is_reserved, "{bit}");
        }
    }
}
