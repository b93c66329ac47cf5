//! Starts, watches and ends the commands of all hosts.
//!
//! Servers start first. The other commands start when all servers listen, and their end ends the run.

use super::host::Host;
use super::ip::address;
use crate::dsm::output::Output;
use crate::failure::Failure;
use crate::program::{self, CANNOT_RUN};
use crate::signals::{self, Blocked, ReceivedSignal};
use ferroce_fabric::scenario::HostCommand;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Interval of the checks when nothing happens.
const TICK: Duration = Duration::from_millis(20);
/// How long servers may take until they listen.
const LISTEN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long commands may take to end after a signal.
const KILL_TIMEOUT: Duration = Duration::from_secs(3);

/// A command to start.
#[derive(Clone)]
pub(super) struct Task {
    pub(super) spec: HostCommand,
    /// What is started: a shell with the line of the scenario, or the words of the command line.
    pub(super) words: Vec<OsString>,
}

/// Starts commands on hosts.
pub(super) struct Starter<'a> {
    pub(super) hosts: &'a [Host],
    pub(super) control: &'a str,
    pub(super) blocked: &'a Blocked,
}

/// The settings with which the commands of a run are started and watched.
pub(super) struct CommandContext<'a> {
    pub(super) starter: &'a Starter<'a>,
    /// The only command, with the terminal as its own.
    pub(super) interactive: bool,
    /// The commands may run for this long.
    pub(super) timeout: Option<Duration>,
    /// Whether the thread of the fabric runs.
    pub(super) has_fabric: &'a dyn Fn() -> bool,
}

/// Exit status after `--timeout`, as of timeout(1).
const TIMED_OUT: u8 = 124;

/// Why a run ended before its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// A signal that was sent to us.
    Signal(libc::c_int),
    /// `--timeout` passed.
    Timeout,
}

struct Process {
    task: Task,
    child: Child,
    ended: Option<ExitStatus>,
}

/// How the commands ended.
pub(super) struct Ended {
    /// The worst exit status of a command that is no server, or of what stopped the run.
    pub(super) code: u8,
    /// What stopped the run, if its commands did not end by themselves.
    pub(super) stopped: Option<Stop>,
    /// From the first start of a command that is no server to the last end.
    pub(super) elapsed: Duration,
}

/// Runs all commands to their end.
pub(super) fn run(context: &CommandContext<'_>, tasks: Vec<Task>) -> Result<Ended, Failure> {
    let mut job = Job {
        context,
        waiting: tasks,
        processes: Vec::new(),
        output: Output::new(!context.interactive),
        stopped: None,
        began: Instant::now(),
        kill_at: None,
        ready_at: None,
    };
    let ended = job.watch();
    job.signal_all(libc::SIGKILL);
    job.processes.iter_mut().for_each(|process| {
        let _ = process.child.wait();
    });
    let _ = job.output.finish();
    if context.interactive {
        signals::reclaim_terminal();
    }
    ended
}

struct Job<'a> {
    context: &'a CommandContext<'a>,
    waiting: Vec<Task>,
    processes: Vec<Process>,
    output: Output,
    stopped: Option<Stop>,
    began: Instant,
    kill_at: Option<Instant>,
    /// When all servers listened.
    ready_at: Option<Instant>,
}

