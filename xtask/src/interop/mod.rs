//! `cargo xtask interop`: ferroce against the Linux kernel's Soft-RoCE and SoftiWARP.
//!
//! | file | contents |
//! |---|---|
//! | `matrix` | the cases |
//! | `cm` | those that connect by the connection manager |
//! | `iwarp` | those over TCP, with SoftiWARP |
//! | `wire` | the kernel's device of each protocol |
//! | `siw` | builds the kernel module of SoftiWARP |
//! | `runner`, `ends` | runs a case, judges it; the processes on both ends |
//! | `capture`, `report` | counts packets; the table, the JSON and the report of the step |
//! | `figures` | the kernel's devices and ferroce measured in the same guest |
//! | `golden` | packets of the kernel, recorded for the fast tests |
//! | `packages` | Debian packages of the guest, fetched and unpacked |
//! | `program` | our own verifying program, and the libraries for this host |
//! | `modules`, `cpio`, `image` | which kernel modules, the archive format, the guest's file system |
//! | `namespace` | the network between host and guest |
//! | `guest` | the virtual machine and its command channels |
//!
//! The command runs twice: outside, where packages are fetched and programs built, and then once more inside a network
//! namespace, where the guest boots and the cases run.

mod capture;
mod cm;
mod cpio;
mod ends;
mod figures;
mod golden;
mod guest;
mod image;
mod iwarp;
mod matrix;
mod modules;
mod namespace;
mod packages;
mod program;
mod report;
mod runner;
mod siw;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::process::Ran;
use crate::selection::name_of;
use crate::step::{Context, Report};
use crate::tools;

use capture::Traffic;
use guest::Guest;
use image::Image;
use matrix::{Case, Direction, Ip, cases};
use runner::{Bench, Outcome, Verdict};
use wire::Wire;

const GOLDEN_FILE: &str = "crates/proto/tests/data/kernel.hex";
const GOLDEN_STREAMS: &str = "crates/proto/tests/data/siw.hex";
/// The start of the line with the reason of a failure.
const FAILED: &str = "FAILED: ";
/// The start of the line with the reason of a skip.
const SKIPPED: &str = "SKIPPED: ";

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run only what has all these words in its name, for example `verify` or "ib_ v6 from-kernel"; may be repeated.
    /// The whole name of a case, as --list prints it, selects only that case.
    #[arg(long, value_name = "WORDS")]
    filter: Vec<String>,
    /// Of each kind of case only one, in one direction over one IP version.
    #[arg(long)]
    short: bool,
    /// Run what was chosen up to this many times in the same guest, until something fails: for failures that come seldom.
    #[arg(long, value_name = "TIMES")]
    repeat: Option<u16>,
    /// Print the results as JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// List the cases and stop.
    #[arg(long)]
    list: bool,
    /// Keep captures and logs of cases that passed, too; they are in target/interop/artefacts.
    #[arg(long)]
    keep: bool,
    /// Write the kernel's packets anew if every case passes: crates/proto/tests/data/kernel.hex, and siw.hex for iWARP.
    #[arg(long)]
    golden: bool,
    /// Measure the kernel's devices (rdma_rxe, siw) and ferroce in the same guest instead of testing.
    #[arg(long)]
    bench: bool,
    /// Boot the guest, run this line of shell in it, print its output, and stop.
    #[arg(long, value_name = "COMMAND")]
    guest: Option<String>,
    /// The same over iWARP only.
    #[arg(long)]
    short_iwarp: bool,
    /// Set by the outer run for the inner one.
    #[arg(long, hide = true)]
    inside: bool,
}

impl Args {
    /// Whether the table and the output of tools are shown: not where a program reads what is printed.
    pub(crate) fn shows_progress(&self) -> bool {
        !self.json
    }
}

/// Why a case did not finish, or why the command did not.
#[derive(Debug)]
pub(crate) enum Failure {
    /// This machine lacks something.
    Skip(String),
    /// Something failed.
    Broken(String),
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.to_string())
    }
}

/// The command.
pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    if args.list {
        chosen(args).iter().for_each(|run| println!("{}", run.id()));
        return ExitCode::SUCCESS;
    }
    let result = if args.inside {
        inside(ctx, args)
    } else {
        outside(ctx, args)
            .and_then(|ran| report::failure(&ran).map_or(Ok(()), |why| Err(Failure::Broken(why))))
    };
    if args.json {
        print!("{}", std::fs::read_to_string(results(ctx)).unwrap_or_default());
    }
    // With `--json`, standard output has the results only.
    let print = |text: String| if args.json { eprintln!("{text}") } else { println!("{text}") };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Skip(reason)) => {
            print(format!("0 passed, 0 failed, 1 skipped\n{SKIPPED}{reason}"));
            ExitCode::SUCCESS
        }
        Err(Failure::Broken(reason)) => {
            print(format!("{FAILED}{reason}"));
            ExitCode::FAILURE
        }
    }
}

