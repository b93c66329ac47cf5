//! IP packets of the hosts: where they go, how switches treat them, and how a mark is written into them.
//!
//! Programs write the bytes, so nothing in them is trusted; what cannot be parsed is dropped.

use ferroce_fabric::rng::mix;
use ferroce_proto::wire::{
    Bth, ECN_BITS, ECN_CE, Headers, ICRC_LEN, Ipv4Header, Ipv6Header, Opcode, Operation, ROCE_UDP_PORT,
    UdpHeader,
};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Most hosts of a live fabric.
pub(super) const MAX_HOSTS: u32 = 64;
const NETWORK: [u8; 3] = [10, 99, 0];
const PREFIX: u16 = 0xfd99;
const TCP: u8 = 6;

/// The IPv4 address of a host.
pub(super) fn address(host: u32) -> Ipv4Addr {
    let [a, b, c] = NETWORK;
    Ipv4Addr::new(a, b, c, host as u8 + 1)
}

/// Its IPv6 address.
pub(super) fn address_v6(host: u32) -> Ipv6Addr {
    Ipv6Addr::new(PREFIX, 0, 0, 0, 0, 0, 0, host as u16 + 1)
}

fn host_of(address: IpAddr) -> Option<u32> {
    let number = match address {
        IpAddr::V4(address) => match address.octets() {
            [a, b, c, number] if [a, b, c] == NETWORK => u32::from(number),
            _ => return None,
        },
        IpAddr::V6(address) => match address.segments() {
            [PREFIX, 0, 0, 0, 0, 0, 0, number] => u32::from(number),
            _ => return None,
        },
    };
    number.checked_sub(1)
}

/// The number of a host: `h3`, or its address.
pub(super) fn host_named(name: &str) -> Option<u32> {
    let number = match name.strip_prefix('h') {
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse().ok(),
        _ => host_of(name.parse().ok()?),
    };
    number.filter(|number| *number < MAX_HOSTS)
}

/// What the fabric needs of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parsed {
    /// The host that it goes to.
    pub(super) to: u32,
    /// The ECN bits.
    pub(super) ecn: u8,
    /// The class selector: the three highest bits of the DSCP.
    pub(super) class: u8,
    /// It is an ACK or CNP of RoCE.
    pub(super) is_control: bool,
    /// The same for all packets of a flow.
    pub(super) entropy: u32,
    /// Bytes behind the transport header.
    pub(super) payload: u32,
}

/// Reads a packet; none if it goes to no host or is malformed.
pub(super) fn parse(bytes: &[u8]) -> Option<Parsed> {
    let (src, dst, traffic_class, protocol, rest, is_fragment) = match bytes.first()? >> 4 {
        4 => {
            let ip = Ipv4Header::parse(bytes).ok()?;
            let rest = bytes.get(Ipv4Header::LEN..usize::from(ip.total_len))?;
            let is_fragment = ip.flags & !Ipv4Header::DONT_FRAGMENT != 0;
            (IpAddr::V4(ip.src), IpAddr::V4(ip.dst), ip.tos, ip.protocol, rest, is_fragment)
        }
        6 => {
            let ip = Ipv6Header::parse(bytes).ok()?;
            let rest = bytes.get(Ipv6Header::LEN..Ipv6Header::LEN + usize::from(ip.payload_len))?;
            (IpAddr::V6(ip.src), IpAddr::V6(ip.dst), ip.tclass, ip.next_header, rest, false)
        }
        _ => return None,
    };
    let transport = match is_fragment {
        true => Transport { payload: rest.len(), ..Transport::default() },
        false => transport(protocol, rest),
    };
    let hash = [address_word(src), address_word(dst), u64::from(protocol), u64::from(transport.ports)]
        .into_iter()
        .fold(0, |hash, word| mix(hash ^ word));
    Some(Parsed {
        to: host_of(dst)?,
        ecn: traffic_class & ECN_BITS,
        class: traffic_class >> 5,
        is_control: transport.is_control,
        entropy: hash as u32,
        payload: transport.payload as u32,
    })
}

