//! The kernel's SoftiWARP module (siw). Debian's kernel package does not contain it, so it is built from Debian's kernel source.
//!
//! Headers and source have the version of the guest's kernel. Only the folder of the driver is compiled, and the result is kept.

use std::path::{Path, PathBuf};

use super::packages::Sysroot;
use crate::debian;
use crate::process::Job;
use crate::step::Context;
use crate::tools::which;

/// Path of the module in the guest.
pub(crate) const PLACE: &str = "modules/siw.ko";
const SOURCE: &str = "drivers/infiniband/sw/siw";

/// The module for the kernel of `sysroot`, or one sentence why there is none.
pub(crate) fn provide(ctx: &Context, cache: &Path, sysroot: &Sysroot) -> Result<PathBuf, String> {
    let kernel = Kernel::of(&sysroot.fingerprint).ok_or("the guest's packages name no kernel")?;
    let module = cache.join(format!("siw-{}.ko", kernel.version));
    if !module.exists() {
        build(ctx, cache, &kernel, &module).map_err(|why| format!("no SoftiWARP in the guest: {why}"))?;
    }
    Ok(module)
}

/// A kernel package.
#[derive(Debug, PartialEq, Eq)]
struct Kernel<'a> {
    /// `6.1.0-55-amd64`.
    release: &'a str,
    /// Version of the package.
    version: &'a str,
}

impl<'a> Kernel<'a> {
    /// Finds the kernel package in lines of `name=version`.
    fn of(packages: &'a str) -> Option<Self> {
        let image = packages.lines().find_map(|line| line.strip_prefix("linux-image-"))?;
        image.split_once('=').map(|(release, version)| Self { release, version })
    }

    /// The source package. Its name contains only the first two numbers of the version.
    fn source(&self) -> String {
        let series: Vec<&str> = self.version.split('.').take(2).collect();
        format!("linux-source-{}", series.join("."))
    }
}

fn build(ctx: &Context, cache: &Path, kernel: &Kernel<'_>, into: &Path) -> Result<(), String> {
    let missing = ["make", "cc", "strip", "xz"].into_iter().find(|tool| which(tool).is_none());
    if let Some(tool) = missing {
        return Err(format!("{tool} is missing: `apt-get install -y build-essential xz-utils`"));
    }
    let archives = cache.join("archives");
    let (_, files) = debian::fetch(ctx, &archives, || packages(ctx, kernel))
        .map_err(|why| format!("{why}; if the archive has a newer kernel, remove {}", cache.display()))?;
    let dir = cache.join("siw");
    let made = make(ctx, &dir, kernel, &files);
    let made = made.and_then(|module| std::fs::rename(module, into).map_err(|error| error.to_string()));
    // Several hundred MB, which are not needed again.
    let _ = std::fs::remove_dir_all(&dir);
    made
}

/// The headers and the source of the kernel, as `name=version`.
fn packages(ctx: &Context, kernel: &Kernel<'_>) -> Result<Vec<String>, String> {
    let headers = format!("linux-headers-{}", kernel.release);
    let named = Job::new("apt-cache").args(["depends", &headers]).answer(ctx)?;
    let below = named.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let below = below.filter(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"));
    let names = below.chain([headers.as_str()]).map(str::to_owned).chain([kernel.source()]);
    Ok(names.map(|name| format!("{name}={}", kernel.version)).collect())
}

/// Compiles in `dir`, which the caller removes.
fn make(ctx: &Context, dir: &Path, kernel: &Kernel<'_>, packages: &[PathBuf]) -> Result<PathBuf, String> {
    let _ = std::fs::remove_dir_all(dir);
    std::fs::create_dir_all(dir).map_err(|error| error.to_string())?;
    // The headers name each other by absolute paths below /usr/src, in one line.
    let script = "set -e; cd \"$1\"; release=$2; source=$3; shift 3; \
         for file; do case $file in */$source*) ;; *) dpkg-deb -x \"$file\" . ;; esac; done; \
         for file; do case $file in */$source*) dpkg-deb --fsys-tarfile \"$file\" | tar -xO ./usr/src/$source.tar.xz | \
         tar -xJ $source/$SIW ;; esac; done; \
         headers=$PWD/usr/src/linux-headers-$release; sed -i \"s#include /usr/src#include $PWD/usr/src#\" $headers/Makefile; \
         compiler=$(command -v gcc-12 || echo cc); \
         make -C $headers M=$PWD/$source/$SIW CONFIG_RDMA_SIW=m CC=$compiler modules; \
         strip --strip-debug $source/$SIW/siw.ko; mv $source/$SIW/siw.ko .";
    let job =
        Job::new("sh").args(["-c", script, "make"]).args([dir]).args([kernel.release, &kernel.source()]);
    let ran = job.args(packages).env("SIW", SOURCE).limit_s(600).run(ctx);
    ran.checked().map(|_| dir.join("siw.ko"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_belongs_to_the_kernel_of_the_guest() {
        let kernel = Kernel::of("libc6=2.36\nlinux-image-6.1.0-55-amd64=6.1.192-1\nperftest=4.5").unwrap();
        assert_eq!(kernel, Kernel { release: "6.1.0-55-amd64", version: "6.1.192-1" });
        assert_eq!(kernel.source(), "linux-source-6.1");
        assert_eq!(Kernel::of("libc6=2.36"), None);
    }
}
