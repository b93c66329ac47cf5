//! `ferroce fabric`: simulates fabrics of RDMA hosts and switches, and runs programs in live ones.

mod live;
mod page;
mod rank;
mod replay;

use crate::failure::Failure;
use crate::table::{Align, Table};
use crate::{print_json, print_text};
use clap::{Args, Subcommand};
use ferroce_fabric::report::{Report, report};
use ferroce_fabric::scenario::{Mistake, Run, Scenario};
use ferroce_fabric::world::Samples;
use ferroce_proto::cc::{PRESETS, Preset, Value};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Simulate fabrics of RDMA hosts and switches, or run programs in live ones.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Simulate a scenario and write the figures as one HTML page.
    ///
    /// A scenario is a TOML file: a topology, the switches and hosts, one or more workloads, and one congestion control
    /// or several variants to compare. The folder scenarios/ has examples; docs/fabric/scenario.md explains every key.
    /// The result depends on the scenario and the seed only, not on the machine: compare the hash.
    #[command(after_help = SIM_EXAMPLES)]
    Sim(SimArgs),
    /// Simulate several scenarios and rank the congestion controls over all of them.
    ///
    /// Every workload of every scenario is one column of the table. The rank is the geometric mean of what a control costs: its 99th
    /// percentile of slowdown, divided by the least of the column.
    #[command(after_help = rank::EXAMPLES)]
    Rank(rank::RankArgs),
    /// Run unmodified programs on the hosts of a scenario, with its links and switches between them.
    ///
    /// The hosts are namespaces of this machine. One process runs the switches of `ferroce fabric sim` against the real clock: rates,
    /// queues, ECN marks, pauses, loss. Afterwards it prints what each host sent and received, and writes a page; if the scenario has
    /// workloads, their simulation is drawn over the measurement. The exit status is the worst of the commands.
    #[command(after_help = live::EXAMPLES)]
    Live(live::LiveArgs),
    /// Run a command on a host of a live fabric that runs.
    ///
    /// It works on the hosts themselves, and in another terminal. The command gets this terminal's input and output, but no job control,
    /// and the current directory. It ends with this one. The exit status is that of the command.
    #[command(after_help = live::exec::EXEC_EXAMPLES)]
    Exec(live::exec::ExecArgs),
    /// The same with the command line of ssh, for programs that start others by ssh.
    #[command(after_help = live::exec::SSH_EXAMPLES)]
    Ssh(live::exec::SshArgs),
    /// List the congestion controls, their parameters and where they were published.
    #[command(after_help = CONTROLS_EXAMPLES)]
    Controls(ControlsArgs),
}

const SIM_EXAMPLES: &str = "\
Examples:
  ferroce fabric sim scenarios/incast.toml                 table on the terminal, figures in incast.html
  ferroce fabric sim scenarios/incast.toml --seed 7        the same with another seed
  ferroce fabric sim x.toml --json x.jsonl --flows         every run and every flow as JSON lines
  ferroce fabric controls                                  what `control = \"…\"` can be

A scenario in a few lines:
  name = \"8:1 incast\"
  duration = \"5ms\"
  control = \"dcqcn-nic,rai=0.1%\"
  [topology]
  kind = \"star\"           # or dumbbell, parking-lot, leaf-spine, fat-tree, file
  hosts = 9
  rate = \"100Gb/s\"
  delay = \"1us\"
  [switch.ecn]
  kmin = \"400kB\"
  kmax = \"1600kB\"
  pmax = 0.2
  [[workload]]
  kind = \"incast\"         # or poisson, all-to-all, all-reduce, flows, trace
  fan_in = 8
  size = \"10MB\"
  to = 0";

const CONTROLS_EXAMPLES: &str = "\
Examples:
  ferroce fabric controls                  what `control = \"…\"` of a scenario can be
  ferroce fabric controls --json           for programs
  ferroce run --cc dcqcn-nic -- ./prog     use one on real queue pairs";

#[derive(Args)]
pub(crate) struct ControlsArgs {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub(crate) struct SimArgs {
    /// The scenario.
    scenario: PathBuf,
    /// Use this seed instead of the scenario's.
    #[arg(long)]
    seed: Option<u64>,
    /// Write the page to this file. By default it is NAME.html in the current directory, where NAME.toml is the scenario.
    #[arg(short, long, value_name = "PAGE.html")]
    output: Option<PathBuf>,
    /// Write the results as JSON lines, one per run.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Add one JSON line per finished flow.
    #[arg(long, requires = "json")]
    flows: bool,
    /// Simulate only this run: the name of a variant.
    #[arg(long, value_name = "VARIANT")]
    only: Option<String>,
}

/// The results of a run that the page shows.
struct Outcome {
    report: Report,
    samples: Samples,
    wall: Duration,
}

pub(crate) fn run(command: Command) -> Result<ExitCode, Failure> {
    let done = |()| ExitCode::SUCCESS;
    match command {
        Command::Sim(args) => simulate(&args).map(done),
        Command::Rank(args) => rank::run(&args).map(done),
        Command::Live(args) => live::run(&args),
        Command::Exec(args) => live::exec::exec(&args),
        Command::Ssh(args) => live::exec::ssh(&args),
        Command::Controls(ControlsArgs { json: true }) => print_json(&controls_as_json()).map(done),
        Command::Controls(_) => print_text(&controls()).map(done),
    }
}

/// Reads a scenario; returns its name for messages as well.
fn read_scenario(
    path: &Path,
    parse: fn(&str, &Path) -> Result<Scenario, Mistake>,
) -> Result<(Scenario, String), Failure> {
    let shown = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::io(format!("cannot read the scenario {shown}"), error))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let scenario = parse(&text, folder).map_err(|error| Failure::usage(format!("{shown}: {error}")))?;
    Ok((scenario, shown))
}

