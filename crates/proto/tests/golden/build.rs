//! From types to frames.

use ferroce_proto::wire::{
    Aeth, AtomicEth, Bth, Deth, FlowAddrs, Headers, ICRC_LEN, Ipv4Header, Ipv6Header, NakCode, Opcode,
    Operation, Reth, Service, Syndrome, UdpHeader, icrc,
};
use ferroce_proto::{Gid, PKey, Psn, Qkey, Qpn, RKey, Srqn};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A frame, and what it was made of.
pub(crate) struct Golden {
    /// Unique; names the line in the golden file.
    pub(crate) name: String,
    pub(crate) headers: Headers,
    pub(crate) payload: Vec<u8>,
    pub(crate) flow: FlowAddrs,
    pub(crate) ident: u16,
    /// From the Ethernet header to the ICRC.
    pub(crate) frame: Vec<u8>,
}

impl Golden {
    /// From the BTH to the ICRC.
    pub(crate) fn transport_with_icrc(&self) -> &[u8] {
        let ip_len = if self.flow.is_ipv4() { Ipv4Header::LEN } else { Ipv6Header::LEN };
        &self.frame[14 + ip_len + UdpHeader::LEN..]
    }
}

/// Every packet kind over both IP versions.
pub(crate) fn all() -> Vec<Golden> {
    let kinds = kinds();
    [true, false]
        .into_iter()
        .flat_map(|v4| kinds.iter().enumerate().map(move |(i, (name, h))| golden(i as u16, name, *h, v4)))
        .collect()
}

fn kinds() -> Vec<(String, Headers)> {
    let mut kinds: Vec<(String, Headers)> = (0..=u8::MAX)
        .filter_map(Opcode::from_byte)
        // Newer than the tools that judge.
        .filter(|opcode| !opcode.operation.is_placement())
        .enumerate()
        .map(|(i, opcode)| {
            (format!("{:?}_{:?}", opcode.service, opcode.operation), headers(i as u32, opcode))
        })
        .collect();
    let syndromes = [
        ("Ack_no_credit", Syndrome::ACK_NO_CREDIT),
        ("Nak_psn", Syndrome::Nak(NakCode::PsnSequence)),
        ("Nak_invalid", Syndrome::Nak(NakCode::InvalidRequest)),
        ("Nak_access", Syndrome::Nak(NakCode::RemoteAccess)),
        ("Nak_operational", Syndrome::Nak(NakCode::RemoteOperational)),
        ("Rnr_nak", Syndrome::RnrNak { timer: 14 }),
    ];
    for (i, (name, syndrome)) in syndromes.into_iter().enumerate() {
        let mut h = headers(100 + i as u32, Opcode::new(Service::Rc, Operation::Acknowledge));
        h.aeth = Some(Aeth { syndrome, msn: 0xff_fffe });
        kinds.push((format!("Rc_{name}"), h));
    }
    kinds
}

/// Headers in which packet `i` differs from all others in every field that is wide enough.
fn headers(i: u32, opcode: Opcode) -> Headers {
    let spread = |salt: u32| (i + 1).wrapping_mul(0x9e37_79b1).rotate_left(salt);
    let wide = |salt: u32| u64::from(spread(salt)) << 32 | u64::from(spread(salt + 7));
    Headers {
        bth: Bth {
            solicited: i % 2 == 1,
            mig_req: i % 3 != 2,
            pkey: PKey(if i % 5 == 4 { 0x8001 } else { 0xffff }),
            fecn: i % 4 == 1,
            becn: i % 4 == 2 || opcode == Opcode::CNP,
            ack_req: i % 7 < 3,
            ..Bth::new(opcode, Qpn::new(spread(1) | 2), Psn::new(spread(2)))
        },
        feth: None,
        reth: opcode.has_reth().then(|| Reth { addr: wide(3), rkey: RKey(spread(4)), len: spread(5) }),
        aeth: opcode
            .has_aeth()
            .then(|| Aeth { syndrome: Syndrome::Ack { credit: (i % 32) as u8 }, msn: spread(6) >> 8 }),
        atomic: opcode.has_atomic().then(|| AtomicEth {
            addr: wide(8),
            rkey: RKey(spread(9)),
            swap_or_add: wide(10),
            compare: wide(11),
        }),
        atomic_ack: opcode.has_atomic_ack().then(|| wide(12)),
        deth: opcode.has_deth().then(|| Deth { qkey: Qkey(spread(13)), src_qpn: Qpn::new(spread(14)) }),
        imm: opcode.has_imm().then(|| spread(15)),
        ieth: opcode.has_ieth().then(|| RKey(spread(16))),
        xrceth: opcode.has_xrceth().then(|| Srqn::new(spread(17))),
        piggybacked_ack: None,
    }
}

