//! Checks which path two processes of one user on this host take, and why it is not the fastest.
//!
//! The command starts itself again as the peer, which writes into the memory of the first process and reports the
//! result. The other direction would prove less: a parent may access its child's memory where unrelated processes may
//! not.

use super::Finding;
use crate::child::Helper;
use crate::devices::settings;
use crate::failure::Failure;
use ferroce::{Device, Outcome, RemoteRegion};
use ferroce_nic::LinkChoice;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const CHECK: &str = "local link";
const COPIES: &str = "copies between processes";
const LEN: usize = 3 * 4096;
/// Longer than the check takes on a busy machine.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

type CheckResult<T> = Result<T, Box<dyn std::error::Error>>;

/// The result of the peer.
#[derive(Debug, Default, Serialize, Deserialize)]
struct PathCounters {
    /// Operations in memory that it mapped, and by the kernel's copy.
    mapped: u64,
    copied: u64,
    /// Packets through shared memory.
    rings: u64,
    /// Whether it may trace other processes, which the kernel's copy requires.
    may_trace: bool,
}

pub(super) fn check() -> Vec<Finding> {
    let Ok(config) = settings() else { return Vec::new() };
    let off = match (config.link, config.faults.is_some(), config.capture.is_some()) {
        (LinkChoice::Udp, ..) => Some("FERROCE_LINK=udp"),
        (_, true, _) => Some("FERROCE_FAULTS: faults are injected into UDP packets"),
        (_, _, true) => Some("FERROCE_CAPTURE: UDP packets are captured"),
        _ => None,
    };
    if let Some(why) = off {
        return vec![Finding::note(CHECK, format!("turned off by {why}"))];
    }
    match test_local_peer() {
        Ok(paths) => findings(&paths, config.memfd),
        Err(error) => {
            vec![Finding::fails(CHECK, format!("the connection to a second process failed: {error}"))]
        }
    }
}

fn findings(paths: &PathCounters, memfd: bool) -> Vec<Finding> {
    let link = match paths {
        PathCounters { mapped: 1.., .. } => {
            Finding::works(CHECK, "a process writes directly into another's registered memory")
        }
        PathCounters { copied: 1.., .. } if !memfd => {
            Finding::limited(CHECK, "the kernel copies between processes: FERROCE_MEMFD=0 keeps memory from being mapped")
                .advise("Unset FERROCE_MEMFD")
        }
        PathCounters { copied: 1.., .. } => {
            Finding::limited(CHECK, "the kernel copies between processes: a process cannot map another's memory")
                .advise("See why: FERROCE_LOG=calls; a sandbox may forbid memfd_create, or to open /proc/PID/fd")
        }
        PathCounters { rings: 1.., .. } => Finding::limited(
            CHECK,
            "packets through shared memory: a process cannot reach another's memory, neither by mapping nor by the kernel's copy",
        )
        .advise("Run the programs in one user namespace and one container, and see the line below"),
        _ => Finding::limited(CHECK, "UDP: your processes share no memory")
            .advise("Free space in /dev/shm (docker run --shm-size=256m, mount -o remount,size=256m /dev/shm)"),
    };
    let copies = match paths.may_trace {
        true => Finding::works(COPIES, "allowed: long messages, and memory that cannot be mapped, are copied once"),
        false => Finding::limited(
            COPIES,
            format!("not allowed{}: long messages are copied twice, and memory that cannot be mapped is accessed with packets", yama()),
        )
        .advise("sysctl kernel.yama.ptrace_scope=0; in containers, allow process_vm_readv (docker run --cap-add=SYS_PTRACE)"),
    };
    vec![link, copies]
}

/// The kernel's setting, if it is the reason.
fn yama() -> String {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" => String::new(),
        scope => format!(" (kernel.yama.ptrace_scope is {scope})"),
    }
}

/// The free space in the file system of the registry, in MiB.
pub(super) fn free_mib(base: &Path) -> Option<u64> {
    let there = rustix::fs::statvfs(base).ok()?;
    Some(there.f_bavail.saturating_mul(there.f_frsize) >> 20)
}

/// Runs the side that owns the memory, and starts the peer.
fn test_local_peer() -> CheckResult<PathCounters> {
    let (mut socket, theirs) = UnixStream::pair()?;
    socket.set_read_timeout(Some(PEER_TIMEOUT))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["doctor", "--as-local-peer"]).stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
    let peer = Helper(command.stderr(Stdio::null()).spawn()?);
    // It holds the other end of the pair. Without it, this side detects the end of the peer.
    drop(command);
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let memory = pd.region(LEN).remote_read().remote_write().register()?;
    let qp = pd.rc(&cq).create()?;
    qp.connect_over(&mut socket)?;
    socket.write_all(&memory.remote().to_bytes())?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    drop(peer);
    if memory.to_vec().iter().any(|byte| *byte != 7) {
        return Err("the data of its WRITE did not arrive".into());
    }
    Ok(serde_json::from_str(&answer)?)
}

/// Runs as the peer; standard input is the socket to the first process.
pub(super) fn run_local_peer() -> Result<(), Failure> {
    write_to_parent().map_err(|error| Failure::new(error.to_string()))
}

fn write_to_parent() -> CheckResult<()> {
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    socket.set_read_timeout(Some(PEER_TIMEOUT))?;
    let device = Device::open()?;
    let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
    let source = pd.region(LEN).register()?;
    source.fill(7);
    let qp = pd.rc(&cq).create()?;
    qp.connect_over(&mut socket)?;
    let mut bytes = [0; RemoteRegion::ENCODED_LEN];
    socket.read_exact(&mut bytes)?;
    qp.write(1, &[source.sge(..)?], RemoteRegion::from_bytes(&bytes)?)?;
    cq.wait()?.ok()?;
    let link = device.counters().link;
    let parent = format!("/proc/{}/mem", std::os::unix::process::parent_id());
    let paths = PathCounters {
        mapped: link.direct_mapped,
        copied: link.direct_copied,
        rings: link.local_tx_packets,
        // The kernel checks the same right as for its copy.
        may_trace: File::open(parent).is_ok(),
    };
    Ok(serde_json::to_writer(&socket, &paths)?)
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    #[test]
    fn the_fastest_path_taken_is_named() {
        let link = |mapped, copied, rings| {
            let paths = PathCounters { mapped, copied, rings, may_trace: true };
            findings(&paths, true).swap_remove(0)
        };
        assert_eq!(link(1, 0, 3).verdict, Verdict::Works);
        for (finding, word) in [
            (link(0, 1, 3), "the kernel copies"),
            (link(0, 0, 3), "packets through shared memory"),
            (link(0, 0, 0), "UDP"),
        ] {
            assert!(finding.verdict == Verdict::Limited && finding.found.contains(word), "{finding:?}");
            assert!(finding.advice.is_some(), "{finding:?}");
        }
    }

    #[test]
    fn without_the_right_to_trace_there_is_advice() {
        let copies = findings(&PathCounters::default(), true).swap_remove(1);
        assert_eq!(copies.verdict, Verdict::Limited);
        assert!(copies.advice.is_some_and(|advice| advice.contains("ptrace_scope=0")));
    }
}
