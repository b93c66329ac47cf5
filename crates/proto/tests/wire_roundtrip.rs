//! Every header and every packet: the parser returns what was written, refuses truncated bytes, and never panics.

use ferroce_proto::wire::{
    Aeth, AtomicEth, Bth, Deth, Feth, Grh, Headers, Ipv4Header, Ipv6Header, Malformed, NakCode, Opcode,
    Packet, PiggybackedAck, Reth, Syndrome, UdpHeader, dest_qpn,
};
use ferroce_proto::{Gid, PKey, Psn, Qkey, Qpn, RKey, Srqn};
use proptest::prelude::*;
use proptest::sample::select;

fn opcodes() -> Vec<Opcode> {
    (0..=u8::MAX).filter_map(Opcode::from_byte).collect()
}

prop_compose! {
    fn any_reth()(addr: u64, rkey: u32, len: u32) -> Reth {
        Reth { addr, rkey: RKey(rkey), len }
    }
}
prop_compose! {
    fn any_atomic()(addr: u64, rkey: u32, swap_or_add: u64, compare: u64) -> AtomicEth {
        AtomicEth { addr, rkey: RKey(rkey), swap_or_add, compare }
    }
}
prop_compose! {
    fn any_deth()(qkey: u32, src_qpn: u32) -> Deth {
        Deth { qkey: Qkey(qkey), src_qpn: Qpn::new(src_qpn) }
    }
}

fn any_syndrome() -> impl Strategy<Value = Syndrome> {
    let naks = vec![
        NakCode::PsnSequence,
        NakCode::InvalidRequest,
        NakCode::RemoteAccess,
        NakCode::RemoteOperational,
        NakCode::InvalidRdRequest,
    ];
    prop_oneof![
        (0u8..32).prop_map(|credit| Syndrome::Ack { credit }),
        (0u8..32).prop_map(|timer| Syndrome::RnrNak { timer }),
        select(naks).prop_map(Syndrome::Nak),
    ]
}

prop_compose! {
    fn any_aeth()(syndrome in any_syndrome(), msn in 0u32..1 << 24) -> Aeth {
        Aeth { syndrome, msn }
    }
}

prop_compose! {
    fn any_bth()(
        opcode in select(opcodes()),
        flags: [bool; 10],
        pad in 0u8..4,
        pkey: u16,
        dest_qpn: u32,
        psn: u32,
    ) -> Bth {
        let [solicited, mig_req, fecn, becn, ack_req, partial_icrc, jumbo, hello, extended, selective] = flags;
        Bth {
            opcode,
            solicited,
            mig_req,
            pad,
            pkey: PKey(pkey),
            fecn,
            becn,
            dest_qpn: Qpn::new(dest_qpn),
            ack_req,
            partial_icrc,
            jumbo,
            hello: hello && !extended,
            extended,
            selective,
            psn: Psn::new(psn),
        }
    }
}

prop_compose! {
    fn any_headers()(
        bth in any_bth(),
        reth in any_reth(),
        aeth in any_aeth(),
        atomic in any_atomic(),
        deth in any_deth(),
        atomic_ack: u64,
        words: [u32; 3],
    ) -> Headers {
        let opcode = bth.opcode;
        Headers {
            bth,
            feth: opcode.has_feth().then_some(Feth { placement: words[0] as u8 & 15, level: words[1] as u8 & 3 }),
            reth: (opcode.has_reth() || bth.extended && opcode.may_repeat_reth()).then_some(reth),
            aeth: (opcode.has_aeth() || bth.extended && opcode.may_repeat_aeth()).then_some(aeth),
            atomic: opcode.has_atomic().then_some(atomic),
            atomic_ack: opcode.has_atomic_ack().then_some(atomic_ack),
            deth: opcode.has_deth().then_some(deth),
            imm: opcode.has_imm().then_some(words[0]),
            ieth: opcode.has_ieth().then_some(RKey(words[1])),
            xrceth: opcode.has_xrceth().then_some(Srqn::new(words[2])),
            piggybacked_ack: (bth.extended && opcode.may_carry_ack()).then_some(PiggybackedAck { psn: Psn::new(words[2]), aeth, jumbo: bth.jumbo }),
        }
    }
}

fn encode(headers: &Headers, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xee; Headers::MAX_LEN];
    let len = headers.write(&mut bytes);
    bytes.truncate(len);
    bytes.extend(payload);
    bytes.resize(bytes.len() + usize::from(headers.bth.pad), 0);
    bytes
}

