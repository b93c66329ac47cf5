//! A child process: one output stream, a time limit, no orphans.
//!
//! Standard output and error share one pipe, which keeps the order of libtest's summaries and cargo's headings.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, PipeReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::step::Context;

/// Interval at which the screen is updated and the limit is checked.
const TICK: Duration = Duration::from_millis(200);
/// How long the pipe may stay open after the child has ended, because a descendant holds it.
const LINGER: Duration = Duration::from_secs(3);
/// Interval at which a child without output is checked for its end.
const CHECK: Duration = Duration::from_millis(5);
/// Time limit of a command whose caller sets none.
pub(crate) const LIMIT: Duration = Duration::from_secs(20 * 60);

/// A command with a time limit.
pub(crate) struct Job {
    command: Command,
    limit: Duration,
}

/// The outcome of a [`Job`].
pub(crate) struct Ran {
    title: String,
    status: Result<ExitStatus, String>,
    pub(crate) lines: Vec<String>,
}

/// The cargo that started xtask.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

impl Job {
    pub(crate) fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        Self { command, limit: LIMIT }
    }

    /// The cargo that started xtask, with plain output.
    pub(crate) fn cargo<A: AsRef<OsStr>>(args: impl IntoIterator<Item = A>) -> Self {
        Self::new(cargo().get_program()).args(args).env("CARGO_TERM_COLOR", "never")
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub(crate) fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(key, value);
        self
    }

    /// Starts with an empty environment, so that no variable of the caller's user is inherited.
    pub(crate) fn env_clear(mut self) -> Self {
        self.command.env_clear();
        self
    }

    pub(crate) fn dir(mut self, dir: impl AsRef<Path>) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(crate) fn limit_s(mut self, seconds: u64) -> Self {
        self.limit = Duration::from_secs(seconds);
        self
    }

    /// Runs to the end or to the limit, at which the child and its descendants are killed.
    pub(crate) fn run(mut self, ctx: &Context) -> Ran {
        let title = self.title();
        if self.command.get_current_dir().is_none() {
            self.command.current_dir(&ctx.root);
        }
        ctx.screen.lock().expect("no thread panics while it draws").line(&format!("$ {title}"));
        match self.start() {
            Err(error) => Ran { title, status: Err(format!("did not start: {error}")), lines: Vec::new() },
            Ok((child, lines)) => follow(ctx, title, child, &lines, self.limit),
        }
    }

    /// Runs and returns standard output, for commands that print data.
    pub(crate) fn answer(mut self, ctx: &Context) -> Result<String, String> {
        let title = self.title();
        if self.command.get_current_dir().is_none() {
            self.command.current_dir(&ctx.root);
        }
        let started = Instant::now();
        self.command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().map_err(|error| format!("`{title}` did not start: {error}"))?;
        let (output, errors) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let status = end_of(&mut child, started, self.limit).map_err(|why| format!("`{title}` {why}"))?;
        let text = |of: Receiver<String>| {
            let held = |_| format!("`{title}`: a process it left behind still holds its output");
            of.recv_timeout(LINGER).map_err(held)
        };
        if status.success() {
            return text(output);
        }
        Err(format!("`{title}`: {status}\n{}", text(errors)?))
    }

    fn title(&self) -> String {
        let program = Path::new(self.command.get_program()).file_name().unwrap_or_default().to_string_lossy();
        let words = self.command.get_args().map(OsStr::to_string_lossy);
        std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ")
    }

    fn start(&mut self) -> std::io::Result<(Child, Receiver<String>)> {
        let (reader, writer) = std::io::pipe()?;
        self.command.stdout(writer.try_clone()?).stderr(writer);
        let child = self.command.spawn()?;
        // Close our copies of the write end. Otherwise the reader never reads end of file.
        self.command.stdout(Stdio::null()).stderr(Stdio::null());
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || forward(reader, &send));
        Ok((child, receive))
    }
}

fn forward(reader: PipeReader, send: &mpsc::Sender<String>) {
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
        let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
        bytes.clear();
        if send.send(line).is_err() {
            return;
        }
    }
}

/// Everything that comes out of a pipe, once it has ended.
fn collect(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}

/// Waits for the end of a child. At the limit, it and its descendants are killed.
fn end_of(child: &mut Child, started: Instant, limit: Duration) -> Result<ExitStatus, String> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if started.elapsed() > limit => {
                kill_tree(child.id());
                let _ = child.wait();
                return Err(format!("ran past its limit of {} s and was killed", limit.as_secs()));
            }
            Ok(None) => std::thread::sleep(CHECK),
            Err(error) => return Err(format!("could not be waited for: {error}")),
        }
    }
}

