//! Instructions per operation, counted under valgrind and compared with a file in the repository.
//!
//! Times depend on the machine and its load; the number of executed instructions depends only on the code. The workload
//! is `crates/bench/src/bin/instructions.rs`; callgrind writes one dump per batch of operations, and the median of a row's
//! batches is its count. Repeated runs differ by less than 1 %.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use crate::figure;
use crate::process::Job;
use crate::step::{Context, Report, fail};
use crate::tools::which;
use crate::unprivileged::target_dir;

/// The counts that a change is compared with, relative to the root of the repository.
const BASELINE: &str = "crates/bench/instructions.txt";
/// A row fails if it exceeds the baseline by more than this share, and is reported if it falls below by more.
const TOLERANCE: f64 = 0.05;
/// Absolute tolerance in locked instructions per operation, because rare ones are small fractions.
const LOCKED_TOLERANCE: f64 = 0.1;
/// `--write` keeps a row that moved less than this, so that the difference in review shows what changed.
const REWRITE_FROM: f64 = 0.005;
/// The command that renews the file.
const RENEW: &str = "cargo xtask instructions --write";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Renew the file that `cargo xtask test` compares with.
    #[arg(long)]
    write: bool,
}

/// The cost of one operation.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    name: String,
    instructions: f64,
    locked: f64,
}

/// The command.
pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let result = missing(ctx).map_or(Ok(()), Err).and_then(|()| measure(ctx)).and_then(|rows| {
        let baseline = read_baseline(ctx).unwrap_or_default();
        print!("{}", table(&rows, &baseline));
        if args.write {
            let text = render(&settled(rows, &baseline), &compiler(ctx));
            std::fs::write(ctx.root.join(BASELINE), text).map_err(|error| format!("{BASELINE}: {error}"))?;
            println!("written to {BASELINE}");
        }
        Ok(())
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => fail(&reason),
    }
}

/// The step.
pub(crate) fn check(ctx: &Context) -> Report {
    if let Some(reason) = missing(ctx) {
        return Report::skip(reason);
    }
    match measure(ctx).and_then(|rows| Ok((rows, read_baseline(ctx)?))) {
        Ok((rows, baseline)) => {
            let mut report = compare(&rows, &baseline);
            report.output = table(&rows, &baseline).lines().map(str::to_owned).collect();
            if !report.failures.is_empty() {
                report.output.push(format!("this is {}; see the file for its compiler", compiler(ctx)));
            }
            report
        }
        Err(reason) => Report::fail(reason),
    }
}

/// Why instructions cannot be counted on this machine.
fn missing(ctx: &Context) -> Option<String> {
    if !cfg!(target_arch = "x86_64") {
        return Some(format!("{BASELINE} holds the counts of x86-64 processors only"));
    }
    let is_there = || which("valgrind").is_some();
    let provided = is_there() || (crate::tools::install(ctx, &["valgrind"]) && is_there());
    (!provided).then(|| {
        "valgrind is missing (counts instructions); install it: `sudo apt-get install -y valgrind`".to_owned()
    })
}

/// Runs the workload once under callgrind.
fn measure(ctx: &Context) -> Result<Vec<Row>, String> {
    // An incremental build has other codegen units, and so other optimisations than the build of users. Naming the command as well
    // gives dependencies the same features as in every other release build.
    let packages = ["-p", "ferroce-bench", "-p", "ferroce-cli"];
    let build = Job::cargo(["build", "--release", "--bin", "instructions"]).args(packages);
    build.env("CARGO_INCREMENTAL", "0").run(ctx).checked()?;
    let folder = ctx.scratch().join("instructions");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let dump = folder.join("dump");
    let ran = Job::new("valgrind")
        .args(["--tool=callgrind", "--collect-atstart=no", "--collect-bus=yes"])
        .args(["--toggle-collect=*callgrind_collects*", "--dump-after=*callgrind_dumps*"])
        .arg(format!("--callgrind-out-file={}", dump.display()))
        .arg(target_dir(ctx).join("release/instructions"))
        .limit_s(300)
        .run(ctx);
    collect(&ran.checked()?, &dump)
}

