//! The steps that are one cargo command each.

use std::path::Path;

use crate::hugepages::HugePages;
use crate::libtest;
use crate::live;
use crate::process::Job;
use crate::source::files_below;
use crate::step::{Context, Report, Tier};

/// Tests that run programs of other tests once more, under valgrind and ThreadSanitizer: for the full tier.
const UNDER_DETECTORS: [&str; 2] = ["under_valgrind", "no_thread_meets_another_without_order"];
/// A test that waits a minute until a connection request times out. It runs in parallel with the other tests.
const WAITING: &str = "nobody_answers";
/// Tests that choose the links themselves.
const ON_EVERY_LINK: [&str; 2] = ["every_mistake_is_explained", "every_chapter_runs"];
/// Tests that the main command of the step `test` leaves out; all but the first run there with `--full`.
const APART: [&str; 3] = [WAITING, UNDER_DETECTORS[0], UNDER_DETECTORS[1]];
/// Long tests whose result does not depend on the link or the user.
const LONG: [&str; 5] = [APART[0], APART[1], APART[2], ON_EVERY_LINK[0], ON_EVERY_LINK[1]];

/// Time limit of a step that runs test programs. Alone, it also builds them: a quarter of an hour on two cores.
const TEST_LIMIT_S: u64 = 45 * 60;

/// A target without a standard library: code that builds for it cannot do I/O.
const BARE_TARGET: &str = "x86_64-unknown-none";

pub(crate) fn fmt(ctx: &Context) -> Report {
    let plain = ["--", "--color", "never"];
    let mut report = Report::of(Job::cargo(["fmt", "--all", "--check"]).args(plain).run(ctx));
    // A test includes the programs of docs/learn, which `cargo fmt` does not format either.
    let pages = files_below(&ctx.root.join("docs/learn"), &[]).unwrap_or_default();
    let programs = pages.iter().filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    let rustfmt = Job::new("rustfmt").args(["--check", "--color", "never", "--edition", "2024"]);
    let ran = rustfmt.args(programs).run(ctx);
    report.failures.extend(ran.failure());
    report.output.extend(ran.lines);
    // The fuzz targets are a separate workspace, which `--all` does not cover.
    let manifest = "fuzz/Cargo.toml";
    if ctx.root.join(manifest).exists() {
        let ran = Job::cargo(["fmt", "--manifest-path", manifest, "--check"]).args(plain).run(ctx);
        report.failures.extend(ran.failure());
        report.output.extend(ran.lines);
    }
    if !report.failures.is_empty() {
        report.passed = 0;
    }
    report
}

pub(crate) fn clippy(ctx: &Context) -> Report {
    let args = ["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"];
    Report::of(Job::cargo(args).run(ctx))
}

pub(crate) fn doc(ctx: &Context) -> Report {
    // Libraries only: the command and the library share the name `ferroce`, and their pages would share a folder.
    let args = ["doc", "--workspace", "--lib", "--no-deps", "--all-features"];
    Report::of(Job::cargo(args).env("RUSTDOCFLAGS", "-D warnings").run(ctx))
}

pub(crate) fn test(ctx: &Context) -> Report {
    let is_quick = ctx.tier == Tier::Quick;
    let args = ["test", "--workspace", "--all-features", "--no-fail-fast"];
    let mut job = Job::cargo(args).limit_s(TEST_LIMIT_S);
    if is_quick {
        job = job.args(["--lib", "--bins"]);
    }
    job = job.arg("--").args(for_test_programs(left_out(ctx.is_full())));
    if is_quick {
        job = job.env("PROPTEST_CASES", "32");
    }
    let tools = ctx.tools();
    job = tools.locate(job);
    let requires_tools =
        |job: Job| if tools.complete() { job.env("FERROCE_REQUIRE_TOOLS", "1") } else { job };
    let _pages = HugePages::borrow();
    if is_quick {
        return libtest::report(job.run(ctx));
    }
    let waiting = Job::cargo(args).args(["--test", "c_programs", "--", "--show-output", WAITING]);
    let (job, waiting) = (allow_skip_live(ctx, requires_tools(job)), requires_tools(waiting));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| libtest::report(waiting.limit_s(TEST_LIMIT_S).run(ctx)));
        let mut report = libtest::report(job.run(ctx));
        report.merge(waiting.join().unwrap_or_else(|_| Report::fail("a thread of the step panicked")));
        report
    })
}

fn allow_skip_live(ctx: &Context, job: Job) -> Job {
    live::allow_skip(ctx, job, || Job::new("unshare"))
}

/// Arguments of test programs in the steps that repeat the step `test` over another link or as another user.
pub(crate) fn for_repeated_tests() -> Vec<&'static str> {
    for_test_programs(&LONG)
}

/// What the main command of the step `test` leaves out.
fn left_out(is_full: bool) -> &'static [&'static str] {
    if is_full { &APART[..1] } else { &APART }
}

fn for_test_programs(skipped: &'static [&'static str]) -> Vec<&'static str> {
    ["--show-output"].into_iter().chain(skipped.iter().flat_map(|name| ["--skip", name])).collect()
}

