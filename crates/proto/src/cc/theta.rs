//! θ-PowerTCP: PowerTCP from round-trip times only. Addanki et al., NSDI 2022.

use super::params::params;
use super::powertcp::PowerLaw;
use super::{CongestionControl, Feedback, Needs, Path};
use crate::time::Time;

params! {
    gamma: Number(0.7), 0.0, 1.0, "weight of a new rate";
    beta: Share(0.006), 0.0, 1e12, "additive increase (150 Mb/s at 25 Gb/s)";
    target: Number(1.05), 1.0, 10.0, "target RTT in base RTTs";
    min_rate: Share(0.001), 0.0, 1e12, "the rate never falls below";
}

/// θ-PowerTCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThetaPowerTcp {
    params: Params,
    path: Path,
    law: PowerLaw,
    /// The smallest RTT so far.
    min_rtt_ns: f64,
    /// Time and RTT of the last sample.
    last: Option<(Time, f64)>,
}

impl ThetaPowerTcp {
    pub(super) fn new(params: Params, path: &Path) -> ThetaPowerTcp {
        let law = PowerLaw::new(path, params.gamma, params.beta, params.min_rate);
        ThetaPowerTcp { params, path: *path, law, min_rtt_ns: f64::MAX, last: None }
    }

    /// Power, and its share of a base RTT.
    fn power(&mut self, now: Time, rtt: f64) -> Option<(f64, f64)> {
        self.min_rtt_ns = self.min_rtt_ns.min(rtt);
        let (last, last_rtt) = self.last.replace((now, rtt))?;
        let span = now.since_ns(last) as f64;
        if span == 0.0 {
            return None;
        }
        let growth = ((rtt - last_rtt) / span + 1.0).max(0.5);
        let power = growth * rtt / (self.params.target * self.min_rtt_ns);
        Some((power, (span / self.min_rtt_ns).min(1.0)))
    }
}

impl CongestionControl for ThetaPowerTcp {
    fn window(&self) -> u32 {
        self.law.window()
    }
    fn rate(&self) -> Option<u64> {
        Some(self.law.rate())
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        let power = feedback.rtt_ns.and_then(|rtt| self.power(feedback.now, rtt.max(1) as f64));
        self.law.update(feedback, power, 1.0);
    }
    fn on_loss(&mut self, _now: Time) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn restart(&mut self) {
        *self = ThetaPowerTcp::new(self.params, &self.path);
    }
    fn needs(&self) -> Needs {
        Needs { ack_every_packet: true, rtt: true, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path { line_rate: 10_000_000_000, base_rtt_ns: 10_000, mtu: 1000, hops: 2 };

    #[test]
    fn power_follows_the_rtt_and_its_slope() {
        let mut cc = ThetaPowerTcp::new(Params::new(&[0.7, 0.0, 1.05, 0.0]), &PATH);
        assert_eq!(cc.power(Time(0), 10_000.0), None, "the first sample has no slope");
        let (power, share) = cc.power(Time(10_000), 15_000.0).expect("a slope");
        assert!((power - 1.5 * 15.0 / 10.5).abs() < 1e-12 && share == 1.0, "{power} {share}");
        let (power, share) = cc.power(Time(12_000), 10_000.0).expect("a slope");
        assert!((power - 0.5 * 10.0 / 10.5).abs() < 1e-12 && share == 0.2, "{power} {share}");
    }

    #[test]
    fn a_standing_queue_lowers_the_rate() {
        let mut cc = ThetaPowerTcp::new(Params::new(&[0.7, 0.0, 1.05, 0.0]), &PATH);
        // Only the samples count, not the base RTT of the path: 20 µs is the smallest of this flow.
        cc.on_ack(&Feedback::new(Time(0), 1000, Some(20_000)));
        for n in 0..3 {
            cc.on_ack(&Feedback::new(Time(n * 20_000), 1000, Some(42_000)));
        }
        let expected = 0.7 * 0.5 + 0.3;
        assert!((cc.law.rate() as f64 / 1e10 - expected * expected).abs() < 1e-9, "{}", cc.law.rate());
    }
}
