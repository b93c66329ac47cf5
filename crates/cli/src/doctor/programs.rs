//! Foreign programs: which are installed, and whether one transfers data through the library.

use super::{Finding, Verdict};
use crate::child::Helper;
use crate::program::search;
use std::io::Read;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Programs to try first, and the Debian package of each.
const KNOWN: [(&str, &str); 5] = [
    ("ibv_devinfo", "ibverbs-utils"),
    ("ib_write_bw", "perftest"),
    ("ucx_info", "ucx-utils"),
    ("fi_info", "libfabric-bin"),
    ("qperf", "qperf"),
];
const LIBRARY_TRANSFER: &str = "unmodified programs";
/// Longer than any transfer takes on a busy machine.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(20);

/// `with_library`: whether the drop-in library is there.
pub(super) fn check(with_library: bool) -> Vec<Finding> {
    let own = own_transfer();
    // If a transfer fails within one process, one between two would fail as well, after a timeout.
    let can_transfer = own.verdict == Verdict::Works;
    let mut findings = vec![installed(), pyverbs(), own];
    findings.extend(with_library.then(|| match can_transfer {
        true => library_transfer(),
        false => Finding::note(LIBRARY_TRANSFER, "skipped, since the transfer above fails"),
    }));
    findings
}

fn installed() -> Finding {
    let (there, missing): (Vec<_>, Vec<_>) =
        KNOWN.iter().partition(|(program, _)| search(program.as_ref()).is_some());
    let names: Vec<&str> = there.iter().map(|(program, _)| *program).collect();
    let packages: Vec<&str> = missing.iter().map(|(_, package)| *package).collect();
    let found =
        if names.is_empty() { "none of those that people try first".to_owned() } else { names.join(", ") };
    let finding = Finding::note("programs", found);
    match packages.is_empty() {
        true => finding,
        false => finding.advise(format!("More to try, on Debian: apt-get install {}", packages.join(" "))),
    }
}

fn pyverbs() -> Finding {
    match Path::new("/usr/lib/python3/dist-packages/pyverbs").exists() {
        true => Finding::note("pyverbs", "ferroce run -- /usr/bin/python3, then import pyverbs"),
        false => {
            Finding::note("pyverbs", "not installed").advise("On Debian: apt-get install python3-pyverbs")
        }
    }
}

/// A message between two queue pairs of this process.
fn own_transfer() -> Finding {
    let transfer = || -> Result<(), ferroce::Error> {
        let device = ferroce::Device::open()?;
        let (pd, cq) = (device.alloc_pd()?, device.create_cq(16)?);
        let (alice, bob) = (pd.rc(&cq).create()?, pd.rc(&cq).create()?);
        alice.connect(&bob.endpoint()?)?;
        bob.connect(&alice.endpoint()?)?;
        let receive = bob.recv(pd.buffer(64)?)?;
        let mut message = pd.buffer(64)?;
        message.set(b"ferroce")?;
        alice.send(message)?.wait()?;
        receive.wait().map(drop)
    };
    match transfer() {
        Ok(()) => Finding::works("transfer", "a message went out on UDP 4791 and came back"),
        Err(error) => {
            Finding::fails("transfer", error.to_string()).advise("See why: FERROCE_LOG=1 ferroce doctor")
        }
    }
}

/// A message between two unmodified programs, through the drop-in library.
fn library_transfer() -> Finding {
    if search("ibv_rc_pingpong".as_ref()).is_none() {
        return Finding::note(LIBRARY_TRANSFER, "skipped: ibv_rc_pingpong is not installed")
            .advise("On Debian: apt-get install ibverbs-utils");
    }
    match pingpong() {
        Ok(line) => Finding::works(LIBRARY_TRANSFER, format!("ibv_rc_pingpong through the library: {line}")),
        Err(reason) => Finding::fails(LIBRARY_TRANSFER, reason)
            .advise("Try it by hand: ferroce run --explain -- ibv_rc_pingpong -g 0"),
    }
}

fn pingpong() -> Result<String, String> {
    let text = |error: std::io::Error| error.to_string();
    // A port that was free a moment ago; the program must bind it itself.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).map_err(text)?.port();
    let own = std::env::current_exe().map_err(text)?;
    let side = |host: Option<&str>| {
        let mut command = Command::new(&own);
        command
            .args(["run", "--", "ibv_rc_pingpong", "-g", "0", "-n", "100", "-p", &port.to_string()])
            .args(host);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(Helper)
    };
    let server = side(None).map_err(text)?;
    let deadline = Instant::now() + TRANSFER_TIMEOUT;
    // The server accepts only one connection, so it cannot be probed; the client is started again instead.
    loop {
        match end(side(Some("127.0.0.1")).map_err(text)?, deadline) {
            Ok(output) => {
                end(server, deadline)?;
                let line = output.lines().find(|line| line.contains("usec/iter")).unwrap_or_default();
                return Ok(line.to_owned());
            }
            Err(reason) if !reason.contains("Couldn't connect") || Instant::now() > deadline => {
                return Err(reason);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// The output of one side, if it ended successfully and in time.
fn end(mut side: Helper, deadline: Instant) -> Result<String, String> {
    let child = &mut side.0;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            Ok(None) => return Err("ibv_rc_pingpong did not end in time".into()),
            Err(error) => return Err(error.to_string()),
        }
    };
    let (mut out, mut err) = (String::new(), String::new());
    // Both outputs fit into a pipe, so they can be read now.
    let _ = child.stdout.take().map(|mut pipe| pipe.read_to_string(&mut out));
    let _ = child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut err));
    match status.success() {
        true => Ok(out),
        false => {
            let last = err.trim().lines().last().unwrap_or_default();
            Err(format!("ibv_rc_pingpong ended with {status}: {last}"))
        }
    }
}
