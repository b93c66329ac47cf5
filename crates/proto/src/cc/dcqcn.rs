//! DCQCN, the rate control of RoCE NICs: the reaction point of Zhu et al., SIGCOMM 2015.
//!
//! Congestion notification packets (CNPs) cut the rate. Without them, a timer and a byte counter raise it again: first
//! back to the target rate (fast recovery), then beyond it. The alpha timer has no deadline, since alpha matters only
//! when the rate is cut: its periods are computed then.

use super::arithmetic::powi;
use super::params::params;
use super::{CongestionControl, Feedback, Needs, Path, window_of};
use crate::time::Time;

params! {
    cnp_interval: Time(50e3), 0.0, 1e9, "the receiver sends at most one CNP in this time";
    decrease_interval: Time(0.0), 0.0, 1e9, "the rate is cut at most once in this time; 0: by every CNP";
    delay_first: Number(0.0), 0.0, 1.0, "1: the first cut comes decrease_interval after the first CNP";
    alpha_interval: Time(55e3), 100.0, 1e9, "without a CNP, alpha decays once in this time";
    alpha_timer: Number(0.0), 0.0, 1.0, "1: alpha rises once per alpha_interval with a CNP; 0: with every CNP";
    g: Number(1.0 / 256.0), 0.0, 1.0, "weight of a new observation in alpha";
    alpha: Number(1.0), 0.0, 1.0, "alpha at the first CNP";
    increase_interval: Time(55e3), 1000.0, 1e9, "period of the increase timer";
    byte_counter: Bytes(10e6), 0.0, 1e12, "bytes between two increases; 0: no byte counter";
    fast_recovery: Number(5.0), 0.0, 1000.0, "increases that only return to the target rate";
    rai: Rate(40e6), 0.0, 1e12, "additive increase of the target rate";
    rhai: Rate(200e6), 0.0, 1e12, "hyper increase of the target rate";
    hai_grows: Number(1.0), 0.0, 1.0, "1: the n-th hyper increase adds n times rhai";
    min_rate: Rate(40e6), 1e3, 1e12, "the rate never falls below";
    min_left: Number(0.5), 0.0, 1.0, "one cut leaves at least this share of the rate";
    clamp_target: Number(1.0), 0.0, 1.0, "1: every cut sets the target rate; 0: only a cut after an increase";
    echo: Number(0.0), 0.0, 1.0, "1: an ACK that echoes a mark counts as a CNP";
    bound: Number(0.0), 0.0, 1.0, "1: at most BDP · rate / line rate in flight";
}

/// DCQCN's reaction point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dcqcn {
    params: Params,
    path: Path,
    rate: f64,
    target: f64,
    alpha: f64,
    /// Start of the current alpha period; none before the first CNP.
    alpha_at: Option<Time>,
    /// A CNP came in the current alpha period.
    cnp_seen: bool,
    last_cut: Option<Time>,
    /// When a CNP that came too early takes effect.
    cut_at: Option<Time>,
    increase_at: Option<Time>,
    byte_stage: u32,
    time_stage: u32,
    bytes: u64,
}

impl Dcqcn {
    pub(super) fn new(params: Params, path: &Path) -> Dcqcn {
        let line = path.line_rate as f64;
        Dcqcn {
            params,
            path: *path,
            rate: line,
            target: line,
            alpha: params.alpha,
            alpha_at: None,
            cnp_seen: false,
            last_cut: None,
            cut_at: None,
            increase_at: None,
            byte_stage: 0,
            time_stage: 0,
            bytes: 0,
        }
    }

    /// The alpha periods that have ended: one with a CNP raises alpha, the others lower it.
    fn end_alpha_periods(&mut self, now: Time) {
        let Some(since) = self.alpha_at else { return };
        let period = (self.params.alpha_interval as u64).max(1);
        let periods = now.since_ns(since) / period;
        if periods == 0 {
            return;
        }
        // Each CNP calls this function, so only the first of these periods can have had one.
        let raised = if core::mem::take(&mut self.cnp_seen) { 1 } else { 0 };
        if raised == 1 {
            self.raise_alpha();
        }
        self.alpha *= powi(1.0 - self.params.g, periods - raised);
        self.alpha_at = Some(since + periods * period);
    }