/// How many payload bytes the opcode can carry, with every pad count among them.
fn payload_len(i: u16, operation: Operation) -> usize {
    if operation == Operation::CongestionNotification {
        return 16;
    }
    if !(operation.is_send() || operation.is_write() || operation.is_read_response()) {
        return 0;
    }
    if operation.ends_message() { usize::from(i % 13) + 20 } else { 256 }
}

fn golden(i: u16, name: &str, headers: Headers, v4: bool) -> Golden {
    let payload: Vec<u8> = (0..payload_len(i, headers.bth.opcode.operation))
        .map(|at| 0xa5 ^ (at as u8).wrapping_mul(5))
        .collect();
    frame_of(i, name, headers, payload, v4)
}

/// A frame with these headers and this payload; `i` makes its outer headers different from others.
pub(crate) fn frame_of(i: u16, name: &str, mut headers: Headers, payload: Vec<u8>, v4: bool) -> Golden {
    headers.bth.pad = (payload.len().wrapping_neg() % 4) as u8;
    let (src, dst) = addresses(v4);
    let flow = FlowAddrs::new(Gid::from_ip(src), Gid::from_ip(dst), 0xc000 + i);
    let ident = i.wrapping_mul(0x1357);

    let mut transport = vec![0; headers.encoded_len()];
    headers.write(&mut transport);
    transport.extend_from_slice(&payload);
    transport.resize(transport.len() + usize::from(headers.bth.pad), 0);
    transport.extend(icrc(&flow, ident, &transport));

    let mut frame = vec![0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1];
    frame.extend(if v4 { [0x08, 0x00] } else { [0x86, 0xdd] });
    frame.extend(outer(&flow, ident, i, &transport));
    frame.extend(&transport);
    let version = if v4 { "v4" } else { "v6" };
    Golden { name: format!("{version}_{name}"), headers, payload, flow, ident, frame }
}

fn addresses(v4: bool) -> (IpAddr, IpAddr) {
    if v4 {
        (Ipv4Addr::new(192, 0, 2, 1).into(), Ipv4Addr::new(198, 51, 100, 2).into())
    } else {
        let host = |n| Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, n);
        (host(0xa).into(), host(0xb).into())
    }
}

/// IP and UDP header. The fields that the ICRC masks (TOS, TTL, flow label, UDP checksum) also differ between packets.
fn outer(flow: &FlowAddrs, ident: u16, i: u16, transport: &[u8]) -> Vec<u8> {
    assert!(transport.len() > ICRC_LEN);
    let udp_len = (UdpHeader::LEN + transport.len()) as u16;
    let mut udp = UdpHeader { sport: flow.sport, dport: flow.dport, len: udp_len, checksum: 0 };
    let mut bytes = match (flow.sgid.to_ip(), flow.dgid.to_ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => Ipv4Header {
            tos: (i % 4) as u8 | 0x68,
            total_len: Ipv4Header::LEN as u16 + udp_len,
            ident,
            flags: Ipv4Header::DONT_FRAGMENT,
            ttl: 64 - (i % 3) as u8,
            protocol: Ipv4Header::PROTOCOL_UDP,
            src,
            dst,
        }
        .to_bytes()
        .to_vec(),
        _ => {
            udp.checksum = udp_checksum_v6(flow, &udp, transport);
            Ipv6Header {
                tclass: (i % 4) as u8 | 0x68,
                flow_label: (u32::from(i) * 0x1235) & 0xf_ffff,
                payload_len: udp_len,
                next_header: Ipv4Header::PROTOCOL_UDP,
                hop_limit: 64 - (i % 3) as u8,
                src: flow.sgid.0.into(),
                dst: flow.dgid.0.into(),
            }
            .to_bytes()
            .to_vec()
        }
    };
    bytes.extend(udp.to_bytes());
    bytes
}

/// IPv6 requires a UDP checksum; dissectors report zero as an error.
fn udp_checksum_v6(flow: &FlowAddrs, udp: &UdpHeader, data: &[u8]) -> u16 {
    let mut pseudo = [flow.sgid.0, flow.dgid.0].concat();
    pseudo.extend(u32::from(udp.len).to_be_bytes());
    pseudo.extend([0, 0, 0, Ipv4Header::PROTOCOL_UDP]);
    pseudo.extend(udp.to_bytes());
    pseudo.extend(data);
    let mut sum: u32 =
        pseudo.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    if sum == 0xffff { 0xffff } else { !(sum as u16) }
}
