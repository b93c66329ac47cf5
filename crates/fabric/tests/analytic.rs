//! Checks against analytic results: queueing theory, conservation, formulas.

use ferroce_fabric::packet::NONE;
use ferroce_fabric::report::jain;
use ferroce_fabric::scenario::{Run, Scenario};
use ferroce_fabric::switch::{Balance, Pfc, PortConfig, SwitchConfig};
use ferroce_fabric::topology::{LeafSpine, Routes, Topology};
use ferroce_fabric::workload::Flow;
use ferroce_fabric::world::{HostConfig, HostModel, Recovery, World, WorldConfig};
use std::path::Path;

const GIGABIT: u64 = 1_000_000_000;
const HOST_LINK: (u64, u64) = (100 * GIGABIT, 1000);

fn host() -> HostConfig {
    HostConfig {
        model: HostModel::Light,
        mtu: 1000,
        header: 48,
        ack: 64,
        telemetry: 42,
        recovery: Recovery::GoBackN,
        ack_every: 1,
        rto_ps: 4_000_000_000,
        rto_low_ps: 4_000_000_000,
        nack_interval_ps: 500_000_000,
        reorder: 0,
        ack_priority: 0,
    }
}

fn config(control: &str) -> WorldConfig {
    WorldConfig {
        switch: SwitchConfig {
            ports: Vec::new(),
            buffer: 64_000_000,
            pfc: None,
            egress_alpha: 1.0,
            red: None,
            balance: Balance::Ecmp,
        },
        host: host(),
        control: control.parse().expect("a good choice"),
        base_rtt_ns: None,
        loss: 0.0,
        seed: 1,
        sample_ps: 10_000_000,
        replay: false,
    }
}

fn flow(from: u32, to: u32, bytes: u64, start_ps: u64) -> Flow {
    Flow { start_ps, bytes, from, to, then: NONE, priority: 3, group: 0 }
}

fn world(config: WorldConfig, topology: &Topology, flows: Vec<Flow>) -> World {
    topology.check().expect("possible");
    World::new(config, topology, Routes::new(topology).expect("connected"), flows)
}

fn run(text: &str) -> Run {
    Scenario::parse(text, Path::new(".")).expect("a good scenario").run(0, None, false).expect("a good run")
}

/// At any time, the bytes that hosts have sent equal the sum of all other bytes.
fn assert_balance(world: &World) {
    let (sent, parts) = world.balance();
    assert_eq!(sent, parts.iter().sum::<u64>(), "at {} ps: {parts:?}", world.now_ps());
}

#[test]
fn one_flow_takes_the_ideal_time() {
    let topologies = [
        Topology::star(2, HOST_LINK),
        Topology::chain(&[1, 1], HOST_LINK, (400 * GIGABIT, 5000)),
        Topology::chain(&[1, 0, 1], HOST_LINK, (40 * GIGABIT, 2000)),
    ];
    for topology in &topologies {
        for bytes in [1, 1000, 64_000, 10_000_000] {
            let mut world = world(config("fixed"), topology, vec![flow(0, 1, bytes, 7)]);
            assert!(world.run_until(u64::MAX / 2));
            let done = world.finished()[0];
            let ratio = done.fct_ps as f64 / done.ideal_ps as f64;
            assert!((ratio - 1.0).abs() < 0.001, "{bytes} bytes: {ratio}");
        }
    }
}

#[test]
fn flows_share_a_link_exactly_when_their_plans_do() {
    let topology = LeafSpine { leaves: 2, spines: 3, hosts_per_leaf: 2 }.build(HOST_LINK, HOST_LINK);
    let mut shared = 0;
    for seed in 0..12 {
        let config = WorldConfig { seed, ..config("fixed") };
        let mut world = world(config, &topology, vec![flow(0, 2, 1_000_000, 0), flow(1, 3, 1_000_000, 0)]);
        let (first, second) = (world.plan(0), world.plan(1));
        assert_eq!((first.data.len(), first.acks.len(), first.acks[4]), (5, 5, 0));
        let shares = first.data[2] == second.data[2];
        assert!(world.run_until(u64::MAX / 2));
        let slowest =
            world.finished().iter().map(|done| done.fct_ps as f64 / done.ideal_ps as f64).fold(0.0, f64::max);
        assert_eq!(slowest > 1.5, shares, "seed {seed}: slowdown {slowest}");
        shared += u32::from(shares);
    }
    assert!((1..12).contains(&shared), "{shared} of 12 seeds");
}

