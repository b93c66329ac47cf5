//! `ferroce doctor`: what works on this machine, what does not, why, and what to do.
//!
//! Each check tries the function itself; it does not guess from versions or settings.
//!
//! | file | checks |
//! |---|---|
//! | `library` | the drop-in library: found, complete |
//! | `network` | addresses, the port, offloads, steering |
//! | `host` | shared memory, namespaces, the kernel's own RDMA |
//! | `local` | the path between two processes of this host |
//! | `programs` | foreign programs: installed, and a transfer through the library |
//! | `command` | one command: which libraries it would load, from the trace of the `loader` and the headers of the file (`elf`) |

mod command;
mod elf;
mod host;
mod library;
mod loader;
mod local;
mod network;
mod programs;

use crate::failure::Failure;
use crate::program;
use indicatif::ProgressBar;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;

/// Options of `ferroce doctor`.
#[derive(clap::Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    /// Run as the second process of the check of the local link.
    #[arg(long, hide = true)]
    as_local_peer: bool,
    /// Explain instead which libibverbs and librdmacm this command would use. It is not started.
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
Examples:
  ferroce doctor                              what works on this machine?
  ferroce doctor -- ib_write_bw               will this program use ferroce, and if not, why?
  ferroce doctor -- ./venv/lib/engine.so      the same for an extension module of Python";

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// It works.
    Works,
    /// ferroce works without it, but slower or in another way.
    Limited,
    /// Something essential does not work.
    Fails,
    /// Information only.
    Note,
}

/// One line of the report.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    /// The observation.
    found: String,
    /// What to do, if anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Finding {
    fn new(check: &'static str, verdict: Verdict, found: impl Into<String>) -> Finding {
        Finding { check, verdict, found: found.into(), advice: None }
    }

    fn works(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Works, found)
    }

    fn limited(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Limited, found)
    }

    fn fails(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Fails, found)
    }

    fn note(check: &'static str, found: impl Into<String>) -> Finding {
        Finding::new(check, Verdict::Note, found)
    }

    fn advise(mut self, advice: impl Into<String>) -> Finding {
        self.advice = Some(advice.into());
        self
    }
}

/// Runs the checks. The exit status is 1 if one fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.as_local_peer {
        return local::run_local_peer().map(|()| ExitCode::SUCCESS);
    }
    let findings = if args.command.is_empty() { machine() } else { command::check(&args.command) };
    let fails = findings.iter().filter(|finding| finding.verdict == Verdict::Fails).count();
    match args.json {
        true => crate::print_json(&findings)?,
        false => crate::print_text(&to_text(&findings, fails, &summary(&args.command)))?,
    }
    Ok(ExitCode::from(u8::from(fails > 0)))
}

/// The last line if nothing fails.
fn summary(command: &[OsString]) -> String {
    match command {
        [] => {
            let has_devinfo = program::search(OsStr::new("ibv_devinfo")).is_some();
            let next = if has_devinfo { "ferroce run -- ibv_devinfo" } else { "ferroce perf --quick" };
            format!("RDMA programs run here. Try it: {next}")
        }
        words => {
            let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
            format!("Run it: ferroce run -- {}", words.join(" "))
        }
    }
}

/// All checks of this machine.
fn machine() -> Vec<Finding> {
    // Drawn on terminals only. It must not start a thread, because the first check forks.
    let progress = ProgressBar::new_spinner();
    let begin = |check: &'static str| {
        progress.set_message(check);
        progress.tick();
    };
    // Namespaces first: the check forks, which is safe only with one thread.
    begin("namespaces");
    let mut findings = host::before_threads();
    begin("addresses, port and offloads");
    findings.extend(network::check());
    begin("shared memory");
    findings.extend(host::check());
    begin("two processes of this host");
    findings.extend(local::check());
    begin("libraries");
    let library = library::check();
    let with_library = library.iter().all(|finding| finding.verdict != Verdict::Fails);
    findings.extend(library);
    begin("programs, and a transfer between two of them");
    findings.extend(programs::check(with_library));
    progress.finish_and_clear();
    findings
}

fn to_text(findings: &[Finding], fails: usize, good: &str) -> String {
    let width = findings.iter().map(|finding| finding.check.chars().count()).max().unwrap_or(0);
    let mut lines = Vec::new();
    for finding in findings {
        let sign = match finding.verdict {
            Verdict::Works => "ok",
            Verdict::Limited => "limited",
            Verdict::Fails => "FAILS",
            Verdict::Note => "-",
        };
        lines.push(format!("{sign:7}  {:width$}  {}", finding.check, finding.found));
        lines.extend(finding.advice.iter().map(|advice| format!("{:7}  {:width$}  → {advice}", "", "")));
    }
    lines.push(String::new());
    lines.push(match fails {
        0 => good.to_owned(),
        1 => "One thing does not work; follow the arrow. Then try again: ferroce doctor".to_owned(),
        _ => format!("{fails} things do not work; follow the arrows. Then try again: ferroce doctor"),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_printed_below_its_finding() {
        let findings = [
            Finding::works("port", "free"),
            Finding::fails("library", "not there").advise("Build it: cargo build --release"),
        ];
        let text = to_text(&findings, 1, "");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ok       port     free");
        assert_eq!(lines[1], "FAILS    library  not there");
        assert_eq!(lines[2].trim(), "→ Build it: cargo build --release");
        assert!(lines[4].starts_with("One thing") && lines[4].ends_with(": ferroce doctor"), "{text}");
        assert!(to_text(&findings[..1], 0, &summary(&[])).contains("Try it: ferroce "));
    }
}
