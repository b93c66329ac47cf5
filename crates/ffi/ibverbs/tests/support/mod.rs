//! The library, built as `cargo build` builds it: a test of a cdylib does not make one.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names a library that is built already. A user without rights cannot run cargo here, nor write to its folder.
const BUILT: &str = "FERROCE_TEST_LIBRARY";

/// Where tests may write.
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

/// Cargo's target folder: <target>/tmp is where it lets integration tests write.
pub(crate) fn target_folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target folder").to_path_buf()
}

/// Whether cargo can be run, and its folder be written.
pub(crate) fn may_build() -> bool {
    std::env::var_os(BUILT).is_none()
}

/// A folder in which the loader finds it under the name that programs ask for.
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
