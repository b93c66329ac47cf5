//! Runs a server and its client, or several such pairs concurrently.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use xtask::programs::session::{Program, is_listening};
use xtask::tools::which;

/// Address of the servers.
const HOST: &str = "127.0.0.1";

/// Runs a server per port and, once all servers listen, a client for each. Returns the output of the clients. `side` returns the
/// command of one side for its port and, for a client, the host.
pub(crate) fn run_pairs(
    logs: &Path,
    name: &str,
    ports: &[u16],
    limit: Duration,
    side: impl Fn(u16, Option<&str>) -> Command,
) -> Result<Vec<String>, String> {
    let start = |kind: &str, host: Option<&str>| -> Result<Vec<Program>, String> {
        let one =
            |(at, &port): (usize, &u16)| Program::of(side(port, host), logs, &format!("{name} {kind} {at}"));
        ports.iter().enumerate().map(one).collect()
    };
    let mut servers = start("server", None)?;
    for (server, &port) in servers.iter_mut().zip(ports) {
        server
            .wait_until(limit, "listening", |_| is_listening(port))
            .map_err(|why| format!("{why}\n{}", server.output()))?;
    }
    let mut clients = start("client", Some(HOST))?;
    for client in &mut clients {
        client.finish(limit).map_err(|why| format!("{why}\n{}", client.output()))?;
    }
    for server in &mut servers {
        server.finish_soon()?;
    }
    Ok(clients.iter().map(Program::output).collect())
}

/// Runs one pair. Returns the output of the client.
pub(crate) fn run_pair(
    logs: &Path,
    name: &str,
    port: u16,
    limit: Duration,
    side: impl Fn(Option<&str>) -> Command,
) -> Result<String, String> {
    Ok(run_pairs(logs, name, &[port], limit, |_, host| side(host))?.concat())
}

/// A command pinned to the core of its side. Two polling sides on one core would wait for the scheduler.
pub(crate) fn on_core_of(host: Option<&str>, program: impl AsRef<OsStr>) -> Command {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if cores < 2 || which("taskset").is_none() {
        return Command::new(program);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", if host.is_some() { "0" } else { "1" }]).arg(program);
    command
}
