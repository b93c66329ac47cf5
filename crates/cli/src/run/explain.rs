//! `--explain`: a summary of the counters of all processes of the program, printed when the last has ended.
//!
//! Each NIC writes a report into a folder when it is closed; see `FERROCE_REPORT` in docs/reference/environment.md.

use crate::counters::meaning;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The variable with the folder of reports, for every process.
const REPORT_VARIABLE: &str = "FERROCE_REPORT";
/// The variable that selects the log messages.
const LOG_VARIABLE: &str = "FERROCE_LOG";

/// A NIC's report. Counters have names, since a newer NIC may have more.
#[derive(Debug, Default, Deserialize, Serialize)]
struct Report {
    pid: u32,
    command: String,
    completions: u64,
    failed_completions: u64,
    #[serde(default)]
    flushed_completions: u64,
    retransmitted: u64,
    drops: BTreeMap<String, u64>,
    link: BTreeMap<String, u64>,
    /// Objects that the program never destroyed, by kind.
    #[serde(default)]
    live_objects: BTreeMap<String, u64>,
    /// Completions that nobody polled.
    #[serde(default)]
    unpolled_completions: u64,
    /// Lines of `FERROCE_LOG=explain` that were not printed: one like them, and how many.
    #[serde(default)]
    unprinted_lines: Vec<(String, u64)>,
}

/// The variable that turns the watch of buffers on.
const WATCH_VARIABLE: &str = "FERROCE_WATCH";

/// What `--explain=` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Word {
    /// Sentences.
    Text,
    /// One JSON object per line: each sentence with its process and topic, then the report of each process.
    Json,
    /// Strict mode, and the buffers of requests are watched.
    Strict,
}

/// How the explanations are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// What is explained, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Explain {
    pub(crate) format: Format,
    /// Whether buffers are watched.
    pub(crate) watches: bool,
}

impl Explain {
    /// The settings that the words select; `None` without words.
    pub(crate) fn of(words: &[Word]) -> Option<Explain> {
        let format = if words.contains(&Word::Json) { Format::Json } else { Format::Text };
        (!words.is_empty()).then(|| Explain { format, watches: words.contains(&Word::Strict) })
    }
}

/// Requests a report, and the reason of each failed completion, dropped packet and refused call, from `command` and all its child
/// processes.
pub(crate) fn apply_to(command: &mut Command, folder: &Path, explain: Explain) {
    command.env(REPORT_VARIABLE, folder);
    if explain.watches {
        command.env(WATCH_VARIABLE, "1");
    }
    command.env(LOG_VARIABLE, topics(explain.format, std::env::var_os(LOG_VARIABLE)));
}

/// The value of the variable. It always has the word `explain`, since the user's value may name fewer topics, or none.
fn topics(format: Format, current: Option<OsString>) -> OsString {
    match (format, current.filter(|value| !value.is_empty())) {
        (Format::Json, _) => "explain,json".into(),
        (Format::Text, None) => "explain".into(),
        (Format::Text, Some(current)) => {
            let mut value = OsString::from("explain,");
            value.push(current);
            value
        }
    }
}

/// The summary of all reports in `folder`.
pub(crate) fn summary(folder: &Path, format: Format) -> String {
    let mut reports: Vec<Report> = Vec::new();
    let mut silent: Vec<String> = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.ends_with(".json") {
            continue;
        }
        let text = std::fs::read(entry.path()).unwrap_or_default();
        match serde_json::from_slice(&text) {
            Ok(report) => reports.push(report),
            Err(_) => silent.push(name.split('-').next().unwrap_or_default().to_owned()),
        }
    }
    silent.sort();
    silent.dedup();
    let reports = by_process(reports);
    match format {
        Format::Text => to_text(&reports, &silent),
        Format::Json => to_json(&reports, &silent),
    }
}

fn to_json(reports: &[Report], silent: &[String]) -> String {
    let of_report = |report| json!({ "topic": "report", "report": report });
    let of_silent =
        |pid: &String| json!({ "topic": "no report", "pid": pid.parse::<u32>().unwrap_or_default() });
    let lines = reports.iter().map(of_report).chain(silent.iter().map(of_silent));
    lines.map(|line| format!("{line}\n")).collect()
}

/// Merges the reports of each process, which may have opened the device several times.
fn by_process(reports: Vec<Report>) -> Vec<Report> {
    let mut sums: BTreeMap<u32, Report> = BTreeMap::new();
    for report in reports {
        let sum = sums.entry(report.pid).or_insert_with(|| Report { pid: report.pid, ..Report::default() });
        sum.command = report.command;
        sum.completions += report.completions;
        sum.failed_completions += report.failed_completions;
        sum.flushed_completions += report.flushed_completions;
        sum.retransmitted += report.retransmitted;
        report.drops.into_iter().for_each(|(name, count)| *sum.drops.entry(name).or_default() += count);
        report.link.into_iter().for_each(|(name, count)| *sum.link.entry(name).or_default() += count);
        for (kind, count) in report.live_objects {
            *sum.live_objects.entry(kind).or_default() += count;
        }
        sum.unpolled_completions += report.unpolled_completions;
        sum.unprinted_lines.extend(report.unprinted_lines);
    }
    sums.into_values().collect()
}

