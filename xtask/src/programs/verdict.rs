//! Rows, tables and tallies.

use serde_json::{Value, json};

use super::pool::Job;
use super::skips;
use crate::step::Report;

/// The outcome of one case or test.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) verdict: Verdict,
    pub(crate) reason: String,
    /// The time of the whole run.
    pub(crate) wall_s: f64,
    /// The time that the program measured itself.
    pub(crate) own_s: Option<f64>,
    pub(crate) tail: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Fail,
    Skip,
    /// Skipped, and listed with the reason.
    Listed,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verdict::Pass => "pass",
            Verdict::Fail => "FAIL",
            Verdict::Skip => "SKIP",
            Verdict::Listed => "listed",
        }
    }
}

impl Row {
    /// The row of a worker's answer.
    pub(crate) fn of(name: String, answer: &Value) -> Row {
        let verdict = match answer["verdict"].as_str() {
            Some("pass") => Verdict::Pass,
            Some("skip") => Verdict::Skip,
            _ => Verdict::Fail,
        };
        let tail = answer["tail"].as_array().into_iter().flatten();
        Row {
            name,
            verdict,
            reason: answer["reason"].as_str().unwrap_or_default().to_owned(),
            wall_s: answer["wall_s"].as_f64().unwrap_or(0.0),
            own_s: answer["seconds"].as_f64(),
            tail: tail.filter_map(|line| Some(line.as_str()?.to_owned())).collect(),
        }
    }

    /// The row of a job that cannot run on this machine.
    pub(crate) fn skipped(name: String, reason: &str) -> Row {
        Row::of(name, &json!({"verdict": "skip", "reason": reason}))
    }

    pub(crate) fn is_failure(&self) -> bool {
        self.verdict == Verdict::Fail
    }

    /// The row as one line.
    pub(crate) fn line(&self) -> String {
        let last = self.reason.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        format!(
            "{:6} {:6.1} s  {}{}{last}",
            self.verdict.word(),
            self.wall_s,
            self.name,
            if last.is_empty() { "" } else { ": " }
        )
    }
}

/// Tallies the lines that [`Row::line`] wrote in another process.
pub(super) fn from_lines(lines: &[String], report: &mut Report) {
    for line in lines {
        let Some((word, rest)) = line.split_once(' ') else { continue };
        if !rest.contains(" s  ") {
            continue;
        }
        let (is_known, list) = match word {
            "pass" => {
                report.passed += 1;
                continue;
            }
            "FAIL" => (report.failures.contains(line), &mut report.failures),
            "SKIP" => (report.skips.contains(line), &mut report.skips),
            _ => continue,
        };
        // The table at the end repeats these lines.
        if !is_known {
            list.push(line.clone());
        }
    }
}

/// The rows of a worker's answer: one for a case, one for each test of a module.
pub(crate) fn rows_of(job: &Job, answer: &Value) -> Vec<Row> {
    let Some(tests) = answer["tests"].as_object() else {
        return vec![Row::of(job.title(), answer)];
    };
    let seconds = answer["wall_s"].as_f64().unwrap_or(0.0);
    let each = seconds / tests.len().max(1) as f64;
    tests.iter().map(|(test, outcome)| test_row(test, outcome, each)).collect()
}

fn test_row(test: &str, outcome: &Value, seconds: f64) -> Row {
    let reason = outcome[1].as_str().unwrap_or_default().to_owned();
    let verdict = match outcome[0].as_str() {
        Some("pass") => Verdict::Pass,
        Some("skip") if skips::reason_for(test).is_some() => Verdict::Listed,
        _ => Verdict::Fail,
    };
    let unlisted = outcome[0] == "skip" && verdict == Verdict::Fail;
    let reason = if unlisted { format!("skipped, and not on the list: {reason}") } else { reason };
    let tail = if verdict == Verdict::Fail {
        reason.lines().map(|line| format!("    {line}")).collect()
    } else {
        Vec::new()
    };
    Row { name: test.to_owned(), verdict, reason, wall_s: seconds, own_s: None, tail }
}

/// How many rows have this verdict.
pub(crate) fn count(rows: &[Row], verdict: Verdict) -> usize {
    rows.iter().filter(|row| row.verdict == verdict).count()
}

/// All rows as JSON.
pub(crate) fn to_json(rows: &[Row]) -> Value {
    let row = |row: &Row| json!({"name": row.name, "verdict": row.verdict.word(), "reason": row.reason, "seconds": row.wall_s});
    json!(rows.iter().map(row).collect::<Vec<_>>())
}

/// The rows that did not pass, with their outputs, and the tally.
pub(crate) fn to_text(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows.iter().filter(|row| row.is_failure()) {
        text += &format!("\n{}\n{}\n", row.line(), row.tail.join("\n"));
    }
    text.push('\n');
    for row in rows.iter().filter(|row| row.verdict != Verdict::Pass) {
        text += &format!("{}\n", row.line());
    }
    let count = |verdict| count(rows, verdict);
    text + &format!(
        "{} passed, {} failed, {} skipped, {} skipped as docs/reference/conformance.md says\n",
        count(Verdict::Pass),
        count(Verdict::Fail),
        count(Verdict::Skip),
        count(Verdict::Listed)
    )
}

/// Adds the rows to the report of `cargo xtask test`. A listed skip is not reported, because the list in the repository has its reason.
pub(crate) fn into_report(rows: &[Row], report: &mut Report) {
    for row in rows {
        report.output.push(row.line());
        match row.verdict {
            Verdict::Pass | Verdict::Listed => report.passed += usize::from(row.verdict == Verdict::Pass),
            Verdict::Skip => report.skips.push(format!("{}: {}", row.name, row.reason)),
            Verdict::Fail => {
                report.failures.push(row.line());
                report.output.extend(row.tail.clone());
                report.extract.push(row.line());
                report.extract.extend(row.tail.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlisted_skips_and_errors_are_failures() {
        let answer = json!({"wall_s": 2.0, "tests": {
            "tests.test_x.X.a": ["pass", ""], "tests.test_x.X.b": ["skip", "no reason"], "tests.test_x.X.c": ["error", "Trace\nlast"],
        }});
        let rows = rows_of(&Job { kind: "pyverbs", name: "test_x".into() }, &answer);
        let failures: Vec<bool> = rows.iter().map(Row::is_failure).collect();
        assert_eq!(failures, [false, true, true]);
        assert!(rows[1].line().contains("not on the list"));
        assert!(rows[2].line().ends_with("last"));
        let mut report = Report::default();
        into_report(&rows, &mut report);
        assert_eq!((report.passed, report.failures.len()), (1, 2));
    }
}
