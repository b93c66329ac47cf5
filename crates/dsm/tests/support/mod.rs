//! A job of real processes: the test binary itself, started again once per rank to run one test as a worker.

use ferroce_dsm::{Departure, Job, Rendezvous, Settings, TransportKind};
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest that one job may take.
const JOB_TIMEOUT: Duration = Duration::from_secs(60);
const WORKER: &str = "FERROCE_TEST_WORKER";
/// Number of processes per host. All run on this machine; the number only simulates hosts.
const PER_HOST: &str = "FERROCE_TEST_PER_HOST";
/// Variables of a [`Plan`] whose processes are two on each host, and choose the transport themselves.
#[allow(dead_code, reason = "not every test has hosts")]
pub(crate) const TWO_ON_EACH_HOST: [(&str, &str); 2] = [("FERROCE_DSM_TRANSPORT", ""), (PER_HOST, "2")];

/// A job to be started.
pub(crate) struct Plan<'a> {
    /// Full name of the test that calls [`Plan::run`]; the workers run the same test.
    pub(crate) test: &'a str,
    pub(crate) size: u32,
    pub(crate) transport: TransportKind,
    pub(crate) variables: &'a [(&'a str, &'a str)],
}

/// The result of a job.
pub(crate) struct Ended {
    pub(crate) departure: Departure,
    pub(crate) statuses: Vec<ExitStatus>,
    pub(crate) errors: Vec<String>,
}

/// Whether this is a worker, not the test itself.
#[allow(dead_code, reason = "not every test uses it")]
pub(crate) fn is_worker() -> bool {
    std::env::var(WORKER).is_ok()
}

/// In a worker: runs `body` as one process of the job and ends. In the test itself: returns.
pub(crate) fn work(body: impl FnOnce(&Job)) {
    if is_worker() {
        let mut settings = Settings::from_env().expect("good settings");
        let per_host = std::env::var(PER_HOST).ok().map(|count| count.parse::<u32>().expect("a number"));
        settings.host = per_host.map(|count| settings.rank / count);
        let job = Job::join(settings).expect("the job starts");
        body(&job);
        job.leave().expect("the job ends");
        std::process::exit(0);
    }
}

impl Plan<'_> {
    /// Starts all processes, lets `disturb` act on them, and waits for them.
    pub(crate) fn run_with(&self, disturb: impl FnOnce(&mut [Child])) -> Ended {
        let rendezvous = Rendezvous::bind(self.size).expect("a port on loopback");
        let mut children: Vec<Child> = (0..self.size).map(|rank| self.start(&rendezvous, rank)).collect();
        let meeting = std::thread::spawn(move || rendezvous.run());
        disturb(&mut children);
        let start = Instant::now();
        let mut ended = Ended { departure: Departure::All, statuses: Vec::new(), errors: Vec::new() };
        for (rank, child) in children.iter_mut().enumerate() {
            ended.statuses.push(wait(child, rank, start));
            let mut text = String::new();
            child.stderr.take().expect("a pipe").read_to_string(&mut text).expect("text");
            ended.errors.push(text);
        }
        // If workers failed before they joined, the rendezvous waits for them, and so does this thread.
        let has_stopped = ended.errors.iter().any(|text| text.contains("stops:"));
        if ended.statuses.iter().all(ExitStatus::success) || meeting.is_finished() || has_stopped {
            ended.departure = meeting.join().expect("the rendezvous does not panic");
        }
        ended
    }

    /// The same, and everything must go well.
    #[track_caller]
    pub(crate) fn run(&self) {
        let ended = self.run_with(|_| ());
        let good = ended.statuses.iter().all(ExitStatus::success) && ended.departure == Departure::All;
        assert!(
            good,
            "{} with {} processes over {}: {:?} {:?}\n{}",
            self.test,
            self.size,
            self.transport.name(),
            ended.departure,
            ended.statuses,
            ended.errors.join("---\n")
        );
    }

    fn start(&self, rendezvous: &Rendezvous, rank: u32) -> Child {
        Command::new(std::env::current_exe().expect("a test has a binary"))
            .args(["--exact", self.test, "--nocapture", "--test-threads=1"])
            .env(WORKER, self.test)
            .env("FERROCE_DSM_TRANSPORT", self.transport.name())
            .envs(rendezvous.environment(rank))
            .envs(self.variables.iter().copied())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the test binary starts again")
    }
}

fn wait(child: &mut Child, rank: usize, start: Instant) -> ExitStatus {
    loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status;
        }
        if start.elapsed() > JOB_TIMEOUT {
            let _ = child.kill();
            eprintln!("watchdog: process {rank} has not ended after {JOB_TIMEOUT:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
