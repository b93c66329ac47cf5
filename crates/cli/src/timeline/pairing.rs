//! First reading of a capture: which queue pairs there are, and which two are connected.
//!
//! A packet of a connected transport names only the queue pair that it goes to. A *flow* is all packets from one address to
//! one queue pair; two flows make a connection. In this order a flow finds its partner:
//!
//! 1. by the REQ and REP of the connection manager, which name both queue pairs,
//! 2. by its acknowledgements: their PSNs are those of requests in the partner,
//! 3. because it is the only one between two addresses.
//!
//! Datagrams name both queue pairs.

use super::packet::RocePacket;
use crate::capture_file::Direction;
use ferroce_proto::Psn;
use ferroce_proto::wire::cm::{CmMad, CmMessage, CommId};
use ferroce_proto::wire::{Aeth, NakCode, Opcode, Service, Syndrome};
use std::collections::HashMap;
use std::net::IpAddr;

/// Most flows; the packets of further ones are only counted.
const MAX_FLOWS: usize = 16_384;
/// Requests whose PSN is stored for their acknowledgement, in each of two generations.
const MAX_REMEMBERED: usize = 1 << 17;
/// Flows with the same addresses and PSN that are considered at a time.
const MAX_CANDIDATES: usize = 16;
/// Partners of a flow that are counted.
const MAX_PARTNERS: usize = 16;
const MAX_COMM_IDS: usize = 65_536;

/// The packets from one address to one queue pair; of datagrams, those from one queue pair, `src_qpn`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct FlowKey {
    src: IpAddr,
    dst: IpAddr,
    dest_qpn: u32,
    src_qpn: Option<u32>,
}

impl FlowKey {
    /// The flow of a packet.
    pub(super) fn of(packet: &RocePacket<'_>) -> FlowKey {
        let src_qpn = packet.headers.deth.map(|deth| deth.src_qpn.value());
        FlowKey { src: packet.src, dst: packet.dst, dest_qpn: packet.headers.bth.dest_qpn.value(), src_qpn }
    }
}

/// One end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    pub(super) addr: IpAddr,
    /// `None` if no packet to it was captured.
    pub(super) qpn: Option<u32>,
}

/// How the two flows of a connection were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pairing {
    /// REQ and REP name both.
    ConnectionManager,
    /// The PSNs of acknowledgements.
    Acknowledgements,
    /// There are no other queue pairs between these addresses.
    OnlyPair,
    /// Datagrams name both queue pairs.
    Datagram,
    /// The program connected them, and its operations were recorded.
    Program,
    /// One direction only.
    Unpaired,
}

/// A connection before its packets are analysed.
#[derive(Clone, Debug)]
pub(super) struct Seed {
    pub(super) ends: [End; 2],
    pub(super) service: Service,
    pub(super) pairing: Pairing,
    /// Whether both ends are the same queue pair.
    pub(super) is_loopback: bool,
    pub(super) packets: u64,
    /// NAKs, RNR NAKs and CNPs.
    pub(super) complaints: u64,
    /// Path MTU in bytes, as packets of several per message show it.
    pub(super) mtu: Option<u32>,
    /// Per direction, whether the file has packets as they were sent, and as they were received.
    pub(super) seen: [SeenAt; 2],
}

/// Where the packets of a direction were captured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SeenAt {
    pub(super) sender: bool,
    pub(super) receiver: bool,
}

/// The result of the first reading.
pub(super) struct Plan {
    pub(super) connections: Vec<Seed>,
    /// Connection and sending end of each flow.
    flows: HashMap<FlowKey, (usize, u8)>,
    /// Connection and sending end of each communication id.
    comm_ids: HashMap<(IpAddr, CommId), (usize, u8)>,
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
    /// Packets of flows beyond the limit.
    pub(super) left_out: u64,
}

impl Plan {
    /// Connection of a packet, and the end that sent it.
    pub(super) fn find(&self, packet: &RocePacket<'_>) -> Option<(usize, u8)> {
        let of_message = cm_message(packet).and_then(|message| {
            let (local, remote) = comm_ids(&message);
            let by_local = local.and_then(|id| self.comm_ids.get(&(packet.src, id)).copied());
            let by_remote = || {
                let (connection, end) = *self.comm_ids.get(&(packet.dst, remote?))?;
                Some((connection, 1 - end))
            };
            by_local.or_else(by_remote)
        });
        of_message.or_else(|| self.flows.get(&FlowKey::of(packet)).copied())
    }
}