/// The step of `cargo xtask test`.
pub(crate) fn check(ctx: &Context) -> Report {
    let args = Args { short: !ctx.is_full(), short_iwarp: true, ..Args::default() };
    match outside(ctx, &args) {
        Err(Failure::Skip(reason)) => Report::skip(reason),
        Err(Failure::Broken(reason)) => Report::fail(reason),
        Ok(ran) => report::of_step(&std::fs::read_to_string(results(ctx)).unwrap_or_default(), ran),
    }
}

/// Parts of the names of cases that differ from another case only in size or number.
#[rustfmt::skip]
const VARIATIONS: [&str; 13] = [
    "-mtu512", "-mtu1024", "-mtu2048", "-mtu4096", "_lat", "qps", "-4", "-any", "-crc", "iwarp-large", "iwarp-reorder", "iwarp-rust",
    "iwarp-write-range",
];

/// A case in one direction over one IP version.
struct Run {
    case: &'static Case,
    direction: Direction,
    ip: Ip,
}

impl Run {
    fn id(&self) -> String {
        format!("{} {} {}", self.case.name, name_of(self.ip), name_of(self.direction))
    }

    /// Whether the short list contains it. Directions and IP versions alternate from case to case.
    fn is_short(&self) -> bool {
        let Some(index) = cases().position(|case| case.name == self.case.name) else { return false };
        let is_variation = VARIATIONS.iter().any(|part| self.case.name.contains(part));
        let ip = self.case.ips[index / 2 % self.case.ips.len()];
        !is_variation
            && self.direction == self.case.directions[index % self.case.directions.len()]
            && self.ip == ip
    }

    /// The outcome if the case did not finish, mostly because the guest ended.
    fn not_finished(&self, failure: Failure, seconds: f64, cases_left: usize) -> Outcome {
        let (Failure::Skip(reason) | Failure::Broken(reason)) = failure;
        let plural = if cases_left == 1 { "" } else { "s" };
        let left = (cases_left > 0).then(|| format!("{cases_left} case{plural} after it did not run"));
        let remedy = format!("to run it alone: `cargo xtask interop --filter \"{}\"`", self.id());
        Outcome {
            case: self.case.name,
            direction: self.direction,
            ip: self.ip,
            verdict: Verdict::Failed(std::iter::once(reason).chain(left).chain([remedy]).collect()),
            seconds,
            traffic: Traffic::default(),
            kernel_retries: 0,
        }
    }
}

/// Every case in each of its directions over each of its IP versions.
fn every() -> impl Iterator<Item = Run> {
    cases().flat_map(|case| {
        let ips = case.ips.iter();
        ips.flat_map(move |&ip| case.directions.iter().map(move |&direction| Run { case, direction, ip }))
    })
}

/// What the arguments select. A whole name selects one case, even if the names of others contain its words.
fn chosen(args: &Args) -> Vec<Run> {
    let is_name = |words: &String| every().any(|run| run.id() == *words);
    let matches = |run: &Run, words: &String| match is_name(words) {
        true => run.id() == *words,
        false => words.split_whitespace().all(|word| run.id().contains(word)),
    };
    let named = |run: &Run| args.filter.is_empty() || args.filter.iter().any(|words| matches(run, words));
    let is_short = |run: &Run| args.short || args.short_iwarp && run.case.wire == Wire::Iwarp;
    every().filter(|run| named(run) && (!is_short(run) || run.is_short())).collect()
}

fn cache(ctx: &Context) -> PathBuf {
    ctx.root.join("target/interop")
}

fn results(ctx: &Context) -> PathBuf {
    cache(ctx).join("results.json")
}

/// Replaces the contents of `file`. If this process is killed meanwhile, the old contents remain.
fn replace_file(file: &Path, text: &str) -> Result<(), Failure> {
    let half = file.with_extension("half");
    let written = std::fs::write(&half, text).and_then(|()| std::fs::rename(&half, file));
    written.map_err(|error| Failure::Broken(format!("{} was not written: {error}", file.display())))
}

