//! Scenarios: what is refused, and why.

use super::*;

const GOOD: &str = r#"
name = "test"
duration = "1ms"
control = "dcqcn-nic"
[topology]
kind = "star"
hosts = 4
rate = "100Gb/s"
delay = "1us"
[[workload]]
kind = "incast"
fan_in = 3
size = "10kB"
to = 0
"#;

fn error(text: &str) -> String {
    Scenario::parse(text, Path::new(".")).expect_err("a mistake").to_string()
}

#[test]
fn a_small_scenario_runs() {
    let scenario = Scenario::parse(GOOD, Path::new(".")).expect("good");
    assert_eq!((scenario.name(), scenario.runs(), scenario.topology().hosts), ("test", 1, 4));
    let mut run = scenario.run(0, None, false).expect("good");
    assert!(run.world.run_until(run.limit_ps), "{:?}", run.world.counters());
    assert_eq!((run.world.finished().len(), run.name.as_str()), (3, "dcqcn-nic"));
}

#[test]
fn every_mistake_is_one_sentence_that_names_the_remedy() {
    let change = |from: &str, to: &str| {
        assert!(GOOD.contains(from), "{from}");
        error(&GOOD.replace(from, to))
    };
    for (from, to, expected) in [
        ("control = \"dcqcn-nic\"", "", "the scenario names no congestion control; add `control"),
        ("dcqcn-nic", "bbr", "control: there is no congestion control named \"bbr\"; choose one of"),
        ("dcqcn-nic", "dcqcn-nic,g=9", "control: g=9 of dcqcn-nic is outside of 0 … 1"),
        ("1ms", "1", "duration = \"1\": expected a time with its unit"),
        ("1ms", "1h", "duration = \"1h\": expected a time with its unit"),
        ("1ms", "100s", "duration = \"100s\" is outside of 1us … 10s"),
        ("hosts = 4", "hosts = 1", "[topology]: the topology has 1 hosts; at least 2 are needed"),
        ("hosts = 4", "hosts = 4000000000", "[topology]: the topology has 4000000000 nodes; at most 100000"),
        (
            "hosts = 4",
            "hosts = 70000",
            "[topology]: switch 0 has 70000 ports; at most 65535 can be simulated",
        ),
        (
            "kind = \"star\"\nhosts = 4",
            "kind = \"leaf-spine\"\nleaves = 20000\nspines = 20000\nhosts_per_leaf = 1",
            "[topology]: the topology has 400020000 links; at most 1000000 can be simulated",
        ),
        (
            "kind = \"star\"\nhosts = 4",
            "kind = \"fat-tree\"\npods = 1\ntors = 20000\naggs = 20000\ncores_per_agg = 1\nhosts_per_tor = 1",
            "[topology]: the topology has 400040000 links; at most 1000000 can be simulated",
        ),
        ("hosts = 4", "hosts = 4\nspeed = 3", "line 5: unknown field `speed`"),
        ("\"star\"", "\"ring\"", "line 6: unknown variant `ring`, expected one of `star`, `dumbbell`"),
        ("100Gb/s", "100", "topology.rate = \"100\": expected a rate"),
        ("100Gb/s", "100b/s", "[topology]: link 0–4 has 100 bit/s and 1000 ns; rates are 1 Mb/s to 10 Tb/s"),
        ("fan_in = 3", "fan_in = 4", "incast fan_in = 4: the topology has 4 hosts, so use 1 to 3"),
        ("to = 0", "to = 4", "incast to = 4: hosts are numbered 0 to 3"),
        ("to = 0", "priority = 0", "workload.priority = 0: data uses 1 to 7"),
        ("10kB", "0", "size = \"0\": a message has at least 1 byte"),
        ("\n[topology]", "\nloss = 2.0\n[topology]", "loss = 2 is outside of 0 … 0.5"),
        (
            "\n[topology]",
            "\nlimit = \"1e9s\"\n[topology]",
            "limit = \"1e9s\" is longer than 1000 s; use less",
        ),
        ("\n[topology]", "\nsample = \"1e9s\"\n[topology]", "sample = \"1e9s\" is longer than 1000 s"),
        ("[[workload]]", "[host]\nrto = \"1e9s\"\n[[workload]]", "host.rto = \"1e9s\" is longer than 1000 s"),
        (
            "incast\"\nfan_in = 3\nsize = \"10kB\"\nto = 0",
            "flows\"\nflows = [[0, 1, \"1kB\", \"1e9s\"]]",
            "workload.flows = \"1e9s\" is longer than 1000 s",
        ),
        (
            "[[workload]]",
            "[host]\ntelemetry = 4294967295\n[[workload]]",
            "host.mtu = 1024, header = 82, telemetry = 4294967295, ack = 86: use",
        ),
        ("\n[topology]", "\nlimit = \"1us\"\n[topology]", "limit = \"1us\" ends the run before duration"),
        (
            "[[workload]]",
            "[switch]\nbuffer = \"10kB\"\n[[workload]]",
            "switch.buffer = 10000 bytes is too small",
        ),
        (
            "[[workload]]",
            "[switch]\nbalance = \"x\"\n[[workload]]",
            "switch.balance = \"x\" is unknown; choose",
        ),
        (
            "[[workload]]",
            "[host]\nrecovery = \"x\"\n[[workload]]",
            "host.recovery = \"x\" is unknown; choose",
        ),
        ("[[workload]]", "[host]\nmtu = 1\n[[workload]]", "host.mtu = 1, header = 82"),
        ("[[workload]]", "[host]\nmodel = \"x\"\n[[workload]]", "host.model = \"x\" is unknown; choose"),
        (
            "[[workload]]",
            "[host]\nmodel = \"queue-pairs\"\nmtu = 1000\n[[workload]]",
            "host.mtu = 1000: a queue pair has an MTU of 256, 512, 1024, 2048 or 4096 bytes",
        ),
        (
            "[[workload]]",
            "[host]\nmodel = \"queue-pairs\"\nheader = 11\n[[workload]]",
            "host.header = 11: the packets of a queue pair have a BTH of 12 bytes",
        ),
        (
            "[[workload]]",
            "[[variant]]\nmodel = \"queue-pairs\"\ncontrol = \"hpcc\"\n[[workload]]",
            "control = \"hpcc\" needs telemetry",
        ),
        (
            "[[workload]]",
            "[switch.ecn]\nkmin = \"2kB\"\nkmax = \"1kB\"\npmax = 0.1\n[[workload]]",
            "ecn has kmin 2000 and kmax 1000 bytes",
        ),
        (
            "incast\"\nfan_in = 3\nsize = \"10kB\"\nto = 0",
            "trace\"\npath = \"none\"",
            "workload.path = \"none\" cannot be read",
        ),
        (
            "incast\"\nfan_in = 3\nsize = \"10kB\"\nto = 0",
            "poisson\"\ncdf = \"x\"\nload = 0.5",
            "workload.cdf = \"x\" is unknown",
        ),
        (
            "incast\"\nfan_in = 3\nsize = \"10kB\"\nto = 0",
            "poisson\"\ncdf = \"hadoop\"\nload = 50.0",
            "load = 50 is outside",
        ),
        ("to = 0", "to = 0\nstart = \"1ms\"", "start = \"1ms\" is not before the duration; lower it"),
        (
            "incast\"\nfan_in = 3\nsize = \"10kB\"\nto = 0",
            "all-to-all\"\nsize = \"1kB\"\nhosts = 5",
            "a collective of 5 hosts: use 2 to 4",
        ),
        ("[[workload]]", "[[variant]]\nfan_inn = 3\n[[workload]]", "line 11: unknown field `fan_inn`"),
    ] {
        let found = change(from, to);
        assert!(found.starts_with(expected), "{to}\n  expected {expected}\n  found    {found}");
        assert!(!found.contains('\n'), "{found}");
    }
    assert_eq!(error("name = \n"), "line 1: string values must be quoted, expected literal string");
}

