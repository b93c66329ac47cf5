//! Hosts with queue pairs: they agree with light hosts, lose no packet in the simulator, and recover packets that links lose.

use ferroce_fabric::scenario::{Run, Scenario};
use std::path::Path;

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text, Path::new(".")).expect("a good scenario")
}

fn finish(scenario: &Scenario, at: usize) -> Run {
    let mut run = scenario.run(at, None, false).expect("a good run");
    assert!(run.world.run_until(run.limit_ps), "{}: {:?}", run.name, run.world.counters());
    run
}

/// Completion times by flow.
fn times(run: &Run) -> Vec<f64> {
    let mut done = run.world.finished().to_vec();
    done.sort_by_key(|done| done.flow);
    done.iter().map(|done| done.fct_ps as f64).collect()
}

/// Largest differences of the mean completion time and of that of a single flow, for each control of a scenario that
/// runs all of them with light hosts and then with queue pairs.
fn differences(name: &str) -> Vec<(String, f64, f64)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let text = std::fs::read_to_string(folder.join(name)).expect("readable");
    let scenario = Scenario::parse(&text, &folder).expect("a good scenario");
    let runs: Vec<Run> = (0..scenario.runs()).map(|at| finish(&scenario, at)).collect();
    let compare = |pair: &[Run]| {
        let [light, real] = pair else { panic!("an even number of runs") };
        assert_eq!(light.control, real.control);
        let (light_times, real_times) = (times(light), times(real));
        let (sum, real_sum) = (light_times.iter().sum::<f64>(), real_times.iter().sum::<f64>());
        let each = light_times.iter().zip(&real_times).map(|(light, real)| (real / light - 1.0).abs());
        (light.control.clone(), (real_sum / sum - 1.0).abs(), each.fold(0.0, f64::max))
    };
    runs.chunks(2).map(compare).collect()
}

#[test]
fn light_hosts_and_queue_pairs_agree() {
    for name in ["queue-pairs-dumbbell.toml", "queue-pairs-incast.toml"] {
        for (control, mean, each) in differences(name) {
            println!("{name} {control}: mean {:.3} %, each at most {:.3} %", 100.0 * mean, 100.0 * each);
            if control == "loss-window" {
                continue; // a queue pair requests an ACK twice per window, so its windows open in steps
            }
            assert!(mean < 0.01, "{name} {control}: the mean differs by {:.2} %", 100.0 * mean);
            // Flows of the others differ, because the controls amplify differences of a nanosecond; docs/fabric explains it.
            let is_exact = ["fixed", "irn", "dctcp"].contains(&control.as_str());
            assert!(!is_exact || each < 0.01, "{name} {control}: a flow differs by {:.2} %", 100.0 * each);
        }
    }
}

const INCAST: &str = r#"
name = "incast"
duration = "10us"
limit = "100ms"
control = "dcqcn-nic"
[topology]
kind = "star"
hosts = 9
rate = "100Gb/s"
delay = "1us"
[switch]
buffer = "1MB"
[host]
model = "queue-pairs"
ack_every = 16 # of light hosts; queue pairs do so
[[workload]]
kind = "incast"
fan_in = 8
size = "500kB"
to = 0
"#;

#[test]
fn pfc_pauses_queue_pairs_before_packets_are_lost() {
    let run = finish(&scenario(INCAST), 0);
    let counters = run.world.counters();
    assert!(counters.pauses > 0, "{counters:?}");
    assert_eq!((counters.headroom_drops, counters.buffer_drops, counters.retransmissions), (0, 0, 0));
}

/// A flow waits for the port longer than a queue pair waits before it probes for a missing ACK (1 ms).
#[test]
fn paced_queue_pairs_that_wait_long_for_their_port_all_finish() {
    let flows = vec![r#"[1, 0, "100kB", "0us"]"#; 400].join(", ");
    let (before, _) = INCAST.split_once("kind = \"incast\"").expect("a workload");
    let crowded = format!("{before}kind = \"flows\"\nflows = [{flows}]\n");
    let crowded = crowded.replace("100Gb/s", "1Gb/s").replace("100ms", "20s");
    finish(&scenario(&crowded), 0);
}

#[test]
fn queue_pairs_recover_what_links_and_switches_lose_and_every_byte_is_accounted_for() {
    let lossy = INCAST.replace("control", "loss = 0.01\ncontrol");
    let small = INCAST.replace("buffer = \"1MB\"", "buffer = \"200kB\"\npfc = false");
    for (text, what) in [(lossy, "links"), (small, "switches")] {
        let mut run = scenario(&text).run(0, None, false).expect("a good run");
        while run.world.finished().len() < 8 {
            assert!(run.world.step(run.limit_ps), "{what}: {:?}", run.world.counters());
            let (sent, parts) = run.world.balance();
            assert_eq!(sent, parts.iter().sum::<u64>(), "{what}");
        }
        let counters = run.world.counters();
        assert!(counters.retransmissions > 0 && counters.nacks > 0, "{what}: {counters:?}");
    }
}

#[test]
fn a_ring_starts_each_flow_when_the_one_before_has_arrived() {
    let ring =
        INCAST.replace("incast\"\nfan_in = 8\nsize = \"500kB\"\nto = 0", "all-reduce\"\nsize = \"900kB\"");
    let flows = |text: &str| {
        let run = finish(&scenario(text), 0);
        (run.world.finished().len(), run.world.now_ps() as f64)
    };
    let (real, light) = (flows(&ring), flows(&ring.replace("queue-pairs", "light")));
    assert_eq!(real.0, light.0);
    assert!((real.1 / light.1 - 1.0).abs() < 0.01, "{real:?}, light {light:?}");
}

#[test]
fn the_hash_of_a_run_is_a_constant() {
    let hash = |seed| {
        let lossy = INCAST.replace("control", "loss = 0.01\ncontrol");
        let mut run = scenario(&lossy).run(0, Some(seed), false).expect("a good run");
        run.world.run_until(run.limit_ps);
        run.world.hash()
    };
    assert_ne!(hash(1), hash(2));
    assert_eq!(format!("{:016x}", hash(1)), "c02838333878ecde", "this value is the same on every machine");
}
