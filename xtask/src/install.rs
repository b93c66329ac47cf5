//! `cargo xtask install`: the command and its libraries into a prefix.
//!
//! The layout is that of `ferroce run`: `bin/ferroce`, and in `lib/ferroce` the libraries under the names that programs load. The
//! system's loader does not search that folder, so only `ferroce run` uses them. `ferroce dsm cc` compiles C programs over
//! shared memory with the headers in `include/ferroce`.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::process::Job;
use crate::step::{Context, Report, fail};
use crate::unprivileged::target_dir;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Where to install to; ~/.local if not given.
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,
}

/// Files that cargo builds, and their paths below the prefix.
const FILES: [(&str, &str); 6] = [
    ("ferroce", "bin/ferroce"),
    ("libibverbs.so", "lib/ferroce/libibverbs.so.1"),
    ("librdmacm.so", "lib/ferroce/librdmacm.so.1"),
    ("libferroce_shim.so", "lib/ferroce/libferroce_shim.so"),
    ("libjia.so", "lib/ferroce/libjia.so"),
    ("libjia.a", "lib/ferroce/libjia.a"),
];
/// The second name of a library, for programs that open it without a version, and the file that it links to.
const LINKS: [(&str, &str); 2] =
    [("lib/ferroce/libibverbs.so", "libibverbs.so.1"), ("lib/ferroce/librdmacm.so", "librdmacm.so.1")];
/// Headers that C programs include.
const HEADERS: [&str; 3] = ["jia.h", "setting.h", "tools.h"];

/// The command.
pub(crate) fn run(ctx: &Context, args: &Args) -> ExitCode {
    let home = || std::env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let Some(prefix) = args.prefix.clone().or_else(home) else {
        eprintln!("HOME is not set; name a folder: cargo xtask install --prefix DIR");
        return ExitCode::from(2);
    };
    match build_visibly(ctx).and_then(|built| install(&built, &headers(ctx), &prefix)) {
        Ok(installed) => {
            installed.iter().for_each(|file| println!("{}", file.display()));
            let bin = prefix.join("bin");
            let path = std::env::var_os("PATH").unwrap_or_default();
            if !std::env::split_paths(&path).any(|folder| folder == bin) {
                println!(
                    "{} is not in your PATH; add it, or call {}",
                    bin.display(),
                    bin.join("ferroce").display()
                );
            }
            println!("Try it: ferroce doctor; ferroce run -- ibv_devinfo");
            ExitCode::SUCCESS
        }
        Err(reason) => fail(&reason),
    }
}

/// Builds with the progress of cargo on the terminal and without a time limit.
fn build_visibly(ctx: &Context) -> Result<PathBuf, String> {
    eprintln!("Building ferroce, optimised: some minutes the first time.");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo).args(["build", "--release"]).current_dir(&ctx.root).status();
    match status {
        Ok(status) if status.success() => Ok(target_dir(ctx).join("release")),
        Ok(status) => Err(format!("cargo build --release: {status}")),
        Err(error) => Err(format!("cargo build --release: {error}")),
    }
}

fn build(ctx: &Context) -> Result<PathBuf, String> {
    Job::cargo(["build", "--release"]).run(ctx).checked()?;
    Ok(target_dir(ctx).join("release"))
}

fn headers(ctx: &Context) -> PathBuf {
    ctx.root.join("crates/ffi/jia/include")
}

/// Copies the built files. A file in use is replaced by a new one, so that running programs keep the old one.
fn install(built: &Path, headers: &Path, prefix: &Path) -> Result<Vec<PathBuf>, String> {
    let mut installed = Vec::new();
    let files = FILES.map(|(name, place)| (built.join(name), prefix.join(place)));
    let headers = HEADERS.map(|name| (headers.join(name), prefix.join("include/ferroce").join(name)));
    for (from, to) in files.into_iter().chain(headers) {
        let fresh = to.with_extension("new");
        let copied = std::fs::create_dir_all(to.parent().unwrap_or(prefix))
            .and_then(|()| std::fs::copy(&from, &fresh))
            .and_then(|_| std::fs::rename(&fresh, &to));
        copied.map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))?;
        installed.push(to);
    }
    for (name, target) in LINKS.map(|(name, target)| (prefix.join(name), target)) {
        // From an earlier installation.
        let _ = std::fs::remove_file(&name);
        std::os::unix::fs::symlink(target, &name).map_err(|error| format!("{}: {error}", name.display()))?;
        installed.push(name);
    }
    Ok(installed)
}

