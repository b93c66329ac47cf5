//! Two processes on two hosts, which are network namespaces, against one process. Single operations between them against JIAJIA's.

use serde_json::{Value, json};
use xtask::dsm::pieces::Piece;
use xtask::dsm::programs::named;
use xtask::dsm::worker::{Circumstance, Worker};
use xtask::figure::median;

use super::times::Times;
use super::{ratio_by_round, seconds};

const ROUNDS: usize = 9;
const TRANSPORTS: [&str; 2] = ["rdma", "udp"];
/// Goals: the speed-up of two processes over `rdma`. Over `udp` two processes must not be slower than one.
const GOALS: [(&str, Circumstance, f64); 7] = [
    ("mm", Circumstance::TwoHosts, 1.7),
    ("ep", Circumstance::TwoHosts, 1.7),
    ("tsp", Circumstance::TwoHosts, 1.7),
    ("water", Circumstance::TwoHosts, 1.7),
    ("lu", Circumstance::TwoHosts, 1.4),
    ("sor", Circumstance::TwoHosts, 1.3),
    ("sor", Circumstance::TwoHostsChangedBlocks, 1.3),
];
const GOAL_OF_UDP: f64 = 1.0;

/// Operations as the example `figures` names them, with JIAJIA's times over its fastest transport, in microseconds.
const OPERATIONS: [(&str, f64); 3] = [
    ("read fault and fetch of a page", 75.0),
    ("lock and unlock, remote, uncontended", 123.0),
    ("empty barrier", 75.0),
];
const OPERATION_ROUNDS: usize = 5;
/// Goal: the factor by which each operation is faster than JIAJIA's.
const GOAL_OF_OPERATIONS: f64 = 5.0;

/// All measurements.
pub(super) struct TwoHosts {
    rows: Vec<Row>,
    /// By operation: microseconds over each transport.
    operations: Vec<Vec<f64>>,
}

/// One program.
pub(super) struct Row {
    program: &'static str,
    circumstance: Circumstance,
    arguments: &'static str,
    one: Times,
    /// By transport: the times of two processes, and their speed-up as the median over the rounds.
    two: Vec<(Times, f64)>,
    goal: f64,
}

/// Runs all measurements. One and two processes alternate.
pub(super) fn measure(worker: &mut Worker) -> Result<TwoHosts, String> {
    let operations = operations(worker)?;
    let rows = GOALS.into_iter().map(|goal| row(worker, goal)).collect::<Result<_, _>>()?;
    Ok(TwoHosts { rows, operations })
}

fn operations(worker: &mut Worker) -> Result<Vec<Vec<f64>>, String> {
    let mut all = OPERATIONS.map(|_| TRANSPORTS.map(|_| Vec::new()));
    for round in 0..OPERATION_ROUNDS {
        eprintln!("single operations between two hosts: round {} of {OPERATION_ROUNDS}", round + 1);
        for (at, piece) in [Piece::TwoHosts, Piece::TwoHostsMessages].into_iter().enumerate() {
            let figures = worker.measure(piece)?;
            for ((name, _), times) in OPERATIONS.iter().zip(&mut all) {
                times[at].push(figures[name].as_f64().ok_or_else(|| format!("no figure of {name:?}"))?);
            }
        }
    }
    Ok(all.into_iter().map(|mut times| times.iter_mut().map(|times| median(times)).collect()).collect())
}

