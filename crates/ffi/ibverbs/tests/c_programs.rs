//! Small C programs, compiled against the headers of rdma-core and run on our library. They test what no foreign program tests.

#[path = "support/fake_cuda.rs"]
mod fake_cuda;
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
    // Two tests may use the same program at the same time, so each compiles its own file. A thread has the name of its test.
    let thread = std::thread::current();
    let program = support::scratch().join(format!("{name}.{}", thread.name().unwrap_or("main")));
    let mut cc = Command::new("cc");
    cc.args([
        "-Wall",
        "-Wextra",
        "-Wno-missing-field-initializers",
        "-Werror",
        "-g",
        "-pthread",
        "-ldl",
        "-o",
    ]);
    cc.arg(&program).arg(&source);
    // This program loads the library at run time.
    if name != "loaded" {
        cc.arg("-libverbs");
    }
    let Ok(out) = cc.output() else {
        println!("SKIPPED: cc is missing; it is in the package gcc");
        return None;
    };
    assert!(out.status.success(), "cc {name}.c:\n{}", String::from_utf8_lossy(&out.stderr));
    Some(program)
}

/// Runs a command line on the library. `timeout` ends a program that hangs, and the test fails. A program that skips a part prints a line
/// that begins with `SKIPPED:`, which this test prints, too.
fn succeed(argv: &[&str]) {
    let out = Command::new("timeout")
        .arg("300")
        .args(argv)
        .env("LD_LIBRARY_PATH", support::library_folder())
        .env("FERROCE_ADDR", "127.0.0.1")
        .output()
        .expect("timeout runs");
    assert!(out.status.success(), "{argv:?}: {}\n{}", out.status, String::from_utf8_lossy(&out.stderr));
    for line in String::from_utf8_lossy(&out.stdout).lines().filter(|line| line.starts_with("SKIPPED:")) {
        println!("{line}");
    }
}

fn run(name: &str, arguments: &[&str]) {
    let Some(program) = compile(name) else { return };
    let mut argv = vec![program.to_str().expect("a path of ours")];
    argv.extend(arguments);
    succeed(&argv);
}

#[test]
fn wrong_calls_are_refused_with_the_number_of_the_manual() {
    run("refusals", &[]);
}

#[test]
fn events_come_through_real_descriptors_to_their_owner() {
    run("events", &[]);
}

#[test]
fn limits_states_and_wrong_keys() {
    run("limits", &[]);
}

#[test]
fn threads_forks_and_a_second_context() {
    run("lifecycle", &[]);
}

#[test]
fn signals_that_the_program_reads_from_a_descriptor() {
    run("signals", &[]);
}

#[test]
fn verbs_in_a_handler_at_exit() {
    run("at_exit", &[]);
}

#[test]
fn calls_of_libc_that_the_program_took_over() {
    run("intercepted", &[]);
}

#[test]
fn the_largest_messages() {
    run("largest", &[]);
}

#[test]
fn loaded_and_let_go_at_run_time() {
    run("loaded", &[]);
}

#[test]
fn verbs_that_no_foreign_program_calls() {
    run("untouched", &[]);
}

#[test]
fn domains_imports_clocks_and_raw_packets() {
    run("extended", &[]);
}

#[test]
fn a_batch_is_posted_completely_or_not_at_all() {
    run("batch", &[]);
}

#[test]
fn verbs_that_are_newer_than_the_headers() {
    run("recent", &[]);
}

#[test]
fn extended_reliable_connections() {
    run("xrc", &[]);
}

#[test]
fn windows_device_memory_and_memory_on_demand() {
    run("memory", &[]);
}

/// Device memory of the fake driver faults on plain access, and every copy goes through the driver.
#[test]
fn memory_of_a_gpu() {
    let Some(program) = compile("gpu") else { return };
    let driver = support::scratch().join(format!("libcuda.so.1.{}", std::process::id()));
    assert!(fake_cuda::build(&driver), "cc ran for the program");
    for link in ["auto", "udp"] {
        let link = format!("FERROCE_LINK={link}");
        let [program, driver] = [&program, &driver].map(|path| path.to_str().expect("a path of ours"));
        succeed(&["env", &link, program, driver]);
    }
}

#[test]
fn answers_equal_those_of_the_real_library() {
    let places = ["/usr/lib/x86_64-linux-gnu/libibverbs.so.1", "/usr/lib/aarch64-linux-gnu/libibverbs.so.1"];
    match places.iter().find(|place| Path::new(place).exists()) {
        Some(real) => run("same_as_real", &[real]),
        None => println!("SKIPPED: the real libibverbs.so.1 is missing; it is in the package libibverbs1"),
    }
}

/// No sequence crashes, hangs, panics inside or leaves a descriptor. `FERROCE_CALL_SEEDS=17..18` replays seed 17.
#[test]
fn random_sequences_of_calls() {
    let Some(program) = compile("sequences") else { return };
    let range = std::env::var("FERROCE_CALL_SEEDS").unwrap_or("1..21".into());
    let (first, last) = range.split_once("..").expect("FERROCE_CALL_SEEDS is FIRST..LAST");
    let [first, last] = [first, last].map(|text| text.parse::<u64>().expect("a number"));
    for seed in first..last {
        succeed(&[program.to_str().expect("a path of ours"), &seed.to_string(), "3000"]);
    }
}

/// The same under valgrind: no read of freed memory, no leak.
#[test]
fn random_sequences_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return println!("SKIPPED: valgrind is missing; it is in the package of that name");
    }
    let Some(program) = compile("sequences") else { return };
    let program = program.to_str().expect("a path of ours");
    let valgrind = [
        "valgrind",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
        "--track-origins=yes",
        "--fair-sched=yes",
        concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/c/valgrind.supp"),
    ];
    for seed in ["101", "102"] {
        let argv: Vec<&str> = valgrind.into_iter().chain([program, seed, "600"]).collect();
        succeed(&argv);
    }
}

/// After a panic inside the library, the program receives EIO and a fatal event, and continues.
#[test]
fn a_panic_inside_is_a_number_and_a_fatal_event() {
    let Some(program) = compile("panic") else { return };
    let program = program.to_str().expect("a path of ours");
    for place in
        ["ibv_reg_mr", "ibv_poll_cq", "ibv_post_send", "ibv_post_send, locked", "ibv_wr_complete, locked"]
    {
        succeed(&["env", &format!("FERROCE_TEST_PANIC={place}"), program, place]);
    }
}

#[test]
fn threads_with_contexts_of_their_own_do_not_meet() {
    run("threads", &[]);
}

#[test]
fn threads_that_share_everything_do_not_mind() {
    run("crowd", &[]);
}