struct Flow {
    key: FlowKey,
    service: Service,
    packets: u64,
    complaints: u64,
    mtu: Option<u32>,
    seen: SeenAt,
    /// Partner flows and how many acknowledgements fit them.
    votes: Vec<(usize, f64)>,
}

/// The first reading.
#[derive(Default)]
pub(super) struct Pairer {
    flows: Vec<Flow>,
    by_key: HashMap<FlowKey, usize>,
    /// Which flows sent a request with a PSN lately, between two addresses; two generations bound the memory.
    requests: [HashMap<(IpAddr, IpAddr, Psn), Vec<usize>>; 2],
    offers: HashMap<(IpAddr, CommId), Offer>,
    connected: Vec<Connected>,
    first_ns: Option<u64>,
    last_ns: u64,
    left_out: u64,
}

#[derive(Clone, Copy)]
struct Offer {
    end: End,
    peer: IpAddr,
}

struct Connected {
    ends: [End; 2],
    comm_ids: [(IpAddr, CommId); 2],
}

/// The message of the connection manager in a packet.
pub(super) fn cm_message(packet: &RocePacket<'_>) -> Option<CmMessage> {
    packet.headers.deth.filter(|_| packet.headers.bth.dest_qpn.value() == 1)?;
    CmMad::parse(packet.payload).ok().map(|mad| mad.message)
}

