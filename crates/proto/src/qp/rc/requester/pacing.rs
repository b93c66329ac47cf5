//! Pacing: packets leave at the rate of the congestion control, if it has one.

use super::Requester;
use crate::Time;
use crate::cc::{CongestionControl, Controller};
use crate::wire::ETHERNET_OVERHEAD;

/// Unused sending time that may be made up for. Threads wake up late, and several packets in one batch cost less.
const CREDIT_NS: u64 = 100_000;
/// Packets between two ACK requests, at most: a controller from the literature needs feedback often.
const ACK_EVERY: u32 = 16;
/// Time between two ACK requests, at most, unless a packet takes longer: a late ACK makes the requester probe after a millisecond.
const ACK_EVERY_NS: u64 = 250_000;
/// Missed deadlines of a controller that are handled one by one, each at its own time. After more of them, all others count as one: a
/// rate that rises slowly or never has a deadline in every period of an idle time.
const DEADLINES: u32 = 10_000;

/// When the next packets may leave.
#[derive(Debug)]
pub(super) struct Pacer {
    /// Packets between two ACK requests: the maximum, and the number at the present rate. `None` if the congestion control
    /// has no rate.
    ack_every: Option<(u32, u32)>,
    /// Bytes per second, as last read. `None`: as fast as the window allows.
    rate: Option<u64>,
    /// Time at which everything sent so far has left at the rate, and picoseconds beyond it.
    sent_until: Time,
    fraction_ps: u64,
    /// A packet waits for this time.
    waits_until: Option<Time>,
    /// Unused sending time that may be made up for.
    credit_ns: u64,
}

impl Default for Pacer {
    fn default() -> Pacer {
        Pacer {
            ack_every: None,
            rate: None,
            sent_until: Time::default(),
            fraction_ps: 0,
            waits_until: None,
            credit_ns: CREDIT_NS,
        }
    }
}

impl Pacer {
    pub(super) fn new(congestion: &Controller) -> Pacer {
        let ack_every = if congestion.needs().ack_every_packet { 1 } else { ACK_EVERY };
        let may_pace = matches!(congestion, Controller::Boxed(_));
        Pacer { ack_every: may_pace.then_some((ack_every, ack_every)), ..Pacer::default() }
    }

    /// Whether the congestion control may have a rate.
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.ack_every.is_some()
    }

    /// Packets between two ACK requests, at most.
    #[inline]
    pub(super) fn ack_every(&self) -> u32 {
        self.ack_every.map_or(u32::MAX, |(_, now)| now)
    }

    /// Time at which a waiting packet may leave.
    #[inline]
    pub(super) fn deadline(&self) -> Option<Time> {
        self.waits_until
    }

    /// Whether a packet waits for its time.
    pub(super) fn waits(&self, now: Time) -> bool {
        self.waits_until.is_some() && now < self.sent_until
    }

    pub(super) fn set_credit_ns(&mut self, credit_ns: u64) {
        self.credit_ns = credit_ns;
    }

    /// Moves the wake-up to `deadline` if that is earlier: the rate may change then, and the waiting packet may leave sooner.
    fn wake_by(&mut self, deadline: Option<Time>) {
        if let (Some(at), Some(deadline)) = (&mut self.waits_until, deadline) {
            *at = (*at).min(deadline);
        }
    }

    /// Forgets the waiting packet.
    #[inline]
    pub(super) fn stop_waiting(&mut self) {
        self.waits_until = None;
    }

    /// Number of packets of `len` bytes that may leave now. If none, one waits for its time.
    fn allowance(&mut self, rate: Option<u64>, len: u32, now: Time) -> u32 {
        let last = core::mem::replace(&mut self.rate, rate);
        let Some(rate) = rate else { return u32::MAX };
        if let Some(last) = last
            && last != rate
            && self.sent_until > now
        {
            // The rest of the gap is scaled to the new rate.
            let left = u128::from(self.sent_until.since_ns(now)) * u128::from(last) / u128::from(rate.max(1));
            self.sent_until = now + u64::try_from(left).unwrap_or(u64::MAX);
        }
        if let Some((most, now)) = &mut self.ack_every {
            *now = packets_in(ACK_EVERY_NS, rate, len).clamp(1, *most);
        }
        let earliest = Time(now.0.saturating_sub(self.credit_ns));
        if self.sent_until < earliest {
            (self.sent_until, self.fraction_ps) = (earliest, 0);
        }
        if self.sent_until > now {
            self.waits_until = Some(self.sent_until + u64::from(self.fraction_ps > 0));
            return 0;
        }
        let unused_ns = now.since_ns(self.sent_until);
        packets_in(unused_ns, rate, len).saturating_add(1)
    }

    /// Counts packets sent on the wire. A rendezvous send does not count.
    #[inline]
    pub(super) fn on_sent(&mut self, packets: u32, bytes: u32) {
        if let Some(rate) = self.rate {
            let (bytes, rate) =
                (u64::from(bytes) + u64::from(packets) * u64::from(ETHERNET_OVERHEAD), rate.max(1));
            let (ns, rest) = (bytes * 1_000_000_000 / rate, bytes * 1_000_000_000 % rate);
            let fraction_ps = self.fraction_ps + rest.saturating_mul(1000) / rate;
            self.sent_until = self.sent_until + ns + fraction_ps / 1000;
            self.fraction_ps = fraction_ps % 1000;
        }
    }
}

