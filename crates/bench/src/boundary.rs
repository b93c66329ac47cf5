//! The cost of the C boundary. perftest's binaries run over the drop-in library. `ferroce perf --like-perftest` makes the same calls
//! through the Rust API, with the same depths, sizes, MTU and cores. In addition, one program exists in C and in Rust, and the time from
//! the start of a program to its first completion is measured.
//!
//! Runs of both kinds alternate, and so does the order within a round, because the speed of a machine varies. The best runs are compared,
//! because a disturbance only makes a run slower. The medians are shown too. The worst row of each link is the verdict.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use xtask::figure::{self, MIB, best, median};
use xtask::programs::session::{Program, is_listening};
use xtask::programs::{Setup, network};
use xtask::tools::which;

use crate::sides::{on_core_of, run_pair};
use crate::{Json, measure_in_namespace, prepare};

/// Rounds of each comparison, and of starts.
const ROUNDS: usize = 13;
const STARTS: usize = 15;
const LIMIT: Duration = Duration::from_secs(180);
const FIRST_PORT: u16 = 23_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    setup: Setup,
    /// The same program in C and in Rust.
    #[arg(long, num_args = 2)]
    twins: Vec<PathBuf>,
}

/// The variable that selects the link.
const LINK: &str = "FERROCE_LINK";

/// A link, and the number of operations of a run on it. A run lasts longer than a time slice of the scheduler.
#[derive(Clone, Copy)]
struct Workload {
    link: &'static str,
    /// WRITEs of one run of the program that exists in C and in Rust.
    twin_writes: &'static str,
    /// Factor of the number of messages of a comparison.
    times: u64,
}

const UDP: Workload = Workload { link: "udp", twin_writes: "100000", times: 1 };
const MEMORY: Workload = Workload { link: "auto", twin_writes: "2000000", times: 5 };

