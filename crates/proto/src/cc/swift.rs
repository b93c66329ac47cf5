//! Swift: a window that keeps the fabric delay at a target. Kumar et al., SIGCOMM 2020.
//!
//! Windows below one packet are paced. The target grows for small windows (flow scaling), so that many flows together
//! still agree on one delay.

use super::arithmetic::sqrt;
use super::params::params;
use super::{CongestionControl, Feedback, Needs, Path, window_of};
use crate::time::Time;

params! {
    base_target: Time(25e3), 0.0, 1e9, "target delay without hops and flow scaling";
    hop_target: Time(1e3), 0.0, 1e9, "target delay per hop";
    fs_range: Time(100e3), 0.0, 1e9, "largest addition of flow scaling";
    fs_min: Number(0.1), 0.001, 1000.0, "window in packets with the largest addition";
    fs_max: Number(256.0), 0.01, 1e6, "window in packets with none";
    ai: Number(1.0), 0.0, 100.0, "packets that a round below the target adds";
    beta: Number(0.8), 0.0, 1.0, "strength of a decrease";
    max_mdf: Number(0.5), 0.0, 1.0, "largest share that one decrease removes";
    min_cwnd: Number(0.01), 0.0001, 1.0, "smallest window in packets";
    max_cwnd: Number(256.0), 1.0, 1e6, "largest window in packets";
}

/// Time-outs in a row after which the window is the smallest.
const MAX_TIMEOUTS: u32 = 3;

/// Swift.
#[derive(Clone, Copy, Debug)]
pub(super) struct Swift {
    params: Params,
    path: Path,
    cwnd: f64,
    rtt_ns: f64,
    last_decrease: Option<Time>,
    timeouts: u32,
}

impl Swift {
    pub(super) fn new(params: Params, path: &Path) -> Swift {
        let cwnd = (path.bdp() / f64::from(path.mtu)).clamp(params.min_cwnd, params.max_cwnd);
        Swift { params, path: *path, cwnd, rtt_ns: path.base_rtt_ns as f64, last_decrease: None, timeouts: 0 }
    }

    fn target_ns(&self) -> f64 {
        let p = &self.params;
        let span = 1.0 / sqrt(p.fs_min) - 1.0 / sqrt(p.fs_max);
        let a = if span > 0.0 { p.fs_range / span } else { 0.0 };
        let scaling = (a / sqrt(self.cwnd) - a / sqrt(p.fs_max)).clamp(0.0, p.fs_range);
        p.base_target + p.hop_target * f64::from(self.path.hops) + scaling
    }

    fn decrease(&mut self, now: Time, factor: f64) {
        let due = self.last_decrease.is_none_or(|last| now.since_ns(last) as f64 >= self.rtt_ns);
        if due {
            self.cwnd = (self.cwnd * factor).max(self.params.min_cwnd);
            self.last_decrease = Some(now);
        }
    }
}

impl CongestionControl for Swift {
    fn window(&self) -> u32 {
        window_of(self.cwnd.max(1.0) * f64::from(self.path.mtu))
    }
    fn rate(&self) -> Option<u64> {
        let bytes = self.cwnd * f64::from(self.path.mtu);
        (self.cwnd < 1.0).then(|| ((bytes * 1e9 / self.rtt_ns) as u64).max(1))
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        self.timeouts = 0;
        let Some(delay) = feedback.rtt_ns.map(|rtt| rtt.max(1) as f64) else { return };
        self.rtt_ns = 0.75 * self.rtt_ns + 0.25 * delay;
        let target = self.target_ns();
        if delay < target {
            let packets = f64::from(feedback.acked) / f64::from(self.path.mtu);
            let more = self.params.ai * packets;
            self.cwnd += if self.cwnd >= 1.0 { more / self.cwnd } else { more };
            self.cwnd = self.cwnd.min(self.params.max_cwnd);
        } else {
            let factor = 1.0 - self.params.beta * (delay - target) / delay;
            self.decrease(feedback.now, factor.max(1.0 - self.params.max_mdf));
        }
    }
    fn on_loss(&mut self, now: Time) {
        self.decrease(now, 1.0 - self.params.max_mdf);
    }
    fn on_timeout(&mut self, now: Time) {
        self.timeouts += 1;
        if self.timeouts >= MAX_TIMEOUTS {
            self.cwnd = self.params.min_cwnd;
        } else {
            self.decrease(now, 1.0 - self.params.max_mdf);
        }
    }
    fn restart(&mut self) {
        *self = Swift::new(self.params, &self.path);
    }
    fn needs(&self) -> Needs {
        Needs { ack_every_packet: true, rtt: true, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path { line_rate: 1_000_000_000, base_rtt_ns: 10_000, mtu: 1000, hops: 4 };

    fn cc(cwnd: f64) -> Swift {
        let params = Params::new(&[25e3, 1e3, 100e3, 0.1, 256.0, 1.0, 0.8, 0.5, 0.01, 256.0]);
        Swift { cwnd, ..Swift::new(params, &PATH) }
    }

    #[test]
    fn the_target_scales_with_the_window() {
        assert_eq!(cc(256.0).target_ns(), 29e3);
        assert!((cc(0.1).target_ns() - 129e3).abs() < 1e-6);
        assert_eq!(cc(0.01).target_ns(), 129e3, "clamped");
        let a = 100e3 / (1.0 / 0.1f64.sqrt() - 1.0 / 16.0);
        assert!((cc(4.0).target_ns() - (29e3 + a / 2.0 - a / 16.0)).abs() < 1e-6);
    }

    #[test]
    fn a_round_below_the_target_adds_one_packet() {
        let mut cc = cc(10.0);
        for _ in 0..10 {
            cc.on_ack(&Feedback::new(Time(0), 1000, Some(10_000)));
        }
        assert!((cc.cwnd - 11.0).abs() < 0.05, "{}", cc.cwnd);
    }

    #[test]
    fn one_decrease_per_round_trip_in_proportion_to_the_excess() {
        let mut cc = cc(256.0);
        cc.on_ack(&Feedback::new(Time(1_000_000), 1000, Some(40_000)));
        let expected = 256.0 * (1.0 - 0.8 * 11e3 / 40e3);
        assert!((cc.cwnd - expected).abs() < 1e-9, "{}", cc.cwnd);
        cc.on_ack(&Feedback::new(Time(1_000_100), 1000, Some(40_000)));
        assert!((cc.cwnd - expected).abs() < 1e-9, "the same round trip");
        cc.on_ack(&Feedback::new(Time(1_000_000_000), 1000, Some(10_000_000)));
        assert!((cc.cwnd - expected / 2.0).abs() < 1e-9, "at most half");
    }

    #[test]
    fn a_window_below_one_packet_is_paced() {
        let cc = Swift { rtt_ns: 20_000.0, ..cc(0.5) };
        assert_eq!((cc.window(), cc.rate()), (1000, Some(25_000_000)));
        assert_eq!(Swift { cwnd: 1.0, ..cc }.rate(), None);
    }

    #[test]
    fn three_timeouts_give_the_smallest_window() {
        let mut cc = cc(100.0);
        for _ in 0..3 {
            cc.on_timeout(Time(1_000_000));
        }
        assert_eq!(cc.cwnd, 0.01);
    }
}