/// Handles the deadlines that have passed.
#[inline]
fn catch_up(cc: &mut impl CongestionControl, now: Time) {
    let mut left = DEADLINES;
    while let Some(at) = cc.deadline().filter(|at| *at <= now) {
        left = left.saturating_sub(1);
        cc.on_deadline(if left > 0 { at } else { now });
    }
}

/// Packets of `len` bytes that leave in this time.
fn packets_in(ns: u64, rate: u64, len: u32) -> u32 {
    let packets = u128::from(ns) * u128::from(rate) / 1_000_000_000 / u128::from(wire_len(len));
    u32::try_from(packets).unwrap_or(u32::MAX)
}

fn wire_len(len: u32) -> u64 {
    u64::from(len) + u64::from(ETHERNET_OVERHEAD)
}

impl Requester {
    /// Number of packets of `len` bytes that the rate allows now. If it is 0, [`Self::deadline`] returns the time to try again.
    #[inline]
    pub(super) fn paced(&mut self, len: u32, now: Time) -> u32 {
        if !self.pacer.is_on() {
            return u32::MAX;
        }
        // Timers of the controller only change its rate, which matters when it is read.
        catch_up(&mut self.cc, now);
        let packets = self.pacer.allowance(self.cc.rate(), len, now);
        if packets == 0 {
            self.pacer.wake_by(self.cc.deadline());
        }
        packets
    }

    /// Sets how much unused sending time may be made up for.
    pub(crate) fn set_pacing_credit(&mut self, credit_ns: u64) {
        self.pacer.set_credit_ns(credit_ns);
    }

