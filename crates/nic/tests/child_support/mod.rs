//! Another process of a test: this very program, in another role.
#![allow(dead_code, reason = "each test uses its part")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

const MAX_WAIT: Duration = Duration::from_secs(20);

/// The process, and what it says. It goes with this.
pub(crate) struct Other {
    pub(crate) process: Child,
    output: BufReader<ChildStdout>,
}

impl Other {
    /// This program, told to run that test alone. The caller adds what makes it the other process.
    pub(crate) fn command(test: &str) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]);
        command
    }

    pub(crate) fn start(command: &mut Command) -> Other {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let start = Instant::now();
        // A process that another thread has just forked holds the file open for writing if this test has just made it.
        let is_busy = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ExecutableFileBusy;
        let mut process = loop {
            match command.spawn() {
                Err(error) if is_busy(&error) && start.elapsed() < MAX_WAIT => std::thread::yield_now(),
                spawned => break spawned.unwrap(),
            }
        };
        let output = BufReader::new(process.stdout.take().unwrap());
        Other { process, output }
    }

    /// What follows the word on the line that has it.
    #[track_caller]
    pub(crate) fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "it ended before it said {word:?}");
            if let Some((_, rest)) = line.split_once(word) {
                return rest.trim().to_owned();
            }
        }
    }

    pub(crate) fn tell(&mut self, what: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{what}").unwrap();
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.process.id(), name);
    }

    /// Stops it, and waits until it is.
    pub(crate) fn stop(&self) {
        stop_process(self.process.id());
    }

    /// Waits for its end, which is a success.
    pub(crate) fn finish(mut self) {
        let status = self.process.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn signal(pid: u32, name: &str) {
    assert!(Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap().success());
}

/// Stops a process, and waits until it is.
pub(crate) fn stop_process(pid: u32) {
    signal(pid, "STOP");
    // The signal takes effect some time later, thread by thread.
    let tasks = format!("/proc/{pid}/task");
    let has_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    };
    let start = Instant::now();
    while !std::fs::read_dir(&tasks).unwrap().flatten().all(has_stopped) {
        assert!(start.elapsed() < MAX_WAIT, "it never stopped");
        std::thread::yield_now();
    }
}
