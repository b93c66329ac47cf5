//! The requests that one end of a connection sends, and the answers to them: order, retransmissions, messages, times.

use super::histogram::Histogram;
use super::message::{Kind, Message, Outcome};
use super::packet::RocePacket;
use ferroce_proto::Psn;
use ferroce_proto::wire::{Aeth, NakCode, Operation, Service, Syndrome};
use std::collections::VecDeque;

/// A PSN that is further away belongs to another connection of a queue pair with the same number.
const RESTART_DISTANCE: i32 = 1 << 20;
/// Most ranges of missing PSNs that are stored.
const MAX_MISSING: usize = 64;
/// Entries of a queue among which the one of a PSN is searched.
const SEARCHED: usize = 4096;
/// Largest path MTU: the least number of packets that a READ of unknown MTU has.
const MAX_MTU: u32 = 4096;
const MIN_MTU: u32 = 256;

/// What is special about a packet; a set of bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Notes(pub(super) u16);

impl Notes {
    /// The PSN was captured before.
    pub(super) const RETRANSMISSION: Notes = Notes(1);
    /// PSNs before it were not captured.
    pub(super) const GAP: Notes = Notes(1 << 1);
    /// A later PSN was captured before it.
    pub(super) const OUT_OF_ORDER: Notes = Notes(1 << 2);
    /// It repeats an acknowledgement.
    pub(super) const REPEATED_ACK: Notes = Notes(1 << 3);
    /// A switch marked it: congestion experienced.
    pub(super) const MARKED: Notes = Notes(1 << 4);
    /// The ICRC does not fit.
    pub(super) const BAD_ICRC: Notes = Notes(1 << 5);
    /// The PSN has nothing to do with the last one.
    pub(super) const RESTART: Notes = Notes(1 << 6);
    /// The file has it as sent, and does not have it as received.
    pub(super) const LOST: Notes = Notes(1 << 7);
    /// The file has it more often as received than as sent.
    pub(super) const DUPLICATED: Notes = Notes(1 << 8);
    /// A NAK, an RNR NAK or a CNP.
    pub(super) const NAK_OR_CNP: Notes = Notes(1 << 9);

    /// Adds one.
    pub(super) fn add(&mut self, note: Notes) {
        self.0 |= note.0;
    }

    /// Whether it has one.
    pub(super) fn has(self, note: Notes) -> bool {
        self.0 & note.0 != 0
    }

    /// Whether it has any note except a repeated acknowledgement.
    pub(super) fn is_anomaly(self) -> bool {
        self.0 & !Notes::REPEATED_ACK.0 != 0
    }
}

/// What a packet means to its requester.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Finding {
    pub(super) notes: Notes,
    /// PSNs that are missing before it.
    pub(super) missing: u32,
    /// How long after the request it answers was captured.
    pub(super) rtt_ns: Option<u64>,
    /// Messages that it completes.
    pub(super) completes: u32,
}

/// Counters of one direction.
#[derive(Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) packets: u64,
    pub(super) payload_bytes: u64,
    /// Payload that was captured for the first time, requested by this end: of READs, what the other end sent.
    pub(super) goodput_bytes: u64,
    pub(super) first_ns: Option<u64>,
    pub(super) last_ns: u64,
    pub(super) messages: u64,
    /// Request packets of this end and READ responses to it.
    pub(super) data_packets: u64,
    pub(super) retransmitted: u64,
    pub(super) gaps: u64,
    pub(super) missing: u64,
    pub(super) out_of_order: u64,
    pub(super) acks: u64,
    pub(super) repeated_acks: u64,
    pub(super) naks: [u64; 5],
    pub(super) rnr_naks: u64,
    pub(super) unanswered: u64,
    pub(super) refused: u64,
    pub(super) rtt: Histogram,
    pub(super) latency: Histogram,
}

/// One end as requester.
pub(super) struct Requester {
    connection: usize,
    end: u8,
    is_reliable: bool,
    mtu: Option<u32>,
    /// The most messages and packets that are remembered for their answers.
    limit: usize,
    next: Option<Psn>,
    /// The next PSN may be up to this one: the number of packets of a READ is not known.
    next_at_most: Psn,
    missing: Vec<(Psn, u32)>,
    /// The PSN of the last sequence NAK: what was missing there is sent again.
    resent_from: Option<Psn>,
    /// Messages without answer; the last one may not be complete.
    pending: VecDeque<Message>,
    /// Request packets without answer: PSN, time, and whether it was sent once only.
    in_flight: VecDeque<(Psn, u64, bool)>,
    acked: Option<(Psn, Syndrome)>,
    /// The next READ response.
    next_response: Option<Psn>,
    pub(super) counts: Counts,
}

