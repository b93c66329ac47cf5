//! TIMELY: rate control by the gradient of the round-trip time. Mittal et al., SIGCOMM 2015.

use super::params::params;
use super::round::Round;
use super::{CongestionControl, Feedback, Needs, Path};
use crate::time::Time;

params! {
    ewma: Number(0.875), 0.0, 1.0, "weight of a new difference of two RTTs";
    beta: Number(0.8), 0.0, 1.0, "strength of a decrease";
    t_low: Time(50e3), 0.0, 1e9, "below this RTT the rate always rises";
    t_high: Time(500e3), 1.0, 1e9, "above this RTT the rate always falls";
    min_rtt: Time(20e3), 100.0, 1e9, "unit of the gradient";
    delta: Share(0.001), 0.0, 1e12, "additive increase (10 Mb/s at 10 Gb/s)";
    hai: Number(5.0), 1.0, 100.0, "factor of the increase after five increases in a row";
    min_rate: Share(0.001), 0.0, 1e12, "the rate never falls below";
}

/// Increases in a row before the hyperactive ones.
const HAI_AFTER: u32 = 5;

/// TIMELY.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timely {
    params: Params,
    path: Path,
    rate: f64,
    last_rtt: Option<f64>,
    difference: f64,
    increases: u32,
    round: Round,
}

impl Timely {
    pub(super) fn new(params: Params, path: &Path) -> Timely {
        let rate = path.line_rate as f64;
        Timely {
            params,
            path: *path,
            rate,
            last_rtt: None,
            difference: 0.0,
            increases: 0,
            round: Round::default(),
        }
    }

    fn update(&mut self, rtt: f64) {
        let p = &self.params;
        let Some(last) = self.last_rtt.replace(rtt) else { return };
        self.difference = (1.0 - p.ewma) * self.difference + p.ewma * (rtt - last);
        let gradient = self.difference / p.min_rtt;
        let factor = if rtt < p.t_low {
            None
        } else if rtt > p.t_high {
            Some(1.0 - p.beta * (1.0 - p.t_high / rtt))
        } else if gradient <= 0.0 {
            None
        } else {
            Some((1.0 - p.beta * gradient).max(0.0))
        };
        match factor {
            Some(factor) => {
                self.rate = (self.rate * factor).max(p.min_rate).max(1.0);
                self.increases = 0;
            }
            None => {
                let step = if self.increases < HAI_AFTER { p.delta } else { p.hai * p.delta };
                self.rate = (self.rate + step).min(self.path.line_rate as f64);
                self.increases += 1;
            }
        }
    }
}

impl CongestionControl for Timely {
    fn window(&self) -> u32 {
        u32::MAX
    }
    fn rate(&self) -> Option<u64> {
        Some(self.rate as u64)
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        if self.round.is_over(feedback)
            && let Some(rtt) = feedback.rtt_ns
        {
            self.update(rtt as f64);
        }
    }
    fn on_loss(&mut self, _now: Time) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn restart(&mut self) {
        *self = Timely::new(self.params, &self.path);
    }
    fn needs(&self) -> Needs {
        Needs { ack_every_packet: true, rtt: true, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path { line_rate: 1_250_000_000, base_rtt_ns: 10_000, mtu: 1000, hops: 2 };

    fn cc() -> Timely {
        let params = Params::new(&[0.875, 0.8, 50e3, 500e3, 20e3, 1.25e6, 5.0, 1.25e6]);
        let mut cc = Timely::new(params, &PATH);
        ack(&mut cc, 1); // begins the first round
        cc
    }

    fn ack(cc: &mut Timely, rtt_us: u64) {
        cc.on_ack(&Feedback::new(Time(0), 1000, Some(rtt_us * 1000)));
    }

    #[test]
    fn a_rising_rtt_cuts_by_the_gradient() {
        let mut cc = cc();
        ack(&mut cc, 100);
        assert_eq!(cc.rate, 1.25e9, "the first sample has no difference");
        ack(&mut cc, 108);
        let gradient = 0.875 * 8e3 / 20e3;
        assert!((cc.rate - 1.25e9 * (1.0 - 0.8 * gradient)).abs() < 1.0, "{}", cc.rate);
    }

    #[test]
    fn a_high_rtt_cuts_towards_the_threshold() {
        let mut cc = cc();
        ack(&mut cc, 1000);
        ack(&mut cc, 1000);
        assert_eq!(cc.rate, 1.25e9 * (1.0 - 0.8 * 0.5));
    }

    #[test]
    fn five_increases_then_faster_ones() {
        let mut cc = cc();
        ack(&mut cc, 1000);
        ack(&mut cc, 1000);
        let cut = cc.rate;
        for _ in 0..5 {
            ack(&mut cc, 20);
        }
        assert_eq!(cc.rate, cut + 5.0 * 1.25e6);
        ack(&mut cc, 20);
        assert_eq!(cc.rate, cut + 10.0 * 1.25e6);
    }
}
