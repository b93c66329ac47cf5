//! Programs that connect by librdmacm: rdmacm-utils, and perftest with `-R`.
//!
//! A server is ready when ferroce's table of ports lists its port as listening. The kernel has no socket for it.

use std::time::Duration;

use serde_json::Value;

use super::cases::Proof::{self, Rows, Says};
use super::conversation::{self, Case, End, Procedure, case};
use super::iwarp;
use super::session::{Launcher, Program, is_listening};
use super::worker::answer;
use crate::tools::{not_installed, which};

use End::{Follows, InGroup, Stays};

const PINGS: Proof = Says("rdma-ping-9");
const DONE: Proof = Says("return status 0");

/// A test of perftest with its options: both sides have the same line, and the client the address.
macro_rules! perftest {
    ($line:literal) => {
        perftest!($line, "198.18.0.1", 1)
    };
    ($line:literal, $address:literal, $rows:literal) => {
        case(
            Follows,
            concat!($line, " -R -F -p {port}"),
            concat!($line, " -R -F -p {port} ", $address),
            Rows($rows),
        )
    };
}

/// Every row.
#[rustfmt::skip]
pub(crate) const CASES: &[Case] = &[
    case(Follows, "rping -s -v -C 10 -p {port} -a 0.0.0.0", "rping -c -v -C 10 -p {port} -a 127.0.0.1", PINGS),
    case(Follows, "rping -s -v -V -C 10 -p {port} -a 198.18.0.1", "rping -c -v -V -C 10 -p {port} -a 198.18.0.1", PINGS),
    case(Follows, "rping -s -v -V -C 10 -S 60000 -p {port} -a ::", "rping -c -v -V -C 10 -S 60000 -p {port} -a fd18::1", PINGS),
    case(Follows, "rping -s -v -C 10 -p {port} -a ::1", "rping -c -v -C 10 -p {port} -a ::1", PINGS),
    case(Follows, "rping -s -q -v -C 10 -p {port} -a 0.0.0.0", "rping -c -q -v -C 10 -p {port} -a 127.0.0.1", PINGS),
    case(Stays, "rping -s -P -v -p {port} -a 0.0.0.0", "rping -c -v -C 10 -p {port} -a 198.18.0.1 -d", PINGS),

    case(Follows, "ucmatose -p {port}", "ucmatose -s 127.0.0.1 -p {port}", DONE),
    case(Follows, "ucmatose -p {port} -c 10 -C 20 -S 5000 -t 8", "ucmatose -s 198.18.0.1 -p {port} -c 10 -C 20 -S 5000 -t 8", DONE),
    case(Follows, "ucmatose -p {port} -b fd18::1 -f ip6", "ucmatose -s fd18::1 -p {port} -b fd18::1", DONE),
    case(Follows, "ucmatose -p {port} -m -c 4", "ucmatose -s 127.0.0.1 -p {port} -m -c 4", DONE),
    case(Follows, "udaddy", "udaddy -s 127.0.0.1", DONE),
    case(Follows, "udaddy -c 5 -C 20 -S 1000 -b fd18::1", "udaddy -s fd18::1 -c 5 -C 20 -S 1000", DONE),
    case(InGroup, "mckey -m 239.1.1.1 -b 198.18.0.1", "mckey -m 239.1.1.1 -b 198.18.0.1 -s", DONE),
    case(InGroup, "mckey -m 239.1.1.2 -b 198.18.0.1 -c 3 -C 20", "mckey -m 239.1.1.2 -b 198.18.0.1 -s -c 3 -C 20 -o", DONE),
    case(InGroup, "mckey -m ff0e::77 -b fd18::1", "mckey -m ff0e::77 -b fd18::1 -s", DONE),
    case(Stays, "cmtime -p {port} -c 100", "cmtime -s 127.0.0.1 -p {port} -c 100", Says("destroy")),
    case(Follows, "rdma_server -p {port}", "rdma_client -s 127.0.0.1 -p {port}", Says("rdma_client: end 0")),
    case(Follows, "rdma_xserver -p {port}", "rdma_xclient -s 127.0.0.1 -p {port}", Says("rdma_xclient: end 0")),
    case(Follows, "rdma_xserver -p {port} -c x", "rdma_xclient -s 127.0.0.1 -p {port} -c x", Says("rdma_xclient: end 0")),

    // perftest refuses -R with UC and XRC itself.
    perftest!("ib_send_bw -n 300"), perftest!("ib_send_lat -n 300"), perftest!("ib_write_bw -n 300"), perftest!("ib_write_lat -n 300"),
    perftest!("ib_read_bw -n 300"), perftest!("ib_read_lat -n 300"), perftest!("ib_atomic_bw -n 300"), perftest!("ib_atomic_lat -n 300"),
    perftest!("ib_send_bw -c UD -n 300"), perftest!("ib_send_lat -c UD -n 300"),
    perftest!("ib_send_bw -b -e -n 300"), perftest!("ib_write_bw -q 8 -n 300"), perftest!("ib_read_bw -q 8 -n 300"), perftest!("ib_send_bw -q 4 -T 96 -n 300"),
    perftest!("ib_write_bw -a -n 5", "127.0.0.1", 23), perftest!("ib_send_lat -a -n 5", "127.0.0.1", 23),
    perftest!("ib_write_bw -D 1 -f 0"),
    // With IPv6 GIDs. perftest resolves the address of the other side as IPv4 only (docs/use/rdmacm.md).
    perftest!("ib_send_bw --ipv6 -n 300"), perftest!("ib_send_lat --ipv6 -n 300"), perftest!("ib_write_bw --ipv6 -n 300"), perftest!("ib_write_lat --ipv6 -n 300"),
    perftest!("ib_read_bw --ipv6 -n 300"), perftest!("ib_read_lat --ipv6 -n 300"), perftest!("ib_atomic_bw --ipv6 -n 300"), perftest!("ib_atomic_lat --ipv6 -n 300"),
    perftest!("ib_send_bw --ipv6 -c UD -n 300"), perftest!("ib_send_lat --ipv6 -c UD -n 300"),
];

