//! A packet in flight: the bytes that a UDP socket would carry.

use ferroce_proto::verbs::Route;
use ferroce_proto::wire::{
    Bth, FlowAddrs, Headers, ICRC_LEN, Icrc, IcrcPrefix, Malformed, Opcode, Operation, Packet,
    RendezvousSend, Service, clear_partial_icrc, has_partial_icrc, icrc,
};
use std::borrow::Cow;
use std::rc::Rc;

/// Bytes from the BTH to the ICRC, and their route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Outer addresses.
    pub(crate) route: Route,
    /// BTH, extension headers, payload, pad, ICRC.
    pub(crate) bytes: Vec<u8>,
    /// The bytes that a rendezvous send refers to. Its sender must not change them before the ACK, so it does not matter
    /// when they are read.
    pub(crate) source_bytes: Option<Rc<[u8]>>,
}

/// Why a frame is not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The ICRC is wrong.
    Icrc,
    /// The ICRC is right, but the packet is malformed.
    Malformed(Malformed),
}

/// IP identification of packets that leave a UDP socket without GSO.
const IP_IDENTIFICATION: u16 = 0;
/// UDP source ports of a RoCEv2 sender start here (IBA annex A17.9.2).
const FIRST_SOURCE_PORT: u16 = 0xc000;

impl Frame {
    /// Encodes a packet with its ICRC.
    pub(crate) fn encode(route: &Route, headers: &Headers, payload: &[u8]) -> Frame {
        let headers_len = headers.encoded_len();
        let mut bytes = vec![0; headers_len];
        headers.write(&mut bytes);
        bytes.extend_from_slice(payload);
        bytes.resize(bytes.len() + usize::from(headers.bth.pad), 0);
        assert!(bytes.len().is_multiple_of(4), "pad {} is wrong: {headers:?}", headers.bth.pad);
        Frame::with_icrc(route, bytes, None)
    }

    /// A rendezvous send of these bytes.
    pub(crate) fn rendezvous(route: &Route, record: &[u8], source_bytes: Vec<u8>) -> Frame {
        Frame::with_icrc(route, record.to_vec(), Some(source_bytes.into()))
    }

    fn with_icrc(route: &Route, mut bytes: Vec<u8>, source_bytes: Option<Rc<[u8]>>) -> Frame {
        let checksum = icrc(&flow(route), IP_IDENTIFICATION, &bytes);
        bytes.extend_from_slice(&checksum);
        Frame { route: *route, bytes, source_bytes }
    }

    /// The bytes from the BTH to the pad.
    pub(crate) fn transport(&self) -> &[u8] {
        &self.bytes[..self.bytes.len().saturating_sub(ICRC_LEN)]
    }

    /// Decodes it, as the receiver does. The checksum is compared with the one known identification, so that no
    /// damage can hide behind another.
    pub(crate) fn decode(&self) -> Result<Packet<'_>, Unreadable> {
        let Some((transport, found)) = self.bytes.split_last_chunk::<ICRC_LEN>() else {
            return Err(Unreadable::Icrc);
        };
        let checked = transport.len() >= Bth::LEN
            && [icrc, whole_icrc]
                .iter()
                .any(|icrc| icrc(&flow(&self.route), IP_IDENTIFICATION, transport) == *found);
        if !checked {
            return Err(Unreadable::Icrc);
        }
        if let Some(source_bytes) = &self.source_bytes
            && let Some((head, _)) = RendezvousSend::parse(transport)
        {
            return Ok(Packet { headers: stand_in(&head), payload: source_bytes });
        }
        // Only the queue pair stores whether the sender extends its packets.
        let plain = || Packet::parse_from(transport, |_| false);
        Packet::parse(transport).or_else(|_| plain()).map_err(Unreadable::Malformed)
    }

    /// The bytes that the receiver's link passes on.
    pub(crate) fn received(&self) -> Cow<'_, [u8]> {
        let mut bytes = Cow::Borrowed(self.transport());
        if has_partial_icrc(&bytes) && !self.has_partial_icrc() {
            clear_partial_icrc(bytes.to_mut());
        }
        bytes
    }

    /// Whether the receiver accepts its ICRC as a partial one.
    pub(crate) fn has_partial_icrc(&self) -> bool {
        let verified = IcrcPrefix::default().verify(&flow(&self.route), IP_IDENTIFICATION, &self.bytes);
        verified.is_some_and(|verified| verified.is_partial)
    }

    /// Computes the ICRC of the current bytes as a foreign end does, whatever their reserved bits are.
    pub(crate) fn update_icrc(&mut self) {
        let (end, checksum) = (self.bytes.len() - ICRC_LEN, self.checksum());
        self.bytes[end..].copy_from_slice(&checksum);
    }

    /// The ICRC over all bytes.
    pub(crate) fn checksum(&self) -> [u8; ICRC_LEN] {
        whole_icrc(&flow(&self.route), IP_IDENTIFICATION, self.transport())
    }
}

/// The headers of a rendezvous send that rules and journals see.
fn stand_in(head: &RendezvousSend) -> Headers {
    let operation = if head.imm.is_some() { Operation::SendOnlyImm } else { Operation::SendOnly };
    let mut headers = Headers::new(Bth::new(Opcode::new(Service::Rc, operation), head.dest_qpn, head.psn));
    headers.bth.ack_req = true;
    (headers.imm, headers.piggybacked_ack) = (head.imm, head.piggybacked_ack);
    headers
}

fn whole_icrc(flow: &FlowAddrs, ident: u16, transport: &[u8]) -> [u8; ICRC_LEN] {
    Icrc::start_with_bth(flow, ident, transport.len(), transport).finish()
}

fn flow(route: &Route) -> FlowAddrs {
    FlowAddrs::new(route.sgid, route.dgid, FIRST_SOURCE_PORT | route.entropy)
}
