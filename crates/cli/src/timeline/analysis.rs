//! Second reading of a capture: follows every connection that the first one found.

use super::histogram::Histogram;
use super::operations::Operations;
use super::packet::{IcrcState, RocePacket};
use super::pairing::{Plan, Seed, cm_message};
use super::requester::{Finding, Notes, Requester};
use super::selection::{Item, Messages, Selection};
use super::words;
use crate::capture_file::Direction;
use ferroce_proto::Psn;
use ferroce_proto::wire::{Opcode, Operation, Service, Syndrome};
use std::collections::VecDeque;

/// Connections that the page shows packet by packet.
pub(super) const MAX_LADDERS: usize = 64;
/// Parts of the capture's time for which packets are counted.
pub(super) const BINS: usize = 160;
/// Most messages of the connection manager that are shown with the connection that they set up and end.
const MANAGEMENT: usize = 32;
/// Messages and packets of all connections together that wait for an answer.
const MAX_PENDING: usize = 1 << 18;
const MIN_PENDING: usize = 64;
/// Sent packets among which a received one is searched.
const MAX_SEARCHED: usize = 4096;
const CONGESTION_EXPERIENCED: u8 = 3;

/// A connection and what the capture shows of it.
pub(super) struct Connection {
    pub(super) seed: Seed,
    /// Each end as requester.
    pub(super) requesters: [Requester; 2],
    pub(super) cnps: u64,
    pub(super) marked: u64,
    pub(super) bad_icrc: u64,
    pub(super) cut: u64,
    /// Per sending end, packets between the ends, if the file has them as sent and as received.
    pub(super) transits: [Transit; 2],
    pub(super) selection: Selection,
    /// Payload bytes from each end, and anomalies, per part of the time; only of shown connections.
    pub(super) bins: Vec<Bin>,
    /// What the program did; moved into the report.
    pub(super) operations: Operations,
    serial: u64,
}

/// A part of the time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bin {
    pub(super) payload: [u64; 2],
    pub(super) packets: u64,
    pub(super) anomalies: u64,
}

/// Packets on their way from one end to the other.
#[derive(Default)]
pub(super) struct Transit {
    sent: VecDeque<Sent>,
    latest_received: Option<u64>,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
    pub(super) delay: Histogram,
}

struct Sent {
    psn: Psn,
    opcode: Opcode,
    time_ns: u64,
    serial: u64,
}

/// Everything that a capture shows.
pub(super) struct Analysis {
    pub(super) plan: Plan,
    pub(super) connections: Vec<Connection>,
    pub(super) messages: Messages,
    /// Packets of the file that belong to a connection; those that were captured at both ends count once.
    pub(super) packets: u64,
    pending_limit: usize,
}

impl Analysis {
    /// Gets ready for the second reading; the page may show `limit` packets, the report as many messages.
    pub(super) fn new(plan: Plan, limit: usize) -> Analysis {
        let count = plan.connections.len();
        let pending_limit = (MAX_PENDING / count.max(1)).max(MIN_PENDING);
        let mut order: Vec<usize> = (0..count).collect();
        order.sort_by_key(|&n| {
            let seed = &plan.connections[n];
            std::cmp::Reverse((seed.complaints > 0, seed.packets))
        });
        let mut shares = vec![0; count];
        let shown = count.min(MAX_LADDERS);
        // A connection needs at most a share for its own packets and those of QP 1 that set it up. The rest goes to the larger connections.
        let mut by_size = order[..shown].to_vec();
        by_size.sort_by_key(|&n| plan.connections[n].packets);
        let mut left = limit;
        for (done, &n) in by_size.iter().enumerate() {
            shares[n] = (left / (shown - done)).min(plan.connections[n].packets as usize + MANAGEMENT);
            left -= shares[n];
        }
        let connection = |(number, seed): (usize, &Seed)| {
            Connection::new(number, seed.clone(), shares[number], pending_limit)
        };
        let connections = plan.connections.iter().enumerate().map(connection).collect();
        Analysis { connections, messages: Messages::new(limit), packets: 0, pending_limit, plan }
    }

    /// Adds a connection that only the program's operations show. Returns its number.
    pub(super) fn add_without_packets(&mut self, seed: Seed) -> usize {
        let number = self.connections.len();
        self.connections.push(Connection::new(number, seed, 0, MIN_PENDING));
        number
    }

