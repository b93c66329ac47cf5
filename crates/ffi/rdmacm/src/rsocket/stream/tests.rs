//! Two machines connected by queues, which deliver messages and WRITEs in order.

use super::*;
use std::collections::VecDeque;

const SIZES: Sizing =
    Sizing { send_ring: 8192, recv_ring: 4096, send_queue: 16, recv_queue: 16, inline: 16, mappings: 0 };

/// One end: its machine, the memory of its receive ring, and the messages that it has not handled.
struct Tester {
    machine: Machine,
    ring: Vec<u8>,
    table: [[u8; RemoteBuffer::LEN]; 2],
    arrivals: VecDeque<(Message, bool)>,
    sent: VecDeque<Work>,
    base: u64,
}

fn table_of(base: u64) -> RemoteBuffer {
    RemoteBuffer { addr: base + 0x10_0000, rkey: 2, length: TABLE_SLOTS }
}

fn tester(base: u64, peer_base: u64, peer_order: Order) -> Tester {
    let ring = RemoteBuffer { addr: base, rkey: 1, length: SIZES.recv_ring };
    let peer = ConnectData {
        order: peer_order,
        mappings_known: true,
        credits: SIZES.recv_queue,
        mappings: 0,
        table: table_of(peer_base),
        data: RemoteBuffer { addr: peer_base, rkey: 1, length: SIZES.recv_ring / 2 },
    };
    Tester {
        machine: Machine::new(&SIZES, ring, &peer),
        ring: vec![0; SIZES.recv_ring as usize],
        table: Default::default(),
        arrivals: VecDeque::new(),
        sent: VecDeque::new(),
        base,
    }
}

fn pair() -> (Tester, Tester) {
    (tester(0x1000_0000, 0x2000_0000, Order::HERE), tester(0x2000_0000, 0x1000_0000, Order::HERE))
}

impl Tester {
    /// Handles all messages and completions, and posts the control messages that are due.
    fn step(&mut self, peer: &mut Tester) {
        while let Some(work) = self.sent.pop_front() {
            self.machine.handle_sent(work, true);
        }
        while let Some((message, entry)) = self.arrivals.pop_front() {
            let slot = self.machine.next_own_slot() as usize;
            let entry = entry.then(|| RemoteBuffer::from_bytes(self.table[slot], Order::HERE));
            self.machine.handle_message(message, entry);
        }
        while let Some((control, work)) = self.machine.poll_control() {
            self.sent.push_back(work);
            match control {
                Control::Bare(message) => peer.arrivals.push_back((message, false)),
                Control::Probe => {}
                Control::Entry { message, bytes, target } => {
                    let slot = (target.addr - table_of(peer.base).addr) / RemoteBuffer::LEN as u64;
                    peer.table[slot as usize] = bytes;
                    peer.arrivals.push_back((message, true));
                }
            }
        }
    }

    /// Sends as many of `bytes` as possible. Returns their number.
    fn send(&mut self, peer: &mut Tester, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let Some(piece) = self.machine.send_ring.plan((bytes.len() - done) as u32) else { break };
            let target = self.machine.send_ring.commit(&piece);
            let at = (target.addr - peer.base) as usize;
            let length = piece.length as usize;
            peer.ring[at..at + length].copy_from_slice(&bytes[done..done + length]);
            peer.arrivals.push_back((Message::Data(piece.length), false));
            self.sent.push_back(Work::Sent(piece.ring_bytes()));
            done += length;
        }
        done
    }

    fn read(&mut self, limit: usize) -> Vec<u8> {
        let spans = self.machine.recv_ring.next(limit);
        let bytes: Vec<u8> = spans
            .iter()
            .flat_map(|span| self.ring[span.offset as usize..][..span.length as usize].to_vec())
            .collect();
        self.machine.recv_ring.on_read(bytes.len() as u32);
        bytes
    }
}

/// A generator of pseudo-random numbers from a seed.
fn numbers(mut seed: u64) -> impl FnMut(usize) -> usize {
    move |below| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % below.max(1)
    }
}

