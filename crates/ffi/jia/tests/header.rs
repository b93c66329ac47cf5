//! The macros of include/jia.h, in a C program without the library.

use std::process::Command;

const PROGRAM: &str = r#"
#include <jia.h>
int jia_lock_index, jia_pause_index;
void ferroce_jia_fail(const char *sentence) { (void)sentence; }
unsigned long ferroce_jia_place(unsigned long bytes, int flag, unsigned long block, int *blocks, int count, int home)
{
    (void)bytes, (void)flag, (void)block, (void)blocks, (void)count, (void)home;
    return 0;
}
int main(void)
{
    int expected;
    for (expected = 0; expected < 2000; expected++) {
        PAUSEDEC(pause)
        PAUSEINIT(pause)
        if (pause != expected)
            return 1;
    }
    return 0;
}
"#;

/// The library refuses numbers beyond its last flag, so the macro must not reuse one.
#[test]
fn no_two_pauses_share_a_flag() {
    let scratch = std::env::temp_dir().join(format!("jia-pauses-{}", std::process::id()));
    std::fs::create_dir(&scratch).expect("a folder of our own");
    let [source, program] = ["jia-pauses.c", "jia-pauses"].map(|name| scratch.join(name));
    std::fs::write(&source, PROGRAM).expect("the folder for tests can be written");
    let mut cc = Command::new("cc");
    cc.args(["-Wall", "-Werror", "-I", concat!(env!("CARGO_MANIFEST_DIR"), "/include"), "-o"]);
    let Ok(out) = cc.arg(&program).arg(&source).output() else {
        return println!("SKIPPED: cc is missing; it is in the package gcc");
    };
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(Command::new(&program).status().expect("the program runs").success());
    std::fs::remove_dir_all(scratch).expect("our own folder");
}