fn row(
    worker: &mut Worker,
    (name, circumstance, goal): (&'static str, Circumstance, f64),
) -> Result<Row, String> {
    let program = named(name).ok_or("no such program")?;
    let (arguments, _) = program.sped_up.ok_or("a program without arguments")?;
    let (mut one, mut two) = (Vec::new(), TRANSPORTS.map(|_| Vec::new()));
    for round in 0..ROUNDS {
        eprintln!("{name} {arguments} on two hosts: round {} of {ROUNDS}", round + 1);
        one.push(seconds(worker, program, 1, ("local", Circumstance::Plain), arguments)?);
        for (transport, runs) in TRANSPORTS.into_iter().zip(&mut two) {
            runs.push(seconds(worker, program, 2, (transport, circumstance), arguments)?);
        }
    }
    let summary = |runs: Vec<f64>| {
        let ratio = ratio_by_round(&one, &runs);
        Times::of(runs).map(|times| (times, ratio))
    };
    let two = two.into_iter().map(summary).collect::<Option<_>>().ok_or("no rounds")?;
    Ok(Row { program: name, circumstance, arguments, one: Times::of(one).ok_or("no rounds")?, two, goal })
}

const HEAD: &str = "
## Two processes on two hosts

Each process runs in its own network namespace; the two are joined by veth with frames of 9000 bytes. Milliseconds, shortest and median
of nine rounds by turns with one process. `WVEC`: with the switch `changed-blocks`. `cargo xtask bench dsm --two-hosts` prints this section.

| program | 1 process | `rdma` | faster | goal | `udp` | faster | goal |
|---|---:|---:|---:|---|---:|---:|---|
";

const OPERATIONS_HEAD: &str = "
Single operations between the same namespaces, microseconds, medians of five runs, against JIAJIA's figures over its fastest transport on
another machine. The goal is 5 ×.

| | JIAJIA | `rdma` | faster | `udp` | faster |
|---|---:|---:|---|---:|---|
";

/// The section of the page.
pub(super) fn to_markdown(measured: &TwoHosts) -> String {
    let mut text = HEAD.to_owned();
    for row in &measured.rows {
        let switch = if row.circumstance == Circumstance::TwoHostsChangedBlocks { ", `WVEC`" } else { "" };
        text += &format!("| `{} {}`{switch} | {} |", row.program, row.arguments, row.one.show());
        for ((times, ratio), goal) in row.two.iter().zip([row.goal, GOAL_OF_UDP]) {
            let reached = if *ratio >= goal { "reached" } else { "not reached" };
            text += &format!(" {} | {ratio:.2} × | {goal} ×: {reached} |", times.show());
        }
        text += "\n";
    }
    text += OPERATIONS_HEAD;
    for ((name, jiajia_us), times) in OPERATIONS.iter().zip(&measured.operations) {
        text += &format!("| {name} | {jiajia_us} |");
        for us in times {
            let ratio = jiajia_us / us;
            let reached = if ratio >= GOAL_OF_OPERATIONS { "reached" } else { "not reached" };
            text += &format!(" {us:.1} | {ratio:.1} ×: {reached} |");
        }
        text += "\n";
    }
    text
}

pub(super) fn to_json(measured: &TwoHosts) -> Value {
    let two = |row: &Row| -> Value {
        let entry = |(transport, (times, ratio)): (&str, &(Times, f64))| json!({"transport": transport, "times": times.to_json(), "ratio": ratio});
        TRANSPORTS.into_iter().zip(&row.two).map(entry).collect()
    };
    let row = |row: &Row| json!({"program": row.program, "arguments": row.arguments, "one": row.one.to_json(), "two": two(row), "goal": row.goal, "changed_blocks": row.circumstance == Circumstance::TwoHostsChangedBlocks});
    let operation = |((name, jiajia_us), us): (&(&str, f64), &Vec<f64>)| json!({"operation": name, "jiajia_us": jiajia_us, "us": us});
    let operations = OPERATIONS.iter().zip(&measured.operations).map(operation);
    json!({"programs": measured.rows.iter().map(row).collect::<Value>(), "operations": operations.collect::<Value>()})
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn examples() -> TwoHosts {
        let times = |best_s| Times { best_s, median_s: 2.0 * best_s };
        let two = vec![(times(0.5), 1.8), (times(2.0), 0.9)];
        let circumstance = Circumstance::TwoHostsChangedBlocks;
        let row = Row { program: "mm", circumstance, arguments: "-n 8", one: times(1.0), two, goal: 1.7 };
        TwoHosts { rows: vec![row], operations: vec![vec![15.0, 30.0]] }
    }

    #[test]
    fn each_transport_has_its_goal() {
        let text = to_markdown(&examples());
        assert!(
            text.contains(
                "| `mm -n 8`, `WVEC` | 1000 / 2000 | 500 / 1000 | 1.80 × | 1.7 ×: reached | 2000 / 4000 | 0.90 × | 1 ×: not reached |\n"
            ),
            "{text}"
        );
        let ends =
            "| read fault and fetch of a page | 75 | 15.0 | 5.0 ×: reached | 30.0 | 2.5 ×: not reached |\n";
        assert!(text.ends_with(ends), "{text}");
        assert_eq!(to_json(&examples())["programs"][0]["two"][1]["transport"], "udp");
    }
}