    fn observe_cnp(&mut self, now: Time) {
        if self.params.alpha_timer == 0.0 {
            self.raise_alpha();
            self.alpha_at = Some(now);
        } else if self.alpha_at.is_none() {
            self.alpha_at = Some(now);
        } else {
            self.cnp_seen = true;
        }
    }

    fn raise_alpha(&mut self) {
        self.alpha = (1.0 - self.params.g) * self.alpha + self.params.g;
    }

    fn cut(&mut self, now: Time) {
        if self.params.clamp_target > 0.0
            || self.time_stage > 0
            || self.byte_stage > 0
            || self.last_cut.is_none()
        {
            self.target = self.rate;
        }
        let left = (1.0 - self.alpha / 2.0).max(self.params.min_left);
        self.rate = (self.rate * left).max(self.min_rate());
        (self.byte_stage, self.time_stage, self.bytes) = (0, 0, 0);
        self.last_cut = Some(now);
        self.cut_at = None;
        self.increase_at = Some(now + self.increase_interval());
    }

    fn increase_interval(&self) -> u64 {
        (self.params.increase_interval as u64).max(1)
    }

    fn min_rate(&self) -> f64 {
        self.params.min_rate.max(1.0).min(self.path.line_rate as f64)
    }

    /// One expiry of the timer or the byte counter, before it is counted.
    fn increase(&mut self) {
        let stages = [self.byte_stage, self.time_stage].map(f64::from);
        let has_bytes = self.params.byte_counter > 0.0;
        let low = if has_bytes { stages[0].min(stages[1]) } else { stages[1] };
        let f = self.params.fast_recovery;
        if low > f {
            let times = if self.params.hai_grows > 0.0 { low - f } else { 1.0 };
            self.target += times * self.params.rhai;
        } else if stages[0].max(stages[1]) >= f {
            self.target += self.params.rai;
        }
        self.target = self.target.min(self.path.line_rate as f64);
        self.rate = (self.rate + self.target) / 2.0;
        if self.path.line_rate as f64 - self.rate < 1.0 {
            // Nothing is left to recover until the next cut.
            self.rate = self.path.line_rate as f64;
            self.increase_at = None;
        }
    }
}

