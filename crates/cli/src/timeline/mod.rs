//! `ferroce timeline`: what happened in a capture, as one HTML page, as text or as JSON.
//!
//! The files are read twice as a stream. The first reading finds the connections, the second follows them. Memory is bounded:
//! each table has a limit, and the page shows a limited number of packets.
//!
//! | file | contents |
//! |---|---|
//! | `packet` | from a captured frame to RoCEv2 packets |
//! | `pairing` | first reading: which queue pairs are connected |
//! | `analysis` | second reading: every connection, packets that were captured at both ends |
//! | `requester`, `message` | order, retransmissions, messages and their answers |
//! | `operations` | posts and completions of the program |
//! | `selection` | which packets and messages are kept |
//! | `histogram` | percentiles |
//! | `words` | a packet in words |
//! | `report` | statistics and messages, for `--json` and the page |
//! | `page` | the HTML page |
//! | `ladder` | the ladder as text |

mod analysis;
mod histogram;
mod ladder;
mod message;
mod operations;
mod packet;
mod page;
mod pairing;
mod report;
mod requester;
mod selection;
mod words;

use crate::capture_file::{Files, Frame};
use crate::failure::Failure;
use crate::sizes::format_duration;
use crate::table::{self, Align};
use analysis::Analysis;
use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use packet::NotRoce;
use pairing::Pairer;
use report::{ConnectionReport, Reading, Report};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};

/// Packets between two updates of the progress bar.
const PROGRESS_EVERY: u64 = 4096;
/// Packets that the page shows, and the text.
const SHOWN: usize = 5000;
const SHOWN_AS_TEXT: usize = 100;
/// Connections in the printed table.
const PRINTED: usize = 20;

/// Options of `ferroce timeline`.
#[derive(Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Capture file, pcapng or pcap; several files of one run are merged by time. A file of FERROCE_OPERATIONS adds what the program did.
    #[arg(required = true, value_name = "CAPTURE")]
    captures: Vec<PathBuf>,
    /// Page to write [default: the first capture with the extension html; none with --json and --text].
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print statistics and messages as JSON.
    #[arg(long)]
    json: bool,
    /// Print the ladder of each connection as text.
    #[arg(long, conflicts_with = "json")]
    text: bool,
    /// Show at most this many packets, and list as many messages: the first ones, and those around anomalies. All are counted
    /// [default: 5000; 100 with --text].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    packets: Option<u32>,
}

const EXAMPLES: &str = "\
Examples:
  ferroce run --capture x.pcapng -- ib_send_bw host      record the packets of a program, and …
  ferroce timeline x.pcapng                              … write x.html: open it in a browser
  tcpdump -i eth0 -w y.pcap udp port 4791                traffic of hardware works too
  ferroce timeline y.pcap --text                         the first packets as a ladder in the terminal
  ferroce timeline y.pcap --json                         statistics and messages for a program

The page shows each connection as a ladder of packets, with messages, acknowledgements, retransmissions, gaps and marks, and
explains each packet in words. It needs no network.";

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let usual = if args.text { SHOWN_AS_TEXT } else { SHOWN };
    let limit = args.packets.map_or(usual, |packets| packets as usize);
    let (analysis, report) = analyse(&args.captures, limit, true)?;
    let output = match (&args.output, args.json || args.text) {
        (Some(output), _) => Some(output.clone()),
        (None, true) => None,
        (None, false) => Some(args.captures[0].with_extension("html")),
    };
    if let Some(output) = &output {
        write_page(output, &analysis, &report)?;
    }
    if args.json {
        return crate::print_json(&report);
    }
    let text = match args.text {
        true => ladder::text(&analysis, &report) + heading(&report).trim_end(),
        false => summary(&report, output.as_deref()),
    };
    crate::print_text(&text)
}

/// Writes the page of these files with the usual limits. Returns the summary.
pub(crate) fn write(captures: &[PathBuf], output: &Path) -> Result<String, Failure> {
    let (analysis, report) = analyse(captures, SHOWN, true)?;
    write_page(output, &analysis, &report)?;
    Ok(summary(&report, Some(output)))
}

/// The page of files that may still grow.
pub(crate) fn live_page(captures: &[PathBuf]) -> Result<String, Failure> {
    let (analysis, report) = analyse(captures, SHOWN, false)?;
    Ok(page::html(&analysis, &report))
}

fn write_page(output: &Path, analysis: &Analysis, report: &Report) -> Result<(), Failure> {
    std::fs::write(output, page::html(analysis, report))
        .map_err(|error| Failure::io(format!("cannot write the page {}", output.display()), error))
}

