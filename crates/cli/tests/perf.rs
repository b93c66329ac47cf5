//! `ferroce perf` over RDMA between two processes: every test and transport, every option, and what happens when the
//! other side is killed, stops answering, or loses packets. No figure is judged, only that there is one.

#[path = "../../ffi/ibverbs/tests/support/fake_cuda.rs"]
mod fake_cuda;
mod support;

use serde_json::Value;
use std::sync::{Mutex, MutexGuard};
use support::{Server, both_sides, both_sides_with, cc, ferroce, outcome, scratch};

/// Each test polls with two processes; several would compete for the cores.
fn one_at_a_time() -> MutexGuard<'static, ()> {
    static SERIAL: Mutex<()> = Mutex::new(());
    SERIAL.lock().unwrap_or_else(|failed| failed.into_inner())
}

/// Checks the number of samples, and that the latencies are in order.
#[track_caller]
fn check_latency(line: &Value, samples: u64) {
    let latency = &line["latency"];
    let ns = |key: &str| latency[key].as_f64().unwrap_or_else(|| panic!("no {key} in {line}"));
    assert_eq!(latency["samples"], samples, "{line}");
    assert!(
        0.0 < ns("min_ns") && ns("min_ns") <= ns("median_ns") && ns("median_ns") <= ns("max_ns"),
        "{line}"
    );
}

/// Checks a rate over this many messages. An unreliable transport may lose some.
#[track_caller]
fn check_bandwidth(line: &Value, messages: u64) {
    let bandwidth = &line["bandwidth"];
    let lost = bandwidth["lost"].as_u64();
    assert_eq!(lost.is_some(), line["params"]["transport"] != "rc", "{line}");
    let arrived = bandwidth["messages"].as_u64().expect("a number");
    assert_eq!(arrived + lost.unwrap_or(0), messages, "{line}");
    assert_eq!(bandwidth["bytes"].as_u64(), Some(arrived * line["params"]["size"].as_u64().expect("a size")));
    assert!(bandwidth["gigabytes_per_s"].as_f64().expect("a number") > 0.0, "{line}");
}

const LATENCY_TESTS: [(&str, &str); 7] = [
    ("send-lat", "rc"),
    ("send-lat", "uc"),
    ("send-lat", "ud"),
    ("write-lat", "rc"),
    ("write-lat", "uc"),
    ("read-lat", "rc"),
    ("atomic-lat", "rc"),
];

const BANDWIDTH_TESTS: [(&str, &str); 7] = [
    ("send-bw", "rc"),
    ("send-bw", "uc"),
    ("send-bw", "ud"),
    ("write-bw", "rc"),
    ("write-bw", "uc"),
    ("read-bw", "rc"),
    ("atomic-bw", "rc"),
];

#[test]
fn latency_over_every_transport() {
    let _turn = one_at_a_time();
    for (test, transport) in LATENCY_TESTS {
        let line = &both_sides(test, &format!("-c {transport} -n 20"))[0];
        assert_eq!(line["params"]["transport"], transport);
        check_latency(line, 20);
    }
}

