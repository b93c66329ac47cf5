//! What the UDP link costs, printed: `cargo test --release -p ferroce-nic --test link_bench -- --ignored --nocapture`.
//!
//! Figures, not assertions: compare them with each other within one run, never with another machine's.

mod link_support;

use ferroce_nic::link::{Link, RxBatch, TxBatch};
use link_support::*;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 50_000;
const STREAM_FOR: Duration = Duration::from_millis(700);

#[test]
#[ignore = "tmp"]
fn tmp_pp() {
    match std::env::var("T").as_deref() {
        Ok("bare") => (0..5).for_each(|_| bare_ping_pong()),
        Ok("link") => (0..5).for_each(|_| ping_pong("127.45.0.1", "127.45.0.2")),
        Ok("link6") => (0..5).for_each(|_| ping_pong("::1", "::1")),
        Ok("one") => (0..9).for_each(|_| {
            one_thread(24, 1);
            one_thread_bare()
        }),
        _ => (0..5).for_each(|_| empty_receive()),
    }
}

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
    one_thread(4096 + 16, 15);
    one_thread(4096 + 16, 1);
    one_thread(24, 1);
    one_thread_bare();
}

/// The yardstick of [`one_thread`].
fn one_thread_bare() {
    let (a, b) = (UdpSocket::bind("127.45.5.1:0").unwrap(), UdpSocket::bind("127.45.5.2:0").unwrap());
    let to = b.local_addr().unwrap();
    let (mut sending, mut receiving) = (0, 0);
    for _ in 0..5000 {
        let start = thread_ns();
        a.send_to(&[0; 28], to).unwrap();
        let middle = thread_ns();
        b.recv_from(&mut [0; 64]).unwrap();
        receiving += thread_ns() - middle;
        sending += middle - start;
    }
    println!("one thread, bare UDP,   28 B: send {:6} ns, receive {:6} ns", sending / 5000, receiving / 5000);
}

/// Processor time of sending and receiving, from one thread: comparable even on a busy machine.
fn one_thread(len: usize, run: usize) {
    let (from, to) = ("127.45.4.1", "127.45.4.2");
    let (sender, receiver) = (open(&[from]), open(&[to]));
    let (route, bytes) = (route(from, to, 0), packet(receiver.slot(), 0, len));
    let (mut batch, mut rx) = (TxBatch::new(), RxBatch::new());
    let (mut sending, mut receiving) = (0, 0);
    for _ in 0..5000 {
        (0..run).for_each(|_| add(&mut batch, &route, &bytes));
        let start = thread_ns();
        sender.send(&mut batch);
        let middle = thread_ns();
        let got = receiver.receive(&mut rx, false);
        receiving += thread_ns() - middle;
        sending += middle - start;
        assert_eq!(got, run);
    }
    let (tx, rx) = (sending / 5000, receiving / 5000);
    println!("one thread, {run:2} x {len:4} B: send {tx:6} ns, receive {rx:6} ns");
}

fn thread_ns() -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the answer.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut ts) };
    ts.tv_sec as u64 * 1_000_000_000 + ts.tv_nsec as u64
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
