//! Every program with every number of processes over every transport; rows and tallies.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::programs::{self, Built, named};
use super::worker::{Circumstance, Request, Worker};
use crate::programs::network;
use crate::programs::verdict::{self, Row, Verdict};
use crate::selection::name_of;
use crate::step::Report;

/// Numbers of processes: one, two, and more than most test machines have cores.
const PROCESSES: [u32; 4] = [1, 2, 4, 8];
/// As `ferroce dsm run --transport` spells them.
pub const TRANSPORTS: [&str; 4] = ["local", "rdma", "rdma-msg", "udp"];
/// No transport is selected: one-sided operations between hosts, and shared pages on each host.
pub(super) const BY_ITSELF: &str = "auto";
/// Programs that also run under loss, over two hosts, with a small cache and with other switches, with four processes. Together they
/// have every kind of traffic.
const HARDENED: [&str; 7] = ["mm", "lu", "sor", "counter", "messages", "sharing", "threads"];
const HARDENED_PROCESSES: u32 = 4;
/// By default every program runs with this number of processes only. [`EXAMPLE`] runs with all numbers and in all circumstances.
const USUAL_PROCESSES: u32 = 4;
const EXAMPLE: &str = "sor";
/// Runs that mpirun and srun also start.
const LAUNCHED: [(&str, u32, &str); 3] =
    [("counter", 2, "local"), ("sor", 4, "rdma"), ("messages", 4, "udp")];
/// Time limits of one run, and of all runs together.
const LIMIT_S: u64 = 30;
const LIMIT_OF_ALL: Duration = Duration::from_secs(240);

/// A planned run.
pub(crate) struct Run {
    program: &'static str,
    processes: u32,
    transport: &'static str,
    circumstance: Circumstance,
}

impl Run {
    /// Whether it differs from another run only in the number of processes or the program. Such runs need `--full`.
    pub(super) fn is_variation(&self) -> bool {
        let is_usual = match self.circumstance {
            Circumstance::Plain => self.processes == USUAL_PROCESSES,
            Circumstance::Mpirun | Circumstance::Srun => true,
            _ => false,
        };
        !is_usual && self.program != EXAMPLE
    }

    /// `sor 4 udp`, `sor 4 udp two-hosts`
    pub(crate) fn name(&self) -> String {
        let name = format!("{} {} {}", self.program, self.processes, self.transport);
        match self.circumstance {
            Circumstance::Plain => name,
            harder => format!("{name} {}", name_of(harder)),
        }
    }
}

/// All runs that match the filter, ordered by program.
pub(crate) fn runs(filter: &[String]) -> Vec<Run> {
    let circumstance = Circumstance::Plain;
    let plain = programs::all().flat_map(|program| {
        TRANSPORTS.iter().flat_map(move |&transport| {
            let run = move |&processes| Run { program: program.name, processes, transport, circumstance };
            PROCESSES.iter().map(run)
        })
    });
    plain
        .chain(hardened())
        .filter(|run| filter.is_empty() || filter.iter().any(|part| run.name().contains(part.as_str())))
        .collect()
}

fn hardened() -> impl Iterator<Item = Run> {
    // Only the NIC injects losses, so `udp` has no such run. `local` cannot span two hosts.
    let kinds: [(&str, Circumstance); 11] = [
        ("rdma", Circumstance::Loss),
        ("rdma-msg", Circumstance::Loss),
        ("rdma", Circumstance::TwoHosts),
        ("rdma-msg", Circumstance::TwoHosts),
        ("udp", Circumstance::TwoHosts),
        (BY_ITSELF, Circumstance::TwoHosts),
        ("rdma", Circumstance::SmallCache),
        ("rdma-msg", Circumstance::SmallCache),
        ("udp", Circumstance::SmallCache),
        ("rdma", Circumstance::Switched),
        ("udp", Circumstance::Switched),
    ];
    let hardened = HARDENED.iter().flat_map(move |&program| {
        kinds.into_iter().map(move |(transport, circumstance)| Run {
            program,
            processes: HARDENED_PROCESSES,
            transport,
            circumstance,
        })
    });
    let launchers = [Circumstance::Mpirun, Circumstance::Srun].into_iter().flat_map(|circumstance| {
        LAUNCHED.into_iter().map(move |(program, processes, transport)| Run {
            program,
            processes,
            transport,
            circumstance,
        })
    });
    hardened.chain(launchers)
}

/// Runs them one after the other, because each can occupy all cores. Calls `progress` after each.
pub(crate) fn run_all(
    runs: Vec<Run>,
    built: &Built,
    mut progress: impl FnMut(&Row),
) -> Result<Vec<Row>, String> {
    let network = network::check();
    let mut worker = network.is_ok().then(|| Worker::start(built)).transpose()?;
    let started = Instant::now();
    let mut rows = Vec::new();
    for run in runs {
        let row = match (&mut worker, &network) {
            (None, why) => {
                Row::skipped(run.name(), why.as_ref().err().map_or("no namespace", String::as_str))
            }
            _ if started.elapsed() > LIMIT_OF_ALL => Row::skipped(
                run.name(),
                "the time for all runs was over; run it alone: cargo xtask dsm --filter",
            ),
            (Some(worker), _) => {
                let arguments = named(run.program).map_or("", |program| program.small);
                let Run { program, processes, transport, circumstance } = run;
                let request =
                    Request { program, processes, transport, circumstance, limit_s: LIMIT_S, arguments };
                Row::of(run.name(), &worker.ask(&request))
            }
        };
        progress(&row);
        rows.push(row);
    }
    Ok(rows)
}

