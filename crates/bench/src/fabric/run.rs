//! Runs the sources of the table inside a network namespace; the answer is one JSON object.
//!
//! A round runs every source once. The next round runs them in reverse order, because the speed of a machine varies. A source that fails is
//! reported with its reason and not repeated; the others continue.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Map, Value, json};
use xtask::figure::{self, median};
use xtask::programs::session::Program;
use xtask::programs::{Setup, network};

use super::table::{Link, Method, Source, Unit, rows, sources};
use crate::sides::{on_core_of, run_pairs};

/// Time limit of a run. A busy machine needs several times as long as a quiet one.
const LIMIT: Duration = Duration::from_secs(30);
const FIRST_PORT: u16 = 26_000;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    setup: Setup,
    /// The bare ping-pong, where it could be built.
    #[arg(long)]
    pingpong: Option<PathBuf>,
    #[arg(long)]
    rounds: usize,
    #[arg(long)]
    filter: Vec<String>,
}

/// The part inside the network namespace.
pub(crate) fn run(args: &Args) -> Result<Value, String> {
    let gid = network::gid_indices(&args.setup.ferroce)?.v4;
    Ok(Runner { args, gid, next_port: FIRST_PORT }.all_rounds())
}

/// The results of one source so far.
struct SourceRuns {
    source: &'static Source,
    figures: Vec<f64>,
    failure: Option<String>,
}

struct Runner<'a> {
    args: &'a Args,
    gid: u64,
    next_port: u16,
}

impl Runner<'_> {
    /// By name of the source: its median, or the reason for its failure.
    fn all_rounds(mut self) -> Value {
        let runs = |source| SourceRuns { source, figures: Vec::new(), failure: None };
        let mut all_runs: Vec<SourceRuns> = sources(&rows(&self.args.filter)).into_iter().map(runs).collect();
        let progress = Progress::new((self.args.rounds * all_runs.len()) as u64);
        for round in 1..=self.args.rounds {
            for runs in &mut all_runs {
                progress.step(round, runs.source.name);
                if runs.failure.is_none() {
                    match self.measure(runs.source) {
                        Ok(figure) => runs.figures.push(figure),
                        Err(reason) => runs.failure = Some(reason),
                    }
                }
                progress.step_done();
            }
            all_runs.reverse();
        }
        progress.finish();
        let answers: Map<String, Value> = all_runs
            .iter_mut()
            .map(|runs| {
                let answer = match &runs.failure {
                    Some(reason) => json!({"failure": reason}),
                    None => json!({"figure": median(&mut runs.figures), "rounds": runs.figures}),
                };
                (runs.source.name.to_owned(), answer)
            })
            .collect();
        Value::Object(answers)
    }

    fn measure(&mut self, source: &Source) -> Result<f64, String> {
        // One output for each client.
        let outputs = match source.method {
            Method::Perftest(line, link) => {
                let port = self.take_port();
                self.run_pair(port, |host| {
                    let mut command = on_core_of(host, &self.args.setup.ferroce);
                    self.add_perftest(&mut command, line, link, port, host);
                    command
                })?
            }
            Method::ConcurrentPairs(line, link, pairs) => self.concurrent_pairs(line, link, pairs)?,
            Method::Ucx(test) => self.ucx(test, "sm,self")?,
            Method::UcxTcp(test) => self.ucx(test, "tcp,self")?,
            Method::BarePingPong => self.pingpong(&[])?,
            Method::BareTcp => self.pingpong(&["tcp"])?,
            Method::BareUdp => self.bare_udp()?,
            Method::Threads(line, link, threads) => self.threads(line, link, threads)?,
            Method::Iperf3(bytes) => self.iperf3(bytes)?,
        };
        let total: Option<f64> = outputs.iter().map(|output| figure_in(source, output)).sum();
        let good = total.filter(|figure| figure.is_finite() && *figure > 0.0);
        good.ok_or_else(|| format!("no figure in\n{}", outputs.concat()))
    }

    fn take_port(&mut self) -> u16 {
        self.next_port += 1;
        self.next_port
    }

    fn run_pair(&self, port: u16, side: impl Fn(Option<&str>) -> Command) -> Result<Vec<String>, String> {
        run_pairs(&self.args.setup.logs, "fabric", &[port], LIMIT, |_, host| side(host))
    }

    fn add_perftest(&self, command: &mut Command, line: &str, link: Link, port: u16, host: Option<&str>) {
        command.args(["run", "--"]).args(line.split_whitespace());
        command.args(["-F", "-p", &port.to_string()]);
        // The connection manager of iWARP finds the address; the GID table has one entry.
        if !matches!(link, Link::Iwarp | Link::IwarpCrc) {
            command.args(["-x", &self.gid.to_string()]);
        }
        command.args(host);
        set_link(command, link);
    }

    fn concurrent_pairs(&mut self, line: &str, link: Link, pairs: u16) -> Result<Vec<String>, String> {
        let ports: Vec<u16> = (0..pairs).map(|_| self.take_port()).collect();
        run_pairs(&self.args.setup.logs, "fabric concurrent", &ports, LIMIT, |port, host| {
            let mut command = Command::new(&self.args.setup.ferroce);
            self.add_perftest(&mut command, line, link, port, host);
            command
        })
    }

    fn ucx(&mut self, test: &str, transports: &str) -> Result<Vec<String>, String> {
        let port = self.take_port();
        self.run_pair(port, |host| {
            let mut command = on_core_of(host, "ucx_perftest");
            command.args(["-p", &port.to_string()]).env("UCX_TLS", transports);
            if let Some(host) = host {
                command.args([host, "-t"]).args(test.split_whitespace());
            }
            command
        })
    }

    fn pingpong(&self, arguments: &[&str]) -> Result<Vec<String>, String> {
        let program =
            self.args.pingpong.as_ref().ok_or("the program could not be built: no C compiler `cc`")?;
        let mut command = Command::new(program);
        command.args(arguments);
        let mut program = Program::of(command, &self.args.setup.logs, "fabric pingpong")?;
        program.finish(LIMIT)?;
        Ok(vec![program.output()])
    }

    fn bare_udp(&mut self) -> Result<Vec<String>, String> {
        let port = self.take_port();
        self.run_pair(port, |host| {
            let mut command = on_core_of(host, &self.args.setup.ferroce);
            command.args(["perf", "udp-lat", "-p", &port.to_string()]);
            if let Some(host) = host {
                command.args([host, "-s", "8", "-n", "50000", "--json"]);
            }
            command
        })
    }

    fn threads(&mut self, line: &str, link: Link, threads: u16) -> Result<Vec<String>, String> {
        let port = self.take_port();
        self.run_pair(port, |host| {
            let mut command = Command::new(&self.args.setup.ferroce);
            command.arg("perf").args(line.split_whitespace());
            command
                .args(["-D", "1", "--json", "-p", &port.to_string(), "-T", &threads.to_string()])
                .args(host);
            set_link(&mut command, link);
            command
        })
    }

    fn iperf3(&mut self, bytes: u32) -> Result<Vec<String>, String> {
        let port = self.take_port();
        self.run_pair(port, |host| {
            let mut command = on_core_of(host, "iperf3");
            command.args(["-p", &port.to_string()]);
            match host {
                Some(host) => command.args(["-t", "1", "-l", &bytes.to_string(), "--json", "-c", host]),
                None => command.args(["-s", "-1"]),
            };
            command
        })
    }
}

