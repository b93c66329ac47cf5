//! TCP Vegas: a window that keeps two to four packets in the queues. Brakmo and Peterson, JSAC 1995; values of Linux.

use super::params::params;
use super::round::Round;
use super::{CongestionControl, Feedback, Needs, Path, window_of};
use crate::time::Time;

params! {
    alpha: Number(2.0), 0.0, 1e6, "with fewer packets in queues the window grows";
    beta: Number(4.0), 0.0, 1e6, "with more packets in queues the window shrinks";
    gamma: Number(1.0), 0.0, 1e6, "with more packets in queues slow start ends";
    initial: Number(10.0), 1.0, 1e6, "first window in packets";
}

const MIN_PACKETS: f64 = 2.0;
const MAX_PACKETS: f64 = 1e6;

/// Vegas.
#[derive(Clone, Copy, Debug)]
pub(super) struct Vegas {
    params: Params,
    path: Path,
    cwnd: f64,
    base_rtt_ns: f64,
    /// The smallest RTT of this round.
    round_rtt_ns: f64,
    slow_start: bool,
    /// Slow start doubles in every other round, so that the round between measures an unchanged window.
    grows: bool,
    round: Round,
    rtt_ns: u64,
    /// When a loss last halved the window.
    halved_at: Option<Time>,
}

impl Vegas {
    pub(super) fn new(params: Params, path: &Path) -> Vegas {
        Vegas {
            params,
            path: *path,
            cwnd: params.initial,
            base_rtt_ns: f64::MAX,
            round_rtt_ns: f64::MAX,
            slow_start: true,
            grows: false,
            round: Round::default(),
            rtt_ns: path.base_rtt_ns,
            halved_at: None,
        }
    }

    fn end_round(&mut self) {
        if self.round_rtt_ns == f64::MAX {
            return;
        }
        let rtt = core::mem::replace(&mut self.round_rtt_ns, f64::MAX);
        let queued = self.cwnd * (rtt - self.base_rtt_ns) / rtt;
        if self.slow_start {
            self.slow_start = queued <= self.params.gamma;
            self.grows = !self.grows;
            if !self.slow_start {
                // The window that fills the path without queue, and one packet.
                self.cwnd = self.cwnd.min(self.cwnd * self.base_rtt_ns / rtt + 1.0);
            } else if self.grows {
                self.cwnd *= 2.0;
            }
        } else if queued < self.params.alpha {
            self.cwnd += 1.0;
        } else if queued > self.params.beta {
            self.cwnd -= 1.0;
        }
        self.cwnd = self.cwnd.clamp(MIN_PACKETS, MAX_PACKETS);
    }
}

impl CongestionControl for Vegas {
    fn window(&self) -> u32 {
        window_of(self.cwnd * f64::from(self.path.mtu))
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        self.rtt_ns = feedback.rtt_ns.unwrap_or(self.rtt_ns);
        if let Some(rtt) = feedback.rtt_ns.map(|rtt| rtt.max(1) as f64) {
            self.base_rtt_ns = self.base_rtt_ns.min(rtt);
            self.round_rtt_ns = self.round_rtt_ns.min(rtt);
        }
        if self.round.is_over(feedback) {
            self.end_round();
        }
    }
    fn on_loss(&mut self, now: Time) {
        self.slow_start = false;
        // The losses of one round trip are one event.
        if self.halved_at.is_none_or(|at| now.since_ns(at) >= self.rtt_ns) {
            self.halved_at = Some(now);
            self.cwnd = (self.cwnd / 2.0).max(MIN_PACKETS);
        }
    }
    fn on_timeout(&mut self, _now: Time) {
        self.cwnd = MIN_PACKETS;
    }
    fn restart(&mut self) {
        *self = Vegas::new(self.params, &self.path);
    }
    fn needs(&self) -> Needs {
        Needs { rtt: true, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path { line_rate: 1_000_000_000, base_rtt_ns: 10_000, mtu: 1000, hops: 2 };

    fn cc() -> Vegas {
        Vegas::new(Params { alpha: 2.0, beta: 4.0, gamma: 1.0, initial: 10.0 }, &PATH)
    }

    fn ack(cc: &mut Vegas, rtt: u64) {
        cc.on_ack(&Feedback::new(Time(0), 1000, Some(rtt)));
    }

    #[test]
    fn slow_start_doubles_every_other_round_until_a_queue_appears() {
        let mut cc = cc();
        ack(&mut cc, 10_000); // begins the first round
        for expected in [20, 20, 40, 40] {
            ack(&mut cc, 10_000);
            assert_eq!(cc.window(), expected * 1000);
        }
        ack(&mut cc, 12_500);
        assert_eq!((cc.slow_start, cc.window()), (false, 33_000), "40 · 10 / 12.5 + 1");
    }

    #[test]
    fn it_keeps_two_to_four_packets_in_queues() {
        let mut cc = Vegas { slow_start: false, base_rtt_ns: 10_000.0, cwnd: 20.0, ..cc() };
        ack(&mut cc, 10_500); // begins the first round
        ack(&mut cc, 10_500);
        assert_eq!(cc.cwnd, 21.0, "0.95 queued");
        ack(&mut cc, 11_700);
        assert_eq!(cc.cwnd, 21.0, "3.05 queued");
        ack(&mut cc, 14_000);
        assert_eq!(cc.cwnd, 20.0, "6 queued");
        for n in 0..5 {
            cc.on_hole(Time(n * 1000), 1000);
        }
        assert_eq!(cc.cwnd, 10.0, "the holes of one round trip halve once");
        cc.on_hole(Time(14_000), 1000);
        assert_eq!(cc.cwnd, 5.0);
    }
}
