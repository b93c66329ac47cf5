//! Reads keys for secure setup from files that other users cannot read.

use ferroce_proto::cm::Secret;
use ferroce_shm::registry::effective_uid;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The longest key file.
const MAX_LEN: u64 = 4096;

/// Why a file is no key.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// It cannot be read.
    #[error("the key file cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is a folder, a pipe or the like.
    #[error("the key file is not a regular file")]
    NotAFile,
    /// Others may read or change it.
    #[error("the key file has mode {mode:04o}, so that others can read or change it; `chmod 600` it")]
    Open {
        /// Its permissions.
        mode: u32,
    },
    /// It belongs to another user, who can change it.
    #[error("the key file belongs to user {owner}, not to user {user} or root")]
    Foreign {
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// Too short or too long.
    #[error("the key file holds {len} bytes without the newline at its end; a key has {min} to {max}")]
    Length {
        /// Its number of bytes.
        len: u64,
        /// The smallest length.
        min: usize,
        /// The largest length.
        max: u64,
    },
}

/// Reads a key of at least 16 bytes from a file. A newline at its end is not part of the key. The file must belong to this user or root,
/// and its mode must grant no right to the group or to others.
pub fn read_key(path: &Path) -> Result<Secret, KeyError> {
    // Opening a FIFO blocks until another process writes to it. Non-blocking, it is opened and then refused.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    // Of the opened file: the path may be replaced at any time.
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Err(KeyError::NotAFile);
    }
    let (mode, owner, user) = (meta.mode() & 0o7777, meta.uid(), effective_uid());
    if mode & 0o077 != 0 {
        return Err(KeyError::Open { mode });
    }
    if owner != user && owner != 0 {
        return Err(KeyError::Foreign { owner, user });
    }
    let mut bytes = Vec::new();
    file.take(MAX_LEN + 1).read_to_end(&mut bytes)?;
    let key = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
    let wrong_length = KeyError::Length { len: key.len() as u64, min: Secret::MIN_LEN, max: MAX_LEN };
    if key.len() as u64 > MAX_LEN {
        return Err(wrong_length);
    }
    Secret::new(key).ok_or(wrong_length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_files_that_nobody_else_can_touch_are_keys() {
        let directory = std::env::temp_dir().join(format!("ferroce-key-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("key");
        let with = |bytes: &[u8], mode: u32| {
            // The mode of the previous file may forbid even its owner to write.
            let _ = std::fs::remove_file(&path);
            write(&path, bytes).unwrap();
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            read_key(&path)
        };
        let good = with(b"0123456789abcdef\n", 0o600).unwrap();
        assert_eq!(good, with(b"0123456789abcdef", 0o400).unwrap(), "the newline is no part of it");
        assert_ne!(good, with(b"0123456789abcdeg", 0o600).unwrap());
        for mode in [0o640, 0o604, 0o660, 0o644, 0o602, 0o601] {
            assert!(matches!(with(&[1; 32], mode), Err(KeyError::Open { mode: m }) if m == mode), "{mode:o}");
        }
        assert!(matches!(with(b"0123456789abcde\n", 0o600), Err(KeyError::Length { len: 15, .. })));
        assert!(matches!(with(&[1; 4097], 0o600), Err(KeyError::Length { .. })));
        assert!(matches!(read_key(&directory), Err(KeyError::NotAFile)));
        let fifo = directory.join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        assert!(matches!(read_key(&fifo), Err(KeyError::NotAFile)), "without waiting for a writer");
        assert!(matches!(read_key(&directory.join("none")), Err(KeyError::Unreadable(_))));
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
