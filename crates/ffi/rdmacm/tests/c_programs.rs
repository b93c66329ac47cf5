//! Small C programs, compiled against the headers of rdma-core and run on our libraries. They test what no foreign program tests.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Compiles a program of `tests/c`; `None`, with the reason printed, if this machine cannot.
fn compile(name: &str) -> Option<PathBuf> {
    if !Path::new("/usr/include/rdma/rdma_cma.h").exists() {
        println!("SKIPPED: <rdma/rdma_cma.h> is missing; it is in the package librdmacm-dev");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    // Two tests may use the same program at the same time, so each compiles its own file.
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let count = COMPILED.fetch_add(1, Ordering::Relaxed);
    let program = support::scratch().join(format!("cm-{name}.{}.{count}", std::process::id()));
    let mut cc = Command::new("cc");
    cc.args([
        "-D_GNU_SOURCE",
        "-Wall",
        "-Wextra",
        "-Wno-missing-field-initializers",
        "-Werror",
        "-g",
        "-pthread",
    ]);
    cc.arg("-o").arg(&program).arg(&source).args(["-lrdmacm", "-libverbs"]);
    let Ok(out) = cc.output() else {
        println!("SKIPPED: cc is missing; it is in the package gcc");
        return None;
    };
    assert!(out.status.success(), "cc {name}.c:\n{}", String::from_utf8_lossy(&out.stderr));
    Some(program)
}

/// Runs it with the libraries of a folder. `timeout` ends a program that hangs, and the test fails.
fn execute(words: &[&str], program: &Path, libraries: &Path) -> Output {
    Command::new("timeout")
        .arg("300")
        .args(words)
        .arg(program)
        .env("LD_LIBRARY_PATH", libraries)
        .env("FERROCE_ADDR", "127.0.0.1")
        .output()
        .expect("timeout runs")
}

fn run(name: &str) {
    run_below(&[], name);
}

/// The same as an argument of another command.
fn run_below(words: &[&str], name: &str) {
    let Some(program) = compile(name) else { return };
    let out = execute(words, &program, &support::library_folder());
    assert!(out.status.success(), "{name}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
}

#[test]
fn wrong_calls_are_refused_with_the_number_of_the_manual() {
    run("refusals");
}

#[test]
fn connections_live_and_end() {
    run("life");
}

#[test]
fn a_peer_is_killed_at_each_step() {
    run("killed");
}

#[test]
fn nobody_answers() {
    run("nobody");
}

#[test]
fn names_of_infiniband_are_what_they_are_on_roce() {
    run("ib");
}

#[test]
fn addresses_leave_and_the_device_goes() {
    let Some(program) = compile("leaving") else { return };
    let out = execute(&[], &program, &support::library_folder());
    let said = String::from_utf8_lossy(&out.stderr);
    match out.status.code() {
        Some(77) => println!("SKIPPED: {}", said.trim()),
        _ => assert!(out.status.success(), "leaving: {}\n{said}", out.status),
    }
}

#[test]
fn threads_share_a_channel() {
    run("threads");
}

#[test]
fn a_child_has_a_device_of_its_own() {
    run("fork");
}

/// No read of freed memory, no leak.
#[test]
fn connections_live_and_end_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return println!("SKIPPED: valgrind is missing; it is in the package of that name");
    }
    run_below(
        &[
            "valgrind",
            "--error-exitcode=9",
            "--leak-check=full",
            "--errors-for-leak-kinds=definite",
            "--fair-sched=yes",
            concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/../ibverbs/tests/c/valgrind.supp"),
        ],
        "life",
    );
}

#[test]
fn sockets_over_connections() {
    run("rsockets");
}

/// The command that runs a program with an iWARP device.
const IWARP: [&str; 2] = ["env", "FERROCE_WIRE=iwarp"];

#[test]
fn an_iwarp_device_is_an_rnic() {
    run_below(&IWARP, "iwarp");
}

#[test]
fn sockets_threads_and_children_over_iwarp() {
    run_below(&IWARP, "rsockets");
    run_below(&IWARP, "threads");
    run_below(&IWARP, "fork");
}

#[test]
fn a_hostile_peer_of_a_socket_hurts_only_its_own_connection() {
    run("hostile");
}

/// With the libibverbs of the system our library finds no device, and returns an error.
#[test]
fn another_libibverbs_is_no_device() {
    let Some(program) = compile("foreign") else { return };
    let folder = support::library_folder().join("alone");
    std::fs::create_dir_all(&folder).expect("the folder for tests can be written");
    let link = folder.join("librdmacm.so.1");
    if let Err(error) = std::os::unix::fs::symlink(support::library(), &link) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{}: {error}", link.display());
    }
    let out = execute(&[], &program, &folder);
    assert!(out.status.success(), "{}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
}
