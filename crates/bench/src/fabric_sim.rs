//! Speed of the fabric simulator: packet hops per second on one core, and the largest fabric.
//!
//! Time is that of the processor, which other work on the machine changes least.
//! A packet hop is one packet that arrives at one node. The runs are those of the goals: light hosts and real queue pairs on
//! the same leaf-spine fabric, and a fat tree of more than 4,096 hosts.

use ferroce_fabric::scenario::Scenario;
use std::path::Path;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// Runs of each row; the fastest counts.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

struct Row {
    name: &'static str,
    topology: &'static str,
    duration: &'static str,
    model: &'static str,
    control: &'static str,
    load: f64,
    /// Million packet hops per second.
    goal: Option<f64>,
}

const LEAF_SPINE: &str = "kind = \"leaf-spine\"\nleaves = 4\nspines = 4\nhosts_per_leaf = 8";
const FAT_TREE: &str = "kind = \"fat-tree\"\nk = 26";

const fn row(model: &'static str, control: &'static str, goal: f64) -> Row {
    let goal = Some(goal);
    Row {
        name: "leaf-spine, 32 hosts",
        topology: LEAF_SPINE,
        duration: "2ms",
        model,
        control,
        load: 0.5,
        goal,
    }
}

const ROWS: [Row; 7] = [
    row("light", "dctcp", 5.0),
    row("light", "dcqcn-nic", 5.0),
    row("light", "swift", 5.0),
    row("queue-pairs", "dctcp", 1.5),
    row("queue-pairs", "dcqcn-nic", 1.5),
    row("queue-pairs", "swift", 1.5),
    Row {
        name: "fat tree, 4394 hosts",
        topology: FAT_TREE,
        duration: "100us",
        model: "light",
        control: "dctcp",
        load: 0.3,
        goal: None,
    },
];

fn scenario(row: &Row) -> Result<Scenario, String> {
    let Row { topology, duration, model, control, load, .. } = row;
    let text = format!(
        "name = \"speed\"\nduration = \"{duration}\"\nlimit = \"20ms\"\ncontrol = \"{control}\"\n\
         [topology]\n{topology}\nrate = \"100Gb/s\"\ndelay = \"1us\"\n\
         [switch.ecn]\nkmin = \"300kB\"\nkmax = \"300kB\"\npmax = 1.0\n\
         [host]\nmodel = \"{model}\"\n\
         [[workload]]\nkind = \"poisson\"\ncdf = \"websearch\"\nload = {load}\n"
    );
    Scenario::parse(&text, Path::new(".")).map_err(|error| error.to_string())
}

/// The most memory that this process has used so far, in MiB.
fn peak_mib() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

/// Seconds that this thread has run on a processor.
fn cpu_s() -> Result<f64, String> {
    let path = "/proc/thread-self/schedstat";
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let ns = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    Ok(ns.ok_or_else(|| format!("{path} has no time: {text:?}"))? as f64 / 1e9)
}

/// The benchmark. A row below its goal makes it fail.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    println!(
        "| run | hosts | control | M packet hops | M packet hops/s | goal | start s | run s | peak memory MiB |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut missed = Vec::new();
    for row in &ROWS {
        let scenario = scenario(row)?;
        let (mut best, mut start_s, mut hops) = (f64::INFINITY, 0.0, 0);
        for _ in 0..options.rounds.max(1) {
            let start = cpu_s()?;
            let mut run = scenario.run(0, None, false).map_err(|error| error.to_string())?;
            start_s = cpu_s()? - start;
            let start = cpu_s()?;
            if !run.world.run_until(run.limit_ps) {
                return Err(format!("{} with {}: flows are left after 20 ms", row.name, row.control));
            }
            best = best.min(cpu_s()? - start);
            hops = run.world.counters().packet_hops;
        }
        let rate = hops as f64 / best / 1e6;
        let goal = row.goal.map_or(String::from("–"), |goal| format!("≥ {goal}"));
        let memory = peak_mib().map_or(String::from("–"), |mib| mib.to_string());
        println!(
            "| {} | {} | {} | {:.1} | {rate:.1} | {goal} | {start_s:.2} | {best:.2} | {memory} |",
            row.name,
            row.model,
            row.control,
            hops as f64 / 1e6
        );
        if row.goal.is_some_and(|goal| rate < goal) {
            missed.push(format!("{} with {} hosts and {}", row.name, row.model, row.control));
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("below the goal: {}", missed.join("; "))) }
}
