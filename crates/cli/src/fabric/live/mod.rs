//! `ferroce fabric live`: hosts in namespaces, unmodified programs in them, and the simulator's switches between them.
//!
//! | file | question |
//! |---|---|
//! | `tun`, `host`, `init` | what is a host |
//! | `ip` | what does the fabric read and change in a packet |
//! | `forward` | how does virtual time follow the clock |
//! | `launch` | which command is started when, and how does it end |
//! | `exec`, `exec_server` | how does a command start on a host of a fabric that runs |
//! | `results`, `compare` | what was measured, and how close is the simulation |

mod compare;
pub(super) mod exec;
mod exec_server;
mod forward;
mod host;
mod init;
mod ip;
mod launch;
mod results;
mod tun;

use super::{Outcome, create, page, read_scenario, simulate_with_bar};
use crate::failure::Failure;
use crate::print_text;
use crate::program::CANNOT_RUN;
use crate::run::namespace;
use crate::signals::Blocked;
use clap::Args;
use ferroce_fabric::scenario::{HostCommand, Live, Mistake, Scenario};
use forward::{Forwarded, Forwarder};
use host::Host;
use launch::{CommandContext, Ended, Starter, Task};
use results::LiveReport;
use std::ffi::OsString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The fastest link of a live fabric: one process moves every packet.
const MAX_RATE: u64 = 10_000_000_000;
/// Bytes of a packet in addition to its RDMA payload: IPv6, UDP, BTH, the longest extension headers and ICRC.
const HEADROOM: u32 = 96;
/// IPv6 needs this MTU.
const MIN_MTU: u32 = 1280;

#[derive(Args)]
pub(crate) struct LiveArgs {
    /// The scenario. Its topology, switches and congestion control are used; [[run]] tables list the commands of the hosts.
    scenario: PathBuf,
    /// Use this seed for marking, loss and ECMP instead of the scenario's.
    #[arg(long)]
    seed: Option<u64>,
    /// Run COMMAND on these hosts only, comma separated; a single one gets the terminal [default: all].
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "command")]
    host: Vec<u32>,
    /// Run only this variant of the scenario.
    #[arg(long, value_name = "VARIANT")]
    only: Option<String>,
    /// Write the page to this file. By default it is NAME.live.html in the current directory, where NAME.toml is the scenario.
    #[arg(short, long, value_name = "PAGE.html")]
    output: Option<PathBuf>,
    /// Write the results as JSON lines, one per run.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// End the commands of a run after this time, with exit status 124. Later variants are not run.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=31_536_000))]
    timeout: Option<u64>,
    /// Do not simulate the scenario's workload for comparison.
    #[arg(long)]
    no_sim: bool,
    /// A command for every host, in place of the scenario's [[run]] tables.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) const EXAMPLES: &str = "\
Every host is a network namespace with one interface, fab0, and the names h0, h1, … for all hosts. Programs find a ferroce device
with the scenario's congestion control. FERROCE_FABRIC_HOST, _HOSTS, _ADDRESS, _ADDRESSES and _COPY describe the host to a program.
No root, no kernel module: user namespaces and /dev/net/tun are enough.

Examples:
  ferroce fabric live scenarios/live-incast-2.toml             the commands of the scenario, compared with its simulation
  ferroce fabric live x.toml -- sh -c 'echo I am h$FERROCE_FABRIC_HOST'    one command on every host
  ferroce fabric live x.toml --host 1 -- bash                  a shell on h1

Commands in a scenario:
  [[run]]
  host = 0
  times = 2                 # copies: 18515 and 18516
  server = true             # starts first, ends last
  listen = 18515            # wait until it listens; $FERROCE_FABRIC_PORT
  command = \"ib_write_bw -d ferroce0 -F -p $FERROCE_FABRIC_PORT\"
  [[run]]
  hosts = [1, 2]
  command = \"ib_write_bw -d ferroce0 -F -D 3 -p $((18514 + FERROCE_FABRIC_HOST)) h0\"";

