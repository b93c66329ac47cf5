//! Mixed traffic for a given time: every service, connections by address that begin and end, short-lived regions, processes that are
//! killed. The number of bytes, descriptors, mappings and shared segments does not grow.
//!
//! A test run does few rounds; `cargo xtask soak --minutes 60` does an hour of them, on both links.

mod support;

use ferroce::{
    AddressHandle, ConnectionEvent, Connector, Device, Listener, Pd, RemoteRegion, Ud, WcStatus, wr,
};
use ferroce_nic::registry::{Registry, default_base};
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use support::process::{Peer, parent};
use support::{MAX_WAIT, Side, device_at, join, pattern, success, until};

/// An address of its own: processes that share one also share work.
const ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 92, 0, 1));
/// Rounds until everything that is cached once is there, and the least that follow.
const WARM_ROUNDS: u32 = 4;
const ROUNDS: u32 = 4;
/// What the allocator may keep beyond, however long it takes.
const MEMORY_BYTES: u64 = 24 << 20;
/// A NIC keeps its ring to every slot that it has sent to, and the packets that wait for it: each process that is started has another slot, up
/// to 255, before the first one is used again.
const MAPPINGS: usize = 255 * 4;
const LEN: usize = 40_000;

/// Resources of this process.
#[derive(Clone, Copy, Debug)]
struct Usage {
    memory_bytes: u64,
    descriptors: usize,
    mappings: usize,
}

impl Usage {
    fn now() -> Usage {
        let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("anonymous memory");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        Usage {
            memory_bytes: kib * 1024,
            descriptors: std::fs::read_dir("/proc/self/fd").expect("Linux").count(),
            mappings: std::fs::read_to_string("/proc/self/maps").expect("Linux").lines().count(),
        }
    }

    fn max(self, other: Usage) -> Usage {
        Usage {
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
            descriptors: self.descriptors.max(other.descriptors),
            mappings: self.mappings.max(other.mappings),
        }
    }

    fn is_within(self, base: Usage) -> bool {
        self.memory_bytes <= base.memory_bytes + MEMORY_BYTES
            && self.descriptors <= base.descriptors
            && self.mappings <= base.mappings + MAPPINGS
    }
}

/// One connection of each reliable operation.
fn reliable(a: &Device, b: &Device, round: u64) {
    let side = |device: &Device| Side::on(device.clone(), |pd, cq| pd.rc(cq).address(ADDRESS), |qp| qp);
    let (a, b) = (side(a), side(b));
    join(&a.qp, &b.qp);
    let (here, there) = (a.open_region(LEN), b.open_region(LEN));
    let data = pattern(round, LEN);
    here.write(0, &data).unwrap();
    let whole = here.sge(..).unwrap();
    a.qp.write(1, &[whole], there.remote()).unwrap();
    a.success();
    assert!(there.to_vec() == data);
    here.fill(0);
    a.qp.read(2, &[whole], there.remote()).unwrap();
    a.success();
    assert!(here.to_vec() == data);
    let word = here.sge(..8).unwrap();
    a.qp.fetch_add(3, word, there.remote(), 1).unwrap();
    a.success();
    b.qp.post_recv(&[wr::recv(4, &[there.sge(..).unwrap()])]).unwrap();
    a.qp.send_from(5, &[whole]).unwrap();
    assert_eq!((a.success().wr_id, b.success().wr_id), (5, 4));
}

