//! Our own verifying program. Both ends run the same binary.

use std::path::{Path, PathBuf};

use super::Failure;
use super::ends::Host;
use super::packages::Sysroot;
use crate::process::Job;
use crate::step::Context;
use crate::tools::which;

/// Compiles interop/verify against the headers and libraries of the packages, so that it runs in the guest.
pub(crate) fn build(ctx: &Context, cache: &Path, sysroot: &Sysroot) -> Result<PathBuf, Failure> {
    if which("cc").is_none() {
        return Err(Failure::Skip(
            "cc is missing (builds the verifying program): `apt-get install -y gcc`".into(),
        ));
    }
    let mut sources: Vec<PathBuf> = std::fs::read_dir(ctx.root.join("interop/verify"))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "c"))
        .collect();
    sources.sort();
    let program = cache.join("verify");
    let warnings = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"];
    let built = Job::new("cc")
        .args(["-std=gnu17", "-O2"])
        .args(warnings)
        .arg(format!("--sysroot={}", sysroot.path.display()))
        .arg("-o")
        .args([&program])
        .args(sources)
        .args(["-libverbs", "-lrdmacm"])
        .limit_s(120)
        .run(ctx);
    built.checked().map(|_| program).map_err(Failure::Broken)
}

/// Libraries that belong to the host's loader. Those of the packages must not be mixed with them.
const OF_THE_LOADER: [&str; 12] = [
    "ld-linux",
    "libc.",
    "libm.",
    "libmvec",
    "libdl.",
    "librt.",
    "libpthread",
    "libresolv",
    "libnss",
    "libutil",
    "libanl",
    "libthread_db",
];

/// Libraries of the packages that ferroce replaces.
const OURS: [&str; 2] = ["libibverbs.so", "librdmacm.so"];

/// Builds our libraries and creates two folders: one has our libraries under the names that programs load, the other has links to all
/// other libraries of perftest, for hosts where it is not installed.
pub(crate) fn provide_libraries(ctx: &Context, cache: &Path, sysroot: &Sysroot) -> Result<(), Failure> {
    // Naming the command as well gives dependencies the same features as in every other release build.
    let packages = ["-p", "ferroce-ibverbs", "-p", "ferroce-rdmacm", "-p", "ferroce-cli"];
    let built = Job::cargo(["build", "--release", "--lib"]).args(packages).run(ctx);
    built.checked().map_err(Failure::Broken)?;
    build_peer(ctx)?;
    let ours = cache.join("library");
    let others = cache.join("others");
    for folder in [&ours, &others] {
        let _ = std::fs::remove_dir_all(folder);
        std::fs::create_dir_all(folder)?;
    }
    for name in OURS {
        let library = ctx.root.join("target/release").join(name);
        std::os::unix::fs::symlink(library, ours.join(format!("{name}.1")))?;
    }
    for entry in std::fs::read_dir(sysroot.path.join("usr/lib/x86_64-linux-gnu"))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let of_the_loader = OF_THE_LOADER.iter().any(|prefix| name.starts_with(prefix));
        let is_ours = OURS.iter().any(|ours| name.starts_with(ours));
        if name.contains(".so.") && !of_the_loader && !is_ours {
            std::os::unix::fs::symlink(entry.path(), others.join(&name))?;
        }
    }
    Ok(())
}

/// Builds the peer for iWARP.
fn build_peer(ctx: &Context) -> Result<(), Failure> {
    let built = Job::cargo(["build", "--release", "-p", "ferroce", "--example", "iwarp_peer"]).run(ctx);
    built.checked().map(drop).map_err(Failure::Broken)
}

/// How programs run on ferroce.
pub(crate) fn host(ctx: &Context, cache: &Path) -> Host {
    Host {
        peer: ctx.root.join("target/release/examples/iwarp_peer"),
        library: cache.join("library"),
        others: cache.join("others"),
        programs: vec![cache.to_path_buf(), cache.join("sysroot/usr/bin")],
    }
}
