//! Programs that xtask starts end with it, however it ends.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// In the place of cargo: a child, and a grandchild in a session of its own. Both hold the output.
const CARGO: &str = "#!/bin/sh
setsid sh -c 'sleep 20; echo survived' &
echo started
wait
";

#[test]
fn programs_end_with_a_killed_xtask() {
    let cargo = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cargo-that-stays");
    std::fs::write(&cargo, CARGO).expect("a file");
    std::fs::set_permissions(&cargo, PermissionsExt::from_mode(0o755)).expect("our own file");
    for signal in ["KILL", "TERM"] {
        let mut xtask = Command::new(env!("CARGO_BIN_EXE_xtask"))
            .arg("bench")
            .env("CARGO", &cargo)
            .env_remove("XTASK_PID_NAMESPACE")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("xtask starts");
        let mut output = BufReader::new(xtask.stdout.take().expect("a pipe"));
        let mut started = String::new();
        output.read_line(&mut started).expect("output");
        assert_eq!(started, "started\n");
        let killed = Command::new("kill").args(["-s", signal, &xtask.id().to_string()]).status();
        assert!(killed.expect("kill starts").success());
        // Both outputs end with the last process that holds them.
        let (mut rest, mut errors) = (String::new(), String::new());
        output.read_to_string(&mut rest).expect("output");
        xtask.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("output");
        xtask.wait().expect("it has ended");
        if errors.contains("no PID namespace can be made here") {
            println!("SKIPPED: {errors}");
            return;
        }
        assert_eq!(rest, "", "after SIG{signal}");
    }
}
