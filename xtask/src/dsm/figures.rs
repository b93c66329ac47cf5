//! `cargo xtask bench --dsm`: how much faster two processes are than one, what the pieces cost beside bare operations, and the
//! transports beside each other.
//!
//! Runs take turns, because a machine has moods, and medians are compared. The result is docs/dsm-figures.md with a picture.

use std::path::Path;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::goals::{self, Goals};
use super::matrix::TRANSPORTS;
use super::programs::{self, Built, PROGRAMS, Program};
use super::worker::{Circumstance, Request, Worker};
use super::{pieces, plot};
use crate::figure::median;
use crate::step::Context;

/// Rounds of the speed-ups, and of the comparison.
const ROUNDS: usize = 9;
const ROUNDS_COMPARED: usize = 3;
const LIMIT_S: u64 = 120;

/// One to two processes.
struct SpeedUp {
    program: &'static str,
    arguments: &'static str,
    one_s: f64,
    two_s: f64,
    /// One process, while an unrelated copy of it ran.
    beside_s: f64,
    goal: f64,
}

impl SpeedUp {
    fn ratio(&self) -> f64 {
        self.one_s / self.two_s
    }

    /// What twice the work at once gives where nothing is shared: caches and memory of the machine are.
    fn limit(&self) -> f64 {
        2.0 * self.one_s / self.beside_s
    }
}

