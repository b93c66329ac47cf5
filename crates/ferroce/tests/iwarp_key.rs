//! Secure set-up over iWARP: both ends prove a key before a connection exists.

mod support;

use ferroce::{Config, ConnectError, Connector, Device, Error, Listener, Rc, Secret, Wire};
use ferroce_proto::RKey;
use ferroce_proto::iwarp::negotiation::{Confirmation, Initiator, Offer, Reply, RequestKey, StreamAddrs};
use ferroce_proto::iwarp::wire::{Crc32c, DdpBuffer, DdpHeader, Fpdu, RdmapOpcode};
use ferroce_proto::qp::TxPayload;
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, SystemTime};
use support::{LOOPBACKS, MAX_WAIT, Side, V4, watched};

/// Private data of a request and of an accepting reply with a key.
const REQUEST_DATA: usize = 472;
const REPLY_DATA: usize = 476;

fn key(byte: u8) -> Secret {
    Secret::new(&[byte; 32]).unwrap()
}

fn side(secret: Option<u8>) -> Side<Rc> {
    let config = Config::default().with(|config| {
        (config.addresses, config.wire) = (Some(LOOPBACKS.to_vec()), Wire::Iwarp);
        config.cm_secret = secret.map(key);
    });
    Side::on(Device::open_with(config).unwrap(), |pd, cq| pd.rc(cq), |qp| qp)
}

fn listen(side: &Side<Rc>) -> Listener {
    Listener::bind(&side.device, SocketAddr::new(V4, 0)).unwrap()
}

/// Connects `client` and expects a refusal that names the key.
#[track_caller]
fn refused(client: &Side<Rc>, to: SocketAddr) {
    let refusal = Connector::new(&client.device, to).private_data(b"hello").connect(&client.qp);
    match refusal.map(|_| ()).unwrap_err() {
        Error::Connect(ConnectError::Rejected { private_data, .. }) => {
            assert!(private_data.starts_with(b"ferroce: not proven"), "{private_data:?}");
        }
        other => panic!("{other}"),
    }
}

/// Connects with the longest private data, and sends a message in each direction.
fn connects(client: &Side<Rc>, server: &Side<Rc>, connector: Connector, listener: &Listener) {
    let (hello, welcome) = ([7; REQUEST_DATA], [8; REPLY_DATA]);
    let (ours, theirs) = std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let request = listener.accept_timeout(MAX_WAIT).unwrap();
            assert_eq!(request.private_data(), hello);
            request.accept(&server.qp, &welcome).unwrap()
        });
        (connector.private_data(&hello).connect(&client.qp).unwrap(), accepting.join().unwrap())
    });
    assert_eq!(ours.private_data(), welcome);
    for (from, to) in [(client, server), (server, client)] {
        to.qp.post_recv(&[ferroce::wr::recv(1, &[])]).unwrap();
        from.qp.send_inline(2, &[]).unwrap();
        assert_eq!([support::success(&from.cq).wr_id, support::success(&to.cq).wr_id], [2, 1]);
    }
    drop((ours, theirs));
}

#[test]
fn the_same_key_connects() {
    watched(|| {
        let (client, server) = (side(Some(1)), side(Some(1)));
        let listener = listen(&server);
        let to = listener.local_addr();
        let too_long = Connector::new(&client.device, to).private_data(&[0; REQUEST_DATA + 1]);
        assert!(too_long.connect(&client.qp).is_err());
        connects(&client, &server, Connector::new(&client.device, to), &listener);
        assert_eq!(server.device.counters().cm["unproven"], 0);
    });
}

#[test]
fn another_key_and_none_are_refused() {
    watched(|| {
        let server = side(Some(1));
        let listener = listen(&server);
        refused(&side(Some(2)), listener.local_addr());
        refused(&side(None), listener.local_addr());
        assert_eq!(server.device.counters().cm["unproven"], 2);
        assert!(listener.accept_timeout(Duration::from_millis(1)).is_err(), "the program got a request");
    });
}

/// A listener without the key accepts the request, and the initiator refuses its reply.
#[test]
fn a_listener_without_the_key_is_refused() {
    watched(|| {
        let (client, server) = (side(Some(1)), side(None));
        let listener = listen(&server);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let request = listener.accept_timeout(MAX_WAIT).unwrap();
                assert!(request.accept(&server.qp, b"welcome").is_err(), "the connection was established");
            });
            refused(&client, listener.local_addr());
        });
        assert_eq!(client.device.counters().cm["unproven"], 1);
    });
}

/// A socket that is bound to this port, which other sockets of this function may have too.
fn bound(port: u16) -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::new(V4, port).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

/// Connects from a port and sends a request. The connection is reset when it is dropped, so that the port is free immediately.
fn send_from(port: u16, to: SocketAddr, request: &[u8]) -> TcpStream {
    let (socket, _) = bound(port);
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    socket.connect(&to.into()).unwrap();
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
    stream.write_all(request).unwrap();
    stream
}

