//! Starts, watches and ends the processes of a job together.
//!
//! One loop on the main thread starts the processes, a few per iteration, and waits for signals, dead processes and
//! the result of the rendezvous. When a process dies, the rendezvous stops the others; the launcher ends those that
//! do not stop.

use super::options::Run;
use super::output::Output;
use super::plan::Plan;
use super::{page, remote, statistics};
use crate::child;
use crate::failure::Failure;
use crate::program::{self, CANNOT_RUN};
use crate::run::{before, library};
use crate::signals::{Blocked, ReceivedSignal};
use ferroce_dsm::{Departure, Rendezvous, Reporter};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::ops::Range;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Processes that are started per iteration: starting a thousand takes half a minute.
const STARTS: u32 = 8;
const LIBRARY: &str = "libjia.so";
/// Interval of the checks when nothing happens.
const TICK: Duration = Duration::from_millis(50);
/// The rendezvous reads a `bye` within this time. A process that ended without one by then has died.
const BYE_TIMEOUT: Duration = Duration::from_millis(100);
/// Grace time after a process ended successfully without joining: the others may be about to end, too.
const JOIN_GRACE: Duration = Duration::from_secs(1);
/// How long processes may take to stop by themselves, and then after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(3);
/// Exit status of a process that stopped because another one died (crates/dsm/src/meet/client.rs).
const STOPPED: u8 = 70;

