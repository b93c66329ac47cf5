//! The list of steps, and the loop that runs and tallies them.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::step::{Context, Report, Step};
use crate::{cargo, dsm, fuzz, install, interop, layout, package, programs, tools, unprivileged};

/// Lines of a failed step's output that are shown; the whole of it is in the log.
const SHOWN_LINES: usize = 400;

/// What is run, cheapest first; `tools` before everything that uses one.
#[rustfmt::skip]
const STEPS: [Step; 18] = [
    Step { name: "layout", quick: true, run: layout::check, about: "house style: file sizes, unsafe, names" },
    Step { name: "fmt", quick: true, run: cargo::fmt, about: "cargo fmt --check" },
    Step { name: "tools", quick: false, run: tools::provide, about: "tshark, scapy, setpriv, c++: found or installed" },
    Step { name: "clippy", quick: true, run: cargo::clippy, about: "all targets and features, warnings denied" },
    Step { name: "test", quick: true, run: cargo::test, about: "cargo test, all targets and features (quick: unit tests)" },
    Step { name: "test-udp", quick: false, run: cargo::test_over_udp, about: "the tests that open a NIC once more, without the same-host fabric" },
    Step { name: "kills", quick: false, run: cargo::kills, about: "a thousand processes killed at random moments under traffic" },
    Step { name: "no-std", quick: false, run: cargo::no_std, about: "proto built without the standard library" },
    Step { name: "examples", quick: false, run: cargo::examples, about: "every example built" },
    Step { name: "doc", quick: false, run: cargo::doc, about: "cargo doc, warnings denied" },
    Step { name: "package", quick: false, run: package::check, about: "cargo package of every public package, metadata and files complete" },
    Step { name: "install", quick: false, run: install::check, about: "cargo xtask install, and the installed tree works" },
    Step { name: "programs", quick: false, run: programs::check, about: "Debian's RDMA programs and rdma-core's conformance suite on ferroce" },
    Step { name: "programs-udp", quick: false, run: programs::check_over_udp, about: "the same programs once more, without the same-host fabric" },
    Step { name: "dsm", quick: false, run: dsm::check, about: "shared-memory programs: 1 to 8 processes on every transport" },
    Step { name: "unprivileged", quick: false, run: unprivileged::check, about: "ferroce perf and the integration tests as a user without rights" },
    Step { name: "fuzz", quick: false, run: fuzz::smoke, about: "each fuzz target for 20 s" },
    Step { name: "interop", quick: false, run: interop::check, about: "the Linux kernel's Soft-RoCE as the peer, in a virtual machine" },
];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The edit-test loop: layout, fmt, clippy and unit tests; installs nothing.
    #[arg(long)]
    pub(crate) quick: bool,
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

pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let wanted = |step: &&Step| {
        (!args.quick || step.quick)
            && (args.filter.is_empty() || args.filter.iter().any(|part| step.name.contains(part.as_str())))
    };
    let steps: Vec<&Step> = STEPS.iter().filter(wanted).collect();
    if args.list {
        steps.iter().for_each(|step| println!("{:13} {}", step.name, step.about));
        return ExitCode::SUCCESS;
    }
    if steps.is_empty() {
        eprintln!("no step matches; `cargo xtask test --list` names them");
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
    ctx.screen.borrow_mut().begin(format!("[{at}/{of}] {}", step.name));
    let report = (step.run)(ctx);
    ctx.screen.borrow_mut().end(report.verdict());
    let log = ctx.scratch().join("log").join(format!("{}.log", step.name));
    let logged = std::fs::create_dir_all(ctx.scratch().join("log"))
        .and_then(|()| std::fs::write(&log, report.output.join("\n") + "\n"));
    // With --verbose it has just been shown.
    if !verbose && !report.failures.is_empty() && !report.output.is_empty() {
        show(&report);
        if logged.is_ok() {
            println!("      (all of it: {})", log.display());
        }
    }
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