/// The memory of the fake GPU cannot be accessed except through its driver, so each byte that was checked went through it.
#[test]
fn bandwidth_of_gpu_memory() {
    let _turn = one_at_a_time();
    let folder = |name: &str| {
        let folder = scratch().join(format!("{name}.{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder of ours");
        folder
    };
    let driver = folder("fake-cuda");
    if !fake_cuda::build(&driver.join("libcuda.so.1")) {
        return;
    }
    for test in ["send-bw", "write-bw", "read-bw"] {
        let line = &both_sides_with(test, "--gpu -n 20 -s 300000", &[("LD_LIBRARY_PATH", &driver)])[0];
        check_bandwidth(line, 20);
        assert_eq!(line["params"]["gpu"], true);
        assert!(line["bare_copy_gigabytes_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{line}");
    }
    let empty = folder("empty-cuda");
    cc(&empty, "-shared -o libcuda.so.1 -x c /dev/null");
    let server = Server::start("perf write-bw");
    let line = format!("perf write-bw 127.0.0.1 -p {} --gpu", server.port);
    let refused = outcome(ferroce(&line).env("LD_LIBRARY_PATH", &empty));
    assert_eq!(refused.code, 1, "{refused:?}");
    // The side that detects it first reports it to the other.
    assert!(refused.stderr.contains("--gpu needs the CUDA driver"), "{refused:?}");
    for folder in [driver, empty] {
        std::fs::remove_dir_all(folder).expect("ours");
    }
}

#[test]
fn bandwidth_over_every_transport() {
    let _turn = one_at_a_time();
    for (test, transport) in BANDWIDTH_TESTS {
        let size = if test == "atomic-bw" { 8 } else { 1000 };
        let line = &both_sides(test, &format!("-c {transport} -n 100 -s {size}"))[0];
        check_bandwidth(line, 100);
    }
}

/// Every test of reliable connections over iWARP, with the options that change how it is set up or waited for.
#[test]
fn every_test_over_iwarp() {
    let _turn = one_at_a_time();
    for (test, _) in LATENCY_TESTS.into_iter().filter(|(_, transport)| *transport == "rc") {
        let line = &both_sides(test, "--wire iwarp -n 20")[0];
        assert_eq!(line["params"]["wire"], "iwarp");
        check_latency(line, 20);
    }
    for (test, _) in BANDWIDTH_TESTS.into_iter().filter(|(_, transport)| *transport == "rc") {
        let size = if test == "atomic-bw" { 8 } else { 1000 };
        for options in ["", "-b -t 1", "-e -q 3 -l 4 -T 2"] {
            let line = &both_sides(test, &format!("--wire iwarp -n 3002 -s {size} {options}"))[0];
            if options.contains("-b") {
                assert!(line["bandwidth"]["messages"].as_u64() > Some(3002), "{line}");
            } else {
                check_bandwidth(line, 3002);
            }
        }
    }
    for test in ["send-bw", "write-bw", "read-bw"] {
        both_sides(test, "--wire iwarp -a -n 5").iter().for_each(|line| check_bandwidth(line, 5));
    }
    // The variable chooses the wire as well.
    let found = outcome(ferroce("perf qps --count 200 --json").env("FERROCE_WIRE", "iwarp")).json();
    assert_eq!(found["queue_pairs"], 200, "{found}");
    assert!(found["connect_s"].as_f64() > Some(0.0), "{found}");
    check_latency(&both_sides("tcp-spin-lat", "-n 20 -s 100000")[0], 20);
}

/// What the wire lacks is refused with a sentence.
#[test]
fn iwarp_refuses_what_it_lacks() {
    for (line, why) in [
        ("perf send-bw --wire iwarp -c ud", "iWARP has reliable connections only"),
        ("perf write-bw --wire iwarp -m 1024", "no path MTU"),
        ("perf loss --wire iwarp", "TCP repairs lost packets"),
        ("perf --wire iwarp --loss 1%", "TCP repairs them"),
        ("perf tcp-bw --wire iwarp", "plain socket"),
    ] {
        let found = outcome(&mut ferroce(line));
        assert!(found.code != 0 && found.stdout.is_empty(), "{line}: {found:?}");
        assert!(found.stderr.contains(why), "{line}: {found:?}");
    }
}

#[test]
fn both_sides_sleep_on_events() {
    let _turn = one_at_a_time();
    for (test, transport) in LATENCY_TESTS {
        if test != "write-lat" {
            check_latency(&both_sides(test, &format!("-c {transport} -n 20 -e"))[0], 20);
        }
    }
    for (test, transport) in BANDWIDTH_TESTS {
        let size = if test == "atomic-bw" { 8 } else { 1000 };
        check_bandwidth(&both_sides(test, &format!("-c {transport} -n 100 -s {size} -e"))[0], 100);
    }
}

#[test]
fn both_sides_send_concurrently() {
    let _turn = one_at_a_time();
    for (test, transport) in BANDWIDTH_TESTS {
        for more in ["", "-e"] {
            let size = if test == "atomic-bw" { 8 } else { 1000 };
            let line = &both_sides(test, &format!("-c {transport} -n 100 -s {size} -b {more}"))[0];
            assert_eq!(line["params"]["bidirectional"], true, "{line}");
            let messages = line["bandwidth"]["messages"].as_u64().expect("a number");
            // Without -b, 100 of one side. An unreliable transport may lose some of the other's, but not all.
            assert!(if transport == "rc" { messages > 100 } else { messages > 0 }, "{line}");
        }
    }
}

#[test]
fn queue_pairs_depths_lists_and_inline_data() {
    let _turn = one_at_a_time();
    for (test, transport) in BANDWIDTH_TESTS {
        let size = if test == "atomic-bw" { 8 } else { 60 };
        for options in ["-q 3", "-t 4", "-t 1", "-l 8", "-I 64", "-q 5 -t 16 -l 7 -I 60"] {
            // A number that none of the above divides.
            let line = &both_sides(test, &format!("-c {transport} -n 101 -s {size} {options}"))[0];
            check_bandwidth(line, 101);
        }
    }
    for options in ["-I 0 -s 64", "-I 64 -s 64", "-I 64 -s 65", "-s 1"] {
        check_latency(&both_sides("send-lat", &format!("-n 10 {options}"))[0], 10);
        check_latency(&both_sides("write-lat", &format!("-n 10 {options}"))[0], 10);
    }
}

#[test]
fn threads_share_the_messages() {
    let _turn = one_at_a_time();
    for (test, transport) in BANDWIDTH_TESTS {
        let size = if test == "atomic-bw" { 8 } else { 60 };
        let line = &both_sides(test, &format!("-c {transport} -n 300 -s {size} -T 3 -q 2"))[0];
        assert_eq!(line["params"]["threads"], 3);
        check_bandwidth(line, 300);
    }
}

#[test]
fn path_mtu_gid_index_and_duration() {
    let _turn = one_at_a_time();
    for (test, transport) in BANDWIDTH_TESTS {
        if test == "atomic-bw" {
            continue;
        }
        for mtu in ["256", "1024", "4096"] {
            let size = if transport == "ud" { mtu } else { "5000" };
            check_bandwidth(&both_sides(test, &format!("-c {transport} -n 20 -s {size} -m {mtu}"))[0], 20);
        }
    }
    check_latency(&both_sides("send-lat", "-n 10 -s 10000 -m 512 -x 0")[0], 10);
    let line = &both_sides("write-bw", "-s 4K -D 1")[0];
    assert!(line["bandwidth"]["elapsed_ns"].as_u64().expect("a number") >= 1_000_000_000, "{line}");
}

#[test]
fn a_gid_that_is_not_there_is_refused() {
    let _turn = one_at_a_time();
    let server = support::Server::start("perf send-lat");
    let found = outcome(&mut ferroce(&format!("perf send-lat 127.0.0.1 -p {} -x 200", server.port)));
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.stderr.contains("GID index 200"), "{found:?}");
}

#[test]
fn all_sizes() {
    let _turn = one_at_a_time();
    let sizes = |lines: &[Value]| -> Vec<u64> {
        lines.iter().map(|line| line["params"]["size"].as_u64().expect("a size")).collect()
    };
    let lines = both_sides("write-bw", "-a -n 5");
    assert_eq!(sizes(&lines), (1..=23).map(|power| 1 << power).collect::<Vec<u64>>());
    lines.iter().for_each(|line| check_bandwidth(line, 5));
    let lines = both_sides("send-lat", "-a -n 5 -c ud -m 1024");
    assert_eq!(sizes(&lines), (1..=10).map(|power| 1 << power).collect::<Vec<u64>>());
    lines.iter().for_each(|line| check_latency(line, 5));
}

#[test]
fn lost_packets_cost_time_not_data() {
    let _turn = one_at_a_time();
    check_bandwidth(&both_sides("write-bw", "-s 64K -n 100 --loss 1% --seed 7")[0], 100);
    check_bandwidth(&both_sides("send-bw", "-s 64K -n 100 --loss 1% --seed 7")[0], 100);
    check_bandwidth(&both_sides("read-bw", "-s 64K -n 50 --loss 1% --seed 7")[0], 50);
    check_latency(&both_sides("send-lat", "-n 200 --loss 1% --seed 7")[0], 200);
    check_latency(&both_sides("send-lat", "-n 50 -c uc --loss 5% --seed 7")[0], 50);
    check_latency(&both_sides("write-lat", "-n 50 -c uc --loss 5% --seed 7")[0], 50);
    // Datagrams are not retransmitted: with such a loss, a thousand cannot all arrive.
    let line = &both_sides("send-bw", "-c ud -s 64 -n 1000 --loss 50% --seed 7")[0];
    check_bandwidth(line, 1000);
    assert!(line["bandwidth"]["lost"].as_u64() > Some(0), "{line}");
}

/// No figure without a proof that bytes arrive; but loss is not called damage.
#[test]
fn a_last_message_that_never_arrives_is_not_called_damaged() {
    let _turn = one_at_a_time();
    for test in ["send-bw", "write-bw"] {
        let server = support::Server::start(&format!("perf {test}"));
        let line =
            format!("perf {test} 127.0.0.1 -p {} -c uc -s 64K -n 20 --loss 100% --seed 7", server.port);
        let found = outcome(&mut ferroce(&line));
        assert_eq!((found.code, found.stdout.as_str()), (1, ""), "{found:?}");
        assert!(found.stderr.contains("times, and no copy arrived"), "{found:?}");
        let (code, output) = server.end();
        assert_eq!(code, Some(1), "{output}");
        assert!(!output.contains("did not arrive as it was sent"), "{output}");
    }
}

#[test]
fn many_queue_pairs_and_a_comparison_under_loss() {
    let _turn = one_at_a_time();
    let found = outcome(&mut ferroce("perf qps --count 200 --json")).json();
    assert_eq!(found["queue_pairs"], 200, "{found}");
    assert!(found["footprint_bytes"].as_f64() > Some(0.0), "{found}");
    let found = outcome(&mut ferroce("perf loss -s 64K -D 1 --json")).json();
    assert!(found["with"]["messages"].as_u64() > Some(0) && found["ratio"].as_f64() > Some(0.0), "{found}");
}

#[test]
fn the_whole_suite() {
    let _turn = one_at_a_time();
    let found = outcome(&mut ferroce("perf --quick --no-report --json")).json();
    let cells = found["cells"].as_array().expect("cells");
    assert!(cells.len() > 100 && cells.iter().all(|cell| cell["error"].is_null()), "{found}");
    assert_eq!(found["headlines"].as_array().map(Vec::len), Some(6), "{found}");
}
