//! `__realpath_chk` in a C program with the library preloaded: it keeps libc's check of the buffer.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = r#"
#include <limits.h>
#include <stdlib.h>
#include <string.h>
char *__realpath_chk(const char *path, char *answer, size_t room);
int main(int argc, char **argv)
{
    static char answer[PATH_MAX];
    size_t room = argc > 1 ? (size_t)atoi(argv[1]) : sizeof answer;
    return __realpath_chk("/./", answer, room) != answer || strcmp(answer, "/") != 0;
}
"#;

#[test]
fn a_buffer_that_is_too_small_ends_the_program() {
    let scratch = std::env::temp_dir().join(format!("shim-realpath-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("a folder of our own");
    let [source, program] = ["shim-realpath.c", "shim-realpath"].map(|name| scratch.join(name));
    std::fs::write(&source, PROGRAM).expect("the folder for tests can be written");
    let Ok(out) = Command::new("cc").arg("-o").arg(&program).arg(&source).output() else {
        return println!("SKIPPED: cc is missing; it is in the package gcc");
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("tmp lies in the target folder");
    // Set for the unprivileged user, who may not build: the library is there from the tests of root.
    if std::env::var_os("FERROCE_TEST_LIBRARY").is_none() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "ferroce-shim"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(built.expect("cargo runs").success());
    }
    let library = target.join("debug/libferroce_shim.so");
    assert!(library.exists(), "{} is missing", library.display());
    let mut run = Command::new(&program);
    run.env("LD_PRELOAD", library);
    assert!(run.output().expect("the program runs").status.success());
    let aborted = run.arg("10").output().expect("the program runs").status;
    assert_eq!(aborted.signal(), Some(6), "SIGABRT, and not {aborted}");
    std::fs::remove_dir_all(scratch).expect("our own folder");
}
