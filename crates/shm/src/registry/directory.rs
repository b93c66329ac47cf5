//! The directory that the processes of one user and network namespace share.
//!
//! Its parent is writable by everybody. Another user may take any name that it can guess, with a directory or a symbolic
//! link, and whoever owns the directory could receive our packets. Two rules make that harmless:
//!
//! - a directory is used only if it is ours: owner, kind and mode are checked on the opened directory;
//! - if the plain name is taken, the directory gets a random one, and the other processes find it by listing the parent.
//!
//! Two processes that start at the same time may make two directories. `Registry::open` chooses one of them.
//!
//! `XDG_RUNTIME_DIR` comes last. A process of cron or sudo does not have it, and the system removes it at logout, so the processes of one
//! user would use two directories.

use super::{RegistryError, io_error};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The parent directory of registries: shared memory if the machine has it, else `/tmp`, else this user's runtime directory.
pub fn default_base() -> PathBuf {
    let common = ["/dev/shm", "/tmp"].map(PathBuf::from);
    let runtime = ferroce_os::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    common.into_iter().chain(runtime).find(|path| is_usable(path)).unwrap_or_else(|| PathBuf::from("/tmp"))
}

fn is_usable(dir: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(dir.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` is a terminated string that outlives the call.
    dir.is_dir() && unsafe { libc::access(path.as_ptr(), libc::R_OK | libc::W_OK | libc::X_OK) } == 0
}

/// The directories of this user and network namespace in `base`, sorted. Usually there is one.
pub(super) fn own_directories(base: &Path) -> Result<Vec<PathBuf>, RegistryError> {
    let (entries, plain) = (std::fs::read_dir(base), plain_name());
    let entries = entries.map_err(|e| io_error(base, "list it", e))?.flatten();
    let is_named = |name: &str| {
        name.strip_prefix(&plain).is_some_and(|rest| {
            rest.is_empty()
                || rest.strip_prefix('-').is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()))
        })
    };
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_named));
    let mut own: Vec<PathBuf> = named.map(|entry| entry.path()).filter(|path| is_ours(path)).collect();
    own.sort_unstable();
    Ok(own)
}

/// Creates a directory for this user and network namespace in `base`.
///
/// The plain name can also be taken by accident: the kernel reuses namespace numbers, and root of a user namespace shares its
/// number with root.
pub(super) fn make_directory(base: &Path) -> Result<(), RegistryError> {
    let plain = plain_directory(base);
    match DirBuilder::new().mode(0o700).create(&plain) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && !is_ours(&plain) => {
            let random = base.join(format!("{}-{}", plain_name(), ferroce_os::random::number::<u64>()));
            DirBuilder::new().mode(0o700).create(&random).map_err(|e| io_error(&random, "create it", e))
        }
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(io_error(&plain, "create it", e)),
        _ => Ok(()),
    }
}

/// The directory in `base` that processes use unless another user has taken its name.
pub(super) fn plain_directory(base: &Path) -> PathBuf {
    base.join(plain_name())
}

fn plain_name() -> String {
    format!("ferroce-{}-{}", effective_uid(), network_namespace())
}

/// Whether `path` is a directory of this user that no other user may enter.
pub(super) fn is_ours(path: &Path) -> bool {
    open_no_follow(path)
        .and_then(|directory| directory.metadata())
        .is_ok_and(|meta| meta.uid() == effective_uid() && meta.mode() & 0o077 == 0)
}

fn open_no_follow(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// The effective user ID of this process.
pub fn effective_uid() -> u32 {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

/// The inode of this network namespace. Processes share UDP ports only within a network namespace, so each namespace has a registry.
fn network_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino())
}

#[cfg(test)]
mod tests {
    use super::super::Registry;
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::sync::Barrier;

    fn fresh_base(name: &str) -> PathBuf {
        let base = default_base().join(format!("ferroce-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        base
    }

    fn open(base: &Path) -> PathBuf {
        Registry::open(base).unwrap().directory().to_path_buf()
    }

    #[test]
    fn a_directory_that_others_may_enter_is_passed_over() {
        let base = fresh_base("mode");
        let first = open(&base);
        assert_eq!((open(&base), &first), (first.clone(), &plain_directory(&base)));
        std::fs::set_permissions(&first, PermissionsExt::from_mode(0o770)).unwrap();
        let second = open(&base);
        assert_ne!(second, first);
        assert_eq!(open(&base), second);
        std::fs::remove_dir_all(base).unwrap();
    }

    /// Another user takes every name that can be guessed, and later removes the plain one.
    #[test]
    fn names_that_others_take_neither_block_nor_split() {
        let base = fresh_base("taken");
        let (plain, elsewhere) = (plain_directory(&base), base.join("elsewhere"));
        DirBuilder::new().mode(0o700).create(&elsewhere).unwrap();
        symlink(&elsewhere, &plain).unwrap();
        for number in 0..64 {
            symlink(&elsewhere, format!("{}-{number}", plain.display())).unwrap();
        }
        let first = Registry::open(&base).unwrap();
        assert!(is_ours(first.directory()) && !elsewhere.join("lock").exists());
        std::fs::remove_file(&plain).unwrap();
        let second = Registry::open(&base).unwrap();
        assert_eq!(first.directory(), second.directory());
        assert_ne!(first.slot(), second.slot());
        std::fs::remove_dir_all(base).unwrap();
    }

    /// A second directory is not used while a process has a slot in the first.
    #[test]
    fn of_two_directories_the_one_in_use_counts() {
        let base = fresh_base("two");
        let [low, high] = ["-1", "-2"].map(|end| format!("{}{end}", plain_directory(&base).display()));
        DirBuilder::new().mode(0o700).create(&high).unwrap();
        let member = Registry::open(&base).unwrap();
        assert_eq!(member.directory(), Path::new(&high));
        DirBuilder::new().mode(0o700).create(&low).unwrap();
        assert_eq!(Registry::open(&base).unwrap().directory(), member.directory());
        std::fs::remove_dir_all(base).unwrap();
    }

    /// Processes that start together while the plain name is taken may each make a directory, but all enter the same one.
    #[test]
    fn processes_that_start_together_enter_one_directory() {
        let base = fresh_base("together");
        symlink("/", plain_directory(&base)).unwrap();
        for _ in 0..50 {
            let start = Barrier::new(4);
            let open = || {
                start.wait();
                Registry::open(&base).unwrap()
            };
            let registries: Vec<Registry> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let directory = registries[0].directory().to_path_buf();
            assert!(registries.iter().all(|registry| registry.directory() == directory));
            drop(registries);
            own_directories(&base).unwrap().iter().for_each(|path| std::fs::remove_dir_all(path).unwrap());
        }
        std::fs::remove_dir_all(base).unwrap();
    }
}