/// One comparison.
struct Comparison {
    name: &'static str,
    foreign: &'static str,
    own: &'static str,
    messages: u64,
    /// Options of both programs.
    options: &'static str,
    /// Options of perftest alone: the transport timer and the number of outstanding READs of `ferroce perf`, and no peak bandwidth,
    /// which would read the clock for each message.
    foreign_options: &'static str,
    /// Column of the figure in a row of perftest, counted from 0.
    column: usize,
    /// Key of the figure in the JSON of `ferroce perf`, and the factor to the same unit.
    key: [&'static str; 2],
    scale: f64,
    unit: &'static str,
    less_is_better: bool,
}

const MIB_PER_GB: f64 = 1e9 / MIB;

/// Bandwidth of WRITEs of 64 KiB; the other comparisons differ from it.
const WRITE_64K: Comparison = Comparison {
    name: "WRITE, 64 KiB, bandwidth",
    foreign: "ib_write_bw",
    own: "write-bw",
    messages: 20_000,
    options: "-s 65536 -t 128 -Q 1 -I 0 -m 4096",
    foreign_options: "-u 16 -N",
    column: 3,
    key: ["bandwidth", "gigabytes_per_s"],
    scale: MIB_PER_GB,
    unit: "MiB/s",
    less_is_better: false,
};

/// Without inline data: perftest uses none on devices that are not in its list, whatever the value of -I.
const COMPARISONS: [Comparison; 4] = [
    Comparison {
        name: "SEND, 8 B, half a round trip",
        foreign: "ib_send_lat",
        own: "send-lat",
        options: "-s 8 -I 0 -m 4096",
        foreign_options: "-u 16",
        column: 4,
        key: ["latency", "median_ns"],
        scale: 1e-3,
        unit: "µs",
        less_is_better: true,
        ..WRITE_64K
    },
    Comparison {
        name: "WRITE, 8 B, rate",
        messages: 200_000,
        options: "-s 8 -t 128 -Q 100 -I 0 -m 4096",
        column: 4,
        key: ["bandwidth", "million_messages_per_s"],
        scale: 1.0,
        unit: "M/s",
        ..WRITE_64K
    },
    WRITE_64K,
    Comparison {
        name: "READ, 64 KiB, bandwidth",
        foreign: "ib_read_bw",
        own: "read-bw",
        options: "-s 65536 -t 128 -Q 1 -m 4096",
        foreign_options: "-u 16 -N -o 16",
        ..WRITE_64K
    },
];

/// The benchmark.
pub(crate) fn bench() -> Result<(), String> {
    if which("ib_send_lat").is_none() || which("ibv_rc_pingpong").is_none() {
        println!("(the C library was not measured: install perftest and ibverbs-utils)");
        return Ok(());
    }
    let setup = prepare(&Json::default().context(), None)?;
    let twins = build_twins(&setup.ferroce)?;
    let answer = measure_in_namespace("boundary-worker", setup, |command| {
        command.arg("--twins").args(twins);
    })?;
    println!("\n{}", to_markdown(&answer));
    Ok(())
}

/// Builds the program that exists in C and in Rust, next to the command.
fn build_twins(ferroce: &Path) -> Result<[PathBuf; 2], String> {
    let folder = ferroce.parent().ok_or("the command lies in no folder")?;
    let in_c = folder.join("self_write_c");
    let source = "crates/ffi/ibverbs/tests/c/self_write.c";
    let mut cc = Command::new("cc");
    cc.args(["-O2", source, "-o"]).arg(&in_c).arg("-libverbs");
    let mut cargo = xtask::cargo();
    cargo.args(["build", "--quiet", "--release", "--package", "ferroce", "--example", "self_write"]);
    for command in [&mut cc, &mut cargo] {
        let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
        if !status.success() {
            return Err(format!("{command:?}: {status}"));
        }
    }
    Ok([in_c, folder.join("examples/self_write")])
}

/// Compares the program in C with the one in Rust.
fn compare_twins(args: &Args, workload: Workload) -> Result<Value, String> {
    let [in_c, in_rust] = args.twins.as_slice() else { return Err("--twins names two programs".to_owned()) };
    let one = |command: &mut Command| -> Result<f64, String> {
        let output =
            command.arg(workload.twin_writes).output().map_err(|error| format!("{command:?}: {error}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        text.trim().parse().map_err(|_| format!("{command:?}: {}: {text}", output.status))
    };
    let (mut foreign, mut own) = alternating(
        &format!("the same program in C and Rust ({})", workload.link),
        || one(Command::new(&args.setup.ferroce).args(["run", "--"]).arg(in_c).env(LINK, workload.link)),
        || one(Command::new(in_rust).env(LINK, workload.link)),
    )?;
    foreign.iter_mut().chain(&mut own).for_each(|ns| *ns *= 1e-3);
    Ok(row("WRITE, 8 B, post to completion, one process", "µs", true, &mut foreign, &mut own))
}

/// A row of the answer.
fn row(name: &str, unit: &str, less_is_better: bool, library: &mut [f64], rust: &mut [f64]) -> Value {
    let cost = |library: f64, rust: f64| {
        if less_is_better { library / rust - 1.0 } else { rust / library - 1.0 }
    };
    let of_medians = cost(median(library), median(rust));
    let (library, rust) = (best(library, less_is_better), best(rust, less_is_better));
    json!({"name": name, "unit": unit, "library": library, "rust": rust, "cost": cost(library, rust),
        "cost_of_medians": of_medians})
}

/// The part inside the network namespace.
pub(crate) fn run(args: &Args) -> Result<Value, String> {
    let port = Cell::new(FIRST_PORT);
    let gid = network::gid_indices(&args.setup.ferroce)?.v4;
    let rows = |workload: Workload| -> Result<Value, String> {
        let compared: Result<Vec<Value>, String> =
            COMPARISONS.iter().map(|comparison| compare(args, comparison, workload, gid, &port)).collect();
        Ok(json!({"twins": compare_twins(args, workload)?, "comparisons": compared?}))
    };
    Ok(json!({"udp": rows(UDP)?, "memory": rows(MEMORY)?, "start": start(args, gid, &port)?}))
}

/// Both figures of every round. The order alternates, so that neither side always runs first.
fn alternating(
    name: &str,
    mut foreign: impl FnMut() -> Result<f64, String>,
    mut own: impl FnMut() -> Result<f64, String>,
) -> Result<(Vec<f64>, Vec<f64>), String> {
    let (mut of_foreign, mut of_own) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprintln!("{name}: round {} of {ROUNDS}", round + 1);
        if round % 2 == 0 {
            of_foreign.push(foreign()?);
            of_own.push(own()?);
        } else {
            of_own.push(own()?);
            of_foreign.push(foreign()?);
        }
    }
    Ok((of_foreign, of_own))
}

fn compare(
    args: &Args,
    comparison: &Comparison,
    workload: Workload,
    gid: u64,
    port: &Cell<u16>,
) -> Result<Value, String> {
    let words = |front: &str, back: &str| -> Vec<String> {
        format!("{front} {} -n {} -x {gid} {back}", comparison.options, comparison.messages * workload.times)
            .split_whitespace()
            .map(str::to_owned)
            .collect()
    };
    let sides = |words: &[String]| both_sides(args, words, workload.link, port);
    let (mut foreign, mut own) = alternating(
        &format!("{} ({})", comparison.name, workload.link),
        || {
            let output =
                sides(&words(&format!("run -- {} -F", comparison.foreign), comparison.foreign_options))?;
            figure::of_perftest(&output, comparison.column)
                .ok_or_else(|| format!("{}: no figures in\n{output}", comparison.foreign))
        },
        || {
            let output = sides(&words(&format!("perf {} --like-perftest --json", comparison.own), ""))?;
            figure::of_own_perf(&output, comparison.key)
                .map(|figure| figure * comparison.scale)
                .ok_or_else(|| format!("{}: no figures in\n{output}", comparison.own))
        },
    )?;
    Ok(row(comparison.name, comparison.unit, comparison.less_is_better, &mut foreign, &mut own))
}

fn next(port: &Cell<u16>) -> u16 {
    port.set(port.get() + 1);
    port.get()
}

/// Runs a server and a client with the same arguments. Returns the output of the client.
fn both_sides(args: &Args, words: &[String], link: &str, port: &Cell<u16>) -> Result<String, String> {
    let port = next(port);
    run_pair(&args.setup.logs, "boundary", port, LIMIT, |host| {
        let mut command = on_core_of(host, &args.setup.ferroce);
        command.args(words).args(["-p", &port.to_string()]).args(host).env(LINK, link);
        command
    })
}

/// The time from the start of a program under `ferroce run` to its end, for one round trip. It is an upper bound of the time to the
/// first completion.
fn start(args: &Args, gid: u64, port: &Cell<u16>) -> Result<Value, String> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        let port = next(port);
        let side = |name: &str, host: Option<&str>| {
            let mut command = Command::new(&args.setup.ferroce);
            command.args("run -- ibv_rc_pingpong -n 1 -r 1".split(' '));
            command.args(["-g", &gid.to_string(), "-p", &port.to_string()]).args(host);
            Program::of(command, &args.setup.logs, &format!("start {name}"))
        };
        let mut server = side("server", None)?;
        server.wait_until(LIMIT, "listening", |_| is_listening(port))?;
        let started = Instant::now();
        let mut client = side("client", Some("127.0.0.1"))?;
        client.finish(LIMIT).map_err(|why| format!("{why}\n{}", client.output()))?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        server.finish_soon()?;
    }
    Ok(json!({"median_ms": median(&mut times)}))
}

