//! Workers in their own network namespaces, fed one job after the other.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

use super::network;
use crate::process::kill_tree;

/// Both sides of a pair spin, so more would only wait for each other.
const WORKERS: usize = 2;

/// Something to run: the kind as the worker knows it, and a name.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
}

/// Runs all jobs; each answer is sent as soon as it is there.
pub(crate) fn run(jobs: Vec<Job>, ferroce: &Path, logs: &Path, answers: &Sender<(Job, Value)>) {
    let queue = Mutex::new(VecDeque::from(jobs));
    std::thread::scope(|scope| {
        for number in 0..WORKERS {
            let queue = &queue;
            scope.spawn(move || {
                let mut worker = None;
                // From both ends: what waits (the suite) goes well beside what spins (the pairs).
                let next = |mut queue: MutexGuard<'_, VecDeque<Job>>| match number {
                    0 => queue.pop_front(),
                    _ => queue.pop_back(),
                };
                while let Some(job) = queue.lock().ok().and_then(next) {
                    let answer = ask(&mut worker, &job, ferroce, logs);
                    if answers.send((job, answer)).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Asks the worker, a fresh one if the last one died.
fn ask(worker: &mut Option<Worker>, job: &Job, ferroce: &Path, logs: &Path) -> Value {
    let asked = match worker.take().map_or_else(|| Worker::start(ferroce, logs), Ok) {
        Ok(mut running) => running.ask(job).inspect(|_| *worker = Some(running)),
        Err(reason) => Err(reason),
    };
    asked.unwrap_or_else(|reason| json!({"verdict": "fail", "reason": reason}))
}

struct Worker {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(ferroce: &Path, logs: &Path) -> Result<Worker, String> {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = network::inside(&own);
        command.arg("programs-worker").arg("--ferroce").arg(ferroce).arg("--logs").arg(logs);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().map_err(|error| format!("unshare did not start: {error}"))?;
        let input = child.stdin.take().ok_or("no pipe")?;
        let output = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        Ok(Worker { child, input, output })
    }

    fn ask(&mut self, job: &Job) -> Result<Value, String> {
        let mut line = String::new();
        let gone = |_| "the worker is gone".to_owned();
        writeln!(self.input, "{}\t{}", job.kind, job.name).map_err(gone)?;
        self.output.read_line(&mut line).map_err(gone)?;
        serde_json::from_str(&line).map_err(|_| format!("the worker died: {line:?}"))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        kill_tree(self.child.id());
        let _ = self.child.wait();
    }
}