/// One program over all transports, with two processes; seconds, as far as it ran.
pub(super) struct Comparison {
    pub(super) program: &'static str,
    pub(super) arguments: &'static str,
    pub(super) seconds: Vec<(&'static str, Option<f64>)>,
}

/// The command.
pub(crate) fn run(ctx: &Context, as_json: bool) -> ExitCode {
    let before = load();
    let measured = programs::build(ctx).and_then(|built| measure(ctx, &built));
    let written = measured.and_then(|(ups, ratios, comparisons)| {
        let (page, picture) = (to_markdown(&before, &ups, &ratios, &comparisons), plot::bars(&comparisons));
        write(&ctx.root.join("docs"), &page, &picture)?;
        if as_json {
            println!("{}", to_json(&ups, &ratios, &comparisons))
        } else {
            print!("{page}")
        }
        Ok(())
    });
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// The command with `--pieces`.
pub(crate) fn run_pieces(ctx: &Context, as_json: bool) -> ExitCode {
    let ratios = programs::build(ctx).and_then(|built| {
        let mpi = pieces::build(ctx, &built.folder)?;
        goals::measure(&mut Worker::start(&built)?, mpi)
    });
    match ratios {
        Ok(ratios) if as_json => println!("{}", goals::to_json(&ratios)),
        Ok(ratios) => print!("{}", goals::to_markdown(&ratios)),
        Err(reason) => {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn write(docs: &Path, page: &str, picture: &str) -> Result<(), String> {
    for (name, text) in [("dsm-figures.md", page), ("dsm-figures.svg", picture)] {
        let path = docs.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

type Measured = (Vec<SpeedUp>, Goals, Vec<Comparison>);

fn measure(ctx: &Context, built: &Built) -> Result<Measured, String> {
    let mpi = pieces::build(ctx, &built.folder)?;
    let mut worker = Worker::start(built)?;
    let ratios = goals::measure(&mut worker, mpi)?;
    let ups = PROGRAMS
        .iter()
        .filter_map(|program| Some((program, program.sped_up?)))
        .map(|(program, (arguments, goal))| speed_up(&mut worker, program, arguments, goal))
        .collect::<Result<_, _>>()?;
    let comparisons = PROGRAMS
        .iter()
        .filter_map(|program| Some((program, program.compared?)))
        .map(|(program, arguments)| compare(&mut worker, program, arguments))
        .collect();
    Ok((ups, ratios, comparisons))
}

fn seconds(
    worker: &mut Worker,
    program: &Program,
    processes: u32,
    transport: &str,
    arguments: &str,
) -> Result<f64, String> {
    seconds_of(worker, program, processes, transport, Circumstance::Wire, arguments)
}

/// What a program measured of itself.
pub(super) fn seconds_of(
    worker: &mut Worker,
    program: &Program,
    processes: u32,
    transport: &str,
    circumstance: Circumstance,
    arguments: &str,
) -> Result<f64, String> {
    let request =
        Request { program: program.name, processes, transport, circumstance, limit_s: LIMIT_S, arguments };
    let answer = worker.ask(&request);
    answer["seconds"].as_f64().ok_or_else(|| {
        format!(
            "{} with {processes} over {transport}: {}",
            program.name,
            answer["reason"].as_str().unwrap_or("?")
        )
    })
}

fn speed_up(
    worker: &mut Worker,
    program: &'static Program,
    arguments: &'static str,
    goal: f64,
) -> Result<SpeedUp, String> {
    let (mut one, mut two, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprintln!("{} {arguments}: round {} of {ROUNDS}", program.name, round + 1);
        one.push(seconds(worker, program, 1, "local", arguments)?);
        two.push(seconds(worker, program, 2, "local", arguments)?);
        beside.push(seconds_of(worker, program, 1, "local", Circumstance::Beside, arguments)?);
    }
    let [one_s, two_s, beside_s] = [one, two, beside].map(|mut figures| median(&mut figures));
    Ok(SpeedUp { program: program.name, arguments, one_s, two_s, beside_s, goal })
}

fn compare(worker: &mut Worker, program: &'static Program, arguments: &'static str) -> Comparison {
    let mut all: Vec<(&'static str, Vec<f64>)> =
        TRANSPORTS.iter().map(|&transport| (transport, Vec::new())).collect();
    for round in 0..ROUNDS_COMPARED {
        eprintln!(
            "{} {arguments} over all transports: round {} of {ROUNDS_COMPARED}",
            program.name,
            round + 1
        );
        for (transport, figures) in &mut all {
            match seconds(worker, program, 2, transport, arguments) {
                Ok(figure) => figures.push(figure),
                Err(reason) => eprintln!("  {reason}"),
            }
        }
    }
    let seconds = all.into_iter().map(|(transport, mut figures)| {
        (transport, (figures.len() == ROUNDS_COMPARED).then(|| median(&mut figures)))
    });
    Comparison { program: program.name, arguments, seconds: seconds.collect() }
}

/// Milliseconds with three digits or so.
pub(super) fn milliseconds(seconds: f64) -> String {
    let ms = seconds * 1e3;
    if ms < 10.0 {
        format!("{ms:.2}")
    } else if ms < 100.0 {
        format!("{ms:.1}")
    } else {
        format!("{ms:.0}")
    }
}

fn to_json(ups: &[SpeedUp], ratios: &Goals, comparisons: &[Comparison]) -> Value {
    let ups = ups.iter().map(|up| {
        json!({"program": up.program, "arguments": up.arguments, "one_s": up.one_s, "two_s": up.two_s, "beside_s": up.beside_s, "goal": up.goal})
    });
    let comparisons = comparisons
        .iter()
        .map(|row| json!({"program": row.program, "arguments": row.arguments, "seconds": row.seconds}));
    let (ups, comparisons): (Vec<_>, Vec<_>) = (ups.collect(), comparisons.collect());
    json!({"speed_up": ups, "pieces": goals::to_json(ratios), "transports": comparisons})
}

const HEAD: &str = "# Figures of the shared memory

<!-- Written by `cargo xtask bench --dsm`. -->

All on one machine, in one run, by the programs of programs/jia, which measure themselves and check their results.
Medians; runs of one comparison take turns. LOAD

## Two processes against one

Transport `local`: both processes map the same memory. The last column is the machine's own share: how much faster two times the work
was done by two unrelated processes at once, the slower of which counts, than by one after the other.

| program | 1 process, ms | 2 processes, ms | faster | wanted | two unrelated |
|---|---:|---:|---:|---|---:|
";

const PIECES: &str = "
## The pieces beside bare operations

Two processes, each on a host of its own where a link is named: two network namespaces joined by a cable (veth, frames of 9000 bytes).
What is compared takes turns within each of five runs; medians.

";

const MIDDLE: &str = "
## The transports beside each other

Two processes, milliseconds. `rdma`, `rdma-msg` and `udp` go through the loopback interface of one machine: what a page costs
without a network in between. In brackets: times as long as `local`.

| program |";

/// Figures of a machine that did other work at the same time do not count; so the page says what it did before.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(' ').next().unwrap_or("?").to_owned();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("Before the run the load of the machine was {load}, on {cores} cores.")
}

fn to_markdown(load: &str, ups: &[SpeedUp], ratios: &Goals, comparisons: &[Comparison]) -> String {
    let mut text = HEAD.replace("LOAD", load);
    for up in ups {
        let ratio = up.ratio();
        let reached = if ratio >= up.goal { "reached" } else { "not reached" };
        text += &format!(
            "| `{} {}` | {} | {} | {ratio:.2} × | {} ×: {reached} | {:.2} × |\n",
            up.program,
            up.arguments,
            milliseconds(up.one_s),
            milliseconds(up.two_s),
            up.goal,
            up.limit()
        );
    }
    text += PIECES;
    text += &goals::to_markdown(ratios);
    text += MIDDLE;
    TRANSPORTS.iter().for_each(|transport| text += &format!(" {transport} |"));
    text += &format!("\n|---|{}\n", "---:|".repeat(TRANSPORTS.len()));
    for row in comparisons {
        text += &format!("| `{} {}` |", row.program, row.arguments);
        let base = row.seconds.first().and_then(|(_, seconds)| *seconds);
        for (transport, seconds) in &row.seconds {
            let ratio =
                seconds.zip(base).filter(|_| *transport != "local").map(|(s, b)| format!(" ({:.1})", s / b));
            let cell = seconds.map_or("–".to_owned(), milliseconds) + &ratio.unwrap_or_default();
            text += &format!(" {cell} |");
        }
        text += "\n";
    }
    text + "\n![Time of each program over each transport, as a multiple of local](dsm-figures.svg)\n"
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::dsm) fn examples() -> Vec<Comparison> {
        let row = |program, udp| Comparison {
            program,
            arguments: "-n 8",
            seconds: vec![("local", Some(0.5)), ("rdma", Some(1.0)), ("rdma-msg", Some(2.0)), ("udp", udp)],
        };
        vec![row("mm", Some(50.0)), row("<x>", None)]
    }

    #[test]
    fn goals_and_ratios_are_shown() {
        let up =
            SpeedUp { program: "mm", arguments: "-n 8", one_s: 2.0, two_s: 1.0, beside_s: 2.5, goal: 1.8 };
        let slow = SpeedUp {
            program: "lu",
            arguments: "-n 8",
            one_s: 0.001,
            two_s: 0.001,
            beside_s: 0.002,
            goal: 1.5,
        };
        let text = to_markdown("Nothing else ran.", &[up, slow], &goals::tests::examples(), &examples());
        assert!(text.contains("| at most 1.5: reached |"), "{text}");
        assert!(text.contains("take turns. Nothing else ran.\n"), "{text}");
        assert!(text.contains("| `mm -n 8` | 2000 | 1000 | 2.00 × | 1.8 ×: reached | 1.60 × |"), "{text}");
        assert!(
            text.contains("| `lu -n 8` | 1.00 | 1.00 | 1.00 × | 1.5 ×: not reached | 1.00 × |"),
            "{text}"
        );
        assert!(text.contains("| 500 | 1000 (2.0) | 2000 (4.0) | 50000 (100.0) |"), "{text}");
        assert!(text.contains("| – |"), "{text}");
    }
}
