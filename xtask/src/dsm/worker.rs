//! The side inside a network namespace: one line in, one run, one line out.
//!
//! A line is `PROGRAM PROCESSES TRANSPORT CIRCUMSTANCE LIMIT ARGUMENTS…`; the answer is JSON: the program's own seconds, or why there are none.

use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::{Value, json};

use super::launchers::{self, Slurm};
use super::matrix::BY_ITSELF;
use super::pieces::{self, Piece};
use super::programs::Built;
use super::second_host::SecondHost;
use crate::dialogue::Dialogue;
use crate::programs::network;
use crate::programs::session::Program;
use crate::selection::name_of;

/// Time limit of one run of a piece.
const PIECE_LIMIT: Duration = Duration::from_secs(60);
/// Prefix of a reason that names something this machine lacks.
pub(super) const SKIPPED: &str = "SKIPPED: ";
/// Part of the line of `--stat` for a process that maps pages of another process.
const SHARES: &str = " shares ";

/// Arguments of the subcommand `dsm-worker`, which every program that starts a [`Worker`] must have.
#[derive(clap::Args)]
pub struct Args {
    #[arg(long)]
    ferroce: PathBuf,
    /// Where the programs lie; outputs go there, too.
    #[arg(long)]
    folder: PathBuf,
}

/// What makes a run harder than it is anyhow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Circumstance {
    /// Nothing.
    Plain,
    /// RDMA over UDP although the processes share a host.
    Wire,
    /// One packet of a hundred is lost.
    Loss,
    /// Half of the processes are on another host.
    TwoHosts,
    /// The same with changed blocks (`WVEC`), as programs written for JIAJIA switch them on.
    TwoHostsChangedBlocks,
    /// Hardly any page of others can be kept.
    SmallCache,
    /// Everything that can be switched on is.
    Switched,
    /// With an unrelated copy of the same run at the same time; the slower of the two counts.
    WithCopy,
    /// Started by mpirun, without our launcher.
    Mpirun,
    /// Started by srun.
    Srun,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Name of the program.
    pub program: &'a str,
    /// Number of processes.
    pub processes: u32,
    /// As `ferroce dsm run --transport` spells it.
    pub transport: &'a str,
    /// What makes the run harder.
    pub circumstance: Circumstance,
    /// The run is killed after this time.
    pub limit_s: u64,
    /// Arguments of the program.
    pub arguments: &'a str,
}

impl Request<'_> {
    fn to_line(&self) -> String {
        let Request { program, processes, transport, circumstance, limit_s, arguments } = self;
        format!("{program} {processes} {transport} {} {limit_s} {arguments}", name_of(*circumstance))
    }

    fn of_line(line: &str) -> Option<Request<'_>> {
        let mut words = line.splitn(6, ' ');
        Some(Request {
            program: words.next()?,
            processes: words.next()?.parse().ok()?,
            transport: words.next()?,
            circumstance: Circumstance::from_str(words.next()?, false).ok()?,
            limit_s: words.next()?.parse().ok()?,
            arguments: words.next()?,
        })
    }
}

/// Helper processes of the worker, started on demand.
#[derive(Default)]
struct Helpers {
    second: Option<SecondHost>,
    slurm: Option<Slurm>,
}

/// Runs the worker until its standard input ends.
pub fn run(args: &Args) -> ExitCode {
    let mut helpers = Helpers::default();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let answer = match (Request::of_line(&line), Piece::of_line(&line)) {
            (_, Some(piece)) => measure(args, piece, &mut helpers),
            (Some(request), None) => answer(args, &request, &mut helpers),
            (None, None) => json!({"verdict": "fail", "reason": format!("not understood: {line}")}),
        };
        println!("{answer}");
        let _ = std::io::stdout().flush();
    }
    ExitCode::SUCCESS
}

fn answer(args: &Args, request: &Request<'_>, helpers: &mut Helpers) -> Value {
    let started = Instant::now();
    let Request { program, processes, transport, circumstance, .. } = request;
    let log = format!("{program} {processes} {transport} {}", name_of(*circumstance));
    let copy = match request.circumstance {
        Circumstance::WithCopy => Some(begin(args, request, helpers, &format!("{log} copy"))),
        _ => None,
    };
    let program = begin(args, request, helpers, &log);
    let mut outcome = outcome(program, request);
    if let Some(copy) = copy.map(|copy| self::outcome(copy, request)) {
        outcome = slower(outcome, copy);
    }
    outcome["wall_s"] = started.elapsed().as_secs_f64().into();
    outcome
}