#[test]
fn every_byte_arrives_in_order_whatever_the_sizes() {
    for seed in 0..50 {
        let (mut a, mut b) = pair();
        let mut next = numbers(seed);
        let stream: Vec<u8> = (0..60_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let (mut sent, mut got) = (0, Vec::new());
        for round in 0.. {
            assert!(round < 200_000, "stuck with seed {seed} at {} of {}", got.len(), stream.len());
            let upto = stream.len().min(sent + next(3000));
            sent += a.send(&mut b, &stream[sent..upto]);
            a.step(&mut b);
            b.step(&mut a);
            got.extend(b.read(next(3000)));
            if got.len() == stream.len() {
                break;
            }
        }
        assert_eq!(got, stream, "seed {seed}");
        assert!(b.machine.life.is_connected() && a.machine.life.is_connected());
    }
}

#[test]
fn a_reader_that_sleeps_stops_the_writer_and_nothing_else() {
    let (mut a, mut b) = pair();
    let bytes = vec![7; 100_000];
    let mut sent = 0;
    for _ in 0..100 {
        sent += a.send(&mut b, &bytes[sent..]);
        b.step(&mut a);
        a.step(&mut b);
    }
    assert_eq!(sent, SIZES.recv_ring as usize, "the peer's ring is full");
    let back = b.send(&mut a, &bytes[..100]);
    assert_eq!(back, 100, "the other direction flows");
    a.step(&mut b);
    assert_eq!(a.read(1000).len(), 100);
}

#[test]
fn small_messages_run_out_of_credits_before_bytes() {
    let (mut a, mut b) = pair();
    let mut count = 0;
    for _ in 0..100 {
        count += a.send(&mut b, &[1]);
        a.step(&mut b);
        b.step(&mut a);
    }
    assert_eq!(count, usize::from(SIZES.recv_queue));
    b.read(usize::from(SIZES.recv_queue) / 2);
    b.step(&mut a);
    a.step(&mut b);
    assert_eq!(a.send(&mut b, &[1]), 1);
}

#[test]
fn goodbye_comes_behind_the_data() {
    let (mut a, mut b) = pair();
    a.send(&mut b, b"last words");
    a.machine.handle_shutdown(Direction::Both);
    a.step(&mut b);
    assert!(!a.machine.is_flushed());
    b.step(&mut a);
    assert_eq!(b.machine.life.end(), Some(End::Disconnected));
    assert_eq!(b.read(100), b"last words");
    a.step(&mut b);
    assert_eq!(a.machine.life.end(), Some(End::Disconnected));
    assert!(a.machine.is_flushed());
}

#[test]
fn half_closed_connections_flow_the_other_way() {
    let (mut a, mut b) = pair();
    a.machine.handle_shutdown(Direction::Write);
    a.step(&mut b);
    b.step(&mut a);
    assert!(!b.machine.life.is_readable() && b.machine.life.is_writable());
    b.send(&mut a, &[1, 2, 3]);
    a.step(&mut b);
    assert_eq!(a.read(10), [1, 2, 3]);
    b.machine.handle_shutdown(Direction::Write);
    b.step(&mut a);
    a.step(&mut b);
    assert_eq!(a.machine.life.end(), Some(End::Disconnected));
}

#[test]
fn a_failed_request_or_a_broken_rule_ends_it() {
    let (mut a, _) = pair();
    a.machine.handle_sent(Work::Sent(0), false);
    assert_eq!(a.machine.life.end(), Some(End::Failed));
    let (mut a, _) = pair();
    a.machine.handle_message(Message::Data(u32::MAX >> 3), None);
    assert_eq!(a.machine.life.end(), Some(End::Failed));
    let (mut a, _) = pair();
    for _ in 0..2 {
        a.machine.handle_message(Message::Credits(1), Some(RemoteBuffer { addr: 0, rkey: 0, length: 1 }));
    }
    assert_eq!(a.machine.life.end(), Some(End::Failed));
    assert_eq!(a.machine.poll_control(), None, "nothing is said to a peer that is gone");
}

#[test]
fn a_probe_is_sent_once_per_timer() {
    let (mut a, mut b) = pair();
    a.step(&mut b);
    a.step(&mut b);
    a.machine.handle_keepalive_timer();
    assert_eq!(a.machine.poll_control(), Some((Control::Probe, Work::Control)));
    assert_eq!(a.machine.poll_control(), None);
}

#[test]
fn entries_are_written_in_the_peers_order() {
    let mut a = tester(0x1000_0000, 0x2000_0000, Order::Big);
    let Some((Control::Entry { bytes, target, .. }, Work::Control)) = a.machine.poll_control() else {
        panic!("the second half is granted at once");
    };
    let half = SIZES.recv_ring / 2;
    let wanted = RemoteBuffer { addr: 0x1000_0000 + u64::from(half), rkey: 1, length: half };
    assert_eq!(RemoteBuffer::from_bytes(bytes, Order::Big), wanted);
    assert_eq!(target.addr, table_of(0x2000_0000).addr + 16, "the second entry first");
}

#[test]
fn work_survives_its_number() {
    for work in [
        Work::Receive(0),
        Work::Receive(391),
        Work::Written,
        Work::Sent(0),
        Work::Sent(u32::MAX),
        Work::Control,
        Work::LastControl,
    ] {
        assert_eq!(Work::from_id(work.to_id()), work);
    }
}

/// A peer sends any messages, in any order, with any numbers. No message leads to an access outside the receive ring or the send
/// ring, and one that announces more bytes than the ring has ends the connection.
#[test]
fn a_peer_that_says_anything_gets_nowhere() {
    let mut violations = 0;
    for seed in 0..300 {
        let (mut a, _) = pair();
        let mut next = numbers(seed);
        for _ in 0..2_000 {
            let kind = next(8) as u32;
            let value = if next(2) == 0 { next(5000) as u32 } else { next(usize::MAX) as u32 };
            let raw = kind << 29 | (value & 0x1fff_ffff);
            let entry = (next(2) == 0).then(|| RemoteBuffer {
                addr: next(usize::MAX) as u64,
                rkey: next(usize::MAX) as u32,
                length: [0, 1, 2048, u32::MAX][next(4)],
            });
            let (message, was_connected) = (Message::from_u32(raw), a.machine.life.is_connected());
            a.machine.handle_message(message, entry);
            if was_connected && matches!(message, Message::Data(length) if length > SIZES.recv_ring) {
                assert_eq!(a.machine.life.end(), Some(End::Failed), "seed {seed}: {message:?}");
                violations += 1;
            }
            check_inside(&mut a, &mut next);
            if next(16) == 0 {
                a.machine.handle_sent(Work::from_id(next(usize::MAX) as u64), next(8) != 0);
            }
            while let Some((_, work)) = a.machine.poll_control() {
                a.sent.push_back(work);
            }
            while let Some(work) = a.sent.pop_front() {
                a.machine.handle_sent(work, true);
            }
        }
    }
    assert!(violations > 0, "no connection lived until a violation");
}

fn check_inside(tester: &mut Tester, next: &mut impl FnMut(usize) -> usize) {
    let machine = &mut tester.machine;
    assert!(machine.recv_ring.available() <= SIZES.recv_ring);
    for span in machine.recv_ring.next(next(10_000)) {
        assert!(u64::from(span.offset) + u64::from(span.length) <= u64::from(SIZES.recv_ring), "{span:?}");
    }
    machine.recv_ring.on_read(next(3_000) as u32);
    if let Some(piece) = machine.send_ring.plan(next(100_000) as u32) {
        for span in piece.spans.into_iter().flatten() {
            assert!(
                u64::from(span.offset) + u64::from(span.length) <= u64::from(SIZES.send_ring),
                "{span:?}"
            );
        }
        let target = machine.send_ring.commit(&piece);
        assert!(target.length >= piece.length, "more than the peer gave room for");
        tester.sent.push_back(Work::Sent(piece.ring_bytes()));
    }
}