impl Requester {
    pub(super) fn new(
        connection: usize,
        end: u8,
        service: Service,
        mtu: Option<u32>,
        limit: usize,
    ) -> Requester {
        Requester {
            connection,
            end,
            is_reliable: matches!(service, Service::Rc | Service::Xrc),
            mtu,
            limit,
            next: None,
            next_at_most: Psn::new(0),
            missing: Vec::new(),
            resent_from: None,
            pending: VecDeque::new(),
            in_flight: VecDeque::new(),
            acked: None,
            next_response: None,
            counts: Counts::default(),
        }
    }

    /// A request packet of this end. `done` receives the messages that it completes.
    pub(super) fn on_request(&mut self, packet: &RocePacket<'_>, done: &mut dyn FnMut(&Message)) -> Finding {
        let bth = &packet.headers.bth;
        let mut finding = Finding::default();
        let span = self.span(packet);
        self.counts.data_packets += 1;
        match self.position(bth.psn) {
            Position::Next => {}
            Position::Ahead(missing) => {
                finding.notes.add(Notes::GAP);
                finding.missing = missing;
                self.counts.gaps += 1;
                self.counts.missing += u64::from(missing);
                self.missing.push((bth.psn.minus(missing), missing));
                self.forget_old_gaps();
            }
            Position::Restart => {
                finding.notes.add(Notes::RESTART);
                self.missing.clear();
                self.give_up(done);
                self.in_flight.clear();
                self.acked = None;
                self.next_response = None;
            }
            Position::Behind => {
                let fills_gap = self.fill(bth.psn);
                let resent = self.resent_from.is_some_and(|from| !bth.psn.is_before(from));
                if !fills_gap || resent {
                    finding.notes.add(Notes::RETRANSMISSION);
                    self.counts.retransmitted += 1;
                    self.on_retransmission(bth.psn);
                } else {
                    finding.notes.add(Notes::OUT_OF_ORDER);
                    self.counts.out_of_order += 1;
                }
                if fills_gap {
                    self.add_to_message(packet, span, done);
                }
                return finding;
            }
        }
        self.next = Some(bth.psn.plus(span));
        self.next_at_most = bth.psn.plus(self.largest_span(packet, span));
        if self.is_reliable {
            if self.in_flight.len() == self.limit {
                self.in_flight.pop_front();
            }
            self.in_flight.push_back((bth.psn, packet.time_ns, true));
        }
        self.add_to_message(packet, span, done);
        finding
    }

    fn position(&self, psn: Psn) -> Position {
        let Some(next) = self.next else { return Position::Next };
        match psn.distance_from(next) {
            0 => Position::Next,
            distance if distance.abs() > RESTART_DISTANCE => Position::Restart,
            distance if distance < 0 => Position::Behind,
            _ if !psn.is_after(self.next_at_most) => Position::Next,
            distance => Position::Ahead(distance as u32),
        }
    }

    /// PSNs that a packet takes: as many as a READ has response packets.
    fn span(&self, packet: &RocePacket<'_>) -> u32 {
        self.packets_of(packet, self.mtu.unwrap_or(MAX_MTU))
    }

    fn largest_span(&self, packet: &RocePacket<'_>, span: u32) -> u32 {
        if self.mtu.is_some() { span } else { self.packets_of(packet, MIN_MTU) }
    }

    fn packets_of(&self, packet: &RocePacket<'_>, mtu: u32) -> u32 {
        match (packet.headers.bth.opcode.operation, packet.headers.reth) {
            // The length is not trusted: too long a span would hide every gap.
            (Operation::ReadRequest, Some(reth)) => {
                reth.len.div_ceil(mtu.max(1)).clamp(1, RESTART_DISTANCE as u32)
            }
            _ => 1,
        }
    }

    /// Removes a PSN from the missing ones. Returns whether it was missing.
    fn fill(&mut self, psn: Psn) -> bool {
        let holds = |(first, len): &(Psn, u32)| (0..*len as i32).contains(&psn.distance_from(*first));
        let Some(at) = self.missing.iter().position(holds) else { return false };
        let (first, len) = self.missing.swap_remove(at);
        let before = psn.distance_from(first) as u32;
        let parts = [(first, before), (psn.plus(1), len - before - 1)];
        self.missing.extend(parts.into_iter().filter(|(_, len)| *len > 0));
        self.forget_old_gaps();
        true
    }

