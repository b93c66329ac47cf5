//! A program with more rights than its caller ignores the caller's variables.

use ferroce_nic::Config;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

/// Settings that are errors, or name a file to write.
const VARIABLES: [(&str, &str); 4] = [
    ("FERROCE_ADDR", "nonsense"),
    ("FERROCE_CM_KEY", "/nonsense"),
    ("FERROCE_CAPTURE", "/tmp/ferroce-setuid.pcap"),
    ("FERROCE_REPORT", "/tmp"),
];

/// Runs this test again, as the program `file`. The child executes only `reads_its_settings`.
fn child(file: &std::path::Path) -> std::process::Output {
    let mut command = Command::new(file);
    command.args(["--exact", "reads_its_settings", "--ignored", "--nocapture"]);
    command.envs(VARIABLES).output().expect("the copy starts")
}

#[test]
#[ignore = "a role of the test below"]
fn reads_its_settings() {
    let config = Config::from_env();
    let capture = config.as_ref().ok().and_then(|config| config.capture.clone());
    println!("understood {}, capture {capture:?}", config.is_ok());
}

#[test]
fn a_setuid_program_reads_no_variable_of_ours() {
    let own = std::env::current_exe().expect("this test");
    let plain = String::from_utf8(child(&own).stdout).expect("text");
    assert!(plain.contains("understood false"), "{plain}");
    if std::fs::metadata("/proc/self").expect("Linux").uid() != 0 {
        println!(
            "SKIPPED: only root may make a file of another user that is setuid; the step `test` runs as root"
        );
        return;
    }
    let copy = std::env::temp_dir().join(format!("ferroce-setuid-{}", std::process::id()));
    std::fs::copy(&own, &copy).expect("a file of ours");
    std::os::unix::fs::chown(&copy, Some(65534), Some(65534)).expect("root may");
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).expect("a file of ours");
    let output = child(&copy);
    std::fs::remove_file(&copy).expect("a file of ours");
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains("understood true, capture None"), "{text}");
}
