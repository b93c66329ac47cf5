//! iWARP as the wire: the same operations over TCP, refusals as Terminate, peers that end, and what the wire does not have.

mod support;

use ferroce::{
    Access, ConnectError, Connection, ConnectionEvent, Connector, Device, Error, EventKind, Listener,
    ModifyError, PostError, QpBuilder, QpState, Rc, Refusal, RejectReason, RemoteRegion, WcOpcode, WcStatus,
    Wire, wr,
};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use support::process::{Peer, parent};
use support::{LOOPBACKS, MAX_WAIT, Side, V4, event, pattern, post_error, until, watched};

/// Lengths around those where something changes: the copy, the end of an FPDU of 64 KiB, several FPDUs.
const LENGTHS: [usize; 12] = [0, 1, 7, 1023, 1024, 1025, 65_512, 65_516, 65_520, 65_521, 200_003, 1 << 20];

fn device(crc: bool) -> Device {
    let config = ferroce::Config::default().with(|config| {
        config.addresses = Some(LOOPBACKS.to_vec());
        (config.wire, config.mpa_crc) = (Wire::Iwarp, crc);
    });
    Device::open_with(config).expect("the device opens")
}

/// Two connected sides. The first one connected.
struct Ends {
    a: Side<Rc>,
    b: Side<Rc>,
    ab: Connection<Rc>,
    ba: Connection<Rc>,
}

fn connect(a: &Side<Rc>, b: &Side<Rc>, address: IpAddr) -> (Connection<Rc>, Connection<Rc>) {
    let listener = Listener::bind(&b.device, SocketAddr::new(address, 0)).unwrap();
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let request = listener.accept_timeout(MAX_WAIT).unwrap();
            assert_eq!((request.private_data(), request.peer_addr().ip()), (&b"hello"[..], address));
            request.accept(&b.qp, b"welcome").unwrap()
        });
        let client = Connector::new(&a.device, to).private_data(b"hello").connect(&a.qp).unwrap();
        assert_eq!((client.private_data(), client.peer_addr()), (&b"welcome"[..], to));
        (client, server.join().unwrap())
    })
}

fn ends_with(address: IpAddr, crc: bool, settle: impl Fn(QpBuilder<Rc>) -> QpBuilder<Rc>) -> Ends {
    let side = || Side::on(device(crc), |pd, cq| pd.rc(cq), &settle);
    let (a, b) = (side(), side());
    assert_eq!((a.device.wire(), a.qp.state()), (Wire::Iwarp, QpState::Init));
    let (ab, ba) = connect(&a, &b, address);
    assert_eq!((a.qp.state(), b.qp.state()), (QpState::Rts, QpState::Rts));
    Ends { a, b, ab, ba }
}

fn ends() -> Ends {
    ends_with(V4, false, |qp| qp)
}

/// Every length as SEND, WRITE and READ, in both directions, from one piece and from three.
fn carry_everything(address: IpAddr, crc: bool) {
    let ends = ends_with(address, crc, |qp| qp);
    for (from, to) in [(&ends.a, &ends.b), (&ends.b, &ends.a)] {
        let (source, target) = (from.open_region(1 << 20), to.open_region(1 << 20));
        for (seed, len) in LENGTHS.into_iter().enumerate() {
            let data = pattern(seed as u64 + 1, len);
            source.write(0, &data).unwrap();
            let cut = len / 3;
            let whole = [source.sge(..len as u64).unwrap()];
            let pieces = [
                source.sge(..cut as u64).unwrap(),
                source.sge(cut as u64..2 * cut as u64).unwrap(),
                source.sge(2 * cut as u64..len as u64).unwrap(),
            ];
            for sges in [&whole[..], &pieces[..]] {
                target.fill(0);
                to.qp.post_recv(&[wr::recv(1, &[target.sge(..).unwrap()])]).unwrap();
                from.qp.post_send(&[wr::send(2, sges)]).unwrap();
                assert_eq!((from.success().wr_id, to.success().byte_len), (2, len as u32));
                assert!(target.to_vec()[..len] == data, "SEND of {len} bytes");
                target.fill(0);
                from.qp.post_send(&[wr::write(3, sges, target.remote())]).unwrap();
                // The kernel has its own copy then.
                assert_eq!(from.success().wr_id, 3);
                source.fill(0);
                // A READ behind a WRITE proves that it was placed.
                from.qp
                    .post_send(&[wr::read(4, sges, target.remote().slice(..len as u64).unwrap())])
                    .unwrap();
                assert_eq!(from.success().wr_id, 4);
                assert!(
                    target.to_vec()[..len] == data && source.to_vec()[..len] == data,
                    "WRITE of {len} bytes"
                );
            }
        }
    }
}