/// Runs the scenario; the exit status is the worst of its commands.
pub(super) fn run(args: &LiveArgs) -> Result<ExitCode, Failure> {
    let (scenario, shown) = read_scenario(&args.scenario, Scenario::parse_live)?;
    let mistake = |error: Mistake| Failure::usage(format!("{shown}: {error}"));
    let commands = scenario.commands().map_err(mistake)?;
    check(&scenario, &shown)?;
    let tasks = tasks(args, commands, scenario.topology().hosts, &shown)?;
    let wanted = |name: &str| args.only.as_ref().is_none_or(|only| only == name);
    let chosen: Vec<usize> =
        (0..).zip(scenario.run_names()).filter(|(_, name)| wanted(name)).map(|(at, _)| at).collect();
    if chosen.is_empty() {
        let name = args.only.as_deref().unwrap_or_default();
        return Err(Failure::usage(format!("{shown} has no variant named {name:?}")));
    }
    let mut json = args.json.as_deref().map(create).transpose()?;
    // Before the first thread, in which the signals must be blocked as well.
    let blocked = Blocked::new();
    namespace::become_owner().map_err(|refused| {
        Failure::new(format!("there is no namespace for the hosts: {refused}")).exit_with(CANNOT_RUN).advise(
            "Run it as root, or allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, \
             kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu, or user.max_user_namespaces=10000",
        )
    })?;
    let (mut code, mut outcomes, mut front) = (0, Vec::new(), String::new());
    for at in chosen {
        let live = scenario.live(at, args.seed).map_err(mistake)?;
        let (name, control) = (live.name.clone(), live.control.clone());
        let timeout = args.timeout.map(Duration::from_secs);
        let (forwarded, ended, drops) = run_live(live, &scenario, &tasks, &blocked, timeout)?;
        code = code.max(ended.code);
        let report = LiveReport::of(&name, &control, &forwarded, &ended, &drops);
        print_text(&report.table())?;
        let measured = results::outcome(&name, &control, forwarded, ended.elapsed);
        let (mut simulated, mut comparison) = (None, None);
        if scenario.has_workload() && !args.no_sim && ended.stopped.is_none() {
            let mut run = scenario.run(at, args.seed, true).map_err(mistake)?;
            // No command runs now, so a signal may end this process.
            let outcome = blocked.released(|| simulate_with_bar(&mut run));
            let hosts = scenario.topology().hosts as usize;
            comparison = compare::of(hosts, &measured, &outcome, run.world.flows());
            simulated = Some(outcome);
        }
        if let Some(comparison) = &comparison {
            print_text(&comparison.table())?;
        }
        if let Some(json) = &mut json {
            let line = serde_json::json!({ "kind": "live", "run": report, "comparison": comparison });
            writeln!(json, "{line}")
                .and_then(|()| json.flush())
                .map_err(|error| Failure::io("cannot write the JSON lines", error))?;
        }
        report.draw(&mut front);
        comparison.iter().for_each(|comparison| comparison.draw(&mut front));
        outcomes.push(measured);
        outcomes.extend(simulated.map(|simulated| renamed(simulated, &name)));
        if ended.stopped.is_some() {
            break;
        }
    }
    write_page(args, &scenario, &outcomes, &front)?;
    Ok(ExitCode::from(code))
}

fn renamed(mut outcome: Outcome, name: &str) -> Outcome {
    outcome.report.name = format!("{name}, simulated");
    outcome
}

fn write_page(
    args: &LiveArgs,
    scenario: &Scenario,
    outcomes: &[Outcome],
    front: &str,
) -> Result<(), Failure> {
    let output = match &args.output {
        Some(output) => output.clone(),
        None => PathBuf::from(args.scenario.file_stem().unwrap_or_default()).with_extension("live.html"),
    };
    std::fs::write(&output, page::html(scenario, outcomes, front))
        .map_err(|error| Failure::io(format!("cannot write {}", output.display()), error))?;
    print_text(&format!("figures: {}", output.display()))
}