/// Prepares the guest and runs the command once more inside the network namespace. The results of an earlier run are removed.
fn outside(ctx: &Context, args: &Args) -> Result<Ran, Failure> {
    let _ = std::fs::remove_file(results(ctx));
    let cache = cache(ctx);
    std::fs::create_dir_all(&cache)?;
    if tools::which("qemu-system-x86_64").is_none() && !tools::install(ctx, &["qemu-system-x86"]) {
        let hint = "`sudo apt-get install -y --no-install-recommends qemu-system-x86`";
        return Err(Failure::Skip(format!("qemu-system-x86_64 is missing; install it: {hint}")));
    }
    let myself = std::env::current_exe()?;
    let mut job = namespace::enter(ctx, &myself)?.args(["interop", "--inside"]).limit_s(20 * 60);
    let sysroot = packages::provide(ctx, &cache)?;
    program::build(ctx, &cache, &sysroot)?;
    program::provide_libraries(ctx, &cache, &sysroot)?;
    let _ = image(ctx, &cache)?;
    for word in &args.filter {
        job = job.args(["--filter", word]);
    }
    if let Some(times) = args.repeat {
        job = job.args(["--repeat", &times.to_string()]);
    }
    for (wanted, flag) in [
        (args.keep, "--keep"),
        (args.golden, "--golden"),
        (args.bench, "--bench"),
        (args.short, "--short"),
        (args.short_iwarp, "--short-iwarp"),
    ] {
        job = if wanted { job.arg(flag) } else { job };
    }
    if let Some(command) = &args.guest {
        job = job.args(["--guest", command]);
    }
    Ok(job.run(ctx))
}

/// The guest with the programs and libraries of this project, and the reason if it has no SoftiWARP.
fn image(ctx: &Context, cache: &Path) -> Result<(Image, Option<String>), Failure> {
    let sysroot = packages::provide(ctx, cache)?;
    let mut extra = vec![("usr/bin/verify".to_owned(), cache.join("verify"))];
    let library = |name| (format!("{}/{name}", figures::LIBRARY_DIR), cache.join("library").join(name));
    extra.extend(["libibverbs.so.1", "librdmacm.so.1"].map(library));
    let siw = siw::provide(ctx, cache, &sysroot);
    extra.extend(siw.iter().map(|module| (siw::PLACE.to_owned(), module.clone())));
    Ok((image::build(ctx, cache, &sysroot, &extra)?, siw.err()))
}

fn inside(ctx: &Context, args: &Args) -> Result<(), Failure> {
    namespace::set_up()?;
    let cache = cache(ctx);
    let (image, no_siw) = image(ctx, &cache)?;
    let dir = std::env::temp_dir().join(format!("ferroce-interop-{}", std::process::id()));
    let guest = Guest::boot(&image, &dir, &cache)?;
    if let Some(command) = &args.guest {
        let answer = guest.run(0, command, Duration::from_secs(300))?;
        println!("{}\nstatus {}", answer.text, answer.status);
        return Ok(());
    }
    if args.bench {
        return figures::run(&guest, &args.filter, no_siw.as_deref());
    }
    let artefacts = cache.join("artefacts");
    let _ = std::fs::remove_dir_all(&artefacts);
    std::fs::create_dir_all(&artefacts)?;
    let bench = Bench::new(guest, program::host(ctx, &cache), artefacts, args.keep || args.golden);
    let tap = if args.golden { Some(golden::Tap::start(&dir)?) } else { None };
    let (over_rxe, over_siw) =
        chosen(args).into_iter().partition::<Vec<_>, _>(|run| run.case.wire == Wire::Roce);
    let skipped = no_siw.filter(|_| !over_siw.is_empty());
    let repeated = |runs| std::iter::repeat_n(runs, args.repeat.unwrap_or(1).into()).flatten();
    let mut schedule: Vec<&Run> = repeated(&over_rxe).collect();
    if skipped.is_none() {
        schedule.extend(repeated(&over_siw));
    }
    let outcomes = run_all(
        &schedule,
        args.repeat.is_some(),
        |run| bench.run(run.case, run.direction, run.ip, bench.next_number()),
        || bench.guest.run(ends::WORK, "true", ends::LIMIT).map(drop),
        |outcomes| report::write(outcomes, skipped.as_deref(), &results(ctx)),
    )?;
    let failed = outcomes.iter().filter(|outcome| outcome.is_failure()).count();
    match tap {
        // A failed case, or one that did not run, lacks packets.
        Some(_) if failed > 0 => println!("{GOLDEN_FILE} and {GOLDEN_STREAMS} stay unchanged"),
        Some(tap) => {
            let kinds = tap.finish(&ctx.root.join(GOLDEN_FILE))?;
            println!("{kinds} kinds of packets written to {GOLDEN_FILE}");
            let frames = golden::write_streams(&bench.artefacts, &ctx.root.join(GOLDEN_STREAMS))?;
            println!("{frames} frames written to {GOLDEN_STREAMS}");
        }
        None => {}
    }
    if let Some(why) = &skipped {
        println!("{SKIPPED}{} cases over iWARP: {why}", over_siw.len());
    }
    println!(
        "\n{} passed, {failed} failed, {} skipped",
        outcomes.len() - failed,
        usize::from(skipped.is_some())
    );
    match failed {
        0 => Ok(()),
        _ => {
            let (of, see) = (outcomes.len(), bench.artefacts.display());
            Err(Failure::Broken(format!("{failed} of {of} cases; see {see}")))
        }
    }
}