/// Unreliable messages, each until one arrives.
fn unreliable(a: &Device, b: &Device, round: u64) {
    let side = |device: &Device| Side::on(device.clone(), |pd, cq| pd.uc(cq).address(ADDRESS), |qp| qp);
    let (from, to) = (side(a), side(b));
    from.qp.connect(&to.endpoint()).unwrap();
    to.qp.connect(&from.endpoint()).unwrap();
    let data = pattern(round, 1000);
    let mut pending = to.qp.recv(to.pd.buffer(1000).unwrap()).unwrap();
    let arrived = repeat(&from.pd, &data, &mut pending, |buffer| from.qp.send(buffer).unwrap());
    assert!(arrived == data);

    let side = |device: &Device| -> Side<Ud> {
        Side::on(device.clone(), |pd, cq| pd.ud(cq).address(ADDRESS), |qp| qp)
    };
    let (from, to) = (side(a), side(b));
    let index = from.device.gid_index(ADDRESS).unwrap();
    let handle: AddressHandle = from.pd.address_handle(&to.endpoint(), index).unwrap();
    let mut pending = to.qp.recv(to.pd.buffer(1000).unwrap()).unwrap();
    let arrived = repeat(&from.pd, &data, &mut pending, |buffer| from.qp.send(buffer, &handle).unwrap());
    assert!(arrived == data);
}

/// Sends until one message arrives, because messages may be lost.
fn repeat(
    pd: &Pd,
    data: &[u8],
    pending: &mut ferroce::Pending,
    send: impl Fn(ferroce::Buffer) -> ferroce::Pending,
) -> Vec<u8> {
    let started = Instant::now();
    loop {
        let mut buffer = pd.buffer(data.len()).unwrap();
        buffer.set(data).unwrap();
        send(buffer).wait().unwrap();
        match pending.settle_timeout(Duration::from_millis(200)) {
            Ok(done) => return done.ok().unwrap().buffer.to_vec(),
            Err(ferroce::Error::TimedOut) => {
                assert!(started.elapsed() < MAX_WAIT, "watchdog: nothing arrives")
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn extended(a: &Device, b: &Device) {
    let (pd, cq) = (b.alloc_pd().unwrap(), b.create_cq(16).unwrap());
    let domain = b.alloc_xrc_domain().unwrap();
    let target = domain.target().address(ADDRESS).create().unwrap();
    let (send_pd, send_cq) = (a.alloc_pd().unwrap(), a.create_cq(16).unwrap());
    let initiator = send_pd.xrc(&send_cq).address(ADDRESS).create().unwrap();
    initiator.connect(&target.endpoint().unwrap()).unwrap();
    target.connect(&initiator.endpoint().unwrap()).unwrap();
    let queue = domain.srq(&pd, &cq, 8, 1).unwrap();
    queue.recv(pd.buffer(64).unwrap()).unwrap();
    initiator.send(send_pd.buffer(5).unwrap(), queue.number()).unwrap().wait().unwrap();
    assert_eq!(queue.cq().wait_shared_timeout(MAX_WAIT).unwrap().completion.byte_len, 5);
}

/// A connection by address, from its request to its end.
fn connection(a: &Device, b: &Device) {
    let listener = Listener::bind(b, SocketAddr::new(ADDRESS, 0)).unwrap();
    let to = listener.local_addr();
    let queue_pair = |device: &Device| {
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        pd.rc(&cq).create().unwrap()
    };
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let qp = queue_pair(b);
            let received = qp.recv(qp.pd().buffer(64).unwrap()).unwrap();
            let connection = listener.accept_timeout(MAX_WAIT).unwrap().accept(&qp, &[]).unwrap();
            received.wait().unwrap();
            assert_eq!(connection.wait_event_timeout(MAX_WAIT).unwrap(), ConnectionEvent::Disconnected);
        });
        let qp = queue_pair(a);
        let connection = Connector::new(a, to).connect(&qp).unwrap();
        connection.qp().send(qp.pd().buffer(8).unwrap()).unwrap().wait().unwrap();
        connection.disconnect().unwrap();
        accepted.join().unwrap();
    });
}

