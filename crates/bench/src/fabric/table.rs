//! The comparisons and their goals. A round runs the rows in this order, so that a figure and its peer are measured close together.

/// The unit of a figure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unit {
    /// A latency; less is better.
    Microseconds,
    /// A bandwidth.
    MibPerSecond,
    /// A rate of messages.
    MillionPerSecond,
}

impl Unit {
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Self::Microseconds => "µs",
            Self::MibPerSecond => "MiB/s",
            Self::MillionPerSecond => "M/s",
        }
    }

    /// Ratio to the peer; more than 1 is better than the peer.
    pub(crate) fn ratio(self, ours: f64, peer: f64) -> f64 {
        if self == Self::Microseconds { peer / ours } else { ours / peer }
    }
}

/// The link between the two sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Link {
    /// The default of ferroce on one host: shared memory.
    Local,
    /// UDP.
    Udp,
    /// UDP with packets as between two hosts, within the path MTU.
    UdpPathMtu,
    /// UDP, where each side loses one packet of a hundred.
    LossyUdp,
    /// iWARP.
    Iwarp,
    /// iWARP, FPDUs with a CRC.
    IwarpCrc,
}

/// How a figure is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Method {
    /// A perftest program below `ferroce run`, each side on a core of its own.
    Perftest(&'static str, Link),
    /// The sum of the bandwidths of this many concurrent pairs, without pinned cores.
    ConcurrentPairs(&'static str, Link, u16),
    /// A test of ucx_perftest over UCX's own shared memory.
    Ucx(&'static str),
    /// The same over UCX's tcp, with tag messages: puts are several times slower there.
    UcxTcp(&'static str),
    /// Two words in a shared mapping.
    BarePingPong,
    /// Two spinning TCP sockets.
    BareTcp,
    /// Two spinning UDP sockets, by `ferroce perf`.
    BareUdp,
    /// `ferroce perf` with this many threads on each side, not pinned.
    Threads(&'static str, Link, u16),
    /// One TCP stream, with this many bytes per write.
    Iperf3(u32),
}

/// One measurement of a round; several rows may use it.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its unique name in tables.
    pub(crate) name: &'static str,
    pub(crate) method: Method,
    pub(crate) unit: Unit,
}

/// One comparison.
pub(crate) struct Row {
    /// Its stable name in the snapshot.
    pub(crate) id: &'static str,
    pub(crate) ours: &'static Source,
    pub(crate) peer: &'static Source,
    /// The least ratio that reaches the goal. `None` for a row without a goal.
    pub(crate) goal: Option<f64>,
    /// A remark on the goal.
    pub(crate) note: &'static str,
}

use Link::{Iwarp, IwarpCrc, Local, LossyUdp, Udp, UdpPathMtu};
use Method::{BarePingPong, BareTcp, BareUdp, ConcurrentPairs, Iperf3, Perftest, Threads, Ucx, UcxTcp};
use Unit::{MibPerSecond, Microseconds, MillionPerSecond};

/// Each takes about half a second on a quiet machine.
#[rustfmt::skip]
mod sources {
    use super::{BarePingPong, BareTcp, BareUdp, ConcurrentPairs, Iperf3, Iwarp, IwarpCrc, Local, LossyUdp, MibPerSecond, Microseconds, MillionPerSecond, Perftest, Source, Threads, Udp, UdpPathMtu, Ucx, UcxTcp};

    pub(super) static BARE: Source = Source { name: "bare shared-memory ping-pong", method: BarePingPong, unit: Microseconds };
    pub(super) static WRITE_LAT: Source = Source { name: "ib_write_lat 8 B, local", method: Perftest("ib_write_lat -s 8 -n 200000", Local), unit: Microseconds };
    pub(super) static PUT_LAT: Source = Source { name: "UCX put latency 8 B", method: Ucx("ucp_put_lat -s 8 -n 500000 -w 10000"), unit: Microseconds };
    pub(super) static READ_LAT: Source = Source { name: "ib_read_lat 8 B, local", method: Perftest("ib_read_lat -s 8 -n 200000", Local), unit: Microseconds };
    pub(super) static ATOMIC_LAT: Source = Source { name: "ib_atomic_lat, local", method: Perftest("ib_atomic_lat -n 200000", Local), unit: Microseconds };
    pub(super) static SEND_LAT: Source = Source { name: "ib_send_lat 8 B, local", method: Perftest("ib_send_lat -s 8 -n 200000", Local), unit: Microseconds };
    pub(super) static TAG_LAT: Source = Source { name: "UCX tag latency 8 B", method: Ucx("tag_lat -s 8 -n 200000 -w 10000"), unit: Microseconds };
    pub(super) static WRITE_64K: Source = Source { name: "ib_write_bw 64 KiB, local", method: Perftest("ib_write_bw -s 65536 -n 100000 -N", Local), unit: MibPerSecond };
    pub(super) static PUT_64K: Source = Source { name: "UCX put bandwidth 64 KiB", method: Ucx("ucp_put_bw -s 65536 -n 100000 -w 1000"), unit: MibPerSecond };
    pub(super) static SEND_64K: Source = Source { name: "ib_send_bw 64 KiB, local", method: Perftest("ib_send_bw -s 65536 -n 50000 -N", Local), unit: MibPerSecond };
    pub(super) static TAG_64K: Source = Source { name: "UCX tag bandwidth 64 KiB", method: Ucx("tag_bw -s 65536 -n 50000 -w 1000"), unit: MibPerSecond };
    pub(super) static SEND_1M: Source = Source { name: "ib_send_bw 1 MiB, local", method: Perftest("ib_send_bw -s 1048576 -n 4000 -N", Local), unit: MibPerSecond };
    pub(super) static TAG_1M: Source = Source { name: "UCX tag bandwidth 1 MiB", method: Ucx("tag_bw -s 1048576 -n 4000 -w 100"), unit: MibPerSecond };
    pub(super) static WRITE_RATE: Source = Source { name: "ib_write_bw 8 B, post list of 32, local", method: Perftest("ib_write_bw -s 8 -l 32 -n 3000000 -N", Local), unit: MillionPerSecond };
    pub(super) static PUT_RATE: Source = Source { name: "UCX put rate 8 B", method: Ucx("ucp_put_bw -s 8 -n 10000000 -w 10000"), unit: MillionPerSecond };
    pub(super) static UDP_SEND_LAT: Source = Source { name: "ib_send_lat 8 B, UDP", method: Perftest("ib_send_lat -s 8 -n 50000", Udp), unit: Microseconds };
    pub(super) static UDP_BARE: Source = Source { name: "bare spinning UDP ping-pong", method: BareUdp, unit: Microseconds };
    pub(super) static TCP_TAG_LAT: Source = Source { name: "UCX tag latency 8 B, tcp", method: UcxTcp("tag_lat -s 8 -n 20000 -w 1000"), unit: Microseconds };
    pub(super) static TCP_TAG_1M: Source = Source { name: "UCX tag bandwidth 1 MiB, tcp", method: UcxTcp("tag_bw -s 1048576 -n 1500 -w 100"), unit: MibPerSecond };
    pub(super) static TCP: Source = Source { name: "iperf3, one TCP stream", method: Iperf3(131_072), unit: MibPerSecond };
    pub(super) static UDP_WRITE_1M: Source = Source { name: "ib_write_bw 1 MiB, UDP", method: Perftest("ib_write_bw -s 1048576 -n 2000 -N", Udp), unit: MibPerSecond };
    pub(super) static UDP_MTU_1M: Source = Source { name: "ib_write_bw 1 MiB, UDP, path MTU", method: Perftest("ib_write_bw -s 1048576 -n 2000 -N", UdpPathMtu), unit: MibPerSecond };
    pub(super) static UDP_LOSSY_1M: Source = Source { name: "ib_write_bw 1 MiB, UDP, 1 % loss", method: Perftest("ib_write_bw -s 1048576 -n 2000 -N", LossyUdp), unit: MibPerSecond };
    pub(super) static IWARP_WRITE_1M: Source = Source { name: "ib_write_bw 1 MiB, iWARP", method: Perftest("ib_write_bw -R -s 1048576 -n 2000 -N", Iwarp), unit: MibPerSecond };
    pub(super) static IWARP_CRC_1M: Source = Source { name: "ib_write_bw 1 MiB, iWARP, CRC", method: Perftest("ib_write_bw -R -s 1048576 -n 2000 -N", IwarpCrc), unit: MibPerSecond };
    pub(super) static IWARP_SEND_LAT: Source = Source { name: "ib_send_lat 8 B, iWARP", method: Perftest("ib_send_lat -R -s 8 -n 50000", Iwarp), unit: Microseconds };
    pub(super) static TCP_BARE: Source = Source { name: "bare spinning TCP ping-pong", method: BareTcp, unit: Microseconds };
    // One request per call, the default of programs.
    pub(super) static SEND_RATE: Source = Source { name: "ib_send_bw 64 B, local", method: Perftest("ib_send_bw -s 64 -n 1000000", Local), unit: MillionPerSecond };
    pub(super) static TAG_RATE: Source = Source { name: "UCX tag rate 64 B", method: Ucx("tag_bw -s 64 -n 2000000 -w 10000"), unit: MillionPerSecond };
    pub(super) static UDP_WRITE_64: Source = Source { name: "ib_write_bw 64 B, UDP", method: Perftest("ib_write_bw -s 64 -n 500000", Udp), unit: MillionPerSecond };
    pub(super) static UDP_SEND_64: Source = Source { name: "ib_send_bw 64 B, UDP", method: Perftest("ib_send_bw -s 64 -n 500000", Udp), unit: MillionPerSecond };
    pub(super) static TCP_64: Source = Source { name: "iperf3, writes of 64 B", method: Iperf3(64), unit: MillionPerSecond };
    pub(super) static UDP_WRITE_4K: Source = Source { name: "ib_write_bw 4 KiB, UDP", method: Perftest("ib_write_bw -s 4096 -n 300000", Udp), unit: MibPerSecond };
    pub(super) static TCP_4K: Source = Source { name: "iperf3, writes of 4 KiB", method: Iperf3(4096), unit: MibPerSecond };
    pub(super) static UDP_WRITE_64K: Source = Source { name: "ib_write_bw 64 KiB, UDP", method: Perftest("ib_write_bw -s 65536 -n 30000", Udp), unit: MibPerSecond };
    pub(super) static UDP_READ_64K: Source = Source { name: "ib_read_bw 64 KiB, UDP", method: Perftest("ib_read_bw -s 65536 -n 30000", Udp), unit: MibPerSecond };
    pub(super) static TCP_64K: Source = Source { name: "iperf3, writes of 64 KiB", method: Iperf3(65_536), unit: MibPerSecond };
    pub(super) static UDP_WRITE_LAT: Source = Source { name: "ib_write_lat 8 B, UDP", method: Perftest("ib_write_lat -s 8 -n 20000", Udp), unit: Microseconds };
    // The goals of threads apply to sixteen cores. On two cores, eight threads must not be slower than one.
    pub(super) static THREAD_1: Source = Source { name: "SEND 64 B, one thread, local", method: Threads("send-bw -s 64", Local, 1), unit: MillionPerSecond };
    pub(super) static THREADS_8: Source = Source { name: "SEND 64 B, 8 threads, local", method: Threads("send-bw -s 64", Local, 8), unit: MillionPerSecond };
    pub(super) static UDP_THREAD_1: Source = Source { name: "SEND 64 B, one thread, UDP", method: Threads("send-bw -s 64", Udp, 1), unit: MillionPerSecond };
    pub(super) static UDP_THREADS_8: Source = Source { name: "SEND 64 B, 8 threads, UDP", method: Threads("send-bw -s 64", Udp, 8), unit: MillionPerSecond };
    // perftest counts the middle of its duration, in which all pairs run concurrently. So the sum of their bandwidths is valid.
    pub(super) static ONE_LOCAL: Source = Source { name: "ib_write_bw 64 KiB, one QP, local", method: ConcurrentPairs("ib_write_bw -s 65536 -D 3 -f 1", Local, 1), unit: MibPerSecond };
    pub(super) static MANY_LOCAL: Source = Source { name: "ib_write_bw 64 KiB, 64 QPs of 8 clients, local", method: ConcurrentPairs("ib_write_bw -s 65536 -D 3 -f 1 -q 8", Local, 8), unit: MibPerSecond };
    pub(super) static ONE_UDP: Source = Source { name: "ib_write_bw 64 KiB, one QP, UDP", method: ConcurrentPairs("ib_write_bw -s 65536 -D 3 -f 1", Udp, 1), unit: MibPerSecond };
    pub(super) static MANY_UDP: Source = Source { name: "ib_write_bw 64 KiB, 64 QPs of 8 clients, UDP", method: ConcurrentPairs("ib_write_bw -s 65536 -D 3 -f 1 -q 8", Udp, 8), unit: MibPerSecond };
}
use sources::*;

/// The rows. The goal 1/n allows a latency of n times the peer's.
#[rustfmt::skip]
static ROWS: [Row; 30] = [
    Row { id: "write-lat-8/ucx-put", ours: &WRITE_LAT, peer: &PUT_LAT, goal: Some(1.0), note: "" },
    Row { id: "write-lat-8/bare", ours: &WRITE_LAT, peer: &BARE, goal: Some(1.0 / 1.3), note: "aim: no worse than 1.3 ×" },
    Row { id: "read-lat-8/bare", ours: &READ_LAT, peer: &BARE, goal: Some(0.5), note: "no worse than 2 ×" },
    Row { id: "atomic-lat/bare", ours: &ATOMIC_LAT, peer: &BARE, goal: Some(0.5), note: "no worse than 2 ×" },
    Row { id: "send-lat-8/ucx-tag", ours: &SEND_LAT, peer: &TAG_LAT, goal: Some(1.3), note: "" },
    Row { id: "write-bw-64k/ucx-put", ours: &WRITE_64K, peer: &PUT_64K, goal: Some(1.0), note: "" },
    Row { id: "send-bw-64k/ucx-tag", ours: &SEND_64K, peer: &TAG_64K, goal: Some(1.2), note: "" },
    Row { id: "send-bw-1m/ucx-tag", ours: &SEND_1M, peer: &TAG_1M, goal: Some(1.2), note: "" },
    Row { id: "write-rate-8/ucx-put", ours: &WRITE_RATE, peer: &PUT_RATE, goal: Some(0.8), note: "aim: 1 ×" },
    Row { id: "udp-send-lat-8/bare-udp", ours: &UDP_SEND_LAT, peer: &UDP_BARE, goal: Some(0.8), note: "no worse than 1.25 ×" },
    Row { id: "udp-send-lat-8/ucx-tcp", ours: &UDP_SEND_LAT, peer: &TCP_TAG_LAT, goal: None, note: "" },
    Row { id: "udp-write-bw-1m/tcp", ours: &UDP_WRITE_1M, peer: &TCP, goal: Some(1.2), note: "" },
    Row { id: "udp-mtu-write-bw-1m/tcp", ours: &UDP_MTU_1M, peer: &TCP, goal: None, note: "" },
    Row { id: "udp-write-bw-1m/ucx-tcp", ours: &UDP_WRITE_1M, peer: &TCP_TAG_1M, goal: None, note: "" },
    Row { id: "iwarp-write-bw-1m/tcp", ours: &IWARP_WRITE_1M, peer: &TCP, goal: Some(0.95), note: "" },
    Row { id: "iwarp-crc-write-bw-1m/tcp", ours: &IWARP_CRC_1M, peer: &TCP, goal: Some(0.75), note: "" },
    Row { id: "iwarp-send-lat-8/bare-tcp", ours: &IWARP_SEND_LAT, peer: &TCP_BARE, goal: Some(1.0 / 1.2), note: "no worse than 1.2 ×" },
    Row { id: "send-rate-64/ucx-tag", ours: &SEND_RATE, peer: &TAG_RATE, goal: Some(1.5), note: "" },
    Row { id: "udp-write-64/tcp", ours: &UDP_WRITE_64, peer: &TCP_64, goal: Some(0.7), note: "" },
    Row { id: "udp-send-64/tcp", ours: &UDP_SEND_64, peer: &TCP_64, goal: None, note: "" },
    Row { id: "udp-write-4k/tcp", ours: &UDP_WRITE_4K, peer: &TCP_4K, goal: Some(0.9), note: "" },
    Row { id: "udp-write-64k/tcp", ours: &UDP_WRITE_64K, peer: &TCP_64K, goal: Some(0.9), note: "" },
    Row { id: "udp-read-64k/write", ours: &UDP_READ_64K, peer: &UDP_WRITE_64K, goal: Some(0.9), note: "" },
    Row { id: "udp-write-lat-8/send", ours: &UDP_WRITE_LAT, peer: &UDP_SEND_LAT, goal: Some(1.0 / 1.5), note: "no worse than 1.5 ×" },
    Row { id: "udp-loss-1/no-loss", ours: &UDP_LOSSY_1M, peer: &UDP_MTU_1M, goal: Some(0.7), note: "" },
    Row { id: "udp-loss-1/jumbo", ours: &UDP_LOSSY_1M, peer: &UDP_WRITE_1M, goal: None, note: "" },
    Row { id: "qps-64/one-qp", ours: &MANY_LOCAL, peer: &ONE_LOCAL, goal: Some(1.0), note: "" },
    Row { id: "udp-qps-64/one-qp", ours: &MANY_UDP, peer: &ONE_UDP, goal: Some(1.0), note: "" },
    Row { id: "threads-8/one-thread", ours: &THREADS_8, peer: &THREAD_1, goal: Some(1.0), note: "6 × on sixteen cores" },
    Row { id: "udp-threads-8/one-thread", ours: &UDP_THREADS_8, peer: &UDP_THREAD_1, goal: Some(1.0), note: "6 × on sixteen cores" },
];

/// The rows with one of the words in a name; all rows for an empty filter.
pub(crate) fn rows(filter: &[String]) -> Vec<&'static Row> {
    let has =
        |row: &Row, word: &str| [row.id, row.ours.name, row.peer.name].iter().any(|name| name.contains(word));
    ROWS.iter().filter(|row| filter.is_empty() || filter.iter().any(|word| has(row, word))).collect()
}

/// The sources of the rows, each once, in their order.
pub(crate) fn sources(rows: &[&'static Row]) -> Vec<&'static Source> {
    let mut all: Vec<&Source> = Vec::new();
    for source in rows.iter().flat_map(|row| [row.ours, row.peer]) {
        if !all.iter().any(|known| known.name == source.name) {
            all.push(source);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_compare_like_with_like_under_names_of_their_own() {
        assert!(ROWS.iter().all(|row| row.ours.unit == row.peer.unit));
        let mut ids: Vec<&str> = ROWS.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), ROWS.len());
    }

    #[test]
    fn sources_that_share_a_name_are_one() {
        for one in sources(&rows(&[])) {
            for row in ROWS.iter().flat_map(|row| [row.ours, row.peer]) {
                assert_eq!(one.name == row.name, std::ptr::eq(one, row), "{}", one.name);
            }
        }
    }

    #[test]
    fn a_filter_chooses_rows() {
        let count =
            |filter: &[&str]| rows(&filter.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).len();
        assert_eq!(
            [count(&[]), count(&["iperf3"]), count(&["qps-64"]), count(&["nothing"])],
            [ROWS.len(), 8, 2, 0]
        );
        assert_eq!(sources(&rows(&["bare shared".to_owned()])).len(), 4);
    }

    #[test]
    fn a_ratio_above_one_is_better() {
        assert_eq!(Unit::Microseconds.ratio(2.0, 4.0), 2.0);
        assert_eq!(Unit::MibPerSecond.ratio(2.0, 4.0), 0.5);
    }
}
