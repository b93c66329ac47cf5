//! The library, built with `cargo build`: testing a cdylib does not build it.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names an existing library, for a user who can neither run cargo here nor write to its folder.
const BUILT: &str = "FERROCE_TEST_LIBRARY";

/// The folder in which tests may write.
pub(crate) fn scratch() -> PathBuf {
    match std::env::var_os(BUILT) {
        Some(_) => std::env::temp_dir(),
        None => PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
    }
}

/// The library itself.
pub(crate) fn library() -> PathBuf {
    if let Some(built) = std::env::var_os(BUILT) {
        return built.into();
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "ferroce-ibverbs"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs");
    assert!(built.success(), "cargo build --package ferroce-ibverbs: {built}");
    target_folder().join("debug/libibverbs.so")
}

/// Cargo's target folder. Integration tests may write to <target>/tmp.
pub(crate) fn target_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target folder").to_path_buf()
}

/// Whether the test can run cargo and write to its folder.
pub(crate) fn may_build() -> bool {
    std::env::var_os(BUILT).is_none()
}

/// A folder in which the loader finds the library by its SONAME.
pub(crate) fn library_folder() -> PathBuf {
    folder_of(&library(), "lib")
}

/// The same for any build of the library, in a folder with a name of its own.
pub(crate) fn folder_of(library: &Path, name: &str) -> PathBuf {
    let folder = scratch().join(format!("{name}.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder for tests can be written");
    let link = folder.join("libibverbs.so.1");
    if let Err(error) = std::os::unix::fs::symlink(library, &link) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{}: {error}", link.display());
    }
    folder
}
