//! External hosts under virtual time: rate, order, marks, drops, pauses and paths of injected packets.

use ferroce_fabric::scenario::Scenario;
use ferroce_fabric::world::{Delivery, Injected, Outcome, World};
use std::path::Path;

const STAR: &str = r#"
name = "star"
duration = "10ms"
control = "dctcp"
[topology]
kind = "star"
hosts = 3
rate = "1Gb/s"
delay = "10us"
"#;

fn world(rest: &str) -> World {
    let scenario = Scenario::parse_live(&format!("{STAR}{rest}"), Path::new(".")).expect("a scenario");
    scenario.live(0, None).expect("a run").world
}

/// 1250 bytes take 10 us at 1 Gb/s.
fn packet(from: u32, to: u32, tag: u32) -> Injected {
    Injected { from, to, bytes: 1250, payload: 1000, priority: 3, ect: true, entropy: tag, tag }
}

fn outcomes(world: &mut World) -> Vec<Outcome> {
    std::iter::from_fn(|| world.poll_outcome()).collect()
}

const US: u64 = 1_000_000;

#[test]
fn packets_keep_their_order_and_leave_at_the_rate_of_the_link() {
    let mut world = world("");
    world.advance(5 * US);
    (0..20).for_each(|tag| world.inject(&packet(1, 0, tag)));
    world.advance(5 * US + 39 * US);
    assert!(outcomes(&mut world).is_empty(), "two links of 10 us, and 10 us on each wire");
    world.advance(1000 * US);
    let found = outcomes(&mut world);
    let expected: Vec<Outcome> = (0..20)
        .map(|tag| Outcome {
            tag,
            to: 0,
            time_ps: (45 + 10 * u64::from(tag)) * US,
            delivery: Delivery::Delivered { marked: false },
        })
        .collect();
    assert_eq!(found, expected);
    let totals = (world.host_totals(1), world.host_totals(0));
    assert_eq!((totals.0.sent, totals.0.payload_sent, totals.1.received), (20, 20_000, 20));
    let (sent, places) = world.balance();
    assert_eq!(sent, places.iter().sum::<u64>());
}

#[test]
fn the_next_event_is_when_a_packet_moves() {
    let mut world = world("");
    world.inject(&packet(1, 0, 7));
    let mut times = Vec::new();
    while outcomes(&mut world).is_empty() {
        let next = world.next_event_ps().expect("a packet is under way");
        world.advance(next);
        times.push(next / US);
    }
    assert_eq!(times, [20, 40], "arrival at the switch, then at the host");
}

#[test]
fn two_senders_fill_a_queue_and_only_ecn_capable_packets_are_marked() {
    let ecn = "[switch.ecn]\nkmin = \"5kB\"\nkmax = \"5kB\"\npmax = 1.0\n";
    let mut world = world(ecn);
    for tag in 0..40 {
        world.inject(&packet(1, 0, tag));
        world.inject(&Injected { ect: false, ..packet(2, 0, 100 + tag) });
    }
    world.advance(5000 * US);
    let found = outcomes(&mut world);
    let marked: Vec<u32> = found
        .iter()
        .filter(|outcome| outcome.delivery == Delivery::Delivered { marked: true })
        .map(|outcome| outcome.tag)
        .collect();
    assert_eq!(found.len(), 80);
    assert!(marked.len() > 20 && marked.iter().all(|tag| *tag < 100), "{marked:?}");
    assert!(!marked.contains(&0), "the first packet finds an empty queue");
    assert_eq!(world.host_totals(0).marked, marked.len() as u64);
    assert!(world.host_totals(0).longest_queue >= 40_000);
}

#[test]
fn without_pfc_a_full_buffer_drops_and_every_packet_has_an_outcome() {
    let mut world = world("[switch]\npfc = false\nbuffer = \"20kB\"\n");
    for tag in 0..50 {
        world.inject(&packet(1, 0, tag));
        world.inject(&packet(2, 0, 100 + tag));
    }
    world.advance(5000 * US);
    let found = outcomes(&mut world);
    let dropped = found.iter().filter(|outcome| outcome.delivery == Delivery::Dropped).count() as u64;
    assert_eq!(found.len(), 100);
    assert!(dropped > 10, "{dropped}");
    assert_eq!(world.host_totals(1).dropped + world.host_totals(2).dropped, dropped);
}

#[test]
fn a_paused_nic_fills_up_and_accepts_no_more() {
    let mut world = world("[switch]\nbuffer = \"60kB\"\nheadroom = \"6kB\"\n");
    let mut tag = 0;
    let mut refused = false;
    for step in 0..3000 {
        world.advance(step * 10 * US);
        for host in [1, 2] {
            refused |= !world.has_room(host);
            if world.has_room(host) {
                world.inject(&packet(host, 0, tag));
                tag += 1;
            }
        }
    }
    assert!(refused, "the NIC of a paused host takes packets without end");
    assert!(world.host_paused_ps(1) > 0 && world.host_paused_ps(2) > 0);
    assert_eq!((world.counters().buffer_drops, world.counters().headroom_drops), (0, 0));
    // Half of the link for each: 1500 of 3000 packet times.
    let payload = world.host_totals(1).payload_sent;
    assert!((1_350_000..1_500_000).contains(&payload), "{payload}");
}