fn address_word(address: IpAddr) -> u64 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits() as u64 ^ (address.to_bits() >> 64) as u64,
    }
}

#[derive(Default)]
struct Transport {
    ports: u32,
    is_control: bool,
    payload: usize,
}

fn transport(protocol: u8, rest: &[u8]) -> Transport {
    let ports = rest.first_chunk().map_or(0, |ports: &[u8; 4]| u32::from_be_bytes(*ports));
    match protocol {
        Ipv4Header::PROTOCOL_UDP => match UdpHeader::parse(rest) {
            Ok(udp) if udp.dport == ROCE_UDP_PORT => roce(ports, &rest[UdpHeader::LEN..]),
            _ => Transport { ports, is_control: false, payload: rest.len().saturating_sub(UdpHeader::LEN) },
        },
        TCP => {
            let header = rest.get(12).map_or(0, |words| usize::from(words >> 4) * 4);
            Transport { ports, is_control: false, payload: rest.len().saturating_sub(header) }
        }
        _ => Transport { ports: 0, is_control: false, payload: rest.len() },
    }
}

fn roce(ports: u32, bytes: &[u8]) -> Transport {
    let Ok(headers) = Headers::parse(bytes, |_| true) else {
        return Transport { ports, is_control: false, payload: bytes.len().saturating_sub(Bth::LEN) };
    };
    let Opcode { operation, .. } = headers.bth.opcode;
    let is_control = headers.bth.opcode == Opcode::CNP
        || matches!(operation, Operation::Acknowledge | Operation::AtomicAcknowledge);
    let around = headers.encoded_len() + usize::from(headers.bth.pad) + ICRC_LEN;
    let payload = if is_control { 0 } else { bytes.len().saturating_sub(around) };
    Transport { ports, is_control, payload }
}

