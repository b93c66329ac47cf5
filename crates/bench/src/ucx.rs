//! UCX over ferroce's device against UCX's own tcp transport: the same program, in one run on one machine.
//!
//! Both kinds of runs alternate, because the speed of a machine varies, and medians are compared. Each side has its own core if there
//! are two.

use std::time::Duration;

use serde_json::{Value, json};
use xtask::figure::{self, median};
use xtask::programs::Setup;
use xtask::tools::which;

use crate::sides::{on_core_of, run_pair};
use crate::{Json, measure_in_namespace, prepare};

const ROUNDS: usize = 5;
const LIMIT: Duration = Duration::from_secs(120);
const FIRST_PORT: u16 = 25_000;

/// One comparison.
struct Comparison {
    name: &'static str,
    test: &'static str,
    /// Column of the figure in the final row of ucx_perftest, counted from 0 after the iterations.
    column: usize,
    unit: &'static str,
    less_is_better: bool,
}

const COMPARISONS: [Comparison; 2] = [
    Comparison {
        name: "tag latency, 8 B, half a round trip, median",
        test: "tag_lat -s 8 -n 20000 -w 1000",
        column: 1,
        unit: "µs",
        less_is_better: true,
    },
    Comparison {
        name: "tag bandwidth, 1 MiB",
        test: "tag_bw -s 1048576 -n 2000 -w 100",
        column: 5,
        unit: "MB/s",
        less_is_better: false,
    },
];

/// The benchmark.
pub(crate) fn bench(format: Json) -> Result<(), String> {
    if which("ucx_perftest").is_none() {
        return Err(
            "ucx_perftest is not installed; install it: `sudo apt-get install -y ucx-utils`".to_owned()
        );
    }
    let answer = measure_in_namespace("ucx-worker", prepare(&format.context(), None)?, |_| {})?;
    println!("{}", if format.json { answer.to_string() } else { to_markdown(&answer) });
    Ok(())
}

/// The part inside the network namespace.
pub(crate) fn run(args: &Setup) -> Result<Value, String> {
    let mut ports = FIRST_PORT..;
    let rows: Result<Vec<Value>, String> =
        COMPARISONS.iter().map(|comparison| compare(args, comparison, &mut ports)).collect();
    Ok(json!({"ucx": rows?, "rounds": ROUNDS}))
}

fn compare(
    args: &Setup,
    comparison: &Comparison,
    ports: &mut impl Iterator<Item = u16>,
) -> Result<Value, String> {
    let (mut ours, mut tcp) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        eprintln!("{}: round {} of {ROUNDS}", comparison.name, round + 1);
        for (tls, figures) in [("rc_verbs,ud_verbs:aux", &mut ours), ("tcp", &mut tcp)] {
            let output = both_sides(args, tls, comparison.test, ports.next().unwrap_or(FIRST_PORT))?;
            let figure = figure::of_ucx(&output, comparison.column);
            figures.push(figure.ok_or_else(|| format!("{tls}: no figures in\n{output}"))?);
        }
    }
    let (ours, tcp) = (median(&mut ours), median(&mut tcp));
    let ratio = if comparison.less_is_better { tcp / ours } else { ours / tcp };
    Ok(json!({"name": comparison.name, "unit": comparison.unit, "ferroce": ours, "tcp": tcp, "ratio": ratio}))
}

/// Runs a server and a client. Returns the output of the client.
fn both_sides(args: &Setup, tls: &str, test: &str, port: u16) -> Result<String, String> {
    run_pair(&args.logs, "ucx", port, LIMIT, |host| {
        let mut command = on_core_of(host, &args.ferroce);
        command.args(["run", "--", "ucx_perftest", "-p", &port.to_string()]).env("UCX_TLS", tls);
        if let Some(host) = host {
            command.args([host, "-t"]).args(test.split_whitespace());
        }
        command
    })
}

/// The answer as a Markdown table.
pub(crate) fn to_markdown(answer: &Value) -> String {
    let mut text = "### UCX on ferroce against UCX's own tcp\n\n| ucx_perftest | rc_verbs on ferroce | tcp | ratio |\n|---|---:|---:|---:|\n".to_owned();
    for row in answer["ucx"].as_array().into_iter().flatten() {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let (name, unit) = (row["name"].as_str().unwrap_or("?"), row["unit"].as_str().unwrap_or(""));
        let reached = if number("ratio") >= 1.0 { "reached" } else { "not reached" };
        text += &format!(
            "| {name} | {:.2} {unit} | {:.2} {unit} | {:.2} × (goal: 1 ×: {reached}) |\n",
            number("ferroce"),
            number("tcp"),
            number("ratio")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_reads_as_a_table() {
        let row = json!({"name": "tag", "unit": "µs", "ferroce": 4.0, "tcp": 6.0, "ratio": 1.5});
        let text = to_markdown(&json!({"ucx": [row]}));
        assert!(text.contains("| tag | 4.00 µs | 6.00 µs | 1.50 × (goal: 1 ×: reached) |"), "{text}");
    }
}