    /// As [`Self::set_pacing_credit`] has set it.
    pub(crate) fn pacing_credit_ns(&self) -> u64 {
        self.pacer.credit_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIGABIT: u64 = 125_000_000;

    #[test]
    fn packets_leave_at_the_rate() {
        let mut pacer = Pacer::default();
        let (mut now, mut sent) = (Time(1_000_000_000), 0u64);
        let end = now + 10_000_000;
        while now < end {
            match pacer.allowance(Some(GIGABIT), 1024, now) {
                0 => now = pacer.deadline().expect("a packet waits"),
                packets => {
                    pacer.on_sent(packets, packets * 1024);
                    sent += u64::from(packets);
                }
            }
        }
        // Ten milliseconds, and the credit at the start.
        let expected = (10_000_000 + CREDIT_NS) * GIGABIT / 1_000_000_000 / wire_len(1024);
        assert!(sent.abs_diff(expected) <= 2, "{sent} packets, expected {expected}");
    }

    #[test]
    fn a_late_thread_makes_up_for_at_most_the_credit() {
        let mut pacer = Pacer::default();
        let credit = (CREDIT_NS * GIGABIT / 1_000_000_000 / wire_len(1024)) as u32 + 1;
        assert_eq!(pacer.allowance(Some(GIGABIT), 1024, Time(5_000_000_000)), credit);
        pacer.on_sent(credit, credit * 1024);
        assert_eq!(pacer.allowance(Some(GIGABIT), 1024, Time(5_000_000_000)), 0);
        assert_eq!(pacer.allowance(Some(GIGABIT), 1024, Time(9_000_000_000)), credit);
    }

    #[test]
    fn fractions_of_a_nanosecond_add_up() {
        // 1106 bytes take 88.48 ns at 100 Gb/s.
        let (rate, mut pacer, mut now) = (Some(100 * GIGABIT), Pacer::default(), Time(1_000_000_000));
        pacer.set_credit_ns(2);
        let first = now;
        for _ in 0..10_000 {
            while pacer.allowance(rate, 1024, now) == 0 {
                now = pacer.deadline().expect("a packet waits");
            }
            pacer.on_sent(1, 1024);
        }
        assert!(now.since_ns(first).abs_diff(884_800) < 100, "{} ns", now.since_ns(first));
    }

    #[test]
    fn a_new_rate_changes_the_gap_that_has_begun() {
        let (mut pacer, start) = (Pacer::default(), Time(1_000_000_000));
        pacer.set_credit_ns(0);
        assert_eq!(pacer.allowance(Some(GIGABIT / 100), 1024, start), 1);
        pacer.on_sent(1, 1024);
        assert_eq!(pacer.allowance(Some(GIGABIT / 100), 1024, start), 0);
        assert_eq!(pacer.deadline(), Some(start + 884_800));
        // Half of it has passed; the other half takes a hundredth of its time.
        assert_eq!(pacer.allowance(Some(GIGABIT), 1024, start + 442_400), 0);
        assert_eq!(pacer.deadline(), Some(start + 442_400 + 4424));
    }

    /// A controller with a deadline in every period, as a rate that never rises has.
    struct Ticks {
        next: Time,
        calls: u32,
    }

    impl CongestionControl for Ticks {
        fn window(&self) -> u32 {
            u32::MAX
        }
        fn on_sent(&mut self, _: u32) {}
        fn on_ack(&mut self, _: &crate::cc::Feedback<'_>) {}
        fn on_loss(&mut self, _: Time) {}
        fn on_timeout(&mut self, _: Time) {}
        fn restart(&mut self) {}
        fn deadline(&self) -> Option<Time> {
            Some(self.next)
        }
        fn on_deadline(&mut self, now: Time) {
            self.next = now + 1000;
            self.calls += 1;
        }
    }

    #[test]
    fn the_deadlines_of_a_long_idle_time_are_bounded_work() {
        let (hour, mut cc) = (Time(3_600_000_000_000), Ticks { next: Time(1000), calls: 0 });
        catch_up(&mut cc, hour);
        assert_eq!(cc.calls, DEADLINES);
        assert!(cc.next > hour);
        let later = cc.next + 5000;
        catch_up(&mut cc, later);
        assert_eq!(cc.calls, DEADLINES + 6, "each at its own time");
    }

    #[test]
    fn the_slowest_rate_still_sends() {
        let mut pacer = Pacer::default();
        assert_eq!(pacer.allowance(Some(0), 4096, Time(1_000_000_000)), 1);
        pacer.on_sent(1, 4096);
        assert_eq!(pacer.allowance(Some(0), 4096, Time(2_000_000_000)), 0);
        assert!(pacer.deadline().is_some());
    }
}
