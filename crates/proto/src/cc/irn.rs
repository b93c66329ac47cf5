//! IRN's BDP bound: at most one bandwidth-delay product in flight, whatever happens. Mittal et al., SIGCOMM 2018.

use super::params::params;
use super::{FixedWindow, Path, window_of};

params! {
    bdp: Bytes(0.0), 0.0, 4e9, "bytes in flight; 0: the BDP of the path";
}

/// The bound as a window.
pub(super) fn window(params: Params, path: &Path) -> FixedWindow {
    let bytes = if params.bdp > 0.0 { params.bdp } else { path.bdp() };
    FixedWindow { bytes: window_of(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_is_the_bdp_of_the_path() {
        let path = Path { line_rate: 5_000_000_000, base_rtt_ns: 24_000, mtu: 1000, hops: 6 };
        assert_eq!(window(Params { bdp: 0.0 }, &path).bytes, 120_000, "the paper's 40 Gb/s");
        assert_eq!(window(Params { bdp: 104_000.0 }, &path).bytes, 104_000);
    }
}
