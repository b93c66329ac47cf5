//! The statistics and messages of a capture, as `--json` prints them and the page shows them.

use super::analysis::{Analysis, Connection};
use super::histogram::Percentiles;
use super::message::{Kind, Message, Outcome, nak_reason};
use super::operations::Operations;
use super::packet::NotRoce;
use super::pairing::{End, Pairing};
use super::words;
use ferroce_proto::wire::NakCode;
use serde::Serialize;
use std::collections::BTreeMap;

const NAK_CODES: [NakCode; 5] = [
    NakCode::PsnSequence,
    NakCode::InvalidRequest,
    NakCode::RemoteAccess,
    NakCode::RemoteOperational,
    NakCode::InvalidRdRequest,
];

/// What a capture shows.
#[derive(Serialize)]
pub(super) struct Report {
    pub(super) files: Vec<String>,
    /// Files that could not be read to their ends, and why.
    pub(super) damaged: Vec<String>,
    /// Time of the first packet, in nanoseconds since 1970.
    pub(super) start_unix_ns: u64,
    pub(super) duration_ns: u64,
    /// RoCEv2 packets; one that was captured at both ends counts once.
    pub(super) packets: u64,
    /// Frames that are no RoCEv2 packets, by reason.
    pub(super) other_frames: BTreeMap<String, u64>,
    /// Packets of queue pairs beyond the first 16384, which are not analysed.
    pub(super) packets_left_out: u64,
    pub(super) connections: Vec<ConnectionReport>,
    pub(super) messages: Vec<MessageReport>,
    /// Messages that are counted above and not listed.
    pub(super) messages_left_out: u64,
}

/// Two connected queue pairs.
#[derive(Serialize)]
pub(super) struct ConnectionReport {
    pub(super) service: &'static str,
    pub(super) ends: [EndReport; 2],
    /// How the two were found to be connected.
    pub(super) paired_by: &'static str,
    /// Path MTU in bytes; none if no message had several packets.
    pub(super) path_mtu: Option<u32>,
    pub(super) duration_ns: u64,
    pub(super) cnps: u64,
    pub(super) ecn_marked: u64,
    pub(super) wrong_icrc: u64,
    /// Packets that the snap length cut.
    pub(super) cut: u64,
    /// What each end requested, in the order of `ends`.
    pub(super) requests: [DirectionReport; 2],
    /// What the program posted and polled; none unless it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) operations: Option<Operations>,
}

/// A queue pair.
#[derive(Serialize)]
pub(super) struct EndReport {
    pub(super) address: String,
    pub(super) qp: Option<u32>,
}

/// What one end requested, and how it went.
#[derive(Serialize)]
pub(super) struct DirectionReport {
    /// Packets that the end sent: requests, and answers to the other end.
    pub(super) packets: u64,
    pub(super) messages: u64,
    pub(super) goodput_bytes: u64,
    /// Payload of requests per second of the connection, without retransmissions.
    pub(super) goodput_bit_per_s: f64,
    pub(super) retransmitted: u64,
    /// Retransmitted packets per request packet and READ response.
    pub(super) retransmission_share: f64,
    pub(super) gaps: u64,
    pub(super) missing: u64,
    pub(super) out_of_order: u64,
    pub(super) acks: u64,
    pub(super) repeated_acks: u64,
    pub(super) naks: BTreeMap<&'static str, u64>,
    pub(super) rnr_naks: u64,
    pub(super) unanswered: u64,
    pub(super) refused: u64,
    /// From a request packet to its answer.
    pub(super) rtt: Option<Percentiles>,
    /// From the first packet of a message to its answer.
    pub(super) latency: Option<Percentiles>,
    /// Packets of the end that were sent and not received; none unless the capture has both.
    pub(super) lost: Option<u64>,
    pub(super) duplicated: Option<u64>,
    pub(super) one_way_delay: Option<Percentiles>,
}

/// A message.
#[derive(Serialize)]
pub(super) struct MessageReport {
    pub(super) connection: usize,
    /// The end that requested it: 0 or 1.
    pub(super) from: u8,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) packets: u32,
    pub(super) first_psn: u32,
    pub(super) last_psn: u32,
    pub(super) imm: Option<u32>,
    /// Time of its first packet after the start of the capture.
    pub(super) start_ns: u64,
    /// From its first to its last request packet.
    pub(super) sending_ns: u64,
    /// From its first packet to its answer.
    pub(super) latency_ns: Option<u64>,
    pub(super) outcome: Outcome,
    pub(super) retransmitted: u32,
    pub(super) rnr_naks: u32,
    /// Whether its first packet is in the capture.
    pub(super) has_start: bool,
}

/// The files, and the frames that are no RoCEv2 packets.
#[derive(Default)]
pub(super) struct Reading {
    pub(super) files: Vec<String>,
    pub(super) damaged: Vec<String>,
    pub(super) other: BTreeMap<NotRoce, u64>,
}

impl Report {
    /// Puts it together.
    pub(super) fn of(analysis: &mut Analysis, reading: Reading) -> Report {
        let start = analysis.plan.first_ns;
        Report {
            files: reading.files,
            damaged: reading.damaged,
            start_unix_ns: start,
            duration_ns: analysis.plan.last_ns - start,
            packets: analysis.packets,
            other_frames: reading.other.into_iter().map(|(why, count)| (why_not(why), count)).collect(),
            packets_left_out: analysis.plan.left_out,
            connections: analysis.connections.iter_mut().map(ConnectionReport::of).collect(),
            messages: analysis
                .messages
                .kept
                .iter()
                .map(|message| MessageReport::of(message, start))
                .collect(),
            messages_left_out: analysis.messages.left_out,
        }
    }
}

