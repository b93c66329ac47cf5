//! The sending end of a flow: window, pacing, loss recovery.

use super::config::{HostConfig, Recovery};
use super::record::Finish;
use super::{Event, World};
use crate::packet::{Kind, NONE, Packet};
use crate::seq_set::SeqSet;
use crate::workload::Flow;
use ferroce_proto::Time;
use ferroce_proto::cc::{CongestionControl, Controller, Feedback};

/// Whether a flow may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It has nothing to send, or its window is full.
    Blocked,
    /// Its pacing gap has not passed.
    Waiting,
    /// It is in the queue of its NIC.
    Ready,
}

/// Fewer packets in flight use the low time-out (IRN, section 3.1).
const FEW_PACKETS: u32 = 3;

/// The sending end of a flow.
#[derive(Debug)]
pub(super) struct Sender {
    controller: Controller,
    /// Window that the controller returned last.
    window: u64,
    /// Rate that the controller returned last.
    rate: Option<u64>,
    pub(super) phase: Phase,
    pub(super) telemetry: bool,
    pub(super) ect: bool,
    packets: u32,
    last_payload: u32,
    /// The first packet that is not acknowledged.
    una: u32,
    /// The next packet to send; going back lowers it.
    next: u32,
    /// One more than the highest packet that was sent.
    high: u32,
    recovery: Option<Selective>,
    pub(super) next_allowed: u64,
    pub(super) pace_at: u64,
    last_progress: u64,
    /// Whether an event for the retransmission timer exists.
    retransmit_armed: bool,
    /// Time of the event for the controller's deadline.
    deadline_at: u64,
    ideal_ps: u64,
}

/// State of selective repeat.
#[derive(Debug, Default)]
struct Selective {
    received: SeqSet,
    /// Packets above `una` that the receiver holds.
    held: u32,
    /// One more than the highest of them.
    highest: u32,
    /// In recovery: the end of recovery, and the next packet that may have to be resent.
    episode: Option<(u32, u32)>,
    /// A time-out allows resending the first packet without a report.
    timed_out: bool,
}

impl Selective {
    /// The next packet that counts as lost.
    fn next_lost(&mut self, una: u32, reorder: u32) -> Option<u32> {
        let (_, cursor) = self.episode.as_mut()?;
        let limit = self.highest.saturating_sub(reorder).max(if self.timed_out { una + 1 } else { 0 });
        *cursor = (*cursor).max(una);
        while *cursor < limit && self.received.contains(*cursor) {
            *cursor += 1;
        }
        (*cursor < limit).then_some(*cursor)
    }
}

impl Sender {
    pub(super) fn new(
        flow: &Flow,
        controller: Controller,
        host: &HostConfig,
        ideal_ps: u64,
        now: u64,
    ) -> Sender {
        let needs = controller.needs();
        Sender {
            window: u64::from(controller.window()),
            rate: controller.rate(),
            telemetry: needs.telemetry,
            ect: needs.ecn_echo || needs.cnp_interval_ns.is_some(),
            controller,
            phase: Phase::Blocked,
            packets: host.packets(flow.bytes),
            last_payload: host.last_payload(flow.bytes),
            una: 0,
            next: 0,
            high: 0,
            recovery: (host.recovery == Recovery::Selective).then(Selective::default),
            next_allowed: now,
            pace_at: 0,
            last_progress: now,
            retransmit_armed: false,
            deadline_at: u64::MAX,
            ideal_ps,
        }
    }

    pub(super) fn packets(&self) -> u32 {
        self.packets
    }

    pub(super) fn controller(&self) -> &Controller {
        &self.controller
    }

    pub(super) fn payload(&self, seq: u32, host: &HostConfig) -> u32 {
        if seq + 1 == self.packets { self.last_payload } else { host.mtu }
    }

    pub(super) fn acked_bytes(&self, host: &HostConfig) -> u64 {
        u64::from(self.una) * u64::from(host.mtu)
    }

    fn in_flight(&self) -> u32 {
        self.next - self.una
    }

    pub(super) fn is_idle(&self) -> bool {
        self.next == self.una
    }

    pub(super) fn can_send(&mut self, host: &HostConfig) -> bool {
        let una = self.una;
        let lost = self.recovery.as_mut().and_then(|recovery| recovery.next_lost(una, host.reorder));
        lost.is_some() || self.may_send_new(host)
    }

