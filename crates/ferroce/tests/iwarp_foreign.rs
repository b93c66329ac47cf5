//! iWARP and peers that are not ferroce: one that speaks the protocol by hand, and those that attack a listener or a queue pair.

mod support;

use ferroce::{
    Config, ConnectError, ConnectionEvent, Connector, Device, Error, EventKind, Listener, QpState, Rc,
    RejectReason, WcStatus, Wire, wr,
};
use ferroce_proto::RKey;
use ferroce_proto::iwarp::reader::{Body, Item, Reader};
use ferroce_proto::iwarp::wire::{
    Crc32c, DdpBuffer, DdpHeader, Enhanced, Fpdu, FrameKind, MpaFrame, RdmapOpcode, RtrKinds, TerminateCode,
};
use ferroce_proto::qp::TxPayload;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use support::{LOOPBACKS, MAX_WAIT, Side, V4, event, pattern, until, watched};

fn side() -> Side<Rc> {
    let config = Config::default().with(|config| {
        (config.addresses, config.wire) = (Some(LOOPBACKS.to_vec()), Wire::Iwarp);
    });
    Side::on(Device::open_with(config).unwrap(), |pd, cq| pd.rc(cq), |qp| qp)
}

fn listen(side: &Side<Rc>) -> Listener {
    Listener::bind(&side.device, SocketAddr::new(V4, 0)).unwrap()
}

fn socket(to: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(to).unwrap();
    socket.set_read_timeout(Some(MAX_WAIT)).unwrap();
    socket.set_nodelay(true).unwrap();
    socket
}

fn frame(kind: FrameKind, revision: u8, crc: bool, private_data: &[u8]) -> MpaFrame {
    MpaFrame {
        kind,
        revision,
        markers: false,
        crc,
        reject: false,
        is_ferroce: false,
        enhanced: None,
        private_data: private_data.to_vec(),
    }
}

fn read_frame(socket: &mut TcpStream, kind: FrameKind) -> MpaFrame {
    let mut bytes = Vec::new();
    loop {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        bytes.push(byte[0]);
        if let Some((frame, len)) = MpaFrame::parse(kind, &bytes).unwrap() {
            assert_eq!(len, bytes.len());
            return frame;
        }
    }
}

/// A SEND of one segment, with a CRC.
fn send(msn: u32, data: &[u8]) -> Vec<u8> {
    segment(msn, data, true)
}

fn segment(msn: u32, data: &[u8], has_crc: bool) -> Vec<u8> {
    let buffer = DdpBuffer::Untagged { invalidate: RKey(0), queue: 0, msn, offset: 0 };
    let mut bytes = vec![0; 2 + DdpHeader::UNTAGGED_LEN];
    DdpHeader { opcode: RdmapOpcode::Send, last: true, buffer }.write(&mut bytes[2..]);
    bytes[..2].copy_from_slice(&((DdpHeader::UNTAGGED_LEN + data.len()) as u16).to_be_bytes());
    let header = bytes.clone();
    let fpdu = Fpdu { header: &header, payload: TxPayload::Bytes(data), has_crc, ends_message: true };
    let crc = Crc32c::new();
    let (trailer, len) = fpdu.trailer(crc, |sum| crc.update(sum, data));
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(&trailer[..len]);
    bytes
}

