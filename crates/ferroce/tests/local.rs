//! The same-host fabric: a target that is stopped, one that is killed at any instruction, and one that takes its memory away.
//!
//! With `FERROCE_LINK=udp` there is no such fabric. The tests then check that it is not used.

mod support;

use ferroce::{Device, QpBuilder, Rc, RemoteRegion, SendFlags, SendWr, WcOpcode, WcStatus, wr};
use ferroce_nic::registry::{Registry, default_base};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::time::Duration;
use support::process::{Peer, parent};
use support::{Pair, Side, V4, device, device_at, pattern, success, watched};

/// A little more than a page on both sides of the whole pages inside.
const LEN: usize = 40_000;

fn has_fabric() -> bool {
    !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp")
}

fn direct(side: &Side<Rc>) -> u64 {
    let link = side.device.counters().link;
    link.direct_mapped + link.direct_copied
}

struct Met {
    side: Side<Rc>,
    region: ferroce::Region,
    remote: RemoteRegion,
}

fn meet(socket: &mut TcpStream) -> Met {
    meet_on(device(), V4, socket, |qp| qp)
}

/// The same for a test that waits until the retries are used up.
fn meet_with_short_timeout(socket: &mut TcpStream) -> Met {
    meet_on(device(), V4, socket, |qp| qp.timeout(12).retries(5))
}

/// The same on a device with this address.
fn meet_on(
    device: Device,
    address: IpAddr,
    socket: &mut TcpStream,
    settle: impl FnOnce(QpBuilder<Rc>) -> QpBuilder<Rc>,
) -> Met {
    let side = Side::on(device, |pd, cq| pd.rc(cq).address(address), settle);
    let region = side.open_region(LEN);
    side.qp.connect_over(socket).unwrap();
    socket.write_all(&region.remote().to_bytes()).unwrap();
    let mut bytes = [0; RemoteRegion::ENCODED_LEN];
    socket.read_exact(&mut bytes).unwrap();
    Met { side, region, remote: RemoteRegion::from_bytes(&bytes).unwrap() }
}

fn signal(peer: &Peer, signal: i32) {
    // SAFETY: our own child, which is not waited for yet.
    assert_eq!(unsafe { libc::kill(peer.id() as libc::pid_t, signal) }, 0);
}

/// WRITE, READ and ATOMIC on all of the target's memory.
fn one_sided(met: &Met, round: u64) {
    let Met { side, region, remote } = met;
    let data = pattern(round, LEN);
    let (whole, word) = (region.sge(..).unwrap(), region.sge(..8).unwrap());
    region.write(0, &data).unwrap();
    side.qp.write(1, &[whole], *remote).unwrap();
    side.success();
    region.fill(0);
    side.qp.read(2, &[whole], *remote).unwrap();
    assert_eq!(side.success().opcode, WcOpcode::RdmaRead);
    assert!(region.to_vec() == data, "what was written is what is read");
    let at = RemoteRegion { addr: remote.addr.next_multiple_of(4096), ..*remote };
    side.qp.fetch_add(3, word, at, round).unwrap();
    assert_eq!(side.success().opcode, WcOpcode::FetchAdd);
    let before = region.load_u64(0).unwrap();
    side.qp.compare_swap(4, word, at, before + round, 77).unwrap();
    side.success();
    assert_eq!(region.load_u64(0).unwrap(), before + round);
    side.qp.write_inline(5, b"the last word", *remote).unwrap();
    side.success();
}

#[test]
fn a_stopped_target_is_read_and_written() {
    if let Some(mut socket) = parent() {
        let met = meet(&mut socket);
        socket.read_exact(&mut [0]).unwrap();
        let mut start = [0; 13];
        met.region.read(0, &mut start).unwrap();
        assert_eq!(&start, b"the last word");
        return socket.write_all(b".").unwrap();
    }
    watched(|| {
        let mut peer = Peer::start("a_stopped_target_is_read_and_written", V4);
        let met = meet(&mut peer.socket);
        if has_fabric() {
            signal(&peer, libc::SIGSTOP);
            let before = direct(&met.side);
            (1..=20).for_each(|round| one_sided(&met, round));
            assert_eq!(direct(&met.side) - before, 100, "{:?}", met.side.device.counters().link);
            signal(&peer, libc::SIGCONT);
        } else {
            one_sided(&met, 1);
            assert_eq!(direct(&met.side), 0);
            assert_eq!(met.side.device.counters().link.local_tx_packets, 0);
        }
        peer.socket.write_all(b".").unwrap();
        peer.socket.read_exact(&mut [0]).unwrap();
        peer.finish();
    });
}

