//! The perf run and the integration tests as a user without rights.
//!
//! ferroce must work without root, but CI runs as root, where a missing right does not show. So tests that open a NIC run once more
//! as the user nobody, with its own home folder: one per kind of right that could be missing, or all with `--full`.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::cargo::for_repeated_tests;
use crate::hugepages::HugePages;
use crate::libtest;
use crate::live;
use crate::process::Job;
use crate::step::{Context, Report, is_root};

/// `nobody` on every distribution; it owns no file and is in no group.
const NOBODY: u32 = 65534;
/// Crates that open no NIC. Their tests do not depend on the user.
const PURE: [&str; 3] = ["ferroce-proto", "ferroce-sim", "xtask"];

/// Tests that are repeated by default: access to memory of peers, sockets and the registry, connections, kinds of memory.
const USUAL: [&str; 4] = ["local", "link_processes", "cm_local", "regions"];

/// An integration test, and the folder in which cargo runs it.
struct TestBinary {
    name: String,
    executable: PathBuf,
    package_dir: PathBuf,
}

/// The step. As an ordinary user it only adds the perf run, because the step `test` was unprivileged already.
pub(crate) fn check(ctx: &Context) -> Report {
    let _pages = HugePages::borrow();
    // Built like in the first command of the README, to check that command as well.
    let built = Job::cargo(["build", "--release", "--bin", "ferroce"]).run(ctx);
    if !built.success() {
        return Report::of(built);
    }
    let ferroce = target_dir(ctx).join("release/ferroce");
    let home = match Home::make(ctx) {
        Ok(home) => home,
        Err(error) => return Report::fail(format!("no home for the user without rights: {error}")),
    };
    if !is_root() {
        return Report::of(perf(ctx, Job::new(&ferroce), &home));
    }
    if ctx.tools().setpriv.is_none() {
        return Report::skip("setpriv is missing; install it: `apt-get install -y util-linux`");
    }
    if let Err(reason) = reachable(ctx, &home, &ferroce) {
        return Report::skip(reason);
    }
    // The tests of the C libraries build them by cargo, which only the user of xtask can run.
    if ctx.is_full() {
        let libraries = Job::cargo(["build", "--workspace", "--all-features", "--lib"]).run(ctx);
        if !libraries.success() {
            return Report::of(libraries);
        }
    }
    let mut report = Report::of(perf(ctx, home.job(&ferroce), &home));
    match test_binaries(ctx) {
        Err(reason) => report.failures.push(reason),
        Ok(binaries) => {
            let wanted = |binary: &&TestBinary| ctx.is_full() || USUAL.contains(&binary.name.as_str());
            binaries.iter().filter(wanted).for_each(|binary| report.merge(repeat(ctx, &home, binary)));
        }
    }
    report
}

fn perf(ctx: &Context, job: Job, home: &Home) -> crate::process::Ran {
    job.args(["perf", "--quick"]).dir(&home.path).limit_s(300).run(ctx)
}

fn repeat(ctx: &Context, home: &Home, binary: &TestBinary) -> Report {
    let job = home
        .job(&binary.executable)
        .args(for_repeated_tests())
        .env("CARGO_MANIFEST_DIR", &binary.package_dir)
        .env("FERROCE_TEST_LIBRARY", target_dir(ctx).join("debug/libibverbs.so"))
        .dir(&binary.package_dir)
        .limit_s(15 * 60);
    let mut job = live::allow_skip(ctx, job, || home.job(Path::new("unshare")));
    let tools = ctx.tools();
    let can_run = |program: &Path, arguments: &[&str]| home.job(program).args(arguments).answer(ctx).is_ok();
    job = tools.locate_if(job, can_run);
    if tools.complete() && tools.python.as_ref().is_some_and(|python| can_run(python, &["-c", ""])) {
        job = job.env("FERROCE_REQUIRE_TOOLS", "1");
    }
    // Cargo prints this heading, from which the report takes the name of the suite.
    let mut ran = job.run(ctx);
    ran.lines.insert(0, format!("Running ({})", binary.executable.display()));
    libtest::report(ran)
}

