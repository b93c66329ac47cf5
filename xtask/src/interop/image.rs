//! The guest's file system: one archive in memory, cached by its contents.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use super::cpio::Archive;
use super::namespace::{GUEST_V4, GUEST_V6, HOST_MAC, HOST_V4, HOST_V6, MTU};
use super::packages::Sysroot;
use super::{Failure, modules};
use crate::process::Job;
use crate::step::Context;

/// Programs of the packages, by their path.
const PROGRAMS: [&str; 21] = [
    "usr/bin/busybox",
    "usr/bin/ip",
    "usr/sbin/tc",
    "usr/bin/rdma",
    "usr/bin/ib_send_bw",
    "usr/bin/ib_send_lat",
    "usr/bin/ib_write_bw",
    "usr/bin/ib_write_lat",
    "usr/bin/ib_read_bw",
    "usr/bin/ib_read_lat",
    "usr/bin/ib_atomic_bw",
    "usr/bin/ib_atomic_lat",
    "usr/bin/ibv_rc_pingpong",
    "usr/bin/ibv_uc_pingpong",
    "usr/bin/ibv_ud_pingpong",
    "usr/bin/ibv_srq_pingpong",
    "usr/bin/ibv_devinfo",
    "usr/bin/rping",
    "usr/bin/ucmatose",
    "usr/bin/udaddy",
    "usr/bin/cmtime",
];
/// Libraries that programs load with `dlopen`, so that no list of dependencies contains them.
const LOADED: [&str; 1] = ["usr/lib/x86_64-linux-gnu/libgcc_s.so.1"];
const LOADER: &str = "usr/lib64/ld-linux-x86-64.so.2";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Kernel and first file system, ready to boot.
pub(crate) struct Image {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
}

/// `extra`: further files, by their path in the guest. The libraries of programs among them are added.
pub(crate) fn build(
    ctx: &Context,
    cache: &Path,
    sysroot: &Sysroot,
    extra: &[(String, PathBuf)],
) -> Result<Image, Failure> {
    let kernel = kernel(&sysroot.path)?;
    let init = std::fs::read(ctx.root.join("interop/init.sh"))?;
    let mut hash = DefaultHasher::new();
    (&sysroot.fingerprint, &init, PROGRAMS, MTU, GUEST_V4, GUEST_V6, HOST_MAC).hash(&mut hash);
    for (name, file) in extra {
        (name, std::fs::read(file)?).hash(&mut hash);
    }
    let initramfs = cache.join(format!("guest-{:016x}.cpio", hash.finish()));
    if !initramfs.exists() {
        // Removes archives of older contents.
        for entry in std::fs::read_dir(cache)?.flatten() {
            if entry.path().extension().is_some_and(|ext| ext == "cpio") {
                std::fs::remove_file(entry.path())?;
            }
        }
        let half = initramfs.with_extension("half");
        write(ctx, &half, &sysroot.path, &init, extra)?;
        std::fs::rename(half, &initramfs)?;
    }
    Ok(Image { kernel, initramfs })
}

fn kernel(sysroot: &Path) -> Result<PathBuf, Failure> {
    let boot = std::fs::read_dir(sysroot.join("boot"))?;
    boot.flatten()
        .map(|entry| entry.path())
        .find(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("vmlinuz")))
        .ok_or_else(|| Failure::Broken("the kernel package holds no vmlinuz".to_owned()))
}