    /// Takes the next packet.
    pub(super) fn take(&mut self, packet: &RocePacket<'_>) {
        let Some((number, end)) = self.plan.find(packet) else { return };
        let time = (self.plan.first_ns, self.plan.last_ns);
        let connection = &mut self.connections[number];
        self.packets += u64::from(connection.take(packet, end, time, self.pending_limit, &mut self.messages));
    }

    /// The end of the capture.
    pub(super) fn finish(&mut self) {
        for connection in &mut self.connections {
            for requester in &mut connection.requesters {
                requester.finish(&mut |message| self.messages.take(message));
            }
            for transit in &mut connection.transits {
                while let Some(sent) = transit.sent.pop_front() {
                    transit.forget(&sent, &mut connection.selection);
                }
            }
        }
        self.remove_empty();
        self.messages.kept.sort_by_key(|message| (message.start_ns, message.connection));
    }

    /// Removes connections whose packets all belong to others: QP1, if its messages set up connections of this capture.
    fn remove_empty(&mut self) {
        let mut next = 0;
        let numbers: Vec<usize> = self
            .connections
            .iter()
            .map(|connection| {
                let number = next;
                next += usize::from(connection.serial > 0);
                number
            })
            .collect();
        self.connections.retain(|connection| connection.serial > 0);
        self.messages.kept.iter_mut().for_each(|message| message.connection = numbers[message.connection]);
    }
}

impl Connection {
    fn new(number: usize, seed: Seed, share: usize, pending_limit: usize) -> Connection {
        Connection {
            requesters: [0, 1].map(|end| Requester::new(number, end, seed.service, seed.mtu, pending_limit)),
            cnps: 0,
            marked: 0,
            bad_icrc: 0,
            cut: 0,
            transits: Default::default(),
            selection: Selection::new(share, seed.packets),
            bins: if share > 0 { vec![Bin::default(); BINS] } else { Vec::new() },
            serial: 0,
            operations: Operations::default(),
            seed,
        }
    }

    /// Whether the packet is a new one, not the second record of one that was captured at both ends.
    fn take(
        &mut self,
        packet: &RocePacket<'_>,
        end: u8,
        time: (u64, u64),
        limit: usize,
        messages: &mut Messages,
    ) -> bool {
        let operation = packet.headers.bth.opcode.operation;
        let from = if self.seed.is_loopback && operation.is_response() { 1 } else { end };
        let seen = self.seed.seen[usize::from(end)];
        let is_at_both = seen.sender && seen.receiver;
        let mut done = |message: &_| messages.take(message);
        if is_at_both && packet.direction == Direction::Received {
            let sent = self.transits[usize::from(from)].receive(packet);
            let finding = self.answer(packet, from, &mut done);
            if let Some(serial) = sent {
                if let Some(item) = self.selection.find(serial) {
                    item.arrival_ns = Some(packet.time_ns);
                    let notes = item.finding.notes;
                    if let Some(finding) = finding {
                        item.finding = finding;
                    }
                    item.finding.notes.add(notes);
                }
                return false;
            }
            let mut finding = finding.unwrap_or_default();
            finding.notes.add(Notes::DUPLICATED);
            self.show(packet, from, finding, time);
            return true;
        }
        let mut finding = Finding::default();
        // Messages of the connection manager are datagrams, with PSNs of their own.
        let is_foreign = packet.headers.deth.is_some() && self.seed.service != Service::Ud;
        if operation.is_request() && !is_foreign {
            finding = self.requesters[usize::from(from)].on_request(packet, &mut done);
        }
        if is_at_both {
            let lost = self.transits[usize::from(from)].send(packet, self.serial, limit);
            lost.iter().for_each(|sent| self.transits[usize::from(from)].forget(sent, &mut self.selection));
        } else if let Some(answer) = self.answer(packet, from, &mut done) {
            finding.notes.add(answer.notes);
            finding.missing = finding.missing.max(answer.missing);
            (finding.rtt_ns, finding.completes) = (answer.rtt_ns, answer.completes);
        }
        self.count(packet, from);
        self.show(packet, from, finding, time);
        true
    }

    /// Passes the answers in a packet to the requester that they answer.
    fn answer(
        &mut self,
        packet: &RocePacket<'_>,
        from: u8,
        done: &mut dyn FnMut(&super::message::Message),
    ) -> Option<Finding> {
        let (bth, headers) = (&packet.headers.bth, &packet.headers);
        let requester = &mut self.requesters[usize::from(1 - from)];
        if let Some(ack) = headers.piggybacked_ack {
            return Some(requester.on_answer(packet, ack.psn, Some(ack.aeth), Operation::Acknowledge, done));
        }
        let operation = bth.opcode.operation;
        operation.is_response().then(|| requester.on_answer(packet, bth.psn, headers.aeth, operation, done))
    }

