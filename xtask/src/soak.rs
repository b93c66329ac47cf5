//! Mixed traffic for a given time, on both links. Memory, descriptors and files must not grow.

use std::process::ExitCode;

use crate::libtest;
use crate::process::Job;
use crate::step::{Context, Report, fail};

/// How long the step runs on each link. A leak of a descriptor per round shows in the first second; memory needs longer runs.
const STEP_SECONDS: u64 = 12;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// How long it runs, half of it on each link.
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

/// The command.
pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let report = on_both_links(ctx, args.minutes * 30);
    if report.failures.is_empty() { ExitCode::SUCCESS } else { fail(&report.failures.join("\n")) }
}

/// The step.
pub(crate) fn check(ctx: &Context) -> Report {
    on_both_links(ctx, STEP_SECONDS)
}

fn on_both_links(ctx: &Context, seconds: u64) -> Report {
    let mut report = Report::default();
    let links = ["auto", "udp"];
    for link in links {
        // All members and features, as in the step `test`, so that cargo reuses its build.
        let words = "test --workspace --all-features --test soak nothing_grows -- --nocapture";
        let job = Job::cargo(words.split(' ')).env("FERROCE_SOAK_SECONDS", seconds.to_string());
        report.merge(libtest::report(job.env("FERROCE_LINK", link).limit_s(seconds + 600).run(ctx)));
    }
    if report.failures.is_empty() && report.passed != links.len() {
        report.failures.push(format!("{} of {} runs took place", report.passed, links.len()));
    }
    report
}
