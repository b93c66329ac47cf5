//! Cases over iWARP: ferroce's streams against the kernel's SoftiWARP.
//!
//! The programs are the same at both ends. In some cases ferroce's end is the example `iwarp_peer`, which replaces them with the Rust API.

use super::cm::Lines;
use super::matrix::{BOTH, Case, Deviation, Direction, V4, by_cm, case, lines};
use super::wire::Wire;

const CRC: &[&str] = &["FERROCE_MPA_CRC=1"];

const fn verify(name: &'static str, args: &'static str) -> Case {
    Case { wire: Wire::Iwarp, ..case(name, "verify", args, BOTH) }
}

const fn refusal(name: &'static str, args: &'static str, deviations: &'static [Deviation]) -> Case {
    Case { deviations, ..verify(name, args) }
}

/// With the Rust API.
const fn in_rust(case: Case) -> Case {
    Case { by_example: true, ..case }
}

/// siw as responder raises no event for some refused WRITEs; as requester it may see the reset before it completes the WRITE.
const WRITE: &[Deviation] = &[
    Deviation {
        direction: Direction::ToKernel,
        lines: &["event: none, but the specification asks for QP_ACCESS_ERR"],
    },
    Deviation {
        direction: Direction::FromKernel,
        lines: &["requester: LOC_QP_OP_ERR, but the specification asks for SUCCESS"],
    },
];
/// siw as responder reports a local error of DDP, which names no READ; as requester it does not use the Terminate.
const READ: &[Deviation] = &[
    Deviation {
        direction: Direction::ToKernel,
        lines: &[
            "requester: WR_FLUSH_ERR, but the specification asks for REM_ACCESS_ERR",
            "receives: nothing, but the specification asks for WR_FLUSH_ERR WR_FLUSH_ERR",
            "event: QP_REQ_ERR, but the specification asks for QP_ACCESS_ERR",
        ],
    },
    Deviation {
        direction: Direction::FromKernel,
        lines: &["requester: WR_FLUSH_ERR, but the specification asks for REM_ACCESS_ERR"],
    },
];
const LONG_SEND: &[Deviation] = &[Deviation {
    direction: Direction::ToKernel,
    lines: &["event: QP_FATAL, but the specification asks for none"],
}];
/// siw does not complete a WRITE that the end of the connection interrupts, or completes it with another error.
const KILLED: &[Deviation] = &[Deviation {
    direction: Direction::FromKernel,
    lines: &[
        "verify: no completion",
        "requester: LOC_QP_OP_ERR, but the specification asks for WR_FLUSH_ERR",
    ],
}];
const NO_RECEIVE: &[Deviation] = &[Deviation {
    direction: Direction::ToKernel,
    lines: &["event: none, but the specification asks for QP_REQ_ERR"],
}];

/// siw does not report which key was invalidated. The other lines are those of a refused WRITE.
const INVALIDATED: &[Deviation] = &[
    Deviation {
        direction: Direction::ToKernel,
        lines: &[
            "key in the completion: none, but the specification asks for reported",
            "event: none, but the specification asks for QP_ACCESS_ERR",
        ],
    },
    Deviation {
        direction: Direction::FromKernel,
        lines: &["requester: LOC_QP_OP_ERR, but the specification asks for SUCCESS"],
    },
];

const fn with_crc(case: Case) -> Case {
    Case { environment: CRC, ..case }
}

const fn trouble(name: &'static str, netem: &'static str) -> Case {
    Case { netem, ..verify(name, "-n 2 -s 64,4096,65537") }
}

/// Both ends of a program have the same line, except for the address.
macro_rules! program {
    ($name:literal, $program:literal, $ips:expr, $server:expr, $client:expr, $says:literal) => {{
        let server = concat!($program, " ", $server);
        let client = concat!($program, " ", $client);
        Case { wire: Wire::Iwarp, ..by_cm($name, $program, $ips, lines(server, client, $says)) }
    }};
}