    fn may_send_new(&self, host: &HostConfig) -> bool {
        // Queue pairs count the same way: in full packets, and one packet is always allowed.
        let with_next = (u64::from(self.in_flight()) + 1) * u64::from(host.mtu);
        self.next < self.packets && (with_next <= self.window || self.is_idle())
    }

    /// The packet to send now, and whether it was sent before.
    pub(super) fn take(&mut self, host: &HostConfig) -> Option<(u32, bool)> {
        let una = self.una;
        if let Some(recovery) = &mut self.recovery
            && let Some(lost) = recovery.next_lost(una, host.reorder)
        {
            if let Some((_, cursor)) = &mut recovery.episode {
                *cursor = lost + 1;
            }
            recovery.timed_out = false;
            return Some((lost, true));
        }
        if !self.may_send_new(host) {
            return None;
        }
        let seq = self.next;
        self.next += 1;
        let again = seq < self.high;
        self.high = self.high.max(self.next);
        Some((seq, again))
    }

    pub(super) fn on_sent(&mut self, now: u64, payload: u32, bytes: u32, was_idle: bool) {
        self.controller.on_sent(payload);
        if was_idle {
            self.last_progress = now;
        }
        // The gap of this packet uses the rate from before the controller counts it.
        let gap = self.rate.map_or(0, |rate| (f64::from(bytes) * 1e12 / rate.max(1) as f64) as u64);
        self.next_allowed = now + gap;
        self.refresh(now);
    }

    /// Reads window and rate from the controller. A new rate applies to the rest of a gap that has begun.
    fn refresh(&mut self, now: u64) {
        self.window = u64::from(self.controller.window());
        let last = std::mem::replace(&mut self.rate, self.controller.rate());
        if last != self.rate && self.next_allowed > now {
            let left = (self.next_allowed - now) as f64;
            let factor = match (last, self.rate) {
                (Some(last), Some(rate)) => last as f64 / rate.max(1) as f64,
                (_, None) => 0.0,
                (None, Some(_)) => 1.0,
            };
            self.next_allowed = now + (left * factor) as u64;
        }
    }

    /// Time of a new event for the end of the pending gap, if the gap ends much earlier than the existing event.
    pub(super) fn shorten_gap(&mut self, now: u64) -> Option<u64> {
        let end = self.next_allowed.max(now);
        let left = self.pace_at.saturating_sub(now);
        (end + left / 8 < self.pace_at).then(|| {
            self.pace_at = end;
            end
        })
    }

    /// Time of a new event for the controller's deadline.
    pub(super) fn rearm_deadline(&mut self) -> Option<u64> {
        let at = self.controller.deadline()?.0.saturating_mul(1000);
        (at < self.deadline_at).then(|| {
            self.deadline_at = at;
            at
        })
    }

    fn timeout_ps(&self, host: &HostConfig) -> u64 {
        if self.in_flight() < FEW_PACKETS { host.rto_low_ps } else { host.rto_ps }
    }

    /// Time of a new event for the retransmission timer.
    pub(super) fn arm_retransmit(&mut self, now: u64, host: &HostConfig) -> Option<u64> {
        if std::mem::replace(&mut self.retransmit_armed, true) {
            return None;
        }
        Some(now.max(self.last_progress) + host.rto_low_ps.min(host.rto_ps))
    }

    /// Handles an ACK or NACK. Returns the newly acknowledged bytes.
    fn acknowledge(&mut self, now: u64, packet: &Packet, host: &HostConfig) -> u32 {
        let una = packet.seq.min(self.packets).max(self.una);
        let mut fresh = una - self.una;
        let progress = fresh > 0;
        if let Some(recovery) = &mut self.recovery {
            let held = (self.una..una).filter(|seq| recovery.received.contains(*seq)).count() as u32;
            fresh -= held;
            recovery.held -= held;
            recovery.received.forget_below(una);
            if packet.cause >= una && packet.cause < self.high && recovery.received.insert(packet.cause) {
                recovery.held += 1;
                fresh += 1;
                recovery.highest = recovery.highest.max(packet.cause + 1);
            }
            if recovery.episode.is_some_and(|(end, _)| una >= end) {
                recovery.episode = None;
            }
        }
        self.una = una;
        self.next = self.next.max(una);
        if progress {
            self.last_progress = now;
        }
        if packet.kind == Kind::Nack {
            self.recover(now, host);
        }
        fresh.saturating_mul(host.mtu)
    }