/// Reads the files and follows their connections.
fn analyse(captures: &[PathBuf], limit: usize, shows_progress: bool) -> Result<(Analysis, Report), Failure> {
    let cannot_read = |(path, error): (PathBuf, std::io::Error)| {
        Failure::io(format!("cannot read {}", path.display()), error)
    };
    let (records, files): (Vec<PathBuf>, Vec<PathBuf>) =
        captures.iter().cloned().partition(|path| operations::is_record(path));
    let files = Files::new(files).map_err(cannot_read)?;
    let progress = Progress::new(2 * files.bytes(), shows_progress);
    let mut pairer = Pairer::default();
    let mut reading = Reading::default();
    let damaged = each_frame(&files, &progress, 0, |frame| {
        if let Err(why) = packet::decode(frame, |packet| pairer.take(packet)) {
            *reading.other.entry(why).or_default() += 1;
        }
    })?;
    let mut analysis = Analysis::new(pairer.finish(), limit);
    each_frame(&files, &progress, files.bytes(), |frame| {
        let _: Result<(), NotRoce> = packet::decode(frame, |packet| analysis.take(packet));
    })?;
    analysis.finish();
    progress.finish();
    let mut reader = operations::Reader::new(&mut analysis, limit);
    records.iter().try_for_each(|path| reader.read(path))?;
    reader.finish();
    reading.damaged = damaged;
    reading.files = captures.iter().map(|path| path.display().to_string()).collect();
    let report = Report::of(&mut analysis, reading);
    Ok((analysis, report))
}

/// Calls `take` for each frame. Returns which files are damaged, and how.
fn each_frame(
    files: &Files,
    progress: &Progress,
    before: u64,
    mut take: impl FnMut(&Frame<'_>),
) -> Result<Vec<String>, Failure> {
    let mut merged = files.open().map_err(|(path, damage)| {
        Failure::new(format!("cannot read {}: {damage}", path.display()))
            .advise("Captures of ferroce, tcpdump and Wireshark in the formats pcapng and pcap can be read")
    })?;
    let mut frames = 0_u64;
    while let Some(frame) = merged.next() {
        take(&frame);
        frames += 1;
        if frames.is_multiple_of(PROGRESS_EVERY) {
            progress.at(before + merged.position());
        }
    }
    let about = |(path, damage): (&Path, &_)| format!("{}: {damage}", path.display());
    Ok(merged.damaged().map(about).collect())
}

/// A bar on standard error, if that is a terminal.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(bytes: u64, is_wanted: bool) -> Progress {
        Progress((is_wanted && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr_with_hz(5));
            let style =
                ProgressStyle::with_template("{bar:32} {percent:>3} %  {bytes} of {total_bytes}  {eta} left");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar
        }))
    }

    fn at(&self, bytes: u64) {
        self.0.iter().for_each(|bar| bar.set_position(bytes));
    }

    fn finish(&self) {
        self.0.iter().for_each(ProgressBar::finish_and_clear);
    }
}

/// The sentences about what was read.
fn heading(report: &Report) -> String {
    let count = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    let mut text = format!(
        "{} of {} in {}.\n",
        count(report.packets, "RoCEv2 packet"),
        count(report.connections.len() as u64, "connection"),
        format_duration(report.duration_ns)
    );
    for damage in &report.damaged {
        text += &format!("Read up to the damage: {damage}.\n");
    }
    for (why, count) in &report.other_frames {
        text += &format!("{count} frames are not shown: {why}.\n");
    }
    text
}

/// What is printed in addition to the page.
fn summary(report: &Report, output: Option<&Path>) -> String {
    let mut text = heading(report);
    let columns: [table::Column<&ConnectionReport>; 8] = [
        ("connection", Align::Left, |c| format!("{} ↔ {}", c.ends[0].name(), c.ends[1].name())),
        ("", Align::Left, |c| c.service.to_owned()),
        ("packets", Align::Right, |c| sum(c, |d| d.packets).to_string()),
        ("messages", Align::Right, |c| sum(c, |d| d.messages).to_string()),
        ("goodput\nMbit/s", Align::Right, |c| {
            format!("{:.1}", c.requests.iter().map(|d| d.goodput_bit_per_s).sum::<f64>() / 1e6)
        }),
        ("retrans-\nmitted", Align::Right, |c| sum(c, |d| d.retransmitted).to_string()),
        ("NAK", Align::Right, |c| sum(c, |d| d.naks.values().sum::<u64>() + d.rnr_naks).to_string()),
        ("anomalies", Align::Right, |c| c.anomalies().to_string()),
    ];
    let mut shown: Vec<&ConnectionReport> = report.connections.iter().collect();
    shown.sort_by_key(|connection| {
        std::cmp::Reverse((connection.anomalies() > 0, sum(connection, |d| d.packets)))
    });
    let left_out = shown.len().saturating_sub(PRINTED);
    shown.truncate(PRINTED);
    if !shown.is_empty() {
        text += &format!("\n{}\n", table::of(&columns, &shown));
    }
    if left_out > 0 {
        text += &format!("… and {left_out} more connections; --json lists all.\n");
    }
    if let Some(output) = output {
        text += &format!("\nThe page: {}", output.display());
    }
    text.trim_end().to_owned()
}

/// A figure of both ends.
fn sum(connection: &ConnectionReport, of: fn(&report::DirectionReport) -> u64) -> u64 {
    connection.requests.iter().map(of).sum()
}

#[cfg(test)]
mod tests;
