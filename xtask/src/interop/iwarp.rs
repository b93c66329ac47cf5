//! Cases over iWARP: ferroce's streams against the kernel's SoftiWARP.
//!
//! ferroce's end is the example `iwarp_peer`, which plays the programs of the other end with the Rust API.

use super::matrix::{BOTH, Case, V4, by_cm, case, lines};
use super::wire::Wire;

const CRC: &[&str] = &["FERROCE_MPA_CRC=1"];

const fn verify(name: &'static str, args: &'static str) -> Case {
    Case { wire: Wire::Iwarp, ..case(name, "verify", args, BOTH) }
}

const fn with_crc(case: Case) -> Case {
    Case { environment: CRC, ..case }
}

const fn trouble(name: &'static str, netem: &'static str) -> Case {
    Case { netem, ..verify(name, "-n 2 -s 64,4096,65537") }
}

/// Both ends of a program have the same line, except for the address.
macro_rules! program {
    ($name:literal, $program:literal, $ips:expr, $server:literal, $client:literal, $says:literal) => {{
        let server = concat!($program, " ", $server);
        let client = concat!($program, " ", $client);
        Case { wire: Wire::Iwarp, ..by_cm($name, $program, $ips, lines(server, client, $says)) }
    }};
}

/// Lengths at which a message fills one TCP segment, or two: 4448 bytes over IPv4, 4428 over IPv6, less header, padding and CRC.
macro_rules! borders {
    () => {
        "-n 1 -k 2 -s 0,1,2,3,4,5,4403,4404,4405,4407,4408,4409,4423,4424,4425,4427,4428,4429,8807,8808,8809,8815,8816,8817,8847,\
         8848,8849,8855,8856,8857"
    };
}

/// Every case.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    // Every operation, every byte checked.
    verify("iwarp-verify", "-s 2,3,64,1000,4096,65537"),
    with_crc(verify("iwarp-verify-crc", "-s 2,3,64,1000,4096,65537")),
    verify("iwarp-borders", borders!()),
    with_crc(verify("iwarp-borders-crc", borders!())),
    verify("iwarp-large", "-n 1 -k 2 -s 1048576,8388608"),
    with_crc(verify("iwarp-large-crc", "-n 1 -k 2 -s 1048576")),
    verify("iwarp-8qps", "-q 8 -s 2,1025,9000"),
    verify("iwarp-srq", "-q 4 -S -o send -s 2,1025,9000"),
    verify("iwarp-inline", "-i -s 1,2,3,32,64,65"),
    verify("iwarp-events", "-e -s 2,1025,9000"),
    // TCP hides these.
    trouble("iwarp-loss", "loss 3%"),
    with_crc(trouble("iwarp-loss-crc", "loss 3%")),
    trouble("iwarp-reorder", "delay 1ms reorder 75% duplicate 5%"),
    // Programs that others wrote.
    program!("iwarp-rping", "rping", BOTH, "-s -v -V -C 5 -p {port} -a {server}", "-c -v -V -C 5 -p {port} -a {server}", "rdma-ping-4"),
    program!("iwarp-rping-any", "rping", V4, "-s -v -V -C 3 -S 20000 -p {port} -a 0.0.0.0", "-c -v -V -C 3 -S 20000 -p {port} -a {server}", "rdma-ping-2"),
    with_crc(program!("iwarp-rping-crc", "rping", BOTH, "-s -v -V -C 3 -S 9000 -p {port} -a {server}", "-c -v -V -C 3 -S 9000 -p {port} -a {server}", "rdma-ping-2")),
    program!("iwarp-ucmatose", "ucmatose", BOTH, "-p {port} -b {server}", "-s {server} -b {client} -p {port}", "return status 0"),
    program!("iwarp-ucmatose-4", "ucmatose", V4, "-p {port} -c 4 -C 5 -S 5000", "-s {server} -p {port} -c 4 -C 5 -S 5000", "return status 0"),
];