fn to_text(reports: &[Report], silent: &[String]) -> String {
    if reports.is_empty() && silent.is_empty() {
        return "ferroce run: no process opened the device.\n".into();
    }
    let mut text = String::new();
    for report in reports {
        let link = |name: &str| report.link.get(name).copied().unwrap_or(0);
        text += &format!(
            "ferroce run: process {} ({}): {} completions, {} of them failed, {} flushed; {} packets sent, {} received, {} sent again\n",
            report.pid,
            report.command,
            report.completions,
            report.failed_completions,
            report.flushed_completions,
            link("tx_packets") + link("local_tx_packets"),
            link("rx_packets") + link("local_rx_packets"),
            report.retransmitted,
        );
        let [packets, mapped, copied] = ["local_tx_packets", "direct_mapped", "direct_copied"].map(link);
        let [rendezvous, fetched] = ["rendezvous_sends", "messages_fetched"].map(link);
        if packets + mapped + copied > 0 {
            text += &format!(
                "  on this host: {packets} packets through shared memory; one-sided without a packet: {mapped} in mapped memory, \
                 {copied} copied by the kernel"
            );
            if rendezvous > 0 {
                text += &format!("; {rendezvous} rendezvous sends copied by their receivers");
            }
            if fetched > 0 {
                text += &format!("; {fetched} rendezvous sends of peers copied from mapped memory");
            }
            text.push('\n');
        }
        let [direct, staged] = ["direct_gpu", "staged_gpu"].map(link);
        if direct + staged > 0 {
            text += &format!(
                "  memory of GPUs: {direct} operations and messages copied between processes in one step; {staged} copies through host memory\n"
            );
        }
        let losses = report.link.iter().filter(|(name, _)| meaning::is_drop(name));
        for (name, count) in report.drops.iter().chain(losses).filter(|(_, count)| **count > 0) {
            text += &format!("  {count:>9} {name:18} {}\n", meaning::of_drop(name));
        }
        if !report.live_objects.is_empty() {
            let kinds = report.live_objects.iter().map(|(kind, count)| format!("{kind}: {count}"));
            text += &format!("  never destroyed: {}\n", kinds.collect::<Vec<_>>().join(", "));
        }
        if report.unpolled_completions > 0 {
            text += &format!("  never polled: completions: {}\n", report.unpolled_completions);
        }
        for (line, count) in &report.unprinted_lines {
            text += &format!("  {count:>9} more lines like \"{line}\"\n");
        }
    }
    for pid in silent {
        text += &format!(
            "ferroce run: process {pid} left no report: it was killed, or ended without exit handlers\n"
        );
    }
    let failed: u64 = reports.iter().map(|report| report.failed_completions).sum();
    if failed > 0 {
        text += "  Each failed completion was explained above, in a line that begins with \"ferroce[\".\n";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_topics_are_explained_whatever_the_user_logs() {
        for (current, expected) in [("", "explain"), ("calls", "explain,calls"), ("0", "explain,0")] {
            assert_eq!(topics(Format::Text, Some(current.into())), expected);
        }
        assert_eq!(topics(Format::Text, None), "explain");
        assert_eq!(topics(Format::Json, Some("calls".into())), "explain,json");
    }

    #[test]
    fn reports_become_sentences() {
        let json = r#"{"pid": 7, "command": "ib_x", "completions": 5, "failed_completions": 1, "flushed_completions": 3, "retransmitted": 2, "new": 1,
            "drops": {"bad_psn": 3, "no_such_qp": 0}, "link": {"tx_packets": 9, "rx_packets": 8, "rx_overruns": 4,
            "direct_mapped": 6}, "unprinted_lines": [["refused: ibv_reg_mr: …", 11]],
            "live_objects": {"queue pairs": 2, "protection domains": 1}, "unpolled_completions": 3}"#;
        let report: Report = serde_json::from_str(json).expect("a report");
        let json = to_json(std::slice::from_ref(&report), &["99".to_owned()]);
        let lines: Vec<serde_json::Value> =
            json.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        assert_eq!((&lines[0]["report"]["completions"], &lines[1]["pid"]), (&5.into(), &99.into()), "{json}");
        let text = to_text(&[report], &["99".to_owned()]);
        for part in [
            "process 7 (ib_x): 5 completions, 1 of them failed, 3 flushed; 9 packets sent",
            "6 in mapped",
            "bad_psn",
            "rx_overruns",
            "  never destroyed: protection domains: 1, queue pairs: 2\n",
            "  never polled: completions: 3\n",
            "11 more lines like \"refused: ibv_reg_mr: …\"",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("no_such_qp") && text.contains("process 99 left no report"), "{text}");
        assert!(to_text(&[], &[]).contains("no process opened"));
    }
}