    /// The receiver reports a gap at `una`.
    fn recover(&mut self, now: u64, host: &HostConfig) {
        match &mut self.recovery {
            Some(recovery) => {
                // A gap within the tolerated reordering is not a loss yet.
                let lost = recovery.highest.saturating_sub(host.reorder) > self.una;
                if recovery.episode.is_none() && lost {
                    recovery.episode = Some((self.next, self.una));
                    self.controller.on_loss(Time(now / 1000));
                }
            }
            None if self.next > self.una => {
                self.next = self.una;
                self.controller.on_loss(Time(now / 1000));
            }
            None => {}
        }
    }

    /// The retransmission timer expired.
    fn time_out(&mut self, now: u64) {
        self.last_progress = now;
        match &mut self.recovery {
            Some(recovery) => {
                recovery.episode = Some((self.next, self.una));
                recovery.timed_out = true;
            }
            None => self.next = self.una,
        }
        self.controller.on_timeout(Time(now / 1000));
    }

    fn unacknowledged(&self) -> u32 {
        let held = self.recovery.as_ref().map_or(0, |recovery| recovery.held);
        (self.next - self.una).saturating_sub(held)
    }
}

impl World {
    pub(super) fn receive_ack(&mut self, id: u32) {
        let packet = self.packets[id];
        let time = self.time();
        if let Some(sender) = &mut self.senders[packet.flow as usize] {
            let host = &self.config.host;
            let acked = sender.acknowledge(self.now, &packet, host);
            let telemetry = match packet.telemetry {
                NONE => &[],
                at => self.stamps[at].as_slice(),
            };
            sender.controller.on_ack(&Feedback {
                now: time,
                acked,
                in_flight: sender.unacknowledged().saturating_mul(host.mtu),
                rtt_ns: (!packet.again).then(|| (self.now - packet.sent_ps) / 1000),
                marked: packet.ce,
                telemetry,
            });
            sender.refresh(self.now);
            if sender.una == sender.packets {
                let ideal_ps = sender.ideal_ps;
                self.finish(packet.flow, ideal_ps);
            } else {
                self.activate(packet.flow);
            }
        }
        self.free(id);
    }

    pub(super) fn finish(&mut self, flow: u32, ideal_ps: u64) {
        let fct_ps = self.now - self.flows[flow as usize].start_ps;
        self.finished.push(Finish { flow, fct_ps, ideal_ps });
        self.samples.on_finished(flow, self.flows[flow as usize].bytes);
        self.end_pair(flow);
        self.senders[flow as usize] = None;
        self.receivers[flow as usize] = None;
        self.fold(3 << 60 | u64::from(flow));
    }

    pub(super) fn receive_cnp(&mut self, id: u32) {
        let flow = self.packets[id].flow;
        let time = self.time();
        if let Some(sender) = &mut self.senders[flow as usize] {
            sender.controller.on_cnp(time);
            sender.refresh(self.now);
            self.activate(flow);
        }
        self.free(id);
    }

    pub(super) fn handle_deadline(&mut self, flow: u32) {
        let time = self.time();
        let Some(sender) = &mut self.senders[flow as usize] else { return };
        if sender.deadline_at != self.now {
            return; // stale: the deadline has changed
        }
        sender.deadline_at = u64::MAX;
        if sender.controller.deadline().is_some_and(|at| at <= time) {
            sender.controller.on_deadline(time);
            sender.refresh(self.now);
        }
        self.activate(flow);
    }

    pub(super) fn handle_retransmit(&mut self, flow: u32) {
        let Some(sender) = &mut self.senders[flow as usize] else { return };
        if sender.is_idle() {
            sender.retransmit_armed = false;
            return;
        }
        let due = sender.last_progress + sender.timeout_ps(&self.config.host);
        if due > self.now {
            return self.events.push(due, Event::Retransmit(flow));
        }
        sender.time_out(self.now);
        sender.refresh(self.now);
        let next = self.now + sender.timeout_ps(&self.config.host);
        self.events.push(next, Event::Retransmit(flow));
        self.counters.timeouts += 1;
        self.activate(flow);
    }
}
