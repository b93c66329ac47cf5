//! The first way to provide a device: a mount namespace with our own entries in /sys/class and /dev.
//!
//! Neither folder can be changed, but each can be covered with a small file system that shows all its entries and
//! ours. Processes outside the namespace do not see it, and it disappears with the last process. Root only needs the
//! mount namespace. Other users need a user namespace as well, in which the user keeps its ID, so that files, the
//! registry and the sharing of the port work as before. Programs that run at the same time share one
//! (`user_namespace`).

use super::library::Libraries;
use super::tree::{self, CLASSES, DEV, FERROCE, INFINIBAND, SysTree};
use super::user_namespace;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The source of our mounts, as /proc/PID/mountinfo lists it.
const SOURCE: &str = "ferroce";

/// The files that a program needs before it starts.
pub(crate) struct Files<'a> {
    pub(crate) sys: &'a SysTree,
    pub(crate) libraries: &'a Libraries,
}

/// Why there is no namespace: the refused step, and the error of the system.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused(String);

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn refused<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> Refused {
    move |error| Refused(format!("{step}: {}", error.into()))
}

/// Moves this process into a prepared namespace; returns the folder of the libraries. The process must have one
/// thread.
///
/// Without privilege a child tries first: a process cannot leave a user namespace, and some systems grant the
/// namespace but refuse mounts in it.
pub(crate) fn enter(files: &Files<'_>) -> Result<PathBuf, Refused> {
    if unshare(libc::CLONE_NEWNS).is_ok() {
        return mount_files(files);
    }
    run_in_child(|| enter_as_user(files).map(drop))?;
    enter_as_user(files)
}

/// Whether [`enter`] would work, tried in a child that then ends.
pub(crate) fn try_out(files: &Files<'_>) -> Result<(), Refused> {
    run_in_child(|| match unshare(libc::CLONE_NEWNS) {
        Ok(()) => mount_files(files).map(drop),
        Err(_) => enter_as_user(files).map(drop),
    })
}

fn enter_as_user(files: &Files<'_>) -> Result<PathBuf, Refused> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // Held until this process is in its namespace, where the next one finds it.
    let _locks = user_namespace::lock_search(&ferroce_nic::registry::default_base(), uid);
    if user_namespace::join(uid, gid) == user_namespace::Join::Joined {
        unshare(libc::CLONE_NEWNS).map_err(refused("mount namespace"))?;
        return mount_files(files);
    }
    new_user_namespace(uid, gid, libc::CLONE_NEWNS)?;
    mount_files(files)
}

/// Gives this process the right to make other namespaces and network devices in them. The process must have one thread.
pub(crate) fn become_owner() -> Result<(), Refused> {
    // Root of a container may make namespaces, but have no right to configure a network.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if has_capability(&status, CAP_NET_ADMIN) && unshare(libc::CLONE_NEWUTS).is_ok() {
        return Ok(());
    }
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    new_user_namespace(uid, gid, 0)
}

/// The number of the capability in linux/capability.h.
const CAP_NET_ADMIN: u32 = 12;

/// Whether /proc/PID/status lists an effective capability.
fn has_capability(status: &str, number: u32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask >> number & 1 == 1)
}

/// Makes a user namespace in which the user keeps its ID.
fn new_user_namespace(uid: u32, gid: u32, more: libc::c_int) -> Result<(), Refused> {
    unshare(libc::CLONE_NEWUSER | more).map_err(refused("user namespace"))?;
    // The kernel requires this before an unprivileged process may map a group.
    std::fs::write("/proc/self/setgroups", "deny").map_err(refused("user namespace, groups"))?;
    std::fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))
        .map_err(refused("user namespace, group"))?;
    std::fs::write("/proc/self/uid_map", format!("{uid} {uid} 1")).map_err(refused("user namespace, user"))
}

fn mount_files(files: &Files<'_>) -> Result<PathBuf, Refused> {
    // Later mounts of the system appear here; our mounts do not appear there.
    let slave = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", slave).map_err(refused("mount namespace"))?;
    let sys = Path::new(CLASSES);
    cover(sys, |folder| files.sys.make_in(folder)).map_err(refused("covering /sys/class"))?;
    let libraries = Path::new(DEV).join(FERROCE);
    let dev = cover(Path::new(DEV), |folder| {
        tree::make_node_in(folder)?;
        files.libraries.make_in(&libraries)
    });
    match dev {
        Ok(()) => Ok(libraries),
        Err(error) => {
            // Undo everything, since the caller continues in another way.
            let _ = rustix::mount::unmount(sys, UnmountFlags::DETACH);
            Err(refused("covering /dev")(error))
        }
    }
}

/// Whether a process, by its /proc/PID/mountinfo, is in a mount namespace that [`enter`] prepared. It is so from the first of the
/// two mounts on.
pub(super) fn is_prepared(mountinfo: &str) -> bool {
    mountinfo.lines().any(|line| {
        let Some((mount, source)) = line.split_once(" - ") else { return false };
        mount.split(' ').nth(4) == Some(CLASSES) && source.split(' ').take(2).eq(["tmpfs", SOURCE])
    })
}

