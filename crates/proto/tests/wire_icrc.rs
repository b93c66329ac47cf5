//! The ICRC against a slow one that is written from the definition, and the search for the identification.

use ferroce_proto::Gid;
use ferroce_proto::wire::{
    Bth, FlowAddrs, Icrc, Ipv4Header, Ipv6Header, ROCE_UDP_PORT, UdpHeader, has_partial_icrc, icrc,
    verify_icrc,
};
use proptest::prelude::*;

/// CRC-32 bit by bit.
fn slow_crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

/// The ICRC from whole headers, masked afterwards, with these `flags` in the IPv4 header.
fn slow_icrc(flow: &FlowAddrs, ident: u16, flags: u16, transport: &[u8]) -> [u8; 4] {
    let udp_len = (8 + transport.len() + 4) as u16;
    let mut bytes = vec![0xff; 8];
    if let (Some(src), Some(dst)) = (flow.sgid.to_ipv4(), flow.dgid.to_ipv4()) {
        let total_len = 20 + udp_len;
        let mut ip =
            Ipv4Header { tos: 3, total_len, ident, flags, ttl: 9, protocol: 17, src, dst }.to_bytes();
        [ip[1], ip[8], ip[10], ip[11]] = [0xff; 4];
        bytes.extend(ip);
    } else {
        let mut ip = Ipv6Header {
            tclass: 0xff,
            flow_label: 0xf_ffff,
            payload_len: udp_len,
            next_header: 17,
            hop_limit: 0xff,
            src: flow.sgid.0.into(),
            dst: flow.dgid.0.into(),
        }
        .to_bytes();
        ip[7] = 0xff;
        bytes.extend(ip);
    }
    bytes.extend(
        UdpHeader { sport: flow.sport, dport: flow.dport, len: udp_len, checksum: 0xffff }.to_bytes(),
    );
    let bth = bytes.len();
    bytes.extend(if has_partial_icrc(transport) { &transport[..Bth::LEN] } else { transport });
    bytes[bth + 4] = 0xff;
    slow_crc32(&bytes).to_le_bytes()
}

fn v4(src: [u8; 4], dst: [u8; 4], sport: u16) -> FlowAddrs {
    FlowAddrs::new(Gid::from_ip(src.into()), Gid::from_ip(dst.into()), sport)
}

fn with_icrc(transport: &[u8], icrc: [u8; 4]) -> Vec<u8> {
    [transport, &icrc].concat()
}

#[test]
fn slow_crc_is_the_usual_crc32() {
    assert_eq!(slow_crc32(b"123456789"), 0xcbf4_3926);
}

#[test]
fn mixed_flows_are_ipv6() {
    let mapped = Gid::from_ip([127, 0, 0, 1].into());
    let native = Gid::from_ip("::1".parse().expect("an address"));
    let is_ipv4 = |sgid, dgid| FlowAddrs { sgid, dgid, sport: 1, dport: ROCE_UDP_PORT }.is_ipv4();
    assert!(is_ipv4(mapped, mapped));
    assert!(!is_ipv4(native, native) && !is_ipv4(mapped, native) && !is_ipv4(native, mapped));
}

/// Two reserved bits together shorten the ICRC; neither does alone.
#[test]
fn a_partial_icrc_ends_with_the_bth() {
    let flow = v4([127, 0, 0, 1], [127, 0, 0, 2], 50_000);
    for (bits, is_partial) in [(0x00, false), (0x08, false), (0x10, false), (0x18, true), (0xff, true)] {
        let mut transport: Vec<u8> = (0..100).collect();
        transport[8] = bits;
        let mut packet = with_icrc(&transport, icrc(&flow, 3, &transport));
        assert_eq!((has_partial_icrc(&packet), verify_icrc(&flow, 3, &packet)), (is_partial, Some(3)));
        packet[Bth::LEN] ^= 1;
        assert_eq!(verify_icrc(&flow, 3, &packet) == Some(3), is_partial, "the payload changed");
        packet.truncate(packet.len() - 4);
        assert_ne!(verify_icrc(&flow, 3, &packet), Some(3), "the length is in the UDP header");
    }
}

#[test]
fn too_short_packets_are_damaged() {
    let flow = v4([127, 0, 0, 1], [127, 0, 0, 2], 50_000);
    for len in 0..16 {
        assert_eq!(verify_icrc(&flow, 0, &vec![0; len]), None, "{len} bytes");
    }
}

/// Every identification there is, with the longest way that the difference can be shifted back.
#[test]
fn all_identifications_are_found() {
    let flow = v4([10, 1, 2, 3], [10, 3, 2, 1], 0xc123);
    let transport: Vec<u8> = (0..4096 + 28).map(|i| (i * 7) as u8).collect();
    // The slow sum runs twice; in between the sums are linear in the identification.
    let right_for_5 = icrc(&flow, 5, &transport);
    assert_eq!(right_for_5, slow_icrc(&flow, 5, Ipv4Header::DONT_FRAGMENT, &transport));
    let packet = with_icrc(&transport, right_for_5);
    for hint in 0..=u16::MAX {
        assert_eq!(verify_icrc(&flow, hint, &packet), Some(5), "hint {hint}");
    }
}

