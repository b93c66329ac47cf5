//! One user namespace for all programs that a user runs, so that they may reach each other's memory.
//!
//! Without privilege `ferroce run` needs a user namespace for its mounts. The kernel lets processes of one user
//! access each other's memory only within one such namespace, and local peers depend on that. A program therefore
//! joins the namespace of a running program of the same user, if there is one, instead of making its own.

use super::namespace;
use ferroce_os::random;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Requests of `ioctl` on a namespace (linux/nsfs.h): the one around it, and its owner.
const NS_GET_PARENT: libc::Ioctl = 0xb702;
const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;

/// Locks the search for a namespace for this user, so that two programs that start together find each other.
///
/// Every user may make files in `base`. A lock counts only if it is ours, and gets a random name if the plain one is taken. Then two
/// programs may make two locks: each takes all locks, in one order, and one of the two has found both.
pub(super) fn lock_search(base: &Path, uid: u32) -> Vec<OwnedFd> {
    let plain = base.join(format!("ferroce-run-{uid}.lock"));
    let is_taken = open_lock(&plain, OFlags::CREATE, uid).is_none();
    if is_taken && own_locks(&plain, uid).is_empty() {
        let random = format!("{}-{:016x}", plain.display(), random::number::<u64>());
        let _ = open_lock(Path::new(&random), OFlags::CREATE | OFlags::EXCL, uid);
    }
    let mut locks = own_locks(&plain, uid);
    locks.retain(|lock| flock(lock, FlockOperation::LockExclusive).is_ok());
    locks
}

/// The locks of this user whose names begin with the plain one, sorted by name.
fn own_locks(plain: &Path, uid: u32) -> Vec<OwnedFd> {
    let entries =
        plain.parent().and_then(|base| std::fs::read_dir(base).ok()).into_iter().flatten().flatten();
    let name = plain.file_name().unwrap_or_default().as_encoded_bytes();
    let mut paths: Vec<_> = entries
        .filter(|entry| entry.file_name().as_encoded_bytes().starts_with(name))
        .map(|entry| entry.path())
        .collect();
    paths.sort_unstable();
    paths.iter().filter_map(|path| open_lock(path, OFlags::empty(), uid)).collect()
}

/// Opens a lock if it belongs to this user and no other user can open it: another user could hold any other lock forever.
fn open_lock(path: &Path, how: OFlags, uid: u32) -> Option<OwnedFd> {
    let flags = how | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    (stat.st_uid == uid && stat.st_mode & 0o077 == 0).then_some(file)
}

/// Result of [`join`].
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Join {
    Joined,
    NoneRunning,
}

/// Joins the namespace of a running program that `ferroce run` started for this user.
pub(super) fn join(uid: u32, gid: u32) -> Join {
    let Some(own) = File::open("/proc/self/ns/user").ok().and_then(|file| file.metadata().ok()) else {
        return Join::NoneRunning;
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let joined = processes
        .filter(|entry| entry.file_name().to_str().is_some_and(is_process))
        .filter_map(|entry| namespace_of(&entry.path(), own.ino(), uid, gid))
        // The process may have ended meanwhile.
        .any(|namespace| move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::User)).is_ok());
    if joined { Join::Joined } else { Join::NoneRunning }
}

/// The user namespace of a process, if `ferroce run` made it for this user. Others make such namespaces, too, and may end their
/// processes together: `ferroce fabric live` and bubblewrap. Ours have a process with our mounts.
fn namespace_of(process: &Path, own: u64, uid: u32, gid: u32) -> Option<OwnedFd> {
    let is_ours = process.metadata().ok()?.uid() == uid;
    let maps_only = |file: &str, id: u32| {
        let map = std::fs::read_to_string(process.join(file)).unwrap_or_default();
        map.split_whitespace().eq([id.to_string().as_str(), id.to_string().as_str(), "1"])
    };
    if !is_ours || !maps_only("uid_map", uid) || !maps_only("gid_map", gid) {
        return None;
    }
    if !namespace::is_prepared(&std::fs::read_to_string(process.join("mountinfo")).ok()?) {
        return None;
    }
    let namespace = File::open(process.join("ns/user")).ok()?;
    if namespace.metadata().ok()?.ino() == own || owner_of(&namespace)? != uid {
        return None;
    }
    let around = File::from(parent_of(&namespace)?);
    (around.metadata().ok()?.ino() == own).then(|| namespace.into())
}

fn owner_of(namespace: &impl AsFd) -> Option<u32> {
    let mut uid: libc::uid_t = 0;
    // SAFETY: the request writes one uid, and the buffer holds one.
    let done = unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), NS_GET_OWNER_UID, &raw mut uid) };
    (done == 0).then_some(uid)
}

fn parent_of(namespace: &impl AsFd) -> Option<OwnedFd> {
    // SAFETY: the request takes no argument and returns a descriptor.
    let fd = unsafe { libc::ioctl(namespace.as_fd().as_raw_fd(), NS_GET_PARENT) };
    // SAFETY: a new descriptor without another owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A symbolic link, and a file that others may open, hold the plain name.
    #[test]
    fn a_name_that_others_take_does_not_hinder_the_lock() {
        let base = std::env::temp_dir().join(format!("ferroce-lock-{}", std::process::id()));
        std::fs::create_dir_all(&base).expect("a folder");
        let uid = rustix::process::geteuid().as_raw();
        let plain = base.join(format!("ferroce-run-{uid}.lock"));
        let is_held = || {
            let locks = own_locks(&plain, uid);
            !locks.is_empty()
                && locks.iter().all(|lock| flock(lock, FlockOperation::NonBlockingLockExclusive).is_err())
        };
        std::os::unix::fs::symlink("/dev/null", &plain).expect("a link");
        let held = lock_search(&base, uid);
        assert!(is_held());
        drop(held);
        assert!(!is_held());

        std::fs::remove_file(&plain).expect("our own link");
        let open = rustix::fs::open(&plain, OFlags::CREATE | OFlags::RDWR, Mode::from_raw_mode(0o600));
        let open = open.expect("a file");
        rustix::fs::fchmod(&open, Mode::from_raw_mode(0o666)).expect("our own file");
        flock(&open, FlockOperation::LockExclusive).expect("nobody else has it");
        let held = lock_search(&base, uid);
        assert!(is_held());
        assert_eq!(std::fs::read_dir(&base).expect("a folder").count(), 2, "the random name serves again");
        drop(held);
        std::fs::remove_dir_all(base).expect("our own folder");
    }
}
