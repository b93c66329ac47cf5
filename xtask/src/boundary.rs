//! What the C boundary costs: the same test through the drop-in library, by perftest, and through the Rust API, by `ferroce
//! perf`, in one run on one machine; and how long a program needs from its start to its first completion.
//!
//! The figure itself is a program that exists twice, in C and in Rust, call for call. perftest's tests stand beside it, but they
//! are not the same programs: `ib_send_lat` waits for each acknowledgement, and its one-sided tests have a passive side that
//! sleeps, where `ferroce perf` polls.
//!
//! Both kinds of runs take turns, because a machine has moods, and medians are compared.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::programs::network;
use crate::programs::session::{Program, is_listening};
use crate::tools::which;

/// Rounds of each comparison, and of starts.
const ROUNDS: usize = 5;
const STARTS: usize = 15;
const LIMIT: Duration = Duration::from_secs(180);
const FIRST_PORT: u16 = 23_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    ferroce: PathBuf,
    #[arg(long)]
    logs: PathBuf,
    /// The program that exists twice: in C, and in Rust.
    #[arg(long, num_args = 2)]
    twins: Vec<PathBuf>,
}

/// WRITEs of one run of the twins.
const TWIN_WRITES: &str = "100000";

/// One comparison.
struct Comparison {
    name: &'static str,
    foreign: &'static str,
    own: &'static str,
    /// Options that both understand.
    options: &'static str,
    /// Where the figure stands in a row of perftest, counted from 0.
    column: usize,
    /// Where it stands in the JSON of `ferroce perf`, and what makes it the same unit.
    key: [&'static str; 2],
    scale: f64,
    unit: &'static str,
    less_is_better: bool,
}

/// Inline data is asked for, since perftest switches it off for devices that it does not know.
const COMPARISONS: [Comparison; 3] = [
    Comparison {
        name: "SEND, 8 B, half a round trip",
        foreign: "ib_send_lat",
        own: "send-lat",
        options: "-s 8 -n 10000 -I 64",
        column: 4,
        key: ["latency", "median_ns"],
        scale: 1e-3,
        unit: "µs",
        less_is_better: true,
    },
    Comparison {
        name: "WRITE, 8 B, rate",
        foreign: "ib_write_bw",
        own: "write-bw",
        options: "-s 8 -n 200000 -t 128",
        column: 4,
        key: ["bandwidth", "million_messages_per_s"],
        scale: 1.0,
        unit: "M/s",
        less_is_better: false,
    },
    Comparison {
        name: "WRITE, 64 KiB, bandwidth",
        foreign: "ib_write_bw",
        own: "write-bw",
        options: "-s 65536 -n 20000 -t 128",
        column: 3,
        key: ["bandwidth", "gigabytes_per_s"],
        // perftest counts in MiB.
        scale: 1e9 / 1_048_576.0,
        unit: "MiB/s",
        less_is_better: false,
    },
];

/// Measures in a network of its own; the answer as JSON.
pub(crate) fn measure(ferroce: &Path, logs: &Path) -> Result<Value, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let twins = build_twins(ferroce)?;
    let mut command = network::inside(&own);
    command.arg("boundary-worker").arg("--ferroce").arg(ferroce).arg("--logs").arg(logs);
    command.arg("--twins").args(twins);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("unshare: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|_| "the comparison with the C library failed".to_owned())
}

/// Makes the program that exists twice, next to the command.
fn build_twins(ferroce: &Path) -> Result<[PathBuf; 2], String> {
    let folder = ferroce.parent().ok_or("the command lies in no folder")?;
    let in_c = folder.join("self_write_c");
    let source = "crates/ffi/ibverbs/tests/c/self_write.c";
    let mut cc = Command::new("cc");
    cc.args(["-O2", source, "-o"]).arg(&in_c).arg("-libverbs");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--release", "--package", "ferroce", "--example", "self_write"]);
    for command in [&mut cc, &mut cargo] {
        let status = command.status().map_err(|error| format!("{command:?}: {error}"))?;
        if !status.success() {
            return Err(format!("{command:?}: {status}"));
        }
    }
    Ok([in_c, folder.join("examples/self_write")])
}

/// The program that exists twice.
fn compare_twins(args: &Args) -> Result<Value, String> {
    let [in_c, in_rust] = args.twins.as_slice() else { return Err("--twins names two programs".to_owned()) };
    let one = |command: &mut Command| -> Result<f64, String> {
        let output = command.arg(TWIN_WRITES).output().map_err(|error| format!("{command:?}: {error}"))?;
        let said = String::from_utf8_lossy(&output.stdout);
        said.trim().parse().map_err(|_| format!("{command:?}: {}: {said}", output.status))
    };
    let (mut foreign, mut own) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprintln!("the same program in C and Rust: round {} of {ROUNDS}", round + 1);
        foreign.push(one(Command::new(&args.ferroce).args(["run", "--"]).arg(in_c))?);
        own.push(one(&mut Command::new(in_rust))?);
    }
    let (foreign, own) = (median(&mut foreign) * 1e-3, median(&mut own) * 1e-3);
    Ok(
        json!({"name": "WRITE, 8 B, post to completion, one process", "unit": "µs", "library": foreign, "rust": own,
        "cost": foreign / own - 1.0}),
    )
}