/// The links of an answer, in words.
const LINKS: [(&str, &str); 2] = [("udp", "over UDP"), ("memory", "through the host's memory")];
/// The goal: the boundary costs less than this share.
const GOAL: f64 = 0.05;

/// The rows of one link, each with the programs that were compared.
fn rows<'a>(answer: &'a Value, link: &str) -> impl Iterator<Item = (&'a Value, &'static str)> {
    let of = &answer[link];
    let compared = of["comparisons"].as_array().into_iter().flatten();
    std::iter::once((&of["twins"], "the same program in C and Rust"))
        .chain(compared.map(|row| (row, "perftest, `ferroce perf --like-perftest`")))
}

/// The row with the highest cost. A row without a figure is worse than any other.
fn worst<'a>(answer: &'a Value, link: &str) -> (&'a str, f64) {
    let costs = rows(answer, link).map(|(row, _)| {
        (row["name"].as_str().unwrap_or("a row that is missing"), row["cost"].as_f64().unwrap_or(f64::NAN))
    });
    costs
        .reduce(|worst, row| if worst.1.is_nan() || row.1 <= worst.1 { worst } else { row })
        .unwrap_or(("no row", f64::NAN))
}

fn verdict(reached: bool) -> &'static str {
    if reached { "reached" } else { "not reached" }
}

