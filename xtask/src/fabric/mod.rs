//! `cargo xtask bench --fabric`: unmodified perftest programs on the same-host fabric and on the UDP link, beside what else
//! this machine can do, as ratios in one run.
//!
//! | file | what lives there |
//! |---|---|
//! | `table` | what is compared with what, and the goals |
//! | `run` | the rounds, inside a network of their own |
//! | `verdict` | ratios, and what is worse than the snapshot in git |
//! | `page`, `plot` | docs/figures/fabric-figures.md and its picture |
//! | `machine` | where it was measured, and how busy that was |
//! | `pingpong.c` | the bare shared-memory ping-pong |

mod machine;
mod page;
mod plot;
pub(crate) mod run;
mod table;
mod verdict;

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::programs::{self, network};
use crate::step::{Context, Report};
use machine::Machine;
use verdict::Verdict;

const PAGE: &str = "docs/figures/fabric-figures.md";
const PICTURE: &str = "docs/figures/fabric-figures.svg";
const SNAPSHOT: &str = "docs/figures/fabric-snapshot.json";

/// What only this comparison understands.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// With --fabric: renew docs/figures/fabric-figures.md, its picture, and the snapshot of the ratios.
    #[arg(long, requires = "fabric", conflicts_with = "filter")]
    write: bool,
    /// With --fabric: run only the rows that have this in a name; may be given several times.
    #[arg(long, value_name = "TEXT", requires = "fabric")]
    filter: Vec<String>,
    /// With --fabric: how often everything is measured; medians are compared.
    #[arg(long, value_name = "N", requires = "fabric", default_value_t = 3, value_parser = at_least_one)]
    rounds: usize,
    /// With --fabric: take this command instead of building one; its libraries lie next to it.
    #[arg(long, value_name = "FILE", requires = "fabric")]
    ferroce: Option<PathBuf>,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|rounds| *rounds > 0).ok_or_else(|| "a number of at least 1".to_owned())
}

/// Measures and tells; a ratio is never a failure, but what could not run is.
pub(crate) fn bench(ctx: &Context, args: &Options, as_json: bool) -> ExitCode {
    if table::rows(&args.filter).is_empty() {
        eprintln!("no row has {} in a name", args.filter.join(" or "));
        return ExitCode::from(2);
    }
    let mut installed = Report::default();
    programs::provide(ctx, &mut installed);
    installed.output.iter().for_each(|line| eprintln!("{line}"));
    match measure(ctx, args) {
        Ok((machine, verdicts)) => tell(ctx, args, as_json, &machine, &verdicts),
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn tell(ctx: &Context, args: &Options, as_json: bool, machine: &Machine, verdicts: &[Verdict]) -> ExitCode {
    if as_json {
        println!("{}", verdict::to_json(machine, args.rounds, verdicts));
    } else {
        print!("{}", page::table(machine, args.rounds, verdicts));
        let kept = std::fs::read_to_string(ctx.root.join(SNAPSHOT)).ok();
        let kept: Option<Value> = kept.and_then(|text| serde_json::from_str(&text).ok());
        kept.iter()
            .flat_map(|kept| verdict::regressions(verdicts, kept))
            .for_each(|line| println!("- {line}"));
    }
    let failures = verdict::failures(verdicts);
    failures.iter().for_each(|failure| eprintln!("could not run: {failure}"));
    if args.write && failures.is_empty() {
        if let Err(reason) = write_all(ctx, args.rounds, machine, verdicts) {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    } else if args.write {
        eprintln!("{PAGE}, {PICTURE} and {SNAPSHOT} stay as they are: they are only written whole");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
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

fn measure(ctx: &Context, args: &Options) -> Result<(Machine, Vec<Verdict>), String> {
    network::check()?;
    let ferroce = match &args.ferroce {
        Some(given) => given.canonicalize().map_err(|error| format!("{}: {error}", given.display()))?,
        None => programs::build(ctx)?,
    };
    let logs = ctx.scratch().join("programs");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let pingpong = build_pingpong(ctx);
    let mut machine = Machine::look();
    machine.warning().iter().for_each(|warning| eprintln!("{warning}"));
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = network::inside(&own);
    command.arg("fabric-worker").arg("--ferroce").arg(ferroce).arg("--logs").arg(&logs);
    command.args(["--rounds", &args.rounds.to_string()]);
    command.args(args.filter.iter().flat_map(|word| ["--filter", word]));
    if let Some(pingpong) = pingpong {
        command.arg("--pingpong").arg(pingpong);
    }
    let output = machine
        .watch(|| command.stderr(Stdio::inherit()).output())
        .map_err(|error| format!("unshare: {error}"))?;
    let answer: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("the measuring side: {}", output.status))?;
    Ok((machine, verdict::of(table::rows(&args.filter), &answer)))
}

/// The bare ping-pong in C, because it has to stay as bare as it is: nothing of ours is in it.
fn build_pingpong(ctx: &Context) -> Option<PathBuf> {
    let program = ctx.scratch().join("pingpong");
    let source = ctx.root.join("xtask/src/fabric/pingpong.c");
    let built = Command::new("cc").arg("-O2").arg(source).arg("-o").arg(&program).status();
    built.is_ok_and(|status| status.success()).then_some(program)
}
