//! Connections by address and port: two processes, both IP versions, refusals, peers that die.

mod support;

use ferroce::{
    CmRefusal, ConnectError, Connection, ConnectionEvent, Connector, Device, Error, Listener, QpState, Rc,
    RcQp, Refusal, RejectReason, Secret,
};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;
use support::process::{Peer, parent};
use support::{LOOPBACKS, MAX_WAIT, V4, device, watched};

fn queue_pair(device: &Device) -> RcQp {
    let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
    pd.rc(&cq).create().unwrap()
}

fn listen(device: &Device, address: IpAddr) -> Listener {
    Listener::bind(device, SocketAddr::new(address, 0)).unwrap()
}

/// Sends one message, whatever its content.
fn send(connection: &Connection<Rc>, text: &[u8]) {
    let mut message = connection.qp().pd().buffer(64).unwrap();
    message.set(text).unwrap();
    connection.qp().send(message).unwrap().wait().unwrap();
}

fn put_port(socket: &mut TcpStream, address: SocketAddr) {
    socket.write_all(&address.port().to_be_bytes()).unwrap();
}

fn take_port(socket: &mut TcpStream) -> SocketAddr {
    let mut port = [0; 2];
    socket.read_exact(&mut port).unwrap();
    SocketAddr::new(socket.peer_addr().unwrap().ip(), u16::from_be_bytes(port))
}

/// The child connects, the parent listens.
fn two_processes(test: &str, address: IpAddr) {
    let device = device();
    let qp = queue_pair(&device);
    let received = qp.recv(qp.pd().buffer(64).unwrap()).unwrap();
    if let Some(mut socket) = parent() {
        let to = take_port(&mut socket);
        let connection = Connector::new(&device, to).private_data(b"child").connect(&qp).unwrap();
        assert_eq!(&connection.private_data()[..7], b"parent\0");
        assert_eq!(connection.peer_addr(), to);
        send(&connection, b"from the child");
        assert_eq!(&*received.wait().unwrap().buffer, b"from the parent");
        connection.disconnect().unwrap();
        assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
        return;
    }
    let listener = listen(&device, address);
    let mut peer = Peer::start(test, address);
    put_port(&mut peer.socket, listener.local_addr());
    let request = listener.accept_timeout(MAX_WAIT).unwrap();
    assert_eq!((&request.private_data()[..6], request.peer_addr().ip()), (&b"child\0"[..], address));
    let connection = request.accept(&qp, b"parent").unwrap();
    assert_eq!(qp.state(), QpState::Rts);
    assert_eq!(&*received.wait().unwrap().buffer, b"from the child");
    send(&connection, b"from the parent");
    assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
    assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::TimewaitExit);
    peer.finish();
}

#[test]
fn keys_decide_who_connects() {
    watched(|| {
        let device = device();
        let key = |byte: u8| Secret::new(&[byte; 32]).unwrap();
        let listener = Listener::builder(&device).secret(key(1)).bind(SocketAddr::new(V4, 0)).unwrap();
        let (to, qp) = (listener.local_addr(), queue_pair(&device));
        for stranger in [Connector::new(&device, to), Connector::new(&device, to).secret(key(2))] {
            match stranger.connect(&qp).unwrap_err() {
                Error::Connect(ConnectError::Rejected { reason, .. }) => {
                    assert_eq!(reason, RejectReason::CONSUMER);
                }
                other => panic!("{other}"),
            }
        }
        assert!(listener.try_accept().unwrap().is_none());
        std::thread::scope(|scope| {
            let offer = scope.spawn(|| {
                let qp = queue_pair(&device);
                Connector::new(&device, to).secret(key(1)).private_data(&[7; 36]).connect(&qp).unwrap()
            });
            let request = listener.accept_timeout(MAX_WAIT).unwrap();
            assert_eq!(request.private_data(), [7; 36]);
            let connection = request.accept(&queue_pair(&device), b"welcome").unwrap();
            assert_eq!(offer.join().unwrap().private_data().len(), 180);
            drop(connection);
        });
    });
}

#[test]
fn two_processes_meet_over_ipv4() {
    watched(|| two_processes("two_processes_meet_over_ipv4", LOOPBACKS[0]));
}

#[test]
fn two_processes_meet_over_ipv6() {
    watched(|| two_processes("two_processes_meet_over_ipv6", LOOPBACKS[1]));
}

/// Both sides in this process, each with its device.
fn pair() -> (Connection<Rc>, Connection<Rc>) {
    let (here, there) = (device(), device());
    let listener = listen(&there, V4);
    let (a, b) = (queue_pair(&here), queue_pair(&there));
    let to = listener.local_addr();
    std::thread::scope(|scope| {
        let server = scope.spawn(|| listener.accept_timeout(MAX_WAIT).unwrap().accept(&b, b"").unwrap());
        let client = Connector::new(&here, to).connect(&a).unwrap();
        (client, server.join().unwrap())
    })
}

