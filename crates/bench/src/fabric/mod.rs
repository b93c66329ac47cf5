//! `cargo xtask bench fabric`: unmodified perftest programs on the same-host fabric and on the UDP link, compared with other
//! transports of this machine, as ratios of one run.
//!
//! | module | contents |
//! |---|---|
//! | `table` | the comparisons and their goals |
//! | `run` | the rounds, inside a network namespace |
//! | `verdict` | ratios, and regressions against the snapshot in git |
//! | `page`, `plot` | docs/figures/fabric-figures.md and its picture |
//! | `machine` | the machine, and its load |
//! | `pingpong.c` | the bare shared-memory ping-pong |

mod machine;
mod page;
mod plot;
pub(crate) mod run;
mod table;
mod verdict;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;
use xtask::programs::{self, network};
use xtask::step::{Context, Report};

use crate::{Json, measure_in_namespace, prepare};
use machine::Machine;
use verdict::Verdict;

const PAGE: &str = "docs/figures/fabric-figures.md";
const PICTURE: &str = "docs/figures/fabric-figures.svg";
const SNAPSHOT: &str = "docs/figures/fabric-snapshot.json";

#[derive(clap::Args, Default)]
pub(crate) struct Options {
    /// Renew docs/figures/fabric-figures.md, its picture, and the snapshot of the ratios.
    #[arg(long, conflicts_with = "filter")]
    write: bool,
    /// Run only the rows whose names contain this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    filter: Vec<String>,
    /// How often everything is measured (3 unless given); medians are compared.
    #[arg(long, value_name = "N")]
    rounds: Option<NonZeroUsize>,
    /// Take this command instead of building one; its libraries lie next to it.
    #[arg(long, value_name = "FILE")]
    ferroce: Option<PathBuf>,
    #[command(flatten)]
    format: Json,
}

impl Options {
    fn rounds(&self) -> usize {
        self.rounds.map_or(3, NonZeroUsize::get)
    }
}

/// The benchmark. It fails if a program could not run, not because of a low ratio.
pub(crate) fn bench(options: &Options) -> Result<(), String> {
    if table::rows(&options.filter).is_empty() {
        return Err(format!("no name of a row contains {}", options.filter.join(" or ")));
    }
    let ctx = options.format.context();
    let mut installed = Report::default();
    programs::provide(&ctx, &mut installed);
    installed.output.iter().for_each(|line| eprintln!("{line}"));
    let (machine, verdicts) = measure(&ctx, options)?;
    print(&ctx, options, &machine, &verdicts);
    let failures = verdict::failures(&verdicts);
    if !failures.is_empty() {
        let kept = if options.write {
            format!("\n{PAGE}, {PICTURE} and {SNAPSHOT} are unchanged")
        } else {
            String::new()
        };
        return Err(format!("could not run: {}{kept}", failures.join("\ncould not run: ")));
    }
    if options.write { write_all(&ctx, options.rounds(), &machine, &verdicts) } else { Ok(()) }
}

fn print(ctx: &Context, options: &Options, machine: &Machine, verdicts: &[Verdict]) {
    if options.format.json {
        println!("{}", verdict::to_json(machine, options.rounds(), verdicts));
        return;
    }
    print!("{}", page::table(machine, options.rounds(), verdicts));
    let kept = std::fs::read_to_string(ctx.root.join(SNAPSHOT)).ok();
    let kept: Option<Value> = kept.and_then(|text| serde_json::from_str(&text).ok());
    kept.iter().flat_map(|kept| verdict::regressions(verdicts, kept)).for_each(|line| println!("- {line}"));
}

fn write_all(ctx: &Context, rounds: usize, machine: &Machine, verdicts: &[Verdict]) -> Result<(), String> {
    let snapshot =
        serde_json::to_string_pretty(&verdict::snapshot(verdicts)).map_err(|error| error.to_string())?;
    for (file, text) in [
        (PAGE, page::page(machine, rounds, verdicts)),
        (PICTURE, plot::picture(verdicts)),
        (SNAPSHOT, format!("{snapshot}\n")),
    ] {
        std::fs::write(ctx.root.join(file), text).map_err(|error| format!("{file}: {error}"))?;
        eprintln!("wrote {file}");
    }
    Ok(())
}

fn measure(ctx: &Context, options: &Options) -> Result<(Machine, Vec<Verdict>), String> {
    network::check()?;
    let prepared = prepare(ctx, options.ferroce.as_deref())?;
    let pingpong = build_pingpong(ctx);
    let mut machine = Machine::observe();
    machine.warning().iter().for_each(|warning| eprintln!("{warning}"));
    let measure = || {
        measure_in_namespace("fabric-worker", prepared, |command| {
            command.args(["--rounds", &options.rounds().to_string()]);
            command.args(options.filter.iter().flat_map(|word| ["--filter", word]));
            if let Some(pingpong) = pingpong {
                command.arg("--pingpong").arg(pingpong);
            }
        })
    };
    let answer = machine.watch(measure)?;
    Ok((machine, verdict::of(table::rows(&options.filter), &answer)))
}

/// Compiles the bare ping-pong, which is in C and uses no code of ferroce.
fn build_pingpong(ctx: &Context) -> Option<PathBuf> {
    let program = ctx.scratch().join("pingpong");
    let source = ctx.root.join("crates/bench/src/fabric/pingpong.c");
    let built = Command::new("cc").arg("-O2").arg(source).arg("-o").arg(&program).status();
    built.is_ok_and(|status| status.success()).then_some(program)
}