/// Refuses scenarios that one process cannot run.
fn check(scenario: &Scenario, shown: &str) -> Result<(), Failure> {
    let topology = scenario.topology();
    if topology.hosts > ip::MAX_HOSTS {
        return Err(Failure::usage(format!(
            "{shown} has {} hosts; a live fabric has at most {}",
            topology.hosts,
            ip::MAX_HOSTS
        ))
        .advise("Use fewer hosts, or simulate it: ferroce fabric sim"));
    }
    if let Some(link) = topology.links.iter().find(|link| link.a.max(link.b) < topology.hosts) {
        return Err(Failure::usage(format!(
            "{shown} has a link from host {} to host {}; every link of a live fabric ends at a switch",
            link.a, link.b
        ))
        .advise("Put a switch between the two hosts"));
    }
    match topology.links.iter().find(|link| link.rate > MAX_RATE) {
        Some(link) => Err(Failure::usage(format!(
            "{shown} has a link of {:.0} Gb/s; one process moves every packet of a live fabric, so links have at most {} Gb/s",
            link.rate as f64 / 1e9,
            MAX_RATE / 1_000_000_000
        ))
        .advise("Lower topology.rate to about 500Mb/s, multiply topology.delay and `scale` of the control alike, and compare with the simulation of that")),
        None => Ok(()),
    }
}

/// The commands and their hosts.
fn tasks(args: &LiveArgs, commands: Vec<HostCommand>, hosts: u32, shown: &str) -> Result<Vec<Task>, Failure> {
    if args.command.is_empty() {
        if commands.iter().all(|command| command.is_server) {
            return Err(Failure::usage(format!(
                "{shown} has no [[run]] table with a command that is no server"
            ))
            .advise("Add one, or give a command: ferroce fabric live SCENARIO.toml -- COMMAND"));
        }
        let shell = |spec: HostCommand| Task {
            words: vec!["sh".into(), "-c".into(), spec.command.clone().into()],
            spec,
        };
        return Ok(commands.into_iter().map(shell).collect());
    }
    if let Some(host) = args.host.iter().find(|host| **host >= hosts) {
        return Err(Failure::usage(format!("--host {host} does not exist; hosts are 0 to {}", hosts - 1)));
    }
    let chosen: Vec<u32> = if args.host.is_empty() { (0..hosts).collect() } else { args.host.clone() };
    let task = |host| Task {
        spec: HostCommand {
            host,
            copy: 0,
            command: String::new(),
            start_ns: 0,
            is_server: false,
            listen: None,
        },
        words: args.command.clone(),
    };
    Ok(chosen.into_iter().map(task).collect())
}

/// Makes the hosts, runs the commands, and takes everything down.
fn run_live(
    live: Live,
    scenario: &Scenario,
    tasks: &[Task],
    blocked: &Blocked,
    timeout: Option<Duration>,
) -> Result<(Forwarded, Ended, Vec<u64>), Failure> {
    let count = scenario.topology().hosts;
    let mtu = (live.mtu + HEADROOM).max(MIN_MTU);
    let (hosts, tuns) = make_hosts(count, mtu)?;
    let control = live.live_control.clone();
    let stop = Arc::new(AtomicBool::new(false));
    let forwarder = Forwarder::new(live, tuns, mtu);
    let flag = stop.clone();
    let thread = std::thread::spawn(move || forwarder.run(&flag));
    let interactive = tasks.len() == 1 && tasks[0].spec.command.is_empty();
    let has_fabric = || !thread.is_finished();
    let starter = Starter { hosts: &hosts, control: &control, blocked };
    let context = CommandContext { starter: &starter, interactive, timeout, has_fabric: &has_fabric };
    let running = AtomicUsize::new(0);
    let (stopped, stop_serving) =
        std::io::pipe().map_err(|error| Failure::io("cannot make a pipe", error))?;
    let ended = std::thread::scope(|scope| {
        exec_server::start(scope, &starter, &stopped, &running);
        let ended = launch::run(&context, tasks.to_vec());
        drop(stop_serving);
        ended
    });
    stop.store(true, Ordering::Relaxed);
    let forwarded = thread.join().map_err(|_| Failure::new("the thread of the fabric has panicked"))?;
    let drops = hosts.iter().map(Host::queue_drops).collect();
    Ok((forwarded, ended?, drops))
}

fn make_hosts(count: u32, mtu: u32) -> Result<(Vec<Host>, Vec<OwnedFd>), Failure> {
    let made: Result<Vec<_>, _> = (0..count).map(|number| Host::start(number, count, mtu)).collect();
    let made = made.map_err(|(step, error)| {
        let advice = step.advice(&error);
        Failure::io(format!("cannot make a host: {step}"), error).exit_with(CANNOT_RUN).advise(advice)
    })?;
    Ok(made.into_iter().unzip())
}
