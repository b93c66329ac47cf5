//! `FERROCE_LOG=explain` names what an iWARP queue pair waits for: a peer that stopped reading, one that answers no READ.

mod support;

use ferroce::{Config, Connector, Device, Rc, RemoteRegion, Wire, wr};
use ferroce_proto::iwarp::negotiation::{Offer, Responder};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use support::{LOOPBACKS, Side, V4, watched};

/// Set in the process whose queue pairs stall.
const ROLE: &str = "IWARP_STALL_CHILD";
const TEST: &str = "stalls_are_explained";
const SENTENCES: [&str; 2] =
    ["the send buffer of TCP is full, because the peer has stopped reading", "answered none of 1 READs"];

/// A peer that is not ferroce: it accepts a connection by hand, and then neither reads nor sends.
fn silent_peer() -> (SocketAddr, std::thread::JoinHandle<TcpStream>) {
    let listener = TcpListener::bind((V4, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let peer = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut responder, mut byte) = (Responder::new(ferroce_proto::Time(0)), [0]);
        loop {
            stream.read_exact(&mut byte).unwrap();
            if let (_, Some(request)) = responder.receive(&byte).unwrap() {
                let (_, reply) = request.accept(&Offer::default(), &[]).unwrap();
                stream.write_all(&reply).unwrap();
                return stream;
            }
        }
    });
    (address, peer)
}

/// Stalls two queue pairs for as long as the process lives.
fn stall() -> ! {
    let config = Config::default().with(|config| {
        (config.addresses, config.wire) = (Some(LOOPBACKS.to_vec()), Wire::Iwarp);
    });
    let device = Device::open_with(config).unwrap();
    let sides = [(); 2].map(|()| Side::<Rc>::on(device.clone(), |pd, cq| pd.rc(cq), |qp| qp));
    let there = RemoteRegion { addr: 0, len: 1 << 20, rkey: ferroce::RKey(7) };
    let connected: Vec<_> = sides
        .iter()
        .map(|side| {
            let (to, peer) = silent_peer();
            let connection = Connector::new(&device, to).connect(&side.qp).unwrap();
            (connection, peer.join().unwrap(), side.open_region(1 << 20))
        })
        .collect();
    let sge = |n: usize| [connected[n].2.sge(..).unwrap()];
    // More than the buffers of both sockets hold.
    (0..64).for_each(|n| sides[0].qp.post_send(&[wr::write(n, &sge(0), there)]).unwrap());
    sides[1].qp.post_send(&[wr::read(1, &sge(1), there)]).unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn stalls_are_explained() {
    if std::env::var_os(ROLE).is_some() {
        stall();
    }
    watched(|| {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env(ROLE, "1")
            .env("FERROCE_LOG", "explain")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut missing = SENTENCES.to_vec();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        while !missing.is_empty() {
            let line = lines.next().unwrap_or_else(|| panic!("no line has {missing:?}")).unwrap();
            println!("{line}");
            missing.retain(|sentence| !line.contains(sentence));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    });
}
