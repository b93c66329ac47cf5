//! Messages between two processes of one host: of all lengths and kinds, with others before and behind them, and with an end that is killed.
//!
//! Short ones take the fast path where there is one (docs/internals/same-host.md). With `FERROCE_LINK=udp` there is none, and nothing may
//! differ.

mod support;

use ferroce::{SendFlags, SendWr, WcFlags, WcOpcode, WcStatus, wr};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use support::process::{Peer, parent};
use support::{Pair, Side, V4, pattern, success, watched};

const DEPTH: u64 = 16;
const LONGEST: usize = 70_000;

/// Around every border: a cache line, the path MTU, what one packet of the ring carries, and two of them.
fn len_of(n: u64) -> usize {
    let base = [0, 8, 64, 1000, 1024, 4096, 32_768, 65_536][n as usize % 8];
    (base + (n / 8 % 7) as usize).saturating_sub(3)
}

#[test]
fn messages_of_all_lengths_keep_their_order() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.inline(256));
        let from = a.pd.region(LONGEST).register().unwrap();
        let rooms: Vec<_> = (0..DEPTH).map(|_| b.pd.region(LONGEST).register().unwrap()).collect();
        let post = |n: u64| b.qp.post_recv(&[wr::recv(n, &[rooms[(n % DEPTH) as usize].sge(..).unwrap()])]);
        (0..DEPTH).for_each(|n| post(n).unwrap());
        let take = |n: u64| {
            let received = success(&b.cq);
            let (len, room) = (len_of(n), &rooms[(n % DEPTH) as usize]);
            assert_eq!((received.wr_id, received.byte_len as usize), (n, len));
            assert_eq!(received.opcode, WcOpcode::Recv);
            let has_imm = n.is_multiple_of(3);
            assert_eq!(received.flags.contains(WcFlags::WITH_IMM), has_imm);
            assert_eq!(received.imm, if has_imm { n as u32 ^ 0xabcd_0000 } else { 0 });
            assert!(room.to_vec()[..len] == pattern(n, len), "message {n} of {len} bytes");
            post(n + DEPTH).unwrap();
        };
        let mut taken = 0;
        for n in 0..600 {
            let (len, data) = (len_of(n), pattern(n, len_of(n)));
            // The buffer is reused immediately, so earlier operations must be complete.
            from.write(0, &data).unwrap();
            let sge = [from.sge(..len as u64).unwrap()];
            let is_inline = len <= 256 && n % 2 == 0;
            let plain = if is_inline { wr::send_inline(n, &data) } else { wr::send(n, &sge) };
            let op =
                if n.is_multiple_of(3) { wr::send_imm(n, &sge, n as u32 ^ 0xabcd_0000).op } else { plain.op };
            let flags =
                SendFlags::SIGNALED | if n % 5 == 0 { SendFlags::SOLICITED } else { SendFlags::empty() };
            a.qp.post_send(&[SendWr { op, flags, ..plain }]).unwrap();
            if n % 2 == 1 {
                // Two under way, of which the first was inline or is already there.
                (taken..=n).for_each(&take);
                taken = n + 1;
                assert_eq!((a.success().wr_id, a.success().wr_id), (n - 1, n));
            } else if !is_inline {
                (taken..=n).for_each(&take);
                taken = n + 1;
                // Its completion is taken with the next one's.
            }
        }
        assert_eq!((a.qp.counters().tx_packets >= 600, b.qp.counters().rx_packets >= 600), (true, true));
    });
}

/// More than a ring holds, without a reader: the rest is queued, and no message is lost or reordered.
#[test]
fn a_full_ring_keeps_the_order() {
    watched(|| {
        const COUNT: u64 = 400;
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.depth(COUNT as u32 + 1, COUNT as u32 + 1));
        let (from, to) =
            (a.pd.region(30_000).register().unwrap(), b.pd.region(8 * 30_000).register().unwrap());
        let room = |n: u64| to.sge(n % 8 * 30_000..(n % 8 + 1) * 30_000).unwrap();
        (0..COUNT).for_each(|n| b.qp.post_recv(&[wr::recv(n, &[room(n)])]).unwrap());
        let len = |n: u64| if n.is_multiple_of(2) { 30_000 } else { 8 + n };
        for n in 0..COUNT {
            a.qp.send_from(n, &[from.sge(..len(n)).unwrap()]).unwrap();
        }
        for n in 0..COUNT {
            let received = success(&b.cq);
            assert_eq!((received.wr_id, u64::from(received.byte_len)), (n, len(n)));
        }
        (0..COUNT).for_each(|n| assert_eq!(a.success().wr_id, n));
    });
}