/// The answer that counts of two runs at the same time: one that did not pass, otherwise the slower one.
fn slower(run: Value, copy: Value) -> Value {
    let is_slower = || copy["seconds"].as_f64() > run["seconds"].as_f64();
    if run["verdict"] == "pass" && (copy["verdict"] != "pass" || is_slower()) { copy } else { run }
}

fn begin(args: &Args, request: &Request<'_>, helpers: &mut Helpers, log: &str) -> Result<Program, String> {
    command(args, request, helpers).and_then(|command| Program::of(command, &args.folder, log))
}

fn outcome(program: Result<Program, String>, request: &Request<'_>) -> Value {
    match program {
        Err(reason) => match reason.strip_prefix(SKIPPED) {
            Some(reason) => json!({"verdict": "skip", "reason": reason}),
            None => json!({"verdict": "fail", "reason": reason}),
        },
        Ok(mut program) => {
            let mut ended = program.finish(Duration::from_secs(request.limit_s));
            if request.transport == BY_ITSELF && !program.output().contains(SHARES) {
                ended = ended.and(Err("no process shared pages with a co-located process".to_owned()));
            }
            judge(ended, &program.output(), program.tail())
        }
    }
}

/// The figures of a piece, or the reason why it failed.
fn measure(args: &Args, piece: Piece, helpers: &mut Helpers) -> Value {
    let command = piece.command(&args.folder, &mut helpers.second);
    let ran = command.and_then(|command| Program::of(command, &args.folder, &piece.to_line())).and_then(
        |mut program| {
            let ended = program.finish(PIECE_LIMIT);
            ended.map(|()| program.output()).map_err(|why| format!("{why}\n{}", program.output()))
        },
    );
    match ran {
        Ok(output) => pieces::figures(&output),
        Err(reason) => json!({"reason": reason}),
    }
}

/// A foreign launcher; the environment selects the library and the transport.
fn launched(args: &Args, request: &Request<'_>, helpers: &mut Helpers) -> Result<Option<Command>, String> {
    let mut command = match request.circumstance {
        Circumstance::Mpirun => launchers::mpirun(request.processes)?,
        Circumstance::Srun => {
            let slurm = match helpers.slurm.take() {
                Some(slurm) => slurm,
                None => Slurm::start(&args.folder)?,
            };
            helpers.slurm.insert(slurm).srun(request.processes)
        }
        _ => return Ok(None),
    };
    let library = args.ferroce.parent().unwrap_or(&args.folder);
    command.env("LD_LIBRARY_PATH", library).env("FERROCE_DSM_TRANSPORT", request.transport);
    command.arg(args.folder.join(request.program)).args(request.arguments.split_whitespace());
    Ok(Some(command))
}

/// The command line; the second host is made when it is first needed.
fn command(args: &Args, request: &Request<'_>, helpers: &mut Helpers) -> Result<Command, String> {
    if let Some(command) = launched(args, request, helpers)? {
        return Ok(command);
    }
    let mut command = Command::new(&args.ferroce);
    command.args(["dsm", "run", "--plain", "-n", &request.processes.to_string()]);
    match request.transport {
        BY_ITSELF => command.arg("--stat"),
        forced => command.args(["--transport", forced]),
    };
    match request.circumstance {
        Circumstance::Plain | Circumstance::WithCopy | Circumstance::Mpirun | Circumstance::Srun => {}
        Circumstance::Wire => {
            command.env("FERROCE_LINK", "udp");
        }
        Circumstance::Loss => {
            command.env("FERROCE_FAULTS", "loss=1%,seed=7");
        }
        Circumstance::SmallCache => {
            command.env("FERROCE_DSM_CACHE_PAGES", "8");
        }
        Circumstance::Switched => {
            // Without moving homes: they are not allowed for programs whose other threads write during a barrier.
            command.env("FERROCE_DSM_SWITCHES", "tree,changed-blocks").env("FERROCE_DSM_FAULTS", "signal");
        }
        Circumstance::TwoHosts | Circumstance::TwoHostsChangedBlocks => {
            if request.circumstance == Circumstance::TwoHostsChangedBlocks {
                command.env("FERROCE_DSM_SWITCHES", "changed-blocks");
            }
            let host = SecondHost::in_slot(&mut helpers.second, &args.folder)?;
            command.args(host.options(request.processes)?);
        }
    }
    command.arg(args.folder.join(request.program)).args(request.arguments.split_whitespace());
    Ok(command)
}