fn write(
    ctx: &Context,
    into: &Path,
    sysroot: &Path,
    init: &[u8],
    extra: &[(String, PathBuf)],
) -> Result<(), Failure> {
    let modules = modules::in_order(sysroot)?;
    let mut files: BTreeMap<String, PathBuf> = BTreeMap::new();
    for name in PROGRAMS.iter().chain(&LOADED).chain([&LOADER]) {
        let path = sysroot.join(name);
        if !path.exists() {
            return Err(Failure::Broken(format!("the packages hold no {name}")));
        }
        files.insert((*name).to_owned(), path);
    }
    files.extend(providers(sysroot)?);
    files.extend(extra.iter().cloned());
    for file in files.values().cloned().collect::<Vec<_>>() {
        for library in libraries(ctx, sysroot, &file) {
            let name = library.file_name().unwrap_or_default().to_string_lossy().into_owned();
            files.entry(format!("{LIBRARIES}/{name}")).or_insert(library);
        }
    }
    let mut list = String::new();
    for (at, module) in modules.iter().enumerate() {
        let name = module.file_name().unwrap_or_default().to_string_lossy();
        let place = format!("modules/{at:02}-{name}");
        list.push_str(&format!("/{place}\n"));
        files.insert(place, module.clone());
    }
    let conf = format!(
        "MTU={MTU}\nGUEST_V4={GUEST_V4}\nGUEST_V6={GUEST_V6}\n\
         HOST_V4={HOST_V4}\nHOST_V6={HOST_V6}\nHOST_MAC={HOST_MAC}\n"
    );
    let texts = [
        ("init", init),
        ("modules.list", list.as_bytes()),
        ("guest.conf", conf.as_bytes()),
        ("etc/passwd", b"root:x:0:0:root:/:/bin/sh\n".as_slice()),
        ("etc/hosts", b"127.0.0.1 localhost\n".as_slice()),
        // Names of the providers to load.
        ("etc/libibverbs.d/rxe.driver", b"driver rxe\n".as_slice()),
        ("etc/libibverbs.d/siw.driver", b"driver siw\n".as_slice()),
    ];
    let mut archive = Archive::new(std::io::BufWriter::new(std::fs::File::create(into)?));
    let mut folders = BTreeSet::from(["dev".to_owned()]);
    let links = ["bin", "sbin", "lib", "lib64"];
    for name in files.keys().map(String::as_str).chain(texts.iter().map(|(name, _)| *name)) {
        let parents = name.match_indices('/').map(|(at, _)| name[..at].to_owned());
        folders.extend(parents);
    }
    folders.extend(links.map(|name| format!("usr/{name}")));
    folders.insert("usr".to_owned());
    folders.iter().try_for_each(|folder| archive.folder(folder))?;
    archive.console()?;
    links.iter().try_for_each(|name| archive.link(name, &format!("usr/{name}")))?;
    texts.iter().try_for_each(|(name, text)| archive.file(name, text))?;
    for (name, file) in &files {
        archive.file(name, &std::fs::read(file)?)?;
    }
    std::io::Write::flush(&mut archive.finish()?)?;
    Ok(())
}

/// The file names of providers carry a version of the private interface.
fn providers(sysroot: &Path) -> std::io::Result<Vec<(String, PathBuf)>> {
    let dir = format!("{LIBRARIES}/libibverbs");
    let entries = std::fs::read_dir(sysroot.join(&dir))?.flatten().map(|entry| entry.path());
    let named = entries.filter_map(|path| Some((path.file_name()?.to_str()?.to_owned(), path)));
    Ok(named
        .filter(|(name, _)| name.starts_with("librxe") || name.starts_with("libsiw"))
        .map(|(name, path)| (format!("{dir}/{name}"), path))
        .collect())
}

/// The libraries of `file`. The loader of the packages resolves them, so that none is the host's.
fn libraries(ctx: &Context, sysroot: &Path, file: &Path) -> Vec<PathBuf> {
    let loader = sysroot.join(LOADER);
    let path = sysroot.join(LIBRARIES);
    let listed = Job::new(loader).arg("--library-path").args([&path]).arg("--list").args([file]).answer(ctx);
    // The loader fails for a static program and for other files, which need no library.
    let listed = listed.unwrap_or_default();
    listed
        .lines()
        .filter_map(|line| line.split_once("=> ")?.1.split(' ').next())
        .map(PathBuf::from)
        .filter(|library| library.starts_with(sysroot))
        .collect()
}
