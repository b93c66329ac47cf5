//! What the UDP link costs, printed: `cargo test --release -p ferroce-nic --test link_bench -- --ignored --nocapture`.
//!
//! Figures, not assertions: compare them with each other within one run, never with another machine's.

mod link_support;

use ferroce_nic::link::{Link, RxBatch, TxBatch};
use link_support::*;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 100_000;
const STREAM_FOR: Duration = Duration::from_secs(2);

#[test]
#[ignore = "prints figures; needs two quiet cores"]
fn figures() {
    empty_receive();
    bare_ping_pong();
    ping_pong("127.45.0.1", "127.45.0.2");
    ping_pong("::1", "::1");
    for len in [4096 + 16, 1024 + 16, 64] {
        stream("127.45.1.1", "127.45.1.2", len);
    }
    stream("::1", "::1", 4096 + 16);
}

fn empty_receive() {
    let link = open(&["127.45.2.1", "::1"]);
    let mut rx = RxBatch::new();
    let start = Instant::now();
    for _ in 0..ROUNDS {
        link.receive(&mut rx, false);
    }
    let ns = start.elapsed().as_nanos() as f64 / f64::from(ROUNDS);
    let calls = link.counters().rx_calls as f64 / f64::from(ROUNDS);
    println!("empty receive                {ns:8.0} ns   {calls:.2} system calls");
}

/// The yardstick: two plain sockets, both sides spinning.
fn bare_ping_pong() {
    let (a, b) = (UdpSocket::bind("127.45.3.1:0").unwrap(), UdpSocket::bind("127.45.3.2:0").unwrap());
    a.connect(b.local_addr().unwrap()).unwrap();
    b.connect(a.local_addr().unwrap()).unwrap();
    a.set_nonblocking(true).unwrap();
    b.set_nonblocking(true).unwrap();
    let turn = |socket: &UdpSocket| {
        let mut buffer = [0; 64];
        while socket.recv(&mut buffer).is_err() {}
        socket.send(&buffer[..28]).unwrap();
    };
    let half = std::thread::scope(|s| {
        s.spawn(|| (0..ROUNDS).for_each(|_| turn(&b)));
        a.send(&[0; 28]).unwrap();
        let start = Instant::now();
        (1..ROUNDS).for_each(|_| turn(&a));
        start.elapsed().as_nanos() as f64 / f64::from(2 * ROUNDS)
    });
    println!("bare UDP half round trip     {half:8.0} ns");
}

fn ping_pong(one: &str, other: &str) {
    let (a, b) = (open(&[one]), open(&[other]));
    let turn = |link: &dyn Link, to: &dyn Link, from: &str, dest: &str, buffers: &mut (RxBatch, TxBatch)| {
        while link.receive(&mut buffers.0, false) == 0 {}
        let bytes = packet(to.slot(), 0, 24);
        add(&mut buffers.1, &route(from, dest, 0), &bytes);
        link.send(&mut buffers.1);
    };
    let half = std::thread::scope(|s| {
        s.spawn(|| {
            let mut buffers = (RxBatch::new(), TxBatch::new());
            (0..ROUNDS).for_each(|_| turn(&b, &a, other, one, &mut buffers));
        });
        let mut buffers = (RxBatch::new(), TxBatch::new());
        add(&mut buffers.1, &route(one, other, 0), &packet(b.slot(), 0, 24));
        a.send(&mut buffers.1);
        let start = Instant::now();
        (1..ROUNDS).for_each(|_| turn(&a, &b, one, other, &mut buffers));
        start.elapsed().as_nanos() as f64 / f64::from(2 * ROUNDS)
    });
    println!("link half round trip {one:11}{half:5.0} ns");
}

/// One thread sends, one receives; the sender stays at most 2 MiB ahead.
fn stream(from: &str, to: &str, len: usize) {
    const WINDOW: u64 = 2 << 20;
    let (sender, receiver) = (open(&[from]), open(&[to]));
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (bytes, elapsed) = std::thread::scope(|s| {
        s.spawn(|| {
            let mut rx = RxBatch::new();
            while !stop.load(Relaxed) {
                if receiver.receive(&mut rx, false) > 0 {
                    let total: usize = rx.packets().map(|p| p.bytes.len()).sum();
                    received.fetch_add(total as u64, Relaxed);
                }
            }
        });
        let (route, bytes) = (route(from, to, 0), packet(receiver.slot(), 0, len));
        let mut batch = TxBatch::new();
        let (mut sent, start) = (0_u64, Instant::now());
        while start.elapsed() < STREAM_FOR {
            if sent - received.load(Relaxed) > WINDOW {
                std::hint::spin_loop();
                continue;
            }
            while batch.has_room(len) {
                add(&mut batch, &route, &bytes);
                sent += len as u64;
            }
            sender.send(&mut batch);
        }
        let elapsed = start.elapsed();
        stop.store(true, Relaxed);
        (received.load(Relaxed), elapsed)
    });
    let (tx, rx) = (sender.counters(), receiver.counters());
    println!(
        "stream {from:11} {len:5} B  {:6.2} GB/s  {:6.2} M packets/s  {:.1} packets per send call, lost {}",
        bytes as f64 / elapsed.as_nanos() as f64,
        rx.rx_packets as f64 / elapsed.as_micros() as f64,
        tx.tx_packets as f64 / tx.tx_calls as f64,
        rx.rx_overruns,
    );
}