/// Names and values.
type Variables = Vec<(&'static str, String)>;

/// A process of the job.
struct Process {
    rank: u32,
    child: Child,
    /// It has its own process group.
    group: bool,
    /// The host that ssh starts it on.
    host: Option<String>,
    /// The last signal that the launcher sent to end it.
    end_signal: Option<libc::c_int>,
    ended: Option<(ExitStatus, Instant)>,
    reported: bool,
}

/// Starts the job, and waits for its end.
pub(crate) fn run(args: &Run) -> Result<ExitCode, Failure> {
    let plan = Plan::of(args)?;
    plan.notes.iter().for_each(|note| eprintln!("ferroce dsm: {note}."));
    // Before the first thread starts, so that the signals are blocked in all threads.
    let blocked = Blocked::new();
    let meeting = Rendezvous::bind_at(plan.size(), plan.meet)
        .map_err(|error| Failure::new(error.to_string()).exit_with(CANNOT_RUN))?;
    let meetings = (0..plan.size()).map(|rank| meeting.environment(rank)).collect();
    let folder = std::env::current_dir();
    let folder = folder.map_err(|error| Failure::io("cannot determine the current directory", error))?;
    let starter = Starter { args, plan: &plan, meetings, folder, library_path: library_path()? };
    let mut job = Job::new(args, plan.size());
    let code = job.watch(&starter, meeting, &blocked)?;
    let records = job.output.finish();
    if let Some(page) = &args.stat {
        show_statistics(&records, args, page.as_deref())?;
    }
    Ok(ExitCode::from(code))
}

fn show_statistics(records: &[serde_json::Value], args: &Run, page: Option<&Path>) -> Result<(), Failure> {
    match args.json {
        true => eprintln!("{}", serde_json::json!({ "processes": records })),
        false => eprintln!("{}", statistics::table(records)),
    }
    let Some(path) = page else { return Ok(()) };
    let words: Vec<_> = args.command.iter().map(|word| word.to_string_lossy()).collect();
    std::fs::write(path, page::html(&words.join(" "), records))
        .map_err(|error| Failure::io(format!("cannot write {}", path.display()), error))?;
    eprintln!("A page with pictures: {}", path.display());
    Ok(())
}

struct Job {
    /// Ranks that are still to be started.
    waiting: Range<u32>,
    processes: Vec<Process>,
    output: Output,
    /// When the last one was started.
    complete: Instant,
    /// The first signal that ended the job.
    interrupted: Option<libc::c_int>,
    /// When the remaining processes get SIGTERM, and then SIGKILL.
    term_at: Option<Instant>,
    kill_at: Option<Instant>,
}

impl Job {
    fn new(args: &Run, size: u32) -> Job {
        Job {
            waiting: 0..size,
            processes: Vec::new(),
            output: Output::new(!args.plain),
            complete: Instant::now(),
            interrupted: None,
            term_at: None,
            kill_at: None,
        }
    }

    /// Starts the next few processes.
    fn start_some(&mut self, starter: &Starter<'_>, blocked: &Blocked) -> Result<(), Failure> {
        let few = self.waiting.start..self.waiting.end.min(self.waiting.start + STARTS);
        self.waiting.start = few.end;
        for rank in few {
            if let Err(failure) = self.start_one(starter, rank, blocked) {
                self.signal_all(libc::SIGKILL);
                self.processes.iter_mut().for_each(|process| drop(process.child.wait()));
                return Err(failure);
            }
            self.complete = Instant::now();
        }
        Ok(())
    }

    fn start_one(&mut self, starter: &Starter<'_>, rank: u32, blocked: &Blocked) -> Result<(), Failure> {
        let mut command = starter.command(rank);
        // With its own group, we can end everything that a process started. But only our own group may read the
        // terminal.
        let group = rank != 0 || !io::stdin().is_terminal();
        if group {
            command.process_group(0);
        }
        child::die_with_parent(&mut command, libc::SIGKILL);
        blocked.release_in(&mut command);
        let mut child = command.spawn().map_err(|error| program::cannot_start(&command, &error))?;
        if let Some(pipe) = child.stdout.take() {
            self.output.follow(rank, pipe, |line| {
                let mut out = io::stdout().lock();
                out.write_all(line).and_then(|()| out.flush())
            });
        }
        if let Some(pipe) = child.stderr.take() {
            self.output.follow(rank, pipe, |line| io::stderr().lock().write_all(line));
        }
        if let Some(pipe) = child.stdin.take() {
            feed(pipe, secret(&starter.meetings[rank as usize]), rank == 0);
        }
        let host = starter.plan.hosts[rank as usize].as_ref().map(|host| host.name.clone());
        let process = Process { rank, child, group, host, end_signal: None, ended: None, reported: false };
        self.processes.push(process);
        Ok(())
    }

    /// Runs until all have ended; returns the exit status of the job.
    fn watch(
        &mut self,
        starter: &Starter<'_>,
        meeting: Rendezvous,
        blocked: &Blocked,
    ) -> Result<u8, Failure> {
        let reporter = meeting.reporter();
        let (send, verdict) = channel();
        // Not joined: it may wait for processes that never joined.
        std::thread::spawn(move || send.send(meeting.run()));
        while !self.waiting.is_empty() || self.processes.iter().any(|process| process.ended.is_none()) {
            self.start_some(starter, blocked)?;
            let timeout = if self.waiting.is_empty() { TICK } else { Duration::ZERO };
            if let Some(received) = blocked.next(timeout) {
                self.interrupt(received);
            }
            self.reap();
            self.report(&reporter);
            self.on_departure(&verdict);
            self.enforce();
        }
        self.explain(&starter.args.ssh);
        Ok(self.code())
    }

    /// Starts no more processes: the job is ending.
    fn close(&mut self) {
        self.waiting.start = self.waiting.end;
    }

    fn interrupt(&mut self, received: ReceivedSignal) {
        for process in self.processes.iter().filter(|process| process.ended.is_none()) {
            // Processes in our group have received the terminal's signal already.
            if process.group || received.by_process {
                process.signal(received.signal);
            }
        }
        if ![libc::SIGUSR1, libc::SIGUSR2].contains(&received.signal) {
            self.close();
            self.interrupted.get_or_insert(received.signal);
            self.kill_at.get_or_insert(Instant::now() + STOP_TIMEOUT);
        }
    }

    fn reap(&mut self) {
        for process in self.processes.iter_mut().filter(|process| process.ended.is_none()) {
            if let Ok(Some(status)) = process.child.try_wait() {
                process.ended = Some((status, Instant::now()));
            }
        }
    }

    /// Reports a death to the rendezvous, which forwards the reason to the other processes.
    fn report(&mut self, reporter: &Reporter) {
        let (complete, all) = (self.complete, self.waiting.is_empty());
        for process in self.processes.iter_mut().filter(|process| !process.reported) {
            let Some((status, since)) = process.ended else { continue };
            let due = match (status.code(), status.success()) {
                (None, _) => since,
                (_, false) => since + BYE_TIMEOUT,
                (_, true) if all => since.max(complete) + JOIN_GRACE,
                (_, true) => continue,
            };
            if Instant::now() >= due {
                process.reported = true;
                reporter.down(process.rank, &process.how_ended(status));
            }
        }
    }

    /// The rendezvous reports that a process was lost.
    fn on_departure(&mut self, verdict: &Receiver<Departure>) {
        if let Ok(Departure::Down { .. }) = verdict.try_recv() {
            self.close();
            self.term_at.get_or_insert(Instant::now() + STOP_TIMEOUT);
        }
    }

    fn enforce(&mut self) {
        let now = Instant::now();
        if self.term_at.is_some_and(|at| now >= at) {
            self.term_at = None;
            self.kill_at.get_or_insert(now + STOP_TIMEOUT);
            self.end_all(libc::SIGTERM);
        }
        if self.kill_at.is_some_and(|at| now >= at) {
            self.kill_at = None;
            self.end_all(libc::SIGKILL);
        }
    }

    fn end_all(&mut self, signal: libc::c_int) {
        self.signal_all(signal);
        for process in self.processes.iter_mut().filter(|process| process.ended.is_none()) {
            process.end_signal = Some(signal);
        }
    }

    fn signal_all(&self, signal: libc::c_int) {
        self.processes
            .iter()
            .filter(|process| process.ended.is_none())
            .for_each(|process| process.signal(signal));
    }

    /// Processes that failed by themselves, and not because another one did.
    fn own_failures(&self) -> impl Iterator<Item = (&Process, ExitStatus)> {
        let ended = self.processes.iter().filter_map(|process| Some((process, process.ended?.0)));
        ended.filter(|(_, status)| !status.success() && program::exit_code(*status) != STOPPED)
    }

    fn explain(&self, ssh: &str) {
        if self.interrupted.is_some() {
            return;
        }
        // A process of this host that failed by itself has printed its reason. One of another host may not have started.
        for (process, status) in self.own_failures() {
            let (rank, how_ended) = (process.rank, process.how_ended(status));
            match &process.host {
                Some(host) if !process.ssh_failed(status) => {
                    eprintln!("ferroce dsm: process {rank}, started on {host} by `{ssh}`, {how_ended}.");
                }
                None if status.code().is_some() => {}
                _ => eprintln!("ferroce dsm: process {rank} {how_ended}."),
            }
        }
    }

    fn code(&self) -> u8 {
        if let Some(signal) = self.interrupted {
            return 128 + signal as u8;
        }
        let worst = self.own_failures().map(|(_, status)| program::exit_code(status)).max();
        let all = self.processes.iter().filter_map(|process| Some(program::exit_code(process.ended?.0)));
        worst.or(all.max()).unwrap_or(0)
    }
}

impl Process {
    fn signal(&self, signal: libc::c_int) {
        let (Some(pid), Some(signal)) =
            (Pid::from_raw(self.child.id() as i32), Signal::from_named_raw(signal))
        else {
            return;
        };
        // It may have ended already.
        let _ = if self.group { kill_process_group(pid, signal) } else { kill_process(pid, signal) };
    }

    fn ssh_failed(&self, status: ExitStatus) -> bool {
        self.host.is_some() && status.code() == Some(remote::SSH_FAILED)
    }

    /// How it ended, as a continuation of its name.
    fn how_ended(&self, status: ExitStatus) -> String {
        match (status.code(), status.signal()) {
            (Some(0), _) => "ended before the others, without leaving the job".to_owned(),
            (Some(code), _) if self.ssh_failed(status) => {
                let host = self.host.as_deref().unwrap_or_default();
                format!("did not start on {host}, or was lost there: ssh ended with status {code}")
            }
            (Some(code), _) => format!("ended with status {code}"),
            (None, Some(signal)) if self.end_signal == Some(signal) => {
                format!(
                    "did not stop when the job ended, and was killed by the launcher with signal {signal}"
                )
            }
            (None, Some(signal)) => format!("was killed by signal {signal}"),
            (None, None) => "is gone".to_owned(),
        }
    }
}

/// The settings with which all processes are started.
struct Starter<'a> {
    args: &'a Run,
    plan: &'a Plan,
    /// The environment that each process needs to join the rendezvous.
    meetings: Vec<Variables>,
    folder: PathBuf,
    library_path: OsString,
}

