//! Retransmission and timeouts.

use super::connection::State;
use super::{Cm, CommId, Event, RejectReason, Transmit};
use crate::time::Time;
use crate::wire::cm::{CmMad, CmMessage, Lap, RejectedMessage};
use alloc::boxed::Box;

/// Bounds of the timer exponents that peers may request, against message storms and hour-long waits.
const RESPONSE_TIMEOUTS: core::ops::RangeInclusive<u8> = 12..=22;
/// Upper bound of the service timeout in an MRA.
const MAX_SERVICE: u8 = 25;
/// The longest TIMEWAIT.
const MAX_TIMEWAIT: u8 = 20;

/// The longest wait for the RTU: the time that the REQ of Linux requests.
const MAX_REP_WAIT_NS: u64 = 16 * exponent_ns(20);
/// Repetitions of a REP to an unproven address, as TCP repeats a SYN-ACK: the REQ may be forged. A lost
/// REP needs none, because the peer repeats its REQ. A lost RTU needs one, because the peer repeats nothing.
const UNPROVEN_REPEATS: u8 = 5;
/// The longest wait for the answer to a probe of a connection that may be stale: two response times of Linux.
const MAX_PROBE_NS: u64 = 2 * exponent_ns(20);

/// 4.096 us * 2^n, as every timer of the specification counts.
pub(super) const fn exponent_ns(exponent: u8) -> u64 {
    4_096_u64 << if exponent > 31 { 31 } else { exponent }
}

/// A response time requested by the peer, clamped to the bounds.
pub(super) fn response_ns(exponent: u8) -> u64 {
    exponent_ns(exponent.clamp(*RESPONSE_TIMEOUTS.start(), *RESPONSE_TIMEOUTS.end()))
}

/// When the last message is retransmitted, and when it fails.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resend {
    next: Time,
    interval_ns: u64,
    give_up: Time,
    /// The remaining repetitions of a message to an unproven address; `None`: no limit.
    repeats_left: Option<u8>,
}

