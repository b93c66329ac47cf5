//! The list of steps, and the loop that runs and tallies them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::selection::name_of;
use crate::step::{Context, Report, Step, Tier};
use crate::{
    cargo, deny, dsm, fuzz, install, instructions, interop, layout, package, programs, soak, tools,
    unprivileged,
};

/// Lines of a failed step's output that are shown; the whole of it is in the log.
const SHOWN_LINES: usize = 400;

/// The steps, cheapest first. `tools` precedes all steps that use a tool.
#[rustfmt::skip]
const STEPS: [Step; 23] = [
    Step { name: "layout", tier: Tier::Quick, run: layout::check, about: "house style: file sizes, unsafe, names" },
    Step { name: "fmt", tier: Tier::Quick, run: cargo::fmt, about: "cargo fmt --check" },
    Step { name: "deny", tier: Tier::Default, run: deny::check, about: "licences, versions and sources of the dependencies, all of them listed; advisories where cargo-deny is" },
    Step { name: "tools", tier: Tier::Default, run: tools::provide, about: "tshark, scapy, promtool, setpriv, valgrind, c++, Chromium, headers, perftest, packages of `programs`: found or installed" },
    Step { name: "clippy", tier: Tier::Quick, run: cargo::clippy, about: "all targets and features, warnings denied" },
    Step { name: "test", tier: Tier::Quick, run: cargo::test, about: "cargo test, all targets and features (quick: unit tests; full: also under valgrind and ThreadSanitizer)" },
    Step { name: "test-udp", tier: Tier::Default, run: cargo::test_over_udp, about: "tests that open a NIC once more, without the same-host fabric (full: all of them)" },
    Step { name: "kills", tier: Tier::Full, run: cargo::kills, about: "two thousand processes killed at random moments under traffic" },
    Step { name: "soak", tier: Tier::Full, run: soak::check, about: "mixed traffic with kills for 12 s on each link: memory, descriptors and files do not grow" },
    Step { name: "miri", tier: Tier::Full, run: cargo::miri, about: "unit tests of proto in Miri, where a toolchain has it" },
    Step { name: "models", tier: Tier::Default, run: cargo::models, about: "loom on the ring, the lock, region guards and cached regions: all orders of steps with few preemptions" },
    Step { name: "no-std", tier: Tier::Default, run: cargo::no_std, about: "proto built without the standard library" },
    Step { name: "examples", tier: Tier::Default, run: cargo::examples, about: "every example built" },
    Step { name: "doc", tier: Tier::Default, run: cargo::doc, about: "cargo doc, warnings denied" },
    Step { name: "package", tier: Tier::Default, run: package::check, about: "cargo package of every public package, metadata and files complete" },
    Step { name: "install", tier: Tier::Default, run: install::check, about: "cargo xtask install, and the installed tree works" },
    Step { name: "instructions", tier: Tier::Default, run: instructions::check, about: "instructions per operation against crates/bench/instructions.txt" },
    Step { name: "programs", tier: Tier::Default, run: programs::check, about: "Debian's RDMA programs and rdma-core's conformance suite on ferroce (full: every variation)" },
    Step { name: "programs-udp", tier: Tier::Default, run: programs::check_over_udp, about: "some of them without the same-host fabric (full: all of them)" },
    Step { name: "dsm", tier: Tier::Default, run: dsm::check, about: "shared-memory programs on every transport (full: each with 1 to 8 processes)" },
    Step { name: "unprivileged", tier: Tier::Default, run: unprivileged::check, about: "ferroce perf and integration tests as a user without rights (full: all of them)" },
    Step { name: "fuzz", tier: Tier::Default, run: fuzz::smoke, about: "the fuzz targets for 12 s, two at once (full: 80 s)" },
    Step { name: "interop", tier: Tier::Default, run: interop::check, about: "the Linux kernel's Soft-RoCE as the peer, in a virtual machine (full: every variation)" },
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The edit-test loop: layout, fmt, clippy and unit tests; installs nothing.
    #[arg(long, conflicts_with = "full")]
    quick: bool,
    /// What only repeats as well: every program on both links, every test as a second user, long fuzzing; up to an hour.
    #[arg(long)]
    full: bool,
    /// Show the output of each step while it runs.
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Run only the steps whose name contains this; may be given several times.
    #[arg(long, value_name = "STEP")]
    filter: Vec<String>,
    /// List the steps and stop.
    #[arg(long)]
    list: bool,
}

struct Done {
    name: &'static str,
    took: Duration,
    report: Report,
}

impl Args {
    pub(crate) fn tier(&self) -> Tier {
        match (self.quick, self.full) {
            (true, _) => Tier::Quick,
            (_, true) => Tier::Full,
            _ => Tier::Default,
        }
    }

