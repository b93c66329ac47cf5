//! Retransmission timers and retry counts.
//!
//! There are three timers. The transport timer of the specification consumes one of `retry_cnt` retries after `timeout`
//! without progress. The RNR timer waits as long as the peer requested. The probe timer is an extension: once the RTT
//! is known, it retransmits a tail that is overdue by a few RTTs, long before the transport timer and without consuming
//! a retry. On a lossy path this saves a stall of tens of milliseconds.

use super::super::super::io::{Fatal, Io};
use super::super::super::sq::SendQueue;
use super::super::super::state::{rnr_timer_ns, timeout_ns};
use super::super::super::{HistoryEvent, Host, Reason};
use super::{FirstTry, Requester};
use crate::Time;
use crate::cc::{CongestionControl, Feedback};
use crate::ids::Psn;
use crate::verbs::{QpAttr, WcStatus};

/// Lower bound of the probe timer in nanoseconds: scheduling delays exceed network RTTs.
const PROBE_FLOOR_NS: u64 = 1_000_000;
/// Probes per period without progress; each waits twice as long as the one before.
const MAX_PROBES: u32 = 4;
/// If the RTT is below the probe floor, only one packet in this many is sampled: reading the clock costs a third of a
/// message to a local peer.
const MEASURED_OF: u8 = 16;
/// The transport timer may run up to four times its value (IBA 9.7.6.1.3), so a late expiry uses a quarter of a retry.
const QUARTERS: u8 = 4;

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RetryClock {
    timeout_ns: Option<u64>,
    /// Quarters of `retry_cnt` + 1 transmissions, less one: a late expiry of the transport timer uses one quarter.
    quarters: u8,
    rnr_retry: u8,
    quarters_left: u8,
    rnr_left: u8,
    /// Time since which the oldest packet is in flight.
    waiting_since: Option<Time>,
    resume_at: Option<Time>,
    probes: u32,
    srtt_ns: Option<u64>,
    sample: Option<(Psn, Time)>,
    /// Consecutive packets without an RTT sample.
    unmeasured: u8,
    /// Congestion control needs every sample.
    measures_all: bool,
}

impl RetryClock {
    pub(super) fn new(attr: &QpAttr, measures_all: bool) -> Self {
        let mut clock = RetryClock { measures_all, ..RetryClock::default() };
        clock.reconfigure(attr);
        clock
    }

    pub(super) fn reconfigure(&mut self, attr: &QpAttr) {
        self.timeout_ns = timeout_ns(attr.timeout);
        (self.quarters, self.rnr_retry) = (QUARTERS * attr.retry_cnt + QUARTERS - 1, attr.rnr_retry);
        (self.quarters_left, self.rnr_left) = (self.quarters, self.rnr_retry);
    }

    pub(super) fn stop(&mut self) {
        (self.waiting_since, self.resume_at, self.sample) = (None, None, None);
    }

    /// Records that a packet is in flight.
    pub(super) fn start(&mut self, now: Time) {
        self.waiting_since.get_or_insert(now);
    }

    /// Restarts the timer.
    pub(super) fn restart(&mut self, now: Time) {
        (self.waiting_since, self.probes) = (Some(now), 0);
    }

    /// Starts an RTT sample with the first transmission of a packet, unless one is running.
    #[inline]
    pub(super) fn sample_start(&mut self, psn: Psn, now: Time) {
        if self.sample.is_some() {
            return;
        }
        if self.is_sample_due() {
            (self.sample, self.unmeasured) = (Some((psn, now)), 0);
        } else {
            self.unmeasured += 1;
        }
    }

    /// Whether the next packet, sent for the first time, needs the time: for the timer or for an RTT sample.
    #[inline]
    pub(super) fn needs_time_to_send(&self) -> bool {
        self.waiting_since.is_none() || (self.sample.is_none() && self.is_sample_due())
    }

    /// Whether the next packet starts an RTT sample, if none is running.
    #[inline]
    fn is_sample_due(&self) -> bool {
        let is_short = self.srtt_ns.is_some_and(|srtt| 4 * srtt < PROBE_FLOOR_NS);
        !is_short || self.measures_all || self.unmeasured + 1 >= MEASURED_OF
    }

    /// Whether an RTT sample is running.
    #[inline]
    pub(super) fn is_measuring(&self) -> bool {
        self.sample.is_some()
    }

