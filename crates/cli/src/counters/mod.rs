//! `ferroce counters`: the counters of the NICs of all running processes of this user.

pub(crate) mod meaning;
mod text;

pub(crate) use text::{drops, printable, uptime};

use crate::failure::Failure;
use ferroce_nic::inspect::{self, InspectError, Snapshot};
use serde::Serialize;
use std::io::{ErrorKind, IsTerminal, Write};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  ferroce counters                 what all running devices counted
  ferroce counters --watch 1       again every second
  ferroce counters --all --json    everything, for programs";

/// Options of `ferroce counters`.
#[derive(clap::Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print as JSON; with --watch, one line each time.
    #[arg(long)]
    json: bool,
    /// Show counters that are zero, too.
    #[arg(long)]
    all: bool,
    /// Repeat with this pause in between.
    #[arg(long, value_name = "SECONDS", value_parser = parse_pause)]
    watch: Option<Duration>,
}

/// What all NICs answered, as JSON shows it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// NICs that answered, in the order of their slots.
    pub(crate) devices: Vec<Snapshot>,
    /// Why others did not answer.
    pub(crate) unanswered: Vec<Unanswered>,
}

/// When a device reported, and since when it is open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportTime {
    /// Time of the report by the monotonic clock of the host; 0 if the device does not report it.
    pub(crate) now_ns: u64,
    pub(crate) uptime_ms: u64,
}

impl ReportTime {
    pub(crate) fn of(device: &Snapshot) -> ReportTime {
        ReportTime { now_ns: device.now_ns, uptime_ms: device.uptime_ms }
    }

    /// Whether the device was opened after the earlier report of the same process and slot: its counters began at zero again. The new
    /// uptime may be longer than the earlier one.
    pub(crate) fn is_reopened_since(self, before: ReportTime) -> bool {
        let opened_ns = self.now_ns.saturating_sub(self.uptime_ms.saturating_mul(1_000_000));
        self.uptime_ms < before.uptime_ms || (before.now_ns != 0 && opened_ns > before.now_ns)
    }
}

/// A NIC that did not answer.
#[derive(Debug, Serialize)]
pub(crate) struct Unanswered {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pid: Option<u32>,
    pub(crate) why: String,
}

impl Report {
    pub(crate) fn of(answers: impl IntoIterator<Item = Result<Snapshot, InspectError>>) -> Report {
        let mut report = Report { devices: Vec::new(), unanswered: Vec::new() };
        for answer in answers {
            match answer {
                Ok(snapshot) => report.devices.push(snapshot),
                Err(error) => {
                    let pid = if let InspectError::Stopped { pid, .. } = error { Some(pid) } else { None };
                    report.unanswered.push(Unanswered { pid, why: error.to_string() });
                }
            }
        }
        report
    }
}

/// Shows the counters.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let report = Report::of(inspect::all());
    match args.watch {
        Some(pause) => watch(args, report, pause),
        None if args.json => crate::print_json(&report),
        None => crate::print_text(&text::render(&report, args.all)),
    }
}

/// Runs until the user interrupts it or the reader of a pipe closes it.
fn watch(args: &Args, mut report: Report, pause: Duration) -> Result<(), Failure> {
    let mut stdout = std::io::stdout().lock();
    // Cursor home and clear: on a terminal each table replaces the last one. A file gets one table after another.
    let before = if stdout.is_terminal() && !args.json { "\x1b[H\x1b[2J" } else { "" };
    loop {
        let shown = match args.json {
            true => serde_json::to_string(&report).map_err(|e| Failure::io("write JSON", e))?,
            false => format!("{}\n\n{}\n", crate::machine::utc_now(), text::render(&report, args.all)),
        };
        match writeln!(stdout, "{before}{shown}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            Err(error) => return Err(Failure::io("cannot write to standard output", error)),
            Ok(()) => {}
        }
        std::thread::sleep(pause);
        report = Report::of(inspect::all());
    }
}

/// Reads a pause between two samples.
pub(crate) fn parse_pause(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected seconds, from 0.1 to 86400".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses() {
        assert_eq!(parse_pause("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "nan", "inf", "1s"] {
            assert!(parse_pause(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_stopped_process_keeps_its_number() {
        let error = InspectError::Stopped { slot: 4, pid: 77, process: "process 77 (sleep)".into() };
        let report = Report::of([Err(error)]);
        let value = serde_json::to_value(&report).expect("JSON");
        assert_eq!(value["unanswered"][0]["pid"], 77);
        assert_eq!(
            value["unanswered"][0]["why"],
            "process 77 (sleep) in slot 4 is stopped and cannot answer"
        );
    }
}
