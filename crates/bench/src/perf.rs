//! Prints the JSON of `ferroce perf` as Markdown tables.
//!
//! The structure of the JSON may change. So this module depends only on the measurements: every object with a test and a message
//! size is one, at any depth. Missing figures are left out.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use ferroce_cli::sizes::format_size;
use serde_json::Value;
use xtask::step::{Context, Tier};

#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// Print the tables of this file instead of measuring.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Further arguments of `ferroce perf`, after `--`.
    #[arg(last = true)]
    perf: Vec<String>,
}

/// A table: one figure of all tests over all sizes.
struct Table {
    title: &'static str,
    /// Key of the figure in a measurement.
    key: &'static str,
    /// Factor to the unit of the title.
    scale: f64,
    less_is_better: bool,
}

const TABLES: [Table; 4] = [
    Table { title: "Latency, median, µs", key: "median_ns", scale: 1e-3, less_is_better: true },
    Table { title: "Latency, 99th percentile, µs", key: "p99_ns", scale: 1e-3, less_is_better: true },
    Table { title: "Bandwidth, GB/s", key: "gigabytes_per_s", scale: 1.0, less_is_better: false },
    Table { title: "Rate, M messages/s", key: "million_messages_per_s", scale: 1.0, less_is_better: false },
];

/// One test at one size.
struct Measurement<'a> {
    test: &'a str,
    size: u64,
    json: &'a Value,
}

/// The benchmark. A failed measurement is named below the tables and makes the benchmark fail.
pub(crate) fn run(args: &Args) -> Result<(), String> {
    let (file, status) = match &args.from {
        Some(file) => (file.clone(), None),
        None => {
            measure(&Context::new(true, Tier::Full), &args.perf).map(|(file, status)| (file, Some(status)))?
        }
    };
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let json = serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    println!("{}", render(&json));
    match status {
        Some(status) if !status.success() => Err(format!("`ferroce perf --json`: {status}")),
        _ => Ok(()),
    }
}

/// Runs `ferroce perf`, whose progress bar goes directly to the terminal. Returns the file with its figures, and its exit status.
fn measure(ctx: &Context, perf: &[String]) -> Result<(PathBuf, ExitStatus), String> {
    let mut command = xtask::cargo();
    command.args(["run", "--release", "--quiet", "--", "perf", "--json"]).args(perf).current_dir(&ctx.root);
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cargo did not start: {error}"))?;
    if output.stdout.is_empty() {
        return Err(format!("`ferroce perf --json` printed nothing: {}", output.status));
    }
    let file = ctx.scratch().join("bench.json");
    let write = std::fs::create_dir_all(ctx.scratch()).and_then(|()| std::fs::write(&file, &output.stdout));
    write.map_err(|error| format!("{}: {error}", file.display()))?;
    Ok((file, output.status))
}

fn render(json: &Value) -> String {
    let mut measurements = Vec::new();
    collect(json, &mut measurements);
    let mut text = machine_line(json);
    for table in &TABLES {
        render_table(&mut text, table, &measurements);
    }
    text.push_str(&headlines(json));
    for Measurement { test, size, json } in &measurements {
        if let Some(error) = json["error"].as_str() {
            let _ = writeln!(text, "- failed: {test} with {}: {error}", format_size(*size));
        }
    }
    if measurements.is_empty() {
        text.push_str("(no measurement that names a test and a size)\n");
    }
    text
}

/// Every object that names a test and a size.
fn collect<'a>(json: &'a Value, found: &mut Vec<Measurement<'a>>) {
    if let (Some(test), Some(size)) = (json["test"].as_str(), json["size"].as_u64()) {
        found.push(Measurement { test, size, json });
        return;
    }
    match json {
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Object(fields) => fields.values().for_each(|value| collect(value, found)),
        _ => {}
    }
}