/// The ids of a message: its sender's and its receiver's.
fn comm_ids(message: &CmMessage) -> (Option<CommId>, Option<CommId>) {
    match message {
        CmMessage::Req(m) => (Some(m.local_comm_id), None),
        CmMessage::Rep(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        CmMessage::Rtu(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        CmMessage::Rej(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        CmMessage::Mra(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        CmMessage::Dreq(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        CmMessage::Drep(m) => (Some(m.local_comm_id), Some(m.remote_comm_id)),
        _ => (None, None),
    }
}

impl Pairer {
    /// Takes the next packet.
    pub(super) fn take(&mut self, packet: &RocePacket<'_>) {
        self.first_ns = Some(self.first_ns.unwrap_or(packet.time_ns).min(packet.time_ns));
        self.last_ns = self.last_ns.max(packet.time_ns);
        let Some(number) = self.flow(packet) else {
            self.left_out += 1;
            return;
        };
        if let Some(message) = cm_message(packet) {
            self.on_cm(packet, &message);
        }
        let operation = packet.headers.bth.opcode.operation;
        let flow = &mut self.flows[number];
        flow.packets += 1;
        let is_negative = |aeth: Aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. });
        let is_cnp = packet.headers.bth.opcode == Opcode::CNP;
        flow.complaints += u64::from(is_cnp || packet.headers.aeth.is_some_and(is_negative));
        match packet.direction {
            Direction::Received => flow.seen.receiver = true,
            Direction::Sent => flow.seen.sender = true,
            Direction::Unknown => {}
        }
        if operation.is_first() || operation.is_middle() {
            flow.mtu = flow.mtu.max(Some(packet.payload_len));
        }
        if flow.key.src_qpn.is_some() {
            return;
        }
        let bth = &packet.headers.bth;
        if operation.is_request() {
            self.remember((packet.src, packet.dst, bth.psn), number);
        }
        let answers = operation.is_response() && operation.starts_message();
        let is_sequence_nak = packet.headers.aeth.is_some_and(|aeth| {
            // Its PSN is that of a packet that was missing.
            matches!(aeth.syndrome, Syndrome::Nak(NakCode::PsnSequence))
        });
        if answers && !is_sequence_nak {
            self.vote((packet.dst, packet.src, bth.psn), number);
        }
        if let Some(ack) = packet.headers.piggybacked_ack {
            self.vote((packet.dst, packet.src, ack.psn), number);
        }
    }

    fn flow(&mut self, packet: &RocePacket<'_>) -> Option<usize> {
        let key = FlowKey::of(packet);
        if let Some(&number) = self.by_key.get(&key) {
            let flow = &mut self.flows[number];
            // A CNP belongs to a queue pair of another service.
            if flow.service == Service::Cnp {
                flow.service = packet.headers.bth.opcode.service;
            }
            return Some(number);
        }
        if self.flows.len() == MAX_FLOWS {
            return None;
        }
        let service = packet.headers.bth.opcode.service;
        self.flows.push(Flow {
            key,
            service,
            packets: 0,
            complaints: 0,
            mtu: None,
            seen: SeenAt::default(),
            votes: Vec::new(),
        });
        self.by_key.insert(key, self.flows.len() - 1);
        Some(self.flows.len() - 1)
    }

    fn remember(&mut self, key: (IpAddr, IpAddr, Psn), flow: usize) {
        if self.requests[0].len() >= MAX_REMEMBERED {
            self.requests.swap(0, 1);
            self.requests[0].clear();
        }
        let flows = self.requests[0].entry(key).or_default();
        // The oldest flow is the first: answers have the order of the requests. An older entry of this flow is removed: if a later
        // ACK covered its request, it got no answer of its own.
        flows.retain(|&other| other != flow);
        flows.push(flow);
        let surplus = flows.len().saturating_sub(MAX_CANDIDATES);
        flows.drain(..surplus);
    }

    fn vote(&mut self, key: (IpAddr, IpAddr, Psn), flow: usize) {
        // An emptied list does not hide the requests of the older generation.
        let mut lists = self.requests.iter_mut().filter_map(|generation| generation.get_mut(&key));
        let Some(candidates) = lists.find(|candidates| !candidates.is_empty()) else { return };
        let has_other = candidates.iter().any(|&candidate| candidate != flow);
        let votes = &mut self.flows[flow].votes;
        let mut weight = 1.0;
        for &candidate in candidates.iter().filter(|&&candidate| candidate != flow || !has_other) {
            match votes.iter().position(|(partner, _)| *partner == candidate) {
                Some(at) => votes[at].1 += weight,
                None if votes.len() < MAX_PARTNERS => votes.push((candidate, weight)),
                None => {}
            }
            weight /= 2.0;
        }
        // The most likely candidate counts as answered.
        if let Some(at) = candidates.iter().position(|&candidate| candidate != flow) {
            candidates.remove(at);
        }
    }

    fn on_cm(&mut self, packet: &RocePacket<'_>, message: &CmMessage) {
        match message {
            CmMessage::Req(req) if self.offers.len() < MAX_COMM_IDS => {
                let (local, remote) = (req.primary.local_gid.to_ip(), req.primary.remote_gid.to_ip());
                let end = End { addr: local, qpn: Some(req.local_qpn.value()) };
                self.offers.insert((packet.src, req.local_comm_id), Offer { end, peer: remote });
            }
            CmMessage::Rep(rep) if self.connected.len() < MAX_COMM_IDS => {
                let offered = (packet.dst, rep.remote_comm_id);
                let Some(offer) = self.offers.get(&offered) else { return };
                let answer = End { addr: offer.peer, qpn: Some(rep.local_qpn.value()) };
                let comm_ids = [offered, (packet.src, rep.local_comm_id)];
                if !self.connected.iter().rev().take(64).any(|connected| connected.comm_ids == comm_ids) {
                    self.connected.push(Connected { ends: [offer.end, answer], comm_ids });
                }
            }
            _ => {}
        }
    }

    /// Forms connections.
    pub(super) fn finish(self) -> Plan {
        let mut forming = Forming { partner: vec![None; self.flows.len()], flows: &self.flows };
        for connected in &self.connected {
            let [a, b] = connected.ends;
            let number = |to: &End, from: &End| {
                let key = FlowKey { src: from.addr, dst: to.addr, dest_qpn: to.qpn?, src_qpn: None };
                self.by_key.get(&key).copied()
            };
            if let (Some(to_b), Some(to_a)) = (number(&b, &a), number(&a, &b)) {
                forming.join(to_b, to_a, Pairing::ConnectionManager);
            }
        }
        forming.by_votes();
        forming.by_elimination();
        let partner = forming.partner;
        let mut plan = Plan {
            connections: Vec::new(),
            flows: HashMap::new(),
            comm_ids: HashMap::new(),
            first_ns: self.first_ns.unwrap_or(0),
            last_ns: self.last_ns,
            left_out: self.left_out,
        };
        for (number, flow) in self.flows.iter().enumerate() {
            plan.add(flow, partner[number].map(|(other, how)| (&self.flows[other], how)));
        }
        for connected in &self.connected {
            let [a, b] = connected.ends;
            let to_b = FlowKey { src: a.addr, dst: b.addr, dest_qpn: b.qpn.unwrap_or(0), src_qpn: None };
            if let Some(&(connection, end)) = plan.flows.get(&to_b) {
                plan.comm_ids.insert(connected.comm_ids[0], (connection, end));
                plan.comm_ids.insert(connected.comm_ids[1], (connection, 1 - end));
            }
        }
        plan
    }
}

struct Forming<'a> {
    partner: Vec<Option<(usize, Pairing)>>,
    flows: &'a [Flow],
}

impl Forming<'_> {
    fn join(&mut self, a: usize, b: usize, how: Pairing) {
        if self.partner[a].is_none() && self.partner[b].is_none() {
            self.partner[a] = Some((b, how));
            self.partner[b] = Some((a, how));
        }
    }

    /// The pair with the most fitting acknowledgements first.
    fn by_votes(&mut self) {
        let mut pairs: HashMap<(usize, usize), f64> = HashMap::new();
        for (number, flow) in self.flows.iter().enumerate() {
            for &(partner, votes) in &flow.votes {
                *pairs.entry((number.min(partner), number.max(partner))).or_default() += votes;
            }
        }
        let mut pairs: Vec<_> = pairs.into_iter().collect();
        pairs.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        for ((a, b), _) in pairs {
            self.join(a, b, Pairing::Acknowledgements);
        }
    }

    fn by_elimination(&mut self) {
        let mut free: HashMap<(IpAddr, IpAddr), Vec<usize>> = HashMap::new();
        for (number, flow) in self.flows.iter().enumerate() {
            if self.partner[number].is_none() && flow.key.src_qpn.is_none() {
                free.entry((flow.key.src, flow.key.dst)).or_default().push(number);
            }
        }
        for ((src, dst), flows) in &free {
            match (flows.as_slice(), free.get(&(*dst, *src)).map(Vec::as_slice)) {
                (&[a, b], _) if src == dst => self.join(a, b, Pairing::OnlyPair),
                (&[a], Some(&[b])) if src != dst => self.join(a, b, Pairing::OnlyPair),
                _ => {}
            }
        }
    }
}

impl Plan {
    /// Adds the connection of a flow, unless its partner or the other direction of its datagrams did.
    fn add(&mut self, flow: &Flow, partner: Option<(&Flow, Pairing)>) {
        let key = flow.key;
        if self.flows.contains_key(&key) {
            return;
        }
        let opposite = key.src_qpn.map(|src_qpn| FlowKey {
            src: key.dst,
            dst: key.src,
            dest_qpn: src_qpn,
            src_qpn: Some(key.dest_qpn),
        });
        if let Some(&(connection, end)) = opposite.and_then(|opposite| self.flows.get(&opposite)) {
            self.flows.insert(key, (connection, 1 - end));
            let seed = &mut self.connections[connection];
            seed.packets += flow.packets;
            seed.seen[usize::from(1 - end)] = flow.seen;
            return;
        }
        let number = self.connections.len();
        let is_loopback = partner.is_some_and(|(other, _)| other.key == key);
        let src_qpn = partner.map(|(other, _)| other.key.dest_qpn).or(key.src_qpn);
        let (how, other) = match partner {
            Some((other, how)) => (how, Some(other).filter(|_| !is_loopback)),
            None if key.src_qpn.is_some() => (Pairing::Datagram, None),
            None => (Pairing::Unpaired, None),
        };
        self.flows.insert(key, (number, 0));
        self.flows.extend(other.map(|other| (other.key, (number, 1))));
        self.connections.push(Seed {
            ends: [End { addr: key.src, qpn: src_qpn }, End { addr: key.dst, qpn: Some(key.dest_qpn) }],
            service: if flow.service == Service::Cnp {
                other.map_or(flow.service, |o| o.service)
            } else {
                flow.service
            },
            pairing: how,
            is_loopback,
            packets: flow.packets + other.map_or(0, |other| other.packets),
            complaints: flow.complaints + other.map_or(0, |other| other.complaints),
            mtu: flow.mtu.max(other.and_then(|other| other.mtu)),
            seen: [
                flow.seen,
                other.map_or(if is_loopback { flow.seen } else { SeenAt::default() }, |other| other.seen),
            ],
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The votes for flow 0 in the newer generation are used up. The older one has a request of flow 1 with the same PSN.
    #[test]
    fn an_emptied_list_does_not_hide_older_requests() {
        let here = IpAddr::from([127, 0, 0, 1]);
        let key = (here, here, Psn::new(7));
        let mut pairer = Pairer::default();
        for qpn in 1..=2 {
            let key = FlowKey { src: here, dst: here, dest_qpn: qpn, src_qpn: None };
            let seen = SeenAt::default();
            let votes = Vec::new();
            pairer.flows.push(Flow {
                key,
                service: Service::Rc,
                packets: 0,
                complaints: 0,
                mtu: None,
                seen,
                votes,
            });
        }
        pairer.requests = [HashMap::from([(key, Vec::new())]), HashMap::from([(key, vec![1])])];
        pairer.vote(key, 0);
        assert_eq!(pairer.flows[0].votes, [(1, 1.0)]);
        assert!(pairer.requests[1][&key].is_empty(), "it counts as answered");
    }
}