/// The rows for programs.
pub(crate) fn to_json(rows: &[Row]) -> Value {
    let row = |row: &Row| {
        json!({
            "name": row.name, "verdict": row.verdict.word(), "reason": row.reason, "seconds": row.own_s,
            "wall_s": row.wall_s,
        })
    };
    json!({"rows": rows.iter().map(row).collect::<Vec<_>>()})
}

/// The table as text: a line per program and transport, a column per number of processes, and the failures.
pub(crate) fn to_text(rows: &[Row]) -> String {
    let mut text = format!("\n{:12} {:9}", "program", "transport");
    PROCESSES.iter().for_each(|processes| text += &format!(" {processes:>9}"));
    text += "\n";
    for program in programs::all() {
        for transport in TRANSPORTS {
            let cells: Vec<Option<&Row>> = PROCESSES
                .iter()
                .map(|&processes| {
                    let circumstance = Circumstance::Plain;
                    let name = Run { program: program.name, processes, transport, circumstance }.name();
                    rows.iter().find(|row| row.name == name)
                })
                .collect();
            if cells.iter().any(Option::is_some) {
                text += &format!("{:12} {transport:9}", program.name);
                cells.into_iter().for_each(|cell| text += &format!(" {:>9}", shown(cell)));
                text += "\n";
            }
        }
    }
    text += &harder_text(rows);
    text += "(milliseconds, as the programs measured them)\n";
    for row in rows.iter().filter(|row| row.verdict == Verdict::Fail) {
        text += &format!("\n{}\n{}\n", row.line(), row.tail.join("\n"));
    }
    let [passed, failed, skipped] =
        [Verdict::Pass, Verdict::Fail, Verdict::Skip].map(|verdict| verdict::count(rows, verdict));
    text + &format!("\n{passed} passed, {failed} failed, {skipped} skipped\n")
}

/// The hardened runs, one line each.
fn harder_text(rows: &[Row]) -> String {
    let names: Vec<String> = hardened().map(|run| run.name()).collect();
    let harder = rows.iter().filter(|row| names.contains(&row.name));
    harder.map(|row| format!("{:30} {:>9}\n", row.name, shown(Some(row)))).collect()
}

fn shown(row: Option<&Row>) -> String {
    match row {
        None => String::new(),
        Some(Row { own_s: Some(seconds), verdict: Verdict::Pass, .. }) => format!("{:.1}", seconds * 1e3),
        Some(row) => row.verdict.word().to_owned(),
    }
}

/// The rows for `cargo xtask test`. Equal reasons to skip are one line.
pub(crate) fn to_report(rows: &[Row]) -> Report {
    let mut report = Report::default();
    for row in rows {
        report.output.push(row.line());
        match row.verdict {
            Verdict::Pass => report.passed += 1,
            Verdict::Fail => {
                report.failures.push(format!("{}: {}", row.name, row.reason));
                report.extract.push(row.line());
                report.extract.extend(row.tail.clone());
            }
            Verdict::Skip if !report.skips.iter().any(|skip| skip.ends_with(&row.reason)) => {
                report.skips.push(format!("{} and others like it: {}", row.name, row.reason));
            }
            Verdict::Skip | Verdict::Listed => {}
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_names_program_processes_and_transport() {
        let plain = programs::all().count() * PROCESSES.len() * TRANSPORTS.len();
        assert_eq!(runs(&[]).len(), plain + hardened().count());
        assert!(hardened().all(|run| named(run.program).is_some()));
        let names: Vec<String> =
            runs(&["sor 4 udp".into(), "pi 1 local".into()]).iter().map(Run::name).collect();
        assert_eq!(
            names,
            ["sor 4 udp", "pi 1 local", "sor 4 udp two-hosts", "sor 4 udp small-cache", "sor 4 udp switched"]
        );
    }

    #[test]
    fn rows_become_tables_and_tallies() {
        let circumstance = Circumstance::Plain;
        let run = |transport| Run { program: "sor", processes: 2, transport, circumstance };
        let rows = [
            Row::of(run("local").name(), &json!({"verdict": "pass", "seconds": 0.25, "wall_s": 1.0})),
            Row::of(run("udp").name(), &json!({"verdict": "fail", "reason": "no", "tail": ["line"]})),
            Row::skipped(run("rdma").name(), "why"),
            Row::skipped(run("rdma-msg").name(), "why"),
        ];
        let text = to_text(&rows);
        assert!(text.contains("250.0") && text.contains("FAIL") && text.contains("line"), "{text}");
        assert!(text.ends_with("1 passed, 1 failed, 2 skipped\n"), "{text}");
        let report = to_report(&rows);
        assert_eq!((report.passed, report.failures.len(), report.skips.len()), (1, 1, 1));
    }
}
