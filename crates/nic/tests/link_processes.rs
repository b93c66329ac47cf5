//! Several NICs on one address: in one process, and in several that may die.

mod link_support;

use ferroce_nic::link::{Link, RxBatch, TxBatch, UdpLink};
use ferroce_proto::qp::Arrival;
use ferroce_proto::wire::has_partial_icrc;
use link_support::*;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Instant;

fn send(from: &dyn Link, addr: &str, entropy: u16, bytes: &[u8]) {
    let mut batch = TxBatch::new();
    add(&mut batch, &route(addr, addr, entropy), bytes);
    from.send(&mut batch);
}

#[test]
fn slots_are_distinct_and_queue_pair_numbers_never_collide() {
    let links: Vec<_> = (1..=20).map(|i| open(&[format!("127.42.1.{i}").as_str()])).collect();
    let slots: std::collections::BTreeSet<_> = links.iter().map(UdpLink::slot).collect();
    assert_eq!(slots.len(), 20);
    assert!(slots.iter().all(|s| (1..=254).contains(s)));
}

/// Replaces the steering of a group by one that sends everything to the socket at `index`.
fn steer_all_to(link: &UdpLink, index: u32) {
    let mut program =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: index }];
    let fprog = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    // SAFETY: the program is valid and outlives the call.
    let rc = unsafe {
        libc::setsockopt(
            link.wait_fds()[0].as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const fprog).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    assert_eq!(rc, 0);
}

#[test]
fn packets_at_the_wrong_process_are_forwarded_and_steering_recovers() {
    let addr = "127.42.3.1";
    let (wrong, right) = (open(&[addr]), open(&[addr]));
    steer_all_to(&wrong, 0);
    // A GRO batch with packets for both, so that runs of misrouted packets have to be cut out of it.
    let owners = [right.slot(), right.slot(), wrong.slot(), right.slot(), wrong.slot(), right.slot()];
    let mut batch = TxBatch::new();
    for (number, &slot) in owners.iter().enumerate() {
        add(&mut batch, &route(addr, addr, 0), &packet(slot, number as u32, 512));
    }
    wrong.send(&mut batch);
    let kept: Vec<_> = receive(&wrong, 2).iter().map(|b| number_of(b)).collect();
    assert_eq!(kept, [2, 4]);
    let forwarded = receive(&right, 4);
    assert_eq!(forwarded.iter().map(|b| number_of(b)).collect::<Vec<_>>(), [0, 1, 3, 5]);
    assert_eq!(forwarded[1], packet(right.slot(), 1, 512));
    let (out, into) = (wrong.counters(), right.counters());
    assert_eq!((out.misdelivered, out.forwarded_out, out.forward_errors), (4, 4, 0));
    assert_eq!((into.forwarded_in, into.rx_packets), (4, 4));
    // The misrouted packet made the receiver steer anew, so the next packet comes straight.
    assert_eq!(out.repairs, 1);
    send(&wrong, addr, 0, &packet(right.slot(), 9, 64));
    assert_eq!(number_of(&receive(&right, 1)[0]), 9);
    assert_eq!(right.counters().forwarded_in, 4);
}

#[test]
fn a_forwarded_packet_reports_what_its_icrc_covers() {
    let addr = "127.42.3.2";
    let (wrong, right) = (open(&[addr]), open(&[addr]));
    steer_all_to(&wrong, 0);
    let mut batch = TxBatch::new();
    for number in 0..4 {
        let mut bytes = packet(right.slot(), number, 512);
        bytes[8] = if number % 2 == 0 { 0 } else { 0x18 };
        add(&mut batch, &route(addr, addr, 0), &bytes);
    }
    wrong.send(&mut batch);
    // The next packet is for the process that forwards the others.
    send(&wrong, addr, 0, &packet(wrong.slot(), 4, 64));
    assert_eq!(number_of(&receive(&wrong, 1)[0]), 4);
    let forwarded = receive_each(&right, 4, |p| (number_of(p.bytes), has_partial_icrc(p.bytes)));
    assert_eq!(forwarded, [(0, false), (1, true), (2, false), (3, true)]);
}