/// Until it is killed: writes and adds to the survivor's memory, and sends messages.
fn be_killed(mut socket: TcpStream) {
    let Met { side, region, remote } = meet_with_short_timeout(&mut socket);
    let whole = region.sge(..).unwrap();
    let mut round = 0_u64;
    loop {
        let posted = match round % 4 {
            0 => side.qp.write(round, &[whole], remote),
            1 => side.qp.read(round, &[whole], remote),
            2 if round % 8 == 2 => side.qp.send_from(round, &[region.sge(..64).unwrap()]),
            2 => side.qp.send_from(round, &[whole]),
            _ if round % 8 == 3 => side.qp.fetch_add(round, region.sge(..8).unwrap(), remote, 1),
            _ => side.qp.write_inline(round, b"hello", remote),
        };
        posted.unwrap();
        success(&side.cq);
        round += 1;
    }
}

/// The survivor takes what it gets, and writes itself, until that fails as documented.
/// Returns the slot of the dead.
fn survive(delay_us: u64) -> u8 {
    let mut peer = Peer::start("killed_at_any_instruction", V4);
    let Met { side, region, remote } = meet_with_short_timeout(&mut peer.socket);
    let receives = side.open_region(LEN);
    let post = |n| side.qp.post_recv(&[wr::recv(n, &[receives.sge(..).unwrap()])]);
    (0..16).for_each(|n| post(n).unwrap());
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_micros(delay_us));
        peer.kill();
    });
    let whole = region.sge(..).unwrap();
    side.qp.write(1 << 32, &[whole], remote).unwrap();
    let end = loop {
        let completion = support::next(&side.cq);
        match (completion.status, completion.wr_id >> 32) {
            (WcStatus::Success, 0) => post(completion.wr_id).unwrap(),
            (WcStatus::Success, _) => side.qp.write(1 << 32, &[whole], remote).unwrap(),
            (end, _) => break end,
        }
    };
    assert_eq!(end, WcStatus::RetryExcErr);
    killer.join().unwrap();
    // Neither waits for the dead.
    drop((region, receives));
    (side.qp.query().dest_qpn.value() >> 16) as u8
}

#[test]
fn killed_at_any_instruction() {
    if let Some(socket) = parent() {
        return be_killed(socket);
    }
    watched(|| {
        let mut dead = Vec::new();
        for moment in support::moments(60) {
            dead.push(survive(moment.as_micros() as u64 % 3000));
            if dead.len() % 8 == 0 {
                // Somewhere between its first instruction and its first message.
                let mut early = Peer::start("killed_at_any_instruction", V4);
                std::thread::sleep(moment);
                early.kill();
            }
        }
        // The next process opens normally, and the files of the dead are gone. Another process may use their slots again.
        let Pair { a, b } = Pair::rc(V4);
        if has_fabric() {
            let registry = Registry::open(&default_base()).unwrap();
            let segment_of = |slot: u8| registry.directory().join(format!("slot-{slot}.shm"));
            assert!(segment_of(a.device.counters().slot).exists(), "that is where they are");
            let is_left = |slot: &u8| segment_of(*slot).exists() && !registry.is_alive(*slot);
            let left: Vec<u8> = dead.into_iter().rev().take(20).filter(is_left).collect();
            assert!(left.is_empty(), "slots {left:?} left something behind");
        }
        let (from, to) = (a.open_region(LEN), b.open_region(LEN));
        a.qp.write(1, &[from.sge(..).unwrap()], to.remote()).unwrap();
        a.success();
    });
}

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: fills in the structure.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The thread of a NIC sleeps while no traffic arrives. A host that takes the processor away charges its time to the process that ran, so
/// one period of little processor time is enough.
#[test]
fn an_idle_nic_uses_no_processor() {
    const PERIOD: Duration = Duration::from_secs(2);
    const PERIODS: u32 = 10;
    // No other test uses it: other tests kill processes, and every process that shares their address then has work.
    const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 93, 1, 1));
    fn meet(socket: &mut TcpStream) -> Met {
        meet_on(device_at(&[ADDRESS]), ADDRESS, socket, |qp| qp)
    }
    if let Some(mut socket) = parent() {
        let Met { side, region, remote } = meet(&mut socket);
        side.qp.write(1, &[region.sge(..).unwrap()], remote).unwrap();
        success(&side.cq);
        let mut least = PERIOD;
        for _ in 0..PERIODS {
            let before = processor_time();
            std::thread::sleep(PERIOD);
            least = least.min(processor_time() - before);
            if least < PERIOD / 50 {
                break;
            }
        }
        return socket.write_all(&(least.as_micros() as u64).to_be_bytes()).unwrap();
    }
    watched(|| {
        let mut peer = Peer::start("an_idle_nic_uses_no_processor", V4);
        let _met = meet(&mut peer.socket);
        let mut used = [0; 8];
        peer.socket.read_exact(&mut used).unwrap();
        let used = Duration::from_micros(u64::from_be_bytes(used));
        assert!(used < PERIOD / 50, "it used {used:?} in each of {PERIODS} periods of {PERIOD:?}");
    });
}

