//! What the UDP link costs, printed:
//! `cargo test --release -p ferroce-nic --test link_bench -- --ignored --nocapture --test-threads 1`.
//!
//! Figures, not assertions: compare them with each other within one run, never with another machine's.

mod link_support;

use ferroce_nic::link::{Effort, Link, RxBatch, TxBatch};
use ferroce_proto::verbs::Route;
use link_support::*;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

const ROUNDS: u32 = 50_000;
const STREAM_FOR: Duration = Duration::from_millis(700);

#[test]
#[ignore = "prints figures; needs two quiet cores"]
fn latency() {
    for _ in 0..3 {
        empty_receive();
        bare_ping_pong();
        ping_pong("127.45.0.1", "127.45.0.2");
        ping_pong("::1", "::1");
    }
}

#[test]
#[ignore = "prints figures; needs two quiet cores"]
fn bandwidth() {
    for _ in 0..3 {
        for len in [4096 + 16, 1024 + 16, 64] {
            stream("127.45.1.1", "127.45.1.2", len);
        }
        stream("::1", "::1", 4096 + 16);
    }
}

#[test]
#[ignore = "prints figures"]
fn processor_time() {
    for _ in 0..3 {
        one_thread(4096 + 16, 15);
        one_thread(4096 + 16, 1);
        one_thread(24, 1);
        one_thread_bare();
    }
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
        let got = receiver.receive(&mut rx, Effort::Quick);
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
        link.receive(&mut rx, Effort::Quick);
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
    let exchange = |socket: &UdpSocket| {
        let mut buffer = [0; 64];
        while socket.recv(&mut buffer).is_err() {}
        socket.send(&buffer[..28]).unwrap();
    };
    let half = std::thread::scope(|s| {
        s.spawn(|| (0..ROUNDS).for_each(|_| exchange(&b)));
        a.send(&[0; 28]).unwrap();
        let start = Instant::now();
        (1..ROUNDS).for_each(|_| exchange(&a));
        start.elapsed().as_nanos() as f64 / f64::from(2 * ROUNDS)
    });
    println!("bare UDP half round trip     {half:8.0} ns");
}

fn ping_pong(one: &str, other: &str) {
    let (a, b) = (open(&[one]), open(&[other]));
    let exchange = |link: &dyn Link, back: &(Route, Vec<u8>), buffers: &mut (RxBatch, TxBatch)| {
        while link.receive(&mut buffers.0, Effort::Quick) == 0 {}
        add(&mut buffers.1, &back.0, &back.1);
        link.send(&mut buffers.1);
    };
    let to_b = (route(one, other, 0), packet(b.slot(), 0, 24));
    let to_a = (route(other, one, 0), packet(a.slot(), 0, 24));
    let half = std::thread::scope(|s| {
        s.spawn(|| {
            let mut buffers = (RxBatch::new(), TxBatch::new());
            (0..ROUNDS).for_each(|_| exchange(&b, &to_a, &mut buffers));
        });
        let mut buffers = (RxBatch::new(), TxBatch::new());
        add(&mut buffers.1, &to_b.0, &to_b.1);
        a.send(&mut buffers.1);
        let start = Instant::now();
        (1..ROUNDS).for_each(|_| exchange(&a, &to_b, &mut buffers));
        start.elapsed().as_nanos() as f64 / f64::from(2 * ROUNDS)
    });
    println!("link half round trip {one:11}{half:5.0} ns");
}

/// One thread sends out of 1 MiB of memory, one receives into 1 MiB; the sender stays at most 512 KiB ahead.
fn stream(from: &str, to: &str, len: usize) {
    const WINDOW: u64 = 512 << 10;
    const MEMORY: usize = 1 << 20;
    let (sender, receiver) = (open(&[from]), open(&[to]));
    let (received, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (bytes, elapsed) = std::thread::scope(|s| {
        s.spawn(|| {
            let (mut rx, mut memory, mut at) = (RxBatch::new(), vec![0; MEMORY], 0);
            while !stop.load(Relaxed) {
                if receiver.receive(&mut rx, Effort::Quick) > 0 {
                    let mut total = 0;
                    for p in rx.packets() {
                        at = if at + len > MEMORY { 0 } else { at };
                        memory[at..at + len].copy_from_slice(p.bytes);
                        (at, total) = (at + len, total + len as u64);
                    }
                    received.fetch_add(total, Relaxed);
                }
            }
        });
        let (route, head, memory) = (route(from, to, 0), packet(receiver.slot(), 0, 16), vec![7; MEMORY]);
        let (mut batch, mut sent, mut at, start) = (TxBatch::new(), 0, 0, Instant::now());
        while start.elapsed() < STREAM_FOR {
            if sent - received.load(Relaxed) > WINDOW {
                std::hint::spin_loop();
                continue;
            }
            while batch.has_room(len) {
                at = if at + len > MEMORY { 0 } else { at };
                let bytes = batch.reserve(&route, len);
                bytes[16..].copy_from_slice(&memory[at..at + len - 16]);
                bytes[..16].copy_from_slice(&head);
                (at, sent) = (at + len, sent + len as u64);
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
