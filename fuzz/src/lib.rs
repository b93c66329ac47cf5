//! The functions of the fuzz targets. `crates/proto/tests/wire_fuzz_smoke.rs` includes this file, so that every test run
//! executes them with random bytes.

pub mod choices;
#[path = "cm.rs"]
mod management;
mod qp_host;
#[path = "qp.rs"]
mod queue_pair;

pub use management::{cm, mad};
pub use queue_pair::qp;

use ferroce_proto::wire::{
    Bth, FlowAddrs, Grh, Headers, ICRC_LEN, Ipv4Header, Ipv6Header, Opcode, Packet, UdpHeader, dest_qpn,
    has_partial_icrc, icrc, verify_icrc,
};
use ferroce_proto::{Gid, Psn, Qpn};

/// Any bytes are refused, or parsed and written back unchanged.
pub fn packet(bytes: &[u8]) {
    assert_eq!(dest_qpn(bytes).is_some(), bytes.len() >= Bth::LEN);
    if let Ok(packet) = Packet::parse(bytes) {
        let mut again = vec![0; packet.headers.encoded_len()];
        assert_eq!(packet.headers.write(&mut again), again.len());
        again.extend(packet.payload);
        assert_eq!(again.len() + usize::from(packet.headers.bth.pad), bytes.len());
        let mut read = bytes[..again.len()].to_vec();
        clear_reserved(packet.headers.bth.opcode, &mut read);
        assert_eq!(read, again, "{:?}", packet.headers);
    }
    if let Ok(header) = Ipv4Header::parse(bytes) {
        // The checksum is not compared: one's complement has two zeros, so two values are correct.
        let written = header.to_bytes();
        assert_eq!(written[..10], bytes[..10]);
        assert_eq!(written[12..], bytes[12..Ipv4Header::LEN]);
        assert_eq!(Ipv4Header::parse(&written), Ok(header));
    }
    if let Ok(header) = Ipv6Header::parse(bytes) {
        assert_eq!(header.to_bytes(), bytes[..Ipv6Header::LEN]);
    }
    if let Ok(header) = Grh::parse(bytes) {
        assert_eq!(header.to_bytes(), bytes[..Grh::LEN]);
    }
    if let Ok(header) = UdpHeader::parse(bytes) {
        assert_eq!(header.to_bytes(), bytes[..UdpHeader::LEN]);
    }
}

/// The parser ignores reserved bits and the writer clears them.
fn clear_reserved(opcode: Opcode, bytes: &mut [u8]) {
    bytes[4] &= 0xc0;
    // The hello bit is ignored on an extended packet.
    bytes[8] &= if bytes[8] & 0x02 == 0 { 0x9f } else { 0x9b };
    if opcode.may_carry_ack() && bytes[8] & 0x02 != 0 {
        let extensions = Headers::new(Bth::new(opcode, Qpn::new(0), Psn::new(0))).encoded_len();
        bytes[extensions] &= 1;
    }
    if opcode.has_xrceth() {
        bytes[Bth::LEN] = 0;
    }
    if opcode.has_deth() {
        bytes[Bth::LEN + 4] = 0;
    }
    if opcode.has_feth() {
        bytes[Bth::LEN..Bth::LEN + 3].fill(0);
        bytes[Bth::LEN + 3] &= 0x3f;
    }
}

/// A packet with its own ICRC passes for every hint. With a wrong ICRC it never passes under the right hint.
pub fn icrc_of(bytes: &[u8]) {
    let Some((choices, rest)) = bytes.split_first_chunk::<12>() else { return };
    let [kind, damage, i0, i1, h0, h1, s0, s1, addr @ ..] = *choices;
    let (ident, hint) = (u16::from_be_bytes([i0, i1]), u16::from_be_bytes([h0, h1]));
    let (sgid, dgid) = if kind & 1 == 0 {
        (Gid::from_ip(addr.into()), Gid::from_ip([127, 0, 0, 1].into()))
    } else {
        (Gid([kind; 16]), Gid([addr, addr, addr, addr].concat().try_into().expect("16 bytes")))
    };
    let flow = FlowAddrs::new(sgid, dgid, u16::from_be_bytes([s0, s1]));

    // The input itself almost never has a right ICRC. The call must not panic.
    let _ = verify_icrc(&flow, hint, rest);
    if rest.len() < Bth::LEN {
        return;
    }
    // A partial ICRC is believed with an index in a GSO run only.
    let ident = if has_partial_icrc(rest) { ident % 64 } else { ident };
    let mut packet = [rest, &icrc(&flow, ident, rest)].concat();
    let answer = if flow.is_ipv4() { ident } else { 0 };
    assert_eq!(verify_icrc(&flow, hint, &packet), Some(answer));

    if has_partial_icrc(rest) {
        // What damages one of the two ICRCs may make the other one right.
        return;
    }
    let bit = usize::from(damage) % (ICRC_LEN * 8);
    packet[rest.len() + bit / 8] ^= 1 << (bit % 8);
    if flow.is_ipv4() {
        assert_ne!(verify_icrc(&flow, ident, &packet), Some(ident));
    } else {
        assert_eq!(verify_icrc(&flow, ident, &packet), None);
    }
}
