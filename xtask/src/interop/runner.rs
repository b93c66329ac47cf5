//! Runs one case and judges it.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Failure;
use super::capture::{self, Traffic};
use super::ends::{ASIDE, End, Host, LIMIT, in_guest, wait, wait_for_server, words};
use super::guest::{Ended, Guest};
use super::matrix::{Case, Direction, Ip};
use super::namespace::{GUEST_V4, HOST_V4};
use super::wire::Wire;
use crate::selection::name_of;

/// First port. Each case has its own, because a closed connection keeps its port for a while.
const FIRST_PORT: u16 = 20_000;
const QUESTION_LIMIT: Duration = Duration::from_secs(60);
/// Distance from the port of a case to the port of its repetition.
const REPEATED: u16 = 10_000;
/// Exit status of a killed program.
const KILLED: i32 = 137;

/// Everything that a case needs.
pub(crate) struct Bench {
    pub(crate) guest: Guest,
    pub(crate) host: Host,
    /// Captures and logs; those of cases that passed are removed.
    pub(crate) artefacts: PathBuf,
    pub(crate) keep: bool,
    /// Of the guest's device.
    wire: Cell<Wire>,
    numbers: Cell<u16>,
}

/// The outcome of a case.
pub(crate) struct Outcome {
    pub(crate) case: &'static str,
    pub(crate) direction: Direction,
    pub(crate) ip: Ip,
    pub(crate) verdict: Verdict,
    pub(crate) seconds: f64,
    pub(crate) traffic: Traffic,
    /// Retransmitted packets and messages of connection management, according to the kernel's counters.
    pub(crate) kernel_retries: u64,
}

impl Outcome {
    pub(crate) fn is_failure(&self) -> bool {
        matches!(self.verdict, Verdict::Failed(_))
    }
}

pub(crate) enum Verdict {
    Passed,
    /// Passed with known deviations of the kernel.
    PassedWithDeviation(Vec<String>),
    /// The reasons.
    Failed(Vec<String>),
}

impl Bench {
    pub(crate) fn new(guest: Guest, host: Host, artefacts: PathBuf, keep: bool) -> Self {
        Self { guest, host, artefacts, keep, wire: Cell::new(Wire::Roce), numbers: Cell::new(0) }
    }

    /// The number of the next case.
    pub(crate) fn next_number(&self) -> u16 {
        self.numbers.replace(self.numbers.get() + 1)
    }

    /// Runs a case. Repeats it once after a known error of the kernel or of a program.
    pub(crate) fn run(
        &self,
        case: &'static Case,
        direction: Direction,
        ip: Ip,
        number: u16,
    ) -> Result<Outcome, Failure> {
        let (outcome, reason) = self.run_once(case, direction, ip, number)?;
        let Some(reason) = reason else {
            return Ok(outcome);
        };
        let (mut outcome, _) = self.run_once(case, direction, ip, REPEATED + number)?;
        let line = format!("{reason}, once of two times");
        match &mut outcome.verdict {
            Verdict::Failed(lines) | Verdict::PassedWithDeviation(lines) => lines.push(line),
            passed => *passed = Verdict::PassedWithDeviation(vec![line]),
        }
        Ok(outcome)
    }

    /// The outcome, and the reason to repeat the case if there is one.
    fn run_once(
        &self,
        case: &'static Case,
        direction: Direction,
        ip: Ip,
        number: u16,
    ) -> Result<(Outcome, Option<&'static str>), Failure> {
        let started = Instant::now();
        let stem = format!("{}-{}-{}", case.name, name_of(ip), name_of(direction));
        let file = |ext: &str| self.artefacts.join(format!("{stem}.{ext}"));
        let (log, pcap) = (file("log"), file("pcapng"));
        if self.wire.replace(case.wire) != case.wire {
            case.wire.enter(&self.guest)?;
        }
        self.disturb(case)?;
        let before = self.kernel_retries(case.wire)?;
        let (ours, theirs) = self.both_ends(case, direction, ip, FIRST_PORT + number, &log, &pcap)?;
        let kernel_retries = self.kernel_retries(case.wire)?.saturating_sub(before);
        self.calm(case)?;
        let traffic = capture::count(&pcap);
        let mut verdict = judge(case, direction, &ours, &theirs);
        // A program that uses the connection manager could have reached another device. A stopped one has no complete capture.
        if case.cm.is_some() && !case.by_example && ours.status == 0 && traffic.sent == 0 {
            verdict = Verdict::Failed(vec!["ferroce: the capture has no packet".to_owned()]);
        }
        if let Verdict::Failed(_) = &verdict {
            let _ = std::fs::write(file("guest.log"), &theirs.text);
        } else if !self.keep {
            let _ = std::fs::remove_file(&log);
            let _ = std::fs::remove_file(&pcap);
        }
        let seconds = started.elapsed().as_secs_f64();
        let reason = reason_to_repeat(case, direction, &ours, &theirs);
        let outcome = Outcome { case: case.name, direction, ip, verdict, seconds, traffic, kernel_retries };
        Ok((outcome, reason))
    }