    /// The selected steps, in order.
    fn steps(&self) -> Vec<&'static Step> {
        let named = |step: &Step| {
            self.filter.is_empty() || self.filter.iter().any(|part| step.name.contains(part.as_str()))
        };
        STEPS.iter().filter(|step| step.tier <= self.tier() && named(step)).collect()
    }
}

pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let steps = args.steps();
    if args.list {
        steps.iter().for_each(|step| println!("{:13} {:8} {}", step.name, name_of(step.tier), step.about));
        return ExitCode::SUCCESS;
    }
    if steps.is_empty() {
        eprintln!(
            "no step of this tier matches; `cargo xtask test --full --list` names all steps and their tiers"
        );
        return ExitCode::from(2);
    }
    let done: Vec<Done> = steps
        .iter()
        .enumerate()
        .map(|(at, step)| run_step(ctx, step, at + 1, steps.len(), args.verbose))
        .collect();
    close(&done)
}

fn run_step(ctx: &Context, step: &Step, at: usize, of: usize, verbose: bool) -> Done {
    let started = Instant::now();
    ctx.screen.lock().expect("no thread panics while it draws").begin(format!("[{at}/{of}] {}", step.name));
    let report = (step.run)(ctx);
    ctx.screen.lock().expect("no thread panics while it draws").end(report.verdict());
    let log = ctx.scratch().join("log").join(format!("{}.log", step.name));
    let logged = std::fs::create_dir_all(ctx.scratch().join("log"))
        .and_then(|()| std::fs::write(&log, report.output.join("\n") + "\n"));
    // With --verbose the output was already shown.
    if !verbose && !report.failures.is_empty() && !report.output.is_empty() {
        show(&report);
        if logged.is_ok() {
            println!("      (all of it: {})", log.display());
        }
    }
    report.notes.iter().for_each(|note| println!("      NOTE: {note}"));
    report.skips.iter().for_each(|skip| println!("      SKIPPED: {skip}"));
    report.failures.iter().for_each(|failure| println!("      FAILED: {failure}"));
    Done { name: step.name, took: started.elapsed(), report }
}

fn show(report: &Report) {
    let lines = if report.extract.is_empty() { &report.output } else { &report.extract };
    let hidden = lines.len().saturating_sub(SHOWN_LINES);
    if hidden > 0 {
        println!("      ({hidden} lines left out)");
    }
    lines[hidden..].iter().for_each(|line| println!("      {line}"));
}

/// The table, every skip and failure once more, and the closing line that CI reads.
fn close(done: &[Done]) -> ExitCode {
    println!("\n{:13} {:8} {:>9} {:>8} {:>8} {:>8}", "step", "result", "time", "passed", "failed", "skipped");
    for Done { name, took, report } in done {
        println!(
            "{name:13} {:8} {:>7.1} s {:>8} {:>8} {:>8}",
            report.verdict(),
            took.as_secs_f64(),
            report.passed,
            report.failures.len(),
            report.skips.len()
        );
    }
    let total_s: f64 = done.iter().map(|step| step.took.as_secs_f64()).sum();
    println!("{:22} {total_s:>7.1} s", "total");
    list("noted", done, |report| &report.notes);
    list("skipped", done, |report| &report.skips);
    list("failed", done, |report| &report.failures);
    let passed: usize = done.iter().map(|step| step.report.passed).sum();
    let failed: usize = done.iter().map(|step| step.report.failures.len()).sum();
    let skipped: usize = done.iter().map(|step| step.report.skips.len()).sum();
    println!("\n{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn list(title: &str, done: &[Done], pick: fn(&Report) -> &Vec<String>) {
    if done.iter().all(|step| pick(&step.report).is_empty()) {
        return;
    }
    println!("\n{title}:");
    for step in done {
        pick(&step.report).iter().for_each(|reason| println!("  {}: {reason}", step.name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn names(line: &str) -> Vec<&'static str> {
        let words = std::iter::once("test").chain(line.split_whitespace());
        Line::try_parse_from(words).expect("a good line").args.steps().iter().map(|step| step.name).collect()
    }

    #[test]
    fn a_tier_includes_the_ones_before_it() {
        let (quick, usual, full) = (names("--quick"), names(""), names("--full"));
        assert_eq!(quick, ["layout", "fmt", "clippy", "test"]);
        assert!(quick.iter().all(|name| usual.contains(name)));
        assert!(usual.contains(&"interop") && !usual.contains(&"kills"), "{usual:?}");
        assert_eq!(full, STEPS.map(|step| step.name));
    }

    #[test]
    fn a_filter_chooses_within_the_tier() {
        assert_eq!(names("--filter programs"), ["programs", "programs-udp"]);
        assert_eq!(names("--filter fmt --filter doc"), ["fmt", "doc"]);
        assert_eq!(names("--filter kills"), [""; 0]);
        assert_eq!(names("--full --filter kills"), ["kills"]);
        assert_eq!(names("--quick --filter interop"), [""; 0]);
        assert!(Line::try_parse_from(["test", "--quick", "--full"]).is_err());
    }
}