    fn count(&mut self, packet: &RocePacket<'_>, from: u8) {
        let counts = &mut self.requesters[usize::from(from)].counts;
        counts.packets += 1;
        counts.payload_bytes += u64::from(packet.payload_len);
        counts.first_ns = Some(counts.first_ns.unwrap_or(packet.time_ns).min(packet.time_ns));
        counts.last_ns = counts.last_ns.max(packet.time_ns);
        self.marked += u64::from(packet.ecn == CONGESTION_EXPERIENCED);
        self.bad_icrc += u64::from(packet.icrc == IcrcState::Wrong);
        self.cut += u64::from(packet.icrc == IcrcState::Unchecked);
        self.cnps += u64::from(packet.headers.bth.opcode == Opcode::CNP);
    }

    fn show(&mut self, packet: &RocePacket<'_>, from: u8, mut finding: Finding, (first, last): (u64, u64)) {
        let headers = &packet.headers;
        let is_negative = headers.aeth.is_some_and(|aeth| !matches!(aeth.syndrome, Syndrome::Ack { .. }));
        for (is_true, note) in [
            (is_negative || headers.bth.opcode == Opcode::CNP, Notes::NAK_OR_CNP),
            (packet.ecn == CONGESTION_EXPERIENCED, Notes::MARKED),
            (packet.icrc == IcrcState::Wrong, Notes::BAD_ICRC),
        ] {
            if is_true {
                finding.notes.add(note);
            }
        }
        let at = packet.time_ns.saturating_sub(first) as u128 * BINS as u128 / (u128::from(last - first) + 1);
        if let Some(bin) = self.bins.get_mut(at as usize) {
            bin.payload[usize::from(from)] += u64::from(packet.payload_len);
            bin.packets += 1;
            bin.anomalies += u64::from(finding.notes.is_anomaly());
        }
        self.selection.push(Item {
            serial: self.serial,
            from,
            time_ns: packet.time_ns,
            arrival_ns: None,
            headers: *headers,
            headers_cut: packet.headers_cut,
            payload_len: packet.payload_len,
            ecn: packet.ecn,
            finding,
            refusal: packet.payload.first().copied().filter(|_| is_negative),
            cm: cm_message(packet).map(|message| words::of_cm(&message)),
        });
        self.serial += 1;
    }

    /// Packets of the connection that the page does not show.
    pub(super) fn left_out(&self) -> u64 {
        self.serial - self.selection.items().len() as u64
    }
}

impl Transit {
    /// A packet leaves. Returns the oldest one if too many are in flight.
    fn send(&mut self, packet: &RocePacket<'_>, serial: u64, limit: usize) -> Option<Sent> {
        let surplus = if self.sent.len() == limit { self.sent.pop_front() } else { None };
        let bth = &packet.headers.bth;
        self.sent.push_back(Sent { psn: bth.psn, opcode: bth.opcode, time_ns: packet.time_ns, serial });
        surplus
    }

    /// A packet arrives. Returns the serial number of the sent packet. `None` if there is none: the network duplicated it.
    fn receive(&mut self, packet: &RocePacket<'_>) -> Option<u64> {
        let bth = &packet.headers.bth;
        // Of several copies the latest one: it was sent because the earlier ones were lost.
        let searched = self.sent.len().saturating_sub(MAX_SEARCHED);
        let mut recent = self.sent.iter().skip(searched);
        let at =
            recent.rposition(|sent| sent.psn == bth.psn && sent.opcode == bth.opcode).map(|at| searched + at);
        let Some(sent) = at.and_then(|at| self.sent.remove(at)) else {
            self.duplicated += 1;
            return None;
        };
        self.latest_received = self.latest_received.max(Some(sent.time_ns));
        self.delay.add(packet.time_ns.saturating_sub(sent.time_ns));
        Some(sent.serial)
    }

    /// No arrival of this packet will follow. It was lost if a later one arrived.
    fn forget(&mut self, sent: &Sent, selection: &mut Selection) {
        if self.latest_received.is_some_and(|latest| latest > sent.time_ns) {
            self.lost += 1;
            if let Some(item) = selection.find(sent.serial) {
                item.finding.notes.add(Notes::LOST);
            }
        }
    }
}