#[test]
fn messages_of_every_length_arrive() {
    watched(|| {
        carry_everything(V4, false);
        carry_everything(LOOPBACKS[1], true);
    });
}

#[test]
fn immediate_data_atomics_and_inline_work_between_two_ferroce_ends() {
    watched(|| {
        let Ends { a, b, ab: _ab, ba: _ba } = ends();
        let (here, there) = (a.open_region(64), b.open_region(64));
        b.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
        a.qp.write_imm(2, &[here.sge(..5).unwrap()], there.remote(), 77).unwrap();
        let (sent, received) = (a.success(), b.success());
        assert_eq!((sent.wr_id, received.imm, received.byte_len), (2, 77, 5));
        there.store_u64(8, 40).unwrap();
        let at = there.remote().slice(8..16).unwrap();
        a.qp.fetch_add(3, here.sge(..8).unwrap(), at, 2).unwrap();
        a.success();
        a.qp.compare_swap(4, here.sge(8..16).unwrap(), at, 42, 9).unwrap();
        a.success();
        assert_eq!([here.load_u64(0), here.load_u64(8), there.load_u64(8)].map(Result::unwrap), [40, 42, 9]);
        a.qp.write_inline(5, b"inline", there.remote()).unwrap();
        a.qp.read(6, &[here.sge(..6).unwrap()], there.remote()).unwrap();
        assert_eq!((a.success().wr_id, a.success().opcode), (5, WcOpcode::RdmaRead));
        assert_eq!(here.to_vec()[..6], *b"inline");
    });
}

#[test]
fn a_send_invalidates_a_key() {
    watched(|| {
        let Ends { a, b, ab: _ab, ba: _ba } = ends();
        let (here, there) = (a.open_region(64), b.open_region(64));
        b.qp.post_recv(&[wr::recv(1, &[there.sge(..).unwrap()])]).unwrap();
        a.qp.post_send(&[wr::send_inv(2, &[here.sge(..8).unwrap()], there.rkey())]).unwrap();
        a.success();
        assert_eq!(b.success().invalidated, there.rkey());
        a.qp.read(3, &[here.sge(..8).unwrap()], there.remote()).unwrap();
        a.status(WcStatus::RemAccessErr);
    });
}

#[test]
fn receives_come_from_a_shared_queue() {
    watched(|| {
        let (a, b) = (Side::on(device(false), |pd, cq| pd.rc(cq), |qp| qp), device(false));
        let (pd, cq) = (b.alloc_pd().unwrap(), b.create_cq(64).unwrap());
        let srq = pd.srq(16, 1).unwrap();
        let region = pd.region(1024).register().unwrap();
        let qp = pd.rc(&cq).srq(&srq).create().unwrap();
        let b = Side { device: b, pd, cq, qp };
        let (_ab, _ba) = connect(&a, &b, V4);
        let here = a.open_region(64);
        here.write(0, &pattern(1, 64)).unwrap();
        srq.post_recv(&[wr::recv(7, &[region.sge(..64).unwrap()])]).unwrap();
        a.qp.send_from(1, &[here.sge(..).unwrap()]).unwrap();
        a.success();
        assert_eq!((b.success().wr_id, &region.to_vec()[..64]), (7, &pattern(1, 64)[..]));
        // A SEND that finds no receive ends the connection: iWARP does not retry.
        a.qp.send_from(2, &[here.sge(..).unwrap()]).unwrap();
        a.success();
        event(&b.device, EventKind::QpLastWqeReached);
        event(&a.device, EventKind::QpReqErr);
    });
}

