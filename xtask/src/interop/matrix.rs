//! The table of cases, each run in both directions.
//!
//! Software emulation is slow, so counts are small. Every path must be executed once.

use super::cm::Lines;
use super::iwarp;
use super::wire::Wire;

/// Which side is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Direction {
    /// ferroce is the client (requester), the kernel the server.
    ToKernel,
    /// The kernel is the client, ferroce the server.
    FromKernel,
}

impl Direction {
    pub(crate) const BOTH: [Self; 2] = [Self::ToKernel, Self::FromKernel];
}

/// IP version that carries the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Ip {
    V4,
    V6,
}

pub(crate) const V4: &[Ip] = &[Ip::V4];
const V6: &[Ip] = &[Ip::V6];
pub(crate) const BOTH: &[Ip] = &[Ip::V4, Ip::V6];

/// A known deviation of the kernel from the specification. Only the listed lines are accepted.
pub(crate) struct Deviation {
    /// The direction in which it occurs.
    pub(crate) direction: Direction,
    /// Lines that the kernel's end, or ferroce's because of it, prints instead.
    pub(crate) lines: &'static [&'static str],
}

/// One line of the table.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) wire: Wire,
    pub(crate) program: &'static str,
    /// The same for both ends.
    pub(crate) args: &'static str,
    pub(crate) ips: &'static [Ip],
    /// `tc netem`: faults of packets that leave the guest.
    pub(crate) netem: &'static str,
    /// `FERROCE_FAULTS`: faults of packets that leave the host.
    pub(crate) faults: &'static str,
    pub(crate) deviations: &'static [Deviation],
    /// Command lines of programs that use the connection manager; their `args` are empty.
    pub(crate) cm: Option<Lines>,
    /// Further variables for ferroce's end, `NAME=VALUE`.
    pub(crate) environment: &'static [&'static str],
    pub(crate) directions: &'static [Direction],
    /// ferroce's end is the example `iwarp_peer`, not the program itself.
    pub(crate) by_example: bool,
}

/// Every case.
pub(crate) fn cases() -> impl Iterator<Item = &'static Case> {
    CASES.iter().chain(iwarp::CASES)
}

pub(crate) const fn case(
    name: &'static str,
    program: &'static str,
    args: &'static str,
    ips: &'static [Ip],
) -> Case {
    let (netem, faults, deviations, environment) = ("", "", &[], &[]);
    let (wire, directions) = (Wire::Roce, &Direction::BOTH);
    let (cm, by_example) = (None, false);
    Case {
        name,
        wire,
        program,
        args,
        ips,
        netem,
        faults,
        deviations,
        cm,
        environment,
        directions,
        by_example,
    }
}

const fn trouble(name: &'static str, args: &'static str, netem: &'static str, faults: &'static str) -> Case {
    Case { netem, faults, ..case(name, "verify", args, BOTH) }
}

const fn refusal(name: &'static str, args: &'static str, deviations: &'static [Deviation]) -> Case {
    Case { deviations, ..case(name, "verify", args, BOTH) }
}

pub(crate) const fn by_cm(
    name: &'static str,
    program: &'static str,
    ips: &'static [Ip],
    lines: Lines,
) -> Case {
    Case { cm: Some(lines), ..case(name, program, "", ips) }
}

/// A server that ends with its client.
pub(crate) const fn lines(server: &'static str, client: &'static str, says: &'static str) -> Lines {
    Lines { server, client, says, stays: false }
}

/// perftest with -R: both ends have the same line, and the client the address.
macro_rules! perftest_by_cm {
    ($name:literal, $program:literal, $args:literal, $ips:expr) => {
        by_cm(
            $name,
            $program,
            $ips,
            lines(
                concat!($program, " -R -F -p {port} ", $args),
                concat!($program, " -R -F -p {port} ", $args, " {server}"),
                "BW average",
            ),
        )
    };
}