fn simulate(args: &SimArgs) -> Result<(), Failure> {
    let (scenario, shown) = read_scenario(&args.scenario, Scenario::parse)?;
    let mistake = |error| Failure::usage(format!("{shown}: {error}"));
    let mut json = match &args.json {
        Some(path) => Some(create(path)?),
        None => None,
    };
    let mut outcomes = Vec::new();
    for at in 0..scenario.runs() {
        let run = scenario.run(at, args.seed, true).map_err(mistake)?;
        if args.only.as_ref().is_some_and(|only| *only != run.name) {
            continue;
        }
        outcomes.push(simulate_run(run, json.as_mut(), args.flows)?);
    }
    if outcomes.is_empty() {
        let name = args.only.as_deref().unwrap_or_default();
        return Err(Failure::usage(format!("{shown} has no variant named {name:?}")));
    }
    print_text(&table(&outcomes))?;
    let output = match &args.output {
        Some(output) => output.clone(),
        None => PathBuf::from(args.scenario.file_stem().unwrap_or_default()).with_extension("html"),
    };
    std::fs::write(&output, page::html(&scenario, &outcomes, ""))
        .map_err(|error| Failure::io(format!("cannot write {}", output.display()), error))?;
    print_text(&format!("figures: {}", output.display()))
}

fn create(path: &Path) -> Result<std::io::BufWriter<std::fs::File>, Failure> {
    let file = std::fs::File::create(path)
        .map_err(|error| Failure::io(format!("cannot create {}", path.display()), error))?;
    Ok(std::io::BufWriter::new(file))
}

/// Parts of the simulated time. The progress bar is updated after each.
const SLICES: u64 = 200;

fn simulate_run(mut run: Run, json: Option<&mut impl Write>, flows: bool) -> Result<Outcome, Failure> {
    let outcome = simulate_with_bar(&mut run);
    if let Some(json) = json {
        write_json(json, &outcome.report, &run, flows)
            .map_err(|error| Failure::io("cannot write the JSON lines", error))?;
    }
    Ok(outcome)
}