/// Sets the variables of a link. Those of the calling shell are removed, so that the row is what its name states.
fn set_link(command: &mut Command, link: Link) {
    for variable in ["FERROCE_LINK", "FERROCE_MTU", "FERROCE_FAULTS", "FERROCE_WIRE", "FERROCE_MPA_CRC"] {
        command.env_remove(variable);
    }
    let variables: &[(&str, &str)] = match link {
        Link::Local => &[],
        Link::Udp => &[("FERROCE_LINK", "udp")],
        Link::UdpPathMtu => &[("FERROCE_LINK", "udp"), ("FERROCE_MTU", "4096")],
        Link::LossyUdp => &[("FERROCE_LINK", "udp"), ("FERROCE_FAULTS", "loss=1%")],
        Link::Iwarp => &[("FERROCE_WIRE", "iwarp")],
        Link::IwarpCrc => &[("FERROCE_WIRE", "iwarp"), ("FERROCE_MPA_CRC", "1")],
    };
    command.envs(variables.iter().copied());
}

/// The figure in the output of one client.
fn figure_in(source: &Source, output: &str) -> Option<f64> {
    match source.method {
        Method::Perftest(..) | Method::ConcurrentPairs(..) => perftest_figure(output, source.unit),
        Method::Ucx(_) | Method::UcxTcp(_) => ucx_figure(output, source.unit),
        Method::BarePingPong | Method::BareTcp => output.trim().parse::<f64>().ok().map(|ns| ns * 1e-3),
        Method::BareUdp => figure::of_own_perf(output, ["latency", "median_ns"]).map(|ns| ns * 1e-3),
        Method::Threads(..) => figure::of_own_perf(output, ["bandwidth", "million_messages_per_s"]),
        Method::Iperf3(bytes) => figure::of_iperf3(output).map(|mib| match source.unit {
            Unit::MillionPerSecond => mib * 1.048_576 / f64::from(bytes),
            _ => mib,
        }),
    }
}

fn perftest_figure(output: &str, unit: Unit) -> Option<f64> {
    figure::of_perftest(output, if unit == Unit::MibPerSecond { 3 } else { 4 })
}

fn ucx_figure(output: &str, unit: Unit) -> Option<f64> {
    match unit {
        Unit::Microseconds => figure::of_ucx(output, 1),
        Unit::MibPerSecond => figure::of_ucx(output, 5),
        Unit::MillionPerSecond => figure::of_ucx(output, 7).map(|rate| rate * 1e-6),
    }
}

/// A bar on a terminal, a line per run elsewhere. It is drawn between runs only, because drawing takes CPU time.
struct Progress(Option<ProgressBar>);

impl Progress {
    fn new(steps: u64) -> Self {
        Self(std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
            let style = ProgressStyle::with_template("{bar:24} {pos}/{len}  {eta} left  {wide_msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        }))
    }

    fn step(&self, round: usize, name: &str) {
        match &self.0 {
            Some(bar) => bar.set_message(format!("round {round}: {name}")),
            None => eprintln!("round {round}: {name}"),
        }
    }

    fn step_done(&self) {
        self.0.iter().for_each(|bar| bar.inc(1));
    }

    fn finish(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_has_its_column() {
        let perftest = " 65536      20000            0.00               9985.48\t\t   0.159768\n";
        assert_eq!(perftest_figure(perftest, Unit::MibPerSecond), Some(9985.48));
        assert_eq!(perftest_figure(perftest, Unit::MillionPerSecond), Some(0.159768));
        let ucx = "Final:               2000000      0.028     0.096     0.096       79.75      79.75    10452860    10452860\n";
        assert_eq!(ucx_figure(ucx, Unit::Microseconds), Some(0.028));
        assert_eq!(ucx_figure(ucx, Unit::MibPerSecond), Some(79.75));
        assert_eq!(ucx_figure(ucx, Unit::MillionPerSecond).map(|rate| (rate * 100.0).round()), Some(1045.0));
    }
}