/// The socket for forwarded packets holds ten messages; the others are held back and not lost.
#[test]
fn a_burst_at_the_wrong_process_is_forwarded_whole() {
    const PACKETS: u32 = 200;
    let addr = "127.42.13.1";
    let (wrong, right) = (open(&[addr]), open(&[addr]));
    let mut arrived = Vec::new();
    let mut rx = RxBatch::new();
    for number in 0..PACKETS {
        // Anew each time, as the receiver repairs it.
        steer_all_to(&wrong, 0);
        send(&wrong, addr, 0, &packet(right.slot(), number, 64));
        receive_all(&wrong, &mut rx);
    }
    assert!(deadline(&wrong).is_some(), "something is held back");
    let start = Instant::now();
    while arrived.len() < PACKETS as usize {
        assert!(start.elapsed() < MAX_WAIT, "only {} arrived", arrived.len());
        receive_all(&right, &mut rx);
        arrived.extend(rx.packets().map(|p| number_of(p.bytes)));
        receive_all(&wrong, &mut rx);
    }
    assert_eq!(arrived, (0..PACKETS).collect::<Vec<_>>());
    assert_eq!((deadline(&wrong), wrong.counters().forward_errors), (None, 0));
    assert_eq!(wrong.counters().forwarded_out, u64::from(PACKETS));
}

#[test]
fn a_merged_train_of_full_length_is_forwarded_whole() {
    let addr = "127.42.4.1";
    let (wrong, right) = (open(&[addr]), open(&[addr]));
    steer_all_to(&wrong, 0);
    let packets: Vec<_> = (0..15).map(|i| packet(right.slot(), i, 4096 + 16)).collect();
    let mut batch = TxBatch::new();
    for bytes in &packets {
        add(&mut batch, &route(addr, addr, 0), bytes);
    }
    right.send(&mut batch);
    receive_until(&wrong, |l| l.counters().misdelivered == 15);
    assert_eq!(receive(&right, 15), packets);
}

/// Runs of misrouted packets in a GRO batch that is received in chunks neither end with a chunk nor get lost at its border.
#[test]
fn misrouted_packets_are_cut_out_of_a_long_gro_batch() {
    let addr = "127.42.14.1";
    let (wrong, right) = (open(&[addr]), open(&[addr]));
    steer_all_to(&wrong, 0);
    let is_foreign = |number: u32| (2..9).contains(&number) || number == 14;
    let mut batch = TxBatch::new();
    for number in 0..15 {
        let slot = if is_foreign(number) { right.slot() } else { wrong.slot() };
        add(&mut batch, &route(addr, addr, 0), &packet(slot, number, 4096 + 16));
    }
    right.send(&mut batch);
    let (mut rx, mut kept) = (RxBatch::new(), Vec::new());
    let start = Instant::now();
    while kept.len() < 7 {
        assert!(start.elapsed() < MAX_WAIT, "only {kept:?} arrived");
        receive_all(&wrong, &mut rx);
        kept.extend(rx.packets().map(|p| number_of(p.bytes)));
    }
    assert_eq!(kept, (0..15).filter(|&n| !is_foreign(n)).collect::<Vec<_>>());
    let forwarded: Vec<_> = receive(&right, 8).iter().map(|b| number_of(b)).collect();
    assert_eq!(forwarded, (0..15).filter(|&n| is_foreign(n)).collect::<Vec<_>>());
    let counters = wrong.counters();
    assert_eq!((counters.misdelivered, counters.forwarded_out, counters.repairs), (8, 8, 1));
}

#[test]
fn a_packet_for_nobody_is_dropped_and_counted() {
    let addr = "127.42.5.1";
    let link = open(&[addr]);
    let nobody = (1..=254).rev().find(|&s| s != link.slot() && is_free(s)).unwrap();
    send(&link, addr, 0, &packet(nobody, 0, 64));
    let kept = receive_until(&link, |l| l.counters().misdelivered == 1);
    assert!(kept.is_empty());
    assert_eq!(link.counters().forward_errors, 1);
}

/// Whether no process of this user has the slot, as far as its socket shows.
fn is_free(slot: u8) -> bool {
    // SAFETY: takes and touches nothing.
    let uid = unsafe { libc::geteuid() };
    let netns = std::os::unix::fs::MetadataExt::ino(&std::fs::metadata("/proc/self/ns/net").unwrap());
    !std::path::Path::new(&format!("/dev/shm/ferroce-{uid}-{netns}/slot-{slot}.sock")).exists()
}

#[test]
fn the_nic_may_forward_what_reached_it() {
    let addr = "127.42.6.1";
    let (one, other) = (open(&[addr]), open(&[addr]));
    let mut bytes = packet(0, 77, 256);
    bytes[5..8].copy_from_slice(&[0, 0, 1]);
    let (sgid, dgid) = (gid("127.42.6.9"), gid(addr));
    let arrival = Arrival { sgid, dgid, traffic_class: 4, hop_limit: 60, ring: None, age_ns: 0 };
    let got = ferroce_nic::link::RxPacket { arrival: &arrival, sport: 0xC123, bytes: &bytes };
    one.port().forward(other.slot(), &got);
    let seen = receive_each(&other, 1, |p| (*p.arrival, p.sport, p.bytes.to_vec()));
    assert_eq!(seen, [(arrival, got.sport, bytes.clone())]);
}