/// The tests of all crates that open a NIC, over UDP between processes of one host. By default only those of the data path,
/// the links and the C library, which cover every kind of packet.
pub(crate) fn test_over_udp(ctx: &Context) -> Report {
    let packages = ["ferroce", "ferroce-nic", "ferroce-ibverbs", "ferroce-rdmacm", "ferroce-cli"];
    let usual =
        ["operations", "messages", "datagrams", "processes", "no_allocation", "link_processes", "c_programs"];
    // All members and features, as in the step `test`, so that cargo reuses its build.
    let job = Job::cargo(["test", "--all-features", "--no-fail-fast"]);
    let job = match ctx.is_full() {
        true => job.arg("--tests").args(packages.iter().flat_map(|name| ["-p", name])),
        false => job.arg("--workspace").args(usual.iter().flat_map(|name| ["--test", name])),
    };
    let _pages = HugePages::borrow();
    let job = ctx.tools().locate(job.arg("--").args(for_repeated_tests())).env("FERROCE_LINK", "udp");
    libtest::report(allow_skip_live(ctx, job).limit_s(TEST_LIMIT_S).run(ctx))
}

/// Kills processes at random moments under traffic, many times. The step `test` already kills a hundred.
pub(crate) fn kills(ctx: &Context) -> Report {
    let args =
        "test --workspace --all-features --test local --test messages --no-fail-fast -- killed --show-output";
    let job = Job::cargo(args.split(' ')).env("FERROCE_TEST_KILLS", "600");
    libtest::report(job.limit_s(20 * 60).run(ctx))
}

/// The unit tests of proto in Miri, which finds undefined behaviour. Tests with thousands of random packets would take an hour
/// there; they are marked.
pub(crate) fn miri(ctx: &Context) -> Report {
    let toolchains: [fn() -> Job; 2] =
        [|| Job::cargo(["miri"]), || Job::new("rustup").args(["run", "nightly", "cargo", "miri"])];
    let Some(job) = toolchains.iter().find(|job| job().arg("--version").answer(ctx).is_ok()) else {
        let install = "`rustup component add --toolchain nightly miri rust-src`";
        return Report::skip(format!("no toolchain has Miri; install it: {install}"));
    };
    // A separate target folder: the flags differ, and `cargo miri` would replace the other builds.
    let job = job().args(["test", "-p", "ferroce-proto", "--lib", "--target-dir", "target/miri"]);
    let job = job.env("PROPTEST_CASES", "2").env("MIRIFLAGS", "-Zmiri-disable-isolation");
    libtest::report(job.limit_s(10 * 60).run(ctx))
}

/// The tests in modules called `models`. Loom runs them in every interleaving of their threads, up to a number of preemptions.
pub(crate) fn models(ctx: &Context) -> Report {
    let packages = ["-p", "ferroce-os", "-p", "ferroce-shm", "-p", "ferroce-nic"];
    // A separate target folder: the flag applies to every crate, and cargo would replace the other builds.
    let job = Job::cargo(["test", "--lib", "--no-fail-fast", "--target-dir", "target/loom"]).args(packages);
    let job = job.args(["models::", "--", "--show-output"]).env("RUSTFLAGS", "--cfg loom");
    let ran = job.limit_s(15 * 60).run(ctx);
    if !ran.success() && ran.lines.iter().any(|line| line.contains("failed to download")) {
        return Report::skip("loom is not on this machine; download it once with a network: `cargo fetch`");
    }
    let mut report = libtest::report(ran);
    if report.passed == 0 && report.failures.is_empty() {
        report.failures.push("no test is in a module called `models`".to_owned());
    }
    report
}

pub(crate) fn no_std(ctx: &Context) -> Report {
    let build = ["build", "-p", "ferroce-proto", "--no-default-features"];
    let mut report = Report::of(Job::cargo(build).run(ctx));
    // On a hosted target, a dependency of a `no_std` crate may still use std. On this target std does not exist.
    if has_bare_target(ctx) {
        report.add(Job::cargo(build).args(["--target", BARE_TARGET]).run(ctx));
    } else {
        report.skips.push(format!("proto for {BARE_TARGET}: `rustup target add {BARE_TARGET}`"));
    }
    report
}

fn has_bare_target(ctx: &Context) -> bool {
    let installed = || -> bool {
        let sysroot = Job::new("rustc").args(["--print", "sysroot"]).answer(ctx).unwrap_or_default();
        Path::new(sysroot.trim()).join("lib/rustlib").join(BARE_TARGET).exists()
    };
    installed() || {
        // `installed` checks the outcome. Without rustup or a network this fails.
        let _ = Job::new("rustup").args(["target", "add", BARE_TARGET]).limit_s(120).run(ctx);
        installed()
    }
}

pub(crate) fn examples(ctx: &Context) -> Report {
    Report::of(Job::cargo(["build", "--workspace", "--examples", "--all-features"]).run(ctx))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_choose_their_links_run_once() {
        for name in ON_EVERY_LINK {
            assert!([false, true].into_iter().all(|is_full| !left_out(is_full).contains(&name)), "{name}");
            assert!(for_repeated_tests().contains(&name), "{name}");
        }
    }
}
