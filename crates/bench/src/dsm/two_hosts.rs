//! Two processes on two hosts, made of network namespaces, against one process.

use serde_json::{Value, json};
use xtask::dsm::programs::named;
use xtask::dsm::worker::{Circumstance, Worker};

use super::times::Times;
use super::{ratio_by_round, seconds};

const ROUNDS: usize = 9;
const TRANSPORTS: [&str; 2] = ["rdma", "udp"];
/// What two processes should gain over `rdma`. Over `udp` none should be slower than one process.
const GOALS: [(&str, f64); 6] =
    [("mm", 1.7), ("ep", 1.7), ("tsp", 1.7), ("water", 1.7), ("lu", 1.4), ("sor", 1.3)];
const GOAL_OF_UDP: f64 = 1.0;

/// One program.
pub(super) struct Row {
    program: &'static str,
    arguments: &'static str,
    one: Times,
    /// By transport: the times of two processes, and how much faster they were, the median over the rounds.
    two: Vec<(Times, f64)>,
    goal: f64,
}

/// Runs all, by turns.
pub(super) fn measure(worker: &mut Worker) -> Result<Vec<Row>, String> {
    GOALS.into_iter().map(|(program, goal)| row(worker, program, goal)).collect()
}

fn row(worker: &mut Worker, name: &'static str, goal: f64) -> Result<Row, String> {
    let program = named(name).ok_or("no such program")?;
    let (arguments, _) = program.sped_up.ok_or("a program without arguments")?;
    let (mut one, mut two) = (Vec::new(), TRANSPORTS.map(|_| Vec::new()));
    for round in 0..ROUNDS {
        eprintln!("{name} {arguments} on two hosts: round {} of {ROUNDS}", round + 1);
        one.push(seconds(worker, program, 1, ("local", Circumstance::Plain), arguments)?);
        for (transport, runs) in TRANSPORTS.into_iter().zip(&mut two) {
            runs.push(seconds(worker, program, 2, (transport, Circumstance::TwoHosts), arguments)?);
        }
    }
    let summary = |runs: Vec<f64>| {
        let ratio = ratio_by_round(&one, &runs);
        Times::of(runs).map(|times| (times, ratio))
    };
    let two = two.into_iter().map(summary).collect::<Option<_>>().ok_or("no rounds")?;
    Ok(Row { program: name, arguments, one: Times::of(one).ok_or("no rounds")?, two, goal })
}

const HEAD: &str = "
## Two processes on two hosts

Each process runs in its own network namespace; the two are joined by veth with frames of 9000 bytes. Milliseconds, shortest and median
of nine rounds by turns with one process.

| program | 1 process | `rdma` | faster | goal | `udp` | faster | goal |
|---|---:|---:|---:|---|---:|---:|---|
";

/// The section of the page.
pub(super) fn to_markdown(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        text += &format!("| `{} {}` | {} |", row.program, row.arguments, row.one.show());
        for ((times, ratio), goal) in row.two.iter().zip([row.goal, GOAL_OF_UDP]) {
            let reached = if *ratio >= goal { "reached" } else { "not reached" };
            text += &format!(" {} | {ratio:.2} × | {goal} ×: {reached} |", times.show());
        }
        text += "\n";
    }
    text
}

pub(super) fn to_json(rows: &[Row]) -> Value {
    let two = |row: &Row| -> Value {
        let entry = |(transport, (times, ratio)): (&str, &(Times, f64))| json!({"transport": transport, "times": times.to_json(), "ratio": ratio});
        TRANSPORTS.into_iter().zip(&row.two).map(entry).collect()
    };
    let row = |row: &Row| json!({"program": row.program, "arguments": row.arguments, "one": row.one.to_json(), "two": two(row), "goal": row.goal});
    rows.iter().map(row).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn examples() -> Vec<Row> {
        let times = |best_s| Times { best_s, median_s: 2.0 * best_s };
        let two = vec![(times(0.5), 1.8), (times(2.0), 0.9)];
        vec![Row { program: "mm", arguments: "-n 8", one: times(1.0), two, goal: 1.7 }]
    }

    #[test]
    fn each_transport_has_its_goal() {
        let text = to_markdown(&examples());
        assert!(
            text.ends_with(
                "| `mm -n 8` | 1000 / 2000 | 500 / 1000 | 1.80 × | 1.7 ×: reached | 2000 / 4000 | 0.90 × | 1 ×: not reached |\n"
            ),
            "{text}"
        );
        assert_eq!(to_json(&examples())[0]["two"][1]["transport"], "udp");
    }
}
