//! The table of programs: command lines, and the output that shows success.
//!
//! In a command line, `{v4}` and `{v6}` stand for the index of a GID of that kind. The harness adds the port, the number of
//! iterations and, for clients, the server's address.

use std::time::Duration;

/// One row of the table.
pub(crate) struct Case {
    /// The command line; also the case's name.
    pub(crate) line: &'static str,
    pub(crate) kind: Kind,
    pub(crate) proof: Proof,
}

/// How many processes a case has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One program that ends by itself.
    Alone,
    /// The same program twice, the second one with the first one's address.
    Pair,
    /// One program that waits for an event, which a change of an address of the machine raises.
    Watch,
    /// A pair whose duration `-D` sets. No iterations are added.
    TimedPair,
}

/// The output of a success.
#[derive(Clone, Copy)]
pub(crate) enum Proof {
    /// This text.
    Says(&'static str),
    /// At least so many rows of figures, none of them zero.
    Rows(usize),
}

use Kind::{Alone, Pair, TimedPair, Watch};
use Proof::{Rows, Says};

const fn case(kind: Kind, line: &'static str, proof: Proof) -> Case {
    Case { line, kind, proof }
}

const fn pair(line: &'static str) -> Case {
    case(Pair, line, Rows(1))
}

const fn timed(line: &'static str) -> Case {
    case(TimedPair, line, Rows(1))
}

const fn pingpong(line: &'static str) -> Case {
    case(Pair, line, Says("iters in"))
}

/// Sizes from 2 B to 8 MiB.
const ALL_SIZES: Proof = Rows(23);
/// Sizes from 2 B to the smallest MTU that the test network has.
const DATAGRAM_SIZES: Proof = Rows(10);

/// All programs, simple ones first.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    // ibverbs-utils
    case(Alone, "ibv_devices", Says("ferroce0")),
    case(Alone, "ibv_devinfo -v", Says("PORT_ACTIVE")),
    case(Alone, "ibv_devinfo -d ferroce0 -i 1", Says("Ethernet")),
    case(Watch, "ibv_asyncwatch -d ferroce0", Says("GID_CHANGE")),
    pingpong("ibv_rc_pingpong -g {v4}"),
    pingpong("ibv_rc_pingpong -g {v4} -e"),
    pingpong("ibv_rc_pingpong -g {v4} -c -s 100000"),
    pingpong("ibv_rc_pingpong -g {v4} -t"),
    pingpong("ibv_rc_pingpong -g {v4} -N"),
    pingpong("ibv_rc_pingpong -g {v4} -o"),
    pingpong("ibv_rc_pingpong -g {v4} -O -P"),
    pingpong("ibv_rc_pingpong -g {v4} -j"),
    pingpong("ibv_rc_pingpong -g {v6}"),
    pingpong("ibv_uc_pingpong -g {v4}"),
    pingpong("ibv_uc_pingpong -g {v4} -e"),
    pingpong("ibv_ud_pingpong -g {v4} -s 1024"),
    pingpong("ibv_ud_pingpong -g {v4} -s 1024 -e"),
    pingpong("ibv_srq_pingpong -g {v4}"),
    pingpong("ibv_srq_pingpong -g {v4} -e"),
    case(Pair, "ibv_xsrq_pingpong -g {v4}", Says("success")),
    case(Pair, "ibv_xsrq_pingpong -g {v4} -e", Says("success")),

    // perftest, each test over each transport
    pair("ib_send_bw"), pair("ib_send_lat"), pair("ib_write_bw"), pair("ib_write_lat"),
    pair("ib_read_bw"), pair("ib_read_lat"), pair("ib_atomic_bw"), pair("ib_atomic_lat"),
    pair("ib_atomic_bw -A CMP_AND_SWAP"), pair("ib_atomic_lat -A CMP_AND_SWAP"),
    pair("ib_send_bw -c UC"), pair("ib_send_lat -c UC"), pair("ib_write_bw -c UC"), pair("ib_write_lat -c UC"),
    pair("ib_send_bw -c UD"), pair("ib_send_lat -c UD"),
    pair("ib_send_bw -c XRC"), pair("ib_send_lat -c XRC"), pair("ib_write_bw -c XRC"), pair("ib_write_lat -c XRC"),
    pair("ib_read_bw -c XRC"), pair("ib_read_lat -c XRC"), pair("ib_atomic_bw -c XRC"), pair("ib_atomic_lat -c XRC"),