/// The step: an installed tree works from any folder and without the source tree.
pub(crate) fn check(ctx: &Context) -> Report {
    let prefix = ctx.scratch().join("prefix");
    let _ = std::fs::remove_dir_all(&prefix);
    if let Err(reason) = build(ctx).and_then(|built| install(&built, &headers(ctx), &prefix)) {
        return Report::fail(reason);
    }
    // The move shows that no file contains the prefix.
    let moved = ctx.scratch().join("prefix moved");
    let _ = std::fs::remove_dir_all(&moved);
    if let Err(error) = std::fs::rename(&prefix, &moved) {
        return Report::fail(format!("{}: {error}", prefix.display()));
    }
    // A shell reads the library path, so the test needs no RDMA program. The folder of `ferroce run` precedes those that cargo has added.
    let script = "readlink -f \"${LD_LIBRARY_PATH%%:*}/libibverbs.so.1\" && cat /sys/class/infiniband/ferroce0/node_type";
    let ran =
        Job::new(moved.join("bin/ferroce")).args(["run", "--", "sh", "-c", script]).limit_s(60).run(ctx);
    let wanted = moved.join("lib/ferroce/libibverbs.so.1").display().to_string();
    let right =
        ran.lines.first().is_some_and(|line| *line == wanted) && ran.lines.iter().any(|line| line == "1: CA");
    let mut report = Report::of(ran);
    if !right && report.failures.is_empty() {
        report.passed = 0;
        report.failures.push(format!("the installed command does not use {wanted}"));
    }
    report.merge(check_shared_memory(ctx, &moved.join("bin/ferroce")));
    let _ = std::fs::remove_dir_all(&moved);
    report
}

/// A C program, compiled and run with what was installed.
fn check_shared_memory(ctx: &Context, ferroce: &Path) -> Report {
    let (source, program) =
        (ctx.root.join("programs/jia/pi.c"), ctx.scratch().join("pi of the installation"));
    let compiled = Job::new(ferroce).args(["dsm", "cc", "-D_GNU_SOURCE", "-o"]).arg(&program).arg(source);
    let mut report = Report::of(compiled.limit_s(60).run(ctx));
    if report.failures.is_empty() {
        let ran = Job::new(ferroce).args(["dsm", "run", "-n", "2"]).arg(&program).limit_s(60).run(ctx);
        report.add(ran);
    }
    let _ = std::fs::remove_file(program);
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_programs_ask_for() {
        let folder = std::env::temp_dir().join(format!("ferroce-install-{}", std::process::id()));
        let (built, prefix) = (folder.join("built"), folder.join("prefix"));
        std::fs::create_dir_all(&built).expect("a folder");
        for name in FILES.map(|(name, _)| name).into_iter().chain(HEADERS) {
            std::fs::write(built.join(name), name).expect("a file");
        }
        for _again in 0..2 {
            let installed = install(&built, &built, &prefix).expect("a writable folder");
            assert_eq!(installed.len(), FILES.len() + HEADERS.len() + LINKS.len());
        }
        for (name, built) in [
            ("libibverbs.so.1", "libibverbs.so"),
            ("libibverbs.so", "libibverbs.so"),
            ("librdmacm.so.1", "librdmacm.so"),
            ("librdmacm.so", "librdmacm.so"),
        ] {
            let path = prefix.join("lib/ferroce").join(name);
            assert_eq!(std::fs::read_to_string(path).expect("a file"), built, "{name}");
        }
        std::fs::remove_file(built.join("libibverbs.so")).expect("our own file");
        assert!(install(&built, &built, &prefix).is_err_and(|reason| reason.contains("libibverbs.so")));
        std::fs::remove_dir_all(folder).expect("our own folder");
    }
}
