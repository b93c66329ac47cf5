//! CUBIC (RFC 9438): the window is a cubic function of the time since the last loss.
//!
//! The window counts segments of one MTU. At round trips of microseconds the cubic function hardly moves, and the
//! Reno-friendly region decides.

use super::arithmetic::cbrt;
use super::params::params;
use super::{CongestionControl, Feedback, Path, window_of};
use crate::time::Time;

params! {
    c: Number(0.4), 0.001, 1e6, "growth in segments per second cubed";
    beta: Number(0.7), 0.1, 0.99, "share of the window that a loss leaves";
    initial: Number(10.0), 1.0, 1e6, "first window in segments";
}

/// Largest window in segments.
const MAX_SEGMENTS: f64 = 1e6;
const MIN_SEGMENTS: f64 = 2.0;

/// CUBIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cubic {
    params: Params,
    path: Path,
    cwnd: f64,
    ssthresh: f64,
    w_max: f64,
    /// Window that Reno would have.
    w_est: f64,
    /// Start of the current epoch of congestion avoidance, with its K in seconds.
    epoch: Option<(Time, f64)>,
    srtt_ns: f64,
    last_decrease: Option<Time>,
}

impl Cubic {
    pub(super) fn new(params: Params, path: &Path) -> Cubic {
        Cubic {
            params,
            path: *path,
            cwnd: params.initial,
            ssthresh: MAX_SEGMENTS,
            w_max: 0.0,
            w_est: 0.0,
            epoch: None,
            srtt_ns: path.base_rtt_ns as f64,
            last_decrease: None,
        }
    }

    /// W_cubic(t), equation 1 of section 4.2.
    fn cubic(&self, seconds: f64, k: f64) -> f64 {
        let t = seconds - k;
        self.params.c * t * t * t + self.w_max
    }

    fn avoid_congestion(&mut self, now: Time, segments: f64) {
        let Params { c, beta, .. } = self.params;
        let (start, k) = *self.epoch.get_or_insert_with(|| {
            self.w_max = self.w_max.max(self.cwnd);
            self.w_est = self.cwnd;
            (now, cbrt((self.w_max - self.cwnd) / c))
        });
        let t = now.since_ns(start) as f64 / 1e9;
        // Section 4.3: alpha is 1 once the estimate has reached the window before the loss.
        let alpha = if self.w_est >= self.w_max { 1.0 } else { 3.0 * (1.0 - beta) / (1.0 + beta) };
        self.w_est += alpha * segments / self.cwnd;
        if self.cubic(t, k) < self.w_est {
            self.cwnd = self.w_est;
        } else {
            let target = self.cubic(t + self.srtt_ns / 1e9, k).clamp(self.cwnd, 1.5 * self.cwnd);
            self.cwnd += (target - self.cwnd) / self.cwnd * segments;
        }
        self.cwnd = self.cwnd.min(MAX_SEGMENTS);
    }

    /// At most one decrease per round trip: the losses of one window are one congestion event.
    fn decrease(&mut self, now: Time) {
        if self.last_decrease.is_some_and(|last| (now.since_ns(last) as f64) < self.srtt_ns) {
            return;
        }
        let beta = self.params.beta;
        // Fast convergence, section 4.7: a flow that loses packets before it has regained its window releases bandwidth.
        self.w_max = if self.cwnd < self.w_max { self.cwnd * (1.0 + beta) / 2.0 } else { self.cwnd };
        self.cwnd = (self.cwnd * beta).max(MIN_SEGMENTS);
        self.ssthresh = self.cwnd;
        self.epoch = None;
        self.last_decrease = Some(now);
    }
}

impl CongestionControl for Cubic {
    fn window(&self) -> u32 {
        window_of(self.cwnd * f64::from(self.path.mtu))
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        if let Some(rtt) = feedback.rtt_ns {
            self.srtt_ns += (rtt as f64 - self.srtt_ns) / 8.0;
        }
        let segments = f64::from(feedback.acked) / f64::from(self.path.mtu);
        if self.cwnd < self.ssthresh {
            self.cwnd = (self.cwnd + segments).min(MAX_SEGMENTS);
        } else {
            self.avoid_congestion(feedback.now, segments);
        }
    }
    fn on_loss(&mut self, now: Time) {
        self.decrease(now);
    }
    fn on_timeout(&mut self, now: Time) {
        self.decrease(now);
        self.cwnd = 1.0;
    }
    fn restart(&mut self) {
        *self = Cubic::new(self.params, &self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path { line_rate: 125_000_000, base_rtt_ns: 100_000_000, mtu: 1000, hops: 2 };

    fn cc(cwnd: f64) -> Cubic {
        let mut cc = Cubic::new(Params { c: 0.4, beta: 0.7, initial: 10.0 }, &PATH);
        cc.cwnd = cwnd;
        cc
    }

    #[test]
    fn slow_start_doubles_per_round() {
        let mut cc = cc(10.0);
        for _ in 0..10 {
            cc.on_ack(&Feedback::new(Time(0), 1000, None));
        }
        assert_eq!(cc.window(), 20_000);
    }

    #[test]
    fn after_a_loss_the_window_is_back_after_k_seconds() {
        let mut cc = cc(1000.0);
        cc.on_loss(Time(0));
        assert_eq!((cc.cwnd, cc.w_max), (700.0, 1000.0));
        // K = ∛(1000 · 0.3 / 0.4) = 9.086 s. One ACK per round trip of a whole window, for K seconds.
        let k = cbrt(1000.0 * 0.3 / 0.4);
        assert!((k - 9.0856).abs() < 1e-4);
        for n in 0..91 {
            let acked = (cc.cwnd * 1000.0) as u32;
            cc.on_ack(&Feedback::new(Time(n * 100_000_000), acked, Some(100_000_000)));
        }
        assert!((cc.cwnd - 1000.0).abs() < 10.0, "{}", cc.cwnd);
        // A loss before the old maximum lowers it (fast convergence).
        cc.cwnd = 900.0;
        cc.on_loss(Time(20_000_000_000));
        assert_eq!(cc.w_max, 900.0 * 0.85);
    }

    #[test]
    fn at_short_round_trips_reno_decides() {
        let path = Path { base_rtt_ns: 10_000, ..PATH };
        let mut cc = Cubic { path, srtt_ns: 10_000.0, ..cc(100.0) };
        cc.on_loss(Time(0));
        for n in 0..100u64 {
            let acked = (cc.cwnd * 1000.0) as u32;
            cc.on_ack(&Feedback::new(Time(10_000 * n), acked, Some(10_000)));
        }
        // 100 rounds of 3(1 − β)/(1 + β) = 0.53 segments until 100, then of one segment.
        assert!((cc.cwnd - 143.5).abs() < 1.5, "{}", cc.cwnd);
    }

    #[test]
    fn losses_of_one_round_trip_are_one_event() {
        let mut cc = cc(1000.0);
        cc.on_loss(Time(0));
        cc.on_loss(Time(99_999_999));
        assert_eq!(cc.cwnd, 700.0);
        cc.on_timeout(Time(200_000_000));
        assert_eq!((cc.cwnd, cc.ssthresh), (1.0, 700.0 * 0.7));
    }
}
