//! Two processes: every operation between them, a peer that is killed at any point, and `fork`.

mod support;

use ferroce::{Completion, Device, Error, Outcome, Refusal, RemoteRegion, WcOpcode, WcStatus, wr};
use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use support::process::{Peer, parent};
use support::{LOOPBACKS, Pair, Side, V4, join, pattern, success, watched};

const LEN: usize = 300_000;

/// A side connected over the socket, with a region that the peer may use, and the peer's.
struct Met {
    side: Side<ferroce::Rc>,
    region: ferroce::Region,
    remote: RemoteRegion,
}

/// Meets the peer. Its last words may be lost with it, so no wait here is longer than a few retries.
fn meet(socket: &mut TcpStream) -> Met {
    let address = socket.local_addr().unwrap().ip();
    let side = Side::new(|pd, cq| pd.rc(cq).address(address), |qp| qp.timeout(14).retries(6));
    let region = side.open_region(2 * LEN);
    for n in 0..64 {
        side.qp.post_recv(&[wr::recv(n, &[region.sge(LEN as u64..).unwrap()])]).unwrap();
    }
    side.qp.connect_over(socket).unwrap();
    socket.write_all(&region.remote().to_bytes()).unwrap();
    let mut bytes = [0; RemoteRegion::ENCODED_LEN];
    socket.read_exact(&mut bytes).unwrap();
    Met { side, region, remote: RemoteRegion::from_bytes(&bytes).unwrap() }
}

/// Returns when the peer has called this too.
fn rendezvous(socket: &mut TcpStream) {
    socket.write_all(b".").unwrap();
    socket.read_exact(&mut [0]).unwrap();
}

fn exchange_everything(mut socket: TcpStream, begins: bool) {
    let Met { side, region, remote } = meet(&mut socket);
    let (qp, whole) = (&side.qp, region.sge(..LEN as u64).unwrap());
    let data = pattern(1, LEN);
    if begins {
        region.write(0, &data).unwrap();
        qp.send_from(100, &[whole]).unwrap();
        assert_eq!(side.success().wr_id, 100);
        qp.write_imm(101, &[whole], remote.slice(..LEN as u64).unwrap(), 0xfeed).unwrap();
        assert_eq!(side.success().wr_id, 101);
        region.fill(0);
        qp.read(102, &[whole], remote).unwrap();
        assert_eq!(side.success().opcode, WcOpcode::RdmaRead);
        assert!(region.to_vec()[..LEN] == data, "what was written is what is read");
        // What was received lies where the atomics go, and its owner need not run for those.
        rendezvous(&mut socket);
        let word = remote.slice(LEN as u64..).unwrap();
        let word = RemoteRegion { addr: word.addr.next_multiple_of(8), ..word };
        qp.fetch_add(103, region.sge(..8).unwrap(), word, 5).unwrap();
        side.success();
        qp.compare_swap(104, region.sge(8..16).unwrap(), word, region.load_u64(0).unwrap() + 5, 99).unwrap();
        side.success();
        assert_eq!(region.load_u64(8).unwrap(), region.load_u64(0).unwrap() + 5);
        rendezvous(&mut socket);
    } else {
        let got = side.success();
        assert_eq!((got.wr_id, got.byte_len as usize), (0, LEN));
        assert!(region.to_vec()[LEN..] == data, "what was sent is what was received");
        let notified = side.success();
        assert_eq!((notified.wr_id, notified.imm), (1, 0xfeed));
        assert!(region.to_vec()[..LEN] == data);
        rendezvous(&mut socket);
        rendezvous(&mut socket);
        assert_eq!(region.load_u64(LEN.next_multiple_of(8)).unwrap(), 99);
    }
}

fn in_two_processes(test: &str, address: IpAddr) {
    match parent() {
        Some(socket) => exchange_everything(socket, false),
        None => {
            let peer = Peer::start(test, address);
            exchange_everything(peer.socket.try_clone().unwrap(), true);
            peer.finish();
        }
    }
}

#[test]
fn everything_over_ipv4() {
    watched(|| in_two_processes("everything_over_ipv4", LOOPBACKS[0]));
}

