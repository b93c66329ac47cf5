//! HPCC: a window from the telemetry of the most loaded link. Li et al., SIGCOMM 2019.

use super::params::params;
use super::round::Round;
use super::{CongestionControl, Feedback, Hop, Needs, Path, window_of};
use crate::time::Time;

params! {
    eta: Number(0.95), 0.1, 1.0, "target utilisation";
    max_stage: Number(0.0), 0.0, 100.0, "additive increases in a row; the paper states 5, its evaluation used 0";
    rai: Share(0.0004), 0.0, 1e12, "additive increase (10 Mb/s at 25 Gb/s), per base RTT";
    min_rate: Share(0.001), 0.0, 1e12, "the rate never falls below";
}

/// Hops of a path whose telemetry is used; further ones are ignored.
pub const MAX_HOPS: usize = 8;

/// The telemetry of the last ACK, hop by hop.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LastHops {
    hops: [Hop; MAX_HOPS],
    len: usize,
}

impl LastHops {
    /// Stores new records and returns (previous, current) per hop. Nothing is returned for the first ACK and after a
    /// change of path.
    pub(super) fn replace(&mut self, hops: &[Hop]) -> impl Iterator<Item = (Hop, Hop)> + use<> {
        let hops = &hops[..hops.len().min(MAX_HOPS)];
        let last = *self;
        self.len = hops.len();
        self.hops[..hops.len()].copy_from_slice(hops);
        let current = *self;
        let pairs = (0..last.len.min(current.len)).map(move |at| (last.hops[at], current.hops[at]));
        pairs.filter(|(last, hop)| last.port == hop.port && hop.time_ns > last.time_ns && hop.rate > 0)
    }
}

/// HPCC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hpcc {
    params: Params,
    path: Path,
    window: f64,
    /// The window at the start of the round.
    reference: f64,
    utilisation: f64,
    stage: u32,
    last: LastHops,
    round: Round,
}

impl Hpcc {
    pub(super) fn new(params: Params, path: &Path) -> Hpcc {
        Hpcc {
            params,
            path: *path,
            window: path.bdp(),
            reference: path.bdp(),
            utilisation: 1.0,
            stage: 0,
            last: LastHops::default(),
            round: Round::default(),
        }
    }

    fn base_s(&self) -> f64 {
        self.path.base_rtt_ns as f64 / 1e9
    }

    /// The largest normalised bytes in flight over the hops, and its time span in seconds.
    fn most_loaded(&mut self, hops: &[Hop]) -> Option<(f64, f64)> {
        let base = self.base_s();
        let loads = self.last.replace(hops).map(|(last, hop)| {
            let span = (hop.time_ns - last.time_ns) as f64 / 1e9;
            let tx_rate = hop.tx_bytes.saturating_sub(last.tx_bytes) as f64 / span;
            let rate = hop.rate as f64;
            (tx_rate / rate + f64::from(hop.queue.min(last.queue)) / (rate * base), span.min(base))
        });
        loads.reduce(|most, load| if load.0 > most.0 { load } else { most })
    }
}

impl CongestionControl for Hpcc {
    fn window(&self) -> u32 {
        window_of(self.window)
    }
    fn rate(&self) -> Option<u64> {
        Some((self.window / self.base_s()) as u64)
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, feedback: &Feedback<'_>) {
        let over = self.round.is_over(feedback);
        let Some((load, span)) = self.most_loaded(feedback.telemetry) else { return };
        let base = self.base_s();
        self.utilisation = (1.0 - span / base) * self.utilisation + span / base * load;
        let p = &self.params;
        let more = p.rai * base;
        let full = self.utilisation >= p.eta || f64::from(self.stage) >= p.max_stage;
        let (window, stage) = if full {
            (self.reference / (self.utilisation / p.eta) + more, 0)
        } else {
            (self.reference + more, self.stage + 1)
        };
        let least = (p.min_rate * base).max(1.0);
        self.window = window.max(least).min(self.path.bdp());
        if over {
            (self.reference, self.stage) = (self.window, stage);
        }
    }
    fn on_loss(&mut self, _now: Time) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn restart(&mut self) {
        *self = Hpcc::new(self.params, &self.path);
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

    fn cc(max_stage: f64) -> Hpcc {
        Hpcc::new(Params::new(&[0.95, max_stage, 4e6, 1e7]), &PATH)
    }

    fn hop(time_ns: u64, tx_bytes: u64, queue: u32) -> Hop {
        Hop { port: 1, queue, rate: 10_000_000_000, tx_bytes, time_ns }
    }

    fn ack(cc: &mut Hpcc, hop: Hop, in_flight: u32) {
        let telemetry = [hop];
        cc.on_ack(&Feedback { telemetry: &telemetry, in_flight, ..Feedback::new(Time(0), 1000, None) });
    }

    #[test]
    fn a_full_link_with_a_queue_divides_the_window() {
        let mut cc = cc(0.0);
        ack(&mut cc, hop(0, 0, 50_000), 50_000);
        assert_eq!(cc.window(), 100_000, "the first ACK only stores the records");
        // One base RTT later: the link was full and 50 kB wait, so U = 1 + 50 kB / BDP.
        ack(&mut cc, hop(10_000, 100_000, 50_000), 50_000);
        assert!((cc.utilisation - 1.5).abs() < 1e-12);
        assert_eq!(cc.window(), (100_000.0 / (1.5 / 0.95) + 40.0) as u32, "4 MB/s of increase are 40 bytes");
    }

    #[test]
    fn the_reference_changes_once_per_round_trip() {
        let mut cc = cc(0.0);
        ack(&mut cc, hop(0, 0, 0), 3000);
        ack(&mut cc, hop(10_000, 200_000, 0), 3000);
        let first = cc.window;
        assert!((first - (100_000.0 / (2.0 / 0.95) + 40.0)).abs() < 1e-6, "{first}");
        // The same load again, inside the round: the window is computed from the same reference, so it stays.
        ack(&mut cc, hop(20_000, 400_000, 0), 3000);
        assert_eq!((cc.window, cc.reference), (first, 100_000.0));
        ack(&mut cc, hop(30_000, 600_000, 0), 3000);
        ack(&mut cc, hop(40_000, 800_000, 0), 3000);
        assert_eq!(cc.reference, first, "the round is over");
    }

    #[test]
    fn below_the_target_it_adds_for_max_stage_rounds() {
        let mut cc = cc(5.0);
        cc.reference = 10_000.0;
        ack(&mut cc, hop(0, 0, 0), 0);
        for n in 1..=5u64 {
            ack(&mut cc, hop(10_000 * n, 10_000 * n, 0), 0);
            assert_eq!(cc.window, 10_000.0 + 40.0 * n as f64);
        }
        ack(&mut cc, hop(60_000, 60_000, 0), 0);
        assert!(cc.window > 90_000.0, "then the load of 10 % decides: {}", cc.window);
    }

    #[test]
    fn another_path_starts_anew() {
        let mut cc = cc(0.0);
        ack(&mut cc, hop(0, 0, 0), 0);
        ack(&mut cc, Hop { port: 2, ..hop(10_000, 1_000_000, 0) }, 0);
        assert_eq!(cc.window(), 100_000);
    }
}
