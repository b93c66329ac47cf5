//! `ferroce run` from outside, with the shell as a program that needs no library. Real programs on the
//! real library are run by `cargo xtask programs`.

mod support;

use std::path::PathBuf;
use std::process::{Command, Stdio};
use support::{Outcome, build_library, ferroce, is_root, outcome};

/// A library that no program loads here; `ferroce run` only checks that it exists.
fn library(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("ferroce-run-{name}-{}.so", std::process::id()));
    std::fs::write(&path, "").expect("a file");
    path
}

/// A script below `ferroce run` with these options.
#[track_caller]
fn run(name: &str, options: &str, script: &str) -> Outcome {
    let library = library(name);
    let mut command = ferroce(&format!("run {options} -- sh -c"));
    let found = outcome(command.arg(script).env("FERROCE_LIB", &library));
    std::fs::remove_file(library).expect("our own file");
    found
}

#[test]
fn the_exit_status_is_the_programs() {
    for (name, options) in [
        ("plain", ""),
        ("parent", "--explain"),
        ("shim", "--no-namespace"),
        ("both", "--no-namespace --explain"),
    ] {
        assert_eq!(run(name, options, "exit 7").code, 7, "{options}");
        assert_eq!(run(name, options, "exit 0").code, 0, "{options}");
    }
}

#[test]
fn a_program_that_a_signal_killed_ends_with_128_and_more() {
    // Without a parent of ours the program is killed itself, which its own parent sees as a signal.
    let found = run("killed", "--explain", "kill -KILL $$");
    assert_eq!(found.code, 128 + 9, "{found:?}");
}

#[test]
fn a_program_sees_a_device_with_the_gids_of_its_addresses() {
    let script = "cat /sys/class/infiniband/ferroce0/ports/1/gids/0 /sys/class/infiniband/ferroce0/ports/1/gid_attrs/types/0; \
                  test -c /dev/infiniband/uverbs0 && test -w /dev/infiniband/uverbs0 && echo node; ls /dev/shm > /dev/null && echo shm";
    let found = run("sysfs", "--addr 127.0.0.9", script);
    if found.stderr.contains("no namespace") {
        println!("SKIPPED: this machine refuses namespaces; {}", found.stderr);
        return;
    }
    let expected = ["0000:0000:0000:0000:0000:ffff:7f00:0009", "RoCE v2", "node", "shm"];
    assert_eq!(found.stdout.lines().collect::<Vec<_>>(), expected, "{found:?}");
}

/// NCCL, UCX and libfabric take a PCI address from the real path of `device`, if it is one; MPICH ends if no PCI device has it.
/// NCCL, UCX and hwloc read the files there.
#[test]
fn the_device_has_no_pci_address_but_the_attributes_of_a_pci_device() {
    build_library("ferroce-shim");
    let script = "readlink -f /sys/class/infiniband/ferroce0/device && readlink -f /sys/class/infiniband/ferroce0 && \
                  cd /sys/class/ferroce/ferroce-00.0 && cat numa_node class vendor device max_link_speed max_link_width local_cpulist && test ! -e subsystem";
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let allowed =
        status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).expect("a list").trim();
    for options in ["", "--no-namespace"] {
        let mut found = run("pci", options, script);
        if options.is_empty() && found.stderr.contains("no namespace") {
            println!("SKIPPED: this machine refuses namespaces; {}", found.stderr);
            found = run("pci", "--no-namespace", script);
        }
        let expected = [
            "/sys/class/ferroce/ferroce-00.0",
            "/sys/class/ferroce/ferroce-00.0/infiniband/ferroce0",
            "-1",
            "0x020000",
            "0x70ce",
            "0x0001",
            "32.0 GT/s PCIe",
            "16",
            allowed,
        ];
        assert_eq!(found.stdout.lines().collect::<Vec<_>>(), expected, "{options}: {found:?}");
    }
}

