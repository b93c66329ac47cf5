//! Cases over iWARP: ferroce's streams against the kernel's SoftiWARP.
//!
//! ferroce's end is the example `iwarp_peer`, which plays the programs of the other end with the Rust API.

use super::matrix::{BOTH, Case, V4, by_cm, case, lines};
use super::wire::Wire;

const fn verify(name: &'static str, args: &'static str) -> Case {
    Case { wire: Wire::Iwarp, ..case(name, "verify", args, BOTH) }
}

/// Every case.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    verify("iwarp-verify", "-s 2,3,64,1000,4096,65537"),
    Case { wire: Wire::Iwarp, ..by_cm("iwarp-rping", "rping", BOTH, lines("rping -s -v -C 5 -p {port} -a {server}", "rping -c -v -C 5 -p {port} -a {server}", "rdma-ping-4")) },
    Case { wire: Wire::Iwarp, ..by_cm("iwarp-rping-any", "rping", V4, lines("rping -s -v -V -C 3 -S 20000 -p {port} -a 0.0.0.0", "rping -c -v -V -C 3 -S 20000 -p {port} -a {server}", "rdma-ping-2")) },
];