fn why_not(reason: NotRoce) -> String {
    match reason {
        NotRoce::Link(number) => format!("link type {number} is not supported"),
        NotRoce::Other => "other traffic than UDP port 4791".into(),
        NotRoce::Fragment => "a fragment of an IP packet".into(),
        NotRoce::Short => "cut before the transport header".into(),
        NotRoce::Malformed(why) => format!("malformed: {why}"),
    }
}

impl ConnectionReport {
    fn of(connection: &mut Connection) -> ConnectionReport {
        let counts = || connection.requesters.iter().map(|requester| &requester.counts);
        let first = counts().filter_map(|counts| counts.first_ns).min().unwrap_or(0);
        let duration_ns = counts().map(|counts| counts.last_ns).max().unwrap_or(0).saturating_sub(first);
        let seed = &connection.seed;
        ConnectionReport {
            service: words::service(seed.service),
            ends: seed.ends.map(|End { addr, qpn }| EndReport { address: addr.to_string(), qp: qpn }),
            paired_by: match seed.pairing {
                Pairing::ConnectionManager => "connection manager",
                Pairing::Acknowledgements => "PSNs of acknowledgements",
                Pairing::OnlyPair => "the only two between these addresses",
                Pairing::Datagram => "datagrams name both",
                Pairing::Program => "the program; no packet was captured",
                Pairing::Unpaired => "unpaired: one direction only",
            },
            path_mtu: seed.mtu,
            duration_ns,
            cnps: connection.cnps,
            ecn_marked: connection.marked,
            wrong_icrc: connection.bad_icrc,
            cut: connection.cut,
            requests: [0, 1].map(|end| DirectionReport::of(connection, end, duration_ns)),
            operations: Some(std::mem::take(&mut connection.operations))
                .filter(|o| o.posts + o.completions > 0),
        }
    }
}

impl DirectionReport {
    fn of(connection: &Connection, end: usize, duration_ns: u64) -> DirectionReport {
        let (counts, transit) = (&connection.requesters[end].counts, &connection.transits[end]);
        let seen = connection.seed.seen[end];
        let is_at_both = seen.sender && seen.receiver;
        let naks = NAK_CODES.into_iter().map(|code| (nak_reason(code), counts.naks[code as usize]));
        DirectionReport {
            packets: counts.packets,
            messages: counts.messages,
            goodput_bytes: counts.goodput_bytes,
            goodput_bit_per_s: ratio(counts.goodput_bytes as f64 * 8e9, duration_ns),
            retransmitted: counts.retransmitted,
            retransmission_share: ratio(counts.retransmitted as f64, counts.data_packets),
            gaps: counts.gaps,
            missing: counts.missing,
            out_of_order: counts.out_of_order,
            acks: counts.acks,
            repeated_acks: counts.repeated_acks,
            naks: naks.filter(|(_, count)| *count > 0).collect(),
            rnr_naks: counts.rnr_naks,
            unanswered: counts.unanswered,
            refused: counts.refused,
            rtt: counts.rtt.percentiles(),
            latency: counts.latency.percentiles(),
            lost: is_at_both.then_some(transit.lost),
            duplicated: is_at_both.then_some(transit.duplicated),
            one_way_delay: transit.delay.percentiles(),
        }
    }

    /// Number of anomalies: retransmissions, gaps, reordered, lost and duplicated packets, NAKs.
    pub(super) fn anomalies(&self) -> u64 {
        let naks: u64 = self.naks.values().sum();
        let lost = self.lost.unwrap_or(0) + self.duplicated.unwrap_or(0);
        self.retransmitted + self.gaps + self.out_of_order + naks + self.rnr_naks + lost
    }
}

impl ConnectionReport {
    /// Number of anomalies of both directions, CNPs, marked packets and wrong ICRCs.
    pub(super) fn anomalies(&self) -> u64 {
        let requests: u64 = self.requests.iter().map(DirectionReport::anomalies).sum();
        requests + self.cnps + self.ecn_marked + self.wrong_icrc
    }
}

fn ratio(part: f64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part / whole as f64 }
}

impl EndReport {
    /// `10.0.0.1 QP 0x11`.
    pub(super) fn name(&self) -> String {
        match self.qp {
            Some(qp) => format!("{} QP {qp:#x}", self.address),
            None => format!("{} QP ?", self.address),
        }
    }
}

impl MessageReport {
    fn of(message: &Message, start: u64) -> MessageReport {
        MessageReport {
            connection: message.connection,
            from: message.from,
            kind: message.kind,
            bytes: message.bytes,
            packets: message.packets,
            first_psn: message.first_psn.value(),
            last_psn: message.last_psn.value(),
            imm: message.imm,
            start_ns: message.start_ns.saturating_sub(start),
            sending_ns: message.last_packet_ns.saturating_sub(message.start_ns),
            latency_ns: message.latency_ns(),
            outcome: message.outcome,
            retransmitted: message.retransmitted,
            rnr_naks: message.rnr_naks,
            has_start: message.has_start,
        }
    }
}