#[test]
fn a_collective_takes_as_many_hosts_as_its_mistake_states() {
    let with = |hosts: u32| {
        let text = GOOD
            .replace("hosts = 4", "hosts = 2000")
            .replace("[[workload]]", "[switch]\npfc = false\n[[workload]]")
            .replace(
                "incast\"\nfan_in = 3\nsize = \"10kB\"\nto = 0",
                &format!("all-reduce\"\nsize = \"1MB\"\nhosts = {hosts}"),
            );
        Scenario::parse(&text, Path::new(".")).map(|_| ()).map_err(|error| error.to_string())
    };
    let refused = with(1600).expect_err("too many");
    let most = refused.strip_prefix("a collective of 1600 hosts: use 2 to ").expect("the most");
    let most: u32 = most.parse().expect("a number");
    assert_eq!(with(most), Ok(()));
    assert!(with(most + 1).is_err());
}

#[test]
fn a_variant_changes_one_run() {
    let text =
        format!("{GOOD}\n[[variant]]\nfan_in = 2\n[[variant]]\nname = \"lossy\"\npfc = false\nloss = 0.01\n");
    let scenario = Scenario::parse(&text, Path::new(".")).expect("good");
    assert_eq!(scenario.runs(), 2);
    assert_eq!(scenario.run(0, None, false).expect("good").world.flows().len(), 2);
    assert_eq!(scenario.run(1, None, false).expect("good").name, "lossy");
}

#[test]
fn the_priorities_of_a_trace_are_lossless_and_its_largest_flow_is_bounded() {
    let folder = std::env::temp_dir().join(format!("ferroce-fabric-trace-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let trace = |flow: &str| {
        std::fs::write(folder.join("flows.txt"), format!("1\n{flow}\n")).expect("written");
        let (head, _) = GOOD.split_once("[[workload]]").expect("a workload");
        let workload = "[host]\nmtu = 64\n[[workload]]\nkind = \"trace\"\npath = \"flows.txt\"\n";
        Scenario::parse(&format!("{head}{workload}"), &folder)
    };
    let good = trace("0 1 5 100 5000 0");
    let large = trace("0 1 5 100 1000000000000 0");
    std::fs::remove_dir_all(&folder).expect("removed");
    let good = good.expect("good");
    let config = good.world_config(&good.variants[0]).expect("good");
    assert_eq!(config.switch.pfc.expect("pfc").lossless & 1 << 5, 1 << 5);
    assert_eq!(
        large.expect_err("too large").to_string(),
        "a flow of 1000000000000 bytes has 15625000000 packets of host.mtu = 64 bytes; at most 2147483648 can be simulated"
    );
}

#[test]
fn a_run_with_more_samples_than_are_kept_has_a_report() {
    let text = GOOD.replace("\n[topology]", "\nsample = \"1ns\"\n[topology]").replace("10kB", "100MB");
    let mut run = Scenario::parse(&text, Path::new(".")).expect("good").run(0, None, false).expect("good");
    run.world.run_until(25_000_000);
    let report = crate::report::report(&run.name, &run.control, &run.world);
    let samples = run.world.samples();
    assert!(samples.rates.iter().all(|rates| rates.len() == samples.times.len()));
    assert_eq!((samples.times.len(), report.rates_gbps.len()), (20_000, 3));
}