/// Memory that is unmapped while the local peer writes to it: the peer gets a documented refusal, and no process a signal.
#[test]
fn memory_may_go_at_any_time() {
    watched(|| {
        for _ in 0..50 {
            let Pair { a, b } = Pair::rc(V4);
            let (from, to) = (a.open_region(LEN), b.open_region(LEN));
            let remote = to.remote();
            let taker = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_micros(300));
                drop(to);
                b
            });
            let end = loop {
                a.qp.write(1, &[from.sge(..).unwrap()], remote).unwrap();
                let end = support::next(&a.cq).status;
                if end != WcStatus::Success {
                    break end;
                }
            };
            assert_eq!(end, WcStatus::RemAccessErr);
            taker.join().unwrap();
        }
    });
}

/// Writes and messages alternate: data that was written before a message is visible when the message is, and completions keep
/// the order of posting.
#[test]
fn order_holds_between_messages_and_writes() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (from, to) = (a.open_region(LEN), b.open_region(LEN));
        let receives = b.open_region(8 * 64);
        let (messages, per_message) = (200_u64, 3);
        let sge = |n: u64| receives.sge(n % 64 * 8..(n % 64 + 1) * 8).unwrap();
        (0..64).for_each(|n| b.qp.post_recv(&[wr::recv(n, &[sge(n)])]).unwrap());
        for n in 1..=messages {
            from.store_u64(0, n).unwrap();
            for k in 0..per_message {
                let word = to.remote().slice(k * 4096..k * 4096 + 8).unwrap();
                a.qp.write(n, &[from.sge(..8).unwrap()], word).unwrap();
            }
            a.qp.send_from(n, &[from.sge(..8).unwrap()]).unwrap();
            // Data that was written before the message is visible when the message is.
            let received = success(&b.cq);
            assert_eq!(receives.load_u64((received.wr_id % 64 * 8) as usize).unwrap(), n);
            for k in 0..per_message {
                assert_eq!(to.load_u64(k as usize * 4096).unwrap(), n);
            }
            b.qp.post_recv(&[wr::recv(received.wr_id, &[sge(received.wr_id)])]).unwrap();
            (0..=per_message).for_each(|_| assert_eq!(success(&a.cq).wr_id, n));
        }
    });
}

/// A large READ behind a message without a waiter: it sees what the message left, and once such pairs are usual, the message is
/// acknowledged soon enough for the READ to be a copy.
#[test]
fn a_large_read_behind_a_message_is_a_copy() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.signal_all(false));
        let (from, to) = (a.open_region(LEN), b.open_region(LEN));
        let (word, rounds) = (from.sge(..8).unwrap(), 50);
        let before = direct(&a);
        for n in 1..=rounds {
            b.qp.post_recv(&[wr::recv(n, &[to.sge(4096..4104).unwrap()])]).unwrap();
            from.store_u64(0, n).unwrap();
            a.qp.post_send(&[SendWr { flags: SendFlags::empty(), ..wr::send(n, &[word]) }]).unwrap();
            let whole = [from.sge(..).unwrap()];
            let read = SendWr { flags: SendFlags::SIGNALED, ..wr::read(n, &whole, to.remote()) };
            a.qp.post_send(&[read]).unwrap();
            assert_eq!(a.success().opcode, WcOpcode::RdmaRead);
            assert_eq!(from.load_u64(4096).unwrap(), n, "the peer executes requests in order");
            assert_eq!(success(&b.cq).wr_id, n);
        }
        let copies = direct(&a) - before;
        assert!(if has_fabric() { copies >= rounds - 5 } else { copies == 0 }, "{copies} of {rounds}");
    });
}