proptest! {
    #[test]
    fn extension_headers_come_back(
        reth in any_reth(), aeth in any_aeth(), atomic in any_atomic(), deth in any_deth(), bth in any_bth(),
    ) {
        prop_assert_eq!(Bth::parse(&bth.to_bytes()), Ok(bth));
        prop_assert_eq!(Reth::parse(&reth.to_bytes()), Ok(reth));
        prop_assert_eq!(Aeth::parse(&aeth.to_bytes()), Ok(aeth));
        prop_assert_eq!(AtomicEth::parse(&atomic.to_bytes()), Ok(atomic));
        prop_assert_eq!(Deth::parse(&deth.to_bytes()), Ok(deth));
    }

    #[test]
    fn packets_come_back(headers in any_headers(), payload in prop::collection::vec(any::<u8>(), 0..80)) {
        let mut headers = headers;
        headers.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
        let bytes = encode(&headers, &payload);
        prop_assert_eq!(bytes.len(), headers.encoded_len() + payload.len().next_multiple_of(4));
        prop_assert_eq!(dest_qpn(&bytes), Some(headers.bth.dest_qpn));
        prop_assert_eq!(Packet::parse(&bytes), Ok(Packet { headers, payload: &payload }));
    }

    /// The headers are refused at every length below their own, the whole packet at every length but the full words.
    #[test]
    fn truncation_is_noticed(headers in any_headers(), payload in prop::collection::vec(any::<u8>(), 0..20)) {
        let mut headers = headers;
        headers.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
        let bytes = encode(&headers, &payload);
        for len in 0..bytes.len() {
            let parsed = Packet::parse(&bytes[..len]);
            if len < headers.encoded_len() {
                prop_assert!(matches!(parsed, Err(Malformed::TooShort { .. })), "{} bytes: {:?}", len, parsed);
            } else if (len - headers.encoded_len()) % 4 != 0 {
                prop_assert!(matches!(parsed, Err(Malformed::Unaligned { .. })), "{} bytes: {:?}", len, parsed);
            } else if len - headers.encoded_len() < usize::from(headers.bth.pad) {
                prop_assert!(matches!(parsed, Err(Malformed::BadPad { .. })), "{} bytes: {:?}", len, parsed);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_are_refused_or_read(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
        if let Ok(packet) = Packet::parse(&bytes) {
            prop_assert!(packet.payload.len() <= bytes.len() - Bth::LEN);
        }
        prop_assert_eq!(dest_qpn(&bytes).is_some(), bytes.len() >= Bth::LEN);
        // Errors must print without panicking, too.
        let errors = [
            Packet::parse(&bytes).err(),
            Ipv4Header::parse(&bytes).err(),
            Ipv6Header::parse(&bytes).err(),
            UdpHeader::parse(&bytes).err(),
            Grh::parse(&bytes).err(),
        ];
        for error in errors.into_iter().flatten() {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn ipv4_comes_back(
        tos: u8, total_len in 20u16.., ident: u16, flags: u16, ttl: u8, protocol: u8, src: [u8; 4], dst: [u8; 4],
        flip in 0usize..160,
    ) {
        let header =
            Ipv4Header { tos, total_len, ident, flags, ttl, protocol, src: src.into(), dst: dst.into() };
        let mut bytes = header.to_bytes();
        prop_assert_eq!(Ipv4Header::parse(&bytes), Ok(header));
        for len in 0..bytes.len() {
            prop_assert_eq!(Ipv4Header::parse(&bytes[..len]), Err(Malformed::TooShort { need: 20, have: len }));
        }
        bytes[flip / 8] ^= 1 << (flip % 8);
        prop_assert!(Ipv4Header::parse(&bytes).is_err(), "the checksum misses bit {}", flip);
    }

    #[test]
    fn ipv6_grh_and_udp_come_back(
        tclass: u8, flow_label in 0u32..1 << 20, payload_len: u16, next_header: u8, hop_limit: u8,
        src: [u8; 16], dst: [u8; 16], sport: u16, dport: u16, udp_len in 8u16.., checksum: u16,
    ) {
        let (sgid, dgid) = (Gid(src), Gid(dst));
        let grh = Grh { tclass, flow_label, payload_len, next_header, hop_limit, sgid, dgid };
        prop_assert_eq!(Grh::parse(&grh.to_bytes()), Ok(grh));
        let (src, dst) = (src.into(), dst.into());
        let ipv6 = Ipv6Header { tclass, flow_label, payload_len, next_header, hop_limit, src, dst };
        prop_assert_eq!(Ipv6Header::parse(&ipv6.to_bytes()), Ok(ipv6));
        prop_assert_eq!(ipv6.to_bytes(), grh.to_bytes());
        let udp = UdpHeader { sport, dport, len: udp_len, checksum };
        prop_assert_eq!(UdpHeader::parse(&udp.to_bytes()), Ok(udp));
        for len in 0..40 {
            prop_assert_eq!(Grh::parse(&grh.to_bytes()[..len]), Err(Malformed::TooShort { need: 40, have: len }));
        }
        for len in 0..8 {
            prop_assert_eq!(UdpHeader::parse(&udp.to_bytes()[..len]), Err(Malformed::TooShort { need: 8, have: len }));
        }
    }
}

#[test]
fn syndromes_are_all_or_reserved() {
    for byte in 0..=u8::MAX {
        let defined = match byte >> 5 {
            0 | 1 => true,
            3 => byte & 0x1f <= 4,
            _ => false,
        };
        match Syndrome::from_byte(byte) {
            Ok(syndrome) => assert!(defined && syndrome.to_byte() == byte, "{byte:#04x} is {syndrome:?}"),
            Err(e) => assert!(!defined && e == Malformed::ReservedSyndrome(byte), "{byte:#04x}: {e}"),
        }
    }
}

#[test]
fn each_fault_has_its_name() {
    // An RC SEND only with four payload bytes.
    let good = [4, 0x40, 0xff, 0xff, 0, 0, 0, 9, 0, 0, 0, 1, 1, 2, 3, 4];
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        Packet::parse(&bytes).map(|packet| packet.payload.len())
    };
    assert_eq!(with(0, 4), Ok(4));
    assert_eq!(with(1, 0x70), Ok(1));
    assert_eq!(with(0, 0x15), Err(Malformed::UnknownOpcode(0x15)));
    assert_eq!(with(0, 0x44), Err(Malformed::UnknownOpcode(0x44)));
    assert_eq!(with(1, 0x42), Err(Malformed::BadVersion(2)));
    assert_eq!(with(0, 0x11), Ok(0)); // the payload becomes an AETH: ACK with credit 1
    let mut nak = good;
    (nak[0], nak[12]) = (0x11, 0x45);
    assert_eq!(Packet::parse(&nak), Err(Malformed::ReservedSyndrome(0x45)));
    let mut padded = good;
    padded[1] = 0x70;
    assert_eq!(Packet::parse(&padded[..12]), Err(Malformed::BadPad { pad: 3, have: 0 }));
    assert_eq!(Packet::parse(&good[..15]), Err(Malformed::Unaligned { len: 3 }));
    assert_eq!(Packet::parse(&good[..11]), Err(Malformed::TooShort { need: 12, have: 11 }));

    let mut ip = [0; 20];
    ip[0] = 0x60;
    assert_eq!(Ipv4Header::parse(&ip), Err(Malformed::BadIpVersion(6)));
    ip[0] = 0x46;
    assert_eq!(Ipv4Header::parse(&ip), Err(Malformed::BadIpHeaderLength(6)));
    assert_eq!(Ipv6Header::parse(&[0x45; 40]), Err(Malformed::BadIpVersion(4)));
    assert_eq!(UdpHeader::parse(&[0, 1, 0, 2, 0, 7, 0, 0]), Err(Malformed::BadLengthField(7)));
}

/// tshark does not support XRC, so these bytes were written by hand, header by header.
#[test]
fn xrc_headers_follow_the_annex() {
    let bth = |opcode| {
        Bth::new(Opcode::from_byte(opcode).expect("defined"), Qpn::new(0x01_0203), Psn::new(0x04_0506))
    };
    let written = |headers: Headers| encode(&headers, &[]);
    let base = |opcode: u8| vec![opcode, 0x40, 0xff, 0xff, 0, 1, 2, 3, 0, 4, 5, 6];
    let srq = [0, 0xa, 0xb, 0xc];

    let mut write = Headers::new(bth(0xab));
    write.xrceth = Some(Srqn::new(0x0a_0b0c));
    write.reth = Some(Reth { addr: 0x1122_3344_5566_7788, rkey: RKey(0x99aa_bbcc), len: 0x10 });
    write.imm = Some(0xdead_beef);
    let reth = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 0x10];
    let imm = [0xde, 0xad, 0xbe, 0xef];
    assert_eq!(written(write), [&base(0xab)[..], &srq, &reth, &imm].concat());

    let mut send = Headers::new(bth(0xb7));
    send.xrceth = Some(Srqn::new(0x0a_0b0c));
    send.ieth = Some(RKey(0xdead_beef));
    assert_eq!(written(send), [&base(0xb7)[..], &srq, &imm].concat());

    // Responses go back to the requester's own queue pair and name no shared receive queue.
    let mut ack = Headers::new(bth(0xb2));
    ack.aeth = Some(Aeth { syndrome: Syndrome::Nak(NakCode::RemoteAccess), msn: 7 });
    ack.atomic_ack = Some(0x0102_0304_0506_0708);
    assert_eq!(written(ack), [&base(0xb2)[..], &[0x62, 0, 0, 7], &[1, 2, 3, 4, 5, 6, 7, 8]].concat());
}

#[test]
#[should_panic(expected = "range end index")]
fn writing_into_a_short_buffer_panics_as_documented() {
    let opcode = Opcode::from_byte(0x0c).expect("READ request");
    let mut headers = Headers::new(Bth::new(opcode, Qpn::new(1), Psn::new(1)));
    headers.reth = Some(Reth { addr: 0, rkey: RKey(0), len: 0 });
    headers.write(&mut [0; 27]);
}
