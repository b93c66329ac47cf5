//! From the bytes of a captured frame to RoCEv2 packets: link layer, IP, UDP, transport headers.
//!
//! The outer headers are read more leniently than proto reads them. A capture at the sender shows a packet before the network
//! card completes it: checksums may be missing, and the frame may be a whole GSO run.

use crate::capture_file::{Direction, Frame, LinkType};
use ferroce_proto::Gid;
use ferroce_proto::wire::{Bth, FlowAddrs, Headers, ICRC_LEN, Malformed, ROCE_UDP_PORT, verify_icrc};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// 802.1Q, 802.1ad and the older number of the latter.
const ETHERTYPES_VLAN: [u16; 3] = [0x8100, 0x88a8, 0x9100];
const MAX_VLAN_TAGS: usize = 4;
const UDP: u8 = 17;
/// IPv6 extension headers that may stand before UDP: hop-by-hop, routing, destination options.
const IPV6_EXTENSIONS: [u8; 3] = [0, 43, 60];
const MAX_IPV6_EXTENSIONS: usize = 8;
/// Packet type "sent by us" of Linux cooked captures.
const COOKED_OUTGOING: u16 = 4;
const MAX_PACKETS_PER_RUN: usize = 64;
/// Most offsets that are tried as the start of the second packet of a GSO run.
const MAX_SEGMENT_LENS: usize = 8;

/// Whether the ICRC fits the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IcrcState {
    Right,
    Wrong,
    /// The file does not have the whole packet.
    Unchecked,
}

/// A RoCEv2 packet of a capture.
#[derive(Clone, Copy, Debug)]
pub(super) struct RocePacket<'a> {
    pub(super) time_ns: u64,
    pub(super) direction: Direction,
    pub(super) src: IpAddr,
    pub(super) dst: IpAddr,
    /// Explicit congestion notification: the two low bits of the type of service.
    pub(super) ecn: u8,
    pub(super) headers: Headers,
    /// Whether the snap length cut off headers; those are `None`.
    pub(super) headers_cut: bool,
    /// Bytes of payload on the wire.
    pub(super) payload_len: u32,
    /// The part of the payload that the file has.
    pub(super) payload: &'a [u8],
    pub(super) icrc: IcrcState,
}

/// Why a frame is no RoCEv2 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NotRoce {
    /// The link type is not supported; its number.
    Link(u16),
    /// Other traffic.
    Other,
    /// A fragment of an IP packet.
    Fragment,
    /// The snap length cut off the BTH, or a length field is wrong.
    Short,
    /// UDP port 4791, but no transport header that the specification defines.
    Malformed(&'static str),
}

/// IP addresses and what follows the UDP header.
struct Datagram<'a> {
    flow: FlowAddrs,
    src: IpAddr,
    dst: IpAddr,
    ecn: u8,
    ident: u16,
    bytes: &'a [u8],
    /// Length on the wire.
    len: usize,
}

/// Calls `take` for the RoCEv2 packets of a frame: one, or those of a GSO run that was captured before it was segmented.
pub(super) fn decode<'a>(frame: &Frame<'a>, mut take: impl FnMut(&RocePacket<'a>)) -> Result<(), NotRoce> {
    let (ethertype, outgoing, bytes) = network_layer(frame.link, frame.bytes)?;
    let datagram = datagram(ethertype, bytes)?;
    let direction = match (frame.direction, outgoing) {
        (Direction::Unknown, Some(true)) => Direction::Sent,
        (Direction::Unknown, Some(false)) => Direction::Received,
        (known, _) => known,
    };
    let is_whole = datagram.bytes.len() == datagram.len;
    let is_right = |bytes: &[u8]| verify_icrc(&datagram.flow, datagram.ident, bytes).is_some();
    let mut packet = |bytes: &'a [u8], len: usize, icrc| {
        transport(frame.time_ns, direction, &datagram, bytes, len, icrc).map(|packet| take(&packet))
    };
    if !is_whole {
        return packet(datagram.bytes, datagram.len, IcrcState::Unchecked);
    }
    if is_right(datagram.bytes) {
        return packet(datagram.bytes, datagram.len, IcrcState::Right);
    }
    match segments(datagram.bytes, is_right) {
        Some(run) => run.into_iter().try_for_each(|bytes| packet(bytes, bytes.len(), IcrcState::Right)),
        None => packet(datagram.bytes, datagram.len, IcrcState::Wrong),
    }
}

