//! The command from outside: exit statuses, sentences, two sides of a test, a captured program.

mod support;

use std::net::UdpSocket;
use support::{Server, both_sides, ferroce, outcome};

#[test]
fn wrong_command_lines_end_with_2() {
    for (line, word) in [
        ("perf read-lat -c uc", "reliable"),
        ("perf write-bw -c ud", "WRITE"),
        ("perf send-lat -q 4", "-q"),
        ("perf send-lat -T 4", "-T"),
        ("perf send-bw -T 65", "64"),
        ("perf tcp-bw -T 2", "no -T"),
        ("perf send-bw -s 64 -a", "--all"),
        ("perf write-lat -e", "-e"),
        ("perf send-bw -c ud -s 8192", "4096"),
        ("perf atomic-bw -s 16", "8 bytes"),
        ("perf send-bw -t 16 -l 32", "-l"),
        ("perf send-bw -I 4096", "-I"),
        ("perf send-bw -m 1500", "-m"),
        ("perf send-bw -q 16384 -t 8192", "-q"),
        ("perf send-lat -Q 4", "belongs to the -bw tests"),
        ("perf send-lat -l 4", "(-l)"),
        ("perf tcp-bw -e", "plain socket"),
        ("perf udp-lat -x 3", "no -x"),
        ("perf qps --count 20000", "16384"),
        ("perf loss --seed 3", "--loss"),
        ("perf --loss 200%", "share"),
        ("perf-peer", "ferroce perf"),
        ("capture -o x.pcapng", "COMMAND"),
        ("dance", "dance"),
    ] {
        let found = outcome(&mut ferroce(line));
        assert_eq!((found.code, found.stdout.as_str()), (2, ""), "{line}: {found:?}");
        assert!(found.stderr.contains(word), "{line}: {found:?}");
    }
}

/// The whole suite takes a minute, so its preconditions are checked first.
#[test]
fn preconditions_of_the_suite_are_checked_first() {
    let found = outcome(&mut ferroce("perf --quick --report /nowhere/at/all/r.html"));
    assert_eq!((found.code, found.stdout.as_str()), (1, ""), "{found:?}");
    assert!(found.stderr.contains("cannot write the report /nowhere/at/all/r.html"), "{found:?}");
    let addr = "127.77.21.1";
    let _owner = UdpSocket::bind((addr, 4791)).expect("a socket of this test");
    let found = outcome(ferroce("perf --quick --no-report").env("FERROCE_ADDR", addr));
    assert_eq!((found.code, found.stdout.as_str()), (1, ""), "{found:?}");
    assert!(found.stderr.contains("is taken by"), "{found:?}");
}

#[test]
fn a_missing_server_is_explained() {
    let found = outcome(&mut ferroce("perf tcp-lat 127.0.0.1 -p 1"));
    assert_eq!(found.code, 1);
    assert!(found.stderr.contains("ferroce perf tcp-lat -p 1"), "{found:?}");
}

#[test]
fn an_unreachable_address_gets_no_advice_to_start_a_server() {
    // The broadcast address: the kernel refuses to connect to it, whatever the machine has.
    let found = outcome(&mut ferroce("perf tcp-lat 255.255.255.255 -p 1"));
    assert_eq!(found.code, 1);
    assert!(
        found.stderr.contains("This machine has no route to it") && !found.stderr.contains("Start it"),
        "{found:?}"
    );
}

#[test]
fn internal_commands_are_not_suggested() {
    let found = outcome(&mut ferroce("pref"));
    assert_eq!(found.code, 2);
    assert!(found.stderr.contains("'perf'") && !found.stderr.contains("peer"), "{found:?}");
}

#[test]
fn two_sides_measure_sockets() {
    for (test, size, figure) in [
        ("tcp-lat", 64, "latency"),
        ("tcp-rr", 64, "latency"),
        ("tcp-bw", 64, "bandwidth"),
        ("udp-lat", 64, "latency"),
        ("udp-bw", 8192, "bandwidth"),
        ("udp-bw", 1 << 20, "bandwidth"),
    ] {
        let line = &both_sides(test, &format!("-s {size} -n 10"))[0];
        assert_eq!(line["params"]["size"], size);
        let count = if figure == "latency" { "samples" } else { "messages" };
        let found = line[figure][count].as_u64().unwrap_or_default();
        // A plain UDP socket whose buffer overflows loses datagrams, and its count shows that.
        let least = if test == "udp-bw" { 1 } else { 10 };
        assert!((least..=10).contains(&found), "{line}");
    }
}

#[test]
fn a_server_names_what_it_refuses() {
    let server = Server::start("perf tcp-bw -s 64");
    let found = outcome(&mut ferroce(&format!("perf tcp-bw 127.0.0.1 -p {} -s 128", server.port)));
    assert_eq!(found.code, 1);
    assert!(found.stderr.contains("-s"), "{found:?}");
    let (code, output) = server.end();
    assert_eq!(code, Some(1));
    assert!(output.contains("refused the client"), "{output}");
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
    let found = outcome(&mut command);
    assert_eq!(found.code, 7, "{found:?}");
    let summary: serde_json::Value = serde_json::from_str(&found.stdout).expect("JSON");
    assert_eq!((&summary["packets"], &summary["exit_status"]), (&2.into(), &7.into()), "{found:?}");
    assert_eq!(summary["files"].as_array().map(Vec::len), Some(2));
    std::fs::remove_dir_all(&folder).expect("our own folder");
}