/// The machine and the date of the measurement.
fn machine_line(json: &Value) -> String {
    let machine = &json["machine"];
    let parts = [
        machine["cpu"].as_str().map(str::to_owned),
        machine["cores"].as_u64().map(|cores| format!("{cores} cores")),
        machine["kernel"].as_str().map(str::to_owned),
        json["date"].as_str().map(str::to_owned),
        json["faults"].as_str().map(|faults| format!("faults {faults}")),
        json["quick"].as_bool().and_then(|quick| quick.then(|| "a quick run".to_owned())),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { String::new() } else { format!("{}.\n\n", parts.join(", ")) }
}

fn render_table(text: &mut String, table: &Table, measurements: &[Measurement]) {
    // In the order of the command, which lists sockets first.
    let mut columns: Vec<&str> = Vec::new();
    let mut rows: BTreeMap<u64, BTreeMap<&str, f64>> = BTreeMap::new();
    for Measurement { test, size, json } in measurements {
        let Some(figure) = leaf(json, table.key) else { continue };
        let column = column(test);
        if !columns.contains(&column) {
            columns.push(column);
        }
        rows.entry(*size).or_default().insert(column, figure * table.scale);
    }
    if rows.is_empty() {
        return;
    }
    let _ = writeln!(text, "### {}\n\n| size | {} |", table.title, columns.join(" | "));
    let _ = writeln!(text, "|---:|{}", "---:|".repeat(columns.len()));
    for (size, row) in &rows {
        let cells: Vec<String> = columns.iter().map(|column| cell(table, row, column)).collect();
        let _ = writeln!(text, "| {} | {} |", format_size(*size), cells.join(" | "));
    }
    text.push('\n');
}

/// The number under `key`, at any depth.
fn leaf(json: &Value, key: &str) -> Option<f64> {
    let fields = json.as_object()?;
    fields.get(key).and_then(Value::as_f64).or_else(|| fields.values().find_map(|value| leaf(value, key)))
}

/// `send` of `send-lat`: the title of the table contains the rest.
fn column(test: &str) -> &str {
    test.strip_suffix("-lat").or_else(|| test.strip_suffix("-bw")).unwrap_or(test)
}

/// A figure, and its ratio to TCP at the same size. READs and atomics are compared with a request and its reply.
fn cell(table: &Table, row: &BTreeMap<&str, f64>, column: &str) -> String {
    let Some(&figure) = row.get(column) else { return "-".to_owned() };
    let is_request = matches!(column, "read" | "atomic");
    let base = if is_request { row.get("tcp-rr").or_else(|| row.get("tcp")) } else { row.get("tcp") };
    let figure_text = if figure < 0.1 { format!("{figure:.4}") } else { format!("{figure:.2}") };
    match base {
        Some(&base) if !column.starts_with("tcp") && base > 0.0 && figure > 0.0 => {
            let ratio = if table.less_is_better { base / figure } else { figure / base };
            format!("{figure_text} ({ratio:.2} ×)")
        }
        _ => figure_text,
    }
}

/// The headlines of the command, one line each.
fn headlines(json: &Value) -> String {
    let mut text = String::new();
    for headline in json["headlines"].as_array().into_iter().flatten() {
        let word = |key: &str| headline[key].as_str().unwrap_or("?");
        let ratio = headline["ratio"].as_f64().map_or_else(|| "?".to_owned(), |ratio| format!("{ratio:.2}"));
        let reached = if headline["reached"] == Value::Bool(true) { "reached" } else { "not reached" };
        let (name, measured, against, goal) = (word("name"), word("measured"), word("against"), word("goal"));
        let _ = writeln!(text, "- {name}: {measured} to {against}, ratio {ratio} ({goal}: {reached})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_ratios_headlines_and_failures_show() {
        let json = serde_json::json!({"machine": {"cpu": "Z80", "cores": 2}, "quick": true, "cells": [
            {"test": "tcp-lat", "size": 8, "latency": {"median_ns": 4000.0}},
            {"test": "tcp-rr", "size": 8, "latency": {"median_ns": 9000.0, "p99_ns": null}},
            {"test": "send-lat", "size": 8, "latency": {"median_ns": 2000.0}},
            {"test": "read-lat", "size": 8, "latency": {"median_ns": 3000.0}},
            {"test": "send-bw", "size": 1_048_576, "bandwidth": {"gigabytes_per_s": 5.5}},
            {"test": "write-bw", "size": 8, "error": "no route"},
        ], "headlines": [{"name": "n", "measured": "1", "against": "2", "ratio": 0.5, "goal": "g", "reached": true}]});
        let text = render(&json);
        assert!(text.starts_with("Z80, 2 cores, a quick run.\n"), "{text}");
        assert!(text.contains("| size | tcp | tcp-rr | send | read |"), "{text}");
        assert!(text.contains("| 8 B | 4.00 | 9.00 | 2.00 (2.00 ×) | 3.00 (3.00 ×) |"), "{text}");
        assert!(text.contains("| 1 MiB | 5.50 |"), "{text}");
        assert!(text.contains("- n: 1 to 2, ratio 0.50 (g: reached)"), "{text}");
        assert!(text.contains("- failed: write-bw with 8 B: no route"), "{text}");
        assert!(!text.contains("99th"), "no table without a figure");
    }

    #[test]
    fn an_empty_answer_is_reported_as_empty() {
        assert!(render(&serde_json::json!({})).contains("no measurement"));
    }
}
