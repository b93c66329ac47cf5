//! Reads the tallies, ignored tests and `SKIPPED:` lines out of libtest's output.
//!
//! The input is the output of `cargo test -- --show-output`, both streams in one. A test that cannot run prints a line that
//! begins with `SKIPPED:` and returns. libtest counts it as passed; this module counts it as skipped.

use crate::process::Ran;
use crate::step::Report;

/// The state after the lines read so far.
#[derive(Default)]
struct Reader {
    /// Binary whose tests are running, as cargo's heading names it.
    suite: String,
    /// Whether the `test result:` line of `suite` is missing.
    open: bool,
    /// Test whose captured output is being read.
    block: Option<String>,
    /// Tests that passed for libtest but printed `SKIPPED:`, each once.
    passed_as_skipped: Vec<String>,
    /// Suites that ended without a summary: an abort, a signal, an `exit` inside a test.
    cut_short: Vec<String>,
    failed_count: usize,
    ignored_count: usize,
    ignored: Vec<String>,
    /// Whether the line is between `failures:` and the summary, in the output of failed tests.
    in_failures: bool,
    /// The output of the suite so far, shown if it ends without a summary.
    output: Vec<String>,
    report: Report,
}

/// Tallies a test run: one entry per test, and one more if the run failed without a failed test.
pub(crate) fn report(ran: Ran) -> Report {
    let mut reader = Reader::default();
    ran.lines.iter().for_each(|line| reader.line(line));
    reader.finish(ran)
}

impl Reader {
    fn line(&mut self, line: &str) {
        self.output.push(line.to_owned());
        if self.in_failures {
            self.report.extract.push(line.to_owned());
        }
        if let Some(reason) = skip_reason(line) {
            self.skipped(reason);
        } else if let Some(name) = block_heading(line) {
            self.block = Some(name.to_owned());
        } else if line == "successes:" {
            self.block = None;
        } else if line == "failures:" && (self.block.is_none() || self.in_failures) {
            // Between the blocks of passed tests it is output: a list of their names ends those blocks.
            self.block = None;
            self.in_failures = true;
        } else if self.block.is_none() {
            self.heading_or_result(line);
        }
    }

    fn skipped(&mut self, reason: &str) {
        match &self.block {
            // A failed test that printed it counts as failed only.
            Some(_) if self.in_failures => {}
            None => self.report.skips.push(format!("{}: {reason}", self.suite)),
            Some(test) => {
                let name = format!("{}: {test}", self.suite);
                self.report.skips.push(format!("{name}: {reason}"));
                if !self.passed_as_skipped.contains(&name) {
                    self.passed_as_skipped.push(name);
                }
            }
        }
    }

    fn heading_or_result(&mut self, line: &str) {
        if let Some(suite) = suite_heading(line) {
            self.close_suite();
            self.output.clear();
            self.suite = suite;
        } else if line.starts_with("running ") && line.ends_with(['t', 's']) {
            self.open = true;
        } else if let Some(counts) = line.strip_prefix("test result: ") {
            self.open = false;
            self.in_failures = false;
            self.report.passed += count(counts, " passed");
            self.failed_count += count(counts, " failed");
            self.ignored_count += count(counts, " ignored");
        } else if let Some((name, verdict)) =
            line.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "))
        {
            self.verdict(name, verdict);
        }
    }

    fn verdict(&mut self, name: &str, verdict: &str) {
        let name = format!("{}: {name}", self.suite);
        if verdict == "FAILED" {
            self.report.failures.push(name);
        } else if let Some(reason) = verdict.strip_prefix("ignored") {
            self.ignored.push(format!("{name}: ignored{reason}"));
        }
    }

    fn close_suite(&mut self) {
        if std::mem::take(&mut self.open) {
            self.cut_short.push(self.suite.clone());
            self.report.extract.append(&mut self.output);
        }
        self.in_failures = false;
        self.block = None;
    }

    fn finish(mut self, ran: Ran) -> Report {
        self.close_suite();
        let mut report = self.report;
        // Output that bypasses libtest's capture can split the line of a result. The summary still has the right counts.
        for _ in report.failures.len()..self.failed_count {
            report.failures.push("a test whose name was lost in the output".to_owned());
        }
        for _ in self.ignored.len()..self.ignored_count {
            self.ignored.push("ignored: a test whose name was lost in the output".to_owned());
        }
        report.skips.append(&mut self.ignored);
        report.passed = report.passed.saturating_sub(self.passed_as_skipped.len());
        if let Some(failure) = ran.failure() {
            for suite in self.cut_short {
                report.failures.push(format!("{suite}: died before its summary"));
            }
            if report.failures.is_empty() {
                report.failures.push(failure);
            }
        }
        report.output = ran.lines;
        report
    }
}