proptest! {
    #[test]
    fn fast_equals_slow_v4(
        src: [u8; 4], dst: [u8; 4], sport: u16, ident: u16,
        transport in prop::collection::vec(any::<u8>(), 12..600),
    ) {
        let flow = v4(src, dst, sport);
        let expected = slow_icrc(&flow, ident, Ipv4Header::DONT_FRAGMENT, &transport);
        prop_assert_eq!(icrc(&flow, ident, &transport), expected);
    }

    #[test]
    fn fast_equals_slow_v6(
        src: [u8; 16], dst: [u8; 16], sport: u16, dport: u16,
        transport in prop::collection::vec(any::<u8>(), 12..600),
    ) {
        let flow = FlowAddrs { sgid: Gid(src), dgid: Gid(dst), sport, dport };
        prop_assume!(!flow.is_ipv4());
        let expected = slow_icrc(&flow, 0, 0, &transport);
        prop_assert_eq!(icrc(&flow, 77, &transport), expected);
        prop_assert_eq!(verify_icrc(&flow, 77, &with_icrc(&transport, expected)), Some(0));
    }

    #[test]
    fn pieces_make_the_whole(
        cuts: [prop::sample::Index; 2],
        transport in prop::collection::vec(any::<u8>(), 12..200),
    ) {
        prop_assume!(!has_partial_icrc(&transport));
        let flow = v4([1, 2, 3, 4], [5, 6, 7, 8], 9);
        let mut cuts = cuts.map(|cut| 12 + cut.index(transport.len() - 11));
        cuts.sort_unstable();
        let mut pieces = Icrc::start_with_bth(&flow, 3, transport.len(), &transport[..cuts[0]]);
        pieces.update(&transport[cuts[0]..cuts[1]]);
        pieces.update(&transport[cuts[1]..]);
        prop_assert_eq!(pieces.finish(), icrc(&flow, 3, &transport));
    }

    #[test]
    fn identification_is_solved_for(
        src: [u8; 4], dst: [u8; 4], sport: u16, ident: u16, hint: u16, dont_fragment: bool,
        transport in prop::collection::vec(any::<u8>(), 12..400),
    ) {
        prop_assume!(!has_partial_icrc(&transport) || ident < 64);
        let flow = v4(src, dst, sport);
        let flags = if dont_fragment { Ipv4Header::DONT_FRAGMENT } else { 0 };
        let packet = with_icrc(&transport, slow_icrc(&flow, ident, flags, &transport));
        prop_assert_eq!(verify_icrc(&flow, hint, &packet), Some(ident));
    }

    /// No other flag or fragment offset is believed.
    #[test]
    fn fragments_are_damaged(
        ident: u16, hint: u16, flags in 1u16..0x4000, transport in prop::collection::vec(any::<u8>(), 12..100),
    ) {
        prop_assume!(!has_partial_icrc(&transport));
        let flow = v4([1, 2, 3, 4], [5, 6, 7, 8], 9);
        for flags in [flags, flags | Ipv4Header::DONT_FRAGMENT, flags | 0x8000] {
            let packet = with_icrc(&transport, slow_icrc(&flow, ident, flags, &transport));
            prop_assert_eq!(verify_icrc(&flow, hint, &packet), None);
        }
    }

    /// One wrong bit outside the variant byte is always noticed over IPv6. Over IPv4 it may look like another
    /// identification, but never like the right one. Flips inside the variant byte do not matter, and behind a partial ICRC's end neither.
    #[test]
    fn flipped_bits_are_caught(
        transport in prop::collection::vec(any::<u8>(), 12..100), flip: prop::sample::Index, v6: bool,
    ) {
        let mut flow = v4([1, 2, 3, 4], [5, 6, 7, 8], 9);
        if v6 {
            flow.dgid = Gid([9; 16]);
        }
        let mut packet = with_icrc(&transport, icrc(&flow, 0, &transport));
        let bit = flip.index(packet.len() * 8);
        packet[bit / 8] ^= 1 << (bit % 8);
        let is_left_out = has_partial_icrc(&transport) && (Bth::LEN..transport.len()).contains(&(bit / 8));
        let expected = if bit / 8 == 4 || is_left_out { Some(0) } else { None };
        if v6 || expected.is_some() {
            prop_assert_eq!(verify_icrc(&flow, 0, &packet), expected);
        } else {
            prop_assert_ne!(verify_icrc(&flow, 0, &packet), Some(0));
        }
    }
}
