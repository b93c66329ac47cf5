//! Results as a table and as JSON.

use std::path::Path;

use serde_json::{Value, json};

use super::Failure;
use super::runner::{Outcome, Verdict};
use crate::selection::name_of;

/// The head of the table.
pub(crate) fn heading() -> String {
    format!(
        "{:24} {:3} {:11} {:9} {:>6}  {:>8} {:>8} {:>7} {:>7}",
        "test", "ip", "direction", "result", "time", "sent", "received", "resent", "kernel"
    )
}

/// The line of a case, and one line for each note.
pub(crate) fn line(outcome: &Outcome) -> String {
    let (word, notes): (_, &[String]) = match &outcome.verdict {
        Verdict::Passed => ("ok", &[]),
        Verdict::PassedWithDeviation(notes) => ("deviates", notes),
        Verdict::Failed(notes) => ("FAILED", notes),
    };
    let traffic = &outcome.traffic;
    let mut text = format!(
        "{:24} {:3} {:11} {:9} {:>5.1}s  {:>8} {:>8} {:>7} {:>7}",
        outcome.case,
        name_of(outcome.ip),
        name_of(outcome.direction),
        word,
        outcome.seconds,
        traffic.sent,
        traffic.received,
        traffic.resent,
        outcome.kernel_retries
    );
    notes.iter().for_each(|note| text.push_str(&format!("\n    {note}")));
    text
}

/// Writes the results for the outer run and for `--json`. `skipped` is the reason if cases were left out.
pub(crate) fn write(outcomes: &[Outcome], skipped: Option<&str>, file: &Path) -> Result<(), Failure> {
    let skipped = skipped.map(|why| json!({ "test": "over iWARP", "result": "skipped", "notes": why }));
    let rows: Vec<Value> = outcomes.iter().map(row).chain(skipped).collect();
    std::fs::write(file, format!("{:#}\n", json!({ "cases": rows })))?;
    Ok(())
}

fn row(outcome: &Outcome) -> Value {
    let (result, notes): (_, &[String]) = match &outcome.verdict {
        Verdict::Passed => ("passed", &[]),
        Verdict::PassedWithDeviation(notes) => ("deviates", notes),
        Verdict::Failed(notes) => ("failed", notes),
    };
    let traffic = &outcome.traffic;
    json!({
        "test": outcome.case,
        "ip": name_of(outcome.ip),
        "direction": name_of(outcome.direction),
        "result": result,
        "notes": notes,
        "seconds": outcome.seconds,
        "packets_sent": traffic.sent,
        "packets_received": traffic.received,
        "requests_resent": traffic.resent,
        "requests_received_again": traffic.received_again,
        "kernel_retries": outcome.kernel_retries,
    })
}