/// Checks that the user can execute the command. A clone below /root is not accessible to other users, which is no fault of ferroce.
fn reachable(ctx: &Context, home: &Home, ferroce: &Path) -> Result<(), String> {
    let test = |file: &Path| home.job(Path::new("test")).args(["-x"]).args([file]).answer(ctx);
    home.job(Path::new("true"))
        .answer(ctx)
        .map_err(|error| format!("setpriv cannot become user {NOBODY} here: {}", error.trim()))?;
    test(ferroce).map(drop).map_err(|_| {
        format!("user {NOBODY} cannot reach {}; clone into a folder that others may enter", ferroce.display())
    })
}

/// A folder that belongs to the user without rights. Dropping it removes the folder.
struct Home {
    path: PathBuf,
}

impl Home {
    fn make(ctx: &Context) -> std::io::Result<Self> {
        let path = if is_root() {
            std::env::temp_dir().join(format!("ferroce-nobody-{}", std::process::id()))
        } else {
            ctx.scratch().join("home")
        };
        std::fs::create_dir_all(&path)?;
        if is_root() {
            std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(Self { path })
    }

    /// Runs `program` as the user without rights. Of root's environment it gets only `PATH`.
    fn job(&self, program: &Path) -> Job {
        let id = NOBODY.to_string();
        Job::new("setpriv")
            .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--no-new-privs", "--"])
            .args([program])
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.path)
            .env("TMPDIR", &self.path)
            .env("RUST_BACKTRACE", "1")
            .dir(&self.path)
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        // The folder is in the temporary folder, which the system cleans up if this fails.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The target folder of cargo, which `CARGO_TARGET_DIR` and the user's configuration may change.
pub(crate) fn target_dir(ctx: &Context) -> PathBuf {
    let metadata = Job::cargo(["metadata", "--no-deps", "--format-version", "1"]).answer(ctx);
    let metadata: Value = metadata.ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    metadata["target_directory"].as_str().map_or_else(|| ctx.root.join("target"), PathBuf::from)
}

/// The integration tests of the crates that open a NIC, as `cargo test` built them.
fn test_binaries(ctx: &Context) -> Result<Vec<TestBinary>, String> {
    let args = ["test", "--workspace", "--all-features", "--no-run", "--message-format", "json"];
    let messages = Job::cargo(args).answer(ctx)?;
    Ok(messages.lines().filter_map(|line| test_binary(&serde_json::from_str(line).ok()?)).collect())
}

fn test_binary(message: &Value) -> Option<TestBinary> {
    let kinds = message["target"]["kind"].as_array()?;
    let executable = PathBuf::from(message["executable"].as_str()?);
    let package_dir = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = message["package_id"].as_str()?;
    // This test builds the examples by cargo, which only the user of xtask can run.
    let name = message["target"]["name"].as_str()?.to_owned();
    if name == "examples" {
        return None;
    }
    let pure = PURE.iter().any(|name| names_package(package, &package_dir, name));
    (kinds.iter().any(|kind| kind == "test") && !pure).then_some(TestBinary { name, executable, package_dir })
}

/// A package id is `path+file:///…/crates/nic#ferroce-nic@0.1.0`, or `…/crates/ferroce#0.1.0` where folder and name agree.
fn names_package(id: &str, dir: &Path, name: &str) -> bool {
    let fragment = id.rsplit_once('#').map_or("", |(_, fragment)| fragment);
    match fragment.split_once('@') {
        Some((package, _version)) => package == name,
        None => dir.file_name().is_some_and(|folder| folder == name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_integration_tests_of_crates_with_a_nic_are_repeated() {
        let message = |kind: &str, dir: &str, id: &str| {
            let manifest = format!("/repo/{dir}/Cargo.toml");
            let id = format!("path+file:///repo/{dir}#{id}");
            serde_json::json!({"target": {"kind": [kind], "name": "x"}, "executable": "/repo/target/x-1",
                "manifest_path": manifest, "package_id": id})
        };
        assert!(test_binary(&message("test", "crates/nic", "ferroce-nic@0.1.0")).is_some());
        assert!(test_binary(&message("test", "crates/ferroce", "0.1.0")).is_some());
        assert!(test_binary(&message("lib", "crates/nic", "ferroce-nic@0.1.0")).is_none());
        assert!(test_binary(&message("test", "crates/proto", "ferroce-proto@0.1.0")).is_none());
        assert!(test_binary(&message("test", "xtask", "0.1.0")).is_none());
    }
}
