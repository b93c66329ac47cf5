//! The C programs with threads, and random sequences of calls, under ThreadSanitizer: there are no data races.
//!
//! valgrind's detectors do not support atomic instructions, which implement every lock here. So this test builds the library
//! with the sanitizer. That needs an unstable compiler switch, hence RUSTC_BOOTSTRAP. The standard library is built without the
//! sanitizer, hence `tests/c/tsan.supp`.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The exit status of a program with a reported race.
const RACE: i32 = 66;
const TARGET: &str = "x86_64-unknown-linux-gnu";

/// The library and the runtime of programs, both with the sanitizer.
struct Detector {
    folder: PathBuf,
    runtime: PathBuf,
}

impl Detector {
    /// Builds both, or uses those that an earlier run with more rights built. Prints the reason and returns `None` if that is not possible.
    fn prepare() -> Option<Detector> {
        let target = support::target_folder().join("tsan");
        let library = target.join(TARGET).join("debug/libibverbs.so");
        if support::may_build() {
            build(&target);
        } else if !library.exists() {
            println!(
                "SKIPPED: {} is missing; run the tests of this crate as the owner first",
                library.display()
            );
            return None;
        }
        let runtime = target.join("libtsan.a");
        if support::may_build() {
            let Some(of_compiler) = runtime_of_compiler() else {
                println!("SKIPPED: the Rust toolchain comes without ThreadSanitizer's runtime");
                return None;
            };
            std::fs::copy(of_compiler, &runtime).expect("the target folder can be written");
        }
        Some(Detector { folder: support::folder_of(&library, "tsan"), runtime })
    }

    /// Compiles a program of `tests/c`.
    fn compile(&self, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c").join(name).with_extension("c");
        let (object, program) = (
            support::scratch().join(format!("{name}.tsan.o")),
            support::scratch().join(format!("{name}.tsan")),
        );
        // Linked by hand: gcc's own runtime has another version than the one of the Rust compiler.
        let mut compile = Command::new("cc");
        compile.args(["-Wall", "-Werror", "-g", "-O1", "-pthread", "-fsanitize=thread", "-c", "-o"]);
        finish(compile.arg(&object).arg(&source));
        let mut link = Command::new("cc");
        link.args(["-pthread", "-o"]).arg(&program).arg(&object);
        link.arg("-Wl,--whole-archive")
            .arg(&self.runtime)
            .args(["-Wl,--no-whole-archive", "-Wl,--export-dynamic"]);
        finish(link.args(["-libverbs", "-ldl", "-lm", "-lrt"]));
        program
    }

    fn run(&self, program: &Path, arguments: &[&str]) -> Output {
        let suppressions = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/tsan.supp");
        let options = format!(
            "suppressions={suppressions} exitcode={RACE} history_size=7 die_after_fork=0 halt_on_error=0"
        );
        Command::new("timeout")
            .arg("60")
            .arg(program)
            .args(arguments)
            .env("LD_LIBRARY_PATH", &self.folder)
            .env("FERROCE_ADDR", "127.0.0.1")
            .env("TSAN_OPTIONS", options)
            .output()
            .expect("timeout runs")
    }
}

fn build(target: &Path) {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--package", "ferroce-ibverbs", "--target", TARGET, "--target-dir"]);
    cargo.arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
    cargo.env("RUSTC_BOOTSTRAP", "1").env_remove("CARGO_ENCODED_RUSTFLAGS");
    finish(cargo.env("RUSTFLAGS", "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer"));
}

fn runtime_of_compiler() -> Option<PathBuf> {
    let asked = Command::new("rustc").args(["--print", "target-libdir", "--target", TARGET]).output().ok()?;
    let folder = String::from_utf8(asked.stdout).ok()?;
    let entries = std::fs::read_dir(folder.trim()).ok()?.flatten();
    entries.map(|entry| entry.path()).find(|path| path.to_string_lossy().ends_with("_rt.tsan.a"))
}

fn finish(command: &mut Command) {
    let out = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(out.status.success(), "{command:?}:\n{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn no_thread_meets_another_without_order() {
    if !cfg!(all(target_arch = "x86_64", target_env = "gnu")) {
        return println!("SKIPPED: ThreadSanitizer is only tried on x86-64 with glibc");
    }
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        return println!("SKIPPED: <infiniband/verbs.h> is missing; it is in the package libibverbs-dev");
    }
    let Some(detector) = Detector::prepare() else { return };
    let known = detector.run(&detector.compile("race"), &[]);
    assert_eq!(known.status.code(), Some(RACE), "the detector misses a race that is there");
    let library = std::fs::read(detector.folder.join("libibverbs.so.1")).expect("it was built");
    assert!(library.windows(12).any(|bytes| bytes == b"__tsan_read8"), "the library is built without it");
    let sequences = [["201", "2000"], ["202", "2000"], ["203", "2000"]];
    let others = ["crowd", "threads", "lifecycle", "events"].map(|name| (name, &[][..]));
    for (name, arguments) in sequences.iter().map(|pair| ("sequences", &pair[..])).chain(others) {
        let out = detector.run(&detector.compile(name), arguments);
        assert!(
            out.status.success(),
            "{name} {arguments:?}: {}\n{}",
            out.status,
            String::from_utf8_lossy(&out.stderr)
        );
    }
}
