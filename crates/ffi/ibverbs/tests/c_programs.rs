//! Small C programs, compiled against the real headers and run on our library: what no foreign program shows.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles a program of `tests/c`; `None`, with the reason printed, if this machine cannot.
fn compile(name: &str) -> Option<PathBuf> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("SKIPPED: <infiniband/verbs.h> is missing; it is in the package libibverbs-dev");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror", "-g", "-o"]);
    let Ok(out) = cc.arg(&program).arg(&source).args(["-libverbs", "-ldl", "-lpthread"]).output() else {
        println!("SKIPPED: cc is missing; it is in the package gcc");
        return None;
    };
    assert!(out.status.success(), "cc {name}.c:\n{}", String::from_utf8_lossy(&out.stderr));
    Some(program)
}

fn run(name: &str) {
    let Some(program) = compile(name) else { return };
    let out = Command::new("timeout")
        .arg("60")
        .arg(program)
        .env("LD_LIBRARY_PATH", support::library_folder())
        .env("FERROCE_ADDR", "127.0.0.1")
        .output()
        .expect("timeout runs");
    assert!(out.status.success(), "{name}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
}

#[test]
fn wrong_calls_are_refused_with_the_number_of_the_manual() {
    run("refusals");
}

#[test]
fn events_come_through_real_descriptors_to_their_owner() {
    run("events");
}

#[test]
fn the_library_can_be_loaded_and_let_go() {
    run("loading");
}

#[test]
fn threads_with_contexts_of_their_own_do_not_meet() {
    run("threads");
}