#[test]
fn two_deaths_at_once_leave_an_order_that_probes_find_out() {
    // The order in which two die decides the kernel's order of the rest, and nobody has seen it.
    let addr = "127.42.7.1";
    for (first, second) in [(0, 1), (1, 0), (0, 2), (3, 0), (1, 3), (3, 1)] {
        let mut children: Vec<Worker> = (0..5).map(|_| Worker::start(addr)).collect();
        for index in [first, second] {
            children[index].kill();
        }
        for index in [first.max(second), first.min(second)] {
            children.remove(index);
        }
        let sender = open(&["127.42.7.200"]);
        // Misrouted packets first, then none: their number stops growing.
        for round in 0..3 {
            for (i, child) in children.iter_mut().enumerate() {
                child.expect_packet(&sender, addr, (round * 10 + i) as u32);
            }
        }
        let misrouted =
            |children: &mut Vec<Worker>| children.iter_mut().map(Worker::forwarded_in).sum::<u64>();
        let start = Instant::now();
        let mut number = 100;
        loop {
            let before = misrouted(&mut children);
            for child in &mut children {
                number += 1;
                child.expect_packet(&sender, addr, number);
            }
            if misrouted(&mut children) == before {
                break;
            }
            assert!(start.elapsed() < MAX_WAIT, "{first} then {second}: misrouting does not end");
        }
    }
}

#[test]
fn a_killed_process_takes_nobody_with_it() {
    let addr = "127.42.8.1";
    let mut children: Vec<Worker> = (0..4).map(|_| Worker::start(addr)).collect();
    let sender = open(&["127.42.8.200"]);
    for number in 0..200_u32 {
        if number == 60 || number == 120 {
            // Somebody in the middle, under traffic.
            let mut victim = children.remove(1);
            for burst in 0..8 {
                send(&sender, addr, burst, &packet(victim.slot, 0, 64));
            }
            victim.kill();
        }
        for (i, child) in children.iter_mut().enumerate() {
            child.expect_packet(&sender, addr, number * 10 + i as u32);
        }
        if number == 150 {
            children.push(Worker::start(addr));
        }
    }
}

/// A process that opens a link, prints its slot and then the number of every packet it gets.
struct Worker {
    process: Child,
    lines: BufReader<ChildStdout>,
    slot: u8,
}

impl Worker {
    fn start(addr: &str) -> Worker {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["worker_process", "--exact", "--nocapture"])
            .env("FERROCE_TEST_WORKER", addr)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap());
        let mut worker = Worker { process, lines, slot: 0 };
        worker.slot = worker.next("slot") as u8;
        worker
    }

    /// The next thing that the process says under this name.
    fn next(&mut self, name: &str) -> u64 {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the worker in slot {} is gone", self.slot);
            // The test harness prints around us, also on the same line.
            if let Some((_, value)) = line.split_once(&format!("@{name} ")) {
                return value.trim().parse().unwrap();
            }
        }
    }

    fn expect_packet(&mut self, sender: &dyn Link, addr: &str, number: u32) {
        send(sender, addr, number as u16, &packet(self.slot, number, 64));
        assert_eq!(self.next("packet"), u64::from(number), "worker in slot {}", self.slot);
    }

    fn forwarded_in(&mut self) -> u64 {
        self.process.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.next("forwarded_in")
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Not a test, but the body of a [`Worker`]: only a process that was started as one gets past the first line.
#[test]
fn worker_process() {
    let Ok(addr) = std::env::var("FERROCE_TEST_WORKER") else { return };
    let link = open(&[&addr]);
    println!("@slot {}", link.slot());
    let mut rx = ferroce_nic::link::RxBatch::new();
    let mut polls: Vec<_> = link.wait_fds().into_iter().chain([0]).map(readable).collect();
    loop {
        // SAFETY: the array is valid for its length.
        unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, -1) };
        if receive_all(&link, &mut rx) > 0 {
            for p in rx.packets() {
                println!("@packet {}", number_of(p.bytes));
            }
        }
        if polls.last().is_some_and(|stdin| stdin.revents != 0) {
            let mut line = String::new();
            if std::io::stdin().read_line(&mut line).unwrap() == 0 {
                return;
            }
            println!("@forwarded_in {}", link.counters().forwarded_in);
        }
    }
}

fn readable(fd: i32) -> libc::pollfd {
    libc::pollfd { fd, events: libc::POLLIN, revents: 0 }
}