/// The reason behind `SKIPPED:`, at the start of a line or right after the name of the test (single-threaded runs).
fn skip_reason(line: &str) -> Option<&str> {
    let (before, reason) = line.split_once("SKIPPED:")?;
    (before.trim().is_empty() || before.starts_with("test ") && before.ends_with("... "))
        .then(|| reason.trim())
}

/// `---- tests::name stdout ----`
fn block_heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" ----")?.strip_suffix(" stdout")
}

/// `Running tests/golden.rs (target/debug/deps/golden-0123)` or `Doc-tests ferroce_proto`
fn suite_heading(line: &str) -> Option<String> {
    let line = line.trim_start();
    if let Some(package) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{package} (doc)"));
    }
    let (_, binary) = line.strip_prefix("Running ")?.split_once('(')?;
    let name = binary.trim_end_matches(')').rsplit('/').next()?;
    Some(name.rsplit_once('-').map_or(name, |(stem, _hash)| stem).to_owned())
}

/// The number in front of ` passed` in `ok. 3 passed; 0 failed; 1 ignored; ...`.
fn count(counts: &str, what: &str) -> usize {
    counts
        .split(';')
        .filter_map(|part| part.strip_suffix(what)?.rsplit(' ').next()?.parse::<usize>().ok())
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Report {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.line(line));
        reader.finish(Ran::example(text, true))
    }

    const GOOD: &str = "     Running tests/golden.rs (target/debug/deps/golden-0123abcd)

running 4 tests
test slow ... ignored, takes minutes
test with_tshark ... ok
test plain ... ok
test later ... ignored

successes:

---- with_tshark stdout ----
SKIPPED: tshark is missing
SKIPPED: so is scapy

successes:
    with_tshark
    plain

test result: ok. 2 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished in 0.00s

   Doc-tests ferroce_proto

running 1 test
test crates/proto/src/lib.rs - (line 3) ... ok

test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    #[test]
    fn skips_and_ignored_tests_are_counted_and_named() {
        let report = read(GOOD);
        assert_eq!(report.passed, 2, "a test that skipped is not a pass");
        assert_eq!(
            report.skips,
            [
                "golden: with_tshark: tshark is missing",
                "golden: with_tshark: so is scapy",
                "golden: slow: ignored, takes minutes",
                "golden: later: ignored",
            ]
        );
        assert!(report.failures.is_empty());
    }

    #[test]
    fn failures_are_named_and_their_output_is_not_mistaken_for_a_summary() {
        let text = "     Running unittests src/lib.rs (target/debug/deps/ferroce_nic-77)
running 2 tests
test a ... FAILED
test b ... ok

failures:

---- a stdout ----
SKIPPED: half of it
test result: ok. 90 passed; 0 failed; 0 ignored

failures:
    a

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
";
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.line(line));
        let report = reader.finish(Ran::example(text, false));
        assert_eq!(report.passed, 1);
        assert_eq!(report.failures, ["ferroce_nic: a"]);
        assert_eq!(report.skips, [""; 0], "a failed test is a failure and nothing else");
        assert_eq!(report.extract.first().map(String::as_str), Some(""), "shown from the first failure on");
    }

    #[test]
    fn a_passed_test_may_print_the_heading_of_failures() {
        let report = read(
            "     Running tests/golden.rs (target/debug/deps/golden-0123abcd)

running 2 tests
test one ... ok
test two ... ok

successes:

---- one stdout ----
failures:
SKIPPED: no veth

---- two stdout ----
SKIPPED: no IPv6

successes:
    one
    two

test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
",
        );
        assert_eq!(report.skips, ["golden: one: no veth", "golden: two: no IPv6"]);
        assert_eq!(report.passed, 0);
    }

    #[test]
    fn a_suite_that_dies_is_a_failure() {
        let text = "     Running tests/kill.rs (target/debug/deps/kill-9)\nrunning 3 tests\ntest a ... ok\n";
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.line(line));
        let report = reader.finish(Ran::example(text, false));
        assert_eq!(report.failures, ["kill: died before its summary"]);
    }

    #[test]
    fn a_build_that_fails_is_one_failure() {
        let report = Reader::default().finish(Ran::example("error: could not compile", false));
        assert_eq!(report.failures.len(), 1);
    }

    #[test]
    fn skip_lines_outside_the_capture_are_counted() {
        let report = read("SKIPPED: no IPv6 here\ntest one ... SKIPPED: no veth\nnot SKIPPED: a sentence\n");
        assert_eq!(report.skips, [": no IPv6 here", ": no veth"]);
    }
}
