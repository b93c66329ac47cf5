//! Link rates, in three encodings.

use std::ffi::c_int;

/// Code of `enum ibv_rate`, multiple of 2.5 Gb/s if rdma-core defines one, rate in Mb/s.
const RATES: [(c_int, Option<c_int>, c_int); 23] = [
    (2, Some(1), 2_500),
    (5, Some(2), 5_000),
    (3, Some(4), 10_000),
    (6, Some(8), 20_000),
    (4, Some(12), 30_000),
    (7, Some(16), 40_000),
    (8, Some(24), 60_000),
    (9, Some(32), 80_000),
    (10, Some(48), 120_000),
    (11, None, 14_062),
    (12, None, 56_250),
    (13, None, 112_500),
    (14, None, 168_750),
    (15, None, 25_781),
    (16, None, 103_125),
    (17, None, 206_250),
    (18, None, 309_375),
    (19, Some(11), 28_125),
    (20, Some(20), 53_125),
    (21, Some(160), 425_000),
    (22, Some(240), 637_500),
    (23, Some(320), 850_000),
    (24, Some(480), 1_275_000),
];

/// The code for "no limit".
const RATE_MAX: c_int = 0;

pub(crate) extern "C" fn rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).and_then(|r| r.1).unwrap_or(-1)
}

pub(crate) extern "C" fn mult_to_rate(mult: c_int) -> c_int {
    RATES.iter().find(|r| r.1 == Some(mult)).map_or(RATE_MAX, |r| r.0)
}

pub(crate) extern "C" fn rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|r| r.0 == rate).map_or(-1, |r| r.2)
}

pub(crate) extern "C" fn mbps_to_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|r| r.2 == mbps).map_or(RATE_MAX, |r| r.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{PORT_RATE, PORT_SPEED};

    #[test]
    fn the_rate_of_the_port_is_one_in_all_encodings() {
        assert_eq!(i64::from(rate_to_mbps(PORT_RATE.into())) / 1000, PORT_SPEED as i64 / 10);
    }
}
