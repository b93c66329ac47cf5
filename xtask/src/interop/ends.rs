//! The two ends of a case: a process on this host, and a command in the guest.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Failure;
use super::guest::{Ended, Guest};
use super::matrix::{Case, Direction, Ip};
use super::namespace::{GUEST_V4, GUEST_V6, HOST_V4, HOST_V6};
use super::wire::Wire;
use crate::programs::{rdmacm, session};

/// Channels of the guest: for the commands of a case, and for commands that inspect them.
pub(crate) const WORK: usize = 0;
pub(crate) const ASIDE: usize = 1;

/// Time limit of one case.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);
/// 134 ms, short enough for many losses and long enough for an emulated processor.
const KERNEL_TIMER: [&str; 2] = ["-T", "15"];
/// Time limit for a server to listen.
const LISTEN_LIMIT: Duration = Duration::from_secs(30);

/// How programs run on ferroce.
pub(crate) struct Host {
    /// Folder with our libibverbs.so.1 and librdmacm.so.1.
    pub(crate) library: PathBuf,
    /// Libraries of the packages, for programs that are not installed on the host.
    pub(crate) others: PathBuf,
    /// Folders of the programs.
    pub(crate) programs: Vec<PathBuf>,
    /// The example that replaces some programs; its first argument is the name of the program.
    pub(crate) peer: PathBuf,
}

impl Host {
    /// Starts `words` with standard output and error in `log`.
    pub(crate) fn start(
        &self,
        case: &Case,
        words: &[String],
        log: &Path,
        capture: &Path,
    ) -> Result<Child, Failure> {
        let (program, words) = match case.by_example {
            true => (self.peer.clone(), words),
            false => (self.find(&words[0])?, &words[1..]),
        };
        let output = std::fs::File::create(log)?;
        let path = format!("{}:{}", self.library.display(), self.others.display());
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--", "timeout", "--foreground", "-s", "KILL"])
            .arg(LIMIT.as_secs().to_string())
            // A server is stopped by killing `timeout`, and must end with it.
            .args(["setpriv", "--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(words)
            .env("LD_LIBRARY_PATH", path)
            .env("FERROCE_ADDR", format!("{HOST_V4},{HOST_V6}"))
            .env("FERROCE_CAPTURE", capture)
            .env("FERROCE_LOG", "all")
            .env("FERROCE_FAULTS", case.faults)
            .env("FERROCE_WIRE", case.wire.name())
            .envs(case.environment.iter().filter_map(|pair| pair.split_once('=')))
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output);
        Ok(command.spawn()?)
    }

    fn find(&self, name: &str) -> Result<PathBuf, Failure> {
        let found = self.programs.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
        found.ok_or_else(|| Failure::Broken(format!("no program {name}")))
    }
}

/// Waits for a process on the host. Kills it at the limit.
pub(crate) fn wait(child: &mut Child, limit: Duration, log: &Path) -> Result<Ended, Failure> {
    use std::os::unix::process::ExitStatusExt;
    let started = Instant::now();
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if started.elapsed() > limit => {
                child.kill()?;
                break child.wait()?;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    let text = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    Ok(Ended { status, text })
}

/// Runs a command in the guest, where `timeout` limits it as well.
pub(crate) fn in_guest(guest: &Guest, words: &[String]) -> Result<Ended, Failure> {
    let command = format!("timeout -s KILL {} {}", LIMIT.as_secs(), words.join(" "));
    guest.run(WORK, &command, LIMIT + Duration::from_secs(20))
}

/// The command line of a case at one end.
pub(crate) fn words(
    case: &Case,
    end: End,
    (direction, ip): (Direction, Ip),
    port: u16,
    server: Option<&str>,
) -> Vec<String> {
    if case.wire == Wire::Iwarp {
        // Our own program selects its device by the address of the server.
        let address = match (direction, ip) {
            (Direction::ToKernel, Ip::V4) => GUEST_V4,
            (Direction::ToKernel, Ip::V6) => GUEST_V6,
            (Direction::FromKernel, Ip::V4) => HOST_V4,
            (Direction::FromKernel, Ip::V6) => HOST_V6,
        };
        let line = format!("{} -t iwarp -a {address} -p {port} {}", case.program, case.args);
        return line.split_whitespace().chain(server).map(str::to_owned).collect();
    }
    let gid = match (end, ip) {
        // The order of FERROCE_ADDR.
        (End::Host, Ip::V4) => 0,
        (End::Host, Ip::V6) => 1,
        // Index 0 is the link-local address.
        (End::Guest, Ip::V4) => 1,
        (End::Guest, Ip::V6) => 2,
    };
    let device = match end {
        End::Host => "ferroce0",
        End::Guest => case.wire.device(),
    };
    let perftest = case.program.starts_with("ib_");
    let mut words = vec![case.program.to_owned()];
    let index = if perftest { "-x" } else { "-g" };
    words.extend(["-d".into(), device.into(), index.into(), gid.to_string(), "-p".into(), port.to_string()]);
    if perftest {
        // -F: no warning about the frequency of the emulated processor.
        words.push("-F".into());
    }
    words.extend(case.args.split_whitespace().map(str::to_owned));
    let disturbed = !case.netem.is_empty() || !case.faults.is_empty();
    if disturbed && end == End::Guest {
        // The kernel sends no early probe: every loss without a NAK costs it a full timeout.
        words.extend(KERNEL_TIMER.map(str::to_owned));
    }
    words.extend(server.map(str::to_owned));
    words
}

/// One of the two ends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Host,
    Guest,
}

/// Waits for a listener at the port, up to a limit. If there is none, the client reports the error.
pub(crate) fn wait_for_server(
    guest: &Guest,
    case: &Case,
    end: End,
    port: u16,
    mut ended: impl FnMut() -> bool,
) -> Result<(), Failure> {
    let port = case.cm.as_ref().map_or(port, |lines| lines.port(port));
    match end {
        End::Guest => {
            let (is_listening, pause_ms) = match &case.cm {
                Some(_) => (format!("rdma resource show cm_id | grep -q 'LISTEN.*:{port} '"), 100),
                None => (tcp_listens(port), 50),
            };
            let tries = LISTEN_LIMIT.as_millis() / pause_ms;
            let script = format!(
                "i=0; until {is_listening}; do i=$((i+1)); [ $i -gt {tries} ] && break; usleep {pause_ms}000; done"
            );
            guest.run(ASIDE, &script, LISTEN_LIMIT * 4)?;
        }
        End::Host => {
            let by_cm = case.cm.is_some() && case.wire == Wire::Roce;
            let is_listening = if by_cm { rdmacm::listens } else { session::is_listening };
            let started = Instant::now();
            while !is_listening(port) && started.elapsed() < LISTEN_LIMIT && !ended() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
    Ok(())
}

/// A shell command that checks whether a TCP port has a listener (state 0A).
pub(crate) fn tcp_listens(port: u16) -> String {
    format!("grep -q ':{port:04X} [0-9A-F:]* 0A' /proc/net/tcp /proc/net/tcp6")
}