/// Whether the peer closes the stream. Bytes that it sends first are ignored.
fn is_closed(socket: &mut TcpStream) -> bool {
    let mut rest = [0; 4096];
    loop {
        match socket.read(&mut rest) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

/// A peer without enhanced negotiation, RTR and extensions, with a CRC, whose first message follows its request in one segment.
#[test]
fn a_peer_that_is_not_ferroce_exchanges_messages() {
    const LEN: usize = 300_000;
    watched(|| {
        let side = side();
        let listener = listen(&side);
        let region = side.open_region(LEN);
        side.qp.post_recv(&[wr::recv(1, &[region.sge(..).unwrap()])]).unwrap();
        let mut peer = socket(listener.local_addr());
        let mut bytes = frame(FrameKind::Request, 1, true, b"by hand").to_bytes();
        bytes.extend(send(1, b"the first message"));
        peer.write_all(&bytes).unwrap();
        let request = listener.accept_timeout(MAX_WAIT).unwrap();
        assert_eq!(request.private_data(), b"by hand");
        let connection = request.accept(&side.qp, b"welcome").unwrap();
        let reply = read_frame(&mut peer, FrameKind::Reply);
        assert_eq!((reply.revision, reply.crc, reply.is_ferroce), (1, true, false));
        assert_eq!(reply.private_data, b"welcome");
        assert_eq!(side.success().byte_len, 17);
        assert_eq!(region.to_vec()[..17], *b"the first message");

        let data = pattern(1, LEN);
        region.write(0, &data).unwrap();
        side.qp.send_from(2, &[region.sge(..).unwrap()]).unwrap();
        let (mut reader, mut got, mut longest) = (Reader::new(true), Vec::new(), 0);
        let mut buffer = [0; 4096];
        while got.len() < LEN {
            let count = peer.read(&mut buffer).unwrap();
            assert!(count > 0, "the stream ended after {} bytes", got.len());
            let mut bytes = &buffer[..count];
            while let Some(item) = reader.next(&mut bytes).unwrap() {
                let Item::Payload(piece) = item else { panic!("{item:?}") };
                longest = longest.max(piece.segment_len);
                got.extend_from_slice(piece.data);
            }
        }
        assert!(got == data && side.success().wr_id == 2);
        let segment = socket2::SockRef::from(&peer).tcp_mss().unwrap();
        assert!(longest < segment, "an FPDU of {longest} bytes in TCP segments of {segment}");
        // Atomics need RFC 7306, which this peer does not have.
        let remote = region.remote().slice(..8).unwrap();
        assert!(side.qp.fetch_add(3, region.sge(..8).unwrap(), remote, 1).is_err());
        drop(peer);
        assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
    });
}

/// An initiator without RTR that waits for the responder's program to speak.
#[test]
fn a_responder_sends_first_if_the_initiator_is_silent() {
    watched(|| {
        let side = side();
        let listener = listen(&side);
        let mut peer = socket(listener.local_addr());
        peer.write_all(&frame(FrameKind::Request, 2, true, b"").to_bytes()).unwrap();
        let _connection = listener.accept_timeout(MAX_WAIT).unwrap().accept(&side.qp, b"").unwrap();
        side.qp.send_inline(1, b"hello").unwrap();
        read_frame(&mut peer, FrameKind::Reply);
        let mut fpdu = [0; 32];
        peer.read_exact(&mut fpdu).unwrap();
        assert_eq!(fpdu[20..25], *b"hello");
        assert_eq!(side.success().wr_id, 1);
    });
}

/// The peer reads late, and sends once more: a reset would discard what TCP still has.
#[test]
fn a_device_that_closes_does_not_lose_what_completed() {
    const LEN: usize = 1 << 20;
    watched(|| {
        let side = side();
        let listener = listen(&side);
        let region = side.open_region(LEN);
        (1..3).for_each(|id| side.qp.post_recv(&[wr::recv(id, &[region.sge(..).unwrap()])]).unwrap());
        let mut peer = socket(listener.local_addr());
        peer.write_all(&frame(FrameKind::Request, 1, true, b"").to_bytes()).unwrap();
        let connection = listener.accept_timeout(MAX_WAIT).unwrap().accept(&side.qp, b"").unwrap();
        read_frame(&mut peer, FrameKind::Reply);
        peer.write_all(&send(1, b"the first message")).unwrap();
        assert_eq!(side.success().wr_id, 1);
        let data = pattern(6, LEN);
        region.write(0, &data).unwrap();
        side.qp.send_from(3, &[region.sge(..).unwrap()]).unwrap();
        let (mut buffer, mut bytes) = ([0; 4096], Vec::new());
        // No more than TCP needs to take all of it.
        while side.cq.try_next().unwrap().is_none() {
            let count = peer.read(&mut buffer).unwrap();
            bytes.extend_from_slice(&buffer[..count]);
        }
        let closing = std::thread::spawn(move || drop((connection, listener, region, side)));
        // The device gives its peers two seconds. One that does not wait has closed its sockets by now.
        std::thread::sleep(Duration::from_millis(50));
        peer.write_all(&send(2, b"unread")).unwrap();
        peer.read_to_end(&mut bytes).unwrap();
        drop(peer);
        closing.join().unwrap();
        let (mut reader, mut rest, mut got) = (Reader::new(true), &bytes[..], Vec::new());
        while let Some(Item::Payload(piece)) = reader.next(&mut rest).unwrap() {
            got.extend_from_slice(piece.data);
        }
        assert!(got == data, "{} of {LEN} bytes arrived", got.len());
    });
}

/// Refused requests whose peers do not close their half: only some of the sockets are kept for them.
#[test]
fn refused_connections_are_bounded_in_number() {
    watched(|| {
        let side = side();
        let listener = listen(&side);
        let mut markers = frame(FrameKind::Request, 2, false, b"");
        markers.markers = true;
        let peers: Vec<TcpStream> = (0..100)
            .map(|_| {
                let mut peer = socket(listener.local_addr());
                peer.write_all(&markers.to_bytes()).unwrap();
                assert!(read_frame(&mut peer, FrameKind::Reply).reject);
                peer
            })
            .collect();
        assert!(side.device.counters().cm["refused_now"] <= 64);
        drop(peers);
        until("no refused connection is left", || side.device.counters().cm["refused_now"] == 0);
    });
}

/// Connections without a request count: each may become one that waits.
#[test]
fn no_more_requests_wait_than_the_backlog() {
    const BACKLOG: usize = 4;
    watched(|| {
        let side = side();
        let listener =
            Listener::builder(&side.device).backlog(BACKLOG as u32).bind(SocketAddr::new(V4, 0)).unwrap();
        let request = frame(FrameKind::Request, 1, false, b"").to_bytes();
        // Its system may hold no more connections than these.
        let mut peers: Vec<TcpStream> = (0..BACKLOG).map(|_| socket(listener.local_addr())).collect();
        let waiting = || {
            let cm = side.device.counters().cm;
            cm["half_open_now"] + cm["pending_requests_now"]
        };
        until("all are accepted", || waiting() == BACKLOG as u64);
        let mut later = socket(listener.local_addr());
        later.write_all(&request).unwrap();
        peers.iter_mut().for_each(|peer| drop(peer.write_all(&request)));
        for _ in 0..BACKLOG {
            let request = listener.accept_timeout(MAX_WAIT).unwrap();
            assert!(waiting() <= BACKLOG as u64);
            request.reject(b"").unwrap();
        }
    });
}

/// Bytes that are no FPDU, a wrong CRC, an FPDU that ends early: the queue pair enters the error state, and no data is placed.
#[test]
fn damaged_streams_end_the_queue_pair() {
    let mut wrong_crc = send(2, &[7; 64]);
    *wrong_crc.last_mut().unwrap() ^= 1;
    let cut = send(2, &[7; 64])[..40].to_vec();
    let cases = [
        (vec![0xff; 64], EventKind::QpReqErr, None),
        (wrong_crc, EventKind::QpFatal, Some(TerminateCode::LLP_CRC)),
        (cut, EventKind::QpFatal, None),
        (send(3, &[7; 64]), EventKind::QpReqErr, Some(TerminateCode::UNTAGGED_MSN)),
    ];
    for (bytes, kind, code) in cases {
        watched(move || {
            let side = side();
            let listener = listen(&side);
            let region = side.open_region(64);
            (1..3).for_each(|id| side.qp.post_recv(&[wr::recv(id, &[region.sge(..).unwrap()])]).unwrap());
            let mut peer = socket(listener.local_addr());
            peer.write_all(&frame(FrameKind::Request, 1, true, b"").to_bytes()).unwrap();
            let connection = listener.accept_timeout(MAX_WAIT).unwrap().accept(&side.qp, b"").unwrap();
            read_frame(&mut peer, FrameKind::Reply);
            // A responder must not send before the first FPDU of its peer, not even a Terminate.
            peer.write_all(&send(1, b"good")).unwrap();
            assert_eq!(side.success().byte_len, 4);
            peer.write_all(&bytes).unwrap();
            peer.shutdown(std::net::Shutdown::Write).unwrap();
            side.status(WcStatus::WrFlushErr);
            event(&side.device, kind);
            assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
            assert_eq!(side.qp.state(), QpState::Err);
            if let Some(code) = code {
                let (mut reader, mut rest) = (Reader::new(true), Vec::new());
                peer.read_to_end(&mut rest).unwrap();
                match reader.next(&mut &rest[..]).unwrap() {
                    Some(Item::Message(_, Body::Terminate(terminate))) => assert_eq!(terminate.code, code),
                    other => panic!("{other:?}"),
                }
            }
        });
    }
}

/// A refusal while the stream is full: a peer that reads slowly gets the rest of the FPDU in progress, unchanged, then the Terminate, then
/// the end.
#[test]
fn a_refusal_waits_for_a_peer_that_reads_slowly() {
    const LEN: usize = 32 << 20;
    for crc in [false, true] {
        watched(move || {
            let side = side();
            let listener = listen(&side);
            let region = side.open_region(LEN);
            let target = side.open_region(4);
            (0..4).for_each(|id| side.qp.post_recv(&[wr::recv(id, &[target.sge(..).unwrap()])]).unwrap());
            let mut peer = socket(listener.local_addr());
            socket2::SockRef::from(&peer).set_recv_buffer_size(32 << 10).unwrap();
            // To another ferroce the FPDUs are long and need not begin with a TCP segment, so the last one is partially sent.
            let request = MpaFrame { is_ferroce: true, ..frame(FrameKind::Request, 1, crc, b"") };
            peer.write_all(&request.to_bytes()).unwrap();
            let _connection = listener.accept_timeout(MAX_WAIT).unwrap().accept(&side.qp, b"").unwrap();
            assert_eq!(read_frame(&mut peer, FrameKind::Reply).crc, crc);
            peer.write_all(&segment(1, b"good", crc)).unwrap();
            assert_eq!(side.success().byte_len, 4);
            let data = pattern(1, LEN);
            region.write(0, &data).unwrap();
            side.qp.send_from(2, &[region.sge(..).unwrap()]).unwrap();
            let sent = || side.qp.counters().tx_bytes;
            until("the stream is full", || {
                let before = sent();
                std::thread::sleep(Duration::from_millis(50));
                before > 0 && sent() == before
            });
            // Whatever arrives makes it send as much as the kernel takes. The kernel itself asks only when a third of its buffer is free.
            for msn in 2..5 {
                peer.write_all(&segment(msn, b"more", crc)).unwrap();
                assert_eq!(side.success().byte_len, 4);
            }
            // There is no receive for it.
            peer.write_all(&segment(5, b"refused", crc)).unwrap();
            event(&side.device, EventKind::QpReqErr);
            side.status(WcStatus::WrFlushErr);
            assert!(sent() < LEN as u64, "nothing had to wait");
            // The program may use its memory again.
            region.write(0, &vec![0; LEN]).unwrap();
            let (mut reader, mut buffer) = (Reader::new(crc), [0; 32 << 10]);
            let (mut got, mut refusal) = (0, None);
            loop {
                let count = peer.read(&mut buffer).unwrap();
                if count == 0 {
                    break;
                }
                std::thread::sleep(Duration::from_micros(100));
                let mut bytes = &buffer[..count];
                while let Some(item) = reader.next(&mut bytes).unwrap() {
                    match item {
                        Item::Payload(piece) => {
                            assert!(piece.data == &data[got..][..piece.data.len()], "from byte {got} on");
                            got += piece.data.len();
                        }
                        Item::Message(_, Body::Terminate(terminate)) => refusal = Some(terminate.code),
                        other => panic!("{other:?}"),
                    }
                }
            }
            assert!(reader.is_between() && got >= sent() as usize);
            assert_eq!(refusal, Some(TerminateCode::UNTAGGED_NO_BUFFER), "the peer learns why");
        });
    }
}

/// Invalid frames are refused immediately, and the listener continues.
#[test]
fn bad_requests_are_closed_at_once() {
    watched(|| {
        let side = side();
        let listener = listen(&side);
        let good = frame(FrameKind::Request, 2, false, b"").to_bytes();
        let changed = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        let mut too_long = changed(18, 2);
        too_long[19] = 1;
        let cases =
            [b"GET / HTTP/1.1\r\n\r\n".to_vec(), changed(17, 3), too_long, changed(16, 0x10), changed(0, 0)];
        for bytes in cases {
            let mut peer = socket(listener.local_addr());
            // The peer may close the stream before everything is written.
            let _ = peer.write_all(&bytes);
            assert!(is_closed(&mut peer), "{bytes:?}");
        }
        // Markers are refused by a reply.
        let mut peer = socket(listener.local_addr());
        peer.write_all(&changed(16, 0x80)).unwrap();
        assert!(read_frame(&mut peer, FrameKind::Reply).reject && is_closed(&mut peer));
        assert!(listener.try_accept().unwrap().is_none());
    });
}

/// Connections without a request, and one that sends its request byte by byte: they do not block others, and they time out.
#[test]
fn half_open_connections_are_bounded_in_number_and_time() {
    const SILENT: usize = 400;
    watched(|| {
        let side = side();
        let listener = listen(&side);
        let to = listener.local_addr();
        let start = Instant::now();
        let mut silent: Vec<TcpStream> = (0..SILENT).map(|_| socket(to)).collect();
        let half_open = || side.device.counters().cm["half_open_now"];
        until("the listener is full", || half_open() == 256);
        let client = self::side();
        let connector = Connector::new(&client.device, to);
        let (near, _far) = std::thread::scope(|scope| {
            let connect = scope.spawn(|| connector.connect(&client.qp).unwrap());
            let far = listener.accept_timeout(MAX_WAIT).unwrap().accept(&side.qp, b"").unwrap();
            (connect.join().unwrap(), far)
        });
        assert_eq!(near.qp().state(), QpState::Rts);
        assert!(half_open() <= 256);
        let mut slow = socket(to);
        for byte in frame(FrameKind::Request, 2, false, b"").to_bytes().into_iter().take(19) {
            slow.write_all(&[byte]).unwrap();
        }
        assert!(silent.iter_mut().chain([&mut slow]).all(is_closed));
        until("no connection is half open", || half_open() == 0);
        println!("closed after {:?}", start.elapsed());
    });
}

/// A responder that has not read the RTR message yet gets it again until it sends data.
#[test]
fn the_rtr_message_is_repeated_for_a_silent_peer() {
    watched(|| {
        let side = side();
        let server = TcpListener::bind((V4, 0)).unwrap();
        let connector = Connector::new(&side.device, server.local_addr().unwrap());
        std::thread::scope(|scope| {
            let connected = scope.spawn(|| connector.connect(&side.qp).unwrap());
            let (mut peer, _) = server.accept().unwrap();
            peer.set_read_timeout(Some(MAX_WAIT)).unwrap();
            let request = read_frame(&mut peer, FrameKind::Request);
            let offered = request.enhanced.unwrap();
            assert!(offered.peer_to_peer && offered.rtr.write);
            let rtr = RtrKinds { send: false, write: true, read: false };
            let enhanced = Some(Enhanced { rtr, ..offered });
            let reply = MpaFrame { enhanced, ..frame(FrameKind::Reply, 2, true, b"") };
            peer.write_all(&reply.to_bytes()).unwrap();
            let _connection = connected.join().unwrap();
            let (mut reader, mut bytes) = (Reader::new(true), [0; 20]);
            // The message and its four repetitions.
            for _ in 0..5 {
                peer.read_exact(&mut bytes).unwrap();
                let item = reader.next(&mut &bytes[..]).unwrap();
                let Some(Item::Payload(piece)) = item else { panic!("{item:?}") };
                assert_eq!((piece.header.opcode, piece.segment_len), (RdmapOpcode::Write, 0));
            }
            side.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
            peer.write_all(&send(1, b"")).unwrap();
            side.success();
        });
    });
}

/// Responders that do not use iWARP, or that end early.
#[test]
fn bad_replies_fail_the_connection() {
    watched(|| {
        let side = side();
        let server = TcpListener::bind((V4, 0)).unwrap();
        let connector = Connector::new(&side.device, server.local_addr().unwrap());
        let mut markers = frame(FrameKind::Reply, 2, false, b"");
        markers.markers = true;
        let cases = [
            (b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), false),
            (markers.to_bytes(), false),
            (frame(FrameKind::Reply, 1, false, b"").to_bytes(), false),
            (Vec::new(), true),
        ];
        for (reply, is_reset) in cases {
            let qp = side.pd.rc(&side.cq).create().unwrap();
            let error = std::thread::scope(|scope| {
                let failed = scope.spawn(|| connector.connect(&qp).unwrap_err());
                let (mut peer, _) = server.accept().unwrap();
                read_frame(&mut peer, FrameKind::Request);
                peer.write_all(&reply).unwrap();
                if !is_reset {
                    assert!(is_closed(&mut peer));
                }
                drop(peer);
                failed.join().unwrap()
            });
            match error {
                Error::Connect(ConnectError::Socket(error)) => {
                    assert!(!is_reset && error.raw_os_error() == Some(libc::EPROTO), "{error}");
                }
                Error::Connect(ConnectError::Rejected { reason, .. }) => {
                    assert!(is_reset && reason == RejectReason::CONSUMER);
                }
                other => panic!("{other}"),
            }
            assert_eq!(qp.state(), QpState::Init);
        }
    });
}
