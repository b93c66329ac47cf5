//! `cargo xtask bench dsm`: the speed-up of two processes, the cost of single operations, and the transports compared.
//!
//! | module | contents |
//! |---|---|
//! | `goals` | single operations against bare ones and Open MPI, and every switch off and on |
//! | `two_hosts` | two processes on two hosts against one |
//! | `times` | the shortest run and the median |
//! | `plot` | the picture of docs/figures/dsm-figures.md |
//!
//! The runs of a comparison alternate, because the speed of a machine varies. A speed-up is the median of the ratios of the rounds.
//! Transports are compared by their shortest runs. The result is docs/figures/dsm-figures.md.

mod goals;
mod plot;
mod times;
mod two_hosts;

use std::path::Path;

use serde_json::{Value, json};
use xtask::dsm::programs::{self, Built, PROGRAMS, Program};
use xtask::dsm::worker::{Circumstance, Request, Worker};
use xtask::dsm::{TRANSPORTS, pieces};
use xtask::figure::median;

use crate::Json;
use goals::Goals;
use times::Times;

/// Rounds of the speed-ups, and of the comparison.
const ROUNDS: usize = 15;
const ROUNDS_COMPARED: usize = 9;
const LIMIT_S: u64 = 120;

/// The speed-up of one program from one process to two.
struct SpeedUp {
    program: &'static str,
    arguments: &'static str,
    one: Times,
    two: Times,
    /// The speed-up by two processes: the median over the rounds. The runs of a round are consecutive, so the machine has the same speed.
    ratio: f64,
    /// The same for two unrelated copies, which share only caches and memory bandwidth: the limit of the machine.
    limit: f64,
    goal: f64,
}

impl SpeedUp {
    fn of_shortest(&self) -> f64 {
        self.one.best_s / self.two.best_s
    }
}

/// The median over the rounds of one figure divided by the other's.
fn ratio_by_round(over: &[f64], under: &[f64]) -> f64 {
    median(&mut over.iter().zip(under).map(|(over, under)| over / under).collect::<Vec<_>>())
}

/// One program over all transports, with two processes, as far as it ran.
struct Comparison {
    program: &'static str,
    arguments: &'static str,
    times: Vec<(&'static str, Option<Times>)>,
}

impl Comparison {
    fn best_s(&self, transport: &str) -> Option<f64> {
        self.times.iter().find(|(name, _)| *name == transport)?.1.map(|times| times.best_s)
    }
}

#[derive(clap::Args, Clone, Copy)]
pub(crate) struct Options {
    /// Measure only single operations against bare ones and Open MPI, in under a minute; writes nothing.
    #[arg(long, conflicts_with = "two_hosts")]
    pieces: bool,
    /// Measure only two processes on two hosts against one, in a few minutes; writes nothing.
    #[arg(long)]
    two_hosts: bool,
    #[command(flatten)]
    format: Json,
}

/// The benchmark.
pub(crate) fn bench(options: Options) -> Result<(), String> {
    let ctx = options.format.context();
    let load = load();
    let built = programs::build(&ctx)?;
    let mpi = pieces::build(&ctx, &built.folder)?;
    let (json, page) = if options.pieces {
        let ratios = goals::measure(&mut Worker::start(&built)?, mpi)?;
        (goals::to_json(&ratios), goals::to_markdown(&ratios))
    } else if options.two_hosts {
        let rows = two_hosts::measure(&mut Worker::start(&built)?)?;
        (two_hosts::to_json(&rows), two_hosts::to_markdown(&rows))
    } else {
        let measured = measure(&built, mpi)?;
        let page = to_markdown(&load, &measured);
        write(&ctx.root.join("docs/figures"), &page, &plot::bars(&measured.comparisons))?;
        (to_json(&measured), page)
    };
    println!("{}", if options.format.json { json.to_string() } else { page });
    Ok(())
}

fn write(docs: &Path, page: &str, picture: &str) -> Result<(), String> {
    for (name, text) in [("dsm-figures.md", page), ("dsm-figures.svg", picture)] {
        let path = docs.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// All figures of the page.
struct Measured {
    ups: Vec<SpeedUp>,
    two_hosts: two_hosts::TwoHosts,
    ratios: Goals,
    comparisons: Vec<Comparison>,
}

fn measure(built: &Built, mpi: bool) -> Result<Measured, String> {
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
    let two_hosts = two_hosts::measure(&mut worker)?;
    Ok(Measured { ups, two_hosts, ratios, comparisons })
}

/// The time that a program measures itself, in seconds.
fn seconds(
    worker: &mut Worker,
    program: &Program,
    processes: u32,
    (transport, circumstance): (&str, Circumstance),
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
    let (mut one, mut two, mut with_copy) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprintln!("{} {arguments}: round {} of {ROUNDS}", program.name, round + 1);
        one.push(seconds(worker, program, 1, ("local", Circumstance::Wire), arguments)?);
        two.push(seconds(worker, program, 2, ("local", Circumstance::Wire), arguments)?);
        with_copy.push(seconds(worker, program, 1, ("local", Circumstance::WithCopy), arguments)?);
    }
    let (ratio, limit) = (ratio_by_round(&one, &two), 2.0 * ratio_by_round(&one, &with_copy));
    let [one, two] = [one, two].map(|runs| Times::of(runs).ok_or("no rounds"));
    Ok(SpeedUp { program: program.name, arguments, one: one?, two: two?, ratio, limit, goal })
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
            match seconds(worker, program, 2, (transport, Circumstance::Wire), arguments) {
                Ok(figure) => figures.push(figure),
                Err(reason) => eprintln!("  {reason}"),
            }
        }
    }
    let whole = |runs: &Vec<f64>| runs.len() == ROUNDS_COMPARED;
    let times =
        all.into_iter().map(|(transport, runs)| (transport, Some(runs).filter(whole).and_then(Times::of)));
    Comparison { program: program.name, arguments, times: times.collect() }
}

