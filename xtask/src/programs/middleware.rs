//! Middleware on ferroce: UCX, Open MPI, MPICH, libfabric, qperf and fio, each with both of its sides, as Debian packages them.
//!
//! `UCX_TLS` restricts UCX to the device. `ferroce run --explain` prints the number of packets, which must show that the data
//! went through ferroce.

use std::process::Command;

use serde_json::Value;

use super::explained::{self, LIMIT, Ports, Session, carried, contains};
use super::session::{Launcher, Program, is_listening};
use crate::tools::{not_installed, which};

/// One row: the programs, and the output of a success.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    kind: Kind,
}

enum Kind {
    /// A single program, and the texts that its output must contain.
    Alone(&'static str, &'static [&'static str]),
    /// ucx_perftest over these transports: the test, once for each size.
    Ucx(&'static str, &'static str, &'static [u32]),
    /// The same with two threads on each side, which share a context of UCX and have a worker each.
    UcxThreads(&'static str, &'static str, &'static [u32]),
    /// ucx_perftest on one transport without the protocols above it: the test, once with each of these options. Atomics are
    /// the device's own here, where `Ucx` makes them of messages, because RoCE has no swap.
    Uct(&'static str, &'static str, &'static [&'static str]),
    /// Our program for this MPI, on so many ranks, over these transports of UCX.
    Mpi(&'static MpiLibrary, u32, &'static str),
    /// qperf with these options: a server, and these tests one after the other.
    Qperf(&'static str, &'static [&'static str]),
    /// fi_pingpong over this provider, with endpoints of this kind, all sizes, every byte compared.
    Fabric(&'static str, &'static str),
    /// fio with this verb, these options of both sides, and this depth of the server's queue.
    Fio(&'static str, &'static str, u32),
}

use Kind::{Alone, Fabric, Fio, Mpi, Qperf, Uct, Ucx, UcxThreads};

/// How an MPI compiles and starts programs.
struct MpiLibrary {
    compiler: &'static str,
    /// What its headers need.
    flags: &'static str,
    /// `{ranks}` and the program follow from the case.
    start: &'static str,
    packages: &'static str,
}

/// Two variables allow root. More ranks than processors are intended.
const OPEN_MPI: MpiLibrary = MpiLibrary {
    compiler: "mpicc.openmpi",
    flags: "-Wextra",
    start: "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun.openmpi -n {ranks} --oversubscribe --bind-to none \
            --mca pml ucx --mca osc ucx --mca btl ^openib",
    packages: "openmpi-bin libopenmpi-dev",
};
/// The flag suppresses a warning: MPI_STATUSES_IGNORE looks like an array that is too short. `NOLOCAL` disables its shared memory.
const MPICH: MpiLibrary = MpiLibrary {
    compiler: "mpicc.mpich",
    flags: "-Wno-stringop-overflow",
    start: "mpirun.mpich -n {ranks} -genv MPIR_CVAR_NOLOCAL 1",
    packages: "mpich libmpich-dev",
};

const fn case(name: &'static str, kind: Kind) -> Case {
    Case { name, kind }
}

/// UCX establishes reliable connections by datagrams, so it needs the auxiliary transport. Its alias `rc_v` means the same.
const RC: &str = "rc_verbs,ud_verbs:aux";
const UD: &str = "ud_verbs";
/// Inline, one packet, and large: each is another protocol of UCX.
const SIZES: &[u32] = &[8, 4000, 300_000];
/// Inline, copied, zero-copy.
const LAYOUTS: &[&str] = &["-D short -s 8", "-D bcopy -s 2000", "-D zcopy -s 3000"];
/// Atomics have one size.
const WORD: &[u32] = &[8];

/// Every row.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    case("ucx_info -d", Alone("ucx_info -d", &["Device: ferroce0:1", "Transport: rc_verbs", "Transport: ud_verbs"])),

    case("ucx rc_verbs tag_lat", Ucx(RC, "tag_lat", SIZES)), case("ucx rc_verbs tag_bw", Ucx(RC, "tag_bw", SIZES)),
    case("ucx rc_verbs tag_sync_lat", Ucx(RC, "tag_sync_lat", SIZES)),
    case("ucx rc_verbs ucp_put_lat", Ucx(RC, "ucp_put_lat", SIZES)), case("ucx rc_verbs ucp_put_bw", Ucx(RC, "ucp_put_bw", SIZES)),
    case("ucx rc_verbs ucp_get", Ucx(RC, "ucp_get", SIZES)),
    case("ucx rc_verbs ucp_add", Ucx(RC, "ucp_add", WORD)), case("ucx rc_verbs ucp_fadd", Ucx(RC, "ucp_fadd", WORD)),
    case("ucx rc_verbs ucp_swap", Ucx(RC, "ucp_swap", WORD)), case("ucx rc_verbs ucp_cswap", Ucx(RC, "ucp_cswap", WORD)),
    case("ucx rc_verbs stream_lat", Ucx(RC, "stream_lat", SIZES)), case("ucx rc_verbs stream_bw", Ucx(RC, "stream_bw", SIZES)),
    case("ucx rc_verbs ucp_am_lat", Ucx(RC, "ucp_am_lat", SIZES)), case("ucx rc_verbs ucp_am_bw", Ucx(RC, "ucp_am_bw", SIZES)),

    case("ucx ud_verbs tag_lat", Ucx(UD, "tag_lat", SIZES)), case("ucx ud_verbs tag_bw", Ucx(UD, "tag_bw", SIZES)),
    case("ucx ud_verbs ucp_put_lat", Ucx(UD, "ucp_put_lat", SIZES)), case("ucx ud_verbs ucp_get", Ucx(UD, "ucp_get", SIZES)),
    case("ucx ud_verbs ucp_add", Ucx(UD, "ucp_add", WORD)), case("ucx ud_verbs ucp_fadd", Ucx(UD, "ucp_fadd", WORD)),
    case("ucx ud_verbs ucp_swap", Ucx(UD, "ucp_swap", WORD)), case("ucx ud_verbs ucp_cswap", Ucx(UD, "ucp_cswap", WORD)),
    case("ucx ud_verbs stream_lat", Ucx(UD, "stream_lat", SIZES)), case("ucx ud_verbs stream_bw", Ucx(UD, "stream_bw", SIZES)),
    case("ucx ud_verbs ucp_am_lat", Ucx(UD, "ucp_am_lat", SIZES)), case("ucx ud_verbs ucp_am_bw", Ucx(UD, "ucp_am_bw", SIZES)),

    case("ucx rc_verbs tag_lat, threads", UcxThreads(RC, "tag_lat", SIZES)), case("ucx rc_verbs tag_bw, threads", UcxThreads(RC, "tag_bw", SIZES)),
    case("ucx rc_verbs ucp_put_bw, threads", UcxThreads(RC, "ucp_put_bw", SIZES)), case("ucx ud_verbs tag_bw, threads", UcxThreads(UD, "tag_bw", SIZES)),

    case("uct rc_verbs am_lat", Uct("rc_verbs", "am_lat", LAYOUTS)), case("uct rc_verbs am_bw", Uct("rc_verbs", "am_bw", LAYOUTS)),
    case("uct rc_verbs put_lat", Uct("rc_verbs", "put_lat", LAYOUTS)), case("uct rc_verbs put_bw", Uct("rc_verbs", "put_bw", LAYOUTS)),
    case("uct rc_verbs get", Uct("rc_verbs", "get", &["-D bcopy -s 2000", "-D zcopy -s 100000"])),
    case("uct rc_verbs add_lat", Uct("rc_verbs", "add_lat", &["-s 8"])), case("uct rc_verbs add_mr", Uct("rc_verbs", "add_mr", &["-s 8"])),
    case("uct rc_verbs fadd", Uct("rc_verbs", "fadd", &["-s 8"])), case("uct rc_verbs cswap", Uct("rc_verbs", "cswap", &["-s 8"])),
    case("uct ud_verbs am_lat", Uct("ud_verbs", "am_lat", LAYOUTS)), case("uct ud_verbs am_bw", Uct("ud_verbs", "am_bw", LAYOUTS)),

    // A rank that sends to itself needs `self`.
    case("mpirun -n 2, rc_verbs", Mpi(&OPEN_MPI, 2, "rc_verbs,ud_verbs:aux,self")), case("mpirun -n 4, rc_verbs", Mpi(&OPEN_MPI, 4, "rc_verbs,ud_verbs:aux,self")),
    case("mpirun -n 2, ud_verbs", Mpi(&OPEN_MPI, 2, "ud_verbs,self")), case("mpirun -n 4, ud_verbs", Mpi(&OPEN_MPI, 4, "ud_verbs,self")),

    case("mpirun.mpich -n 2, rc_verbs", Mpi(&MPICH, 2, "rc_verbs,ud_verbs:aux,self")), case("mpirun.mpich -n 2, ud_verbs", Mpi(&MPICH, 2, "ud_verbs,self")),

    case("qperf rc", Qperf("", &[
        "rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_lat", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat",
        "rc_rdma_write_bw", "rc_compare_swap_mr", "rc_fetch_add_mr", "ver_rc_compare_swap", "ver_rc_fetch_add",
    ])),
    case("qperf uc", Qperf("", &["uc_lat", "uc_bw", "uc_bi_bw", "uc_rdma_write_lat", "uc_rdma_write_poll_lat", "uc_rdma_write_bw"])),
    case("qperf ud", Qperf("", &["ud_lat", "ud_bw", "ud_bi_bw"])),
    case("qperf rc, rdma_cm", Qperf("-cm1", &[
        "rc_lat", "rc_bw", "rc_bi_bw", "rc_rdma_read_lat", "rc_rdma_read_bw", "rc_rdma_write_lat", "rc_rdma_write_bw",
        "rc_compare_swap_mr", "rc_fetch_add_mr",
    ])),
    case("qperf rc, polling", Qperf("-cp1", &["rc_lat", "rc_bw", "rc_rdma_read_lat", "rc_rdma_write_lat"])),

    case("fi_info -p verbs", Alone("fi_info -p verbs", &["domain: ferroce0\n", "domain: ferroce0-dgram\n", "FI_EP_MSG", "FI_EP_DGRAM", "verbs;ofi_rxm"])),
    case("fi_pingpong verbs msg", Fabric("verbs", "msg")), case("fi_pingpong verbs;ofi_rxm rdm", Fabric("verbs;ofi_rxm", "rdm")),
    case("fi_pingpong verbs dgram", Fabric("verbs", "dgram")), case("fi_pingpong verbs;ofi_rxd rdm", Fabric("verbs;ofi_rxd", "rdm")),

    // fio refuses random orders for this engine; with a depth, READs and WRITEs go to the server's buffers in random order.
    // Only the receiver of SENDs checks the data. It needs a posted receive for each: fio's servers allow no RNR retries.
    case("fio --verb=write", Fio("write", "--iodepth=1", 1)), case("fio --verb=read", Fio("read", "--iodepth=1", 1)),
    case("fio --verb=write, random buffers", Fio("write", "--iodepth=16", 16)),
    case("fio --verb=read, random buffers", Fio("read", "--iodepth=16", 16)),
    case("fio --verb=send, verified", Fio("send", "--iodepth=16 --verify=crc32c --do_verify=0", 128)),
];

const PORTS: Ports = Ports { first: 24_000, per_case: 8 };
const ITERATIONS: u64 = 100;
const MPI_SOURCE: &str = include_str!("mpi.c");

impl Case {
    /// The program that must be there, and the package that brings it.
    fn needs(&self) -> (&'static str, &'static str) {
        match self.kind {
            Alone("ucx_info -d", _) => ("ucx_info", "ucx-utils"),
            Alone(..) => ("fi_info", "libfabric-bin"),
            Ucx(..) | UcxThreads(..) | Uct(..) => ("ucx_perftest", "ucx-utils"),
            Mpi(library, ..) => (library.compiler, library.packages),
            Qperf(..) => ("qperf", "qperf"),
            Fabric(..) => ("fi_pingpong", "libfabric-bin"),
            Fio(..) => ("fio", "fio"),
        }
    }
}

/// Why a row cannot run on this machine.
pub(crate) fn obstacle(name: &str) -> Option<String> {
    let (program, package) = CASES.iter().find(|case| case.name == name)?.needs();
    which(program).is_none().then(|| not_installed(program, package))
}

/// Runs a row in the worker.
pub(crate) fn run(launcher: &Launcher, name: &str) -> Value {
    explained::run(launcher, name, (CASES, |case| case.name), &PORTS, |session, case, tails| {
        match case.kind {
            Alone(line, says) => contains(&session.alone(name, line, tails)?, says),
            Ucx(tls, test, sizes) => session.ucx(tls, "", test, sizes, tails),
            UcxThreads(tls, test, sizes) => session.ucx(tls, "-M multi -T 2", test, sizes, tails),
            Uct(transport, test, options) => session.uct(transport, test, options, tails),
            Mpi(library, ranks, tls) => session.mpi(library, ranks, tls, tails),
            Qperf(options, tests) => session.qperf(options, tests, tails),
            Fabric(provider, kind) => session.fabric(provider, kind, tails),
            Fio(verb, options, depth) => session.fio(verb, options, depth, tails),
        }
    })
}

impl Session<'_> {
    fn ucx(
        &self,
        tls: &str,
        options: &str,
        test: &str,
        sizes: &[u32],
        tails: &mut Vec<String>,
    ) -> Result<(), String> {
        let front = format!("env UCX_TLS={tls} ucx_perftest {options}");
        let rounds = sizes.iter().map(|size| format!("-t {test} -s {size}")).collect();
        self.perftest(&front, rounds, tails)
    }

    fn uct(
        &self,
        transport: &str,
        test: &str,
        options: &[&str],
        tails: &mut Vec<String>,
    ) -> Result<(), String> {
        let round = |options: &&str| format!("-d ferroce0:1 -x {transport} -t {test} {options}");
        self.perftest("ucx_perftest", options.iter().map(round).collect(), tails)
    }

    fn perftest(&self, front: &str, rounds: Vec<String>, tails: &mut Vec<String>) -> Result<(), String> {
        for (round, port) in rounds.iter().zip(self.port..) {
            let server = format!("{front} -p {port}");
            let client = format!("{server} 127.0.0.1 {round} -n {ITERATIONS} -w 10");
            tails.clear();
            let [_, output] = self.pair(|_| is_listening(port), [&server, &client], tails)?;
            if !has_final_row(&output) {
                return Err(format!("no final row of {ITERATIONS} iterations for {round}"));
            }
        }
        Ok(())
    }

    fn mpi(
        &self,
        library: &MpiLibrary,
        ranks: u32,
        tls: &str,
        tails: &mut Vec<String>,
    ) -> Result<(), String> {
        let name = self.name.replace([' ', ','], "_");
        let (source, program) = (format!("{name}.c"), format!("./{name}"));
        let folder = &self.launcher.logs;
        std::fs::write(folder.join(&source), MPI_SOURCE).map_err(|error| format!("{source}: {error}"))?;
        let mut cc = Command::new(library.compiler);
        cc.args(["-O2", "-Wall", "-Werror", library.flags, "-o", &program, &source]).current_dir(folder);
        Program::of(cc, folder, &format!("{} {name}", library.compiler))?.finish(LIMIT)?;
        let start = library.start.replace("{ranks}", &ranks.to_string());
        let line = format!("env UCX_TLS={tls} {start} {program}");
        let output = self.alone(self.name, &line, tails)?;
        contains(&output, &[&format!("{ranks} ranks, ")])?;
        // The ring test alone moves 3 MiB: by SENDs in packets of at most 4 KiB, or by READs of at most a message.
        carried(&output, 256 * u64::from(ranks))
    }

    fn qperf(&self, options: &str, tests: &[&str], tails: &mut Vec<String>) -> Result<(), String> {
        let port = self.port;
        let server = format!("qperf -lp {port}");
        // qperf's option for a number of messages hangs, over TCP too. One second is its shortest duration.
        let client = format!("qperf -lp {port} {options} -t 1 127.0.0.1 {} quit", tests.join(" "));
        let [_, output] = self.pair(|_| is_listening(port), [&server, &client], tails)?;
        match tests.iter().find(|test| !is_measured(&output, test)) {
            Some(test) => Err(format!("no figure for {test}")),
            None => Ok(()),
        }
    }
}

impl Session<'_> {
    fn fabric(&self, provider: &str, kind: &str, tails: &mut Vec<String>) -> Result<(), String> {
        let port = self.port;
        let base = format!("fi_pingpong -p {provider} -e {kind} -c -I {ITERATIONS}");
        let (server, client) = (format!("{base} -B {port}"), format!("{base} -P {port} 127.0.0.1"));
        let [_, output] = self.pair(|_| is_listening(port), [&server, &client], tails)?;
        // 64 B, 256 B, 1 KiB, 4 KiB; 64 KiB and 1 MiB where a message may be longer than a packet.
        let wanted = if kind == "dgram" { 4 } else { 6 };
        let found = output.lines().filter(|line| line.contains(&format!(" ={ITERATIONS} "))).count();
        if found < wanted {
            return Err(format!("{found} rows of figures, at least {wanted} expected"));
        }
        Ok(())
    }

    fn fio(&self, verb: &str, options: &str, depth: u32, tails: &mut Vec<String>) -> Result<(), String> {
        // With `--thread`, because a child process of fio runs no exit handlers, which write the device's report.
        let base = format!("fio --ioengine=rdma --thread --port={} --bs=16k --size=1m {options}", self.port);
        let server = format!("{base} --name=server --rw=read --iodepth={depth}");
        let client = format!("{base} --name=client --rw=write --hostname=127.0.0.1 --verb={verb}");
        let ready = |server: &Program| server.output().contains("waiting for connection");
        for output in self.pair(ready, [&server, &client], tails)? {
            if !output.contains("err= 0") {
                return Err("fio does not say that there was no error".to_owned());
            }
        }
        Ok(())
    }
}

/// The final row of ucx_perftest has iterations, three times, two bandwidths, two rates; with threads, one of each.
fn has_final_row(output: &str) -> bool {
    let row = output.lines().rev().find_map(|line| line.trim().strip_prefix("Final:")).unwrap_or_default();
    let figures: Vec<f64> = row.split_whitespace().map_while(|word| word.parse().ok()).collect();
    matches!(figures[..], [count, _, _, rate] | [count, _, _, _, _, _, rate, _] if count >= ITERATIONS as f64 && rate > 0.0)
}

/// Under the name of the test qperf prints `latency = 12.3 us` or the like.
fn is_measured(output: &str, test: &str) -> bool {
    let mut lines = output.lines().skip_while(|line| line.trim() != format!("{test}:")).skip(1);
    lines.next().is_some_and(|line| match line.split_once('=') {
        Some((_, figure)) => figure
            .split_whitespace()
            .next()
            // qperf prints thousands separators.
            .and_then(|word| word.replace(',', "").parse::<f64>().ok())
            .is_some_and(|value| value > 0.0),
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_ucx_are_recognised() {
        let row = "Final:                   100      6.720  1506.760  1506.760        0.01       0.01         664         664";
        assert!(has_final_row(row));
        assert!(has_final_row("Final:    100       99.555       76.64       20090"), "of threads");
        assert!(!has_final_row("Final:  50  1 1 1 1 1 1 1"), "too few iterations");
        assert!(!has_final_row("[thread 0]  100 6.7 15.7 15.7 0.01 0.01 664 664"));
    }

    #[test]
    fn figures_of_qperf_are_recognised() {
        let output =
            "rc_lat:\n    latency  =  11.6 us\nrc_bw:\n    bw  =  0 bytes/sec\nud_lat:\nud_lat: failed\n";
        assert!(is_measured("rc_rdma_read_bw:\n    bw  =  1,000 MB/sec\n", "rc_rdma_read_bw"));
        assert!(is_measured(output, "rc_lat"));
        assert!(!is_measured(output, "rc_bw"));
        assert!(!is_measured(output, "ud_lat"));
        assert!(!is_measured(output, "uc_lat"));
    }
}