/// Pairs each line of the workload with its dump. The dumps are numbered from 1.
fn collect(lines: &[String], dump: &Path) -> Result<Vec<Row>, String> {
    let batches = lines.iter().filter_map(|line| {
        let (name, operations) = line.split_once('\t')?;
        Some((name, operations.parse::<f64>().ok()?))
    });
    let mut rows: Vec<(String, Vec<[f64; 2]>)> = Vec::new();
    for (at, (name, operations)) in batches.enumerate() {
        let path = format!("{}.{}", dump.display(), at + 1);
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        let counts = totals(&text).ok_or_else(|| format!("{path} has no totals of two events"))?;
        if rows.last().is_none_or(|(last, _)| last != name) {
            rows.push((name.to_owned(), Vec::new()));
        }
        let batches = &mut rows.last_mut().expect("just pushed").1;
        batches.push(counts.map(|count| count / operations));
    }
    let median = |batches: &[[f64; 2]], event: usize| {
        figure::median(&mut batches.iter().map(|batch| batch[event]).collect::<Vec<_>>())
    };
    let rows = rows.into_iter().map(|(name, batches)| {
        let (instructions, locked) = (median(&batches, 0), median(&batches, 1));
        Row { name, instructions, locked }
    });
    Ok(rows.collect())
}

/// Instructions and locked instructions of a dump.
fn totals(dump: &str) -> Option<[f64; 2]> {
    let line = dump.lines().find_map(|line| line.strip_prefix("totals: "))?;
    let (instructions, locked) = line.trim().split_once(' ')?;
    Some([instructions.parse().ok()?, locked.trim().parse().ok()?])
}

fn read_baseline(ctx: &Context) -> Result<Vec<Row>, String> {
    let text = std::fs::read_to_string(ctx.root.join(BASELINE))
        .map_err(|error| format!("{BASELINE}: {error}; write it: {RENEW}"))?;
    parse(&text)
}

fn parse(text: &str) -> Result<Vec<Row>, String> {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    let wrong = |line| format!("{BASELINE}: `{line}` is not a name and two numbers; renew it: {RENEW}");
    lines.map(|line| parse_row(line).ok_or_else(|| wrong(line))).collect()
}

fn parse_row(line: &str) -> Option<Row> {
    let (line, locked) = line.trim_end().rsplit_once(' ')?;
    let (name, instructions) = line.trim_end().rsplit_once(' ')?;
    let (instructions, locked) = (instructions.parse().ok()?, locked.parse().ok()?);
    Some(Row { name: name.trim_end().to_owned(), instructions, locked })
}

fn render(rows: &[Row], compiler: &str) -> String {
    let mut text = format!(
        "# Instructions and locked instructions per operation, release build, counted under valgrind.\n\
         # `cargo xtask test --filter instructions` fails when a count is more than 5 % above these.\n\
         # Renewed by `{RENEW}`, last with {compiler}.\n#\n"
    );
    let _ = writeln!(text, "# {:32}{:>14}{:>10}", "row", "instructions", "locked");
    for Row { name, instructions, locked } in rows {
        let _ = writeln!(text, "{name:34}{instructions:>14.0}{locked:>10.2}");
    }
    text
}

/// The rows to write. A row that changed by less than [`REWRITE_FROM`] keeps its old value.
fn settled(rows: Vec<Row>, baseline: &[Row]) -> Vec<Row> {
    let is_same = |old: &Row, new: &Row| {
        (new.instructions / old.instructions - 1.0).abs() < REWRITE_FROM
            && (new.locked - old.locked).abs() < LOCKED_TOLERANCE
    };
    let keep = |row: Row| find(baseline, &row.name).filter(|old| is_same(old, &row)).cloned().unwrap_or(row);
    rows.into_iter().map(keep).collect()
}

fn find<'a>(rows: &'a [Row], name: &str) -> Option<&'a Row> {
    rows.iter().find(|row| row.name == name)
}

fn table(rows: &[Row], baseline: &[Row]) -> String {
    let mut text = format!("{:34}{:>14}{:>10}{:>10}\n", "row", "instructions", "locked", "change");
    for row in rows {
        let Row { name, instructions, locked } = row;
        let change = find(baseline, name)
            .map(|old| format!("{:+.1} %", 100.0 * (instructions / old.instructions - 1.0)))
            .unwrap_or_else(|| "new".to_owned());
        let _ = writeln!(text, "{name:34}{instructions:>14.1}{locked:>10.2}{change:>10}");
    }
    text
}

