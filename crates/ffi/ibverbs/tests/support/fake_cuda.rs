//! Builds the fake CUDA driver that the tests of several crates load.

use std::path::Path;
use std::process::Command;

/// Builds the file `library`. Returns `false` and prints the reason if this machine has no C compiler.
pub(crate) fn build(library: &Path) -> bool {
    let mut cc = Command::new("cc");
    cc.args([
        "-Wall",
        "-Wextra",
        "-Werror",
        "-g",
        "-pthread",
        "-shared",
        "-fPIC",
        "-Wl,-soname,libcuda.so.1",
    ]);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().find_map(|folder| {
        let source = folder.join("crates/ffi/ibverbs/tests/c/fake_cuda.c");
        source.exists().then_some(source)
    });
    let Ok(built) = cc.arg("-o").arg(library).arg(source.expect("part of the repository")).status() else {
        println!("SKIPPED: cc is missing; it is in the package gcc");
        return false;
    };
    assert!(built.success(), "cc fake_cuda.c: {built}");
    true
}
