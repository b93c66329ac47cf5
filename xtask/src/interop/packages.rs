//! Debian packages for the guest: fetched once, unpacked into a folder of our own, never installed.

use std::path::{Path, PathBuf};

use super::Failure;
use crate::process::Job;
use crate::step::{Context, is_root};
use crate::tools::which;

/// What the guest runs, and the headers for our own program; dependencies come with them.
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
    /// Changes whenever another package version is inside.
    pub(crate) fingerprint: String,
}

/// Fetches and unpacks; what is there already stays.
pub(crate) fn provide(ctx: &Context, cache: &Path) -> Result<Sysroot, Failure> {
    let apt_missing = ["apt-get", "apt-cache", "dpkg-deb"].into_iter().find(|tool| which(tool).is_none());
    let path = cache.join("sysroot");
    let stamp = cache.join("sysroot.packages");
    // A whole sysroot is used as it is: package lists age, and a release that moved on is no reason to fetch again.
    if let Ok(fingerprint) = std::fs::read_to_string(&stamp)
        && path.is_dir()
    {
        return Ok(Sysroot { path, fingerprint });
    }
    if let Some(tool) = apt_missing {
        return Err(Failure::Skip(format!("{tool} is missing: the guest is made of Debian packages")));
    }
    let packages = match closure(ctx) {
        Ok(packages) => packages,
        Err(_) => {
            refresh(ctx);
            closure(ctx).map_err(Failure::Skip)?
        }
    };
    let files = fetch(ctx, &cache.join("archives"), &packages).map_err(Failure::Skip)?;
    unpack(ctx, &files, &path)?;
    let fingerprint = packages.join("\n");
    std::fs::write(&stamp, &fingerprint)?;
    Ok(Sysroot { path, fingerprint })
}

/// Everything that [`WANTED`] and the kernel need, as `name=version`.
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
    let policy = Job::new("apt-cache").arg("policy").args(&names).answer(ctx)?;
    Ok(candidates(&policy))
}

/// `apt-cache policy` into `name=version`; a package without a candidate cannot be fetched and is left out.
fn candidates(policy: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut name = "";
    for line in policy.lines() {
        if let Some(heading) = line.strip_suffix(':')
            && !line.starts_with(' ')
        {
            name = heading;
        } else if let Some(version) = line.trim().strip_prefix("Candidate: ")
            && version != "(none)"
        {
            found.push(format!("{name}={version}"));
        }
    }
    found
}

/// Downloads packages, `name=version` each, unless they are there. Returns their files.
pub(crate) fn fetch(ctx: &Context, archives: &Path, packages: &[String]) -> Result<Vec<PathBuf>, String> {
    std::fs::create_dir_all(archives).map_err(|error| error.to_string())?;
    if !download(ctx, archives, packages) {
        refresh(ctx);
        if !download(ctx, archives, packages) {
            return Err(format!("these Debian packages cannot be fetched: {}", packages.join(" ")));
        }
    }
    let files: Option<Vec<PathBuf>> = packages.iter().map(|package| archive(archives, package)).collect();
    files.ok_or_else(|| "a package was fetched but is not there".to_owned())
}

/// Images ship without package lists; only root may fetch them.
fn refresh(ctx: &Context) {
    if is_root() {
        let _ = Job::new("apt-get").args(["update", "-o", "Acquire::http::Timeout=20"]).limit_s(180).run(ctx);
    }
}

fn download(ctx: &Context, archives: &Path, packages: &[String]) -> bool {
    let missing: Vec<&String> =
        packages.iter().filter(|package| archive(archives, package).is_none()).collect();
    missing.is_empty()
        || Job::new("apt-get")
            .args(["download", "-o", "Acquire::Retries=2", "-o", "APT::Sandbox::User=root"])
            .args(missing)
            .dir(archives)
            .limit_s(600)
            .run(ctx)
            .success()
}

/// The file that `apt-get download` made for `name=version`; it writes a colon as `%3a`.
fn archive(archives: &Path, package: &str) -> Option<PathBuf> {
    let (name, version) = package.split_once('=')?;
    let stem = format!("{}_{}_", name.split(':').next()?, version.replace(':', "%3a"));
    let entries = std::fs::read_dir(archives).ok()?;
    entries.flatten().map(|entry| entry.path()).find(|path| {
        path.extension().is_some_and(|ext| ext == "deb")
            && path.file_name().is_some_and(|file| file.to_string_lossy().starts_with(&stem))
    })
}

fn unpack(ctx: &Context, files: &[PathBuf], into: &Path) -> Result<(), Failure> {
    // An unpacking that was cut short must not pass for a whole one.
    let _ = std::fs::remove_dir_all(into);
    std::fs::create_dir_all(into.join("usr"))?;
    // Packages of older releases still ship /lib and /bin; with these links both spellings are one place.
    for name in ["bin", "sbin", "lib", "lib64"] {
        std::fs::create_dir_all(into.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), into.join(name))?;
    }
    // Through tar with --keep-directory-symlink: `dpkg-deb -x` would replace the links by folders.
    let script = "into=$1; shift; for file; do dpkg-deb --fsys-tarfile \"$file\" | tar -x -C \"$into\" \
                  --keep-directory-symlink --no-same-owner --exclude=./usr/share --exclude=./dev || exit 1; done";
    let unpacking = Job::new("sh").args(["-c", script, "unpack"]).args([into]).args(files).limit_s(300);
    unpacking.answer(ctx).map(drop).map_err(Failure::Broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_names_what_can_be_fetched() {
        let policy = "perftest:\n  Installed: (none)\n  Candidate: 4.5-1\n  Version table:\n     4.5-1 500\n\
                      ghost:\n  Installed: (none)\n  Candidate: (none)\n";
        assert_eq!(candidates(policy), ["perftest=4.5-1"]);
    }
}
