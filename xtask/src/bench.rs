//! `ferroce perf --json` into the table of the README.
//!
//! The command owns the shape of its JSON and may widen it at any time. So nothing here depends on the shape around a
//! measurement: whatever object names a test and a message size is one, wherever it lies.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::Value;

use crate::process::Job;
use crate::step::Context;

const NAME_KEYS: [&str; 5] = ["test", "name", "series", "operation", "op"];
const SIZE_KEYS: [&str; 3] = ["size", "size_bytes", "message_size"];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Render this file instead of measuring.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Further arguments of `ferroce perf`, after `--`.
    #[arg(last = true)]
    perf: Vec<String>,
}

/// One figure of one test over all sizes.
struct Table {
    title: &'static str,
    /// Where the figure stands in a measurement.
    key: &'static str,
    /// What turns the figure into the unit of the title.
    scale: f64,
    /// Word in the name of the test that the others are compared with.
    baseline: &'static str,
}

const TABLES: [Table; 3] = [
    Table { title: "Latency, median, µs", key: "median_ns", scale: 1e-3, baseline: "tcp" },
    Table { title: "Latency, 99th percentile, µs", key: "p99_ns", scale: 1e-3, baseline: "tcp" },
    Table { title: "Bandwidth, GB/s", key: "gigabytes_per_s", scale: 1.0, baseline: "tcp" },
];

/// Figures by message size, then by test.
type Figures = BTreeMap<u64, BTreeMap<String, f64>>;

/// The command.
pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    match measure(ctx, args) {
        Ok(json) => {
            print!("{}", render(&json));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn measure(ctx: &Context, args: &Args) -> Result<Value, String> {
    let file = match &args.from {
        Some(file) => file.clone(),
        None => {
            let cargo = ["run", "--release", "--quiet", "--", "perf", "--json"];
            let json = Job::cargo(cargo).args(&args.perf).answer(ctx)?;
            let file = ctx.scratch().join("bench.json");
            let write = std::fs::create_dir_all(ctx.scratch()).and_then(|()| std::fs::write(&file, json));
            write.map_err(|error| format!("{}: {error}", file.display()))?;
            file
        }
    };
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_str(&text).map_err(|error| format!("{} is not JSON: {error}", file.display()))
}

fn render(json: &Value) -> String {
    let mut measurements = Vec::new();
    collect(json, &mut measurements);
    let mut text = String::new();
    for table in &TABLES {
        let figures = figures(&measurements, table);
        if !figures.is_empty() {
            render_table(&mut text, table, &figures);
        }
    }
    render_ratios(&mut text, json);
    if text.is_empty() {
        text.push_str("(no measurement that names a test and a size)\n");
    }
    text
}

/// Every object that names a test and a size.
fn collect<'a>(json: &'a Value, found: &mut Vec<(String, u64, &'a Value)>) {
    match json {
        Value::Array(items) => items.iter().for_each(|item| collect(item, found)),
        Value::Object(fields) => {
            let name = NAME_KEYS.iter().find_map(|key| fields.get(*key)?.as_str());
            let size = SIZE_KEYS.iter().find_map(|key| fields.get(*key)?.as_u64());
            match (name, size) {
                (Some(name), Some(size)) => found.push((name.to_owned(), size, json)),
                _ => fields.values().for_each(|value| collect(value, found)),
            }
        }
        _ => {}
    }
}

fn figures(measurements: &[(String, u64, &Value)], table: &Table) -> Figures {
    let mut figures = Figures::new();
    for (name, size, measurement) in measurements {
        if let Some(figure) = leaf(measurement, table.key) {
            figures.entry(*size).or_default().insert(name.clone(), figure * table.scale);
        }
    }
    figures
}

/// The number under `key`, however deep it lies.
fn leaf(json: &Value, key: &str) -> Option<f64> {
    let fields = json.as_object()?;
    fields.get(key).and_then(Value::as_f64).or_else(|| fields.values().find_map(|value| leaf(value, key)))
}

fn render_table(text: &mut String, table: &Table, figures: &Figures) {
    let tests: BTreeSet<&String> = figures.values().flat_map(BTreeMap::keys).collect();
    let is_baseline = |test: &str| test.to_lowercase().contains(table.baseline);
    // Baselines first, so that the ratios read from left to right.
    let (first, rest): (Vec<&String>, Vec<&String>) = tests.into_iter().partition(|test| is_baseline(test));
    let base = first.first().copied();
    let columns: Vec<&String> = first.iter().chain(&rest).copied().collect();
    let _ = writeln!(text, "### {}\n", table.title);
    let heads: Vec<&str> = columns.iter().map(|column| column.as_str()).collect();
    let _ = writeln!(text, "| size | {} |", heads.join(" | "));
    let _ = writeln!(text, "|---:|{}", "---:|".repeat(columns.len()));
    for (size, row) in figures {
        let cells: Vec<String> = columns.iter().map(|column| cell(row, column, base)).collect();
        let _ = writeln!(text, "| {} | {} |", shown_size(*size), cells.join(" | "));
    }
    text.push('\n');
}

/// A figure, and how it compares with the baseline at the same size.
fn cell(row: &BTreeMap<String, f64>, column: &String, base: Option<&String>) -> String {
    let Some(figure) = row.get(column) else { return "-".to_owned() };
    match base.filter(|base| *base != column).and_then(|base| row.get(base)) {
        Some(base) if *base > 0.0 => format!("{figure:.2} ({:.2}x)", figure / base),
        _ => format!("{figure:.2}"),
    }
}

/// Ratios that the command worked out itself, under any key that says so.
fn render_ratios(text: &mut String, json: &Value) {
    let Some(ratios) = json.as_object().and_then(|fields| fields.get("ratios")) else { return };
    let lines: Vec<String> = match ratios {
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| format!("{name}: {}", shown(value))).collect()
        }
        Value::Array(items) => items.iter().map(shown).collect(),
        other => vec![shown(other)],
    };
    let _ = writeln!(text, "### Ratios\n\n- {}", lines.join("\n- "));
}

fn shown(value: &Value) -> String {
    match value {
        Value::Number(number) => {
            number.as_f64().map_or_else(|| number.to_string(), |figure| format!("{figure:.2}"))
        }
        Value::String(string) => string.clone(),
        Value::Object(fields) => {
            let parts: Vec<String> =
                fields.iter().map(|(name, value)| format!("{name} {}", shown(value))).collect();
            parts.join(", ")
        }
        other => other.to_string(),
    }
}

fn shown_size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / 1_048_576),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measurements_are_found_wherever_they_lie() {
        let json = serde_json::json!({"machine": {"cores": 2}, "rows": [
            {"test": "tcp", "size": 8, "latency": {"median_ns": 4000.0}},
            {"test": "send", "size": 8, "latency": {"median_ns": 2000.0}},
            {"test": "send", "size": 1_048_576, "bandwidth": {"gigabytes_per_s": 5.5}},
        ], "ratios": {"write to tcp": 1.25}});
        let text = render(&json);
        assert!(text.contains("| size | tcp | send |"), "{text}");
        assert!(text.contains("| 8 B | 4.00 | 2.00 (0.50x) |"), "{text}");
        assert!(text.contains("| 1 MiB | 5.50 |"), "{text}");
        assert!(text.contains("- write to tcp: 1.25"), "{text}");
    }

    #[test]
    fn an_empty_answer_is_said_to_be_empty() {
        assert!(render(&serde_json::json!({})).contains("no measurement"));
    }
}