/// siw completes a SEND with LOC_QP_OP_ERR if the connection ends before the call that sends it has returned. This happens to perftest's
/// last message: its peer answers and disconnects immediately.
const LAST_SEND: &[Deviation] = &[Deviation {
    direction: Direction::FromKernel,
    lines: &["Failed to close connection between server and client"],
}];

/// Debian's perftest resolves no IPv6 address with -R. Its server closes and listens again between two connections. A client that
/// connects in between is refused, and retries with freed memory.
macro_rules! perftest {
    ($name:literal, $program:literal, $args:literal, $says:literal) => {
        Case {
            directions: &[Direction::FromKernel],
            deviations: LAST_SEND,
            ..program!(
                $name,
                $program,
                V4,
                concat!("-R -F -p {port} ", $args),
                concat!("-R -F -p {port} ", $args, " {server}"),
                $says
            )
        }
    };
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
    in_rust(verify("iwarp-rust-verify", "-s 2,3,64,1000,4096,65537")),
    in_rust(verify("iwarp-rust-srq", "-q 4 -S -o send -s 2,1025,9000")),
    // Errors on purpose; see the table in interop/verify/refuse.c.
    refusal("iwarp-write-rkey", "-E write_rkey", WRITE),
    refusal("iwarp-write-range", "-E write_range", WRITE),
    refusal("iwarp-write-right", "-E write_right", WRITE),
    refusal("iwarp-read-rkey", "-E read_rkey", READ),
    refusal("iwarp-read-range", "-E read_range", READ),
    refusal("iwarp-send-long", "-E send_long", LONG_SEND),
    refusal("iwarp-no-receive", "-E rnr", NO_RECEIVE),
    refusal("iwarp-killed", "-E killed", KILLED),
    refusal("iwarp-client-killed", "-E client_killed", &[]),
    // A SEND invalidates a key: a WRITE with the key succeeds before the SEND and is refused after it.
    refusal("iwarp-invalidate", "-E invalidated", INVALIDATED),
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
    // Towards the kernel it is left out: clients that close right after the reply stop Linux 6.1 with a BUG in iw_cm (docs/use/interop.md).
    Case { wire: Wire::Iwarp, directions: &[Direction::FromKernel], ..by_cm("iwarp-cmtime", "cmtime", V4, Lines { stays: true, ..lines("cmtime -p {port} -c 20", "cmtime -s {server} -p {port} -c 20", "destroy") }) },
    in_rust(program!("iwarp-rust-rping", "rping", BOTH, "-s -v -V -C 5 -p {port} -a {server}", "-c -v -V -C 5 -p {port} -a {server}", "rdma-ping-4")),
    in_rust(program!("iwarp-rust-ucmatose", "ucmatose", BOTH, "-p {port} -c 2 -b {server}", "-s {server} -c 2 -b {client} -p {port}", "return status 0")),
    perftest!("iwarp-ib_send_bw", "ib_send_bw", "-s 65536 -n 8", "BW average"),
    perftest!("iwarp-ib_send_lat", "ib_send_lat", "-s 64 -n 20", "t_avg"),
    perftest!("iwarp-ib_write_bw", "ib_write_bw", "-s 65536 -n 8", "BW average"),
    perftest!("iwarp-ib_write_bw-4qps", "ib_write_bw", "-q 4 -s 4096 -n 8", "BW average"),
    perftest!("iwarp-ib_write_lat", "ib_write_lat", "-s 64 -n 20", "t_avg"),
    perftest!("iwarp-ib_read_bw", "ib_read_bw", "-s 65536 -n 8", "BW average"),
    perftest!("iwarp-ib_read_lat", "ib_read_lat", "-s 64 -n 20", "t_avg"),
    // Both MPA revisions, RTR by WRITE and READ, and what siw refuses, by hand.
    Case {
        wire: Wire::Iwarp,
        directions: &[Direction::ToKernel],
        by_example: true,
        ..by_cm("iwarp-handmade", "rping", BOTH, Lines { stays: true, ..lines("rping -s -P -p {port} -a {server}", "handmade -a {server} -p {port}", "crc: Terminate") })
    },
];