#[test]
fn two_ends_that_read_from_each_other_do_not_block() {
    const LEN: usize = 8 << 20;
    const READS: u64 = 6;
    watched(|| {
        let Ends { a, b, ab: _ab, ba: _ba } = ends();
        let regions = [a.open_region(LEN), b.open_region(LEN)];
        regions.iter().zip(1..).for_each(|(region, seed)| region.write(0, &pattern(seed, LEN)).unwrap());
        let sinks = [a.pd.region(LEN).register().unwrap(), b.pd.region(LEN).register().unwrap()];
        // More than any socket buffer holds, in both directions, before either side polls.
        for (side, sink, source) in [(&a, &sinks[0], &regions[1]), (&b, &sinks[1], &regions[0])] {
            for read in 0..READS {
                side.qp.read(read, &[sink.sge(..).unwrap()], source.remote()).unwrap();
            }
        }
        for side in [&a, &b] {
            (0..READS).for_each(|read| assert_eq!(side.success().wr_id, read));
        }
        assert!(sinks[0].to_vec() == pattern(2, LEN) && sinks[1].to_vec() == pattern(1, LEN));
    });
}

#[test]
fn writes_wait_for_a_peer_that_does_not_read() {
    const LEN: usize = 1 << 20;
    watched(|| {
        let Ends { a, b, ab: _ab, ba: _ba } = ends_with(V4, true, |qp| qp.depth(64, 64));
        let (here, there) = (a.open_region(LEN), b.open_region(LEN));
        here.write(0, &pattern(3, LEN)).unwrap();
        for number in 0..64 {
            a.qp.write(number, &[here.sge(..).unwrap()], there.remote()).unwrap();
        }
        (0..64).for_each(|number| assert_eq!(a.success().wr_id, number));
        a.qp.read(64, &[here.sge(..8).unwrap()], there.remote()).unwrap();
        a.success();
        assert!(there.to_vec() == pattern(3, LEN));
    });
}

#[test]
fn a_refused_read_fails_and_ends_the_connection() {
    watched(|| {
        let Ends { a, b, ab, ba } = ends();
        let here = a.open_region(64);
        let there = b.pd.region(64).remote_write().register().unwrap();
        a.qp.read(1, &[here.sge(..8).unwrap()], there.remote()).unwrap();
        a.qp.post_recv(&[wr::recv(2, &[])]).unwrap();
        let failed = a.status(WcStatus::RemAccessErr);
        assert_eq!(failed.wr_id, 1);
        assert_eq!(a.status(WcStatus::WrFlushErr).wr_id, 2);
        event(&b.device, EventKind::QpAccessErr);
        for (connection, side) in [(&ab, &a), (&ba, &b)] {
            assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
            assert_eq!(side.qp.state(), QpState::Err);
        }
    });
}