    fn forget_old_gaps(&mut self) {
        let surplus = self.missing.len().saturating_sub(MAX_MISSING);
        self.missing.drain(..surplus);
    }

    fn on_retransmission(&mut self, psn: Psn) {
        if let Some(message) = recent(&mut self.pending).find(|message| message.contains(psn)) {
            message.retransmitted += 1;
        }
        // Which of the copies an answer is for is not known, so it gives no RTT (Karn).
        if let Some(packet) = recent(&mut self.in_flight).find(|(sent, ..)| *sent == psn) {
            packet.2 = false;
        }
    }

    fn add_to_message(&mut self, packet: &RocePacket<'_>, span: u32, done: &mut dyn FnMut(&Message)) {
        let operation = packet.headers.bth.opcode.operation;
        let Some(kind) = Kind::of(operation) else { return };
        let psn = packet.headers.bth.psn;
        self.counts.goodput_bytes += u64::from(packet.payload_len);
        let follows = |message: &&mut Message| {
            !message.has_end && message.kind == kind && psn.is_after(message.last_psn)
        };
        if operation.starts_message() {
            let message = self.begin(packet, kind, span);
            self.push(message, done);
        } else if let Some(message) = self.pending.back_mut().filter(follows) {
            message.packets += 1;
            message.last_psn = psn;
            message.last_packet_ns = packet.time_ns;
            message.has_end = operation.ends_message();
            message.imm = packet.headers.imm;
            add_payload(message, packet);
        } else if let Some(message) = recent(&mut self.pending).find(|message| message.contains(psn)) {
            message.packets += 1;
            add_payload(message, packet);
        } else {
            let message = Message { has_start: false, ..self.begin(packet, kind, span) };
            self.push(message, done);
        }
        if !self.is_reliable && operation.ends_message() {
            while let Some(mut message) = self.pending.pop_front() {
                message.outcome = Outcome::Unreliable;
                done(&message);
            }
        }
    }

    fn begin(&mut self, packet: &RocePacket<'_>, kind: Kind, span: u32) -> Message {
        self.counts.messages += 1;
        let headers = &packet.headers;
        let bytes = match (kind, headers.reth) {
            (Kind::Read | Kind::Write, Some(reth)) => reth.len.into(),
            (Kind::CompareSwap | Kind::FetchAdd | Kind::AtomicWrite, _) => 8,
            _ => u64::from(packet.payload_len),
        };
        Message {
            connection: self.connection,
            from: self.end,
            kind,
            first_psn: headers.bth.psn,
            last_psn: headers.bth.psn.plus(span - 1),
            has_end: headers.bth.opcode.operation.ends_message(),
            has_start: true,
            packets: 1,
            bytes,
            imm: headers.imm,
            start_ns: packet.time_ns,
            last_packet_ns: packet.time_ns,
            done_ns: None,
            outcome: Outcome::Unanswered,
            retransmitted: 0,
            rnr_naks: 0,
        }
    }

    fn push(&mut self, message: Message, done: &mut dyn FnMut(&Message)) {
        if self.pending.len() == self.limit
            && let Some(oldest) = self.pending.pop_front()
        {
            self.counts.unanswered += u64::from(self.is_reliable);
            done(&oldest);
        }
        self.pending.push_back(message);
    }