fn read_reply(stream: &mut TcpStream, initiator: &mut Initiator) -> Reply {
    loop {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        if let (_, Some(reply)) = initiator.receive(&byte).unwrap() {
            return reply;
        }
    }
}

/// An empty WRITE.
fn empty_write(confirmation: Confirmation, has_crc: bool) -> Vec<u8> {
    let Confirmation { stag, to } = confirmation;
    let header = DdpHeader { opcode: RdmapOpcode::Write, last: true, buffer: DdpBuffer::Tagged { stag, to } };
    let mut bytes = vec![0; 2 + DdpHeader::TAGGED_LEN];
    bytes[..2].copy_from_slice(&(DdpHeader::TAGGED_LEN as u16).to_be_bytes());
    header.write(&mut bytes[2..]);
    let fpdu = Fpdu { header: &bytes, payload: TxPayload::Bytes(&[]), has_crc, ends_message: true };
    let (trailer, len) = fpdu.trailer(Crc32c::new(), |crc| crc);
    [&bytes[..], &trailer[..len]].concat()
}

/// Sends a new request by hand, then an RTR message that `change` makes of the right one. Returns whether that established the connection.
fn establishes(nonce: u128, change: impl FnOnce(Confirmation) -> Confirmation) -> bool {
    let server = side(Some(1));
    let listener = listen(&server);
    let ((_held, from), to) = (bound(0), listener.local_addr());
    let addrs = StreamAddrs { initiator: from, responder: to };
    let unix_s = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let request_key = RequestKey { secret: key(1), addrs, nonce, unix_s };
    let (mut initiator, bytes) = Initiator::with_key(Offer::default(), b"", Some(&request_key));
    let mut stream = send_from(from.port(), to, &bytes);
    std::thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let request = listener.accept_timeout(MAX_WAIT).unwrap();
            request.accept(&server.qp, b"").is_ok()
        });
        let terms = read_reply(&mut stream, &mut initiator).accepted.unwrap();
        let right = terms.confirmation.unwrap();
        let sent = change(right);
        stream.write_all(&empty_write(sent, terms.crc)).unwrap();
        if sent != right {
            // The listener closes its half, and waits for ours.
            stream.read_to_end(&mut Vec::new()).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
        }
        accepting.join().unwrap()
    })
}

/// A recorded request that the listener has not received, from an attacker without the key.
#[test]
fn a_request_alone_establishes_no_connection() {
    watched(|| {
        assert!(establishes(1, |right| right), "the RTR message of an initiator with the key was refused");
        assert!(!establishes(2, |_| Confirmation { stag: RKey(1), to: 0 }), "a plain RTR message");
        assert!(!establishes(3, |right| Confirmation { to: right.to ^ 1, ..right }), "a wrong MAC");
    });
}

/// An attacker sends a recorded request again, from the same port: to the same device, then to the next one with that port.
#[test]
fn a_recorded_request_is_refused_by_every_device_of_the_process() {
    watched(|| {
        // Held by unconnected sockets, so that no other process gets these ports.
        let ((_held, from), (_held_too, to)) = (bound(0), bound(0));
        let addrs = StreamAddrs { initiator: from, responder: to };
        let unix_s = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
        let request_key = RequestKey { secret: key(1), addrs, nonce: 7, unix_s };
        let request = || Initiator::with_key(Offer::default(), b"hello", Some(&request_key));
        let open = || {
            let server = side(Some(1));
            let listener = Listener::bind(&server.device, to).unwrap();
            (server, listener)
        };
        let replay = |server: &Side<Rc>, listener: &Listener| {
            let (mut initiator, bytes) = request();
            let reply = read_reply(&mut send_from(from.port(), to, &bytes), &mut initiator);
            assert_eq!(reply.accepted, None);
            let text = String::from_utf8(reply.private_data).unwrap();
            assert!(text.contains("used before"), "{text}");
            assert_eq!(server.device.counters().cm["replayed"], 1);
            assert!(listener.accept_timeout(Duration::from_millis(1)).is_err(), "the program got a request");
        };

        let (server, listener) = open();
        let (mut initiator, bytes) = request();
        let mut stream = send_from(from.port(), to, &bytes);
        let received = listener.accept_timeout(MAX_WAIT).unwrap();
        assert_eq!(received.private_data(), b"hello");
        received.reject(b"busy").unwrap();
        assert_eq!(read_reply(&mut stream, &mut initiator).private_data, b"busy");
        drop(stream);
        replay(&server, &listener);
        drop((listener, server));
        let (server, listener) = open();
        replay(&server, &listener);
    });
}

#[test]
fn ids_may_have_keys_of_their_own() {
    watched(|| {
        let (client, server) = (side(None), side(Some(1)));
        let listener = Listener::builder(&server.device).secret(key(3)).bind(SocketAddr::new(V4, 0)).unwrap();
        refused(&side(Some(1)), listener.local_addr());
        let connector = Connector::new(&client.device, listener.local_addr()).secret(key(3));
        connects(&client, &server, connector, &listener);
    });
}