/// Only within one user namespace may processes of one user reach each other's memory.
#[test]
fn programs_of_one_user_share_a_user_namespace() {
    const SHOW: &str = "readlink /proc/self/ns/user";
    if is_root() {
        println!("SKIPPED: root needs no user namespace; the step `unprivileged` runs this as nobody");
        return;
    }
    let library = library("first");
    let mut first = ferroce("run -- sh -c")
        .arg(format!("{SHOW}; read end"))
        .env("FERROCE_LIB", &library)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command");
    let mut shown = String::new();
    let mut lines = std::io::BufReader::new(first.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut lines, &mut shown).expect("a line");
    let second = run("second", "", SHOW);
    drop(first.stdin.take());
    first.wait().expect("our child");
    std::fs::remove_file(library).expect("our own file");
    if second.stderr.contains("no namespace") {
        println!("SKIPPED: this machine refuses namespaces; {}", second.stderr);
        return;
    }
    assert_eq!(second.stdout, shown);
    let own = std::fs::read_link("/proc/self/ns/user").expect("Linux");
    assert_ne!(second.stdout.trim(), own.to_string_lossy(), "it is not the one around them");
    // Others make such a namespace, too, and may end what runs in it.
    let mut foreign = std::process::Command::new("unshare")
        .args(["--user", "--map-current-user", "sh", "-c", &format!("{SHOW}; read end")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare of util-linux");
    let mut theirs = String::new();
    let mut lines = std::io::BufReader::new(foreign.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut lines, &mut theirs).expect("a line");
    let third = run("third", "", SHOW);
    drop(foreign.stdin.take());
    foreign.wait().expect("our child");
    assert!(third.code == 0 && theirs.starts_with("user:"), "{third:?} {theirs}");
    assert_ne!(third.stdout, theirs);
    let later = run("later", "", SHOW);
    assert_eq!(later.code, 0, "there is no namespace to join: {later:?}");
}

#[test]
fn the_machine_itself_stays_as_it_was() {
    let before = std::path::Path::new("/sys/class/infiniband").exists();
    run("after", "", "ls /sys/class/infiniband");
    assert_eq!(std::path::Path::new("/sys/class/infiniband").exists(), before);
    assert!(!std::path::Path::new("/dev/ferroce").exists());
}

#[test]
fn the_library_comes_first_and_the_rest_stays() {
    let library = library("path");
    let mut command = ferroce("run -- sh -c");
    command.arg("echo $LD_LIBRARY_PATH; readlink ${LD_LIBRARY_PATH%%:*}/libibverbs.so.1");
    let found = outcome(command.env("FERROCE_LIB", &library).env("LD_LIBRARY_PATH", "/some/where:/else"));
    let lines: Vec<&str> = found.stdout.lines().collect();
    assert!(lines[0].ends_with(":/some/where:/else"), "{found:?}");
    assert_eq!(lines[1], library.canonicalize().expect("it exists").display().to_string());
    std::fs::remove_file(library).expect("our own file");
}

#[test]
fn options_become_variables_of_the_program_and_its_children() {
    let script = "sh -c 'echo $FERROCE_FAULTS; echo $FERROCE_ADDR; echo $FERROCE_LOG; test -d $FERROCE_REPORT && echo reports'";
    let options =
        "--loss 1% --delay 10us --duplicate 0.5% --seed 7 --addr 127.0.0.8,127.0.0.9 --link udp --explain";
    let found = run("variables", options, script);
    let expected = ["loss=1%,duplicate=0.5%,delay=10us,seed=7", "127.0.0.8,127.0.0.9", "explain", "reports"];
    assert_eq!(found.stdout.lines().collect::<Vec<_>>(), expected, "{found:?}");
    assert!(found.stderr.contains("no process opened the device"), "{found:?}");
}

#[test]
fn a_capture_without_packets_is_reported() {
    let file = std::env::temp_dir().join(format!("ferroce-run-{}.pcapng", std::process::id()));
    let found = run("capture", &format!("--capture {}", file.display()), "test -n \"$FERROCE_CAPTURE\"");
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.stderr.contains("ferroce run: no packet was recorded"), "{found:?}");
}

#[test]
fn what_cannot_be_started_is_explained() {
    let library = library("missing");
    for (line, code, word) in [
        ("run -- no-such-program-of-ferroce", 127, "does not exist"),
        ("run -- /etc/passwd", 126, "executable"),
        ("run --addr 192.0.2.77 -- true", 126, "ferroce gids"),
        ("run --link local -- true", 2, "udp"),
        ("run --seed 7 -- true", 2, "--seed"),
        ("run --capture /nowhere/x.pcapng -- true", 1, "/nowhere"),
        ("run", 2, "COMMAND"),
    ] {
        let found = outcome(ferroce(line).env("FERROCE_LIB", &library));
        assert_eq!(found.code, code, "{line}: {found:?}");
        assert!(found.stderr.contains(word), "{line}: {found:?}");
    }
    let found = outcome(ferroce("run -- true").env("FERROCE_LIB", "/nowhere/lib.so"));
    assert_eq!(found.code, 127);
    assert!(found.stderr.contains("FERROCE_LIB=/nowhere/lib.so: there is no such file"), "{found:?}");
    std::fs::remove_file(library).expect("our own file");
}

#[test]
fn signals_reach_the_program_through_a_waiting_parent() {
    let library = library("signal");
    let script = "trap 'echo caught; exit 3' TERM; echo ready; while :; do sleep 0.02; done";
    let mut command = ferroce("run --explain -- sh -c");
    command.arg(script).env("FERROCE_LIB", &library).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it starts");
    let mut output = std::io::BufReader::new(child.stdout.take().expect("a pipe"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut output, &mut line).expect("text");
    assert_eq!(line, "ready\n");
    let sent = Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    line.clear();
    std::io::BufRead::read_line(&mut output, &mut line).expect("text");
    assert_eq!((line.as_str(), child.wait().expect("an end").code()), ("caught\n", Some(3)));
    std::fs::remove_file(library).expect("our own file");
}

#[test]
fn doctor_checks_everything_and_gives_advice() {
    let found = outcome(&mut ferroce("doctor --json"));
    let findings: serde_json::Value =
        serde_json::from_str(&found.stdout).unwrap_or_else(|error| panic!("{error}: {found:?}"));
    let named = |check: &str| {
        findings.as_array().expect("a list").iter().find(|finding| finding["check"] == check).cloned()
    };
    for check in [
        "namespaces",
        "addresses",
        "UDP port 4791",
        "sharing the port",
        "registry",
        "local link",
        "the kernel's RDMA",
        "transfer",
    ] {
        assert!(named(check).is_some(), "{check}: {findings}");
    }
    assert_eq!(named("transfer").expect("there")["verdict"], "works", "{findings}");
    let is_off = std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp");
    let expected = if is_off { "note" } else { "works" };
    assert_eq!(named("local link").expect("there")["verdict"], expected, "{findings}");
    let fails =
        findings.as_array().expect("a list").iter().filter(|finding| finding["verdict"] == "fails").count();
    assert_eq!(found.code, i32::from(fails > 0), "{found:?}");
}
