//! A temporary folder of one run, for files that a program needs where no namespace can provide them.
//!
//! Every user may create files in the parent folder, so the name is random: no other user can create it first.

use crate::failure::Failure;
use crate::program::CANNOT_RUN;
use ferroce_os::random;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Held open and locked by the run that the folder belongs to.
const LOCK: &str = "lock";

/// The folder; removed when dropped. The next run removes that of a killed run.
pub(crate) struct PrivateFolder {
    path: PathBuf,
    _lock: File,
}

impl PrivateFolder {
    /// Makes the folder.
    pub(crate) fn make() -> Result<PrivateFolder, Failure> {
        Self::make_in(&ferroce_nic::registry::default_base())
    }

    fn make_in(base: &Path) -> Result<PrivateFolder, Failure> {
        let prefix = format!("ferroce-run-{}-", rustix::process::geteuid().as_raw());
        sweep(base, &prefix);
        make_at(base.join(format!("{prefix}{:016x}", random::number::<u64>()))).map_err(|error| {
            Failure::io(format!("cannot make a folder in {}", base.display()), error)
                .exit_with(CANNOT_RUN)
                .advise("Free some space there, or make it writable")
        })
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn make_at(path: PathBuf) -> io::Result<PrivateFolder> {
    DirBuilder::new().mode(0o700).create(&path)?;
    // The file gets the name of the lock once it is locked: another run that sweeps now removes folders whose lock is free.
    let unnamed = path.join("unnamed");
    let lock = File::create_new(&unnamed)?;
    lock.lock()?;
    std::fs::rename(unnamed, path.join(LOCK))?;
    Ok(PrivateFolder { path, _lock: lock })
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // The next run removes what cannot be removed now.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes the folders of runs that ended without doing so. Process IDs do not identify them: they are reused, and
/// containers have their own.
fn sweep(base: &Path, prefix: &str) {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let own = |path: &Path| {
        path.symlink_metadata()
            .is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
    };
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    for path in ours.map(|entry| entry.path()).filter(|path| own(path)) {
        let abandoned = File::open(path.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok());
        if abandoned {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another user creates every name that contains this process's id and a small number.
    #[test]
    fn names_that_others_take_do_not_block_a_run() {
        let base = std::env::temp_dir().join(format!("ferroce-taken-{}", std::process::id()));
        let plain = format!("ferroce-run-{}-{}-", rustix::process::geteuid().as_raw(), std::process::id());
        for number in 0..64 {
            std::fs::create_dir_all(base.join(format!("{plain}{number}"))).expect("a folder");
        }
        let folders = [(); 2].map(|()| PrivateFolder::make_in(&base).expect("a folder with another name"));
        let is_private = |folder: &PrivateFolder| {
            folder.path().symlink_metadata().expect("it exists").mode() & 0o777 == 0o700
        };
        assert!(folders.iter().all(is_private));
        drop(folders);
        assert_eq!(std::fs::read_dir(&base).expect("a folder").count(), 64, "both are removed");
        std::fs::remove_dir_all(base).expect("our own folder");
    }

    #[test]
    fn abandoned_folders_are_swept_and_others_are_not() {
        let base = std::env::temp_dir().join(format!("ferroce-folder-{}", std::process::id()));
        std::fs::create_dir_all(&base).expect("a folder");
        let (dead, alive, foreign) = (base.join("run-1"), base.join("run-2"), base.join("other-3"));
        for path in [&dead, &foreign] {
            std::fs::create_dir(path).expect("a folder");
            std::fs::write(path.join(LOCK), "").expect("a file");
        }
        let held = make_at(alive.clone()).expect("a folder");
        sweep(&base, "run-");
        assert_eq!((dead.exists(), alive.exists(), foreign.exists()), (false, true, true));
        drop(held);
        assert!(!alive.exists());
        std::fs::remove_dir_all(base).expect("our own folder");
    }
}
