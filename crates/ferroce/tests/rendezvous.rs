//! Long messages between processes of one host: the receiver copies them from the sender's memory. Programs observe the same as over a
//! wire. With `FERROCE_LINK=udp` there is no such path, and the tests check that it is not used.

mod support;

use ferroce::{
    AttrMask, Config, Device, QpAttr, QpState, Region, SendFlags, SendWr, Sge, WcFlags, WcStatus, wr,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::process::{Peer, parent};
use support::{LOOPBACKS, Pair, Side, V4, join, pattern, success, until, watched};

/// Some packets long, wherever it goes.
const LEN: usize = 100_000;

fn has_fabric() -> bool {
    !std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp")
}

fn named(device: &Device) -> u64 {
    device.counters().link.rendezvous_sends
}

/// Those that were copied from memory that is mapped here.
fn fetched(device: &Device) -> u64 {
    device.counters().link.messages_fetched
}

/// A region without remote access, as programs register it for messages.
fn plain(side: &Side<ferroce::Rc>, len: usize) -> Region {
    side.pd.region(len).register().unwrap()
}

/// `count` entries that cover a region, of different lengths.
fn entries(region: &Region, count: u64) -> Vec<Sge> {
    let len = region.len() as u64;
    let cut = |n: u64| len * n * (n + 1) / (count * (count + 1));
    (0..count).map(|n| region.sge(cut(n)..cut(n + 1)).unwrap()).collect()
}

#[test]
fn every_length_and_kind_arrives_whole() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.sges(8, 8));
        let (mut expected, mut mapped) = (named(&a.device), fetched(&b.device));
        for len in [8_192, 16_384, 32_767, 32_768, 32_769, 65_536, 1 << 20, 5 << 20] {
            let (from, to) = (plain(&a, len), plain(&b, len));
            for (round, (pieces, places)) in [(1, 1), (3, 1), (1, 4), (4, 4), (6, 2)].into_iter().enumerate()
            {
                let data = pattern((len + round) as u64, len);
                from.write(0, &data).unwrap();
                to.fill(0);
                b.qp.post_recv(&[wr::recv(7, &entries(&to, places))]).unwrap();
                let sges = entries(&from, pieces);
                let imm = (round % 2 == 0).then_some(round as u32);
                let wr = imm.map_or(wr::send(8, &sges), |imm| wr::send_imm(8, &sges, imm));
                a.qp.post_send(&[SendWr { flags: wr.flags | SendFlags::SOLICITED, ..wr }]).unwrap();
                let got = success(&b.cq);
                assert_eq!((got.wr_id, got.byte_len as usize), (7, len));
                assert_eq!(got.flags.contains(WcFlags::WITH_IMM).then_some(got.imm), imm);
                assert_eq!(a.success().wr_id, 8);
                assert!(to.to_vec() == data, "{len} bytes in {pieces} pieces to {places}");
                expected += u64::from(has_fabric() && len >= 32_768 && pieces <= 4);
                mapped += u64::from(has_fabric() && len >= 32_768 && pieces == 1);
            }
        }
        assert_eq!((named(&a.device), fetched(&b.device)), (expected, mapped));
    });
}

/// A WRITE with immediate data goes as packets, whatever its length, unless it comes from the memory of a GPU (`gpu_ipc.rs`).
#[test]
fn writes_with_immediate_data_arrive_whole() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.sges(8, 8));
        let receive = b.open_region(8);
        for (round, len) in [8_192, 32_768, 100_001, 3 << 20].into_iter().enumerate() {
            for pieces in [1, 3] {
                let (from, to) = (plain(&a, len), b.open_region(len));
                let (data, before) = (pattern(len as u64 + pieces, len), named(&a.device));
                from.write(0, &data).unwrap();
                let post_recv = || b.qp.post_recv(&[wr::recv(7, &[receive.sge(..).unwrap()])]).unwrap();
                if round % 2 == 0 {
                    post_recv();
                }
                // A message before it and one behind it, and none of them overtakes.
                a.qp.write(1, &entries(&from, pieces)[..1], to.remote()).unwrap();
                a.qp.write_imm(2, &entries(&from, pieces), to.remote(), round as u32).unwrap();
                a.qp.write(3, &entries(&from, pieces)[..1], to.remote()).unwrap();
                if round % 2 == 1 {
                    // It has met no receive by now, mostly.
                    std::thread::yield_now();
                    post_recv();
                }
                let got = success(&b.cq);
                assert_eq!((got.wr_id, got.byte_len as usize, got.imm), (7, len, round as u32));
                assert!(got.flags.contains(WcFlags::WITH_IMM));
                assert!(to.to_vec() == data, "{len} bytes in {pieces} pieces");
                assert_eq!([a.success().wr_id, a.success().wr_id, a.success().wr_id], [1, 2, 3]);
                assert_eq!(named(&a.device), before, "{len} bytes");
            }
        }
        // Neither a byte nor a receive is used if the peer may not write there.
        let (from, read_only) = (plain(&a, LEN), b.pd.region(LEN).remote_read().register().unwrap());
        b.qp.post_recv(&[wr::recv(8, &[receive.sge(..).unwrap()])]).unwrap();
        a.qp.write_imm(4, &[from.sge(..).unwrap()], read_only.remote(), 0).unwrap();
        a.status(WcStatus::RemAccessErr);
        b.status(WcStatus::WrFlushErr);
    });
}