#[test]
fn poisson_arrivals_wait_as_in_an_m_d_1_queue() {
    // Many senders of single packets share one link. The senders' own links are fast and have no queue.
    let hosts = 40;
    let load: f64 = 0.7;
    let mut topology = Topology::star(hosts + 1, (1000 * GIGABIT, 1000));
    let last = topology.links.len() - 1;
    topology.links[last].rate = 10 * GIGABIT;
    let service_ps = 1048.0 * 8e12 / 10e9;
    let mut rng = ferroce_fabric::rng::Pcg32::new(3, 9);
    let (mut now, mut flows) = (0.0, Vec::new());
    for number in 0..400_000u32 {
        now += rng.exponential(service_ps / load);
        flows.push(flow(number % hosts, hosts, 1000, now as u64));
    }
    let mut world = world(config("fixed"), &topology, flows);
    assert!(world.run_until(u64::MAX / 2));
    let waits = world.finished().iter().map(|done| done.fct_ps as f64 - done.ideal_ps as f64);
    let mean = waits.sum::<f64>() / world.finished().len() as f64 / service_ps;
    let expected = load / (2.0 * (1.0 - load));
    assert!((mean / expected - 1.0).abs() < 0.01, "mean wait {mean} service times, theory {expected}");
}

#[test]
fn fixed_windows_fill_the_queue_beyond_the_bdp() {
    let (n, window) = (5, 100_000u64);
    let topology = Topology::star(n + 1, HOST_LINK);
    let flows = (1..=n).map(|from| flow(from, 0, 100_000_000, 0)).collect();
    let mut world = world(config(&format!("fixed,window={window}")), &topology, flows);
    world.run_until(2_000_000_000);
    // In the steady state a link of 100 Gb/s has the bytes of one base RTT outside of the queue.
    let base_rtt_s =
        host().base_rtt_ns(&Routes::new(&topology).expect("connected").shortest_path(1, 0)) as f64 / 1e9;
    let on_the_way = 12.5e9 * base_rtt_s;
    let expected = f64::from(n) * (window as f64 / 1000.0) * 1048.0 - on_the_way;
    let found = f64::from(world.queue_to_host(0));
    assert!((found - expected).abs() < 3.0 * 1048.0, "queue {found}, expected {expected}");
}

#[test]
fn every_byte_is_accounted_for_at_every_event() {
    let topology = Topology::chain(&[4, 4], HOST_LINK, HOST_LINK);
    let flows: Vec<Flow> = (0..4).map(|from| flow(from, 4 + from % 2, 300_000, 0)).collect();
    for (pfc, loss) in [(false, 0.0), (true, 0.0), (false, 0.01)] {
        let mut config = config("dcqcn-paper");
        config.switch.buffer = if pfc { 400_000 } else { 50_000 };
        config.switch.pfc = pfc.then_some(lossless());
        config.loss = loss;
        let mut world = world(config, &topology, flows.clone());
        while world.finished().len() < 4 {
            assert!(world.step(u64::MAX / 2), "every flow finishes");
            assert_balance(&world);
        }
        let dropped = world.counters().buffer_drops + world.counters().headroom_drops;
        assert_eq!(dropped > 0, !pfc, "{:?}", world.counters());
    }
}

fn lossless() -> Pfc {
    Pfc {
        alpha: 0.125,
        alpha_rate: 100 * GIGABIT,
        reserve: 0,
        resume_offset: 3000,
        headroom: None,
        max_packet: 1048,
        lossless: 1 << 3,
    }
}

#[test]
fn the_headroom_formula_is_exact() {
    // Sixteen hosts send to one at line rate without any control. Sixteen others send to them in another priority, so
    // that PFC frames have to wait for full packets on the reverse wires.
    let drops = |less: u32, delay_ns: u64| {
        let link = (100 * GIGABIT, delay_ns);
        let mut topology = Topology::star(33, link);
        topology.links[0].rate = GIGABIT; // so that hardly any packet leaves during the test
        let mut config = config("fixed");
        config.host.ack_every = 1000; // acknowledgements between the packets would be bytes that need no headroom
        let pfc = lossless();
        let needed = pfc.headroom_of(&PortConfig { rate: link.0, delay_ns });
        config.switch.pfc = Some(Pfc { headroom: Some(needed - less), ..pfc });
        config.switch.buffer = u64::from(needed) * 33 + 300_000;
        let mut flows: Vec<Flow> =
            (1..17).map(|from| flow(from, 0, 1_000_000, u64::from(from) * 7919)).collect();
        flows.extend((1..17).map(|to| Flow { priority: 5, ..flow(to + 16, to, 40_000_000, 0) }));
        let mut world = world(config, &topology, flows);
        world.run_until(1_500_000_000);
        assert!(world.counters().pauses >= 16, "{:?}", world.counters());
        world.counters().headroom_drops
    };
    for delay_ns in [1000, 5000] {
        assert_eq!(drops(0, delay_ns), 0, "the formula suffices");
        assert!(drops(1048, delay_ns) > 0, "with one packet less, PFC is too late");
    }
}

