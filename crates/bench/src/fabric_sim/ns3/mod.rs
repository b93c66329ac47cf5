//! The same scenarios in ns-3: packet hops per second and completion times, compared with those of ferroce.
//!
//! main.cc is a program over Debian's libns3-dev. Its input is the topology, the marking threshold, the flows with their first windows, and
//! the paths that ECMP selects. All come from the scenario that ferroce simulates, so both run the same network. Both use one core,
//! alternately.

use super::measure;
use ferroce_fabric::scenario::{Run, Scenario};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use xtask::debian;
use xtask::step::{Context, Tier};
use xtask::tools::which;

/// A scenario, and whether the goal for completion times applies to it. It does if flows are long and no two have the same sender.
struct Row {
    name: &'static str,
    text: &'static str,
    is_long: bool,
}

const ROWS: [Row; 3] = [
    Row { name: "dumbbell", text: include_str!("dumbbell.toml"), is_long: true },
    Row { name: "leaf-spine", text: include_str!("leaf-spine.toml"), is_long: true },
    Row { name: "leaf-spine, WebSearch", text: include_str!("websearch.toml"), is_long: false },
];

/// Our packet hops per second, divided by those of ns-3.
const RATIO_GOAL: f64 = 30.0;
/// Difference of the mean completion time in percent.
const DIFFERENCE_GOAL: f64 = 2.0;
/// Flows below this many bytes are short.
const SHORT: u64 = 100_000;
/// The fastest event list of ns-3 in these scenarios.
const SCHEDULER: &str = "--scheduler=ns3::PriorityQueueScheduler";

/// The results of a simulator.
#[derive(Clone, Debug)]
struct Side {
    cpu_s: f64,
    packet_hops: u64,
    marks: u64,
    drops: u64,
    /// Completion times by flow, in ms.
    fct_ms: Vec<f64>,
}

impl Side {
    fn hops_per_s(&self) -> f64 {
        self.packet_hops as f64 / self.cpu_s.max(1e-9)
    }

    fn mean_ms(&self) -> f64 {
        self.fct_ms.iter().sum::<f64>() / self.fct_ms.len().max(1) as f64
    }
}

