//! The library, built as `cargo build` builds it: a test of a cdylib does not make one.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library itself.
pub(crate) fn library() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "ferroce-ibverbs"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs");
    assert!(built.success(), "cargo build --package ferroce-ibverbs: {built}");
    // <target>/tmp is where cargo lets integration tests write.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target folder");
    target.join("debug/libibverbs.so")
}

/// A folder in which the loader finds it under the name that programs ask for.
pub(crate) fn library_folder() -> PathBuf {
    let library = library();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("lib.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    let link = folder.join("libibverbs.so.1");
    if let Err(error) = std::os::unix::fs::symlink(&library, &link) {
        assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{}: {error}", link.display());
    }
    folder
}
