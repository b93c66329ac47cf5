//! Attacks of docs/security.md by another user of the host and by a guesser: each name begins with its verdict.

mod cm_support;

use cm_support::{End, connected};
use ferroce_nic::{Config, Nic, registry};
use ferroce_proto::Psn;
use std::collections::BTreeSet;
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").expect("Linux").uid() == 0
}

/// V6: no starting PSN follows from another.
#[test]
fn prevented_starting_psns_of_connections_are_random() {
    let (a, b) = (End::new(&["127.91.0.2"]), End::new(&["127.91.0.3"]));
    let listener = b.listener("127.91.0.3:0", 8);
    let to = SocketAddr::new([127, 91, 0, 3].into(), listener.local_addr().unwrap().port());
    let connections: Vec<_> = (0..8).map(|_| connected(&a, &b, to)).collect();
    let psns: Vec<Psn> = connections.iter().flatten().map(|(_, qp)| qp.query().sq_psn).collect();
    println!("{psns:?}");
    // By chance, this fails once in 2^40 runs.
    let distinct: BTreeSet<u32> = psns.iter().map(|psn| psn.value()).collect();
    assert!(distinct.len() > 12, "{psns:?}");
    let is_near = |psn: &Psn| psn.distance_from(psns[0]).unsigned_abs() < 1 << 20;
    assert!(!psns.iter().all(is_near), "{psns:?}");
}

/// The device does not open beside a program that has the port, and names it.
#[test]
fn documented_a_port_that_is_taken_is_an_error_that_says_so() {
    let taken = UdpSocket::bind("127.91.0.4:4791").expect("an address of this test");
    let config =
        || Config::from_env().unwrap().with(|c| c.addresses = Some(vec!["127.91.0.4".parse().unwrap()]));
    let error = Nic::open(config()).err().expect("the port is taken").to_string();
    assert!(error.contains("127.91.0.4:4791 is taken by"), "{error}");
    drop(taken);
    Nic::open(config()).expect("the port is free again");
}

/// The role of the other user: tries everything with the files of the NIC.
fn intrude(directory: &Path, names: &str) {
    for name in names.split(' ') {
        let path = directory.join(name);
        let outcomes = [
            std::fs::File::open(&path).map(drop),
            std::fs::OpenOptions::new().write(true).open(&path).map(drop),
            UnixStream::connect(&path).map(drop),
            UnixDatagram::unbound().and_then(|socket| socket.connect(&path)),
            std::fs::remove_file(&path),
        ];
        for outcome in outcomes {
            let error = outcome.expect_err("another user must not reach it");
            assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{}: {error}", path.display());
        }
    }
    println!("refused everywhere");
}

#[test]
fn prevented_another_user_reaches_neither_rings_nor_sockets() {
    if let (Ok(directory), Ok(names)) =
        (std::env::var("FERROCE_TEST_PEER"), std::env::var("FERROCE_TEST_WORKER"))
    {
        return intrude(Path::new(&directory), &names);
    }
    let end = End::new(&["127.91.0.5"]);
    let directory = registry::own_directory().expect("there is a registry");
    assert_eq!(std::fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    let names: Vec<String> = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(&format!("-{}.", end.nic.slot())))
        .collect();
    println!("{names:?}");
    assert!(names.len() >= 2, "a socket for misrouted packets and one for inspection: {names:?}");
    if !is_root() {
        println!("SKIPPED: only root may become another user; the step `test` runs as root");
        return;
    }
    // The other user need not be able to read the directory of this program.
    let copy = std::env::temp_dir().join(format!("ferroce-attacks-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o755)).unwrap();
    let output = Command::new(&copy)
        .args(["--exact", "prevented_another_user_reaches_neither_rings_nor_sockets", "--nocapture"])
        .env("FERROCE_TEST_PEER", &directory)
        .env("FERROCE_TEST_WORKER", names.join(" "))
        .current_dir("/")
        .uid(NOBODY)
        .gid(NOBODY)
        .output();
    std::fs::remove_file(&copy).unwrap();
    let output = output.expect("the copy starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("refused everywhere"), "{text}");
}