    /// Time since which the oldest packet is in flight; a time in the past if there is none.
    #[inline]
    pub(super) fn last_time(&self) -> Time {
        self.waiting_since.unwrap_or_default()
    }

    /// Handles an overdue response: the RTT changed, so the next packet samples it.
    fn doubt(&mut self) {
        self.unmeasured = MEASURED_OF - 1;
    }

    /// Karn's algorithm: a response to the retransmitted packets `low..=high` yields no RTT sample.
    pub(super) fn forget_sample(&mut self, low: Psn, high: Psn) {
        self.sample = self.sample.filter(|(psn, _)| psn.is_before(low) || psn.is_after(high));
    }

    /// The peer acknowledged everything before `una`. Returns the RTT if this ACK completes a sample.
    #[inline]
    fn progress(&mut self, una: Psn, in_flight: bool, now: Time) -> Option<u64> {
        (self.quarters_left, self.rnr_left) = (self.quarters, self.rnr_retry);
        (self.waiting_since, self.probes) = (in_flight.then_some(now), 0);
        let (psn, _) = self.sample?;
        if psn.is_before(una) { self.measure(now) } else { None }
    }

    /// Updates the RTT from the sample.
    fn measure(&mut self, now: Time) -> Option<u64> {
        let (_, sent_at) = self.sample.take()?;
        let rtt = now.since_ns(sent_at);
        self.srtt_ns = Some(self.srtt_ns.map_or(rtt, |s| (7 * s + rtt) / 8));
        Some(rtt)
    }

    /// Handles an out-of-order response.
    pub(super) fn on_early(&mut self, psn: Psn, now: Time) {
        if self.sample.is_some_and(|(sampled, _)| sampled == psn) {
            self.measure(now);
        }
    }

    /// How long a response to a restart may take before it is overdue.
    pub(super) fn patience_ns(&self) -> u64 {
        self.srtt_ns.map_or(PROBE_FLOOR_NS, |srtt| 2 * srtt)
    }

    /// Whether an overdue tail will be probed: the RTT is known and the transport timer runs.
    pub(super) fn can_probe(&self) -> bool {
        self.srtt_ns.is_some_and(|srtt| self.timeout_ns.is_some_and(|t| (4 * srtt).max(PROBE_FLOOR_NS) < t))
    }

    fn probe_at(&self) -> Option<Time> {
        let since = self.waiting_since?;
        let wait = (4 * self.srtt_ns?).max(PROBE_FLOOR_NS) << self.probes;
        let sooner = self.timeout_ns.is_some_and(|timeout| wait < timeout);
        (self.probes < MAX_PROBES && sooner).then(|| since + wait)
    }

    fn expires_at(&self) -> Option<Time> {
        Some(self.waiting_since? + self.timeout_ns?)
    }

    /// Consumes a retry after an expiry of the transport timer. Returns `false` if none is left. If this process noticed
    /// the expiry late, it waited for its processor, as the peer may do. The first three such expiries consume no retry.
    fn use_retry(&mut self, now: Time) -> bool {
        let late_ns = self.expires_at().map_or(0, |at| now.since_ns(at));
        let is_late = self.timeout_ns.is_some_and(|timeout| late_ns >= timeout / 2);
        let quarter = self.quarters_left % QUARTERS;
        let used = if is_late && quarter > 0 { 1 } else { quarter + 1 };
        match self.quarters_left.checked_sub(used) {
            Some(left) => self.quarters_left = left,
            None => return false,
        }
        true
    }

    pub(super) fn deadline(&self) -> Option<Time> {
        self.resume_at.or_else(|| match (self.probe_at(), self.expires_at()) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        })
    }

    /// Whether an RNR wait was set and has not been checked since.
    #[inline]
    pub(super) fn has_pause(&self) -> bool {
        self.resume_at.is_some()
    }

    /// Whether an RNR wait is active.
    pub(super) fn is_paused(&mut self, now: Time) -> bool {
        match self.resume_at {
            Some(at) if now < at => true,
            _ => {
                self.resume_at = None;
                false
            }
        }
    }
}