/// Meets the other process: a connection, and a region of each.
fn meet(socket: &mut TcpStream, device: Device) -> (Side<ferroce::Rc>, ferroce::Region, RemoteRegion) {
    let side = Side::on(device, |pd, cq| pd.rc(cq).address(ADDRESS), |qp| qp);
    let region = side.open_region(LEN);
    side.qp.connect_over(socket).unwrap();
    socket.write_all(&region.remote().to_bytes()).unwrap();
    let mut bytes = [0; RemoteRegion::ENCODED_LEN];
    socket.read_exact(&mut bytes).unwrap();
    (side, region, RemoteRegion::from_bytes(&bytes).unwrap())
}

/// The process that is killed: writes, reads and sends until then.
fn be_killed(mut socket: TcpStream) {
    let (side, region, remote) = meet(&mut socket, device_at(&[ADDRESS]));
    let whole = region.sge(..).unwrap();
    for round in 0_u64.. {
        match round % 3 {
            0 => side.qp.write(round, &[whole], remote),
            1 => side.qp.read(round, &[whole], remote),
            _ => side.qp.send_from(round, &[region.sge(..64).unwrap()]),
        }
        .unwrap();
        success(&side.cq);
    }
}

/// Returns the slot of the process that was killed.
fn kill_one(device: &Device) -> u8 {
    let mut peer = Peer::start(TEST, ADDRESS);
    let (side, region, _) = meet(&mut peer.socket, device.clone());
    let receives = side.open_region(64);
    for n in 0..4 {
        side.qp.post_recv(&[wr::recv(n, &[receives.sge(..).unwrap()])]).unwrap();
    }
    // It is killed in the middle of its traffic.
    assert_eq!(support::next(&side.cq).status, WcStatus::Success);
    peer.kill();
    drop((region, receives));
    (side.qp.query().dest_qpn.value() >> 16) as u8
}

const TEST: &str = "nothing_grows";

#[test]
fn nothing_grows() {
    if let Some(socket) = parent() {
        return be_killed(socket);
    }
    let seconds =
        std::env::var("FERROCE_SOAK_SECONDS").map_or(0, |n| n.parse().expect("FERROCE_SOAK_SECONDS"));
    let (tell, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        soak(Duration::from_secs(seconds));
        let _ = tell.send(());
    });
    let limit = 2 * MAX_WAIT + Duration::from_secs(seconds);
    if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(limit) {
        panic!("watchdog: the test hangs, it has not ended after {limit:?}");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn soak(time: Duration) {
    let started = Instant::now();
    let [a, b] = [(); 2].map(|()| device_at(&[ADDRESS]));
    let (mut base, mut dead) = (Usage::now(), Vec::new());
    let mut rounds = 0;
    while rounds < WARM_ROUNDS + ROUNDS || started.elapsed() < time {
        reliable(&a, &b, rounds.into());
        unreliable(&a, &b, rounds.into());
        extended(&a, &b);
        connection(&a, &b);
        // A device that is opened and closed, and a process that is killed.
        reliable(&device_at(&[ADDRESS]), &a, rounds.into());
        dead.push(kill_one(&a));
        rounds += 1;
        if rounds <= WARM_ROUNDS {
            base = base.max(Usage::now());
        }
        if rounds % 256 == 0 {
            println!("{rounds} rounds, {:?}", Usage::now());
        }
    }
    println!("{rounds} rounds in {:?}: {:?}, after {WARM_ROUNDS} {base:?}", started.elapsed(), Usage::now());
    until("memory, descriptors and mappings are as after the first rounds", || Usage::now().is_within(base));
    if std::env::var("FERROCE_LINK").is_ok_and(|link| link == "udp") {
        // Without the same-host fabric there are no segments.
        return;
    }
    // The next opening removes segments of dead processes, unless other processes have taken their slots.
    drop(device_at(&[ADDRESS]));
    let registry = Registry::open(&default_base()).unwrap();
    let is_left = |slot: &u8| {
        registry.directory().join(format!("slot-{slot}.shm")).exists() && !registry.is_alive(*slot)
    };
    until("the segments of the dead are gone", || !dead.iter().any(is_left));
}
