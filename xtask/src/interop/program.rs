//! Our own verifying program, built once for both ends: its source is the same, and so is the binary.

use std::path::{Path, PathBuf};

use super::Failure;
use super::packages::Sysroot;
use crate::process::Job;
use crate::step::Context;
use crate::tools::which;

/// Compiles interop/verify against the headers and libraries of the packages, so that it runs in the guest.
pub(crate) fn build(ctx: &Context, cache: &Path, sysroot: &Sysroot) -> Result<PathBuf, Failure> {
    if which("cc").is_none() {
        return Err(Failure::Skip("cc is missing (builds the verifying program): `apt-get install -y gcc`".into()));
    }
    let mut sources: Vec<PathBuf> = std::fs::read_dir(ctx.root.join("interop/verify"))?
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "c"))
        .collect();
    sources.sort();
    let program = cache.join("verify");
    let warnings = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"];
    let ran = Job::new("cc")
        .args(["-std=gnu17", "-O2"])
        .args(warnings)
        .arg(format!("--sysroot={}", sysroot.path.display()))
        .arg("-o")
        .args([&program])
        .args(sources)
        .arg("-libverbs")
        .limit_s(120)
        .run(ctx);
    match ran.failure() {
        None => Ok(program),
        Some(failure) => Err(Failure::Broken(format!("{failure}\n{}", ran.lines.join("\n")))),
    }
}