fn follow(ctx: &Context, title: String, mut child: Child, output: &Receiver<String>, limit: Duration) -> Ran {
    let started = Instant::now();
    let mut ended: Option<Instant> = None;
    let mut lines = Vec::new();
    loop {
        match output.recv_timeout(TICK) {
            Ok(line) => {
                ctx.screen.lock().expect("no thread panics while it draws").line(&line);
                lines.push(line);
            }
            Err(RecvTimeoutError::Timeout) => {
                ctx.screen.lock().expect("no thread panics while it draws").tick()
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if ended.is_none() && matches!(child.try_wait(), Ok(Some(_))) {
            ended = Some(Instant::now());
        }
        if ended.is_some_and(|at| at.elapsed() > LINGER) {
            lines.push("xtask: a process it left behind still holds its output".to_owned());
            break;
        }
        if ended.is_none() && started.elapsed() > limit {
            break;
        }
    }
    Ran { title, status: end_of(&mut child, started, limit), lines }
}

impl Ran {
    /// A made-up run, for tests of code that reads runs.
    #[cfg(test)]
    pub(crate) fn example(output: &str, success: bool) -> Self {
        use std::os::unix::process::ExitStatusExt;
        let status = Ok(ExitStatus::from_raw(if success { 0 } else { 101 << 8 }));
        Self { title: "example".to_owned(), status, lines: output.lines().map(str::to_owned).collect() }
    }

    pub(crate) fn success(&self) -> bool {
        self.status.as_ref().is_ok_and(ExitStatus::success)
    }

    /// The output, or the failure with everything that was printed.
    pub(crate) fn checked(self) -> Result<Vec<String>, String> {
        match self.failure() {
            None => Ok(self.lines),
            Some(failure) => Err(format!("{failure}\n{}", self.lines.join("\n"))),
        }
    }

    /// One sentence about the failure, if there is one.
    pub(crate) fn failure(&self) -> Option<String> {
        match &self.status {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("`{}`: {status}", self.title)),
            Err(reason) => Some(format!("`{}` {reason}", self.title)),
        }
    }
}

/// Runs a short command and discards its output. If it fails, the error is its standard error.
pub(crate) fn succeed(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Err(format!("{} did not start: {error}", command.get_program().display())),
    }
}

/// Kills a process and its descendants. The list is made before the first kill, because init adopts the children of a dead parent.
pub(crate) fn kill_tree(root: u32) {
    let parents = parents();
    let mut doomed = vec![root];
    let mut next = 0;
    while let Some(&parent) = doomed.get(next) {
        doomed.extend(parents.iter().filter(|(_, above)| *above == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    let _ = Command::new("sh")
        .args(["-c", "kill -KILL \"$@\"", "sh"])
        .args(doomed.iter().map(u32::to_string))
        .stderr(Stdio::null())
        .status();
}

/// Every process with its parent, from /proc/PID/stat, where the command may contain spaces and parentheses.
fn parents() -> Vec<(u32, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, fields) = stat.rsplit_once(')')?;
        Some((pid, fields.split_whitespace().nth(1)?.parse().ok()?))
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::Tier;

    #[test]
    fn both_streams_arrive_in_order() {
        let ctx = Context::new(false, Tier::Default);
        let ran = Job::new("sh").args(["-c", "echo one; echo two >&2; echo three; exit 3"]).run(&ctx);
        assert_eq!(ran.lines, ["one", "two", "three"]);
        assert!(ran.failure().is_some_and(|failure| failure.contains("exit status: 3")));
    }

    #[test]
    fn a_tree_that_hangs_is_killed_at_the_limit() {
        let ctx = Context::new(false, Tier::Default);
        let ran = Job::new("sh").args(["-c", "sleep 600 & sleep 600; echo never"]).limit_s(1).run(&ctx);
        assert!(ran.failure().is_some_and(|failure| failure.contains("limit of 1 s")));
    }

    #[test]
    fn a_child_without_output_is_killed_at_the_limit() {
        let ctx = Context::new(false, Tier::Default);
        let job = || Job::new("sh").args(["-c", "exec >&- 2>&-; sleep 600"]).limit_s(1);
        assert!(job().run(&ctx).failure().is_some_and(|failure| failure.contains("limit of 1 s")));
        assert!(job().answer(&ctx).is_err_and(|failure| failure.contains("limit of 1 s")));
    }

    #[test]
    fn an_answer_is_standard_output_and_a_failure_is_standard_error() {
        let ctx = Context::new(false, Tier::Default);
        let answer = |script| Job::new("sh").args(["-c", script]).answer(&ctx);
        assert_eq!(answer("echo one; echo two >&2"), Ok("one\n".to_owned()));
        let failure = answer("echo one; echo two >&2; exit 3").expect_err("status 3");
        assert!(failure.contains("exit status: 3\ntwo") && !failure.contains("one\n"), "{failure}");
    }

    #[test]
    fn a_missing_program_is_a_failure_not_a_panic() {
        let ran = Job::new("/nonexistent/program").run(&Context::new(false, Tier::Default));
        assert!(ran.failure().is_some_and(|failure| failure.contains("did not start")));
    }
}
