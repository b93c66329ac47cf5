//! `ferroce run --timeline` on a C program: packets and operations on one time axis, and operations alone.

mod support;

use std::path::{Path, PathBuf};
use support::{build_library, cc, ferroce, has_compiler, outcome, scratch};

/// The compiled program in a folder of its own. `None`, with the reason printed, if this machine cannot compile.
fn program(name: &str) -> Option<PathBuf> {
    if !Path::new("/usr/include/infiniband/verbs.h").exists() {
        println!("SKIPPED: <infiniband/verbs.h> is missing; it is in the package libibverbs-dev");
        return None;
    }
    if !has_compiler() {
        return None;
    }
    build_library("ferroce-ibverbs");
    build_library("ferroce-shim");
    let folder = scratch().join(format!("timeline.{name}.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (source, headers) = (sources.join("tests/c/operations.c"), sources.join("../../programs/mistakes"));
    let flags = "-Wall -Wextra -Wno-missing-field-initializers -Wno-unused-function";
    cc(&folder, &format!("{flags} -I{} -o operations {} -libverbs", headers.display(), source.display()));
    Some(folder)
}

#[test]
fn the_page_has_packets_posts_and_completions() {
    let Some(folder) = program("packets") else { return };
    let found = outcome(ferroce("run --timeline x.html -- ./operations").current_dir(&folder));
    assert_eq!(found.code, 0, "{found:?}");
    assert!(found.stderr.contains("The page: ") && found.stderr.contains("packets in "), "{found:?}");
    let page = std::fs::read_to_string(folder.join("x.html")).expect("the page");
    for words in [
        "The program posts a SEND of 3000 B, wr_id 1.",
        "The program posts a RECV of 4 KiB, wr_id 2.",
        "The program polls the completion of an RDMA WRITE, wr_id 1: success.",
        "failed with status 13",
        "First packet of a SEND with 1 KiB of payload.",
        "RNR NAK: the receiver has no receive posted.",
    ] {
        assert!(page.contains(words), "{words}");
    }
    let again = outcome(ferroce("timeline x.pcapng x.operations.jsonl --json").current_dir(&folder)).json();
    let connection = &again["connections"][0];
    assert_eq!(again["connections"].as_array().map(Vec::len), Some(1), "{again}");
    assert_eq!(
        (&connection["operations"]["posts"], &connection["operations"]["completions"]),
        (&4.into(), &4.into())
    );
    assert_eq!(connection["operations"]["failed"], 1, "{connection}");
    // The page of a second run in the same folder, and the command that reads it again, have nothing of the first.
    let found = outcome(ferroce("run --timeline x.html --no-packets -- ./operations").current_dir(&folder));
    let command = found.stderr.lines().find_map(|line| line.strip_prefix("Read it again: ferroce "));
    let command = command.unwrap_or_else(|| panic!("no command: {found:?}"));
    let again = outcome(ferroce(&format!("{command} --json")).current_dir(&folder)).json();
    assert_eq!(
        (&again["packets"], &again["connections"][0]["operations"]["posts"]),
        (&0.into(), &4.into()),
        "{again}"
    );
    std::fs::remove_dir_all(folder).expect("our own folder");
}

#[test]
fn traffic_without_packets_shows_as_operations() {
    let Some(folder) = program("operations") else { return };
    let found = outcome(ferroce("run --timeline x.html --no-packets -- ./operations").current_dir(&folder));
    assert_eq!(found.code, 0, "{found:?}");
    assert!(!folder.join("x.pcapng").exists());
    let page = std::fs::read_to_string(folder.join("x.html")).expect("the page");
    assert!(
        page.contains("the program; no packet was captured") && page.contains("From post to completion"),
        "{found:?}"
    );
    // A SEND, a WRITE, a RECV and the failed SEND, each as a bar from post to completion.
    assert_eq!(page.matches("<tr data-m=").count(), 4, "{page}");
    std::fs::remove_dir_all(folder).expect("our own folder");
}

#[test]
fn files_that_are_no_captures_are_explained() {
    let folder = scratch().join(format!("timeline.none.{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder of ours");
    std::fs::write(folder.join("text"), "this is no capture").expect("our own file");
    std::fs::write(folder.join("empty"), "").expect("our own file");
    for (line, word) in [
        ("timeline text", "neither pcapng nor pcap"),
        ("timeline empty", "empty"),
        ("timeline missing.pcapng", "missing.pcapng"),
        ("timeline .", "no regular file"),
    ] {
        let found = outcome(ferroce(line).current_dir(&folder));
        assert_eq!((found.code, found.stdout.as_str()), (1, ""), "{line}: {found:?}");
        assert!(found.stderr.contains(word), "{line}: {found:?}");
    }
    std::fs::remove_dir_all(folder).expect("our own folder");
}