impl Cm {
    /// Time at which [`Self::handle_timeout`] is due.
    pub fn deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(time, _)| *time)
    }

    /// Handles expired timers.
    pub fn handle_timeout(&mut self, now: Time) {
        self.at(now);
        while let Some(&(time, id)) = self.deadlines.first() {
            if time > now {
                return;
            }
            self.disarm(id);
            self.on_deadline(id, now);
        }
    }

    fn on_deadline(&mut self, id: CommId, now: Time) {
        self.landed(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.state == State::Timewait {
            self.raise(id, Event::TimewaitExit { id });
            return self.remove(id);
        }
        let (response_ns, resend) = (connection.response_ns, connection.resend.as_mut());
        match resend {
            Some(resend) if now < resend.give_up => {
                // The few repetitions to an unproven address are spread over the wait.
                let growth = if resend.repeats_left.is_some() { 4 } else { 2 };
                resend.interval_ns = (resend.interval_ns * growth).min(response_ns);
                resend.next = (now + resend.interval_ns).min(resend.give_up);
                if let Some(left) = &mut resend.repeats_left {
                    *left -= 1;
                    if *left == 0 {
                        resend.next = resend.give_up;
                    }
                }
                let next = resend.next;
                self.arm(id, next);
                self.repeat(id);
            }
            _ => self.give_up(id, now),
        }
    }

    /// Handles a peer that does not answer.
    fn give_up(&mut self, id: CommId, now: Time) {
        let Some(connection) = self.connections.get(&id) else { return };
        let state = connection.state;
        self.counters.timed_out += 1;
        match state {
            State::DreqSent => self.end(id, true, now),
            // The peer did not answer the probe.
            State::Established => {
                let _ = self.disconnect(id, &[], now);
            }
            State::RepSent => {
                self.send_rej(id, RejectedMessage::Other, RejectReason::TIMEOUT, &[], &[]);
                self.raise(id, Event::Unreachable { id });
                self.remove(id);
            }
            _ => {
                self.raise(id, Event::Unreachable { id });
                self.remove(id);
            }
        }
    }

    /// Retransmits the message just sent until it is answered.
    pub(super) fn expect_answer(&mut self, id: CommId, now: Time) {
        let first = self.config.first_repeat_ns;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let mut total_ns = connection.response_ns.saturating_mul(u64::from(connection.max_retries) + 1);
        if connection.is_half_open {
            total_ns = total_ns.min(MAX_REP_WAIT_NS);
        }
        let is_proven = !connection.is_half_open || connection.secret.is_some();
        let repeats_left = if is_proven { None } else { Some(UNPROVEN_REPEATS) };
        let interval_ns = first.min(connection.response_ns);
        let resend = Resend { next: now + interval_ns, interval_ns, give_up: now + total_ns, repeats_left };
        connection.resend = Some(resend);
        self.arm(id, resend.next.min(resend.give_up));
    }

    /// Probes whether the peer of an established connection still has it. The connection ends if it has not, or does not answer.
    pub(super) fn probe_peer(&mut self, id: CommId, now: Time) {
        if self.connections.get(&id).is_none_or(|connection| connection.resend.is_some()) {
            return;
        }
        self.repeat(id);
        self.expect_answer(id, now);
        if let Some(resend) = self.connections.get_mut(&id).and_then(|c| c.resend.as_mut()) {
            resend.give_up = resend.give_up.min(now + MAX_PROBE_NS);
        }
    }

    /// Retransmits the message that awaits an answer: the last one, except when the active side probes. No implementation answers an
    /// RTU, but ferroce answers a LAP. The passive side probes with its REP, which every implementation answers.
    fn repeat(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.state != State::Established || !connection.is_active {
            return self.send_again(id);
        }
        let (tid, route) = (connection.tid, connection.path.route());
        let lap = Lap { local_comm_id: id, remote_comm_id: connection.remote, ..Lap::default() };
        let mad = Box::new(CmMad { tid, attr_mod: 0, message: CmMessage::Lap(lap) }.to_bytes());
        self.transmit(Transmit { route, mad, is_repeat: true });
    }

    /// Handles an MRA: the peer requests this much time.
    pub(super) fn wait_longer(&mut self, id: CommId, service_timeout: u8, now: Time) {
        self.landed(id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (response_ns, state) = (connection.response_ns, connection.state);
        let Some(resend) = connection.resend.as_mut() else { return };
        let patience_ns = exponent_ns(service_timeout.min(MAX_SERVICE));
        // The following RTU has no timer: if it is lost, a duplicate REP triggers the next.
        let pause_ns = if state == State::RepSent { patience_ns.min(response_ns) } else { patience_ns };
        resend.next = now + pause_ns;
        resend.interval_ns = response_ns;
        // The MRA contains our random id, so its sender has received our message.
        resend.repeats_left = None;
        resend.give_up = resend.give_up.max(now + patience_ns + response_ns);
        let next = resend.next;
        self.arm(id, next);
    }

    /// Enters TIMEWAIT: only duplicates are answered until no message can be in flight.
    pub(super) fn enter_timewait(&mut self, id: CommId, now: Time) {
        self.set_state(id, State::Timewait);
        self.landed(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.resend = None;
            let wait_ns = exponent_ns(connection.path.ack_timeout.min(MAX_TIMEWAIT));
            self.arm(id, now + wait_ns);
        }
    }

    /// Schedules the connection for `time`.
    pub(super) fn arm(&mut self, id: CommId, time: Time) {
        self.disarm(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.deadline = Some(time);
            self.deadlines.insert((time, id));
        }
    }

    /// Stops the timers.
    pub(super) fn disarm(&mut self, id: CommId) {
        if let Some(old) = self.connections.get_mut(&id).and_then(|c| c.deadline.take()) {
            self.deadlines.remove(&(old, id));
        }
    }

    /// Handles the awaited answer.
    pub(super) fn answered(&mut self, id: CommId) {
        self.disarm(id);
        self.landed(id);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.resend = None;
        }
    }
}