impl Job<'_> {
    fn watch(&mut self) -> Result<Ended, Failure> {
        self.start_where(|task| task.spec.is_server)?;
        while self.stopped.is_none() && self.ready_at.is_none() {
            self.await_servers(self.began)?;
        }
        let start = Instant::now();
        while self.is_busy() {
            let passed = start.elapsed();
            self.start_where(|task| Duration::from_nanos(task.spec.start_ns) <= passed)?;
            self.tick()?;
        }
        let elapsed = start.elapsed();
        self.end_servers();
        Ok(Ended { code: self.code(), stopped: self.stopped, elapsed })
    }

    /// Whether a command that is no server waits or runs.
    fn is_busy(&self) -> bool {
        let starts = self.stopped.is_none() && !self.waiting.is_empty();
        let runs = |process: &Process| process.ended.is_none() && !process.task.spec.is_server;
        starts || self.processes.iter().any(runs)
    }

    fn await_servers(&mut self, began: Instant) -> Result<(), Failure> {
        let listens = |process: &&Process| {
            process.task.spec.listen.is_none_or(|port| self.context.listens(process, port))
        };
        if let Some(process) = self.processes.iter().find(|process| !listens(process)) {
            let HostCommand { host, listen, .. } = process.task.spec;
            let port = listen.unwrap_or_default();
            if process.ended.is_some() || began.elapsed() > LISTEN_TIMEOUT {
                let why = if process.ended.is_some() { "has ended" } else { "does not" };
                return Err(Failure::new(format!(
                    "the server on h{host} should listen on port {port} and {why}, {:.0} s after its start",
                    began.elapsed().as_secs_f64()
                ))
                .advise("Check the command and `listen` of its [[run]] table"));
            }
            self.tick()?;
        } else {
            self.ready_at = Some(Instant::now());
        }
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Failure> {
        if !(self.context.has_fabric)() {
            return Err(Failure::new("the thread of the fabric has ended before the commands"));
        }
        if let Some(received) = self.context.starter.blocked.next(TICK) {
            self.interrupt(received);
        }
        let stopped = self.stopped.is_some();
        for process in self.processes.iter_mut().filter(|process| process.ended.is_none()) {
            process.ended = exit_status(&process.child);
            if let Some(status) = process.ended.filter(|status| !status.success() && !stopped) {
                let code = program::exit_code(status);
                eprintln!(
                    "ferroce fabric: a command on h{} ended with status {code}.",
                    process.task.spec.host
                );
            }
        }
        if self.stopped.is_none()
            && self.context.timeout.is_some_and(|timeout| self.began.elapsed() > timeout)
        {
            let seconds = self.began.elapsed().as_secs_f64();
            eprintln!(
                "ferroce fabric: the commands have not ended after {seconds:.1} s (--timeout); they are ended now."
            );
            self.signal_all(libc::SIGTERM);
            self.stop(Stop::Timeout);
        }
        if self.kill_at.is_some_and(|at| Instant::now() >= at) {
            self.kill_at = None;
            self.signal_all(libc::SIGKILL);
        }
        Ok(())
    }

    fn stop(&mut self, why: Stop) {
        self.stopped.get_or_insert(why);
        self.kill_at.get_or_insert(Instant::now() + KILL_TIMEOUT);
    }

    fn interrupt(&mut self, received: ReceivedSignal) {
        for process in self.processes.iter().filter(|process| process.ended.is_none()) {
            // The interactive command is in our own group, and has received the terminal's signal already.
            if !self.context.interactive || received.by_process {
                self.context.signal(process, received.signal);
            }
        }
        let passes = [libc::SIGUSR1, libc::SIGUSR2].contains(&received.signal)
            || (self.context.interactive && !received.by_process && received.signal == libc::SIGINT);
        if !passes {
            self.stop(Stop::Signal(received.signal));
        }
    }

    fn end_servers(&mut self) {
        self.signal_all(libc::SIGTERM);
        let deadline = Instant::now() + KILL_TIMEOUT;
        for process in self.processes.iter_mut().filter(|process| process.ended.is_none()) {
            while Instant::now() < deadline && process.ended.is_none() {
                process.ended = exit_status(&process.child);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn signal_all(&self, signal: libc::c_int) {
        // The group may outlive its first process, which is reaped last so that its ID still names the group.
        let any = |process: &&Process| process.ended.is_none() || !self.context.interactive;
        self.processes.iter().filter(any).for_each(|process| self.context.signal(process, signal));
    }

    fn start_where(&mut self, wanted: impl Fn(&Task) -> bool) -> Result<(), Failure> {
        let (now, later): (Vec<Task>, Vec<Task>) =
            std::mem::take(&mut self.waiting).into_iter().partition(wanted);
        self.waiting = later;
        for task in now.into_iter().filter(|_| self.stopped.is_none()) {
            let mut child = self.context.start(&task)?;
            let label = format!("h{}", task.spec.host);
            if let Some(pipe) = child.stdout.take() {
                self.output.follow(&label, pipe, |line| {
                    let mut out = io::stdout().lock();
                    out.write_all(line).and_then(|()| out.flush())
                });
            }
            if let Some(pipe) = child.stderr.take() {
                self.output.follow(&label, pipe, |line| io::stderr().lock().write_all(line));
            }
            self.processes.push(Process { task, child, ended: None });
        }
        Ok(())
    }

    fn code(&self) -> u8 {
        match self.stopped {
            Some(Stop::Signal(signal)) => return 128 + signal as u8,
            Some(Stop::Timeout) => return TIMED_OUT,
            None => {}
        }
        let clients = self.processes.iter().filter(|process| !process.task.spec.is_server);
        clients.filter_map(|process| Some(program::exit_code(process.ended?))).max().unwrap_or(0)
    }
}

/// The exit status of a child that has ended. The child is not reaped: its process ID stays its own.
pub(super) fn exit_status(child: &Child) -> Option<ExitStatus> {
    let pid = Pid::from_raw(child.id() as i32)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(pid), options).ok().flatten()?;
    let raw = status.exit_status().map(|code| code << 8).or_else(|| status.terminating_signal())?;
    Some(ExitStatus::from_raw(raw))
}

impl CommandContext<'_> {
    fn listens(&self, process: &Process, port: u16) -> bool {
        self.starter.hosts[process.task.spec.host as usize].listens(port)
    }

    fn signal(&self, process: &Process, signal: libc::c_int) {
        let (Some(pid), Some(signal)) =
            (Pid::from_raw(process.child.id() as i32), Signal::from_named_raw(signal))
        else {
            return;
        };
        // It may have ended already.
        let _ = if self.interactive { kill_process(pid, signal) } else { kill_process_group(pid, signal) };
    }

    /// Starts a command of the run.
    fn start(&self, task: &Task) -> Result<Child, Failure> {
        let HostCommand { host, copy, listen, .. } = task.spec;
        let mut command = self.starter.command(host, &task.words)?;
        command.env("FERROCE_FABRIC_COPY", copy.to_string());
        command.envs(listen.map(|port| ("FERROCE_FABRIC_PORT", port.to_string())));
        if !self.interactive {
            command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        }
        self.starter.spawn(host, command)
    }
}

impl Starter<'_> {
    /// A command with a ferroce device, for a host.
    pub(super) fn command(&self, host: u32, words: &[OsString]) -> Result<Command, Failure> {
        let own: PathBuf =
            std::env::current_exe().map_err(|error| Failure::io("cannot locate this command", error))?;
        let mut command = Command::new(own);
        // Packets must cross the fabric, so shared memory is off, also between the programs of one host.
        command.args(["run", "--link", "udp", "--cc", self.control, "--"]).args(words);
        command.env_remove("FERROCE_ADDR");
        let count = self.hosts.len() as u32;
        let addresses: Vec<String> = (0..count).map(|host| address(host).to_string()).collect();
        command
            .env("FERROCE_FABRIC_HOST", host.to_string())
            .env("FERROCE_FABRIC_HOSTS", count.to_string())
            .env("FERROCE_FABRIC_ADDRESS", &addresses[host as usize])
            .env("FERROCE_FABRIC_ADDRESSES", addresses.join(" "));
        self.blocked.release_in(&mut command);
        Ok(command)
    }

    /// Starts it there.
    pub(super) fn spawn(&self, host: u32, mut command: Command) -> Result<Child, Failure> {
        let started = self.hosts[host as usize].run(move || {
            let started = command.spawn();
            started.map_err(|error| program::cannot_start(&command, &error))
        });
        started.unwrap_or_else(|| Err(Failure::new(format!("host h{host} is gone")).exit_with(CANNOT_RUN)))
    }
}