#[test]
fn an_ack_leaves_while_data_is_paused() {
    let mut world = world("[switch]\nbuffer = \"60kB\"\nheadroom = \"6kB\"\n");
    // 200 kB: 1.6 times the limit of a NIC for priorities that are not paused.
    for tag in 0..160 {
        world.inject(&packet(1, 0, tag));
        world.inject(&packet(2, 0, 1000 + tag));
    }
    let (mut now, mut paused) = (0, 0);
    while world.host_paused_ps(1) < paused + 10 * US {
        assert!(now < 2000 * US, "host 1 is not paused");
        paused = world.host_paused_ps(1);
        now += 10 * US;
        world.advance(now);
    }
    assert!(world.has_room(1), "paused data takes the place of other priorities");
    outcomes(&mut world);
    world.inject(&Injected { bytes: 64, payload: 0, priority: 0, ..packet(1, 2, 9999) });
    world.advance(now + 22 * US);
    assert!(
        outcomes(&mut world).iter().any(|outcome| outcome.tag == 9999),
        "the wire of a paused host is free"
    );
    // A paused priority has a limit too: 8 ms of the line rate, 1 MB.
    (0..800).for_each(|tag| world.inject(&packet(1, 0, tag)));
    assert!(!world.has_room(1), "more than 1 MB is queued");
}

#[test]
fn samples_are_at_least_a_millisecond_apart_and_end() {
    let mut world = world("");
    assert_eq!(world.samples().interval_ps(), 1000 * US, "a simulation of 10 ms has one each 20 us");
    world.advance(20_000 * 1000 * US);
    assert!(world.samples().is_full() && world.next_event_ps().is_some());
    world.advance(20_001 * 1000 * US);
    assert_eq!(world.next_event_ps(), None, "nothing more is recorded");
}

#[test]
fn the_entropy_of_a_packet_chooses_its_path() {
    let shape = "kind = \"leaf-spine\"\nleaves = 2\nspines = 2\nhosts_per_leaf = 1\ntrunk_rate = \"500Mb/s\"";
    let leaf_spine = STAR.replace("kind = \"star\"\nhosts = 3", shape);
    let scenario = Scenario::parse_live(&leaf_spine, Path::new(".")).expect("a scenario");
    let last_us = |entropy: fn(u32) -> u32| {
        let mut world = scenario.live(0, None).expect("a run").world;
        (0..64).for_each(|tag| world.inject(&Injected { entropy: entropy(tag), ..packet(0, 1, tag) }));
        world.advance(5000 * US);
        let found = outcomes(&mut world);
        assert_eq!(found.len(), 64);
        found[63].time_ps / US
    };
    let (one, many) = (last_us(|_| 9), last_us(|tag| tag));
    assert!(one >= 64 * 20, "one path has half of the host's rate: {one} us");
    assert!(many < one * 3 / 4, "several paths: {many} us, one: {one} us");
}

#[test]
fn commands_are_one_per_host_and_copy() {
    let runs = "[[run]]\nhost = 0\ntimes = 2\nserver = true\nlisten = 18515\ncommand = \"a\"\n\
                [[run]]\nhosts = [1, 2]\nstart = \"5ms\"\ncommand = \"b\"\n";
    let scenario = Scenario::parse_live(&format!("{STAR}{runs}"), Path::new(".")).expect("a scenario");
    let commands = scenario.commands().expect("commands");
    let found: Vec<_> =
        commands.iter().map(|c| (c.host, c.copy, c.command.as_str(), c.listen, c.start_ns)).collect();
    let expected = [
        (0, 0, "a", Some(18515), 0),
        (0, 1, "a", Some(18516), 0),
        (1, 0, "b", None, 5_000_000),
        (2, 0, "b", None, 5_000_000),
    ];
    assert_eq!(found, expected);
    let control = scenario.live(0, None).expect("a run").live_control;
    assert!(control.starts_with("dctcp,line_rate=1000Mb/s,base_rtt=5"), "{control}");
    for (wrong, why) in [
        ("[[run]]\nhost = 9\ncommand = \"a\"\n", "hosts are 0 to 2"),
        ("[[run]]\nhost = 0\ntimes = 0\ncommand = \"a\"\n", "1 to 1024"),
        ("[[run]]\nhost = 0\nhosts = [1]\ncommand = \"a\"\n", "keep one"),
    ] {
        let scenario = Scenario::parse_live(&format!("{STAR}{wrong}"), Path::new(".")).expect("TOML");
        let mistake = scenario.commands().expect_err(why).to_string();
        assert!(mistake.contains(why), "{mistake}");
    }
    assert!(Scenario::parse(STAR, Path::new(".")).is_err(), "a simulation needs a workload");
}