    /// The outcomes of the host's end and of the guest's end, in this order.
    fn both_ends(
        &self,
        case: &Case,
        direction: Direction,
        ip: Ip,
        port: u16,
        log: &Path,
        pcap: &Path,
    ) -> Result<(Ended, Ended), Failure> {
        let (host_server, guest_server) = match direction {
            Direction::ToKernel => (Some(GUEST_V4), None),
            Direction::FromKernel => (None, Some(HOST_V4)),
        };
        let line = |end, server: Option<&str>| match &case.cm {
            Some(lines) => lines.words(server.is_none(), direction, ip, port),
            None => words(case, end, (direction, ip), port, server),
        };
        let host_words = line(End::Host, host_server);
        let guest_words = line(End::Guest, guest_server);
        let guest = &self.guest;
        std::thread::scope(|scope| match direction {
            Direction::ToKernel => {
                let theirs = scope.spawn(|| in_guest(guest, &guest_words));
                wait_for_server(guest, case, End::Guest, port, || false)?;
                let mut child = self.host.start(case, &host_words, log, pcap)?;
                let ours = wait(&mut child, LIMIT, log)?;
                self.stop_guest_after(case, &ours, || theirs.is_finished())?;
                Ok((ours, theirs.join().map_err(|_| Failure::Broken("a thread panicked".into()))??))
            }
            Direction::FromKernel => {
                let mut child = self.host.start(case, &host_words, log, pcap)?;
                let ended = || matches!(child.try_wait(), Ok(Some(_)));
                wait_for_server(guest, case, End::Host, port, ended)?;
                let theirs = in_guest(guest, &guest_words)?;
                Ok((wait(&mut child, server_limit(case, theirs.status), log)?, theirs))
            }
        })
    }

    fn stop_guest_after(
        &self,
        case: &Case,
        ours: &Ended,
        finished: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        let limit = server_limit(case, ours.status);
        let since = Instant::now();
        while !finished() && since.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(10));
        }
        if !finished() {
            self.guest.run(ASIDE, &format!("killall -9 {}", case.program), QUESTION_LIMIT)?;
        }
        Ok(())
    }

    /// Adds the faults of the guest. Over RoCE they affect only RoCE packets, not the control connection of the programs.
    fn disturb(&self, case: &Case) -> Result<(), Failure> {
        if case.netem.is_empty() {
            return Ok(());
        }
        let number = case.wire.ip_protocol();
        let filter = |protocol: &str, name: &str| {
            format!(
                "/usr/sbin/tc filter add dev eth0 parent 1: protocol {protocol} u32 match {name} protocol {number} 0xff \
                 flowid 1:3"
            )
        };
        let script = [
            format!("/usr/sbin/tc qdisc add dev eth0 root handle 1: prio priomap{}", " 0".repeat(16)),
            format!("/usr/sbin/tc qdisc add dev eth0 parent 1:3 handle 30: netem limit 20000 {}", case.netem),
            filter("ip", "ip"),
            filter("ipv6", "ip6"),
        ];
        let answer = self.guest.run(ASIDE, &script.join(" && "), QUESTION_LIMIT)?;
        if answer.status == 0 {
            return Ok(());
        }
        Err(Failure::Broken(format!("netem in the guest: {}", answer.text)))
    }

    fn calm(&self, case: &Case) -> Result<(), Failure> {
        if !case.netem.is_empty() {
            self.guest.run(ASIDE, "/usr/sbin/tc qdisc del dev eth0 root", QUESTION_LIMIT)?;
        }
        Ok(())
    }

    fn kernel_retries(&self, wire: Wire) -> Result<u64, Failure> {
        let answer = self.guest.run(ASIDE, wire.retry_counters(), QUESTION_LIMIT)?;
        Ok(answer.text.split_whitespace().filter_map(|count| count.parse::<u64>().ok()).sum())
    }
}

/// Time for a server to end after its client. A server whose client has failed never ends.
fn server_limit(case: &Case, client_status: i32) -> Duration {
    let stays = case.cm.as_ref().is_some_and(|lines| lines.stays);
    Duration::from_secs(match client_status {
        _ if stays => 0,
        KILLED if killed(case) == Some(Role::Client) => 20,
        0 => 20,
        _ => 3,
    })
}