/// Two queue pairs of one device, and one that talks to itself.
#[test]
fn a_device_sends_to_itself() {
    watched(|| {
        let Pair { a, .. } = Pair::rc(V4);
        let make = || a.pd.rc(&a.cq).address(V4).create().unwrap();
        let (from, to) = (plain(&a, LEN), plain(&a, LEN));
        let [one, other, alone] = [make(), make(), make()];
        join(&one, &other);
        alone.connect(&alone.endpoint().unwrap()).unwrap();
        for (number, (sender, receiver)) in [(&one, &other), (&alone, &alone)].into_iter().enumerate() {
            let (data, before) = (pattern(number as u64, LEN), named(&a.device));
            from.write(0, &data).unwrap();
            receiver.post_recv(&[wr::recv(1, &[to.sge(..).unwrap()])]).unwrap();
            sender.send_from(2, &[from.sge(..).unwrap()]).unwrap();
            let mut done = [a.success().wr_id, a.success().wr_id];
            done.sort_unstable();
            assert_eq!(done, [1, 2]);
            assert!(to.to_vec() == data);
            assert_eq!(named(&a.device) - before, u64::from(has_fabric()));
            assert_eq!(fetched(&a.device), 0, "its own memory may go under it, and only the kernel notices");
        }
    });
}

/// Many in flight, most of them unsignalled, in both directions, between two processes.
#[test]
fn consecutive_rendezvous_sends_keep_their_order() {
    const ROUNDS: u64 = 40;
    const ROW: u64 = 24;
    let talk = |side: &Side<ferroce::Rc>, socket: &mut TcpStream, seed: u64| {
        let (from, to) = (plain(side, ROW as usize * LEN), plain(side, ROW as usize * LEN));
        let slot = |region: &Region, n: u64| region.sge(n * LEN as u64..(n + 1) * LEN as u64).unwrap();
        for round in 0..ROUNDS {
            from.write(0, &pattern(seed + round, from.len())).unwrap();
            (0..ROW).for_each(|n| side.qp.post_recv(&[wr::recv(n, &[slot(&to, n)])]).unwrap());
            socket.write_all(b".").unwrap();
            socket.read_exact(&mut [0]).unwrap();
            for n in 0..ROW {
                let flags = if n + 1 == ROW { SendFlags::SIGNALED } else { SendFlags::empty() };
                side.qp.post_send(&[SendWr { flags, ..wr::send(1000 + n, &[slot(&from, n)]) }]).unwrap();
            }
            let mut received = 0;
            for _ in 0..=ROW {
                let completion = success(&side.cq);
                if completion.wr_id < 1000 {
                    assert_eq!(completion.wr_id, received);
                    received += 1;
                } else {
                    assert_eq!(completion.wr_id, 1000 + ROW - 1);
                }
            }
            assert!(to.to_vec() == pattern((seed ^ 4096) + round, to.len()), "round {round}");
        }
        let named = named(&side.device);
        assert!(if has_fabric() { named > ROUNDS * ROW / 2 } else { named == 0 }, "{named}");
    };
    let settle = |qp: ferroce::QpBuilder<ferroce::Rc>| qp.signal_all(false);
    let make = move || Side::new(|pd, cq| pd.rc(cq).address(V4), settle);
    if let Some(mut socket) = parent() {
        let side = make();
        side.qp.connect_over(&mut socket).unwrap();
        return talk(&side, &mut socket, 4096);
    }
    watched(move || {
        let mut peer = Peer::start("consecutive_rendezvous_sends_keep_their_order", V4);
        let side = make();
        side.qp.connect_over(&mut peer.socket).unwrap();
        talk(&side, &mut peer.socket, 0);
        peer.finish();
    });
}