/// Runs the cases in this order. Prints each outcome and saves all of them, so that they remain if this process is killed.
/// Stops at a case that did not finish, since the guest may have ended. `check_guest` runs after the last case, because a guest
/// that ends during a case is noticed by the next command.
fn run_all(
    schedule: &[&Run],
    stops_at_failure: bool,
    mut run_case: impl FnMut(&Run) -> Result<Outcome, Failure>,
    check_guest: impl Fn() -> Result<(), Failure>,
    save: impl Fn(&[Outcome]) -> Result<(), Failure>,
) -> Result<Vec<Outcome>, Failure> {
    println!("{}", report::heading());
    let mut outcomes = Vec::new();
    save(&outcomes)?;
    for (run, cases_left) in schedule.iter().zip((0..schedule.len()).rev()) {
        let started = Instant::now();
        let result = match run_case(run) {
            Ok(outcome) if cases_left == 0 && !outcome.is_failure() => check_guest().map(|()| outcome),
            result => result,
        };
        let is_finished = result.is_ok();
        let outcome = result
            .unwrap_or_else(|failure| run.not_finished(failure, started.elapsed().as_secs_f64(), cases_left));
        println!("{}", report::line(&outcome));
        // The next run of a failed case would overwrite its log and capture.
        let is_last = !is_finished || stops_at_failure && outcome.is_failure();
        outcomes.push(outcome);
        save(&outcomes)?;
        if is_last {
            break;
        }
    }
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed(run: &Run) -> Outcome {
        let Run { case, direction, ip } = *run;
        let (traffic, verdict) = (Traffic::default(), Verdict::Passed);
        Outcome { case: case.name, direction, ip, verdict, seconds: 1.0, traffic, kernel_retries: 0 }
    }

    #[test]
    fn the_step_reports_the_cases_before_the_guest_ended_and_why_it_ended() {
        let runs = chosen(&Args { short: true, ..Args::default() });
        let schedule: Vec<&Run> = runs.iter().take(5).collect();
        let (guest, channel) = guest::tests::guest("step", guest::tests::PANIC, "");
        drop(channel);
        let file = std::env::temp_dir().join(format!("ferroce-results-{}.json", std::process::id()));
        let mut earlier = 2;
        let run_case = |run: &Run| {
            if earlier == 0 {
                guest.run(0, run.case.program, Duration::from_secs(1))?;
            }
            earlier -= 1;
            Ok(passed(run))
        };
        let save = |rows: &[Outcome]| report::write(rows, None, &file);
        let outcomes = run_all(&schedule, false, run_case, || Ok(()), save).unwrap();
        assert_eq!(outcomes.len(), 3);
        let results = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let report = report::of_step(&results, Ran::example("FAILED: 1 of 3 cases; see artefacts", false));
        assert_eq!((report.passed, report.failures.len()), (2, 1));
        let failure = &report.failures[0];
        let remedy = format!("--filter \"{}\"`", runs[2].id());
        for part in
            [&runs[2].id(), "`BUG: kernel NULL pointer dereference", "console.log", "; 2 cases", &remedy]
        {
            assert!(failure.contains(part), "{part:?} is missing: {failure}");
        }
    }

    #[test]
    fn a_guest_that_ends_in_the_last_case_fails_it() {
        let runs = chosen(&Args { short: true, ..Args::default() });
        let schedule: Vec<&Run> = runs.iter().take(2).collect();
        let ended = || Err(Failure::Broken("the guest ended".to_owned()));
        let outcomes = run_all(&schedule, false, |run| Ok(passed(run)), ended, |_| Ok(())).unwrap();
        assert_eq!(outcomes.iter().map(Outcome::is_failure).collect::<Vec<_>>(), [false, true]);
    }

    #[test]
    fn a_whole_name_selects_one_case() {
        let names = |words: &str| {
            let args = Args { filter: vec![words.to_owned()], ..Args::default() };
            chosen(&args).iter().map(Run::id).collect::<Vec<_>>()
        };
        assert_eq!(names("verify-rc v4 to-kernel"), ["verify-rc v4 to-kernel"]);
        assert!(names("verify-rc to-kernel v4").len() > 1);
    }

    #[test]
    fn a_file_is_replaced_and_an_error_names_it() {
        let file = std::env::temp_dir().join(format!("ferroce-replaced-{}.json", std::process::id()));
        std::fs::write(&file, "old").unwrap();
        replace_file(&file, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert!(!file.with_extension("half").exists());
        std::fs::remove_file(&file).unwrap();
        let Err(Failure::Broken(reason)) = replace_file(Path::new("/nonexistent/results.json"), "new") else {
            panic!("/nonexistent exists")
        };
        assert!(reason.starts_with("/nonexistent/results.json was not written: "), "{reason}");
    }
}
