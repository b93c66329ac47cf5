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
//! | `capture`, `report` | counts packets; the table and the JSON |
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
use std::time::Duration;

use serde_json::Value;

use crate::selection::name_of;
use crate::step::{Context, Report};
use crate::tools;

use guest::Guest;
use image::Image;
use matrix::{Case, Direction, Ip, cases};
use runner::{Bench, Outcome, Verdict};
use wire::Wire;

const GOLDEN_FILE: &str = "crates/proto/tests/data/kernel.hex";
const GOLDEN_STREAMS: &str = "crates/proto/tests/data/siw.hex";

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Run only what has all these words in its name, for example `verify` or "ib_ v6 from-kernel"; may be repeated.
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
    /// Write the kernel's packets anew: crates/proto/tests/data/kernel.hex, and siw.hex for iWARP.
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

/// Why no case could run.
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
    let result = if args.inside { inside(ctx, args) } else { outside(ctx, args) };
    match result {
        Ok(()) if args.json && !args.inside => {
            print!("{}", std::fs::read_to_string(results(ctx)).unwrap_or_default());
            ExitCode::SUCCESS
        }
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Skip(reason)) => {
            println!("SKIPPED: {reason}\n0 passed, 0 failed, 1 skipped");
            ExitCode::SUCCESS
        }
        Err(Failure::Broken(reason)) => {
            println!("FAILED: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// The step of `cargo xtask test`.
pub(crate) fn check(ctx: &Context) -> Report {
    let _ = std::fs::remove_file(results(ctx));
    let args = Args { short: !ctx.is_full(), short_iwarp: true, ..Args::default() };
    let failure = match outside(ctx, &args) {
        Err(Failure::Skip(reason)) => return Report::skip(reason),
        Err(Failure::Broken(reason)) => Some(reason),
        Ok(()) => None,
    };
    let mut report = Report::default();
    let text = std::fs::read_to_string(results(ctx)).unwrap_or_default();
    let rows: Value = serde_json::from_str(&text).unwrap_or_default();
    for row in rows["cases"].as_array().into_iter().flatten() {
        if row["result"] == "skipped" {
            report.skips.push(row["notes"].to_string());
        } else if row["result"] == "failed" {
            report
                .failures
                .push(format!("{} {} {}: {}", row["test"], row["ip"], row["direction"], row["notes"]));
        } else {
            report.passed += 1;
        }
    }
    // A run that failed before its first case has no rows.
    if report.failures.is_empty() {
        report.failures.extend(failure);
    }
    report.output.push(text);
    report
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
}

fn chosen(args: &Args) -> Vec<Run> {
    let every = cases().flat_map(|case| {
        let ips = case.ips.iter();
        ips.flat_map(move |&ip| case.directions.iter().map(move |&direction| Run { case, direction, ip }))
    });
    let matches = |run: &Run, words: &String| words.split_whitespace().all(|word| run.id().contains(word));
    let named = |run: &Run| args.filter.is_empty() || args.filter.iter().any(|words| matches(run, words));
    let is_short = |run: &Run| args.short || args.short_iwarp && run.case.wire == Wire::Iwarp;
    every.filter(|run| named(run) && (!is_short(run) || run.is_short())).collect()
}

fn cache(ctx: &Context) -> PathBuf {
    ctx.root.join("target/interop")
}

fn results(ctx: &Context) -> PathBuf {
    cache(ctx).join("results.json")
}

fn outside(ctx: &Context, args: &Args) -> Result<(), Failure> {
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
    match job.run(ctx).failure() {
        None => Ok(()),
        Some(failure) => Err(Failure::Broken(failure)),
    }
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
    let guest = Guest::boot(&image, &dir)?;
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
    let (runs, over_siw) = chosen(args).into_iter().partition::<Vec<_>, _>(|run| run.case.wire == Wire::Roce);
    let mut outcomes = run_all(&bench, &runs, args.repeat)?;
    let skipped = no_siw.filter(|_| !over_siw.is_empty());
    if skipped.is_none() {
        outcomes.extend(run_all(&bench, &over_siw, args.repeat)?);
    }
    if let Some(tap) = tap {
        // Only the packets of cases that ran are replaced.
        let kinds = tap.finish(&ctx.root.join(GOLDEN_FILE))?;
        println!("{kinds} kinds of packets in {GOLDEN_FILE}");
        let frames = golden::write_streams(&bench.artefacts, &ctx.root.join(GOLDEN_STREAMS))?;
        println!("{frames} frames in {GOLDEN_STREAMS}");
    }
    report::write(&outcomes, skipped.as_deref(), &results(ctx))?;
    let failed = outcomes.iter().filter(|outcome| matches!(outcome.verdict, Verdict::Failed(_))).count();
    if let Some(why) = &skipped {
        println!("SKIPPED: {} cases over iWARP: {why}", over_siw.len());
    }
    println!(
        "\n{} passed, {failed} failed, {} skipped",
        outcomes.len() - failed,
        usize::from(skipped.is_some())
    );
    match failed {
        0 => Ok(()),
        _ => Err(Failure::Broken(format!("{failed} cases; see {}", bench.artefacts.display()))),
    }
}

fn run_all(bench: &Bench, runs: &[Run], repeat: Option<u16>) -> Result<Vec<Outcome>, Failure> {
    if runs.is_empty() {
        return Ok(Vec::new());
    }
    println!("{}", report::heading());
    let mut outcomes = Vec::new();
    let again = std::iter::repeat_n(runs, repeat.unwrap_or(1).into()).flatten();
    for run in again {
        let number = bench.next_number();
        let outcome = bench.run(run.case, run.direction, run.ip, number)?;
        println!("{}", report::line(&outcome));
        let failed = matches!(outcome.verdict, Verdict::Failed(_));
        outcomes.push(outcome);
        if failed && repeat.is_some() {
            // The next run of this case would overwrite its log and capture.
            break;
        }
    }
    Ok(outcomes)
}
