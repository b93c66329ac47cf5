//! `ferroce perf` when the other side dies or stops answering in the middle: a sentence and exit status 1, never a hang.

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Outcome, Server, ferroce, finish};

/// Starts both sides of a test that would take an hour, waits until traffic runs, and sends the server a signal. The link
/// is the client's choice: without the same-host fabric on one side there is none.
fn interrupt(test: &str, options: &str, link: &str, signal: &str) -> Outcome {
    let server = Server::start(&format!("perf {test}"));
    let line = format!("perf {test} 127.0.0.1 -p {} {options} -D 3600", server.port);
    let mut client = ferroce(&line);
    client.env("FERROCE_LINK", link).stdout(Stdio::piped()).stderr(Stdio::piped());
    let client = client.spawn().expect("the client starts");
    await_work(server.child.id());
    let id = server.child.id().to_string();
    assert!(Command::new("kill").args([signal, &id]).status().expect("kill runs").success());
    finish(client)
}

/// Waits until a side has used some processor time. Both sides poll, so it is past the handshake then.
fn await_work(process: u32) {
    const ENOUGH_TICKS: u64 = 20;
    let start = Instant::now();
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it is there");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
        if ticks(11) + ticks(12) >= ENOUGH_TICKS {
            return;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "watchdog: no traffic");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_killed_server_ends_the_client() {
    for (test, options) in [
        ("send-lat", ""),
        ("send-lat", "-c ud"),
        ("write-lat", ""),
        ("write-lat", "-c uc"),
        ("read-lat", ""),
        ("send-bw", ""),
        ("send-bw", "-c ud -s 1024"),
        ("write-bw", "-s 1M"),
        ("write-bw", "-b"),
        ("read-bw", "-q 4"),
    ] {
        for link in ["auto", "udp"] {
            let client = interrupt(test, options, link, "-KILL");
            assert_eq!((client.code, client.stdout.as_str()), (1, ""), "{test} {options} {link}: {client:?}");
            assert!(client.stderr.starts_with("ferroce: "), "{test} {options} {link}: {client:?}");
        }
    }
}

#[test]
fn a_stopped_server_ends_the_client_with_the_reason() {
    // One-sided operations over the same-host fabric need no action of a stopped server: they continue.
    let cases = [
        ("write-bw", "-s 64K", "udp"),
        ("read-lat", "", "udp"),
        ("send-lat", "", "udp"),
        ("send-lat", "", "auto"),
    ];
    for (test, options, link) in cases {
        let client = interrupt(test, options, link, "-STOP");
        assert_eq!(client.code, 1, "{test} {options}: {client:?}");
        // A server that is stopped between its acknowledgement and its answer leaves nothing to be sent again.
        let is_waiting = test == "send-lat" && client.stderr.contains("stopped answering over RDMA");
        assert!(
            is_waiting || client.stderr.contains("no acknowledgement after all retries"),
            "{test} {options}: {client:?}"
        );
    }
}