/// READ and WRITE behind a message, and a message behind them: done in the order of posting, and completed so.
#[test]
fn one_sided_requests_stay_behind_messages() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (from, to) = (a.open_region(64), b.open_region(64));
        // The message lands in the very word that the READ behind it reads.
        for n in 1..=500_u64 {
            b.qp.post_recv(&[wr::recv(n, &[to.sge(..8).unwrap()])]).unwrap();
            from.store_u64(0, n).unwrap();
            let (word, back) = ([from.sge(..8).unwrap()], [from.sge(8..16).unwrap()]);
            let remote = to.remote();
            let (first, other) = (remote.slice(0..8).unwrap(), remote.slice(8..16).unwrap());
            a.qp.send_from(n, &word).unwrap();
            a.qp.read(n + 1000, &back, first).unwrap();
            a.qp.write(n + 2000, &word, other).unwrap();
            assert_eq!(success(&b.cq).wr_id, n);
            [n, n + 1000, n + 2000].iter().for_each(|id| assert_eq!(a.success().wr_id, *id));
            assert_eq!((from.load_u64(8).unwrap(), to.load_u64(8).unwrap()), (n, n));
        }
    });
}

struct Met {
    side: Side<ferroce::Rc>,
    receives: ferroce::Region,
}

fn meet(socket: &mut TcpStream) -> Met {
    let side = Side::new(|pd, cq| pd.rc(cq).address(V4), |qp| qp.timeout(12).retries(5));
    let receives = side.open_region(DEPTH as usize * 64);
    for n in 0..DEPTH {
        side.qp.post_recv(&[wr::recv(n, &[receives.sge(n * 64..(n + 1) * 64).unwrap()])]).unwrap();
    }
    side.qp.connect_over(socket).unwrap();
    socket.write_all(b".").unwrap();
    socket.read_exact(&mut [0]).unwrap();
    Met { side, receives }
}

/// Answers every message until the other end is gone. It then polls once more: all that was sent may have been
/// acknowledged, and then nothing would fail.
fn play(met: &Met, serves: bool, is_gone: &AtomicBool) -> WcStatus {
    let Met { side, receives } = met;
    let sge = |n: u64| [receives.sge(n * 64..n * 64 + 8).unwrap()];
    let mut asked = false;
    if serves {
        (0..DEPTH / 2).for_each(|n| side.qp.send_from(n, &sge(n)).unwrap());
    }
    loop {
        let Some(completion) = side.cq.try_next().unwrap() else {
            if is_gone.load(Ordering::Relaxed) && !asked {
                side.qp.send_from(0, &sge(0)).unwrap();
                asked = true;
            }
            continue;
        };
        if completion.status != WcStatus::Success {
            return completion.status;
        }
        if completion.opcode == WcOpcode::Recv {
            let n = completion.wr_id;
            side.qp.post_recv(&[wr::recv(n, &[receives.sge(n * 64..(n + 1) * 64).unwrap()])]).unwrap();
            side.qp.send_from(n, &sge(n)).unwrap();
        }
    }
}

#[test]
fn killed_while_messages_fly() {
    if let Some(mut socket) = parent() {
        play(&meet(&mut socket), false, &AtomicBool::new(false));
        return;
    }
    watched(|| {
        for moment in support::moments(40) {
            let mut peer = Peer::start("killed_while_messages_fly", V4);
            let met = meet(&mut peer.socket);
            let is_gone = AtomicBool::new(false);
            std::thread::scope(|s| {
                s.spawn(|| {
                    std::thread::sleep(Duration::from_micros(moment.as_micros() as u64 % 3000));
                    peer.kill();
                    is_gone.store(true, Ordering::Relaxed);
                });
                assert_eq!(play(&met, true, &is_gone), WcStatus::RetryExcErr);
            });
        }
    });
}