#[test]
fn everything_over_ipv6() {
    watched(|| in_two_processes("everything_over_ipv6", LOOPBACKS[1]));
}

/// What the survivor does when its peer is killed.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Doing {
    Sending,
    Writing,
    Reading,
    Adding,
    Receiving,
}

/// One operation of the survivor, and its outcome.
fn survive(met: &Met, doing: Doing) -> Completion {
    let Met { side, region, remote } = met;
    let whole = [region.sge(..LEN as u64).unwrap()];
    let part = remote.slice(..LEN as u64).unwrap();
    let at = RemoteRegion { addr: remote.addr.next_multiple_of(8), ..*remote };
    let posted = match doing {
        Doing::Sending => side.qp.send_from(1, &whole),
        Doing::Writing => side.qp.write(1, &whole, part),
        Doing::Reading => side.qp.read(1, &whole, part),
        Doing::Adding => side.qp.fetch_add(1, region.sge(..8).unwrap(), at, 1),
        Doing::Receiving => side.qp.post_recv(&[wr::recv(1, &whole)]),
    };
    posted.unwrap();
    support::next(&side.cq)
}

/// Until it is killed: keeps receives posted, and sends if the survivor receives.
fn be_killed(mut socket: TcpStream) {
    let met = meet(&mut socket);
    let mut doing = [0];
    socket.read_exact(&mut doing).unwrap();
    let whole = [met.region.sge(..LEN as u64).unwrap()];
    loop {
        if doing[0] == b'r' {
            met.side.qp.send_from(7, &whole).unwrap();
            success(&met.side.cq);
        } else if success(&met.side.cq).opcode == WcOpcode::Recv {
            met.side.qp.post_recv(&[wr::recv(8, &[met.region.sge(LEN as u64..).unwrap()])]).unwrap();
        }
    }
}

/// The survivor's operations succeed, then one fails as documented, and then everything is flushed.
fn kill_after(doing: Doing, operations: u32) {
    let mut peer = Peer::start("a_killed_peer_ends_in_the_documented_status", V4);
    let met = meet(&mut peer.socket);
    peer.socket.write_all(if doing == Doing::Receiving { b"r" } else { b"s" }).unwrap();
    for _ in 0..operations {
        survive(&met, doing).ok().unwrap();
    }
    // The killer is not synchronised with the operations: it strikes in the middle of one.
    let killer = std::thread::spawn(move || peer.kill());
    if doing == Doing::Receiving {
        killer.join().unwrap();
        // A receiver cannot detect that its peer is gone. Its own next send does.
        met.side.qp.send_from(2, &[]).unwrap();
        // The peer may have used all receives before it died.
        loop {
            let end = support::next(&met.side.cq);
            match end.status {
                WcStatus::Success if end.opcode == WcOpcode::Recv => {}
                // The peer may have acknowledged this send before it died.
                WcStatus::Success => met.side.qp.send_from(2, &[]).unwrap(),
                WcStatus::RetryExcErr => break,
                other => panic!("{doing:?} ended in {other:?}"),
            }
        }
    } else {
        let end = loop {
            let end = survive(&met, doing);
            if end.status != WcStatus::Success {
                break end;
            }
        };
        assert_eq!(end.status, WcStatus::RetryExcErr, "{doing:?} after {operations}");
        killer.join().unwrap();
    }
    let flushed = survive(&met, Doing::Sending);
    assert_eq!(flushed.status, WcStatus::WrFlushErr);
}

#[test]
fn a_killed_peer_ends_in_the_documented_status() {
    if let Some(socket) = parent() {
        return be_killed(socket);
    }
    watched(|| {
        for doing in [Doing::Sending, Doing::Writing, Doing::Reading, Doing::Adding, Doing::Receiving] {
            for operations in [0, 1, 7] {
                kill_after(doing, operations);
            }
        }
    });
}