/// Ethertype, whether the machine that captured sent the packet (if that is known), and the bytes of the IP packet.
fn network_layer(link: LinkType, bytes: &[u8]) -> Result<(u16, Option<bool>, &[u8]), NotRoce> {
    let after = |header: usize, at: usize| {
        let number = bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or(NotRoce::Short)?;
        Ok((number, bytes.get(header..).ok_or(NotRoce::Short)?))
    };
    match link.0 {
        // Ethernet.
        1 => {
            let (mut ethertype, mut rest) = after(14, 12)?;
            for _ in 0..MAX_VLAN_TAGS {
                if !ETHERTYPES_VLAN.contains(&ethertype) {
                    break;
                }
                let (tag, behind) = rest.split_first_chunk::<4>().ok_or(NotRoce::Short)?;
                (ethertype, rest) = (u16::from_be_bytes([tag[2], tag[3]]), behind);
            }
            Ok((ethertype, None, rest))
        }
        // Linux cooked captures, of `tcpdump -i any`: version 1 and 2.
        113 => {
            let (protocol, rest) = after(16, 14)?;
            let kind = u16::from_be_bytes([bytes[0], bytes[1]]);
            Ok((protocol, Some(kind == COOKED_OUTGOING), rest))
        }
        276 => {
            let (protocol, rest) = after(20, 0)?;
            Ok((protocol, Some(u16::from(bytes[10]) == COOKED_OUTGOING), rest))
        }
        // Raw IP, under its numbers on Linux, BSD and in files.
        12 | 14 | 101 | 228 | 229 => match bytes.first().ok_or(NotRoce::Short)? >> 4 {
            4 => Ok((ETHERTYPE_IPV4, None, bytes)),
            6 => Ok((ETHERTYPE_IPV6, None, bytes)),
            _ => Err(NotRoce::Other),
        },
        // BSD loopback: an address family in either byte order; the IP version has the same information.
        0 | 108 => network_layer(LinkType(101), bytes.get(4..).ok_or(NotRoce::Short)?),
        other => Err(NotRoce::Link(other)),
    }
}

fn datagram(ethertype: u16, bytes: &[u8]) -> Result<Datagram<'_>, NotRoce> {
    let half =
        |at: usize| bytes.get(at..at + 2).map(|b| u16::from_be_bytes([b[0], b[1]])).ok_or(NotRoce::Short);
    let (src, dst, tos, ident, udp): (IpAddr, IpAddr, u8, u16, &[u8]) = match ethertype {
        ETHERTYPE_IPV4 => {
            let b: &[u8; 20] = bytes.first_chunk().ok_or(NotRoce::Short)?;
            let header_len = usize::from(b[0] & 0xf) * 4;
            if b[0] >> 4 != 4 || header_len < b.len() {
                return Err(NotRoce::Other);
            }
            if b[9] != UDP {
                return Err(NotRoce::Other);
            }
            if half(6)? & 0x3fff != 0 {
                return Err(NotRoce::Fragment);
            }
            let (src, dst) =
                (Ipv4Addr::new(b[12], b[13], b[14], b[15]), Ipv4Addr::new(b[16], b[17], b[18], b[19]));
            (src.into(), dst.into(), b[1], half(4)?, bytes.get(header_len..).ok_or(NotRoce::Short)?)
        }
        ETHERTYPE_IPV6 => {
            let b: &[u8; 40] = bytes.first_chunk().ok_or(NotRoce::Short)?;
            let address =
                |at: usize| b[at..].first_chunk::<16>().map(|b| Ipv6Addr::from(*b)).ok_or(NotRoce::Short);
            let (mut next, mut rest) = (b[6], &bytes[40..]);
            for _ in 0..MAX_IPV6_EXTENSIONS {
                if !IPV6_EXTENSIONS.contains(&next) {
                    break;
                }
                let [following, words, ..] = *rest else { return Err(NotRoce::Short) };
                rest = rest.get(8 * (1 + usize::from(words))..).ok_or(NotRoce::Short)?;
                next = following;
            }
            match next {
                UDP => {}
                44 => return Err(NotRoce::Fragment),
                _ => return Err(NotRoce::Other),
            }
            (address(8)?.into(), address(24)?.into(), b[0] << 4 | b[1] >> 4, 0, rest)
        }
        _ => return Err(NotRoce::Other),
    };
    let (header, behind) = udp.split_first_chunk::<8>().ok_or(NotRoce::Short)?;
    let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    if field(2) != ROCE_UDP_PORT {
        return Err(NotRoce::Other);
    }
    let len = usize::from(field(4)).checked_sub(header.len()).ok_or(NotRoce::Short)?;
    // Ethernet pads short frames; what is behind the datagram does not belong to it.
    let bytes = &behind[..len.min(behind.len())];
    let flow = FlowAddrs::new(Gid::from_ip(src), Gid::from_ip(dst), field(0));
    Ok(Datagram { flow, src, dst, ecn: tos & 3, ident, bytes, len })
}