/// The side inside the network.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut port = FIRST_PORT;
    let answer = network::gid_indices(&args.ferroce).and_then(|gids| {
        let rows: Result<Vec<Value>, String> =
            COMPARISONS.iter().map(|comparison| compare(args, comparison, gids.v4, &mut port)).collect();
        Ok(json!({"twins": compare_twins(args)?, "comparisons": rows?, "start": start(args, gids.v4, &mut port)?}))
    });
    match answer {
        Ok(answer) => {
            println!("{answer}");
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn compare(args: &Args, comparison: &Comparison, gid: u64, port: &mut u16) -> Result<Value, String> {
    let (mut foreign, mut own) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprintln!("{}: round {} of {ROUNDS}", comparison.name, round + 1);
        let options = format!("{} -x {gid}", comparison.options);
        let words = |front: &[&str]| -> Vec<String> {
            front.iter().copied().chain(options.split(' ')).map(str::to_owned).collect()
        };
        let said = both_sides(args, &words(&["run", "--", comparison.foreign, "-F"]), port)?;
        foreign.push(
            figure(&said, comparison.column)
                .ok_or_else(|| format!("{}: no figures in\n{said}", comparison.foreign))?,
        );
        let said = both_sides(args, &words(&["perf", comparison.own, "--json"]), port)?;
        let [group, name] = comparison.key;
        let json: Value = said
            .find(['[', '{'])
            .map(|at| &said[at..])
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let line = if json.is_array() { &json[0] } else { &json };
        let value =
            line[group][name].as_f64().ok_or_else(|| format!("{}: no figures in\n{said}", comparison.own))?;
        own.push(value * comparison.scale);
    }
    let (foreign, own) = (median(&mut foreign), median(&mut own));
    let cost = if comparison.less_is_better { foreign / own - 1.0 } else { own / foreign - 1.0 };
    Ok(
        json!({"name": comparison.name, "unit": comparison.unit, "library": foreign, "rust": own, "cost": cost}),
    )
}

/// Runs a server and a client with the same words; what the client said.
fn both_sides(args: &Args, words: &[String], port: &mut u16) -> Result<String, String> {
    *port += 1;
    let side = |name: &str, host: Option<&str>| {
        let mut command = on_core(if host.is_some() { 0 } else { 1 }, words, &args.ferroce);
        command.args(words).args(["-p", &port.to_string()]).args(host);
        Program::of(command, &args.logs, &format!("boundary {name}"))
    };
    let mut server = side("server", None)?;
    server
        .wait_until(LIMIT, "listening", |_| is_listening(*port))
        .map_err(|why| format!("{why}\n{}", server.said()))?;
    let mut client = side("client", Some("127.0.0.1"))?;
    client.finish(LIMIT).map_err(|why| format!("{why}\n{}", client.said()))?;
    server.finish_soon()?;
    Ok(client.said())
}

/// `ferroce perf` keeps each side to a core of its own; perftest does not, so it is helped to.
fn on_core(core: usize, words: &[String], ferroce: &Path) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if words[0] != "run" || cores < 2 || which("taskset").is_none() {
        return Command::new(ferroce);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", &core.to_string()]).arg(ferroce);
    command
}

/// From the start of a program below `ferroce run` to its end, for the shortest useful one: a message there and back. The
/// first completion lies somewhere in between, so this is more than is asked for.
fn start(args: &Args, gid: u64, port: &mut u16) -> Result<Value, String> {
    let mut times = Vec::new();
    for _ in 0..STARTS {
        *port += 1;
        let side = |name: &str, host: Option<&str>| {
            let mut command = Command::new(&args.ferroce);
            command.args([
                "run",
                "--",
                "ibv_rc_pingpong",
                "-n",
                "1",
                "-r",
                "1",
                "-g",
                &gid.to_string(),
                "-p",
                &port.to_string(),
            ]);
            command.args(host);
            Program::of(command, &args.logs, &format!("start {name}"))
        };
        let mut server = side("server", None)?;
        server.wait_until(LIMIT, "listening", |_| is_listening(*port))?;
        let started = Instant::now();
        let mut client = side("client", Some("127.0.0.1"))?;
        client.finish(LIMIT).map_err(|why| format!("{why}\n{}", client.said()))?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        server.finish_soon()?;
    }
    Ok(json!({"median_ms": median(&mut times)}))
}

/// A figure of perftest's last row.
fn figure(said: &str, column: usize) -> Option<f64> {
    said.lines().rev().find_map(|line| {
        let numbers: Vec<f64> = line.split_whitespace().map_while(|word| word.parse().ok()).collect();
        (numbers.len() >= 4).then(|| numbers.get(column).copied()).flatten()
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The answer for the README.
pub(crate) fn to_markdown(answer: &Value) -> String {
    let mut text = "### The C boundary\n\n| test | through libibverbs.so.1 | through the Rust API | difference |\n|---|---:|---:|---:|\n".to_owned();
    let twins = &answer["twins"];
    for (row, who) in std::iter::once((twins, "the same program in C and Rust")).chain(
        answer["comparisons"].as_array().into_iter().flatten().map(|row| (row, "perftest, `ferroce perf`")),
    ) {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let (name, unit) = (row["name"].as_str().unwrap_or("?"), row["unit"].as_str().unwrap_or(""));
        text += &format!(
            "| {name} ({who}) | {:.2} {unit} | {:.2} {unit} | {:+.1} % |\n",
            number("library"),
            number("rust"),
            100.0 * number("cost")
        );
    }
    let cost = twins["cost"].as_f64().unwrap_or(f64::NAN);
    let worst = answer["comparisons"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|row| row["cost"].as_f64())
        .fold(f64::MIN, f64::max);
    let verdict = |reached: bool| if reached { "reached" } else { "not reached" };
    let ms = answer["start"]["median_ms"].as_f64().unwrap_or(f64::NAN);
    text += &format!(
        "\n- the C boundary costs {:.1} % in a program that exists twice (goal: under 5 %: {})\n",
        100.0 * cost,
        verdict(cost < 0.05)
    );
    text += &format!(
        "- perftest's own binaries, against tests of ours that are not the same call for call: at most {:.1} % (goal: under 5 %: {})\n",
        100.0 * worst,
        verdict(worst < 0.05)
    );
    text + &format!(
        "- from the start of a program to the end of its first message there and back, below `ferroce run`: {ms:.1} ms (goal: under 20 ms: {})\n",
        verdict(ms < 20.0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_perftest_are_read() {
        let said = " #bytes #iterations t_min t_max t_typical\n 8       1000          4.81           20.11        5.01     5.20\n---\n";
        assert_eq!(figure(said, 4), Some(5.01));
        assert_eq!(figure("nothing", 3), None);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
    }

    #[test]
    fn the_answer_reads_as_a_table() {
        let row = json!({"name": "SEND", "unit": "µs", "library": 4.1, "rust": 4.0, "cost": 0.025});
        let text = to_markdown(&json!({"twins": row, "comparisons": [row], "start": {"median_ms": 25.0}}));
        assert!(text.contains("| SEND (perftest, `ferroce perf`) | 4.10 µs | 4.00 µs | +2.5 % |"), "{text}");
        assert!(text.contains("under 5 %: reached") && text.contains("under 20 ms: not reached"), "{text}");
    }
}