#[test]
fn packets_find_the_right_process_after_others_were_killed() {
    if let Some(socket) = parent() {
        return exchange_everything(socket, false);
    }
    watched(|| {
        let start = || Peer::start("packets_find_the_right_process_after_others_were_killed", V4);
        let mut peers: Vec<Peer> = (0..5).map(|_| start()).collect();
        // Two processes die before they have sent anything, at the beginning and in the middle of the group.
        peers[0].kill();
        peers[2].kill();
        for (n, peer) in peers.into_iter().enumerate() {
            if n != 0 && n != 2 {
                exchange_everything(peer.socket.try_clone().unwrap(), true);
                peer.finish();
            }
        }
    });
}

fn is_forked<T>(result: Result<T, Error>) -> bool {
    matches!(result.err().as_ref().and_then(Error::refusal), Some(Refusal::Forked))
}

/// What a forked child must find. The number of the first thing that is not so, or 0.
fn check_child(a: Side<ferroce::Rc>, received: ferroce::Pending, buffer: ferroce::Buffer) -> i32 {
    let refused = [
        is_forked(a.device.alloc_pd()),
        is_forked(a.device.create_cq(1)),
        is_forked(a.pd.region(64).register()),
        is_forked(a.pd.rc(&a.cq).create()),
        is_forked(a.qp.send_from(1, &[])),
        is_forked(a.qp.post_recv(&[wr::recv(1, &[])])),
        is_forked(a.qp.send(buffer).map_err(Error::from)),
        is_forked(a.cq.try_next()),
        is_forked(a.cq.arm(false)),
        is_forked(received.wait()),
        is_forked(a.qp.close()),
    ];
    if let Some(at) = refused.iter().position(|ok| !ok) {
        return 1 + at as i32;
    }
    drop(a);
    // A device of the child's own works.
    let Pair { a, b } = Pair::rc(V4);
    let (from, to) = (a.open_region(10_000), b.open_region(10_000));
    from.write(0, &pattern(1, 10_000)).unwrap();
    a.qp.write(1, &[from.sge(..).unwrap()], to.remote()).unwrap();
    a.success();
    if to.to_vec() == pattern(1, 10_000) { 0 } else { 99 }
}

fn fork_in_the_middle() {
    let Pair { a, b } = Pair::rc(V4);
    let received = b.qp.recv(b.pd.buffer(64).unwrap()).unwrap();
    let childs_receive = a.qp.recv(a.pd.buffer(64).unwrap()).unwrap();
    let buffer = a.pd.buffer(64).unwrap();
    // SAFETY: the child runs nothing but what it would be told to run by any program that forks: this test is about
    // exactly that. It leaves with `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let found =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check_child(a, childs_receive, buffer)));
        // SAFETY: ends the process.
        unsafe { libc::_exit(found.unwrap_or(100)) };
    }
    // The device of the parent still works.
    let mut message = a.pd.buffer(64).unwrap();
    message.set(b"not forked").unwrap();
    a.qp.send(message).unwrap().wait().unwrap();
    assert_eq!(&*received.wait().unwrap().buffer, b"not forked");
    let mut status = 0;
    // SAFETY: waits for our own child and stores its status in an integer of ours.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child ended with {}", libc::WEXITSTATUS(status));
    let (c, d) = (a.pd.rc(&a.cq).create().unwrap(), b.pd.rc(&b.cq).create().unwrap());
    join(&c, &d);
    let region = b.open_region(8);
    c.write_inline(1, b"x", region.remote()).unwrap();
    assert_eq!(success(&a.cq).qpn, c.qpn());
    assert_eq!(region.load_u8(0).unwrap(), b'x');
}

/// In a process of its own, so that no other test runs while it forks.
#[test]
fn a_forked_child_has_no_device_and_can_open_one() {
    if let Some(mut socket) = parent() {
        fork_in_the_middle();
        return socket.write_all(b".").unwrap();
    }
    watched(|| {
        let mut peer = Peer::start("a_forked_child_has_no_device_and_can_open_one", V4);
        peer.socket.read_exact(&mut [0]).expect("the forking process came through");
        peer.finish();
    });
}

#[test]
fn two_devices_of_one_process_are_two_nics() {
    watched(|| {
        let (first, second): (Device, Device) = (support::device(), support::device());
        assert_ne!(first.counters().slot, second.counters().slot);
        assert_eq!(first.counters().pid, second.counters().pid);
    });
}