#[test]
fn a_receive_that_is_late_or_shared_gets_it() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let srq = b.pd.srq(16, 4).unwrap();
        let shared = b.pd.rc(&b.cq).address(V4).srq(&srq).create().unwrap();
        let client = a.pd.rc(&a.cq).address(V4).create().unwrap();
        join(&client, &shared);
        let (from, to) = (plain(&a, LEN), plain(&b, LEN));
        let rnr = |qpn: ferroce::Qpn| {
            let reports = b.device.counters().queue_pairs;
            reports.iter().find(|report| report.qpn == qpn.value()).map_or(0, |report| report.rnr_sent)
        };
        for (qp, peer, is_shared) in [(&a.qp, &b.qp, false), (&client, &shared, true)] {
            let post = || match is_shared {
                true => srq.post_recv(&[wr::recv(5, &[to.sge(..).unwrap()])]).unwrap(),
                false => peer.post_recv(&[wr::recv(5, &[to.sge(..).unwrap()])]).unwrap(),
            };
            for is_late in [true, false] {
                let data = pattern(LEN as u64 + u64::from(is_late), LEN);
                from.write(0, &data).unwrap();
                if !is_late {
                    post();
                }
                let before = rnr(peer.qpn());
                qp.send_from(6, &[from.sge(..).unwrap()]).unwrap();
                if is_late {
                    until("it says that it is not ready", || rnr(peer.qpn()) > before);
                    post();
                }
                assert_eq!((success(&b.cq).wr_id, a.success().wr_id), (5, 6));
                assert!(to.to_vec() == data);
            }
        }
    });
}

#[test]
fn a_receive_that_does_not_fit_fails_as_with_packets() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (from, to) = (plain(&a, LEN), plain(&b, LEN - 1));
        b.qp.post_recv(&[wr::recv(1, &[to.sge(..).unwrap()])]).unwrap();
        a.qp.send_from(2, &[from.sge(..).unwrap()]).unwrap();
        a.status(WcStatus::RemInvReqErr);
        b.status(WcStatus::LocLenErr);

        let Pair { a, b } = Pair::rc(V4);
        let (from, to) = (plain(&a, LEN), plain(&b, LEN));
        b.qp.post_recv(&[wr::recv(1, &[to.sge(..).unwrap()])]).unwrap();
        drop(to);
        a.qp.send_from(2, &[from.sge(..).unwrap()]).unwrap();
        a.status(WcStatus::RemOpErr);
        b.status(WcStatus::LocProtErr);

        let Pair { a, b } = Pair::rc(V4);
        let (from, to) = (plain(&a, LEN), plain(&b, LEN));
        b.qp.post_recv(&[wr::recv(1, &[to.sge(..).unwrap()])]).unwrap();
        let sge = from.sge(..).unwrap();
        drop(from);
        a.qp.send_from(2, &[sge]).unwrap();
        a.status(WcStatus::LocProtErr);
    });
}

/// The sender's memory may go as soon as its send completes; the receiver's at any time.
#[test]
fn memory_is_freed_after_a_message_and_during_it() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let to = plain(&b, LEN);
        for n in 0..200 {
            let from = plain(&a, LEN);
            let data = pattern(n, LEN);
            from.write(0, &data).unwrap();
            b.qp.post_recv(&[wr::recv(n, &[to.sge(..).unwrap()])]).unwrap();
            a.qp.send_from(n, &[from.sge(..).unwrap()]).unwrap();
            a.success();
            drop(from);
            success(&b.cq);
            assert!(to.to_vec() == data, "message {n}");
        }
        for n in 0..40 {
            let Pair { a, b } = Pair::rc(V4);
            let (from, to) = (plain(&a, LEN), plain(&b, LEN));
            (0..100).for_each(|n| b.qp.post_recv(&[wr::recv(n, &[to.sge(..).unwrap()])]).unwrap());
            let taker = std::thread::spawn(move || {
                let (start, sge) = (Instant::now(), to.sge(..).unwrap());
                let take = || {
                    let taken = b.cq.try_next().unwrap();
                    taken.inspect(|taken| b.qp.post_recv(&[wr::recv(taken.wr_id, &[sge])]).unwrap()).is_some()
                };
                while start.elapsed() < Duration::from_micros(n * 97 % 2000) {
                    while take() {}
                }
                drop(to);
                // While this thread waited for the progress lock, all receives may have been used. Without a new one the sender would never end.
                take();
                b
            });
            let end = loop {
                a.qp.send_from(1, &[from.sge(..).unwrap()]).unwrap();
                let end = support::next(&a.cq).status;
                if end != WcStatus::Success {
                    break end;
                }
            };
            assert_eq!(end, WcStatus::RemOpErr);
            taker.join().unwrap();
        }
    });
}

fn signal(peer: &Peer, signal: i32) {
    // SAFETY: our own child, which is not waited for yet.
    assert_eq!(unsafe { libc::kill(peer.id() as libc::pid_t, signal) }, 0);
}

/// Waits until every thread of a process stops.
fn until_stopped(peer: &Peer) {
    let has_stopped = |task: std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") T "))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{}/task", peer.id())).unwrap();
    until("it has stopped", || tasks().flatten().all(has_stopped));
}