#[test]
fn a_refused_write_is_an_event_at_both_ends() {
    watched(|| {
        let Ends { a, b, ab, ba: _ba } = ends();
        let (here, there) = (a.open_region(128), b.open_region(64));
        let beyond = RemoteRegion { len: 128, ..there.remote() };
        a.qp.write(1, &[here.sge(..).unwrap()], beyond).unwrap();
        // It has completed: TCP has it.
        a.success();
        event(&b.device, EventKind::QpAccessErr);
        event(&a.device, EventKind::QpAccessErr);
        assert_eq!(ab.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
        a.qp.send_from(2, &[here.sge(..8).unwrap()]).unwrap();
        a.status(WcStatus::WrFlushErr);
    });
}

#[test]
fn the_rights_of_the_queue_pair_count() {
    watched(|| {
        let only_writes = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let Ends { a, b, ab: _ab, ba: _ba } = ends_with(V4, false, |qp| qp.access(only_writes));
        let (here, there) = (a.open_region(64), b.open_region(64));
        a.qp.read(1, &[here.sge(..8).unwrap()], there.remote()).unwrap();
        a.status(WcStatus::RemAccessErr);
    });
}

#[test]
fn what_was_sent_arrives_after_the_sender_is_gone() {
    const LEN: usize = 4 << 20;
    watched(|| {
        let Ends { a, b, ab, ba } = ends_with(V4, false, |qp| qp.depth(64, 64));
        let there = b.open_region(LEN);
        b.qp.post_recv(&[wr::recv(1, &[there.sge(..).unwrap()])]).unwrap();
        let here = a.open_region(LEN);
        here.write(0, &pattern(5, LEN)).unwrap();
        // Unread bytes at the sender must not turn its end into a reset: more than both sockets hold are under way.
        let (back, more) = (a.open_region(LEN), b.open_region(LEN));
        (0..32).for_each(|id| b.qp.write(100 + id, &[more.sge(..).unwrap()], back.remote()).unwrap());
        a.qp.send_from(2, &[here.sge(..).unwrap()]).unwrap();
        assert_eq!(a.success().wr_id, 2);
        // Regions keep a device open.
        drop((ab, a, here, back));
        while b.success().wr_id != 1 {}
        assert!(there.to_vec() == pattern(5, LEN));
        assert_eq!(ba.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
    });
}

/// The event is raised inside the call.
#[test]
fn an_attempt_that_fails_at_once_is_reported() {
    watched(|| {
        let side = Side::on(device(false), |pd, cq| pd.rc(cq), |qp| qp);
        // TCP connects to no broadcast address.
        let to = "127.255.255.255:9".parse().unwrap();
        let failed = Connector::new(&side.device, to).from(SocketAddr::new(V4, 0)).connect(&side.qp);
        assert!(matches!(failed, Err(Error::Connect(ConnectError::Unreachable))));
    });
}

#[test]
fn memory_that_cannot_be_read_fails_the_request() {
    const LEN: usize = 1 << 16;
    watched(|| {
        let Ends { a, b, ab, ba: _ba } = ends();
        let there = b.open_region(LEN);
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: fresh pages, which are never unmapped.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, libc::PROT_NONE, how, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let start = NonNull::new(at.cast()).unwrap();
        // SAFETY: only the kernel reads these pages, which is what fails.
        let here = unsafe { a.pd.region(LEN).register_at(start, Arc::new(())) }.unwrap();
        a.qp.write(1, &[here.sge(..).unwrap()], there.remote()).unwrap();
        assert_eq!(a.status(WcStatus::LocProtErr).wr_id, 1);
        assert_eq!(ab.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
    });
}

#[test]
fn disconnect_flushes_both_ends() {
    watched(|| {
        let Ends { a, b, ab, ba } = ends();
        for side in [&a, &b] {
            side.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
        }
        ab.disconnect().unwrap();
        for (connection, side) in [(&ab, &a), (&ba, &b)] {
            assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
            side.status(WcStatus::WrFlushErr);
        }
        ab.disconnect().unwrap();
        assert!(
            a.device.try_event().is_none() && b.device.try_event().is_none(),
            "an orderly end is no error"
        );
    });
}

/// The parent listens; the child, which runs `test` too, connects and calls `in_child`. Then it is killed after `in_parent` began something.
fn kill_peer(
    test: &str,
    in_child: impl FnOnce(&Side<Rc>, &mut TcpStream),
    in_parent: impl FnOnce(&Side<Rc>, &mut TcpStream),
) -> (Side<Rc>, Connection<Rc>) {
    let side = Side::on(device(false), |pd, cq| pd.rc(cq), |qp| qp);
    if let Some(mut socket) = parent() {
        let mut port = [0; 2];
        socket.read_exact(&mut port).unwrap();
        let to = SocketAddr::new(V4, u16::from_be_bytes(port));
        let connection = Connector::new(&side.device, to).connect(&side.qp).unwrap();
        in_child(&side, &mut socket);
        let _ = connection.wait_event();
        std::process::exit(0);
    }
    let listener = Listener::bind(&side.device, SocketAddr::new(V4, 0)).unwrap();
    let mut peer = Peer::start(test, V4);
    peer.socket.write_all(&listener.local_addr().port().to_be_bytes()).unwrap();
    let connection = listener.accept_timeout(MAX_WAIT).unwrap().accept(&side.qp, b"").unwrap();
    in_parent(&side, &mut peer.socket);
    peer.kill();
    (side, connection)
}

#[test]
fn a_killed_peer_ends_the_connection() {
    watched(|| {
        let test = "a_killed_peer_ends_the_connection";
        let (side, connection) = kill_peer(
            test,
            |_, _| {},
            |side, _| {
                side.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
            },
        );
        side.status(WcStatus::WrFlushErr);
        assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
    });
}

#[test]
fn a_peer_killed_in_the_middle_of_its_answers_fails_the_reads() {
    const LEN: usize = 64 << 20;
    watched(|| {
        let test = "a_peer_killed_in_the_middle_of_its_answers_fails_the_reads";
        let kept = OnceLock::new();
        let (side, connection) = kill_peer(
            test,
            |side, socket| {
                let region = side.open_region(LEN);
                socket.write_all(&region.remote().to_bytes()).unwrap();
                // Until this process is killed.
                let _ = socket.read(&mut [0]);
            },
            |side, socket| {
                let mut bytes = [0; RemoteRegion::ENCODED_LEN];
                socket.read_exact(&mut bytes).unwrap();
                let there = RemoteRegion::from_bytes(&bytes).unwrap();
                let here = kept.get_or_init(|| side.pd.region(LEN).register().unwrap());
                (0..16).for_each(|id| side.qp.read(id, &[here.sge(..).unwrap()], there).unwrap());
                side.success();
            },
        );
        // Requests that the peer has answered succeed; all others are flushed, in order.
        let statuses: Vec<WcStatus> = (1..16).map(|_| support::next(&side.cq).status).collect();
        let good = statuses.iter().take_while(|status| **status == WcStatus::Success).count();
        assert!(statuses[good..].iter().all(|status| *status == WcStatus::WrFlushErr), "{statuses:?}");
        assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
        assert_eq!(side.qp.state(), QpState::Err);
    });
}

#[test]
fn the_wildcard_address_listens_on_both_ip_versions() {
    watched(|| {
        let side = || Side::on(device(false), |pd, cq| pd.rc(cq), |qp| qp);
        let there = side();
        let listener = Listener::bind(&there.device, "[::]:0".parse().unwrap()).unwrap();
        for address in LOOPBACKS {
            let (here, to) = (side(), SocketAddr::new(address, listener.local_addr().port()));
            std::thread::scope(|scope| {
                let connect = scope.spawn(|| Connector::new(&here.device, to).connect(&here.qp).unwrap());
                let request = listener.accept_timeout(MAX_WAIT).unwrap();
                assert_eq!((request.local_addr(), request.peer_addr().ip()), (to, address));
                let accepted = request.accept(&there.pd.rc(&there.cq).create().unwrap(), b"").unwrap();
                assert_eq!(accepted.peer_addr(), connect.join().unwrap().local_addr());
            });
        }
    });
}

#[test]
fn requests_can_be_refused() {
    watched(|| {
        let (here, there) = (device(false), device(false));
        let (pd, cq) = (here.alloc_pd().unwrap(), here.create_cq(16).unwrap());
        let listener = Listener::bind(&there, SocketAddr::new(V4, 0)).unwrap();
        let to = listener.local_addr();
        let connector = Connector::new(&here, to).private_data(&[7; 508]);
        std::thread::scope(|scope| {
            let refused = scope.spawn(|| connector.connect(&pd.rc(&cq).create().unwrap()).unwrap_err());
            let request = listener.accept_timeout(MAX_WAIT).unwrap();
            assert_eq!(request.private_data(), [7; 508]);
            request.reject(b"no").unwrap();
            match refused.join().unwrap() {
                Error::Connect(ConnectError::Rejected { reason, private_data }) => {
                    assert_eq!((reason, &private_data[..]), (RejectReason::CONSUMER, &b"no"[..]));
                }
                other => panic!("{other}"),
            }
        });
        let too_long =
            Connector::new(&here, to).private_data(&[7; 509]).connect(&pd.rc(&cq).create().unwrap());
        assert!(matches!(too_long.unwrap_err().refusal(), Some(Refusal::Limit { limit: 508, .. })));
        drop(listener);
        match Connector::new(&here, to).connect(&pd.rc(&cq).create().unwrap()).unwrap_err() {
            Error::Connect(ConnectError::Rejected { reason, .. }) => {
                assert_eq!(reason, RejectReason::INVALID_SERVICE_ID);
            }
            other => panic!("{other}"),
        }
    });
}

#[test]
fn what_iwarp_does_not_have_is_refused() {
    watched(|| {
        let Ends { a, b, ab: _ab, ba: _ba } = ends();
        let wanting = |error: &Error| matches!(error.refusal(), Some(Refusal::NotOnThisWire { .. }));
        assert!(wanting(&a.pd.uc(&a.cq).create().unwrap_err()));
        assert!(wanting(&a.pd.ud(&a.cq).create().unwrap_err()));
        let fresh = a.pd.rc(&a.cq).create().unwrap();
        let by_hand = fresh.connect(&b.endpoint()).unwrap_err();
        let modify = matches!(by_hand.refusal(), Some(Refusal::Modify(ModifyError::OnlyByConnection { .. })));
        assert!(modify, "{by_hand}");
        let here = a.open_region(8);
        let imm = a.qp.post_send(&[wr::send_imm(1, &[here.sge(..).unwrap()], 1)]).unwrap_err();
        assert_eq!(post_error(&imm), Some(PostError::NotOnThisWire("SEND with immediate data")));
    });
}

#[test]
fn many_connections_share_one_descriptor() {
    // Both ends are here, and a process has 1024 descriptors by default.
    const CONNECTIONS: usize = 300;
    watched(|| {
        let (here, there) = (device(false), device(false));
        let (pd, cq) = (here.alloc_pd().unwrap(), here.create_cq(4096).unwrap());
        let (far_pd, far_cq) = (there.alloc_pd().unwrap(), there.create_cq(4096).unwrap());
        let listener = Listener::bind(&there, SocketAddr::new(V4, 0)).unwrap();
        let to = listener.local_addr();
        let region = far_pd.region(8 * CONNECTIONS).register().unwrap();
        let (near, far): (Vec<_>, Vec<_>) = std::thread::scope(|scope| {
            let accept = scope.spawn(|| {
                let accept = |number| {
                    let qp = far_pd.rc(&far_cq).depth(4, 4).create().unwrap();
                    let sge = region.sge(8 * number..8 * number + 8).unwrap();
                    qp.post_recv(&[wr::recv(number, &[sge])]).unwrap();
                    listener.accept_timeout(MAX_WAIT).unwrap().accept(&qp, b"").unwrap()
                };
                (0..CONNECTIONS as u64).map(accept).collect()
            });
            let connect =
                |_| Connector::new(&here, to).connect(&pd.rc(&cq).depth(4, 4).create().unwrap()).unwrap();
            ((0..CONNECTIONS).map(connect).collect::<Vec<_>>(), accept.join().unwrap())
        });
        for (number, connection) in near.iter().enumerate() {
            connection.qp().send_inline(1, &(number as u64).to_le_bytes()).unwrap();
        }
        (0..CONNECTIONS).for_each(|_| assert_eq!(support::success(&cq).wr_id, 1));
        (0..CONNECTIONS).for_each(|_| assert_eq!(support::success(&far_cq).byte_len, 8));
        (0..CONNECTIONS).for_each(|at| assert_eq!(region.load_u64(8 * at).unwrap(), at as u64));
        assert!(near[0].qp().memory_footprint() < 12 * 1024, "{}", near[0].qp().memory_footprint());
        drop(near);
        for connection in &far {
            assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
        }
    });
}

#[test]
fn a_program_that_sleeps_is_woken() {
    watched(|| {
        let Ends { a, b, ab: _ab, ba: _ba } = ends();
        let there = b.open_region(64);
        b.qp.post_recv(&[wr::recv(1, &[there.sge(..).unwrap()])]).unwrap();
        b.cq.arm(false).unwrap();
        assert!(b.cq.try_next().unwrap().is_none());
        a.qp.send_inline(2, b"wake up").unwrap();
        // The receiver's program does not poll: its background thread reads the stream.
        until("the completion channel has an event", || b.cq.clear_events() > 0);
        assert_eq!(b.success().wr_id, 1);
    });
}

/// A program may connect a moment before its peer listens. On a loaded machine the listener can be later than the second attempt, so there are
/// several rounds; without that attempt none succeeds.
#[test]
fn a_refused_connection_is_tried_a_second_time() {
    const LATE: Duration = Duration::from_millis(50);
    watched(|| {
        let (a, b) = (device(false), Side::on(device(false), |pd, cq| pd.rc(cq), |qp| qp));
        let is_connected = |_: &i32| {
            let to = Listener::bind(&b.device, SocketAddr::new(V4, 0)).unwrap().local_addr();
            let side = Side::on(a.clone(), |pd, cq| pd.rc(cq), |qp| qp);
            std::thread::scope(|scope| {
                let client = scope.spawn(|| Connector::new(&a, to).connect(&side.qp));
                std::thread::sleep(LATE);
                let listener = Listener::bind(&b.device, to).unwrap();
                until("the attempt ends", || {
                    if let Some(request) = listener.try_accept().unwrap() {
                        request.accept(&b.pd.rc(&b.cq).create().unwrap(), b"").unwrap();
                    }
                    client.is_finished()
                });
                client.join().unwrap().is_ok()
            })
        };
        assert!((0..20).find(is_connected).is_some());
    });
}