/// The name of a known error of the kernel or of perftest that occurred. The case is then repeated.
fn reason_to_repeat(case: &Case, direction: Direction, ours: &Ended, theirs: &Ended) -> Option<&'static str> {
    let client = match direction {
        Direction::ToKernel => ours,
        Direction::FromKernel => theirs,
    };
    if is_stalled(case, direction, theirs) {
        Some("kernel: its own unreliable sends were not completed")
    } else if is_ahead_of_server(case, client) {
        Some("perftest: the client connected before its server listened a second time, which crashes it")
    } else {
        None
    }
}

/// Whether perftest's client connected before its server listened for the second time. The server then refuses, and the next
/// attempt of the client uses ids that it has destroyed (4.5-0.17, `rdma_cm_client_connection`).
fn is_ahead_of_server(case: &Case, client: &Ended) -> bool {
    let refused = |status| client.text.contains(&format!("Event: RDMA_CM_EVENT_REJECTED; error: {status}."));
    case.program.starts_with("ib_") && case.cm.is_some() && (refused("8") || refused("-111"))
}

/// Whether the kernel never completed its unreliable requests. They need no answer, so the other end cannot be the reason.
fn is_stalled(case: &Case, direction: Direction, theirs: &Ended) -> bool {
    let is_unreliable = ["-t uc", "-t ud"].iter().any(|transport| case.args.contains(transport));
    direction == Direction::FromKernel && is_unreliable && theirs.text.contains("no completion within")
}

/// One of the two programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Client,
    Server,
}

/// The program that the case kills.
fn killed(case: &Case) -> Option<Role> {
    let stays = case.cm.as_ref().is_some_and(|lines| lines.stays);
    match case.args {
        "-E client_killed" => Some(Role::Client),
        args if stays || args.contains("killed") => Some(Role::Server),
        _ => None,
    }
}

/// The last line of a `verify` that ran to its end.
const VERDICTS: [&str; 2] = ["verify: PASSED", "verify: FAILED"];

fn judge(case: &Case, direction: Direction, ours: &Ended, theirs: &Ended) -> Verdict {
    let excused: Vec<&str> = case
        .deviations
        .iter()
        .filter(|deviation| deviation.direction == direction)
        .flat_map(|deviation| deviation.lines)
        .copied()
        .collect();
    let (mut problems, mut deviations) = (Vec::new(), Vec::new());
    let server_is = |end: &str| match direction {
        Direction::ToKernel => end == "kernel",
        Direction::FromKernel => end == "ferroce",
    };
    for (end, ended) in [("ferroce", ours), ("kernel", theirs)] {
        // The last sentence of a program that gave up is a complaint too, even after a known deviation.
        let gave_up = |line: &str| line.starts_with("verify: ") && !VERDICTS.contains(&line);
        let complains = |line: &&str| {
            line.contains("the specification asks for") || gave_up(line) || excused.contains(line)
        };
        let complaints: Vec<&str> = ended.text.lines().filter(complains).collect();
        let role = if server_is(end) { Role::Server } else { Role::Client };
        let expected = if killed(case) == Some(role) { KILLED } else { 0 };
        let excusable = !complaints.is_empty() && complaints.iter().all(|line| excused.contains(line));
        if !excusable && ended.status != expected {
            problems.push(format!("{end}: exit status {}; {}", ended.status, reason(&ended.text)));
        } else if let Some(lines) = &case.cm
            && !server_is(end)
            && !ended.text.contains(lines.says)
        {
            problems.push(format!("{end}: never printed `{}`; {}", lines.says, reason(&ended.text)));
        } else if excusable {
            deviations.extend(complaints.iter().map(|line| format!("{end}: {line}")));
        }
    }
    match (problems.is_empty(), deviations.is_empty()) {
        (false, _) => Verdict::Failed(problems),
        (true, false) => Verdict::PassedWithDeviation(deviations),
        (true, true) => Verdict::Passed,
    }
}