/// One passed or failed test per row and event; rows that became better are notes.
fn compare(rows: &[Row], baseline: &[Row]) -> Report {
    let mut report = Report::default();
    for row in rows {
        let Some(old) = find(baseline, &row.name) else {
            report.failures.push(format!("{} is not in {BASELINE}; renew it: {RENEW}", row.name));
            continue;
        };
        let events = [
            ("instructions", row.instructions, old.instructions, 0.0),
            ("locked instructions", row.locked, old.locked, LOCKED_TOLERANCE),
        ];
        for (event, now, before, least) in events {
            let tolerance = (TOLERANCE * before).max(least);
            let sentence = || format!("{}: {now:.2} {event}, {before:.2} in {BASELINE}", row.name);
            if now > before + tolerance {
                report.failures.push(format!("{}; if that is justified: {RENEW}", sentence()));
            } else {
                report.passed += 1;
                let better = now < before - tolerance;
                report.notes.extend(better.then(|| format!("{}; keep it: {RENEW}", sentence())));
            }
        }
    }
    let gone = baseline.iter().filter(|old| find(rows, &old.name).is_none());
    report
        .failures
        .extend(gone.map(|old| format!("{} of {BASELINE} was not counted; renew it: {RENEW}", old.name)));
    report
}

fn compiler(ctx: &Context) -> String {
    let version = Job::new("rustc").arg("--version").answer(ctx).unwrap_or_default();
    version.split(" (").next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, instructions: f64, locked: f64) -> Row {
        Row { name: name.to_owned(), instructions, locked }
    }

    #[test]
    fn what_is_written_is_read() {
        let rows =
            [row("memory write 8 B", 848.0, 4.25), row("udp write 4 KiB packet, receiver", 123_456.0, 0.5)];
        assert_eq!(parse(&render(&rows, "rustc 1.0")).expect("our own text"), rows);
        assert!(parse("a row without numbers\n").is_err_and(|reason| reason.contains(RENEW)));
    }

    #[test]
    fn only_a_row_that_costs_more_fails() {
        let baseline = [row("a", 1000.0, 4.0), row("b", 1000.0, 0.5), row("c", 1000.0, 4.0)];
        let rows = [row("a", 1051.0, 4.1), row("b", 1049.0, 0.59), row("c", 900.0, 4.3)];
        let report = compare(&rows, &baseline);
        assert_eq!(
            report.failures,
            [
                "a: 1051.00 instructions, 1000.00 in crates/bench/instructions.txt; if that is justified: cargo xtask instructions --write",
                "c: 4.30 locked instructions, 4.00 in crates/bench/instructions.txt; if that is justified: cargo xtask instructions --write",
            ]
        );
        assert_eq!(report.notes.len(), 1, "{:?}", report.notes);
        assert!(report.notes[0].starts_with("c: 900.00 instructions, 1000.00"), "{:?}", report.notes);
        assert_eq!(report.passed, 4);
    }

    #[test]
    fn a_row_that_is_only_on_one_side_fails() {
        let report = compare(&[row("new", 1.0, 0.0)], &[row("old", 1.0, 0.0)]);
        assert_eq!(report.failures.len(), 2, "{:?}", report.failures);
    }

    #[test]
    fn a_row_that_did_not_move_is_not_rewritten() {
        let baseline = [row("a", 1000.0, 4.0), row("b", 1000.0, 4.0)];
        let rows = vec![row("a", 1004.0, 4.05), row("b", 1006.0, 4.0)];
        assert_eq!(settled(rows, &baseline), [row("a", 1000.0, 4.0), row("b", 1006.0, 4.0)]);
    }

    #[test]
    fn totals_are_read_from_a_dump() {
        assert_eq!(totals("events: Ir Ge\nsummary: 7 1\n\ntotals: 105815 544\n"), Some([105_815.0, 544.0]));
        assert_eq!(totals("totals: 105815\n"), None);
    }
}