fn judge(ended: Result<(), String>, output: &str, tail: Vec<String>) -> Value {
    match (ended, seconds(output)) {
        (Ok(()), Some(seconds)) => json!({"verdict": "pass", "seconds": seconds}),
        (Ok(()), None) => json!({"verdict": "fail", "reason": "it did not say ok", "tail": tail}),
        (Err(reason), _) => json!({"verdict": "fail", "reason": reason, "tail": tail}),
    }
}

/// `mm size=128 processes=2 0.012345 s ok`
fn seconds(output: &str) -> Option<f64> {
    let line = output.lines().find_map(|line| line.strip_suffix(" s ok"))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// A worker process in its own namespace.
pub struct Worker(Dialogue);

impl Worker {
    /// Starts this executable again as `dsm-worker`, inside a network namespace.
    pub fn start(built: &Built) -> Result<Worker, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = network::inside(&own);
        command.arg("dsm-worker").arg("--ferroce").arg(&built.ferroce).arg("--folder").arg(&built.folder);
        Dialogue::start(command).map(Worker)
    }

    /// Runs a request. Every failure is returned as an answer.
    pub fn ask(&mut self, request: &Request<'_>) -> Value {
        let answer = self.0.ask(&request.to_line());
        answer.unwrap_or_else(|reason| json!({"verdict": "fail", "reason": reason}))
    }

    /// The figures of a piece by name, in microseconds.
    pub fn measure(&mut self, piece: Piece) -> Result<Value, String> {
        let answer = self.0.ask(&piece.to_line())?;
        match answer["reason"].as_str() {
            Some(reason) => Err(format!("{}: {reason}", piece.to_line())),
            None => Ok(answer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_line() {
        for (arguments, circumstance) in ["", "-n 64 -m 256", "x", "-t 1", "-n"]
            .into_iter()
            .cycle()
            .zip(Circumstance::value_variants().iter().copied())
        {
            let (program, transport) = ("sor", "rdma-msg");
            let request = Request { program, processes: 4, transport, circumstance, limit_s: 30, arguments };
            assert_eq!(Request::of_line(&request.to_line()), Some(request));
        }
        assert_eq!(Request::of_line("sor four"), None);
    }

    #[test]
    fn the_slower_of_two_runs_counts_and_a_failed_one_before_both() {
        let pass = |seconds| judge(Ok(()), &format!("mm {seconds} s ok"), Vec::new());
        let fail = || judge(Err("status 1".into()), "", Vec::new());
        assert_eq!(slower(pass(0.5), pass(0.25)), pass(0.5));
        assert_eq!(slower(pass(0.25), pass(0.5)), pass(0.5));
        assert_eq!(slower(pass(0.25), fail()), fail());
        assert_eq!(slower(fail(), pass(0.25)), fail());
        assert_eq!(slower(fail(), fail()), fail());
    }

    #[test]
    fn the_last_line_is_read() {
        assert_eq!(seconds("x\nmm size=128 processes=2 0.012500 s ok\n"), Some(0.0125));
        assert_eq!(seconds("mm size=128 processes=2 0.012500 s WRONG\n"), None);
        let verdict = |output: &str, ended| judge(ended, output, Vec::new())["verdict"].clone();
        assert_eq!(verdict("mm 0.5 s ok", Ok(())), "pass");
        assert_eq!(verdict("mm 0.5 s ok", Err("status 1".into())), "fail");
        assert_eq!(verdict("nothing", Ok(())), "fail");
        assert_eq!(verdict("", Err("status 1".into())), "fail");
    }
}