/// The answer as a Markdown table.
pub(crate) fn to_markdown(answer: &Value) -> String {
    let mut text = format!(
        "### The C boundary\n\nThe best of {ROUNDS} runs of each, alternating.\n\n\
         | test | through libibverbs.so.1 | through the Rust API | difference | that of the medians |\n|---|---:|---:|---:|---:|\n"
    );
    for (link, label) in LINKS {
        for (row, who) in rows(answer, link) {
            let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
            let (name, unit) = (row["name"].as_str().unwrap_or("?"), row["unit"].as_str().unwrap_or(""));
            text += &format!(
                "| {name}, {label} ({who}) | {:.2} {unit} | {:.2} {unit} | {:+.1} % | {:+.1} % |\n",
                number("library"),
                number("rust"),
                100.0 * number("cost"),
                100.0 * number("cost_of_medians")
            );
        }
    }
    text += "\n";
    for (link, label) in LINKS {
        let (name, cost) = worst(answer, link);
        text += &format!(
            "- {label} the C boundary costs at most {:.1} %, in \"{name}\" (goal: under 5 %: {})\n",
            100.0 * cost,
            verdict(cost < GOAL)
        );
    }
    let ms = answer["start"]["median_ms"].as_f64().unwrap_or(f64::NAN);
    text + &format!(
        "- from the start of a program to the end of its first message there and back, below `ferroce run`: {ms:.1} ms (goal: under 20 ms: {})\n",
        verdict(ms < 20.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_reads_as_a_table() {
        let row = json!({"name": "SEND", "unit": "µs", "library": 4.1, "rust": 4.0, "cost": 0.025, "cost_of_medians": 0.1});
        let good = json!({"twins": row, "comparisons": [row, row]});
        let text = to_markdown(&json!({"udp": good, "memory": good, "start": {"median_ms": 25.0}}));
        for expected in [
            "| SEND, over UDP (perftest, `ferroce perf --like-perftest`) | 4.10 µs | 4.00 µs | +2.5 % | +10.0 % |",
            "- over UDP the C boundary costs at most 2.5 %, in \"SEND\" (goal: under 5 %: reached)",
            "- through the host's memory the C boundary costs at most 2.5 %, in \"SEND\" (goal: under 5 %: reached)",
            "under 20 ms: not reached",
        ] {
            assert!(text.contains(expected), "{text}");
        }
        // Every row of both links counts, and a row without a figure fails.
        for cost in [json!(0.06), Value::Null] {
            let mut bad = row.clone();
            bad["cost"] = cost;
            for rows in [
                json!({"twins": bad, "comparisons": [row]}),
                json!({"twins": row, "comparisons": [bad, row]}),
                json!({}),
            ] {
                for answer in [json!({"udp": rows, "memory": good}), json!({"udp": good, "memory": rows})] {
                    assert_eq!(to_markdown(&answer).matches("under 5 %: not reached").count(), 1);
                }
            }
        }
    }
}