/// The last lines that are not empty. They include ferroce's explanation, because `FERROCE_LOG` is set.
fn reason(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let telling =
        |line: &&str| ["specification", "verify:", "ferroce["].iter().any(|word| line.contains(word));
    let complaints: Vec<&str> = lines.iter().copied().filter(telling).collect();
    let chosen = if complaints.is_empty() { &lines } else { &complaints };
    chosen[chosen.len().saturating_sub(3)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interop::matrix::cases;

    fn ended(status: i32, text: &str) -> Ended {
        Ended { status, text: text.to_owned() }
    }

    fn named(name: &str) -> &'static Case {
        cases().find(|case| case.name == name).unwrap()
    }

    #[test]
    fn a_known_deviation_is_no_failure_and_nothing_else_is_excused() {
        let case = named("refuse-write-rkey");
        let line = "event: none, but the specification asks for QP_ACCESS_ERR";
        let verdict = judge(case, Direction::ToKernel, &ended(0, ""), &ended(1, line));
        assert!(matches!(verdict, Verdict::PassedWithDeviation(lines) if lines.len() == 1));
        let verdict = judge(case, Direction::FromKernel, &ended(1, line), &ended(0, ""));
        assert!(matches!(verdict, Verdict::Failed(_)));
        let verdict = judge(case, Direction::ToKernel, &ended(0, ""), &ended(1, "verify: no device"));
        assert!(matches!(verdict, Verdict::Failed(_)));
    }

    #[test]
    fn a_deviation_does_not_excuse_a_missing_result() {
        let case = named("iwarp-ib_read_bw");
        let line = "Failed to close connection between server and client";
        let with_result = format!("BW average\n{line}");
        let verdict = judge(case, Direction::FromKernel, &ended(0, ""), &ended(1, &with_result));
        assert!(matches!(verdict, Verdict::PassedWithDeviation(lines) if lines.len() == 1));
        let verdict = judge(case, Direction::FromKernel, &ended(0, ""), &ended(1, line));
        assert!(matches!(verdict, Verdict::Failed(_)));
    }

    #[test]
    fn only_unreliable_requests_of_the_kernel_can_stall() {
        let theirs = ended(1, "verify: send size 20001 round 1: no completion within 30 s");
        assert!(is_stalled(named("verify-uc"), Direction::FromKernel, &theirs));
        assert!(!is_stalled(named("verify-uc"), Direction::ToKernel, &theirs));
        assert!(!is_stalled(named("verify-rc"), Direction::FromKernel, &theirs));
        assert!(!is_stalled(named("verify-uc"), Direction::FromKernel, &ended(1, "verify: wrong byte")));
    }

    #[test]
    fn only_a_client_of_perftest_can_be_ahead_of_its_server() {
        let crashed = ended(139, "RDMA CM event error:\nEvent: RDMA_CM_EVENT_REJECTED; error: 8.");
        let reason = |name, client| reason_to_repeat(named(name), Direction::ToKernel, client, &ended(0, ""));
        assert!(reason("cm-ib_write_bw", &crashed).is_some());
        assert!(reason("cm-rping", &crashed).is_none());
        assert!(reason("ib_write_bw", &crashed).is_none());
        let other = ended(139, "Event: RDMA_CM_EVENT_REJECTED; error: 28.");
        assert!(reason("cm-ib_write_bw", &other).is_none());
        let theirs =
            reason_to_repeat(named("cm-ib_write_bw"), Direction::FromKernel, &ended(0, ""), &crashed);
        assert!(theirs.is_some());
    }

    #[test]
    fn a_deviation_does_not_excuse_a_program_that_gave_up() {
        let case = named("iwarp-invalidate");
        let line = "key in the completion: none, but the specification asks for reported";
        let verdict = |last: &str| {
            judge(case, Direction::ToKernel, &ended(0, ""), &ended(1, &format!("{line}\n{last}")))
        };
        assert!(matches!(verdict("verify: FAILED"), Verdict::PassedWithDeviation(lines) if lines.len() == 1));
        assert!(matches!(verdict("verify: ibv_dereg_mr: Invalid argument"), Verdict::Failed(_)));
        let wrong =
            "bytes after the second WRITE: wrong, but the specification asks for right\nverify: FAILED";
        assert!(matches!(verdict(wrong), Verdict::Failed(_)));
    }

    #[test]
    fn only_the_client_may_be_killed_if_it_must_be() {
        let case = named("iwarp-client-killed");
        let verdict = judge(case, Direction::FromKernel, &ended(0, ""), &ended(KILLED, ""));
        assert!(matches!(verdict, Verdict::Passed));
        let verdict = judge(case, Direction::FromKernel, &ended(KILLED, ""), &ended(0, ""));
        assert!(matches!(verdict, Verdict::Failed(_)));
    }

    #[test]
    fn only_the_server_may_be_killed() {
        let case = named("refuse-killed");
        let verdict = judge(case, Direction::ToKernel, &ended(0, ""), &ended(KILLED, ""));
        assert!(matches!(verdict, Verdict::Passed));
        let verdict = judge(case, Direction::ToKernel, &ended(KILLED, ""), &ended(0, ""));
        assert!(matches!(verdict, Verdict::Failed(_)));
    }
}