/// The comparison. A row that misses a goal makes it fail.
pub(super) fn run(rounds: u32, json: bool) -> Result<(), String> {
    let ctx = Context::new(!json, Tier::Full);
    let (program, version) = build(&ctx)?;
    if !json {
        println!("ns-3: Debian's libns3-dev {version}\n");
        println!(
            "| scenario | simulator | flows | packet hops | marks | CPU s | M packet hops/s | ratio | mean FCT ms | difference | \
             mean difference of a flow | largest | of flows < 100 kB |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    }
    let (mut rows, mut missed) = (Vec::new(), Vec::new());
    for row in &ROWS {
        let scenario = Scenario::parse(row.text, Path::new(".")).map_err(|error| error.to_string())?;
        let ours = simulate(&scenario, rounds)?;
        let run = scenario.run(0, None, false).map_err(|error| error.to_string())?;
        let theirs = simulate_in_ns3(&program, &scenario, &run, rounds)?;
        let bytes: Vec<u64> = run.world.flows().iter().map(|flow| flow.bytes).collect();
        let comparison = Comparison::new(&ours, &theirs, &bytes);
        missed.extend(comparison.missed(row));
        if json {
            rows.push(comparison.as_json(row, &ours, &theirs));
        } else {
            comparison.print(row, &ours, &theirs);
        }
    }
    if json {
        println!("{}", json!({ "ns3": version, "rows": rows }));
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("goal missed: {}", missed.join("; "))) }
}

fn simulate(scenario: &Scenario, rounds: u32) -> Result<Side, String> {
    let (run, _, cpu_s) = measure(scenario, rounds)?;
    let counters = run.world.counters();
    let mut fct_ms = vec![0.0; run.world.flows().len()];
    for done in run.world.finished() {
        fct_ms[done.flow as usize] = done.fct_ps as f64 / 1e9;
    }
    let drops = counters.buffer_drops + counters.headroom_drops + counters.lost_packets;
    Ok(Side { cpu_s, packet_hops: counters.packet_hops, marks: counters.marks, drops, fct_ms })
}

/// Differences of the completion times, ours against ns-3's, in percent.
struct Comparison {
    ratio: f64,
    mean: f64,
    by_flow: Vec<f64>,
    /// Mean size of the differences, of all flows and of short ones.
    of_flow: f64,
    of_short: Option<f64>,
    drops: u64,
}

impl Comparison {
    fn new(ours: &Side, theirs: &Side, bytes: &[u64]) -> Comparison {
        let times = ours.fct_ms.iter().zip(&theirs.fct_ms);
        let by_flow: Vec<f64> = times.map(|(ours, theirs)| 100.0 * (ours / theirs - 1.0)).collect();
        let mean_size = |sizes: Vec<f64>| match sizes.len() {
            0 => None,
            count => Some(sizes.iter().map(|size| size.abs()).sum::<f64>() / count as f64),
        };
        let short = by_flow.iter().zip(bytes).filter(|(_, bytes)| **bytes < SHORT).map(|(by, _)| *by);
        Comparison {
            ratio: ours.hops_per_s() / theirs.hops_per_s(),
            mean: 100.0 * (ours.mean_ms() / theirs.mean_ms() - 1.0),
            of_flow: mean_size(by_flow.clone()).unwrap_or_default(),
            of_short: mean_size(short.collect()),
            by_flow,
            drops: ours.drops + theirs.drops,
        }
    }

    fn largest(&self) -> f64 {
        self.by_flow.iter().map(|by| by.abs()).fold(0.0, f64::max)
    }

    fn missed(&self, row: &Row) -> Vec<String> {
        let mut missed = Vec::new();
        if self.ratio < RATIO_GOAL {
            missed.push(format!("{}: {:.1} times ns-3 instead of {RATIO_GOAL}", row.name, self.ratio));
        }
        if row.is_long && self.mean.abs() > DIFFERENCE_GOAL {
            missed.push(format!("{}: mean FCT {:+.2} % instead of {DIFFERENCE_GOAL} %", row.name, self.mean));
        }
        if self.drops > 0 {
            missed.push(format!("{}: {} packets were dropped, none should be", row.name, self.drops));
        }
        missed
    }

    fn print(&self, row: &Row, ours: &Side, theirs: &Side) {
        for (name, side) in [("ferroce", ours), ("ns-3", theirs)] {
            let compared = match name {
                "ns-3" => String::from("| | | |"),
                _ => format!(
                    "{:+.2} % | {:.2} % | {:.1} % | {} |",
                    self.mean,
                    self.of_flow,
                    self.largest(),
                    self.of_short.map_or(String::from("–"), |short| format!("{short:.2} %"))
                ),
            };
            let ratio = if name == "ns-3" { String::from("1") } else { format!("{:.1}", self.ratio) };
            println!(
                "| {} | {name} | {} | {} | {} | {:.3} | {:.3} | {ratio} | {:.3} | {compared}",
                row.name,
                side.fct_ms.len(),
                side.packet_hops,
                side.marks,
                side.cpu_s,
                side.hops_per_s() / 1e6,
                side.mean_ms()
            );
        }
    }

    fn as_json(&self, row: &Row, ours: &Side, theirs: &Side) -> Value {
        let side = |side: &Side| {
            json!({
                "cpu_s": side.cpu_s, "packet_hops": side.packet_hops, "packet_hops_per_s": side.hops_per_s(),
                "marks": side.marks, "drops": side.drops, "mean_fct_ms": side.mean_ms(), "fct_ms": side.fct_ms,
            })
        };
        json!({
            "scenario": row.name, "ferroce": side(ours), "ns3": side(theirs), "ratio": self.ratio,
            "mean_difference_percent": self.mean, "difference_percent": self.by_flow,
        })
    }
}

/// Fetches libns3-dev and compiles main.cc. Returns the program, and the version of the package.
fn build(ctx: &Context) -> Result<(PathBuf, String), String> {
    let compiler =
        which("c++").ok_or("c++ is missing: `sudo apt-get install -y g++`, it compiles the ns-3 program")?;
    const PACKAGE: &str = "libns3-dev";
    // Only the packages that the program is linked with, without dependencies of other modules of ns-3.
    let library = debian::depends(ctx, PACKAGE)?.into_iter().find(|name| name.starts_with("libns3"));
    let library = library.ok_or("libns3-dev names no libns3; is this Debian or Ubuntu?")?;
    let mut names = debian::depends(ctx, &library)?;
    names.retain(|name| name.starts_with("libgsl"));
    names.extend([PACKAGE.to_owned(), library]);
    let cache = ctx.root.join("target/ns3");
    let (sysroot, packages) = debian::unpacked(ctx, &cache, &names)?;
    let version = packages.iter().find_map(|package| package.strip_prefix("libns3-dev="));
    let version = version.ok_or("libns3-dev has no version that can be fetched")?.to_owned();
    let libraries = folder_of(&sysroot.join("usr/lib"), "libns3-core.so")?;
    let program = cache.join("peer");
    let linker = |option: &str| format!("-Wl,{option},{}", libraries.display());
    let modules = ["internet", "point-to-point", "network", "core", "traffic-control", "bridge"];
    let compiled = Command::new(compiler)
        .args(["-std=c++17", "-O3", "-DNDEBUG", "-I"])
        .arg(sysroot.join("usr/include"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/fabric_sim/ns3/main.cc"))
        .arg("-L")
        .arg(&libraries)
        // RPATH instead of RUNPATH, because it also applies to indirect dependencies.
        .args(["-Wl,--disable-new-dtags".to_owned(), linker("-rpath"), linker("-rpath-link")])
        .args(modules.map(|module| format!("-lns3-{module}")))
        .arg("-o")
        .arg(&program)
        .output()
        .map_err(|error| format!("c++: {error}"))?;
    if !compiled.status.success() {
        let log = String::from_utf8_lossy(&compiled.stderr);
        let first = log.lines().find(|line| line.contains("error")).unwrap_or("no message").to_owned();
        return Err(format!(
            "main.cc does not compile with libns3-dev {version} (it is written for 3.37): {first}"
        ));
    }
    Ok((program, version))
}

/// The folder below `root` that contains a file. Debian's libraries are in a folder named after the architecture.
fn folder_of(root: &Path, file: &str) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(root).map_err(|error| format!("{}: {error}", root.display()))?;
    let folders = entries.flatten().map(|entry| entry.path());
    folders.chain([root.to_owned()]).find(|folder| folder.join(file).exists()).ok_or_else(|| {
        format!("{} has no {file}; remove the folder target/ns3 and try again", root.display())
    })
}

/// The input of main.cc.
fn describe(scenario: &Scenario, run: &Run) -> Result<String, String> {
    let topology = scenario.topology();
    let config = run.world.config();
    let red = config.switch.red.ok_or("the scenario has no ECN marking")?;
    let payload = config.host.mtu;
    let mut text = format!(
        "hosts {} nodes {} packet {payload} mark {}\n",
        topology.hosts,
        topology.nodes(),
        red.kmin as u64
    );
    for link in &topology.links {
        let _ = writeln!(text, "link {} {} {} {}", link.a, link.b, link.rate, link.delay_ns);
    }
    let way = |nodes: &[u32]| {
        let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
        format!("{} {}", nodes.len(), nodes.join(" "))
    };
    for (number, flow) in (0..).zip(run.world.flows()) {
        let plan = run.world.plan(number);
        let (data, acks, packets) = (way(&plan.data), way(&plan.acks), plan.window / payload);
        let _ = writeln!(text, "flow {} {} {packets} {data} {acks}", flow.bytes, flow.start_ps);
    }
    Ok(text)
}

fn simulate_in_ns3(program: &Path, scenario: &Scenario, run: &Run, rounds: u32) -> Result<Side, String> {
    let input = describe(scenario, run)?;
    let mut best: Option<Side> = None;
    for _ in 0..rounds.max(1) {
        let side = read_answer(&run_ns3(program, &input)?, run)?;
        if best.as_ref().is_none_or(|best| side.cpu_s < best.cpu_s) {
            best = Some(side);
        }
    }
    best.ok_or_else(|| "no round".to_owned())
}

/// Runs main.cc with this input. Returns its output.
fn run_ns3(program: &Path, input: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", program.display());
    let mut child = Command::new(program)
        .arg(SCHEDULER)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // The program reads its whole input before it writes, so this write cannot block forever. Dropping the pipe ends the input.
    child.stdin.take().map_or(Ok(()), |mut pipe| pipe.write_all(input.as_bytes())).map_err(failed)?;
    let output = child.wait_with_output().map_err(failed)?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("the ns-3 program ended with {}", output.status)),
    }
}

