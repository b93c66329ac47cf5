//! IRN's BDP bound: always at most one bandwidth-delay product in flight. Mittal et al., SIGCOMM 2018.

use super::params::params;
use super::{CongestionControl, Feedback, Needs, Path, window_of};
use crate::time::Time;

params! {
    bdp: Bytes(0.0), 0.0, 4e9, "bytes in flight; 0: the BDP of the path";
}

/// The bound as a window. The receiver acknowledges every packet, so that one packet leaves for each that arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Irn {
    window: u32,
}

impl Irn {
    pub(super) fn new(params: Params, path: &Path) -> Irn {
        Irn { window: window_of(if params.bdp > 0.0 { params.bdp } else { path.bdp() }) }
    }
}

impl CongestionControl for Irn {
    fn window(&self) -> u32 {
        self.window
    }
    fn on_sent(&mut self, _bytes: u32) {}
    fn on_ack(&mut self, _feedback: &Feedback<'_>) {}
    fn on_loss(&mut self, _now: Time) {}
    fn on_timeout(&mut self, _now: Time) {}
    fn restart(&mut self) {}
    fn needs(&self) -> Needs {
        Needs { ack_every_packet: true, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_bdp_of_the_path() {
        let path = Path { line_rate: 5_000_000_000, base_rtt_ns: 24_000, mtu: 1000, hops: 6 };
        assert_eq!(Irn::new(Params { bdp: 0.0 }, &path).window, 120_000, "the paper's 40 Gb/s");
        assert_eq!(Irn::new(Params { bdp: 104_000.0 }, &path).window, 104_000);
    }
}
