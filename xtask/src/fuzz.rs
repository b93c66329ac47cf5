//! libFuzzer targets on a stable toolchain.
//!
//! Coverage is a pass of LLVM that stable rustc can run, so neither nightly nor cargo-fuzz is needed. Only the address
//! sanitiser would need nightly; except for `ring`, the code under test has no `unsafe`. The layout of fuzz/ is that of
//! cargo-fuzz, so `cargo +nightly fuzz run TARGET` works as well.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::Value;

use crate::links::first_code;
use crate::process::{Job, Ran};
use crate::step::{Context, Report, fail};

const MANIFEST: &str = "fuzz/Cargo.toml";
const README: &str = "fuzz/README.md";
/// Processor seconds that all targets together get inside `cargo xtask test`, and with `--full`. The targets share them, so a new
/// target does not make the step longer.
const SMOKE_SECONDS: u64 = 24;
const FULL_SECONDS: u64 = 160;
/// Targets that run in parallel. Each uses one processor.
const PARALLEL: usize = 2;
/// The longest seed that is kept in the repository: a management datagram has 256 bytes.
const SEED_BYTES: usize = 300;

/// The flags of cargo-fuzz without the sanitiser. Debug assertions and overflow checks make a bug a crash.
const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Coverflow-checks -Ccodegen-units=1";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only this target.
    target: Option<String>,
    /// How long each target runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// How long all of them run together, one after the other, instead. Inputs that crash are kept, and the other targets go on.
    #[arg(long, conflicts_with = "seconds")]
    hours: Option<f64>,
    /// Write few of the inputs that were found, which reach every line that all of them reach, into fuzz/seeds instead.
    #[arg(long, conflicts_with_all = ["seconds", "hours", "input"])]
    minimise: bool,
    /// Run the target once on this file instead: the replay of a crash.
    #[arg(long, value_name = "FILE", requires = "target")]
    input: Option<PathBuf>,
    /// List the targets and stop.
    #[arg(long)]
    list: bool,
}

/// The command.
pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let targets = match targets(ctx) {
        Ok(targets) => targets,
        Err(reason) => return fail(&reason),
    };
    if args.list {
        targets.iter().for_each(|target| println!("{target}"));
        return ExitCode::SUCCESS;
    }
    let wanted = |target: &&String| args.target.as_ref().is_none_or(|name| name == *target);
    let chosen: Vec<&String> = targets.iter().filter(wanted).collect();
    if chosen.is_empty() {
        return fail(&format!("no such fuzz target; there are: {}", targets.join(", ")));
    }
    let built = build(ctx);
    if let Some(failure) = built.failure() {
        return fail(&failure);
    }
    let seconds = args.hours.map_or(args.seconds, |hours| (hours * 3600.0) as u64 / chosen.len() as u64);
    let mut report = Report::default();
    for target in &chosen {
        report.merge(match &args.input {
            Some(input) => Report::of(replay(ctx, target, input)),
            None if args.minimise => minimise(ctx, target),
            None => hunt(ctx, target, seconds),
        });
    }
    let (failures, count) = (report.failures, executions(&report.output));
    println!("{count} executions");
    failures.iter().for_each(|failure| eprintln!("FAILED: {failure}"));
    if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The step: runs each target briefly.
pub(crate) fn smoke(ctx: &Context) -> Report {
    if !ctx.root.join(MANIFEST).exists() {
        return Report::skip(format!("there is no {MANIFEST}"));
    }
    if ctx.tools().cxx.is_none() {
        return Report::skip(
            "c++ is missing and libFuzzer needs it; install it: `sudo apt-get install -y g++`",
        );
    }
    let targets = match targets(ctx) {
        Ok(targets) if targets.is_empty() => return Report::skip(format!("{MANIFEST} names no target")),
        Ok(targets) => targets,
        Err(reason) => return Report::fail(reason),
    };
    let built = build(ctx);
    if !built.success() {
        return Report::of(built);
    }
    let sum = if ctx.is_full() { FULL_SECONDS } else { SMOKE_SECONDS };
    let seconds = (sum / targets.len() as u64).max(1);
    let mut report = Report::default();
    for some in targets.chunks(PARALLEL) {
        std::thread::scope(|scope| {
            let hunts: Vec<_> =
                some.iter().map(|target| scope.spawn(move || hunt(ctx, target, seconds))).collect();
            for hunt in hunts {
                report.merge(hunt.join().unwrap_or_else(|_| Report::fail("a thread of the step panicked")));
            }
        });
    }
    report.notes.push(format!("{} executions of {} targets", executions(&report.output), targets.len()));
    report
}

