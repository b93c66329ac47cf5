//! A host: a thread in namespaces of its own. What it spawns runs there.
//!
//! The namespaces end with the thread: PID 1 of the host ends with it, and the kernel kills all other processes of the
//! host. Programs find all hosts as h0, h1 and so on in /etc/hosts. Their /dev/shm is their own: two hosts share no memory.

use super::init::Init;
use super::ip::{address, address_v6};
use super::tun::{self, Refused, Step};
use rustix::mount::{MountFlags, MountPropagationFlags};
use std::fmt::Write;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// Nice value of the programs.
const NICE: i32 = 10;

type Job = Box<dyn FnOnce() + Send>;

/// A host.
pub(super) struct Host {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    /// Makes host `number` of `count`; returns its TUN device as well.
    pub(super) fn start(number: u32, count: u32, mtu: u32) -> Result<(Host, OwnedFd), Refused> {
        let (jobs, inbox) = channel::<Job>();
        let (report, made) = channel();
        let thread = std::thread::spawn(move || {
            // PID 1 ends with this thread.
            let (made, _init) = match make(number, count, mtu) {
                Ok((tun, init)) => (Ok(tun), Some(init)),
                Err(refused) => (Err(refused), None),
            };
            let failed = made.is_err();
            if report.send(made).is_ok() && !failed {
                inbox.into_iter().for_each(|job| job());
            }
        });
        let host = Host { jobs: Some(jobs), thread: Some(thread) };
        let made = made.recv().map_err(|_| (Step::Thread, io::ErrorKind::BrokenPipe.into()))?;
        made.map(|tun| (host, tun))
    }

    /// Runs a function on the host's thread. That thread is no process of the host: /proc has no entry for it there.
    pub(super) fn run<T: Send + 'static>(&self, what: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let (report, result) = channel();
        let job = Box::new(move || drop(report.send(what())));
        self.jobs.as_ref()?.send(job).ok()?;
        result.recv().ok()
    }

    /// Whether a program of the host listens on a TCP port.
    pub(super) fn listens(&self, port: u16) -> bool {
        self.run(move || {
            let tables = ["/proc/1/net/tcp", "/proc/1/net/tcp6"];
            tables
                .iter()
                .any(|path| std::fs::read_to_string(path).is_ok_and(|text| is_listening(&text, port)))
        })
        .unwrap_or(false)
    }

    /// Packets that the host lost because its own queue was full.
    pub(super) fn queue_drops(&self) -> u64 {
        let dropped = self.run(|| {
            let text = std::fs::read_to_string("/proc/1/net/dev").ok()?;
            let line = text.lines().find_map(|line| line.trim().strip_prefix(tun::INTERFACE))?;
            // After the colon: eight columns of received packets, then bytes, packets, errors, drops.
            line.trim_start_matches(':').split_whitespace().nth(11)?.parse().ok()
        });
        dropped.flatten().unwrap_or(0)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Columns of /proc/net/tcp: number, local address and port, remote, state (0A: listening).
fn is_listening(table: &str, port: u16) -> bool {
    let suffix = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut words = line.split_whitespace();
        words.nth(1).is_some_and(|local| local.ends_with(&suffix)) && words.nth(1) == Some("0A")
    })
}

fn make(number: u32, count: u32, mtu: u32) -> Result<(OwnedFd, Init), Refused> {
    tun::leave_namespaces().map_err(|error| (Step::Namespaces, error))?;
    // It applies to this thread and its children only, so that the thread of the fabric has priority. The kernel may refuse it.
    let _ = rustix::process::setpriority_process(None, NICE);
    let name = format!("h{number}");
    rustix::system::sethostname(name.as_bytes()).map_err(|error| (Step::HostName, error.into()))?;
    show_files(number, count).map_err(|error| (Step::Files, error))?;
    let tun = tun::open(mtu, address(number), address_v6(number))?;
    Ok((tun, Init::start()?))
}

fn show_files(number: u32, count: u32) -> io::Result<()> {
    let private = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let shm = Path::new("/dev/shm");
    rustix::mount::mount(
        "ferroce",
        shm,
        "tmpfs",
        MountFlags::NOSUID | MountFlags::NODEV,
        Some(c"mode=1777"),
    )?;
    let names = shm.join("hosts");
    std::fs::write(&names, hosts_file(number, count))?;
    match rustix::mount::mount_bind(&names, "/etc/hosts") {
        // A system without that file resolves names in its own way; addresses still work.
        Err(rustix::io::Errno::NOENT) => {}
        other => other?,
    }
    std::fs::remove_file(names)
}

fn hosts_file(number: u32, count: u32) -> String {
    let mut text = String::from("127.0.0.1 localhost\n::1 localhost\n");
    for host in 0..count {
        let own = if host == number { " self" } else { "" };
        let _ = writeln!(text, "{} h{host}{own}\n{} h{host}{own}", address(host), address_v6(host));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_port_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n   \
             0: 00000000:4853 00000000:0000 0A 00000000:00000000\n   \
             1: 0100007F:1F90 0100007F:4853 01 00000000:00000000\n";
        assert!(is_listening(table, 0x4853));
        assert!(!is_listening(table, 0x1f90) && !is_listening("", 1));
    }

    #[test]
    fn every_host_has_a_name() {
        let text = hosts_file(1, 3);
        assert!(
            text.contains("10.99.0.1 h0\n")
                && text.contains("10.99.0.2 h1 self\n")
                && text.contains("fd99::3 h2\n")
        );
    }
}
