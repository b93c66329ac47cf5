//! `ferroce devices`, `gids` and `counters` from outside.

use ferroce_nic::{Config, Nic, QpInit};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};

/// The command, on an address that no other test uses.
fn ferroce(line: &str, addr: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce"));
    command.args(line.split_whitespace()).env("FERROCE_ADDR", addr).stdin(Stdio::null());
    command
}

fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the command runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code().expect("no signal"), text(stdout), text(stderr))
}

/// What a command that succeeds prints.
fn stdout(line: &str, addr: &str) -> String {
    let (code, stdout, stderr) = outcome(&mut ferroce(line, addr));
    assert_eq!((code, stderr.as_str()), (0, ""), "{line}");
    stdout
}

fn json(line: &str, addr: &str) -> Value {
    serde_json::from_str(&stdout(line, addr)).expect("JSON")
}

#[test]
fn devices_show_the_port() {
    let text = stdout("devices", "127.77.20.1,::1");
    for expected in ["ferroce0", "ACTIVE", "active_mtu", "max_qp ", "2 of at most 256"] {
        assert!(text.contains(expected), "{expected} in\n{text}");
    }
    let value = json("devices --json", "127.77.20.1");
    assert_eq!((&value[0]["device"], &value[0]["ports"][0]["gids"]), (&"ferroce0".into(), &1.into()));
}

#[test]
fn a_port_in_use_is_explained() {
    let addr = "127.77.20.2";
    let _owner = UdpSocket::bind((addr, 4791)).expect("a socket of this test");
    let (code, stdout, stderr) = outcome(&mut ferroce("devices", addr));
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    for expected in [addr, "is taken by", &format!("process {}", std::process::id()), "FERROCE_ADDR="] {
        assert!(stderr.contains(expected), "{expected} in\n{stderr}");
    }
    // The table of addresses needs no port.
    assert_eq!(json("gids --json", addr)[0]["address"], addr);
}

#[test]
fn wrong_variables_are_named() {
    for line in ["devices", "gids"] {
        let (code, _, stderr) = outcome(&mut ferroce(line, "nonsense"));
        assert_eq!(code, 1);
        assert!(stderr.contains("FERROCE_ADDR=nonsense"), "{stderr}");
        let (code, _, stderr) = outcome(&mut ferroce(line, "192.0.2.77"));
        assert_eq!(code, 1);
        assert!(stderr.contains("does not have"), "{stderr}");
    }
    // A key that every user can read.
    let (code, _, stderr) = outcome(ferroce("devices", "127.77.20.1").env("FERROCE_CM_KEY", "/etc/passwd"));
    assert_eq!(code, 1);
    assert!(stderr.contains("FERROCE_CM_KEY=/etc/passwd: the key file has mode 0644"), "{stderr}");
}

#[test]
fn gids_are_listed_for_both_families() {
    let text = stdout("gids", "127.77.20.3,::1");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("DEV"), "{text}");
    assert!(lines[2].contains("0000:0000:0000:0000:0000:ffff:7f4d:1403  127.77.20.3  v2   lo"), "{text}");
    assert!(lines[3].contains("0000:0000:0000:0000:0000:0000:0000:0001  ::1          v2   lo"), "{text}");
    let every: Value = {
        let mut command = ferroce("gids --json", "");
        serde_json::from_str(&outcome(&mut command).1).expect("JSON")
    };
    assert!(every.as_array().is_some_and(|rows| rows.iter().any(|row| row["address"] == "127.0.0.1")));
}

/// A NIC of this process with one queue pair, while `then` runs.
fn with_queue_pair(addr: &str, then: impl FnOnce(&Nic, u32)) {
    let addresses = Some(vec![addr.parse().expect("an address")]);
    let nic = Nic::open(Config::default().with(|c| c.addresses = addresses)).expect("the device opens");
    let pd = nic.alloc_pd().expect("a domain");
    let cq = nic.create_cq(16, None, 0).expect("a queue");
    let init = QpInit {
        transport: ferroce_proto::verbs::Transport::Rc,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        cap: Default::default(),
        signal_all: false,
    };
    let qp = pd.create_qp(&init).expect("a queue pair");
    then(&nic, qp.qpn().value());
}

#[test]
fn counters_show_running_processes() {
    with_queue_pair("127.77.20.4", |nic, qpn| {
        let pid = std::process::id();
        let value = json("counters --json", "");
        let devices = value["devices"].as_array().expect("a list");
        let ours = devices.iter().find(|device| device["slot"] == nic.slot()).expect("this process");
        assert_eq!((&ours["pid"], &ours["queue_pairs"][0]["qpn"]), (&pid.into(), &qpn.into()));
        assert_eq!((&ours["cm"]["sent_req"], &ours["cm"]["pending_requests_now"]), (&0.into(), &0.into()));
        let text = stdout("counters --all", "");
        assert!(text.contains("connection manager"), "{text}");
        assert!(text.contains(&format!("ferroce0 of process {pid} (")), "{text}");
        assert!(text.contains(&format!("{qpn:#08x}")), "{text}");
    });
}

#[test]
fn watching_continues_until_the_reader_closes() {
    with_queue_pair("127.77.20.5", |nic, _| {
        let mut child = ferroce("counters --json --watch 0.1", "")
            .stdout(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        for line in lines.take(3) {
            let value: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
            let devices = value["devices"].as_array().expect("a list");
            assert!(devices.iter().any(|device| device["slot"] == nic.slot()), "{value}");
        }
        // The pipe is closed now, which ends it.
        assert!(child.wait().expect("it ends").success());
    });
}