fn read_answer(text: &str, run: &Run) -> Result<Side, String> {
    let answer: Value =
        serde_json::from_str(text).map_err(|error| format!("ns-3 printed {text:?}: {error}"))?;
    let missing = |name: &str| format!("the answer of the ns-3 program has no {name:?}");
    let count = |name: &str| answer[name].as_u64().ok_or_else(|| missing(name));
    let finished = answer["finished_ps"].as_array().ok_or_else(|| missing("finished_ps"))?;
    let fct_ms = finished.iter().zip(run.world.flows()).map(|(end, flow)| {
        let end = end.as_u64().ok_or_else(|| String::from("a flow did not end in ns-3"))?;
        Ok(end.saturating_sub(flow.start_ps) as f64 / 1e9)
    });
    Ok(Side {
        cpu_s: answer["cpu_s"].as_f64().ok_or_else(|| missing("cpu_s"))?,
        packet_hops: count("packet_hops")?,
        marks: count("marks")?,
        drops: count("drops")?,
        fct_ms: fct_ms.collect::<Result<_, String>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_has_every_link_and_flow_and_existing_paths() {
        for row in &ROWS {
            let scenario = Scenario::parse(row.text, Path::new(".")).expect(row.name);
            let run = scenario.run(0, None, false).expect(row.name);
            let text = describe(&scenario, &run).expect(row.name);
            let links = &scenario.topology().links;
            let lines = |word: &str| text.lines().filter(|line| line.starts_with(word)).count();
            assert_eq!(
                (lines("link"), lines("flow")),
                (links.len(), run.world.flows().len()),
                "{}",
                row.name
            );
            let exists = |a: u32, b: u32| {
                links.iter().any(|link| (link.a, link.b) == (a, b) || (link.b, link.a) == (a, b))
            };
            for (number, flow) in (0..).zip(run.world.flows()) {
                let plan = run.world.plan(number);
                assert_eq!((plan.data.first(), plan.data.last()), (Some(&flow.from), Some(&flow.to)));
                assert_eq!((plan.acks.first(), plan.acks.last()), (Some(&flow.to), Some(&flow.from)));
                assert!(
                    plan.data.windows(2).chain(plan.acks.windows(2)).all(|pair| exists(pair[0], pair[1]))
                );
            }
        }
    }

    #[test]
    fn differences_are_in_percent_of_the_peer() {
        let side = |fct_ms: &[f64], cpu_s| Side {
            cpu_s,
            packet_hops: 100,
            marks: 0,
            drops: 0,
            fct_ms: fct_ms.to_vec(),
        };
        let comparison = Comparison::new(&side(&[1.1, 3.8], 1.0), &side(&[1.0, 4.0], 40.0), &[1000, 1 << 20]);
        assert!((comparison.ratio - 40.0).abs() < 1e-9 && (comparison.mean + 2.0).abs() < 1e-9);
        assert!((comparison.of_flow - 7.5).abs() < 1e-9 && (comparison.largest() - 10.0).abs() < 1e-9);
        assert!(comparison.of_short.is_some_and(|short| (short - 10.0).abs() < 1e-9));
        assert_eq!(comparison.missed(&ROWS[0]), Vec::<String>::new());
    }
}