/// A receiver that is stopped finds a message whose sender has given it up, and whose memory holds something else by now: it must not
/// take that for the message.
#[test]
fn a_cancelled_message_is_never_delivered() {
    let make = || Side::new(|pd, cq| pd.rc(cq).address(V4), |qp| qp);
    if let Some(mut socket) = parent() {
        let side = make();
        side.qp.connect_over(&mut socket).unwrap();
        let to = plain(&side, LEN);
        side.qp.post_recv(&[wr::recv(1, &[to.sge(..).unwrap()])]).unwrap();
        socket.write_all(b".").unwrap();
        socket.read_exact(&mut [0]).unwrap();
        let link = || side.device.counters().link;
        until("what was named has come", || {
            assert!(side.cq.try_next().unwrap().is_none(), "taken for a message");
            !has_fabric() || link().local_rx_packets > 0
        });
        // What is taken is done with under the same lock; a completion would be here.
        assert!(side.cq.try_next().unwrap().is_none(), "taken for a message");
        return socket.write_all(b".").unwrap();
    }
    watched(move || {
        let mut peer = Peer::start("a_cancelled_message_is_never_delivered", V4);
        let side = make();
        side.qp.connect_over(&mut peer.socket).unwrap();
        let from = plain(&side, LEN);
        peer.socket.read_exact(&mut [0]).unwrap();
        signal(&peer, libc::SIGSTOP);
        until_stopped(&peer);
        if has_fabric() {
            side.qp.send_from(2, &[from.sge(..).unwrap()]).unwrap();
            assert_eq!(named(&side.device), 1);
        }
        let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
        side.qp.modify(&error, AttrMask::STATE).unwrap();
        if has_fabric() {
            side.status(WcStatus::WrFlushErr);
        }
        from.fill(0xee);
        signal(&peer, libc::SIGCONT);
        peer.socket.write_all(b".").unwrap();
        peer.socket.read_exact(&mut [0]).unwrap();
        peer.finish();
    });
}

/// What a sender has posted arrives although it is stopped.
#[test]
fn a_stopped_sender_is_read() {
    const COUNT: u64 = 60;
    let make = || Side::new(|pd, cq| pd.rc(cq).address(V4), |qp| qp);
    if let Some(mut socket) = parent() {
        let side = make();
        side.qp.connect_over(&mut socket).unwrap();
        let from = plain(&side, LEN);
        from.write(0, &pattern(5, LEN)).unwrap();
        socket.read_exact(&mut [0]).unwrap();
        (0..COUNT).for_each(|n| side.qp.send_from(n, &[from.sge(..).unwrap()]).unwrap());
        if has_fabric() {
            assert_eq!(named(&side.device), COUNT);
            // SAFETY: stops this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        return (0..COUNT).for_each(|n| assert_eq!(side.success().wr_id, n));
    }
    watched(move || {
        let mut peer = Peer::start("a_stopped_sender_is_read", V4);
        let side = make();
        side.qp.connect_over(&mut peer.socket).unwrap();
        let to = plain(&side, LEN);
        (0..COUNT).for_each(|n| side.qp.post_recv(&[wr::recv(n, &[to.sge(..).unwrap()])]).unwrap());
        peer.socket.write_all(b".").unwrap();
        (0..COUNT).for_each(|n| assert_eq!(success(&side.cq).wr_id, n));
        assert!(to.to_vec() == pattern(5, LEN));
        if has_fabric() {
            until_stopped(&peer);
            signal(&peer, libc::SIGCONT);
        }
        peer.finish();
    });
}

/// A process that denies access to its memory sends and receives packets.
#[test]
fn without_memfd_backing_packets_are_used() {
    watched(|| {
        for (memfd_a, memfd_b) in [(true, false), (false, true)] {
            let side = |memfd| {
                let addresses = Some(LOOPBACKS.to_vec());
                let config = Config::from_env()
                    .expect("environment")
                    .with(|c| (c.addresses, c.memfd) = (addresses, memfd));
                let device = Device::open_with(config).unwrap();
                let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
                let qp = pd.rc(&cq).address(V4).create().unwrap();
                Side { device, pd, cq, qp }
            };
            let (a, b) = (side(memfd_a), side(memfd_b));
            join(&a.qp, &b.qp);
            let (from, to) = (plain(&a, LEN), plain(&b, LEN));
            from.write(0, &pattern(9, LEN)).unwrap();
            b.qp.post_recv(&[wr::recv(1, &[to.sge(..).unwrap()])]).unwrap();
            a.qp.send_from(2, &[from.sge(..).unwrap()]).unwrap();
            assert_eq!((success(&b.cq).wr_id, a.success().wr_id), (1, 2));
            assert!(to.to_vec() == pattern(9, LEN));
            assert_eq!(named(&a.device), 0);
        }
    });
}