#[test]
fn max_min_shares_on_a_parking_lot() {
    // One long flow over three links, and one cross flow on each. The max-min share of all four is half a link. The
    // ideal control reduces its rate to its share when there is a queue, and never increases it again.
    let scenario = r#"
name = "parking lot"
duration = "8ms"
control = "dcqcn-paper,min_rate=50%,rai=0%,rhai=0%"
[topology]
kind = "parking-lot"
hosts = [2, 2, 2, 2]
rate = "100Gb/s"
delay = "1us"
[switch.ecn]
kmin = "0B"
kmax = "0B"
pmax = 1.0
[host]
mtu = 1000
header = 48
[[workload]]
kind = "flows"
flows = [[0, 6, "1GB", "0us"], [1, 2, "1GB", "0us"], [3, 4, "1GB", "0us"], [5, 7, "1GB", "0us"]]
"#;
    let mut run = run(scenario);
    run.world.run_until(4_000_000_000);
    let before: Vec<u64> = (0..4).map(|flow| run.world.acked_bytes(flow)).collect();
    run.world.run_until(8_000_000_000);
    for flow in 0..4 {
        let gigabits = (run.world.acked_bytes(flow) - before[flow as usize]) as f64 * 8.0 / 4e-3 / 1e9;
        let share = 50.0 * 1000.0 / 1048.0;
        assert!((gigabits / share - 1.0).abs() < 0.005, "flow {flow}: {gigabits} Gb/s, share {share}");
    }
}

#[test]
fn dcqcn_converges_to_equal_rates() {
    let text = |n: u32| {
        format!(
            r#"
name = "dcqcn"
duration = "60ms"
control = "dcqcn-paper"
[topology]
kind = "star"
hosts = {}
rate = "40Gb/s"
delay = "1us"
[switch.ecn]
kmin = "5kB"
kmax = "200kB"
pmax = 0.01
[[workload]]
kind = "incast"
fan_in = {n}
size = "1GB"
to = 0
"#,
            n + 1
        )
    };
    for n in [2, 8] {
        let mut run = run(&text(n));
        run.world.run_until(30_000_000_000);
        let before: Vec<u64> = (0..n).map(|flow| run.world.acked_bytes(flow)).collect();
        run.world.run_until(60_000_000_000);
        let rates: Vec<f64> =
            (0..n).map(|flow| (run.world.acked_bytes(flow) - before[flow as usize]) as f64).collect();
        let fair = jain(&rates).expect("rates");
        assert!(fair > 0.99, "{n}:1 {fair} {rates:?}");
        let used = rates.iter().sum::<f64>() * 8.0 / 0.03 / 40e9;
        assert!(used > 0.85, "{n}:1 uses {used} of the link");
    }
}

#[test]
fn the_same_seed_gives_the_same_hash_and_another_seed_another() {
    let text = r#"
name = "hash"
duration = "200us"
limit = "2ms"
control = "dcqcn-nic"
[topology]
kind = "leaf-spine"
leaves = 4
spines = 2
hosts_per_leaf = 4
rate = "100Gb/s"
delay = "1us"
[switch.ecn]
kmin = "100kB"
kmax = "400kB"
pmax = 0.2
[[workload]]
kind = "poisson"
cdf = "alistorage"
load = 0.6
"#;
    let scenario = Scenario::parse(text, Path::new(".")).expect("good");
    let hash = |seed| {
        let mut run = scenario.run(0, Some(seed), false).expect("good");
        run.world.run_until(run.limit_ps);
        assert_balance(&run.world);
        run.world.hash()
    };
    assert_eq!(hash(1), hash(1));
    assert_ne!(hash(1), hash(2));
    assert_eq!(format!("{:016x}", hash(1)), "280a4f98fa4c767a", "this value is the same on every machine");
}