/// The responder in the kernel raises no asynchronous event.
const NO_ACCESS_EVENT: &[Deviation] = &[Deviation {
    direction: Direction::ToKernel,
    lines: &["event: none, but the specification asks for QP_ACCESS_ERR"],
}];
/// The responder in the kernel answers with a remote operational error instead of an invalid request, and reports that in its completion.
const LONG_SEND: &[Deviation] = &[Deviation {
    direction: Direction::ToKernel,
    lines: &[
        "requester: REM_OP_ERR WR_FLUSH_ERR, but the specification asks for REM_INV_REQ_ERR WR_FLUSH_ERR",
        "receives: LOC_QP_OP_ERR WR_FLUSH_ERR, but the specification asks for LOC_LEN_ERR WR_FLUSH_ERR",
    ],
}];

/// As responder the kernel answers correctly but raises no event; as requester its library refuses the call.
const MISALIGNED: &[Deviation] = &[
    Deviation {
        direction: Direction::ToKernel,
        lines: &["event: none, but the specification asks for QP_REQ_ERR"],
    },
    Deviation {
        direction: Direction::FromKernel,
        lines: &["verify: ibv_post_send: Invalid argument", "verify: the other end is gone"],
    },
];

/// Everything over RoCE.
#[rustfmt::skip]
const CASES: &[Case] = &[
    // Every operation, every byte checked.
    case("verify-rc", "verify", "-t rc -s 2,3,64,1000,1024,1025,4096,65537", BOTH),
    case("verify-uc", "verify", "-t uc -s 2,3,64,1000,1024,1025,4096,20001", BOTH),
    case("verify-ud", "verify", "-t ud -s 2,3,64,1000,1023,1024", BOTH),
    case("verify-rc-mtu256", "verify", "-t rc -m 256 -s 2,255,256,257,20001", BOTH),
    case("verify-uc-mtu256", "verify", "-t uc -m 256 -s 2,255,256,257,3000", BOTH),
    case("verify-rc-mtu512", "verify", "-t rc -m 512 -s 2,511,512,513,20001", BOTH),
    case("verify-rc-mtu2048", "verify", "-t rc -m 2048 -s 2,2047,2048,2049,20001", BOTH),
    case("verify-rc-mtu4096", "verify", "-t rc -m 4096 -s 2,4095,4096,4097,65537", BOTH),
    case("verify-uc-mtu4096", "verify", "-t uc -m 4096 -s 2,4095,4096,4097,20001", BOTH),
    case("verify-ud-mtu4096", "verify", "-t ud -m 4096 -s 2,4095,4096", BOTH),
    case("verify-rc-large", "verify", "-t rc -m 4096 -n 1 -k 2 -s 1048576,8388608", BOTH),
    case("verify-rc-8qps", "verify", "-t rc -q 8 -s 2,1025,9000", BOTH),
    case("verify-uc-4qps", "verify", "-t uc -q 4 -k 2 -s 2,1025,3000", V4),
    case("verify-srq", "verify", "-t rc -q 4 -S -o send -s 2,1025,9000", BOTH),
    case("verify-srq-imm", "verify", "-t rc -q 4 -S -o send_imm -s 2,1025,9000", V4),
    case("verify-inline", "verify", "-t rc -i -s 1,2,3,32,64,65", BOTH),
    case("verify-events", "verify", "-t rc -e -s 2,1025,9000", BOTH),
    case("verify-ud-events", "verify", "-t ud -e -s 2,1024", V6),
    // Loss, reordering and duplicates, in one direction and in both.
    trouble("trouble-loss-ours", "-t rc -n 3 -s 64,4096,65537", "", "loss=3%,seed=1"),
    trouble("trouble-loss-kernel", "-t rc -n 3 -s 64,4096,65537", "loss 3%", ""),
    trouble("trouble-reorder", "-t rc -n 3 -s 64,4096,20001", "delay 1ms reorder 97%", "reorder=3%,seed=2"),
    trouble("trouble-reorder-reads", "-t rc -o read -k 8 -n 3 -s 64,4096,65537", "delay 1ms reorder 25%", ""),
    trouble("trouble-reads-both-ways", "-t rc -o read -k 4 -n 2 -s 64,4096,20001", "delay 1ms reorder 75%", "reorder=25%,seed=6"),
    trouble("trouble-duplicate", "-t rc -n 3 -s 64,4096,65537", "duplicate 5%", "dup=5%,seed=3"),
    trouble("trouble-corrupt", "-t rc -n 2 -s 64,4096,65537", "corrupt 1%", "corrupt=1%,seed=4"),
    trouble("trouble-all", "-t rc -n 2 -q 3 -s 64,4096,20001", "delay 1ms reorder 98% loss 2% duplicate 2%", "loss=2%,reorder=2%,dup=2%,seed=5"),
    // Errors on purpose; see the table in interop/verify/refuse.c.
    refusal("refuse-write-rkey", "-E write_rkey", NO_ACCESS_EVENT),
    refusal("refuse-write-range", "-E write_range", NO_ACCESS_EVENT),
    refusal("refuse-write-right", "-E write_right", NO_ACCESS_EVENT),
    refusal("refuse-read-rkey", "-E read_rkey", NO_ACCESS_EVENT),
    refusal("refuse-read-range", "-E read_range", NO_ACCESS_EVENT),
    refusal("refuse-atomic-rkey", "-E atomic_rkey", NO_ACCESS_EVENT),
    refusal("refuse-atomic-align", "-E atomic_align", MISALIGNED),
    refusal("refuse-send-long", "-E send_long", LONG_SEND),
    refusal("refuse-rnr", "-E rnr -R 1", &[]),
    refusal("refuse-rnr-late", "-E rnr_late -R 7", &[]),
    refusal("refuse-dead", "-E dead -T 12 -r 3", &[]),
    refusal("refuse-killed", "-E killed -T 12 -r 3", &[]),
    refusal("refuse-qkey", "-E qkey -t ud", &[]),
    // Programs that others wrote. Their default timer of 67 ms is short for an emulated processor, so -u 18.
    case("ib_send_bw", "ib_send_bw", "-a -n 5 -u 18", BOTH),
    case("ib_send_bw-4qps", "ib_send_bw", "-q 4 -s 4096 -n 64 -m 2048 -u 18", BOTH),
    case("ib_send_bw-both-ways", "ib_send_bw", "-b -s 4096 -n 64 -u 18", V4),
    case("ib_send_bw-uc", "ib_send_bw", "-c UC -s 1024 -n 32 -t 4 -r 64", BOTH),
    case("ib_send_bw-ud", "ib_send_bw", "-c UD -s 1024 -n 32 -t 4 -r 64", BOTH),
    case("ib_send_bw-inline", "ib_send_bw", "-I 32 -s 32 -n 64 -u 18", BOTH),
    case("ib_send_lat", "ib_send_lat", "-s 64 -n 20 -u 18", BOTH),
    case("ib_send_lat-all", "ib_send_lat", "-a -n 5 -u 18", V4),
    case("ib_send_lat-uc", "ib_send_lat", "-c UC -s 64 -n 20", BOTH),
    case("ib_send_lat-ud", "ib_send_lat", "-c UD -s 64 -n 20", BOTH),
    case("ib_send_lat-events", "ib_send_lat", "-e -s 64 -n 20 -u 18", V4),
    case("ib_write_bw", "ib_write_bw", "-a -n 5 -u 18", BOTH),
    case("ib_write_bw-mtu256", "ib_write_bw", "-m 256 -s 65536 -n 5 -u 18", BOTH),
    case("ib_write_bw-mtu512", "ib_write_bw", "-m 512 -s 65536 -n 5 -u 18", BOTH),
    case("ib_write_bw-mtu1024", "ib_write_bw", "-m 1024 -s 65536 -n 5 -u 18", BOTH),
    case("ib_write_bw-mtu2048", "ib_write_bw", "-m 2048 -s 65536 -n 5 -u 18", BOTH),
    case("ib_write_bw-mtu4096", "ib_write_bw", "-m 4096 -s 65536 -n 5 -u 18", BOTH),
    case("ib_write_bw-8qps", "ib_write_bw", "-q 8 -s 4096 -n 16 -u 18", BOTH),
    case("ib_write_bw-uc", "ib_write_bw", "-c UC -s 1024 -n 32 -t 4", BOTH),
    case("ib_write_lat", "ib_write_lat", "-s 64 -n 20 -u 18", BOTH),
    case("ib_write_lat-all", "ib_write_lat", "-a -n 5 -u 18", V4),
    case("ib_write_lat-uc", "ib_write_lat", "-c UC -s 64 -n 20", BOTH),
    case("ib_read_bw", "ib_read_bw", "-a -n 5 -u 18", BOTH),
    case("ib_read_bw-4qps", "ib_read_bw", "-q 4 -s 65536 -n 8 -u 18", V6),
    case("ib_read_lat", "ib_read_lat", "-s 64 -n 20 -u 18", BOTH),
    case("ib_read_lat-all", "ib_read_lat", "-a -n 5 -u 18", V4),
    case("ib_atomic_bw", "ib_atomic_bw", "-A FETCH_AND_ADD -n 50 -u 18", BOTH),
    case("ib_atomic_bw-cmp_swap", "ib_atomic_bw", "-A CMP_AND_SWAP -n 50 -u 18", BOTH),
    case("ib_atomic_lat", "ib_atomic_lat", "-n 20 -u 18", BOTH),
    case("ibv_rc_pingpong", "ibv_rc_pingpong", "-c -n 50 -s 8192", BOTH),
    case("ibv_rc_pingpong-events", "ibv_rc_pingpong", "-e -c -n 50 -m 4096", V4),
    case("ibv_uc_pingpong", "ibv_uc_pingpong", "-c -n 50 -s 4096", BOTH),
    case("ibv_ud_pingpong", "ibv_ud_pingpong", "-c -n 50 -s 1024", BOTH),
    case("ibv_srq_pingpong", "ibv_srq_pingpong", "-c -q 4 -n 50 -s 4096", BOTH),
    // The kernel's connection manager as the peer of ours.
    by_cm("cm-rping", "rping", BOTH, lines("rping -s -v -C 5 -p {port} -a {server}", "rping -c -v -C 5 -p {port} -a {server}", "rdma-ping-4")),
    by_cm("cm-rping-any", "rping", V4, lines("rping -s -v -V -C 3 -S 20000 -p {port} -a 0.0.0.0", "rping -c -v -V -C 3 -S 20000 -p {port} -a {server}", "rdma-ping-2")),
    by_cm("cm-ucmatose", "ucmatose", BOTH, lines("ucmatose -p {port} -b {server}", "ucmatose -s {server} -b {client} -p {port}", "return status 0")),
    by_cm("cm-ucmatose-4", "ucmatose", V4, lines("ucmatose -p {port} -c 4 -C 5 -S 5000", "ucmatose -s {server} -p {port} -c 4 -C 5 -S 5000", "return status 0")),
    by_cm("cm-udaddy", "udaddy", BOTH, lines("udaddy -b {server}", "udaddy -s {server} -b {client}", "return status 0")),
    by_cm("cm-udaddy-4", "udaddy", V4, lines("udaddy -c 4 -C 5 -S 1000", "udaddy -s {server} -c 4 -C 5 -S 1000", "return status 0")),
    by_cm("cm-cmtime", "cmtime", V4, Lines { stays: true, ..lines("cmtime -p {port} -c 20", "cmtime -s {server} -p {port} -c 20", "destroy") }),
    // Debian's perftest resolves no IPv6 address with -R.
    perftest_by_cm!("cm-ib_send_bw", "ib_send_bw", "-s 4096 -n 16 -u 18", V4),
    perftest_by_cm!("cm-ib_write_bw", "ib_write_bw", "-s 65536 -n 5 -u 18", V4),
    perftest_by_cm!("cm-ib_write_bw-4qps", "ib_write_bw", "-q 4 -s 4096 -n 8 -u 18", V4),
    perftest_by_cm!("cm-ib_read_bw", "ib_read_bw", "-s 65536 -n 5 -u 18", V4),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_fit_the_table() {
        let mut names: Vec<&str> = cases().map(|case| case.name).collect();
        names.sort_unstable();
        let before = names.len();
        names.dedup();
        assert_eq!(names.len(), before);
        assert!(names.iter().all(|name| name.len() <= 24), "{names:?}");
    }
}
