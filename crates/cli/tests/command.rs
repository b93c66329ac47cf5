//! The command as a user meets it: exit statuses, sentences, two sides of a test, a captured program.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

fn ferroce(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferroce"));
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command
}

fn outcome(command: &mut Command) -> (i32, String, String) {
    let Output { status, stdout, stderr } = command.output().expect("the command runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (status.code().expect("no signal"), text(stdout), text(stderr))
}

/// Starts a server on a free port and returns it with the port that it names.
fn server(line: &str) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut child = ferroce(line).arg("-p0").stderr(Stdio::piped()).spawn().expect("the server starts");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut hint = String::new();
    said.read_line(&mut hint)
        .and_then(|_| said.read_line(&mut hint))
        .expect("it says how to start the client");
    let port = hint.split_whitespace().last().expect("the port").to_owned();
    (child, said, port)
}

#[test]
fn wrong_command_lines_end_with_2() {
    for (line, word) in [
        ("perf read-lat -c uc", "reliable"),
        ("perf write-bw -c ud", "WRITE"),
        ("perf send-lat -q 4", "-q"),
        ("perf send-bw -s 64 -a", "--all"),
        ("perf --loss 200%", "share"),
        ("perf-peer", "ferroce perf"),
        ("capture -o x.pcapng", "COMMAND"),
        ("dance", "dance"),
    ] {
        let (code, stdout, stderr) = outcome(&mut ferroce(line));
        assert_eq!((code, stdout.as_str()), (2, ""), "{line}: {stderr}");
        assert!(stderr.contains(word), "{line}: {stderr}");
    }
}

#[test]
fn a_missing_server_is_explained() {
    let (code, _, stderr) = outcome(&mut ferroce("perf tcp-lat 127.0.0.1 -p 1"));
    assert_eq!(code, 1);
    assert!(stderr.contains("ferroce perf tcp-lat -p 1"), "{stderr}");
}

#[test]
fn two_sides_measure_sockets() {
    for (test, figure) in
        [("tcp-lat", "latency"), ("tcp-rr", "latency"), ("tcp-bw", "bandwidth"), ("udp-lat", "latency")]
    {
        let (mut child, _said, port) = server(&format!("perf {test}"));
        let (code, stdout, stderr) =
            outcome(&mut ferroce(&format!("perf {test} 127.0.0.1 -p {port} -s 64 -n 10 --json")));
        assert_eq!(code, 0, "{test}: {stderr}");
        let lines: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
        let line = &lines[0];
        assert_eq!(line["params"]["size"], 64);
        let count = if figure == "latency" { "samples" } else { "messages" };
        assert_eq!(line[figure][count], 10, "{stdout}");
        assert!(child.wait().expect("the server ends").success(), "{test}");
    }
}

#[test]
fn a_server_names_what_it_refuses() {
    let (mut child, mut said, port) = server("perf tcp-bw -s 64");
    let (code, _, stderr) = outcome(&mut ferroce(&format!("perf tcp-bw 127.0.0.1 -p {port} -s 128")));
    assert_eq!(code, 1);
    assert!(stderr.contains("-s"), "{stderr}");
    assert_eq!(child.wait().expect("the server ends").code(), Some(1));
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut said, &mut rest).expect("text");
    assert!(rest.contains("refused the client"), "{rest}");
}

#[test]
fn capture_passes_status_and_variable_through() {
    let folder = std::env::temp_dir().join(format!("ferroce-capture-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let output = folder.join("x.pcapng");
    // A section header and one enhanced packet block, written by the "program" as a NIC would.
    let script = r#"printf '\012\015\015\012\034\0\0\0\115\074\053\032\001\0\0\0\377\377\377\377\377\377\377\377\034\0\0\0' > "$FERROCE_CAPTURE"
        printf '\006\0\0\0\014\0\0\0\014\0\0\0' >> "$FERROCE_CAPTURE"
        cp "$FERROCE_CAPTURE" "${FERROCE_CAPTURE%.pcapng}.$$.pcapng"
        exit 7"#;
    let mut command = ferroce("capture --json -o");
    command.arg(&output).args(["--", "sh", "-c", script]);
    let (code, stdout, stderr) = outcome(&mut command);
    assert_eq!(code, 7, "{stderr}");
    let summary: serde_json::Value = serde_json::from_str(&stdout).expect("JSON");
    assert_eq!((&summary["packets"], &summary["exit_status"]), (&2.into(), &7.into()), "{stdout}");
    assert_eq!(summary["files"].as_array().map(Vec::len), Some(2));
    std::fs::remove_dir_all(&folder).expect("our own folder");
}
