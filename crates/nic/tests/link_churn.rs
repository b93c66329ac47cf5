//! Links that come and go on one address. In a file of its own, since a process that forks meanwhile (as the tests with
//! worker processes do) keeps closed sockets alive for a moment.

mod link_support;

use ferroce_nic::link::{Link, RxBatch, TxBatch, UdpLink};
use link_support::*;
use std::time::Instant;

#[test]
fn each_of_three_links_gets_its_own_packets() {
    for addr in ["127.47.2.1", "::1"] {
        let _lock = lock_address(addr);
        let links = [open(&[addr]), open(&[addr]), open(&[addr])];
        let mut batch = TxBatch::new();
        for number in 0..60 {
            let to = &links[number as usize % 3];
            add(&mut batch, &route(addr, addr, number as u16), &packet(to.slot(), number, 64));
            links[0].send(&mut batch);
        }
        for (i, link) in links.iter().enumerate() {
            let numbers: Vec<_> = receive(link, 20).iter().map(|b| number_of(b) as usize % 3).collect();
            assert_eq!(numbers, [i; 20]);
            assert_eq!(link.counters().misdelivered, 0, "steering was right from the start");
        }
    }
}

#[test]
fn steering_follows_those_who_leave_and_join() {
    let addr = "127.47.0.1";
    let mut links: Vec<_> = (0..4).map(|_| open(&[addr])).collect();
    for round in 0..12 {
        links.remove(round % links.len());
        if round % 2 == 1 {
            links.push(open(&[addr]));
            links.push(open(&[addr]));
        }
        // A packet or two may be misrouted until the survivors have learned who left, and then none.
        let start = Instant::now();
        while misrouted_in_a_round(&links, addr) > 0 {
            assert!(start.elapsed() < MAX_WAIT, "round {round}: misrouting does not end");
        }
    }
}

/// Sends one packet to each link, lets all of them receive until each has its own, and counts the misrouted packets.
fn misrouted_in_a_round(links: &[UdpLink], addr: &str) -> u64 {
    let misdelivered = || links.iter().map(|l| l.counters().misdelivered).sum::<u64>();
    let (before, start) = (misdelivered(), Instant::now());
    let mut batch = TxBatch::new();
    for (i, link) in links.iter().enumerate() {
        add(&mut batch, &route(addr, addr, i as u16), &packet(link.slot(), i as u32, 64));
    }
    links[0].send(&mut batch);
    let mut rx = RxBatch::new();
    let mut missing: std::collections::BTreeSet<usize> = (0..links.len()).collect();
    while !missing.is_empty() {
        assert!(start.elapsed() < MAX_WAIT, "packets {missing:?} were lost");
        for (i, link) in links.iter().enumerate() {
            receive_all(link, &mut rx);
            for p in rx.packets() {
                assert_eq!(number_of(p.bytes), i as u32);
                assert!(missing.remove(&i));
            }
        }
    }
    misdelivered() - before
}

/// Packets that may be lost while 800 links come and go. Beside a heavily loaded host 3 of 202 runs lost one packet; the
/// cause is NOT proven. The suspicion is a packet for which the kernel picked the socket of a leaving link before that
/// link left the steering, and queued it there after the link had emptied it (looking twice, 500 us apart, found none in
/// 120 quiet runs). A loss of our own doing that was mended before this number was written failed 8 of 100 runs.
const MAX_LOST: u32 = 2;

#[test]
fn no_packet_is_lost_while_links_come_and_go() {
    let addr = "127.47.1.1";
    let lost: u32 = std::thread::scope(|s| {
        let threads: Vec<_> = (0..4_u32)
            .map(|thread| {
                s.spawn(move || (0..200).map(|round| one_life(addr, thread * 1000 + round)).sum::<u32>())
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    assert!(lost <= MAX_LOST, "{lost} packets were lost");
}

/// Opens a link, gets a packet, which is sent again when it does not come, and closes the link. Returns how often it was
/// sent again.
fn one_life(addr: &str, number: u32) -> u32 {
    let link = open(&[addr]);
    let send = || {
        let mut batch = TxBatch::new();
        add(&mut batch, &route(addr, addr, number as u16), &packet(link.slot(), number, 64));
        link.send(&mut batch);
    };
    send();
    let (mut rx, start, mut lost) = (RxBatch::new(), Instant::now(), 0);
    loop {
        receive_all(&link, &mut rx);
        if rx.packets().any(|p| number_of(p.bytes) == number) {
            return lost;
        }
        assert!(start.elapsed() < MAX_WAIT, "packet {number} was lost; {:?}", link.counters());
        if start.elapsed() > MAX_WAIT / 4 * (lost + 1) {
            lost += 1;
            send();
        }
    }
}