fn to_json(measured: &Measured) -> Value {
    let Measured { ups, two_hosts, ratios, comparisons } = measured;
    let ups = ups.iter().map(|up| {
        json!({"program": up.program, "arguments": up.arguments, "one": up.one.to_json(), "two": up.two.to_json(), "ratio": up.ratio, "two_unrelated": up.limit, "goal": up.goal})
    });
    let comparisons = comparisons.iter().map(|row| {
        let times = row.times.iter().map(|(transport, times)| json!([transport, times.map(Times::to_json)]));
        json!({"program": row.program, "arguments": row.arguments, "times": times.collect::<Value>()})
    });
    let (ups, comparisons): (Vec<_>, Vec<_>) = (ups.collect(), comparisons.collect());
    json!({"speed_up": ups, "two_hosts": two_hosts::to_json(two_hosts), "pieces": goals::to_json(ratios), "transports": comparisons})
}

const HEAD: &str = "# Figures: the shared memory

<!-- Written by `cargo xtask bench dsm`. -->

How much faster are two processes than one, and what does each piece cost? All figures come from one run on one machine, by the programs of
programs/jia, which measure themselves and check their results. Runs of one comparison alternate. [The notes](dsm-notes.md) explain them. LOAD

The machine is a virtual one. Other guests take CPU time from it, and its clock rate varies, mostly when one core works alone. Therefore each
round has its own ratio, and the median of these counts. The next column is the ratio of the shortest runs; a large difference between the
two means that the machine varied.

## Two processes against one

Transport `local`: both processes map the same memory. Milliseconds, shortest and median of fifteen rounds. The last column is the
machine's limit: how much faster two unrelated processes do the work at the same time (the slower one counts) than one after the other, by
rounds too.

| program | 1 process | 2 processes | faster | goal | by shortest runs | two unrelated |
|---|---:|---:|---:|---|---:|---:|
";

const PIECES: &str = "
## The pieces against bare operations

Two processes; where a link is named, each runs in its own network namespace, joined by veth with frames of 9000 bytes. Both sides of a
comparison alternate within each of five runs; medians.

";

const MIDDLE: &str = "
## The transports compared

Two processes, milliseconds, shortest and median of nine rounds. `rdma`, `rdma-msg` and `udp` use the loopback interface, so
a page costs no network time. In brackets: the multiple of `local`, by the shortest runs.

| program |";