    // all sizes
    case(Pair, "ib_send_bw -a", ALL_SIZES), case(Pair, "ib_send_lat -a", ALL_SIZES),
    case(Pair, "ib_write_bw -a", ALL_SIZES), case(Pair, "ib_write_lat -a", ALL_SIZES),
    case(Pair, "ib_read_bw -a", ALL_SIZES), case(Pair, "ib_read_lat -a", ALL_SIZES),
    case(Pair, "ib_send_bw -a -c UD", DATAGRAM_SIZES), case(Pair, "ib_send_lat -a -c UD", DATAGRAM_SIZES),
    case(Pair, "ib_write_lat -a -c UC", ALL_SIZES), case(Pair, "ib_write_bw -a -c XRC", ALL_SIZES),

    // both directions
    pair("ib_send_bw -b"), pair("ib_write_bw -b"), pair("ib_read_bw -b"), pair("ib_atomic_bw -b"),
    pair("ib_send_bw -b -c UD"), pair("ib_write_bw -b -c UC"), pair("ib_write_bw -b -c XRC"),

    // events
    pair("ib_send_bw -e"), pair("ib_send_lat -e"), pair("ib_read_bw -e"), pair("ib_read_lat -e"),
    pair("ib_atomic_bw -e"), pair("ib_atomic_lat -e"), pair("ib_send_bw -e -c UD"), pair("ib_send_lat -e -c UD"),
    pair("ib_send_lat -e -c UC"), pair("ib_send_bw -e -c XRC"),

    // several queue pairs
    pair("ib_send_bw -q 8"), pair("ib_write_bw -q 8"), pair("ib_read_bw -q 8"), pair("ib_atomic_bw -q 8"),
    pair("ib_write_bw -q 8 -c UC"), pair("ib_send_bw -q 8 -c UD"), pair("ib_write_bw -q 8 -c XRC"), pair("ib_write_bw -q 8 -b"),

    // lists of work requests, inline data
    pair("ib_send_bw -l 16"), pair("ib_write_bw -l 16"), pair("ib_read_bw -l 16"), pair("ib_atomic_bw -l 16"),
    pair("ib_send_bw -l 16 -c UD"), pair("ib_write_bw -l 16 -q 8"),
    pair("ib_send_bw -I 64 -s 64"), pair("ib_send_lat -I 64 -s 64"), pair("ib_write_bw -I 64 -s 64"), pair("ib_write_lat -I 64 -s 64"),
    pair("ib_send_lat -I 64 -s 64 -c UD"), pair("ib_write_lat -I 64 -s 64 -c UC"),

    // every MTU
    pair("ib_write_bw -m 256"), pair("ib_write_bw -m 512"), pair("ib_write_bw -m 1024"), pair("ib_write_bw -m 2048"), pair("ib_write_bw -m 4096"),
    pair("ib_send_lat -m 256 -s 5000"), pair("ib_send_lat -m 512 -s 5000"), pair("ib_send_lat -m 1024 -s 5000"),
    pair("ib_send_lat -m 2048 -s 5000"), pair("ib_send_lat -m 4096 -s 5000"),
    pair("ib_read_bw -m 256"), pair("ib_read_bw -m 4096"), pair("ib_send_bw -m 256 -c UC"), pair("ib_send_bw -m 256 -s 256 -c UD"),

    // for a time instead of a number, once with a second before and after the measurement
    timed("ib_send_bw -D 3 -f 1"), timed("ib_write_bw -D 1 -f 0"), timed("ib_read_bw -D 1 -f 0"), timed("ib_atomic_bw -D 1 -f 0"),
    timed("ib_send_lat -D 1 -f 0"), timed("ib_write_lat -D 1 -f 0"), timed("ib_read_lat -D 1 -f 0"), timed("ib_atomic_lat -D 1 -f 0"),
    timed("ib_send_bw -D 1 -f 0 -c UD"),

    // shared receive queues, multicast
    pair("ib_send_bw --use-srq"), pair("ib_send_lat --use-srq"), pair("ib_send_bw --use-srq -q 8"),
    pair("ib_send_bw --use-srq -c UD"), pair("ib_send_bw --use-srq -c UC"),
    // perftest's default group is an IPv6 address, which ib_send_bw refuses with an IPv4 GID. These lines name an IPv4 group.
    pair("ib_send_bw -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:1"), pair("ib_send_lat -c UD -g -M 0:0:0:0:0:0:0:0:0:0:255:255:239:1:1:1"),
    pair("ib_send_lat -c UD -g"), pair("ib_send_bw -c UD -g -x {v6}"), pair("ib_send_lat -c UD -g -x {v6}"),