impl Starter<'_> {
    fn command(&self, rank: u32) -> Command {
        let command = &self.args.command;
        let variables = self.meetings[rank as usize].iter().chain(&self.plan.variables);
        let (mut started, stdin) = match &self.plan.hosts[rank as usize] {
            None => {
                let mut started = Command::new(&command[0]);
                started.args(&command[1..]).envs(variables.map(|(name, value)| (name, value)));
                started.env("LD_LIBRARY_PATH", &self.library_path);
                (started, if rank == 0 { Stdio::inherit() } else { Stdio::null() })
            }
            Some(host) => {
                let mut all = self.variables_of_ours();
                all.extend(variables.map(|(name, value)| (name.into(), value.into())));
                all.retain(|(name, _)| name != remote::SECRET);
                (remote::command(&self.args.ssh, host, &self.folder, &all, command), Stdio::piped())
            }
        };
        let piped = !self.args.plain;
        started.stdin(stdin);
        started.stdout(if piped { Stdio::piped() } else { Stdio::inherit() });
        started.stderr(if piped || self.args.stat.is_some() { Stdio::piped() } else { Stdio::inherit() });
        started
    }

    /// A remote process does not inherit our environment, so its command line sets our FERROCE_ variables.
    fn variables_of_ours(&self) -> Vec<(OsString, OsString)> {
        let named = |name: &OsString| name.as_encoded_bytes().starts_with(b"FERROCE_");
        let mut all: Vec<_> = std::env::vars_os().filter(|(name, _)| named(name)).collect();
        all.push(("LD_LIBRARY_PATH".into(), self.library_path.clone()));
        all
    }
}

/// The library's folder, followed by the current value. A program without the library, or with its own, ignores it.
fn library_path() -> Result<OsString, Failure> {
    let folder = library::next_to_command(LIBRARY)?;
    Ok(match folder.as_deref().and_then(Path::parent) {
        Some(folder) => before(folder.as_os_str(), "LD_LIBRARY_PATH", ":"),
        None => std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default(),
    })
}

fn secret(variables: &[(&'static str, String)]) -> String {
    let found = variables.iter().find(|(name, _)| *name == remote::SECRET);
    found.map(|(_, value)| value.clone()).unwrap_or_default()
}

/// The first line of input of a remote process, and for process 0 all of our input.
fn feed(mut pipe: ChildStdin, secret: String, all: bool) {
    std::thread::spawn(move || {
        // A process that does not read has ended, which is detected elsewhere.
        let greeted = writeln!(pipe, "{secret}");
        if greeted.is_ok() && all {
            let _ = io::copy(&mut io::stdin().lock(), &mut pipe);
        }
    });
}