/// Covers `folder` with a file system that shows its entries, and lets `fill` create ours there.
fn cover(folder: &Path, fill: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let below = rustix::fs::open(folder, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let entries: Vec<_> = std::fs::read_dir(folder)?.collect::<io::Result<_>>()?;
    rustix::mount::mount(SOURCE, folder, "tmpfs", MountFlags::NOSUID, Some(c"mode=0755,size=4m"))?;
    let fill_folder = || -> io::Result<()> {
        let below = PathBuf::from(format!("/proc/self/fd/{}", below.as_raw_fd()));
        // They exist already if a program below `ferroce run` starts `ferroce run`.
        let ours = [INFINIBAND, FERROCE];
        for entry in entries.iter().filter(|entry| ours.iter().all(|own| entry.file_name() != *own)) {
            show(&below.join(entry.file_name()), &folder.join(entry.file_name()), entry.file_type()?)?;
        }
        fill(folder)
    };
    fill_folder().inspect_err(|_| {
        let _ = rustix::mount::unmount(folder, UnmountFlags::DETACH);
    })
}

/// Makes the covered entry `from` appear as `to`.
fn show(from: &Path, to: &Path, kind: std::fs::FileType) -> io::Result<()> {
    if kind.is_symlink() {
        return symlink(std::fs::read_link(from)?, to);
    }
    if kind.is_dir() {
        std::fs::create_dir(to)?;
        return Ok(rustix::mount::mount_bind_recursive(from, to)?);
    }
    std::fs::write(to, "")?;
    match rustix::mount::mount_bind(from, to) {
        // The entry may have disappeared meanwhile, as devices do. Only the registry's folder must exist.
        Err(rustix::io::Errno::NOENT) => std::fs::remove_file(to),
        other => Ok(other?),
    }
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: changes only which namespaces this thread is in, and no other thread shares memory or files with it.
    match unsafe { libc::unshare(flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Runs `what` in a child and returns its result, which comes through a pipe.
fn run_in_child(what: impl FnOnce() -> Result<(), Refused>) -> Result<(), Refused> {
    let (mut reader, mut writer) = io::pipe().map_err(refused("a pipe"))?;
    // SAFETY: this process has one thread, so the child has all of its memory in a consistent state.
    match unsafe { libc::fork() } {
        -1 => Err(refused("fork")(io::Error::last_os_error())),
        0 => {
            drop(reader);
            let result = what().err().map_or(DONE.to_owned(), |refused| refused.0);
            let sent = writer.write_all(result.as_bytes());
            // SAFETY: ends the child without running what the parent registered for its own end.
            unsafe { libc::_exit(i32::from(sent.is_err())) }
        }
        child => {
            drop(writer);
            let mut result = String::new();
            let read = reader.read_to_string(&mut result);
            // SAFETY: waits for our own child; the null pointer requests no status, so nothing is written.
            unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            read.map_err(refused("trying a namespace"))?;
            received(result)
        }
    }
}

/// What the child of [`run_in_child`] writes on success.
const DONE: &str = "done";

fn received(result: String) -> Result<(), Refused> {
    match result.as_str() {
        "" => Err(refused("trying a namespace")(io::ErrorKind::UnexpectedEof)),
        DONE => Ok(()),
        _ => Err(Refused(result)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status() {
        let status = "Name:\tx\nCapPrm:\t0000000000001000\nCapEff:\t0000000000203000\n";
        assert!(has_capability(status, CAP_NET_ADMIN) && has_capability(status, 21));
        assert!(!has_capability(status, 11) && !has_capability("", CAP_NET_ADMIN));
        assert!(!has_capability("CapPrm:\t0000000000001000\nCapEff:\t0\n", CAP_NET_ADMIN));
    }

    #[test]
    fn our_mounts_are_marked() {
        let ours = "91 80 0:50 / /sys/class rw,nosuid,relatime - tmpfs ferroce rw,size=4096k,mode=755";
        assert!(is_prepared(&format!("80 1 8:1 / / rw shared:1 - ext4 /dev/sda rw\n{ours}\n")));
        for other in
            [ours.replace("tmpfs ferroce", "tmpfs tmpfs"), ours.replace("/sys/class", "/etc"), String::new()]
        {
            assert!(!is_prepared(&other), "{other}");
        }
    }

    #[test]
    fn a_refusal_passes_through_a_pipe() {
        let refusal = refused("user namespace")(io::Error::from_raw_os_error(libc::EPERM));
        assert_eq!(received(refusal.0.clone()), Err(refusal));
        assert_eq!(received(DONE.to_owned()), Ok(()));
        assert!(received(String::new()).is_err(), "a child that died reports nothing");
    }
}
