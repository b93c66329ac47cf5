//! Removes what killed processes left: files of slots that no process holds, and registries of namespaces that no longer exist.

use super::directory::is_ours;
use super::lock::ByteLocks;
use super::{LOCK_FILE, ROSTER_BYTE, effective_uid, is_in_use};
use std::path::Path;

/// Registries that one process checks when it starts. The next process checks the rest.
const MAX_REGISTRIES: usize = 64;

/// Prefix of the file extension of a registry while it is being removed.
const GONE: &str = "gone-";

/// Removes the sockets of slots that no process holds. The caller has locked the roster, so no process claims one meanwhile. (`segment`
/// removes shared segments, because they must be marked closed first.)
pub(crate) fn sweep_sockets(directory: &Path, locks: &ByteLocks) {
    for path in std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let slot = path.file_name().and_then(|name| name.to_str()).and_then(slot_of_socket);
        if slot.is_some_and(|slot| !locks.is_held(slot).unwrap_or(true)) {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn slot_of_socket(name: &str) -> Option<u8> {
    let name = name.strip_suffix(".sock")?;
    name.strip_prefix("slot-").or_else(|| name.strip_prefix("nic-"))?.parse().ok()
}

/// Removes the other registries in the parent directory of `own` in which no process holds a slot.
pub(crate) fn sweep_registries(own: &Path) {
    let Some(base) = own.parent() else { return };
    let prefix = format!("ferroce-{}-", effective_uid());
    let is_registry = |path: &Path| {
        let rest =
            path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(&prefix));
        let number = rest.map(|rest| rest.split_once(&format!(".{GONE}")).map_or(rest, |(number, _)| number));
        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-'))
    };
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten().map(|entry| entry.path());
    for path in entries.filter(|path| path != own && is_registry(path)).take(MAX_REGISTRIES) {
        // Any user may create a directory with such a name.
        if !is_ours(&path) {
            continue;
        }
        let is_gone = path.extension().is_some_and(|end| end.as_encoded_bytes().starts_with(GONE.as_bytes()));
        if is_gone {
            // The process that began to remove it may have died.
            let _ = std::fs::remove_dir_all(path);
        } else {
            remove_if_abandoned(&path);
        }
    }
}

fn remove_if_abandoned(path: &Path) {
    let Ok(locks) = ByteLocks::open_existing(&path.join(LOCK_FILE)) else { return };
    // The first check does not lock the roster, because the processes of that registry would wait for it.
    if is_in_use(&locks) {
        return;
    }
    // A process that opens this registry meanwhile waits for the roster, and then finds that the registry is gone.
    if !locks.try_lock(ROSTER_BYTE).unwrap_or(false) {
        return;
    }
    if is_in_use(&locks) {
        return;
    }
    // In one step: a process that opens the registry now must find all of it or nothing.
    let gone = path.with_extension(format!("{GONE}{}", std::process::id()));
    if locks.is_at(&path.join(LOCK_FILE)) && std::fs::rename(path, &gone).is_ok() {
        let _ = std::fs::remove_dir_all(gone);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Registry, default_base};
    use super::*;
    use std::fs::{self, DirBuilder, File};
    use std::os::unix::fs::DirBuilderExt;
    use std::path::PathBuf;

    /// In shared memory, like real registries: on a disk that stalls, the wait for the roster lock could time out.
    fn fresh_base(name: &str) -> PathBuf {
        let base = default_base().join(format!("ferroce-sweep-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&base);
        fs::create_dir_all(&base).unwrap();
        base
    }

    fn registry_at(path: &Path, mode: u32) -> ByteLocks {
        DirBuilder::new().mode(mode).create(path).unwrap();
        File::create(path.join("slot-3.shm")).unwrap();
        ByteLocks::open(&path.join(LOCK_FILE)).unwrap()
    }

    #[test]
    fn registries_that_nobody_is_in_go_and_others_stay() {
        let base = fresh_base("registries");
        let at = |name: &str| base.join(format!("ferroce-{}-{name}", effective_uid()));
        let (dead, alive, busy, open, other) = (at("11"), at("12-1"), at("13"), at("14"), at("run-15"));
        drop(registry_at(&dead, 0o700));
        let held = registry_at(&alive, 0o700);
        assert!(held.try_lock(200).unwrap());
        let entering = registry_at(&busy, 0o700);
        assert!(entering.try_lock(ROSTER_BYTE).unwrap());
        drop(registry_at(&open, 0o750));
        let (gone, not_ours) = (at("16.gone-1"), at("17.gone-1"));
        drop(registry_at(&gone, 0o700));
        drop(registry_at(&not_ours, 0o750));
        drop(registry_at(&other, 0o700));
        let own = Registry::open(&base).unwrap();
        assert!(!dead.exists() && !gone.exists());
        for path in [&alive, &busy, &open, &other, &not_ours, &own.directory().to_path_buf()] {
            assert!(path.exists(), "{}", path.display());
        }
        fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn sockets_of_the_dead_go() {
        let base = fresh_base("sockets");
        let first = Registry::open(&base).unwrap();
        let file = |name: String| first.directory().join(name);
        let (ours, dead) = (first.slot(), first.slot() + 9);
        let stays = [format!("slot-{ours}.sock"), format!("nic-{ours}.sock"), "slot-x.sock".into()].map(file);
        let goes = [format!("slot-{dead}.sock"), format!("nic-{dead}.sock")].map(file);
        stays.iter().chain(&goes).for_each(|path| drop(File::create(path).unwrap()));
        let _second = Registry::open(&base).unwrap();
        assert!(stays.iter().all(|path| path.exists()) && !goes.iter().any(|path| path.exists()));
        fs::remove_dir_all(base).unwrap();
    }

    /// Many processes enter and leave, while a process of another registry sweeps all the time. No process ends up alone in a registry that
    /// was removed.
    #[test]
    fn who_enters_while_it_is_swept_enters_the_next_one() {
        let base = fresh_base("race");
        let elsewhere = base.join("elsewhere");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    sweep_registries(&elsewhere);
                    std::thread::yield_now();
                }
            });
            let enter = || {
                for _ in 0..500 {
                    let registry = Registry::open(&base).unwrap();
                    let socket = registry.socket_path(registry.slot());
                    File::create(&socket).unwrap();
                    std::thread::yield_now();
                    let locks = ByteLocks::open_existing(&registry.directory().join(LOCK_FILE)).unwrap();
                    assert!(locks.is_held(registry.slot()).unwrap(), "others do not see it");
                    assert!(socket.exists(), "others took it for dead");
                }
            };
            let entering: Vec<_> = (0..3).map(|_| scope.spawn(enter)).collect();
            let ends: Vec<_> = entering.into_iter().map(|thread| thread.join()).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            ends.into_iter().for_each(|end| end.unwrap());
        });
        fs::remove_dir_all(base).unwrap();
    }
}
