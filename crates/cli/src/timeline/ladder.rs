//! The ladder of each connection as text, for a terminal.

use super::analysis::{Analysis, Connection};
use super::report::{ConnectionReport, Report};
use super::requester::Notes;
use super::selection::Item;
use super::words;
use crate::sizes::format_duration;
use std::fmt::Write;

/// Columns between the two ends.
const WIDTH: usize = 46;
/// The shortest arrow.
const ARROW: usize = 4;

/// All connections with packets, in the order of their first ones.
pub(super) fn text(analysis: &Analysis, report: &Report) -> String {
    let begins = |connection: &Connection| connection.selection.items().first().map(|item| item.time_ns);
    let mut shown: Vec<_> = analysis.connections.iter().zip(&report.connections).collect();
    shown.retain(|(connection, _)| begins(connection).is_some());
    shown.sort_by_key(|(connection, _)| begins(connection));
    let mut text = String::new();
    for (connection, report) in shown {
        ladder(&mut text, connection, report);
    }
    text
}

fn ladder(text: &mut String, connection: &Connection, report: &ConnectionReport) {
    let items = connection.selection.items();
    // The end that sends first is on the left.
    let left = usize::from(items[0].from);
    let _ = writeln!(text, "A: {}, {}", report.ends[left].name(), report.service);
    let _ = writeln!(text, "B: {}", report.ends[1 - left].name());
    let _ = writeln!(text, "A{}B", " ".repeat(WIDTH + 2));
    let (mut expected, start) = (0, items[0].time_ns);
    for item in items {
        gap(text, item.serial - expected);
        expected = item.serial + 1;
        let after = format_duration(item.time_ns.saturating_sub(start));
        let _ = writeln!(text, "|{}|  {after}{}", arrow(item, left), remarks(item));
    }
    gap(text, connection.left_out().saturating_sub(skipped(items)));
    text.push('\n');
}

/// Packets left out before the last shown one.
fn skipped(items: &[Item]) -> u64 {
    items.last().map_or(0, |last| last.serial + 1 - items.len() as u64)
}

fn gap(text: &mut String, packets: u64) {
    if packets > 0 {
        let _ = writeln!(text, "  ({packets} packets are not shown; --packets N shows more)");
    }
}

/// `SEND 5 B, PSN 7 ----->`, or from the other end to the left. A lost packet does not arrive.
fn arrow(item: &Item, left: usize) -> String {
    let mut label = words::label(item);
    if item.cm.is_none() {
        let _ = write!(label, ", PSN {}", item.headers.bth.psn.value());
    }
    let line = "-".repeat(WIDTH.saturating_sub(label.chars().count() + 1).max(ARROW));
    let is_lost = item.finding.notes.has(Notes::LOST);
    match (usize::from(item.from) == left, is_lost) {
        (true, false) => format!(" {label} {line}>"),
        (true, true) => format!(" {label} {}x ", &line[1..]),
        (false, false) => format!("<{line} {label} "),
        (false, true) => format!(" x{} {label} ", &line[1..]),
    }
}

/// What is special about the packet.
fn remarks(item: &Item) -> String {
    let notes = item.finding.notes;
    let names = [
        (Notes::RETRANSMISSION, "sent again"),
        (Notes::LOST, "lost"),
        (Notes::DUPLICATED, "duplicated"),
        (Notes::OUT_OF_ORDER, "out of order"),
        (Notes::MARKED, "marked: congestion experienced"),
        (Notes::BAD_ICRC, "wrong ICRC"),
        (Notes::GAP, "packets before it are missing"),
        (Notes::RESTART, "PSN far from the last one"),
    ];
    names.iter().filter(|(note, _)| notes.has(*note)).map(|(_, name)| format!(", {name}")).collect()
}