impl Requester {
    /// Handles the deadline.
    pub(crate) fn handle_timeout<H: Host>(
        &mut self,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        let now = io.now;
        if self.clock.is_paused(now) {
            return Ok(());
        }
        if self.psn.is_before(self.high) && self.pacer.waits(now) {
            // The retransmission waits for its rate, so the peer cannot have answered it.
            self.clock.restart(now);
            return Ok(());
        }
        if self.clock.expires_at().is_some_and(|at| at <= now) {
            self.clock.doubt();
            return self.on_expired(sq, io);
        }
        if self.clock.probe_at().is_some_and(|at| at <= now) {
            self.clock.doubt();
            self.clock.probes += 1;
            io.counters.probes += 1;
            io.host.record(HistoryEvent::Probe, 1);
            self.retransmit_oldest();
        }
        Ok(())
    }

    /// What to check when the peer does not acknowledge.
    pub(crate) fn advice(&self, attr: &QpAttr) -> &'static str {
        if self.una == attr.sq_psn {
            "nothing was ever acknowledged: check dest_qp_num, the GID and both PSNs, and that the peer is in RTR"
        } else {
            "earlier requests were acknowledged: the peer has ended, failed or is unreachable"
        }
    }

    /// The oldest PSN that is not acknowledged.
    pub(crate) fn oldest_psn(&self) -> Psn {
        self.una
    }

    /// Whether a packet was sent that is not acknowledged.
    pub(crate) fn has_outstanding(&self) -> bool {
        self.una != self.high
    }

    fn on_expired<H: Host>(&mut self, sq: &mut SendQueue, io: &mut Io<'_, H>) -> Result<(), Fatal> {
        io.counters.timeouts += 1;
        io.host.record(HistoryEvent::Timeout, 1);
        if !self.clock.use_retry(io.now) {
            let advice = self.advice(io.attr);
            io.host.explain(format_args!(
                "QP {}: PSN {} not acknowledged by QP {} at {} within {} us, {} retries used up; {advice}",
                io.id.qpn,
                self.una,
                io.attr.dest_qpn,
                io.route.dgid.to_ip(),
                self.clock.timeout_ns.unwrap_or(0) / 1000,
                io.attr.retry_cnt
            ));
            return Err(self.fail_oldest(WcStatus::RetryExcErr, Reason::RetriesUsedUp, sq, io));
        }
        self.clock.restart(io.now);
        self.cc.on_timeout(io.now);
        self.retransmit_oldest();
        Ok(())
    }

    /// Retransmits only the oldest packet and saves the cursor: a slow peer may still hold the rest. READs are
    /// requested again, because their responses do not identify the attempt.
    fn retransmit_oldest(&mut self) {
        let cursor = FirstTry { asked: self.una, cur: self.cur, sent: self.sent, psn: self.psn };
        let may_resume = self.reads.is_empty() && cursor.psn.is_after(cursor.asked.plus(1));
        // On a second probe, the cursor is behind the first probe, not where sending stopped.
        let first_try = self.first_try.or(may_resume.then_some(cursor));
        self.go_back();
        (self.first_try, self.cautious) = (first_try, true);
    }

    /// Moves the cursor to the oldest unacknowledged packet.
    pub(super) fn go_back(&mut self) {
        self.cur = self.oldest;
        (self.sent, self.psn) = (self.acked, self.una);
        self.reads.clear();
        self.first_try = None;
        self.clock.sample = None;
    }

    /// Retransmits from `psn` after a NAK. This consumes no retry: the transport timer keeps running without progress,
    /// so a peer that sends NAKs forever times out like a silent one.
    pub(super) fn recover<H: Host>(&mut self, psn: Psn, sq: &SendQueue, io: &mut Io<'_, H>) {
        // Until the last restart can be answered, this NAK refers to the first attempt.
        if let Some((back, at)) = self.went_back
            && back == psn
            && io.now.since_ns(at) < self.clock.patience_ns()
        {
            return;
        }
        self.went_back = Some((psn, io.now));
        self.cc.on_loss(io.now);
        match self.position_of(psn, sq) {
            Some(position) if psn.is_after(self.una) => {
                // The peer executed the requests before `psn`, so this NAK does not repeat READs there.
                if !psn.is_after(self.psn) {
                    (self.cur, self.sent, self.psn) = (position.number, position.index, psn);
                    self.reads.retain(|awaited| awaited.last.is_before(psn));
                    self.first_try = None;
                    self.clock.sample = None;
                }
            }
            _ => self.go_back(),
        }
    }

    /// Handles an RNR NAK: waits as long as the peer requested. The peer is alive, so the transport retries start over.
    pub(super) fn on_rnr<H: Host>(
        &mut self,
        timer: u8,
        sq: &mut SendQueue,
        io: &mut Io<'_, H>,
    ) -> Result<(), Fatal> {
        io.counters.rnr_received += 1;
        io.host.record(HistoryEvent::RnrReceived, 1);
        if self.clock.rnr_left == 0 {
            io.host.explain(format_args!(
                "QP {}: QP {} at {} had no receive posted for PSN {}, {} RNR retries used up; post receives there first, or raise rnr_retry",
                io.id.qpn, io.attr.dest_qpn, io.route.dgid.to_ip(), self.una, self.clock.rnr_retry
            ));
            return Err(self.fail_oldest(WcStatus::RnrRetryExcErr, Reason::RnrRetriesUsedUp, sq, io));
        }
        if self.clock.rnr_retry != 7 {
            self.clock.rnr_left -= 1;
        }
        self.go_back();
        // An RNR wait does not count as waiting for a response: the transport timer stops.
        (self.clock.waiting_since, self.clock.probes) = (None, 0);
        self.clock.quarters_left = self.clock.quarters;
        self.clock.resume_at = Some(io.now + rnr_timer_ns(timer));
        self.pacer.stop_waiting();
        Ok(())
    }

    /// The response that is handled next has waited for this long at this host.
    #[inline]
    pub(crate) fn set_response_age(&mut self, age_ns: u32) {
        self.response_age_ns = age_ns;
    }

    /// Updates timers and congestion control after `una` moved.
    #[inline(always)] // as `Requester::answer`
    pub(super) fn on_progress<H: Host>(&mut self, io: &mut Io<'_, H>) {
        self.cautious = false;
        if let Some(first) = self.first_try.take()
            && self.una.is_after(first.asked.plus(1))
            && first.psn.is_after(self.una)
        {
            // More is acknowledged than was retransmitted, so the first attempt arrived late. Retransmitting everything
            // would slow the peer further.
            (self.cur, self.sent, self.psn) = (first.cur, first.sent, first.psn);
        } else if self.psn.is_before(self.una) {
            // Responses to the first attempt overtook the second: skip everything before `una`.
            self.cur = self.oldest;
            (self.sent, self.psn) = (self.acked, self.una);
        }
        while self.reads.front().is_some_and(|awaited| awaited.last.is_before(self.una)) {
            self.reads.pop_front();
        }
        if self.longest_in_flight != 0 && !self.una.is_before(self.longest_end) {
            self.longest_in_flight = 0;
        }
        let in_flight = self.in_flight();
        let sampled = self.clock.progress(self.una, in_flight > 0, io.now);
        let rtt = self.send_times.rtt_ns(self.una.minus(1), io.now).or(sampled);
        let rtt = rtt.map(|rtt| rtt.saturating_sub(self.response_age_ns.into()));
        let bytes = core::mem::take(&mut self.acked_bytes);
        let in_flight = in_flight.saturating_mul(io.mtu());
        let marked = core::mem::take(&mut self.ack_is_marked);
        self.cc.on_ack(&Feedback { in_flight, marked, ..Feedback::new(io.now, bytes, rtt) });
        if self.una == self.high {
            self.pacer.stop_waiting();
            self.cc.on_drained();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_noticed_late_consumes_no_retry_at_most_three_times() {
        let mut clock = RetryClock::new(&QpAttr { timeout: 10, retry_cnt: 2, ..QpAttr::default() }, false);
        let timeout = timeout_ns(10).expect("exponent 10 is a time");
        clock.start(Time(0));
        let mut outcomes = alloc::vec::Vec::new();
        for (late_ns, repeat) in [(timeout / 2, 4), (timeout / 2 - 1, 1), (timeout / 2, 4)] {
            for _ in 0..repeat {
                let now = clock.expires_at().expect("it runs") + late_ns;
                outcomes.push((clock.use_retry(now), clock.quarters_left / QUARTERS));
                clock.restart(now);
            }
        }
        let expected = [(true, 2), (true, 2), (true, 2), (true, 1), (true, 0)];
        assert_eq!(outcomes[..5], expected, "three late expiries, then one retry; on time: the other one");
        assert_eq!(outcomes[5..], [(true, 0), (true, 0), (true, 0), (false, 0)]);
    }
}
