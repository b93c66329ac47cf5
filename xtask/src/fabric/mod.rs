//! `cargo xtask bench --fabric`: unmodified perftest programs on the same-host fabric and on the UDP link, beside what else
//! this machine can do, as ratios in one run.
//!
//! | file | what lives there |
//! |---|---|
//! | `table` | what is compared with what, and the goals |
//! | `run` | the rounds, inside a network of their own |
//! | `verdict` | ratios, and what is worse than the snapshot in git |
//! | `page`, `plot` | docs/fabric-figures.md and its picture |
//! | `machine` | where it was measured, and how busy that was |
//! | `pingpong.c` | the bare shared-memory ping-pong |

mod machine;
mod page;
mod plot;
pub(crate) mod run;
mod table;
mod verdict;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use serde_json::Value;

use crate::programs::{self, network};
use crate::step::{Context, Report};
use machine::Machine;
use verdict::Verdict;

const PAGE: &str = "docs/fabric-figures.md";
const PICTURE: &str = "docs/fabric-figures.svg";
const SNAPSHOT: &str = "docs/fabric-snapshot.json";

/// Measures and tells; a ratio is never a failure, but what could not run is.
pub(crate) fn bench(ctx: &Context, ferroce: Option<&Path>, as_json: bool, write: bool) -> ExitCode {
    let mut installed = Report::default();
    programs::provide(ctx, &mut installed);
    installed.output.iter().for_each(|line| eprintln!("{line}"));
    match measure(ctx, ferroce) {
        Ok((machine, verdicts)) => tell(ctx, &machine, &verdicts, as_json, write),
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn tell(ctx: &Context, machine: &Machine, verdicts: &[Verdict], as_json: bool, write: bool) -> ExitCode {
    if as_json {
        println!("{}", verdict::to_json(machine, verdicts));
    } else {
        print!("{}", page::table(machine, verdicts));
        let kept = std::fs::read_to_string(ctx.root.join(SNAPSHOT)).ok();
        let kept: Option<Value> = kept.and_then(|text| serde_json::from_str(&text).ok());
        kept.iter()
            .flat_map(|kept| verdict::regressions(verdicts, kept))
            .for_each(|line| println!("- {line}"));
    }
    let failures = verdict::failures(verdicts);
    failures.iter().for_each(|failure| eprintln!("could not run: {failure}"));
    if write && failures.is_empty() {
        if let Err(reason) = write_all(ctx, machine, verdicts) {
            eprintln!("{reason}");
            return ExitCode::FAILURE;
        }
    } else if write {
        eprintln!("{PAGE}, {PICTURE} and {SNAPSHOT} stay as they are: they are only written whole");
    }
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn write_all(ctx: &Context, machine: &Machine, verdicts: &[Verdict]) -> Result<(), String> {
    let snapshot =
        serde_json::to_string_pretty(&verdict::snapshot(verdicts)).map_err(|error| error.to_string())?;
    for (file, text) in [
        (PAGE, page::page(machine, verdicts)),
        (PICTURE, plot::picture(verdicts)),
        (SNAPSHOT, format!("{snapshot}\n")),
    ] {
        std::fs::write(ctx.root.join(file), text).map_err(|error| format!("{file}: {error}"))?;
        eprintln!("wrote {file}");
    }
    Ok(())
}

fn measure(ctx: &Context, ferroce: Option<&Path>) -> Result<(Machine, Vec<Verdict>), String> {
    network::check()?;
    let ferroce = ferroce.map_or_else(
        || programs::build(ctx),
        |given| given.canonicalize().map_err(|error| format!("{}: {error}", given.display())),
    )?;
    let logs = ctx.scratch().join("programs");
    std::fs::create_dir_all(&logs).map_err(|error| format!("{}: {error}", logs.display()))?;
    let pingpong = build_pingpong(ctx);
    let machine = Machine::look();
    machine.warning().iter().for_each(|warning| eprintln!("{warning}"));
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = network::inside(&own);
    command.arg("fabric-worker").arg("--ferroce").arg(ferroce).arg("--logs").arg(&logs);
    if let Some(pingpong) = pingpong {
        command.arg("--pingpong").arg(pingpong);
    }
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("unshare: {error}"))?;
    let answer: Value = serde_json::from_slice(&output.stdout)
        .map_err(|_| format!("the measuring side: {}", output.status))?;
    Ok((machine, verdict::of(&answer)))
}

/// The bare ping-pong in C, because it has to stay as bare as it is: nothing of ours is in it.
fn build_pingpong(ctx: &Context) -> Option<PathBuf> {
    let program = ctx.scratch().join("pingpong");
    let source = ctx.root.join("xtask/src/fabric/pingpong.c");
    let built = Command::new("cc").arg("-O2").arg(source).arg("-o").arg(&program).status();
    built.is_ok_and(|status| status.success()).then_some(program)
}