#[test]
fn both_sides_get_the_disconnect_event() {
    watched(|| {
        let (a, b) = pair();
        b.disconnect().unwrap();
        for side in [&a, &b] {
            assert_eq!(side.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
        }
        assert_eq!(b.qp().state(), QpState::Err);
        a.disconnect().unwrap();
        for side in [&a, &b] {
            assert_eq!(side.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::TimewaitExit);
            assert_eq!(side.try_event(), None);
        }
        let (a, b) = pair();
        drop(a);
        assert_eq!(b.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
    });
}

#[test]
fn refusals_say_why() {
    watched(|| {
        let (here, there) = (device(), device());
        let listener = listen(&there, V4);
        let qp = queue_pair(&here);
        let to = listener.local_addr();
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| listener.accept_timeout(MAX_WAIT).unwrap().reject(b"not today").unwrap());
            Connector::new(&here, to).connect(&qp).unwrap_err()
        });
        let Error::Connect(ConnectError::Rejected { reason, private_data }) = refused else {
            panic!("{refused}")
        };
        assert_eq!((reason, &private_data[..10]), (RejectReason::CONSUMER, &b"not today\0"[..]));
        // A request that is dropped is refused, too.
        let refused = std::thread::scope(|scope| {
            scope.spawn(|| drop(listener.accept_timeout(MAX_WAIT).unwrap()));
            Connector::new(&here, to).connect(&qp).unwrap_err()
        });
        assert!(matches!(refused, Error::Connect(ConnectError::Rejected { .. })), "{refused}");

        let again = Listener::bind(&here, to).unwrap_err();
        assert!(matches!(again.refusal(), Some(Refusal::Cm(CmRefusal::AddressInUse(_)))), "{again}");
        drop(listener);
        let refused = Connector::new(&here, to).connect(&qp).unwrap_err();
        let Error::Connect(ConnectError::Rejected { reason, .. }) = refused else { panic!("{refused}") };
        assert_eq!(reason, RejectReason::INVALID_SERVICE_ID);
        Listener::bind(&here, to).unwrap();

        let too_long = Connector::new(&here, to).private_data(&[1; 57]).connect(&qp).unwrap_err();
        assert!(too_long.to_string().contains("57 bytes of private data"), "{too_long}");
        // No host has this address.
        let nowhere = Connector::new(&here, "127.0.0.94:1".parse().unwrap()).timeout(Duration::ZERO);
        let silence = nowhere.connect(&qp).unwrap_err();
        assert!(matches!(silence, Error::Connect(ConnectError::Unreachable)), "{silence}");
    });
}

#[test]
fn a_listener_that_is_killed_frees_its_port() {
    watched(|| {
        let device = device();
        if let Some(mut socket) = parent() {
            let listener = listen(&device, V4);
            put_port(&mut socket, listener.local_addr());
            let request = listener.accept_timeout(MAX_WAIT).unwrap();
            let qp = queue_pair(&device);
            let _connection = request.accept(&qp, b"").unwrap();
            socket.write_all(b".").unwrap();
            // Until it is killed.
            let _ = socket.read(&mut [0]);
            return;
        }
        let mut peer = Peer::start("a_listener_that_is_killed_frees_its_port", V4);
        let to = take_port(&mut peer.socket);
        let qp = queue_pair(&device);
        let connection = Connector::new(&device, to).connect(&qp).unwrap();
        peer.socket.read_exact(&mut [0]).unwrap();
        peer.kill();
        // No process of this host has the connection any more, so this one rejects the disconnect.
        connection.disconnect().unwrap();
        assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
        let refused = Connector::new(&device, to).connect(&queue_pair(&device)).unwrap_err();
        assert!(matches!(refused, Error::Connect(ConnectError::Rejected { .. })), "{refused}");
        Listener::bind(&device, to).unwrap();
    });
}

#[test]
fn connections_survive_a_lossy_path() {
    watched(|| {
        let config = ferroce::Config::default().with(|config| {
            config.addresses = Some(LOOPBACKS.to_vec());
            config.faults = Some("loss=0.2,duplicate=0.2,seed=7".parse().unwrap());
        });
        let (here, there) = (Device::open_with(config.clone()).unwrap(), Device::open_with(config).unwrap());
        let listener = listen(&there, V4);
        let to = listener.local_addr();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10 {
                    let qp = queue_pair(&there);
                    let request = listener.accept_timeout(MAX_WAIT).unwrap();
                    let connection = request.accept(&qp, b"").unwrap();
                    assert_eq!(
                        connection.wait_event_timeout(MAX_WAIT).unwrap(),
                        ConnectionEvent::Disconnected
                    );
                }
            });
            for _ in 0..10 {
                let connection = Connector::new(&here, to).connect(&queue_pair(&here)).unwrap();
                connection.disconnect().unwrap();
                assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
            }
        });
    });
}

#[cfg(feature = "tokio")]
#[test]
fn tasks_listen_and_connect() {
    watched(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let (here, there) = (device(), device());
            let listener = listen(&there, V4);
            let (a, b) = (queue_pair(&here), queue_pair(&there));
            let to = listener.local_addr();
            // One thread: neither side may block while the other has something to do.
            let server = tokio::spawn(async move {
                let request = listener.accept_async(&ferroce::Tokio).await.unwrap();
                request.accept_async(&b, b"task", &ferroce::Tokio).await.unwrap()
            });
            let client = Connector::new(&here, to).connect_async(&a, &ferroce::Tokio).await.unwrap();
            assert_eq!(&client.private_data()[..5], b"task\0");
            let server = server.await.unwrap();
            client.disconnect().unwrap();
            assert_eq!(server.event_async(&ferroce::Tokio).await.unwrap(), ConnectionEvent::Disconnected);
            assert_eq!(client.event_async(&ferroce::Tokio).await.unwrap(), ConnectionEvent::Disconnected);
        });
    });
}