    // IPv6
    pair("ib_send_bw -x {v6}"), pair("ib_send_lat -x {v6}"), pair("ib_write_bw -x {v6}"), pair("ib_write_lat -x {v6}"),
    pair("ib_read_bw -x {v6}"), pair("ib_read_lat -x {v6}"), pair("ib_atomic_bw -x {v6}"), pair("ib_atomic_lat -x {v6}"),
    pair("ib_send_bw -x {v6} -c UD"), pair("ib_send_lat -x {v6} -c UC"), pair("ib_write_bw -x {v6} -c XRC"),
];

impl Case {
    /// Arguments that the harness adds to both sides: the port, and few iterations, because speed is not measured.
    pub(crate) fn additions(&self, port: u16) -> Vec<String> {
        let port = ["-p".to_owned(), port.to_string()];
        let many = match self.kind {
            Kind::Alone | Kind::Watch => return Vec::new(),
            Kind::TimedPair => None,
            // Few iterations: the test runs 23 sizes up to 8 MiB.
            Kind::Pair if self.line.contains(" -a") => Some(5),
            Kind::Pair if self.line.starts_with("ibv_xsrq") => Some(20),
            // perftest requires a multiple of the list length and of the number of queue pairs.
            Kind::Pair if self.line.contains(" -l ") => Some(240),
            // A multiple of 100, the number of requests per completion. Otherwise perftest 4.5 counts too many completions: if
            // some of several queue pairs are ahead, it stops polling before the others are done, and never ends.
            Kind::Pair => Some(300),
        };
        let count = many.into_iter().flat_map(|many: u32| ["-n".to_owned(), many.to_string()]);
        // -F: no warning about processor frequencies.
        let quiet = self.line.starts_with("ib_").then(|| "-F".to_owned());
        port.into_iter().chain(count).chain(quiet).collect()
    }

    /// Time limit on a busy machine. perftest's latency tests calibrate the clock for every size, which takes a quarter of a second on
    /// an idle core.
    pub(crate) fn limit(&self) -> Duration {
        Duration::from_secs(if self.line.contains(" -a") { 400 } else { 120 })
    }
}

impl Proof {
    /// Checks that the output shows success. The error names what is missing.
    pub(crate) fn check(&self, output: &str) -> Result<(), String> {
        match *self {
            Says(text) if output.contains(text) => Ok(()),
            Says(text) => Err(format!("the output lacks {text:?}")),
            Rows(wanted) => match output.lines().filter(|line| is_figures(line)).count() {
                found if found < wanted => {
                    Err(format!("{found} rows of figures, at least {wanted} expected"))
                }
                _ => Ok(()),
            },
        }
    }
}

/// A row of perftest: a size, a number of iterations, and figures of which at least one is positive and finite.
fn is_figures(line: &str) -> bool {
    let numbers: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let is_measured = |figure: &f64| figure.is_finite() && *figure > 0.0;
    numbers.len() >= 4
        && numbers[..2].iter().all(|&count| count >= 1.0)
        && numbers[2..].iter().any(is_measured)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_lines_are_words() {
        let mut lines: Vec<&str> = CASES.iter().map(|case| case.line).collect();
        lines.sort_unstable();
        let before = lines.len();
        lines.dedup();
        assert_eq!(lines.len(), before);
    }

    #[test]
    fn rows_of_perftest_are_recognised() {
        let bandwidth = " 65536      200              0.00               2893.48\t\t   0.046296";
        let latency = " 2       200          4.81           20.11        5.01     \t       5.20        \t0.9            8.00    20.11";
        assert!(is_figures(bandwidth) && is_figures(latency));
        assert!(!is_figures(" 65536      200              0.00               0.00\t\t   0.000"));
        let nothing_measured = [
            " 2       0           inf            0.00",
            " 2       0          5.01    12.50",
            " 2 5 inf 0.00",
        ];
        assert!(!nothing_measured.iter().any(|line| is_figures(line)));
        assert!(!is_figures(
            " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
        ));
        let output = format!("header\n{bandwidth}\n");
        assert_eq!(Rows(1).check(&output), Ok(()));
        assert!(Rows(2).check(&output).is_err());
        assert!(Says("nothing").check(&output).is_err());
    }
}
