//! PowerTCP with telemetry: Addanki et al., NSDI 2022.
//!
//! Power is the arrival rate of a port times its queue plus one BDP, in units of line rate times BDP. It reacts to the
//! queue and to its growth.

use super::hpcc::LastHops;
use super::params::params;
use super::round::Round;
use super::{CongestionControl, Feedback, Hop, Needs, Path, window_of};
use crate::time::Time;

params! {
    gamma: Number(0.9), 0.0, 1.0, "weight of a new rate";
    beta: Share(0.006), 0.0, 1e12, "additive increase (150 Mb/s at 25 Gb/s)";
    eta: Number(0.95), 0.1, 1.0, "target power";
    min_rate: Share(0.001), 0.0, 1e12, "the rate never falls below";
}

/// The law that both versions share: new rate from power.
#[derive(Clone, Copy, Debug)]
pub(super) struct PowerLaw {
    path: Path,
    gamma: f64,
    beta: f64,
    min_rate: f64,
    rate: f64,
    /// The rate at the start of the round.
    reference: f64,
    power: f64,
    round: Round,
}

impl PowerLaw {
    pub(super) fn new(path: &Path, gamma: f64, beta: f64, min_rate: f64) -> PowerLaw {
        let rate = path.line_rate as f64;
        PowerLaw {
            path: *path,
            gamma,
            beta,
            min_rate,
            rate,
            reference: rate,
            power: 1.0,
            round: Round::default(),
        }
    }

    /// Smooths `power`, measured over `share` of a base RTT, and sets the rate for the target `eta`.
    pub(super) fn update(&mut self, feedback: &Feedback<'_>, measured: Option<(f64, f64)>, eta: f64) {
        let over = self.round.is_over(feedback);
        let Some((power, share)) = measured else { return };
        self.power = (1.0 - share) * self.power + share * power;
        let fresh = self.reference / (self.power / eta) + self.beta;
        let rate = self.gamma * fresh + (1.0 - self.gamma) * self.reference;
        self.rate = rate.max(self.min_rate).max(1.0).min(self.path.line_rate as f64);
        if over {
            self.reference = self.rate;
        }
    }

    pub(super) fn rate(&self) -> u64 {
        self.rate as u64
    }

    /// The window that holds this rate over the base RTT.
    pub(super) fn window(&self) -> u32 {
        window_of((self.rate * self.path.base_rtt_ns as f64 / 1e9).max(f64::from(self.path.mtu)))
    }
}

/// PowerTCP with telemetry.
#[derive(Clone, Copy, Debug)]
pub(super) struct PowerTcp {
    params: Params,
    path: Path,
    law: PowerLaw,
    last: LastHops,
}

impl PowerTcp {
    pub(super) fn new(params: Params, path: &Path) -> PowerTcp {
        let law = PowerLaw::new(path, params.gamma, params.beta, params.min_rate);
        PowerTcp { params, path: *path, law, last: LastHops::default() }
    }

    /// The largest power over the hops, and its share of a base RTT.
    fn most_power(&mut self, hops: &[Hop]) -> Option<(f64, f64)> {
        let base = self.path.base_rtt_ns as f64 / 1e9;
        let powers = self.last.replace(hops).map(|(last, hop)| {
            let span = (hop.time_ns - last.time_ns) as f64 / 1e9;
            let rate = hop.rate as f64;
            let growth = (f64::from(hop.queue) - f64::from(last.queue)) / span;
            let sent = hop.tx_bytes.saturating_sub(last.tx_bytes) as f64 / span;
            let arrival = (sent + growth).max(rate / 2.0);
            let bdp = rate * base;
            (arrival * (f64::from(hop.queue) + bdp) / (rate * bdp), (span / base).min(1.0))
        });
        powers.reduce(|most, power| if power.0 > most.0 { power } else { most })
    }
}

impl CongestionControl for PowerTcp {
    fn window(&self) -> u32 {
        self.law.window()
    }
    fn rate(&self) -> Option<u64> {
        Some(self.law.rate())
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        let power = self.most_power(feedback.telemetry);
        self.law.update(feedback, power, self.params.eta);
    }
    fn on_loss(&mut self, _now: Time) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn restart(&mut self) {
        *self = PowerTcp::new(self.params, &self.path);
    }
    fn needs(&self) -> Needs {
        Needs { ack_every_packet: true, telemetry: true, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BDP 100 kB.
    const PATH: Path = Path { line_rate: 10_000_000_000, base_rtt_ns: 10_000, mtu: 1000, hops: 2 };

    #[test]
    fn power_counts_the_queue_and_its_growth() {
        let mut cc = PowerTcp::new(Params::new(&[0.9, 0.0, 0.95, 0.0]), &PATH);
        let hop = |time_ns, tx_bytes, queue| Hop { port: 1, queue, rate: 10_000_000_000, tx_bytes, time_ns };
        let mut ack = |hop| {
            let telemetry = [hop];
            cc.on_ack(&Feedback { telemetry: &telemetry, ..Feedback::new(Time(0), 1000, None) });
            cc.law
        };
        assert_eq!(ack(hop(0, 0, 0)).rate(), 10_000_000_000);
        // The link was full for one base RTT, and 50 kB more came: arrival 1.5 lines, contents 1.5 BDP.
        let law = ack(hop(10_000, 100_000, 50_000));
        assert!((law.power - 2.25).abs() < 1e-12, "{}", law.power);
        let expected = 0.9 * (1e10 / (2.25 / 0.95)) + 0.1 * 1e10;
        assert!((law.rate - expected).abs() < 1.0, "{}", law.rate);
        // An idle link counts as half full.
        let law = ack(hop(20_000, 100_000, 0));
        assert!((law.power - 0.5).abs() < 1e-12, "{}", law.power);
    }
}