/// Simulates with a progress bar.
fn simulate_with_bar(run: &mut Run) -> Outcome {
    let target = ProgressDrawTarget::stderr_with_hz(5);
    let bar = ProgressBar::with_draw_target(Some(SLICES), target);
    let style = ProgressStyle::with_template("{msg:24} {bar:32} {percent:>3} %  {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(run.name.clone());
    let start = Instant::now();
    for slice in 1..=SLICES {
        let until = (u128::from(run.limit_ps) * u128::from(slice) / u128::from(SLICES)) as u64;
        if run.world.run_until(until) {
            break;
        }
        bar.set_position(slice);
    }
    let wall = start.elapsed();
    bar.finish_and_clear();
    let report = report(&run.name, &run.control, &run.world);
    Outcome { report, samples: run.world.samples().clone(), wall }
}

fn write_json(json: &mut impl Write, report: &Report, run: &Run, flows: bool) -> std::io::Result<()> {
    let line = serde_json::json!({ "kind": "run", "run": report });
    writeln!(json, "{line}")?;
    for done in run.world.finished().iter().filter(|_| flows) {
        let flow = run.world.flows()[done.flow as usize];
        let line = serde_json::json!({
            "kind": "flow", "run": report.name, "flow": done.flow, "from": flow.from, "to": flow.to,
            "bytes": flow.bytes, "workload": flow.group, "start_ns": flow.start_ps as f64 / 1e3,
            "fct_ns": done.fct_ps as f64 / 1e3, "ideal_ns": done.ideal_ps as f64 / 1e3,
        });
        writeln!(json, "{line}")?;
    }
    json.flush()
}

/// The columns of the table on the terminal and on the page.
const COLUMNS: [(&str, Align); 14] = [
    ("run", Align::Left),
    ("flows", Align::Right),
    ("slowdown\np50", Align::Right),
    ("\np99", Align::Right),
    ("< 100 kB\np99", Align::Right),
    ("mean FCT\nµs", Align::Right),
    ("last ends\nµs", Align::Right),
    ("Jain", Align::Right),
    ("longest\nqueue kB", Align::Right),
    ("paused\n%", Align::Right),
    ("drops", Align::Right),
    ("resent\n%", Align::Right),
    ("M hops/s", Align::Right),
    ("hash", Align::Left),
];

fn cells(outcome: &Outcome) -> [String; 14] {
    let Outcome { report, wall, .. } = outcome;
    let c = &report.counters;
    let first = report.groups.first();
    let number =
        |value: Option<f64>, digits: usize| value.map_or(String::from("–"), |v| format!("{v:.digits$}"));
    let short = first.and_then(|group| group.by_class[1]).map(|class| class.slowdown.p99);
    let resent = 100.0 * c.retransmissions as f64 / c.data_packets.max(1) as f64;
    let paused = report.queues.iter().map(|queue| queue.paused).fold(0.0, f64::max);
    let longest = report.queues.iter().map(|queue| queue.longest).max().unwrap_or(0);
    [
        report.name.clone(),
        format!("{}/{}", report.finished, report.started),
        number(first.map(|group| group.slowdown.p50), 2),
        number(first.map(|group| group.slowdown.p99), 2),
        number(short, 2),
        number(first.map(|group| group.mean_fct_us), 1),
        number(first.map(|group| group.span_us), 0),
        number(report.jain, 3),
        format!("{:.0}", f64::from(longest) / 1e3),
        format!("{:.2}", 100.0 * paused),
        (c.buffer_drops + c.headroom_drops + c.lost_packets).to_string(),
        format!("{resent:.2}"),
        format!("{:.1}", c.packet_hops as f64 / wall.as_secs_f64().max(1e-9) / 1e6),
        report.hash.clone(),
    ]
}

fn table(outcomes: &[Outcome]) -> String {
    let mut table = Table::new(&COLUMNS);
    for outcome in outcomes {
        table.line(cells(outcome));
    }
    table.render()
}

/// A value in the notation of scenarios.
fn written(value: Value) -> String {
    match value {
        Value::Number(number) => {
            format!("{number:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
        }
        Value::Time(ns) => format!("{}us", ns / 1e3),
        Value::Bytes(bytes) => format!("{bytes}B"),
        Value::Rate(bits) => format!("{}Mb/s", bits / 1e6),
        Value::Share(share) => format!("{}%", share * 100.0),
    }
}

fn controls_as_json() -> Vec<serde_json::Value> {
    let of = |preset: &Preset| {
        let params = preset.params.iter().map(|param| {
            serde_json::json!({"name": param.name, "default": written(preset.default_of(param)), "meaning": param.meaning})
        });
        serde_json::json!({"name": preset.name, "citation": preset.citation, "params": params.collect::<Vec<_>>()})
    };
    PRESETS.iter().map(of).collect()
}

/// Every preset with its parameters.
fn controls() -> String {
    let mut text =
        String::from("Congestion controls; set parameters as in `control = \"dcqcn-nic,g=1/256\"`.\n");
    for preset in PRESETS {
        text += &format!("\n{}\n  {}\n", preset.name, preset.citation);
        for param in preset.params {
            let value = written(preset.default_of(param));
            text += &format!("  {:<18} {:>10}  {}\n", param.name, value, param.meaning);
        }
    }
    text += "\nscale=N multiplies all times of a control.";
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCENARIO: &str = r#"
name = "a <b> test"
about = "shows & tells"
duration = "300us"
[topology]
kind = "leaf-spine"
leaves = 2
spines = 2
hosts_per_leaf = 2
rate = "100Gb/s"
delay = "1us"
[[workload]]
kind = "all-to-all"
size = "300kB"
[[variant]]
name = "dctcp"
control = "dctcp"
ecn = { kmin = "100kB", kmax = "100kB", pmax = 1.0 }
[[variant]]
name = "spray"
control = "hpcc"
balance = "spray"
recovery = "selective"
reorder = 64
"#;

    #[test]
    fn the_page_stands_alone_and_has_every_figure() {
        let scenario = Scenario::parse(SCENARIO, Path::new(".")).expect("good");
        let mut json = Vec::new();
        let outcomes: Vec<Outcome> = (0..2)
            .map(|at| {
                let run = scenario.run(at, None, true).expect("good");
                simulate_run(run, Some(&mut json), true).expect("simulated")
            })
            .collect();
        let page = page::html(&scenario, &outcomes, "");
        for outside in ["http:", "https:", "@import", "url(", "src=", "NaN", "inf\""] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert!(page.contains("a &lt;b&gt; test") && page.contains("shows &amp; tells"));
        for figure in ["Slowdown", "Queues", "Rates", "Fairness", "Pauses", "Replay"] {
            assert!(page.contains(&format!("<h2>{figure}")), "{figure}");
        }
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        let lines: Vec<serde_json::Value> = String::from_utf8(json)
            .expect("text")
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines.iter().filter(|line| line["kind"] == "run").count(), 2);
        assert_eq!(lines.iter().filter(|line| line["kind"] == "flow").count(), 24);
        assert!(table(&outcomes).contains("dctcp"));
    }

    #[test]
    fn the_list_of_controls_names_every_parameter() {
        let text = controls();
        assert!(
            text.contains("dcqcn-nic") && text.contains("alpha_interval") && text.contains("SIGCOMM 2019")
        );
    }
}
