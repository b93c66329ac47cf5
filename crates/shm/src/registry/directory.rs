//! The directory that the processes of one user share.
//!
//! Its parent is writable by everybody, so another user may have made the directory first, or a symbolic link in its
//! place. Whoever owns it could then receive our packets. So owner, kind and mode are checked on the opened directory.

use super::{RegistryError, io_error};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Names to try for the directory.
const NAMES: u32 = 8;

/// Where registries live: shared memory if the machine has it, else this user's runtime directory, else `/tmp`.
pub fn default_base() -> PathBuf {
    let shm = PathBuf::from("/dev/shm");
    if is_writable(&shm) {
        return shm;
    }
    let runtime = ferroce_os::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    runtime.filter(|p| is_writable(p)).unwrap_or_else(|| PathBuf::from("/tmp"))
}

fn is_writable(dir: &Path) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(dir.as_os_str().as_bytes()) else { return false };
    // SAFETY: `path` is a terminated string that outlives the call.
    dir.is_dir() && unsafe { libc::access(path.as_ptr(), libc::W_OK | libc::X_OK) } == 0
}

/// Makes or opens the directory of this user and network namespace and returns its path.
///
/// A name that somebody else has taken is passed over; all processes of this user pass over the same ones. Malice is not
/// needed for that: namespace numbers are used again, and root of a user namespace shares its number with root.
pub(crate) fn open_directory(base: &Path) -> Result<PathBuf, RegistryError> {
    let name = format!("ferroce-{}-{}", effective_uid(), network_namespace());
    let mut refusal = None;
    for number in 0..NAMES {
        let suffix = if number == 0 { String::new() } else { format!("-{number}") };
        match open_named(&base.join(format!("{name}{suffix}"))) {
            Err(e @ RegistryError::Untrusted { .. }) => refusal = refusal.or(Some(e)),
            result => return result,
        }
    }
    Err(refusal.expect("every name was refused"))
}

fn open_named(path: &Path) -> Result<PathBuf, RegistryError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(io_error(path, "create it", e)),
        _ => {}
    }
    let directory = open_no_follow(path).map_err(|e| match e.raw_os_error() {
        Some(libc::ELOOP | libc::ENOTDIR) => untrusted(path, "it is not a directory".into()),
        Some(libc::EACCES) => untrusted(path, "it belongs to somebody else".into()),
        _ => io_error(path, "open it", e),
    })?;
    let meta = directory.metadata().map_err(|e| io_error(path, "read its owner", e))?;
    if meta.uid() != effective_uid() {
        return Err(untrusted(path, format!("it belongs to user {}", meta.uid())));
    }
    if meta.mode() & 0o077 != 0 {
        return Err(untrusted(path, format!("others may enter it (mode {:o})", meta.mode() & 0o777)));
    }
    Ok(path.to_path_buf())
}

fn open_no_follow(path: &Path) -> io::Result<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn untrusted(path: &Path, why: String) -> RegistryError {
    RegistryError::Untrusted { path: path.to_path_buf(), why }
}

/// The user whose rights this process has.
pub fn effective_uid() -> u32 {
    // SAFETY: cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

/// Processes share UDP ports exactly if they share the network namespace, so each has a registry of its own.
fn network_namespace() -> u64 {
    std::fs::metadata("/proc/self/ns/net").map_or(0, |m| m.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn fresh_base(name: &str) -> PathBuf {
        let base = std::env::temp_dir().join(format!("ferroce-test-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&base).unwrap();
        base
    }

    #[test]
    fn a_directory_that_others_may_enter_is_passed_over() {
        let base = fresh_base("mode");
        let first = open_directory(&base).unwrap();
        assert_eq!(open_directory(&base).unwrap(), first);
        std::fs::set_permissions(&first, PermissionsExt::from_mode(0o770)).unwrap();
        let second = open_directory(&base).unwrap();
        assert_ne!(second, first);
        assert_eq!(open_directory(&base).unwrap(), second);
        std::fs::remove_dir_all(base).unwrap();
    }

    #[test]
    fn symbolic_links_everywhere_are_refused() {
        let base = fresh_base("link");
        let path = open_directory(&base).unwrap();
        let elsewhere = base.join("elsewhere");
        std::fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        for number in 1..NAMES {
            symlink(&elsewhere, format!("{}-{number}", path.display())).unwrap();
        }
        let error = open_directory(&base).unwrap_err();
        assert!(matches!(error, RegistryError::Untrusted { .. }), "{error}");
        std::fs::remove_dir_all(base).unwrap();
    }
}
