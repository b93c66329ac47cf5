//! Connecting: input from the peer is not trusted, and every failure has its own error.

mod support;

use ferroce::{BadEndpoint, ConnectError, Endpoint, Error, Mtu, QpState, Qpn, Transport, UcQp, wr};
use std::io::{self, Cursor, Read, Write};
use std::os::unix::net::UnixStream;
use support::{LOOPBACKS, Side, V4, device, watched};

/// A peer that sends the given bytes and closes the stream.
struct Script(Cursor<Vec<u8>>, Vec<u8>);

impl Script {
    fn saying(bytes: impl Into<Vec<u8>>) -> Self {
        Script(Cursor::new(bytes.into()), Vec::new())
    }
}

impl Read for Script {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
}

impl Write for Script {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.1.write(buf)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn side() -> Side<ferroce::Rc> {
    Side::new(|pd, cq| pd.rc(cq).address(V4), |qp| qp)
}

/// The error of `connect_over` for these bytes.
fn answer(bytes: impl Into<Vec<u8>>) -> Error {
    side().qp.connect_over(&mut Script::saying(bytes)).unwrap_err()
}

fn good() -> [u8; Endpoint::ENCODED_LEN] {
    side().endpoint().to_bytes()
}

#[test]
fn garbage_is_refused_with_its_reason() {
    watched(|| {
        let changed = |at: usize, value: u8| {
            let mut bytes = good();
            bytes[at] = value;
            bytes
        };
        assert!(matches!(answer([]), Error::Connect(ConnectError::PeerGaveUp)));
        assert!(matches!(answer(&good()[..35]), Error::Connect(ConnectError::PeerGaveUp)));
        let http = b"GET / HTTP/1.1\r\nHost: example\r\n\r\nand more".as_slice();
        let not_ours = answer(http);
        assert!(matches!(not_ours, Error::Connect(ConnectError::Endpoint(BadEndpoint::NotAnEndpoint))));
        assert!(not_ours.to_string().contains("not a ferroce endpoint"), "{not_ours}");
        let version = answer(changed(4, 200));
        assert!(matches!(version, Error::Connect(ConnectError::Endpoint(BadEndpoint::Version(200)))));
        for (at, value) in [(5, 9), (6, 0), (6, 99), (8, 1), (12, 255), (32, 239), (32, 0)] {
            let bytes = match (at, value) {
                (32, 0) => {
                    let mut bytes = good();
                    bytes[32..].fill(0);
                    bytes
                }
                _ => changed(at, value),
            };
            let error = answer(bytes);
            assert!(
                matches!(error, Error::Connect(ConnectError::Endpoint(BadEndpoint::Field(_)))),
                "{error}"
            );
        }
    });
}

#[test]
fn a_peer_that_goes_before_it_is_ready() {
    watched(|| assert!(matches!(answer(good()), Error::Connect(ConnectError::PeerGaveUp))));
}

#[test]
fn a_peer_that_sends_something_else_instead_of_ready() {
    watched(|| {
        let mut bytes = good().to_vec();
        bytes.push(b'?');
        assert!(matches!(answer(bytes), Error::Connect(ConnectError::Endpoint(_))));
    });
}

#[test]
fn transports_and_ip_versions_do_not_mix() {
    watched(|| {
        let ours = side();
        let uc = with(&ours.endpoint(), |e| e.transport = Transport::Uc);
        let error = answer(uc.to_bytes());
        assert!(matches!(
            error,
            Error::Connect(ConnectError::Transport { ours: Transport::Rc, theirs: Transport::Uc })
        ));
        assert_eq!(ours.qp.state(), QpState::Init, "nothing happened yet");
        let v6 = with(&ours.endpoint(), |e| e.gid = LOOPBACKS[1].into());
        let error = side().qp.connect(&v6).unwrap_err();
        assert!(error.to_string().contains("IP version"), "{error}");
    });
}

#[test]
fn the_smaller_mtu_and_the_smaller_number_of_reads_win() {
    watched(|| {
        let ours = side();
        let peer = with(&ours.endpoint(), |e| (e.mtu, e.rd_atomic, e.qpn) = (Mtu::B512, 3, Qpn::new(77)));
        ours.qp.connect(&peer).unwrap();
        let attr = ours.qp.query();
        assert_eq!((attr.path_mtu, attr.max_rd_atomic, attr.max_dest_rd_atomic), (Mtu::B512, 3, 16));
        assert_eq!(attr.dest_qpn, Qpn::new(77));
    });
}

#[test]
fn addresses_are_found_in_either_form() {
    watched(|| {
        let device = device();
        let mapped = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().into();
        assert_eq!(device.gid_index(mapped).unwrap(), device.gid_index(V4).unwrap());
        assert_ne!(device.gid_index(LOOPBACKS[1]).unwrap(), device.gid_index(V4).unwrap());
        let error = device.gid_index("192.0.2.99".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("not in the GID table"), "{error}");
    });
}

#[test]
fn a_second_connect_is_refused() {
    watched(|| {
        let (a, b) = (side(), side());
        a.qp.connect(&b.endpoint()).unwrap();
        let error = a.qp.connect(&b.endpoint()).unwrap_err();
        assert!(error.to_string().starts_with("modify_qp: "), "{error}");
    });
}

/// UC loses messages to a peer that is not ready; `connect_over` returns when it is.
#[test]
fn nothing_is_lost_right_after_connecting() {
    watched(|| {
        for _ in 0..50 {
            let (mut ours, mut theirs) = UnixStream::pair().unwrap();
            let connect = |socket: &mut UnixStream| -> (ferroce::Cq, UcQp) {
                let device = device();
                let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
                let qp = pd.uc(&cq).create().unwrap();
                qp.post_recv(&[wr::recv(1, &[])]).unwrap();
                qp.connect_over(socket).unwrap();
                qp.send_from(2, &[]).unwrap();
                (cq, qp)
            };
            let peer = std::thread::spawn(move || {
                let (cq, _qp) = connect(&mut theirs);
                support::success(&cq);
                support::success(&cq);
            });
            let (cq, _qp) = connect(&mut ours);
            support::success(&cq);
            support::success(&cq);
            peer.join().unwrap();
        }
    });
}

#[test]
fn sequence_numbers_and_keys_are_not_guessable() {
    watched(|| {
        let device = device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        let qps: Vec<_> = (0..32).map(|_| pd.rc(&cq).create().unwrap()).collect();
        let mut psns: Vec<u32> = qps.iter().map(|qp| qp.endpoint().unwrap().psn.value()).collect();
        psns.sort_unstable();
        assert!(psns.windows(2).all(|w| w[1] - w[0] > 1), "{psns:?}");
        let regions: Vec<_> = (0..32).map(|_| pd.region(8).register().unwrap()).collect();
        assert!(regions.iter().all(|r| r.lkey().0 != r.rkey().0));
    });
}

/// An endpoint with some fields changed.
fn with(endpoint: &Endpoint, change: impl FnOnce(&mut Endpoint)) -> Endpoint {
    let mut changed = *endpoint;
    change(&mut changed);
    changed
}
