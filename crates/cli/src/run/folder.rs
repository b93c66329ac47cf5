//! A temporary folder of one run, for files that a program needs where no namespace can provide them.

use crate::failure::Failure;
use crate::program::CANNOT_RUN;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Held open and locked by the run that the folder belongs to.
const LOCK: &str = "lock";

/// The folder; removed when dropped. The next run removes that of a killed run.
pub(crate) struct PrivateFolder {
    path: PathBuf,
    _lock: File,
}

impl PrivateFolder {
    /// Makes it.
    pub(crate) fn make() -> Result<PrivateFolder, Failure> {
        let base = ferroce_nic::registry::default_base();
        let prefix = format!("ferroce-run-{}-", rustix::process::geteuid().as_raw());
        sweep(&base, &prefix);
        // One run may need several.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let path = base.join(format!("{prefix}{}-{number}", std::process::id()));
        make_at(path).map_err(|error| {
            Failure::io(format!("cannot make a folder in {}", base.display()), error)
                .exit_with(CANNOT_RUN)
                .advise("Free some space there, or make it writable")
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

fn make_at(path: PathBuf) -> io::Result<PrivateFolder> {
    DirBuilder::new().mode(0o700).create(&path)?;
    let lock = File::create_new(path.join(LOCK))?;
    lock.lock()?;
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