    /// An answer to requests of this end: an ACK, a NAK, a READ response or an atomic acknowledgement. `psn` and `aeth` are
    /// those of the packet, or of the ACK that is piggybacked on it.
    pub(super) fn on_answer(
        &mut self,
        packet: &RocePacket<'_>,
        psn: Psn,
        aeth: Option<Aeth>,
        operation: Operation,
        done: &mut dyn FnMut(&Message),
    ) -> Finding {
        let mut finding = Finding::default();
        self.measure(packet.time_ns, psn, &mut finding);
        if operation.is_read_response() {
            self.on_read_response(packet, &mut finding);
        }
        let mut complete = |message: &mut Message, outcome| {
            (message.outcome, message.done_ns) = (outcome, Some(packet.time_ns));
            finding.completes += 1;
            self.counts.refused += u64::from(matches!(outcome, Outcome::Refused(_)));
            message.latency_ns().into_iter().for_each(|ns| self.counts.latency.add(ns));
            done(message);
        };
        // A NAK acknowledges what came before its PSN; a response in the middle of a READ does not complete that READ.
        let syndrome = aeth.map(|aeth| aeth.syndrome);
        let is_negative = matches!(syndrome, Some(Syndrome::RnrNak { .. } | Syndrome::Nak(_)));
        let is_done = |message: &Message| match is_negative {
            true => message.last_psn.is_before(psn),
            false => !message.last_psn.is_after(psn) && (message.has_end || message.kind == Kind::Read),
        };
        while self.pending.front().is_some_and(is_done)
            && let Some(mut message) = self.pending.pop_front()
        {
            complete(&mut message, Outcome::Acknowledged);
        }
        let concerned = self.pending.front_mut().filter(|message| message.contains(psn));
        match syndrome {
            Some(Syndrome::RnrNak { .. }) => {
                self.counts.rnr_naks += 1;
                finding.notes.add(Notes::NAK_OR_CNP);
                concerned.into_iter().for_each(|message| message.rnr_naks += 1);
            }
            Some(Syndrome::Nak(code)) => {
                self.counts.naks[code as usize] += 1;
                finding.notes.add(Notes::NAK_OR_CNP);
                if code == NakCode::PsnSequence {
                    self.resent_from = Some(psn);
                } else if concerned.is_some()
                    && let Some(mut message) = self.pending.pop_front()
                {
                    complete(&mut message, Outcome::Refused(code));
                }
            }
            Some(syndrome @ Syndrome::Ack { .. }) if operation == Operation::Acknowledge => {
                self.counts.acks += 1;
                if finding.completes == 0 && self.acked == Some((psn, syndrome)) {
                    self.counts.repeated_acks += 1;
                    finding.notes.add(Notes::REPEATED_ACK);
                }
                self.acked = Some((psn, syndrome));
            }
            _ => {}
        }
        finding
    }

    /// Takes the time from a request to its answer, and forgets the requests up to it.
    fn measure(&mut self, now_ns: u64, psn: Psn, finding: &mut Finding) {
        while let Some(&(sent, at_ns, is_clean)) = self.in_flight.front() {
            if sent.is_after(psn) {
                break;
            }
            self.in_flight.pop_front();
            if sent == psn && is_clean && at_ns <= now_ns {
                finding.rtt_ns = Some(now_ns - at_ns);
                self.counts.rtt.add(now_ns - at_ns);
            }
        }
    }

    fn on_read_response(&mut self, packet: &RocePacket<'_>, finding: &mut Finding) {
        let bth = &packet.headers.bth;
        let expected =
            self.next_response.filter(|next| next.distance_from(bth.psn).abs() <= RESTART_DISTANCE);
        let distance = expected.map_or(0, |next| bth.psn.distance_from(next));
        let is_new = distance >= 0;
        self.counts.data_packets += 1;
        if distance > 0 && !bth.opcode.operation.starts_message() {
            finding.notes.add(Notes::GAP);
            finding.missing = distance as u32;
            self.counts.gaps += 1;
            self.counts.missing += distance as u64;
        }
        if is_new {
            self.next_response = Some(bth.psn.plus(1));
            self.counts.goodput_bytes += u64::from(packet.payload_len);
        } else {
            finding.notes.add(Notes::RETRANSMISSION);
            self.counts.retransmitted += 1;
        }
        if let Some(message) =
            self.pending.iter_mut().take(SEARCHED).find(|message| message.contains(bth.psn))
        {
            message.packets += u32::from(is_new);
            message.retransmitted += u32::from(!is_new);
        }
    }

    fn give_up(&mut self, done: &mut dyn FnMut(&Message)) {
        while let Some(message) = self.pending.pop_front() {
            self.counts.unanswered += u64::from(self.is_reliable);
            done(&message);
        }
    }

    /// The end of the capture: nothing is answered any more.
    pub(super) fn finish(&mut self, done: &mut dyn FnMut(&Message)) {
        self.give_up(done);
    }
}

enum Position {
    Next,
    Ahead(u32),
    Behind,
    Restart,
}

/// The latest entries, the last first: a search among all would take too long where nothing is ever answered.
fn recent<T>(queue: &mut VecDeque<T>) -> impl Iterator<Item = &mut T> {
    queue.iter_mut().rev().take(SEARCHED)
}

/// Adds the payload of a packet to a message of unknown length: a SEND, or a WRITE whose first packet, which has the length, was not captured.
fn add_payload(message: &mut Message, packet: &RocePacket<'_>) {
    if message.kind == Kind::Send || !message.has_start {
        message.bytes += u64::from(packet.payload_len);
    }
}
