//! The libraries, built with `cargo build`: testing a cdylib does not build it.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names an existing libibverbs, next to librdmacm, for a user who can neither run cargo here nor write to its folder.
const BUILT: &str = "FERROCE_TEST_LIBRARY";

/// The folder in which tests may write.
pub(crate) fn scratch() -> PathBuf {
    match std::env::var_os(BUILT) {
        Some(_) => std::env::temp_dir(),
        None => PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
    }
}

/// The folder with both libraries, under cargo's names.
fn built() -> PathBuf {
    if let Some(verbs) = std::env::var_os(BUILT) {
        return Path::new(&verbs).parent().expect("a file lies in a folder").to_path_buf();
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "--package", "ferroce-ibverbs", "--package", "ferroce-rdmacm"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .expect("cargo runs");
    assert!(built.success(), "cargo build: {built}");
    // Integration tests may write to <target>/tmp.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target folder");
    target.join("debug")
}

/// The library itself.
pub(crate) fn library() -> PathBuf {
    built().join("librdmacm.so")
}

/// A folder in which the loader finds both libraries by their SONAMEs.
pub(crate) fn library_folder() -> PathBuf {
    let built = built();
    let folder = scratch().join(format!("cm-lib.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("the folder for tests can be written");
    for name in ["libibverbs.so", "librdmacm.so"] {
        for link in [folder.join(name), folder.join(format!("{name}.1"))] {
            if let Err(error) = std::os::unix::fs::symlink(built.join(name), &link) {
                assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists, "{}: {error}", link.display());
            }
        }
    }
    folder
}