const LIMIT: Duration = Duration::from_secs(120);
/// First port of these cases; each has its own.
const FIRST_PORT: u16 = 26_000;
/// The fixed port of some programs.
const FIXED_PORT: u16 = 7174;

/// Why a row cannot run on this machine.
pub(crate) fn obstacle(name: &str) -> Option<String> {
    let program = name.split(' ').next()?;
    let package = if program.starts_with("ib_") { "perftest" } else { "rdmacm-utils" };
    which(program).is_none().then(|| not_installed(program, package))
}

/// Runs a row in the worker.
pub(crate) fn run(launcher: &Launcher, name: &str) -> Value {
    let (at, case) = match conversation::find(CASES, name) {
        Ok(found) => found,
        Err(unknown) => return answer(Err(unknown), Vec::new()),
    };
    let port = if case.server.contains("{port}") { FIRST_PORT + at as u16 } else { FIXED_PORT };
    let is_ready = |server: &Program| match case.end {
        InGroup => server.output().contains("receiving data"),
        Follows | Stays => listens(port),
    };
    let procedure =
        Procedure { limit: LIMIT, words: &|line| words(line, port), is_ready: &is_ready, check: &|| Ok(()) };
    conversation::run(launcher, case, &procedure)
}

/// The command line, with line-buffered output: it goes to a file, which libc buffers fully.
fn words(line: &str, port: u16) -> Vec<String> {
    let line = format!("stdbuf -oL {}", line.replace("{port}", &port.to_string()));
    line.split_whitespace().map(str::to_owned).collect()
}

/// Whether this port of ferroce has a listener in our network namespace. A port of iWARP is a TCP port.
pub(crate) fn listens(port: u16) -> bool {
    if iwarp::is_chosen() {
        return is_listening(port);
    }
    let space = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let space: String = space.to_string_lossy().chars().filter(char::is_ascii_digit).collect();
    let is_ours = |name: &str| name.starts_with("ferroce-") && name.split('-').nth(2) == Some(space.as_str());
    let folders = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    folders
        .filter(|folder| folder.file_name().to_str().is_some_and(is_ours))
        .filter_map(|folder| std::fs::read_to_string(folder.path().join("ports")).ok())
        .any(|table| is_listed(&table, port))
}

/// A line is: slot, port space, first and last port, addresses, use.
fn is_listed(table: &str, port: u16) -> bool {
    let port = port.to_string();
    table.lines().any(|line| line.ends_with(" listening") && line.split(' ').nth(2) == Some(port.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_is_seen() {
        let table = "ferroce ports 1\n156 106 7174 7174 any4 listening\n156 106 7175 7175 any4 bound\n3 106 40960 41023 any block\n";
        assert!(is_listed(table, 7174));
        assert!(!is_listed(table, 7175) && !is_listed(table, 106));
    }
}
