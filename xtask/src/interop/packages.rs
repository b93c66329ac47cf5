//! The Debian packages of the guest.

use std::path::{Path, PathBuf};

use super::Failure;
use crate::debian;
use crate::process::Job;
use crate::step::Context;
use crate::tools::which;

/// Packages with the programs of the guest, and the headers for our own program. Their dependencies are added.
const WANTED: [&str; 9] = [
    "perftest",
    "ibverbs-utils",
    "rdmacm-utils",
    "ibverbs-providers",
    "iproute2",
    "busybox-static",
    "libibverbs-dev",
    "librdmacm-dev",
    "libc6-dev",
];
/// Depends on the newest kernel of the release.
const KERNEL: &str = "linux-image-amd64";

/// The unpacked packages.
pub(crate) struct Sysroot {
    pub(crate) path: PathBuf,
    /// Changes with every package version.
    pub(crate) fingerprint: String,
}

/// Fetches and unpacks the packages, unless they are unpacked already.
pub(crate) fn provide(ctx: &Context, cache: &Path) -> Result<Sysroot, Failure> {
    let apt_missing = ["apt-get", "apt-cache", "dpkg-deb"].into_iter().find(|tool| which(tool).is_none());
    let path = cache.join("sysroot");
    let stamp = cache.join("sysroot.packages");
    // A complete sysroot is used unchanged, even if the release has newer packages.
    if let Ok(fingerprint) = std::fs::read_to_string(&stamp)
        && path.is_dir()
    {
        return Ok(Sysroot { path, fingerprint });
    }
    if let Some(tool) = apt_missing {
        return Err(Failure::Skip(format!("{tool} is missing: the guest is made of Debian packages")));
    }
    let archives = cache.join("archives");
    let (packages, files) = debian::fetch(ctx, &archives, || closure(ctx)).map_err(Failure::Skip)?;
    debian::unpack(ctx, &files, &path).map_err(Failure::Broken)?;
    let fingerprint = packages.join("\n");
    std::fs::write(&stamp, &fingerprint)?;
    Ok(Sysroot { path, fingerprint })
}

/// [`WANTED`], the kernel and all their dependencies, as `name=version`.
fn closure(ctx: &Context) -> Result<Vec<String>, String> {
    let kernel = Job::new("apt-cache").args(["depends", "--important", KERNEL]).answer(ctx)?;
    let kernel = kernel
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .ok_or_else(|| format!("{KERNEL} names no kernel; is this Debian?"))?
        .to_owned();
    let only_depends = ["recommends", "suggests", "conflicts", "breaks", "replaces", "enhances"]
        .map(|kind| format!("--no-{kind}"));
    let listed =
        Job::new("apt-cache").args(["depends", "--recurse"]).args(only_depends).args(WANTED).answer(ctx)?;
    let mut names: Vec<&str> =
        listed.lines().filter(|line| !line.starts_with([' ', '<'])).map(str::trim).collect();
    names.push(&kernel);
    names.sort_unstable();
    names.dedup();
    debian::versions(ctx, &names)
}