/// The sum of the executions that libFuzzer reports at its end.
fn executions(lines: &[String]) -> u64 {
    let count = |line: &String| line.strip_prefix("Done ")?.split_once(" runs")?.0.parse::<u64>().ok();
    lines.iter().filter_map(count).sum()
}

/// Names of the binaries in fuzz/.
fn targets(ctx: &Context) -> Result<Vec<String>, String> {
    let args = ["metadata", "--no-deps", "--format-version", "1", "--manifest-path", MANIFEST];
    let metadata: Value = serde_json::from_str(&Job::cargo(args).answer(ctx)?).map_err(|e| e.to_string())?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let bins = packages
        .flat_map(|package| package["targets"].as_array().into_iter().flatten())
        .filter(|target| target["kind"].as_array().into_iter().flatten().any(|kind| kind == "bin"));
    Ok(bins.filter_map(|target| Some(target["name"].as_str()?.to_owned())).collect())
}

fn build(ctx: &Context) -> Ran {
    // With an explicit target, cargo does not apply the flags to build scripts, which do not link libFuzzer.
    let host = host(ctx);
    Job::cargo(["build", "--release", "--bins", "--manifest-path", MANIFEST, "--target-dir", "fuzz/target"])
        .args(["--target", &host])
        .env("RUSTFLAGS", RUSTFLAGS)
        .run(ctx)
}

fn host(ctx: &Context) -> String {
    let version = Job::new("rustc").arg("-vV").answer(ctx).unwrap_or_default();
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.unwrap_or("x86_64-unknown-linux-gnu").to_owned()
}

fn binary(ctx: &Context, target: &str) -> PathBuf {
    ctx.root.join("fuzz/target").join(host(ctx)).join("release").join(target)
}

fn replay(ctx: &Context, target: &str, input: &PathBuf) -> Ran {
    Job::new(binary(ctx, target)).arg(input).run(ctx)
}

/// The inputs of a target that the repository keeps: one per line, as hexadecimal digits.
fn seeds_file(ctx: &Context, target: &str) -> PathBuf {
    ctx.root.join("fuzz/seeds").join(format!("{target}.hex"))
}

/// Writes each seed of a target into a file of its own, as libFuzzer reads them, and returns their folder.
fn unpack_seeds(ctx: &Context, target: &str) -> std::io::Result<PathBuf> {
    let folder = ctx.root.join("fuzz/target/seeds").join(target);
    if folder.exists() {
        std::fs::remove_dir_all(&folder)?;
    }
    std::fs::create_dir_all(&folder)?;
    let file = seeds_file(ctx, target);
    let lines = if file.exists() { std::fs::read_to_string(&file)? } else { String::new() };
    for (at, line) in lines.lines().enumerate() {
        let seed = from_hex(line).ok_or_else(|| {
            std::io::Error::other(format!("{}:{}: not a line of hexadecimal bytes", file.display(), at + 1))
        })?;
        std::fs::write(folder.join(at.to_string()), seed)?;
    }
    Ok(folder)
}

/// Replaces the seeds of a target by the inputs of a folder, the shortest first.
fn pack_seeds(ctx: &Context, target: &str, chosen: &Path) -> std::io::Result<()> {
    let paths = std::fs::read_dir(chosen)?.map(|entry| entry.map(|entry| entry.path()));
    let mut inputs = paths.map(|path| std::fs::read(path?)).collect::<std::io::Result<Vec<_>>>()?;
    inputs.sort_by_key(|input| (input.len(), input.clone()));
    let file = seeds_file(ctx, target);
    std::fs::create_dir_all(file.parent().expect("it lies in a folder"))?;
    std::fs::write(file, inputs.iter().map(|input| to_hex(input) + "\n").collect::<String>())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}

/// Replaces the seeds of a target by a small subset of all known inputs that reaches the same branches.
fn minimise(ctx: &Context, target: &str) -> Report {
    let (corpus, chosen) = (ctx.root.join("fuzz/corpus").join(target), ctx.root.join("fuzz/target/chosen"));
    let prepare = || {
        let _ = std::fs::remove_dir_all(&chosen);
        std::fs::create_dir_all(&chosen)?;
        std::fs::create_dir_all(&corpus)?;
        unpack_seeds(ctx, target)
    };
    let seeds = match prepare() {
        Ok(seeds) => seeds,
        Err(error) => return Report::fail(format!("{target}: {error}")),
    };
    // Short inputs, each of which reaches a branch that no other reaches. Without counters, the number of times does not matter, so the
    // seeds of a target have a few KiB.
    let options = ["-set_cover_merge=1", "-use_counters=0", &format!("-max_len={SEED_BYTES}")];
    let mut report =
        Report::of(Job::new(binary(ctx, target)).args(options).args([&chosen, &corpus, &seeds]).run(ctx));
    if report.failures.is_empty()
        && let Err(error) = pack_seeds(ctx, target, &chosen)
    {
        report.failures.push(format!("{target}: {error}"));
    }
    report
}