/// The load of the machine, for the page: figures of a busy machine are invalid.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = text.split(' ').next().unwrap_or("?").to_owned();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("Before the run the load of the machine was {load}, on {cores} cores.")
}

fn to_markdown(load: &str, measured: &Measured) -> String {
    let Measured { ups, two_hosts, ratios, comparisons } = measured;
    let mut text = HEAD.replace("LOAD", load);
    for up in ups {
        let ratio = up.ratio;
        let reached = if ratio >= up.goal { "reached" } else { "not reached" };
        text += &format!(
            "| `{} {}` | {} | {} | {ratio:.2} × | {} ×: {reached} | {:.2} × | {:.2} × |\n",
            up.program,
            up.arguments,
            up.one.show(),
            up.two.show(),
            up.goal,
            up.of_shortest(),
            up.limit
        );
    }
    text += &two_hosts::to_markdown(two_hosts);
    text += PIECES;
    text += &goals::to_markdown(ratios);
    text += MIDDLE;
    TRANSPORTS.iter().for_each(|transport| text += &format!(" {transport} |"));
    text += &format!(" rdma / udp |\n|---|{}\n", "---:|".repeat(TRANSPORTS.len() + 1));
    for row in comparisons {
        text += &format!("| `{} {}` |", row.program, row.arguments);
        let base = row.best_s("local");
        for (transport, times) in &row.times {
            let ratio = times.zip(base).filter(|_| *transport != "local");
            let ratio = ratio.map(|(times, base)| format!(" ({:.1})", times.best_s / base));
            let cell = times.map_or("–".to_owned(), |times| times.show()) + &ratio.unwrap_or_default();
            text += &format!(" {cell} |");
        }
        let ratio = row.best_s("rdma").zip(row.best_s("udp"));
        text += &ratio.map_or(" – |\n".to_owned(), |(rdma, udp)| format!(" {:.2} |\n", rdma / udp));
    }
    text + "\n![Time of each program over each transport, as a multiple of local](dsm-figures.svg)\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(best_s: f64) -> Times {
        Times { best_s, median_s: best_s * 1.5 }
    }

    pub(super) fn examples() -> Vec<Comparison> {
        let row = |program, udp| Comparison {
            program,
            arguments: "-n 8",
            times: [("local", Some(0.5)), ("rdma", Some(1.0)), ("rdma-msg", Some(2.0)), ("udp", udp)]
                .map(|(transport, best_s)| (transport, best_s.map(times)))
                .into(),
        };
        vec![row("mm", Some(50.0)), row("<x>", None)]
    }

    #[test]
    fn goals_and_ratios_are_shown() {
        let up = |program, one_s, two_s, ratio, goal| SpeedUp {
            program,
            arguments: "-n 8",
            one: times(one_s),
            two: times(two_s),
            ratio,
            limit: 1.6,
            goal,
        };
        assert_eq!(ratio_by_round(&[4.0, 9.0, 2.0], &[2.0, 1.0, 2.0]), 2.0);
        let measured = Measured {
            ups: vec![up("mm", 2.0, 1.0, 1.9, 1.8), up("lu", 0.001, 0.001, 1.1, 1.5)],
            two_hosts: two_hosts::tests::examples(),
            ratios: goals::tests::examples(),
            comparisons: examples(),
        };
        let text = to_markdown("Nothing else ran.", &measured);
        assert!(text.contains("| at most 1.5: reached |"), "{text}");
        assert!(text.contains("explain them. Nothing else ran.\n"), "{text}");
        assert!(
            text.contains(
                "| `mm -n 8` | 2000 / 3000 | 1000 / 1500 | 1.90 × | 1.8 ×: reached | 2.00 × | 1.60 × |"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "| `lu -n 8` | 1.00 / 1.50 | 1.00 / 1.50 | 1.10 × | 1.5 ×: not reached | 1.00 × | 1.60 × |"
            ),
            "{text}"
        );
        assert!(
            text.contains(
                "| 500 / 750 | 1000 / 1500 (2.0) | 2000 / 3000 (4.0) | 50000 / 75000 (100.0) | 0.02 |"
            ),
            "{text}"
        );
        assert!(text.contains("| – |"), "{text}");
    }
}
