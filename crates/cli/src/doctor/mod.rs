//! `ferroce doctor`: what works on this machine, what does not, why, and what to do about it.
//!
//! Nothing is guessed from versions or settings: each check does the thing itself.
//!
//! | file | checks |
//! |---|---|
//! | `library` | the drop-in library: found, complete |
//! | `network` | addresses, the port, offloads, steering |
//! | `host` | shared memory, namespaces, the kernel's own RDMA |
//! | `local` | the way between two processes of this host |
//! | `programs` | foreign programs: installed, and a transfer through the library |

mod host;
mod library;
mod local;
mod network;
mod programs;

use crate::failure::Failure;
use serde::Serialize;
use std::process::ExitCode;

/// Options of `ferroce doctor`.
#[derive(clap::Parser)]
pub(crate) struct Args {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    /// Be the second process of the check of the local link.
    #[arg(long, hide = true)]
    as_local_peer: bool,
}

/// What came of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    /// It works.
    Works,
    /// ferroce works without it, more slowly or in another way.
    Limited,
    /// Something that people expect will not work.
    Fails,
    /// Neither good nor bad.
    Note,
}

/// One line.
#[derive(Debug, Serialize)]
struct Finding {
    check: &'static str,
    verdict: Verdict,
    /// What was found.
    found: String,
    /// What to do, where something can be done.
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

/// Checks everything. The exit status is 1 if something fails.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if args.as_local_peer {
        return local::run_local_peer().map(|()| ExitCode::SUCCESS);
    }
    // Namespaces first: trying them forks, and only a process with one thread may do that freely.
    let mut findings = host::before_threads();
    findings.extend(network::check());
    findings.extend(host::check());
    findings.extend(local::check());
    let library = library::check();
    let with_library = library.iter().all(|finding| finding.verdict != Verdict::Fails);
    findings.extend(library);
    findings.extend(programs::check(with_library));
    let fails = findings.iter().filter(|finding| finding.verdict == Verdict::Fails).count();
    match args.json {
        true => crate::print_json(&findings)?,
        false => crate::print_text(&to_text(&findings, fails))?,
    }
    Ok(ExitCode::from(u8::from(fails > 0)))
}

fn to_text(findings: &[Finding], fails: usize) -> String {
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
        0 => "RDMA programs run here: ferroce run -- COMMAND".to_owned(),
        1 => "One thing does not work; the arrow says what to do.".to_owned(),
        _ => format!("{fails} things do not work; the arrows say what to do."),
    });
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_stands_below_its_finding() {
        let findings = [
            Finding::works("port", "free"),
            Finding::fails("library", "not there").advise("Build it: cargo build --release"),
        ];
        let text = to_text(&findings, 1);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "ok       port     free");
        assert_eq!(lines[1], "FAILS    library  not there");
        assert_eq!(lines[2].trim(), "→ Build it: cargo build --release");
        assert!(lines[4].starts_with("One thing"), "{text}");
    }
}
