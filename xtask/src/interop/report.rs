//! Results as a table, as JSON, and as the report of the step `interop`.

use std::path::Path;

use serde_json::{Value, json};

use super::runner::{Outcome, Verdict};
use super::{FAILED, Failure, SKIPPED, replace_file};
use crate::process::Ran;
use crate::selection::name_of;
use crate::step::Report;

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
    replace_file(file, &format!("{:#}\n", json!({ "cases": rows })))
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

/// The report of the step: `results` is the file that the inner run wrote, `ran` its output and its end.
pub(crate) fn of_step(results: &str, ran: Ran) -> Report {
    let mut report = Report::default();
    let results: Value = serde_json::from_str(results).unwrap_or_default();
    let rows = results["cases"].as_array().map_or(&[][..], Vec::as_slice);
    for row in rows {
        let notes = text(&row["notes"]);
        let [test, ip, direction] = ["test", "ip", "direction"].map(|key| text(&row[key]));
        match row["result"].as_str() {
            Some("passed" | "deviates") => report.passed += 1,
            Some("skipped") => report.skips.push(notes),
            Some("failed") => report.failures.push(format!("{test} {ip} {direction}: {notes}")),
            _ => report.failures.push(format!("{test} {ip} {direction}: unknown result {}", row["result"])),
        }
    }
    match (failure(&ran), reason(&ran, SKIPPED)) {
        // Where rows failed, the reason only counts them.
        (Some(_), _) if reason(&ran, FAILED).is_some() && !report.failures.is_empty() => {}
        (Some(reason), _) => report.failures.push(reason),
        (None, Some(reason)) if rows.is_empty() => report.skips.push(reason),
        (None, None) if rows.is_empty() => report.failures.push("the run ended without results".to_owned()),
        (None, _) => {}
    }
    report.output = ran.lines;
    report
}

/// Why the inner run failed, if it did: the reason that it printed, or how it ended.
pub(crate) fn failure(ran: &Ran) -> Option<String> {
    ran.failure().map(|ended| reason(ran, FAILED).unwrap_or(ended))
}

/// The text after the last `FAILED: ` or `SKIPPED: `. A reason has several lines if it quotes the output of a command.
fn reason(ran: &Ran, start: &str) -> Option<String> {
    let at = ran.lines.iter().rposition(|line| line.starts_with(start))?;
    Some(ran.lines[at..].join(" | ").split_off(start.len()))
}

/// A text, or several of them in one line.
fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(texts) => texts.iter().map(text).collect::<Vec<_>>().join("; "),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_PASSED: &str =
        r#"{"cases": [{"test": "verify-rc", "ip": "v4", "direction": "to-kernel", "result": "passed"}]}"#;

    #[test]
    fn a_run_that_failed_without_a_failed_row_has_its_reason_and_its_output() {
        let report = of_step("", Ran::example("boots\nFAILED: no Soft-RoCE device in the guest", false));
        assert_eq!(report.failures, ["no Soft-RoCE device in the guest"]);
        assert_eq!(report.output.len(), 2);
    }

    #[test]
    fn a_reason_of_several_lines_keeps_all_of_them() {
        let reason =
            "no Soft-RoCE device in the guest: cat: no such file\nstate; the guest's kernel printed `Oops`";
        let report = of_step("", Ran::example(&format!("boots\nFAILED: {reason}"), false));
        assert_eq!(report.failures, [reason.replace('\n', " | ")]);
    }

    #[test]
    fn a_run_without_results_is_a_failure_unless_it_was_skipped() {
        for results in ["", r#"{"cases": []}"#] {
            let report = of_step(results, Ran::example("boots", true));
            assert_eq!(report.failures, ["the run ended without results"]);
        }
        let report =
            of_step("", Ran::example("0 passed, 0 failed, 1 skipped\nSKIPPED: apt-get is missing", true));
        assert_eq!(
            (report.failures.len(), report.skips.as_slice()),
            (0, &["apt-get is missing".to_owned()][..])
        );
    }

    #[test]
    fn an_unknown_result_is_a_failure() {
        let results = ONE_PASSED.replace("passed", "flaky");
        let report = of_step(&results, Ran::example("1 passed, 0 failed, 0 skipped", true));
        assert_eq!(report.failures, ["verify-rc v4 to-kernel: unknown result \"flaky\""]);
        assert_eq!(report.passed, 0);
    }

    #[test]
    fn a_run_that_was_killed_is_a_failure_after_its_rows() {
        let report = of_step(ONE_PASSED, Ran::example("verify-rc  v4", false));
        assert_eq!((report.passed, report.failures.len()), (1, 1));
    }

    #[test]
    fn a_run_that_ended_well_has_no_failure() {
        let report = of_step(ONE_PASSED, Ran::example("1 passed, 0 failed, 0 skipped", true));
        assert_eq!((report.passed, report.failures.len()), (1, 0));
    }
}