/// Targets without a row in the table of fuzz/README.md, and rows without a target.
pub(crate) fn undocumented_targets(root: &Path) -> Vec<String> {
    let files = std::fs::read_dir(root.join("fuzz/fuzz_targets")).into_iter().flatten().flatten();
    let mut targets: Vec<String> =
        files.filter_map(|file| Some(file.path().file_stem()?.to_str()?.to_owned())).collect();
    targets.sort();
    compare(&targets, &std::fs::read_to_string(root.join(README)).unwrap_or_default())
}

fn compare(targets: &[String], readme: &str) -> Vec<String> {
    let table = readme.lines().skip_while(|line| !line.starts_with("| target |"));
    let rows: Vec<String> = table.take_while(|line| line.starts_with('|')).filter_map(first_code).collect();
    let missing = targets.iter().filter(|target| !rows.contains(target));
    let stale = rows.iter().filter(|row| !targets.contains(row));
    missing
        .map(|target| format!("{README}:1: no row for the target {target}"))
        .chain(stale.map(|row| format!("{README}:1: there is no target {row}")))
        .collect()
}

/// Runs one target. A crash leaves its input in fuzz/artifacts, and the failure names the command that replays it.
fn hunt(ctx: &Context, target: &str, seconds: u64) -> Report {
    let folder = |kind: &str| ctx.root.join("fuzz").join(kind).join(target);
    let (corpus, artifacts) = (folder("corpus"), folder("artifacts"));
    let prepare = || {
        std::fs::create_dir_all(&corpus)?;
        std::fs::create_dir_all(&artifacts)?;
        unpack_seeds(ctx, target)
    };
    let seeds = match prepare() {
        Ok(seeds) => seeds,
        Err(error) => return Report::fail(format!("{target}: {error}")),
    };
    let ran = Job::new(binary(ctx, target))
        .args([&corpus, &seeds])
        .arg(format!("-artifact_prefix={}/", artifacts.display()))
        .args([format!("-max_total_time={seconds}"), "-timeout=10".to_owned()])
        .limit_s(seconds + 120)
        .run(ctx);
    let crash = ran
        .lines
        .iter()
        .find_map(|line| line.split_once("Test unit written to ").map(|(_, file)| file.to_owned()));
    let mut report = Report::of(ran);
    if let Some(failure) = report.failures.first_mut() {
        report.extract = without_progress(&report.output);
        if let Some(file) = crash {
            *failure = format!("{target} crashed; replay it: `cargo xtask fuzz {target} --input {file}`");
        }
    }
    report
}

/// The lines of libFuzzer that do not report progress: the panic, its backtrace and the input are among them.
fn without_progress(lines: &[String]) -> Vec<String> {
    let is_progress = |line: &str| {
        line.strip_prefix('#').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    lines.iter().filter(|line| !is_progress(line)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_written_and_read_as_digits() {
        for bytes in [vec![], vec![0], vec![0x0a, 0xff, 0x10]] {
            assert_eq!(from_hex(&to_hex(&bytes)), Some(bytes));
        }
        assert_eq!([from_hex("0"), from_hex("zz"), from_hex("0é")], [None, None, None]);
    }

    #[test]
    fn a_crash_is_shown_without_progress() {
        let lines =
            ["#7001\tNEW    cov: 207", "thread panicked at src/x.rs:1:1:", "  #0 0x55 in f", "#8: pulse"];
        let shown = without_progress(&lines.map(str::to_owned));
        assert_eq!(shown, ["thread panicked at src/x.rs:1:1:", "  #0 0x55 in f"]);
    }

    #[test]
    fn the_readme_must_name_every_target_and_no_other() {
        let readme = "| target | what |\n|---|---|\n| `a` | x |\n| `b` | y |\n\n| `not one` | z |\n";
        let targets = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(compare(&targets(&["a", "b"]), readme), [""; 0]);
        let found = compare(&targets(&["a", "c"]), readme);
        assert_eq!(
            found,
            ["fuzz/README.md:1: no row for the target c", "fuzz/README.md:1: there is no target b"]
        );
    }
}
