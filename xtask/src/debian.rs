//! Debian packages that are fetched and unpacked into a private folder, and never installed.

use std::path::{Path, PathBuf};

use crate::process::Job;
use crate::step::Context;
use crate::tools::{apt_update, which};

/// Fetches packages and unpacks them into `cache/sysroot`, unless it holds exactly these. Returns that folder, and the packages as
/// `name=version`.
pub fn unpacked(ctx: &Context, cache: &Path, names: &[String]) -> Result<(PathBuf, Vec<String>), String> {
    if let Some(tool) = ["apt-get", "apt-cache", "dpkg-deb"].into_iter().find(|tool| which(tool).is_none()) {
        return Err(format!("{tool} is missing: {} come as Debian packages", names.join(" ")));
    }
    let (path, stamp) = (cache.join("sysroot"), cache.join("sysroot.packages"));
    let unpacked = if path.is_dir() { std::fs::read_to_string(&stamp).ok() } else { None };
    let wanted = || complete(names, versions(ctx, names)?);
    // `fetch` refreshes the package lists if they lack a package.
    if let Ok(packages) = wanted()
        && unpacked == Some(packages.join("\n"))
    {
        return Ok((path, packages));
    }
    let (packages, files) = fetch(ctx, &cache.join("archives"), wanted)?;
    unpack(ctx, &files, &path)?;
    std::fs::write(&stamp, packages.join("\n")).map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok((path, packages))
}

/// The packages that a package needs itself.
pub fn depends(ctx: &Context, package: &str) -> Result<Vec<String>, String> {
    let ask = || Job::new("apt-cache").args(["depends", "--important", package]).answer(ctx);
    let listed = ask().or_else(|why| if apt_update(ctx, &mut Vec::new()) { ask() } else { Err(why) })?;
    let names = listed.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    Ok(names.map(str::to_owned).collect())
}

/// Each package as `name=version`; those that cannot be fetched are left out.
pub(crate) fn versions(ctx: &Context, names: &[impl AsRef<std::ffi::OsStr>]) -> Result<Vec<String>, String> {
    let policy = Job::new("apt-cache").arg("policy").args(names).answer(ctx)?;
    Ok(candidates(&policy))
}

/// `packages` if they contain every name. Package lists that are missing or old lack some.
fn complete(names: &[String], packages: Vec<String>) -> Result<Vec<String>, String> {
    let is_known =
        |name: &str| packages.iter().any(|package| package.split('=').next() == name.split(':').next());
    let unknown: Vec<&str> = names.iter().map(String::as_str).filter(|name| !is_known(name)).collect();
    if unknown.is_empty() { Ok(packages) } else { Err(format!("apt knows none of {}", unknown.join(", "))) }
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

/// Downloads the packages that `wanted` returns, `name=version` each, unless they are there. Returns them and their files. If that fails, it
/// refreshes the package lists and tries again: old lists name versions that the archive does not have any more.
pub(crate) fn fetch(
    ctx: &Context,
    archives: &Path,
    wanted: impl Fn() -> Result<Vec<String>, String>,
) -> Result<(Vec<String>, Vec<PathBuf>), String> {
    std::fs::create_dir_all(archives).map_err(|error| error.to_string())?;
    let fetch = || {
        let packages = wanted()?;
        if !download(ctx, archives, &packages) {
            return Err(format!("these Debian packages cannot be fetched: {}", packages.join(" ")));
        }
        let files: Option<Vec<PathBuf>> = packages.iter().map(|package| archive(archives, package)).collect();
        Ok((packages, files.ok_or("a package was fetched but is not there")?))
    };
    fetch().or_else(|why| if apt_update(ctx, &mut Vec::new()) { fetch() } else { Err(why) })
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

pub(crate) fn unpack(ctx: &Context, files: &[PathBuf], into: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", into.display());
    // Removes the result of an interrupted unpacking.
    let _ = std::fs::remove_dir_all(into);
    std::fs::create_dir_all(into.join("usr")).map_err(failed)?;
    // Packages of older releases ship /lib and /bin. With these links they unpack into /usr/lib and /usr/bin.
    for name in ["bin", "sbin", "lib", "lib64"] {
        std::fs::create_dir_all(into.join("usr").join(name)).map_err(failed)?;
        std::os::unix::fs::symlink(format!("usr/{name}"), into.join(name)).map_err(failed)?;
    }
    // Through tar with --keep-directory-symlink: `dpkg-deb -x` would replace the links by folders.
    let script = "into=$1; shift; for file; do dpkg-deb --fsys-tarfile \"$file\" | tar -x -C \"$into\" \
                  --keep-directory-symlink --no-same-owner --exclude=./usr/share --exclude=./dev || exit 1; done";
    let unpacking = Job::new("sh").args(["-c", script, "unpack"]).args([into]).args(files).limit_s(300);
    unpacking.answer(ctx).map(drop)
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

    #[test]
    fn a_package_without_a_version_is_an_error() {
        let names = ["perftest", "ghost"].map(str::to_owned);
        let perftest = || vec!["perftest=4.5-1".to_owned()];
        assert_eq!(complete(&names[..1], perftest()), Ok(perftest()));
        assert_eq!(complete(&names, perftest()), Err("apt knows none of ghost".to_owned()));
        assert_eq!(complete(&names, Vec::new()), Err("apt knows none of perftest, ghost".to_owned()));
    }
}
