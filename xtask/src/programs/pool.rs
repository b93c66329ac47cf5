//! Workers in their own network namespaces, each of which runs one job at a time.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

use super::iwarp::{self, Wire};
use super::network;
use crate::dialogue::Dialogue;

/// Number of workers. Both sides of a pair spin, so more workers would only compete for processors.
const WORKERS: usize = 2;
/// The kind of the conformance suite, whose tests wait more than they spin. Over UDP only these run next to a spinning pair: a receiver
/// that waits for a processor loses datagrams when its socket buffer is full.
const SUITE: &str = "pyverbs";

/// A job: the kind, which selects the table in the worker, and a name.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) kind: &'static str,
    pub(crate) name: String,
}

impl Job {
    /// Its name in tables.
    pub(super) fn title(&self) -> String {
        format!("{}: {}", self.kind, self.name)
    }
}

/// Whether the programs run without the same-host fabric.
pub(super) fn is_over_udp() -> bool {
    std::env::var_os("FERROCE_LINK").is_some_and(|link| link == "udp")
}

/// Runs all jobs. Sends each answer as soon as it arrives.
pub(crate) fn run(jobs: Vec<Job>, wire: Wire, ferroce: &Path, logs: &Path, answers: &Sender<(Job, Value)>) {
    let queue = Mutex::new(VecDeque::from(jobs));
    let is_over_udp = is_over_udp();
    std::thread::scope(|scope| {
        for number in 0..WORKERS {
            let queue = &queue;
            scope.spawn(move || {
                let mut worker = None;
                let next = |mut queue: MutexGuard<'_, VecDeque<Job>>| match number {
                    _ if is_over_udp => {
                        let at = queue.iter().position(|job| (job.kind == SUITE) == (number > 0));
                        at.and_then(|at| queue.remove(at))
                    }
                    // From both ends: jobs that wait (the suite) run well next to jobs that spin (the pairs).
                    0 => queue.pop_front(),
                    _ => queue.pop_back(),
                };
                while let Some(job) = queue.lock().ok().and_then(next) {
                    let answer = ask(&mut worker, &job, || start(wire, ferroce, logs));
                    if answers.send((job, answer)).is_err() {
                        return;
                    }
                }
            });
        }
    });
}

/// Sends a job to the worker. Starts a new worker if the last one has died.
fn ask(worker: &mut Option<Dialogue>, job: &Job, start: impl FnOnce() -> Result<Dialogue, String>) -> Value {
    let question = format!("{}\t{}", job.kind, job.name);
    let answer = match worker.take().map_or_else(start, Ok) {
        Ok(mut running) => running.ask(&question).inspect(|_| *worker = Some(running)),
        Err(reason) => Err(reason),
    };
    answer.unwrap_or_else(|reason| json!({"verdict": "fail", "reason": reason}))
}

fn start(wire: Wire, ferroce: &Path, logs: &Path) -> Result<Dialogue, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = network::inside(&own);
    command.arg("programs-worker").arg("--ferroce").arg(ferroce).arg("--logs").arg(logs);
    if wire == Wire::Iwarp {
        command.env(iwarp::VARIABLE, "iwarp");
    }
    Dialogue::start(command)
}