/// The packets of a GSO run, all of one length but the last: each has a right ICRC, and the second begins with a BTH to the same queue pair
/// with the next PSN. The time is linear in the length of the run.
fn segments(bytes: &[u8], is_right: impl Fn(&[u8]) -> bool) -> Option<Vec<&[u8]>> {
    let bth = Bth::parse(bytes).ok()?;
    let begins_next = |at: &usize| {
        Bth::parse(&bytes[*at..])
            .is_ok_and(|next| next.dest_qpn == bth.dest_qpn && next.psn == bth.psn.plus(1))
    };
    let ends = (Bth::LEN + ICRC_LEN..bytes.len().saturating_sub(Bth::LEN)).step_by(4);
    let len = ends.filter(begins_next).take(MAX_SEGMENT_LENS).find(|at| is_right(&bytes[..*at]))?;
    let run: Vec<&[u8]> = bytes.chunks(len).collect();
    (run.len() <= MAX_PACKETS_PER_RUN && run[1..].iter().all(|packet| is_right(packet))).then_some(run)
}

fn transport<'a>(
    time_ns: u64,
    direction: Direction,
    datagram: &Datagram<'a>,
    bytes: &'a [u8],
    len: usize,
    icrc: IcrcState,
) -> Result<RocePacket<'a>, NotRoce> {
    let (headers, headers_cut) = match Headers::parse(bytes, |_| true) {
        Ok(headers) => (headers, false),
        Err(Malformed::TooShort { .. }) => match Bth::parse(bytes) {
            Ok(bth) => (Headers::new(bth), true),
            Err(_) => return Err(NotRoce::Short),
        },
        Err(malformed) => return Err(NotRoce::Malformed(why(malformed))),
    };
    let around = headers.encoded_len() + usize::from(headers.bth.pad) + ICRC_LEN;
    let payload_len =
        len.checked_sub(around).ok_or(NotRoce::Malformed("the packet is shorter than its headers"))?;
    let from = headers.encoded_len().min(bytes.len());
    let payload = &bytes[from..bytes.len().min(from + payload_len)];
    Ok(RocePacket {
        time_ns,
        direction,
        src: datagram.src,
        dst: datagram.dst,
        ecn: datagram.ecn,
        headers,
        headers_cut,
        payload_len: payload_len as u32,
        payload,
        icrc,
    })
}

fn why(malformed: Malformed) -> &'static str {
    match malformed {
        Malformed::UnknownOpcode(_) => "the opcode is not defined",
        Malformed::BadVersion(_) => "the transport header version is not 0",
        Malformed::ReservedSyndrome(_) => "the AETH syndrome is reserved",
        _ => "the transport headers are malformed",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Every 16 bytes look like the second packet of a run.
    #[test]
    fn a_datagram_full_of_headers_is_checked_in_linear_time() {
        let header = |psn: u8| [4, 0, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, psn, 0, 0, 0, 0];
        let bytes = [&header(1)[..], &header(2).repeat(4095)].concat();
        let checked = Cell::new(0);
        let found = segments(&bytes, |_| {
            checked.set(checked.get() + 1);
            false
        });
        assert_eq!((found, checked.get()), (None, MAX_SEGMENT_LENS));
    }
}