impl CongestionControl for Dcqcn {
    fn window(&self) -> u32 {
        if self.params.bound > 0.0 {
            window_of(
                (self.path.bdp() * self.rate / self.path.line_rate as f64).max(f64::from(self.path.mtu)),
            )
        } else {
            u32::MAX
        }
    }
    fn rate(&self) -> Option<u64> {
        Some(self.rate as u64)
    }
    fn on_sent(&mut self, bytes: u32) {
        if self.increase_at.is_none() || self.params.byte_counter == 0.0 {
            return;
        }
        self.bytes += u64::from(bytes);
        if self.bytes as f64 >= self.params.byte_counter {
            self.bytes = 0;
            self.increase();
            self.byte_stage += 1;
        }
    }
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        if feedback.marked && self.params.echo > 0.0 {
            self.on_cnp(feedback.now);
        }
    }
    fn on_cnp(&mut self, now: Time) {
        let interval = self.params.decrease_interval as u64;
        let first_ns = if self.params.delay_first > 0.0 { interval } else { 0 };
        let due = self.cut_at.unwrap_or_else(|| self.last_cut.map_or(now + first_ns, |last| last + interval));
        self.end_alpha_periods(now);
        if due <= now {
            // The paper cuts with the alpha from before this CNP.
            self.cut(now);
        } else {
            self.cut_at = Some(due);
        }
        self.observe_cnp(now);
    }
    fn on_loss(&mut self, _now: Time) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn restart(&mut self) {
        *self = Dcqcn::new(self.params, &self.path);
    }
    fn deadline(&self) -> Option<Time> {
        [self.cut_at, self.increase_at].into_iter().flatten().min()
    }
    fn on_deadline(&mut self, now: Time) {
        if self.cut_at.is_some_and(|at| at <= now) {
            self.end_alpha_periods(now);
            self.cut(now);
        }
        if let Some(at) = self.increase_at.filter(|at| *at <= now) {
            let interval = self.increase_interval();
            let missed = now.since_ns(at) / interval;
            self.increase_at = Some(at + (missed + 1) * interval);
            self.increase();
            self.time_stage += 1;
        }
    }
    fn needs(&self) -> Needs {
        let echo = self.params.echo > 0.0;
        let cnp = (!echo).then_some(self.params.cnp_interval as u64);
        Needs { ecn_echo: echo, ack_every_packet: echo, cnp_interval_ns: cnp, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::Value;

    const PATH: Path = Path { line_rate: 5_000_000_000, base_rtt_ns: 20_000, mtu: 1000, hops: 2 };

    fn with(changes: &[(&str, f64)]) -> Dcqcn {
        let values: alloc::vec::Vec<f64> = Params::TABLE
            .iter()
            .map(|param| {
                let changed = changes.iter().find(|(name, _)| *name == param.name).map(|(_, value)| *value);
                changed.unwrap_or(match param.default {
                    Value::Rate(bits) => bits / 8.0,
                    other => other.number(),
                })
            })
            .collect();
        Dcqcn::new(Params::new(&values), &PATH)
    }

    #[test]
    fn a_cnp_cuts_by_half_of_alpha_and_alpha_follows() {
        let mut cc = with(&[("alpha", 0.5)]);
        cc.on_cnp(Time(0));
        assert_eq!(cc.rate(), Some(3_750_000_000), "1 − 0.5/2");
        let alpha = 0.5 * (255.0 / 256.0) + 1.0 / 256.0;
        assert_eq!(cc.alpha, alpha);
        // Two alpha periods later alpha has decayed twice.
        cc.on_cnp(Time(110_000));
        let decayed = alpha * (255.0 / 256.0) * (255.0 / 256.0);
        assert!((cc.rate - 3.75e9 * (1.0 - decayed / 2.0)).abs() < 1.0, "{}", cc.rate);
        assert_eq!(cc.target, 3.75e9);
    }

    #[test]
    fn the_first_cut_can_come_later() {
        let mut cc = with(&[("delay_first", 1.0), ("decrease_interval", 4000.0), ("alpha_timer", 1.0)]);
        for now in [1000, 2000, 3000] {
            cc.on_cnp(Time(now));
            assert_eq!(cc.rate(), Some(PATH.line_rate), "the rate stays");
        }
        assert_eq!(cc.deadline(), Some(Time(5000)));
        cc.on_deadline(Time(5000));
        assert_eq!(cc.rate(), Some(PATH.line_rate / 2));
        cc.on_cnp(Time(9000));
        assert_eq!(cc.rate(), Some(PATH.line_rate / 4), "later ones cut as soon as they may");
    }

    #[test]
    fn fast_recovery_halves_the_distance_and_additive_increase_follows() {
        let mut cc = with(&[("byte_counter", 0.0)]);
        cc.on_cnp(Time(0));
        assert_eq!(cc.rate, 2.5e9);
        let mut expected = 2.5e9;
        for n in 1..=5u64 {
            assert_eq!(cc.deadline(), Some(Time(n * 55_000)));
            cc.on_deadline(Time(n * 55_000));
            expected = (expected + 5e9) / 2.0;
            assert_eq!(cc.rate, expected, "fast recovery {n}");
        }
        // A second cut lowers the target, so that the increase beyond it shows.
        cc.on_cnp(Time(300_000));
        let target = cc.target;
        for n in 1..=6u64 {
            cc.on_deadline(Time(300_000 + n * 55_000));
        }
        assert_eq!(cc.target, target + 5e6, "40 Mb/s");
        cc.on_deadline(Time(300_000 + 7 * 55_000));
        assert_eq!(cc.target, target + 5e6 + 25e6, "one hyper increase of 200 Mb/s");
    }

    #[test]
    fn a_late_call_counts_as_one_expiry_and_keeps_the_period() {
        let mut cc = with(&[("byte_counter", 0.0)]);
        cc.on_cnp(Time(0));
        cc.on_deadline(Time(55_000_000_000 + 7));
        assert_eq!((cc.rate, cc.time_stage), (3.75e9, 1));
        assert_eq!(cc.deadline(), Some(Time(55_000_055_000)));
    }

    #[test]
    fn the_byte_counter_recovers_without_the_timer() {
        let mut cc = with(&[("byte_counter", 10_000.0)]);
        cc.on_cnp(Time(0));
        cc.on_sent(9_999);
        assert_eq!(cc.rate, 2.5e9);
        cc.on_sent(1);
        assert_eq!(cc.rate, 3.75e9);
        assert_eq!((cc.byte_stage, cc.time_stage), (1, 0));
    }

    #[test]
    fn cnps_within_the_decrease_interval_make_one_later_cut() {
        let mut cc = with(&[("decrease_interval", 4000.0), ("alpha_interval", 1000.0)]);
        cc.on_cnp(Time(0));
        assert_eq!(cc.rate, 2.5e9);
        cc.on_cnp(Time(1000));
        cc.on_cnp(Time(2000));
        assert_eq!((cc.rate, cc.deadline()), (2.5e9, Some(Time(4000))));
        cc.on_deadline(Time(4000));
        let (keep, g) = (255.0 / 256.0, 1.0 / 256.0);
        let alpha = ((keep * keep + g) * keep * keep + g) * keep * keep;
        assert!((cc.rate - 2.5e9 * (1.0 - alpha / 2.0)).abs() < 1.0, "{}", cc.rate);
        assert_eq!(cc.cut_at, None);
    }

    /// Alpha after 1 ms with a CNP every `every` ns.
    fn alpha_after_1_ms(alpha: f64, g: f64, every: u64) -> f64 {
        let nic = [("decrease_interval", 4000.0), ("alpha_interval", 1000.0), ("alpha_timer", 1.0)];
        let mut cc = with(&[nic[0], nic[1], nic[2], ("g", g), ("alpha", alpha)]);
        for now in (0..1_000_000).step_by(every as usize) {
            cc.on_cnp(Time(now));
            if cc.deadline().is_some_and(|at| at <= Time(now)) {
                cc.on_deadline(Time(now));
            }
        }
        cc.end_alpha_periods(Time(1_000_000));
        cc.alpha
    }

    #[test]
    fn the_nics_alpha_is_the_share_of_periods_with_a_cnp() {
        // The NIC's rule, period by period: α = (1 − g)α, plus g if a CNP came in the period. The first CNP only
        // starts the timer.
        let rule = |mut alpha: f64, g: f64, one_of: u32| {
            for period in 0..1000 {
                let cnp = period > 0 && period % one_of == 0;
                alpha = (1.0 - g) * alpha + if cnp { g } else { 0.0 };
            }
            alpha
        };
        // dcqcn-nic: a CNP in one of four periods, so 1/4.
        let (g, found) = (5.0 / 1024.0, alpha_after_1_ms(1.0, 5.0 / 1024.0, 4000));
        assert!((found - rule(1.0, g, 4)).abs() < 1e-9, "{found} {}", rule(1.0, g, 4));
        assert!((0.24..0.26).contains(&found), "{found}");
        // dcqcn-hpcc: several echoed marks in every period, so 1.
        for start in [0.0, 1.0] {
            let found = alpha_after_1_ms(start, 1.0 / 256.0, 250);
            let rest = (1.0 - start) * (1.0 - 1.0 / 256.0f64).powi(1000);
            assert!((1.0 - found - rest).abs() < 1e-9, "{start}: {found}");
        }
    }

    #[test]
    fn the_rate_stays_between_its_bounds() {
        let mut cc = with(&[]);
        for n in 0..1000 {
            cc.on_cnp(Time(n * 50_000));
        }
        assert_eq!(cc.rate, 5e6, "40 Mb/s");
        let mut now = Time(50_000_000);
        for _ in 0..100_000 {
            let Some(at) = cc.deadline() else { break };
            now = at;
            cc.on_deadline(now);
        }
        assert_eq!((cc.rate, cc.deadline()), (5e9, None), "back at line rate at {now:?}");
    }
}
