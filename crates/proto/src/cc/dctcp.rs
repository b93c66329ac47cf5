//! DCTCP as a window without slow start: Alizadeh et al., SIGCOMM 2010, as HPCC's evaluation runs it in NICs.

use super::params::params;
use super::round::Round;
use super::{CongestionControl, Feedback, Needs, Path, window_of};
use crate::time::Time;

params! {
    g: Number(1.0 / 16.0), 0.0, 1.0, "weight of a new round in alpha";
    alpha: Number(1.0), 0.0, 1.0, "alpha at the start";
    increase: Number(1.0), 0.0, 1000.0, "packets that a round without marks adds";
    start: Number(1.0), 0.001, 1000.0, "first window in BDPs";
}

/// Largest window in BDPs. It bounds the growth if no packet is ever marked.
const MAX_BDPS: f64 = 64.0;

/// DCTCP.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dctcp {
    params: Params,
    path: Path,
    window: f64,
    alpha: f64,
    round: Round,
    acked: u64,
    marked: u64,
    delivered: u64,
    /// Delivered bytes up to which marks belong to the last cut: what was in flight then (RFC 8257, section 3.3).
    cut_until: Option<u64>,
    rtt_ns: u64,
    /// When a loss last halved the window.
    halved_at: Option<Time>,
}

impl Dctcp {
    pub(super) fn new(params: Params, path: &Path) -> Dctcp {
        let window = (params.start * path.bdp()).max(f64::from(path.mtu));
        Dctcp {
            params,
            path: *path,
            window,
            alpha: params.alpha,
            round: Round::default(),
            acked: 0,
            marked: 0,
            delivered: 0,
            cut_until: None,
            rtt_ns: path.base_rtt_ns,
            halved_at: None,
        }
    }

    fn shrink(&mut self, factor: f64) {
        self.window = (self.window * factor).max(f64::from(self.path.mtu));
    }
}

impl CongestionControl for Dctcp {
    fn window(&self) -> u32 {
        window_of(self.window)
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        self.rtt_ns = feedback.rtt_ns.unwrap_or(self.rtt_ns);
        // A duplicate acknowledges nothing new, but its mark counts as a packet.
        let bytes = u64::from(feedback.acked.max(1));
        self.acked += bytes;
        self.delivered += u64::from(feedback.acked);
        if feedback.marked {
            if self.cut_until.is_none_or(|end| self.delivered > end) {
                self.cut_until = Some(self.delivered + u64::from(feedback.in_flight));
                self.shrink(1.0 - self.alpha / 2.0);
            }
            self.marked += bytes;
        }
        if self.round.is_over(feedback) {
            let share = self.marked as f64 / self.acked as f64;
            self.alpha = (1.0 - self.params.g) * self.alpha + self.params.g * share;
            if self.marked == 0 {
                let more = self.window + self.params.increase * f64::from(self.path.mtu);
                self.window = more.min(MAX_BDPS * self.path.bdp());
            }
            (self.acked, self.marked) = (0, 0);
        }
    }
    fn on_loss(&mut self, now: Time) {
        // The losses of one round trip are one event.
        if self.halved_at.is_none_or(|at| now.since_ns(at) >= self.rtt_ns) {
            self.halved_at = Some(now);
            self.shrink(0.5);
        }
    }
    fn on_timeout(&mut self, _now: Time) {
        self.shrink(0.5);
    }
    fn restart(&mut self) {
        *self = Dctcp::new(self.params, &self.path);
    }
    fn needs(&self) -> Needs {
        Needs { ecn_echo: true, ack_every_packet: true, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: Path = Path { line_rate: 1_000_000_000, base_rtt_ns: 10_000, mtu: 1000, hops: 2 };

    /// One round trip of ten packets, the first `marks` of them marked.
    fn round(cc: &mut Dctcp, marks: u32) {
        for n in 0..10 {
            cc.on_ack(&Feedback { marked: n < marks, in_flight: 9000, ..Feedback::new(Time(0), 1000, None) });
        }
    }

    fn cc() -> Dctcp {
        let mut cc = Dctcp::new(Params::new(&[1.0 / 16.0, 1.0, 1.0, 1.0]), &PATH);
        cc.on_ack(&Feedback { in_flight: 9000, ..Feedback::new(Time(0), 0, None) });
        cc
    }

    #[test]
    fn one_cut_per_round_by_half_of_alpha() {
        let mut cc = cc();
        assert_eq!(cc.window(), 10_000, "one BDP");
        round(&mut cc, 3);
        assert_eq!(cc.window(), 5000, "alpha 1 halves");
        assert!((cc.alpha - (15.0 / 16.0 + 0.3 / 16.0)).abs() < 1e-2, "{}", cc.alpha);
    }

    #[test]
    fn packets_that_were_in_flight_at_a_cut_do_not_cause_another() {
        let mut cc = cc();
        for marked in [false, true, true, false] {
            for n in 0..5 {
                cc.on_ack(&Feedback { marked, in_flight: 9000, ..Feedback::new(Time(n), 1000, None) });
            }
        }
        assert_eq!(
            cc.window(),
            5000,
            "the marks of five packets before the end of a round, and of five after it"
        );
    }

    #[test]
    fn rounds_without_marks_add_a_packet_and_lower_alpha() {
        let mut cc = cc();
        round(&mut cc, 0);
        round(&mut cc, 0);
        assert_eq!(cc.window(), 12_000);
        assert!((cc.alpha - (15f64 / 16.0).powi(2)).abs() < 1e-12);
        cc.on_timeout(Time(0));
        assert_eq!(cc.window(), 6000);
    }

    #[test]
    fn the_holes_of_one_round_trip_halve_once() {
        let mut cc = cc();
        for n in 0..5 {
            cc.on_hole(Time(n * 1000), 1000);
        }
        assert_eq!(cc.window(), 5000);
        cc.on_hole(Time(10_000), 1000);
        assert_eq!(cc.window(), 2500);
    }
}