/// Sets "congestion experienced" in a packet that [`parse`] accepted.
pub(super) fn mark(bytes: &mut [u8]) {
    if let Ok(mut ip) = Ipv4Header::parse(bytes) {
        ip.tos |= ECN_CE;
        bytes[..Ipv4Header::LEN].copy_from_slice(&ip.to_bytes());
    } else if let Ok(mut ip) = Ipv6Header::parse(bytes) {
        ip.tclass |= ECN_CE;
        bytes[..Ipv6Header::LEN].copy_from_slice(&ip.to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_proto::wire::ECN_CAPABLE;
    use ferroce_proto::{Psn, Qpn};

    #[test]
    fn a_host_has_a_name_and_addresses() {
        for name in ["h3", "10.99.0.4", "fd99::4"] {
            assert_eq!(host_named(name), Some(3), "{name}");
        }
        for name in
            ["", "h", "3", "h-1", "h+1", "h64", "h99999999999", "10.99.0.0", "10.98.0.4", "fd98::1", "host"]
        {
            assert_eq!(host_named(name), None, "{name}");
        }
    }

    fn udp(sport: u16, dport: u16, payload: &[u8]) -> Vec<u8> {
        let len = (UdpHeader::LEN + payload.len()) as u16;
        let mut bytes = UdpHeader { sport, dport, len, checksum: 0 }.to_bytes().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    fn v4(tos: u8, flags: u16, to: u32, rest: &[u8]) -> Vec<u8> {
        let total_len = (Ipv4Header::LEN + rest.len()) as u16;
        let (src, dst) = (address(1), address(to));
        let ip = Ipv4Header { tos, total_len, ident: 7, flags, ttl: 64, protocol: 17, src, dst };
        [&ip.to_bytes()[..], rest].concat()
    }

    fn v6(tclass: u8, rest: &[u8]) -> Vec<u8> {
        let ip = Ipv6Header {
            tclass,
            flow_label: 0xabcde,
            payload_len: rest.len() as u16,
            next_header: 17,
            hop_limit: 64,
            src: address_v6(1),
            dst: address_v6(63),
        };
        [&ip.to_bytes()[..], rest].concat()
    }

    #[test]
    fn a_packet_of_either_version_is_understood() {
        let rest = udp(1000, 5201, &[0; 100]);
        let found = parse(&v4(0x6a, Ipv4Header::DONT_FRAGMENT, 0, &rest)).expect("IPv4");
        let Parsed { to, ecn, class, is_control, payload, .. } = found;
        assert_eq!((to, ecn, class, is_control, payload), (0, ECN_CAPABLE, 3, false, 100));
        let found = parse(&v6(0x6a, &rest)).expect("IPv6");
        assert_eq!((found.to, found.ecn, found.class, found.payload), (63, ECN_CAPABLE, 3, 100));
    }

    #[test]
    fn acknowledgements_and_cnps_are_control_and_data_has_a_payload() {
        let packet = |opcode: Opcode, more: usize| {
            let bth = Bth::new(opcode, Qpn::new(17), Psn::new(5)).to_bytes();
            udp(50_000, ROCE_UDP_PORT, &[&bth[..], &vec![0; more]].concat())
        };
        let find = |opcode, more| {
            let Parsed { is_control, payload, .. } =
                parse(&v4(2, 0, 2, &packet(opcode, more))).expect("parsed");
            (is_control, payload)
        };
        let rc = |byte| Opcode::from_byte(byte).expect("an opcode");
        assert_eq!(find(rc(0x0a), 16 + 1024 + 4), (false, 1024), "WRITE only: RETH, payload, ICRC");
        assert_eq!(find(rc(0x11), 4 + 4), (true, 0), "ACK");
        assert_eq!(find(Opcode::CNP, 16 + 4), (true, 0));
    }

    #[test]
    fn the_entropy_is_that_of_the_flow_and_fragments_have_no_ports() {
        let entropy = |sport, flags| parse(&v4(2, flags, 2, &udp(sport, 9, &[1]))).expect("parsed").entropy;
        assert_eq!(entropy(5, 0), entropy(5, 0x4000));
        assert_ne!(entropy(5, 0), entropy(6, 0));
        assert_eq!(entropy(5, 0x2000), entropy(6, 0x00b9), "more fragments, and a later one");
    }

    #[test]
    fn a_mark_changes_the_ecn_bits_and_the_checksum_alone() {
        let rest = udp(1, 2, &[9; 40]);
        let (before, mut after) = (v4(0x6a, 0x4000, 3, &rest), v4(0x6a, 0x4000, 3, &rest));
        mark(&mut after);
        let ip = Ipv4Header::parse(&after).expect("the checksum is right");
        assert_eq!((ip.tos, ip.ident, &after[12..]), (0x6b, 7, &before[12..]));
        assert_eq!(after, v4(0x6b, 0x4000, 3, &rest));
        let mut six = v6(0x6a, &rest);
        mark(&mut six);
        assert_eq!(six, v6(0x6b, &rest));
    }

    #[test]
    fn strange_bytes_are_dropped() {
        let good = v4(2, 0, 2, &udp(5, ROCE_UDP_PORT, &[0x0a; 40]));
        for len in 0..good.len() {
            assert_eq!(parse(&good[..len]), None, "{len} bytes of {}", good.len());
        }
        let six = v6(2, &udp(5, 6, &[0; 4]));
        (0..six.len()).for_each(|len| assert_eq!(parse(&six[..len]), None));
        let mut elsewhere = v4(2, 0, 2, &[]);
        elsewhere[16] = 11;
        assert_eq!(parse(&elsewhere), None, "a wrong checksum, and another network");
        // Arbitrary bytes must not cause a panic.
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut bytes = good.clone();
                bytes[at] = value;
                let _ = parse(&bytes);
                mark(&mut bytes);
            }
        }
    }
}
