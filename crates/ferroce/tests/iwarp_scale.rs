//! Many iWARP connections in one process: set up, used, closed, and small while they are idle.
//!
//! 500 by default; `FERROCE_TEST_STREAMS=10000 cargo test --release -p ferroce --test iwarp_scale -- --nocapture` makes 10,000. Ids share a channel, as
//! in librdmacm, so that a connection takes one descriptor.

#[path = "../../nic/tests/heap_support/mod.rs"]
mod heap_support;
mod support;

use ferroce_nic::{
    CmChannel, CmEvent, CmEventKind, CmId, CmTransport, Config, ConnParam, Cq, Nic, Pd, PortSpace, Qp,
    QpInit, Wire,
};
use ferroce_proto::verbs::{
    Completion, Payload, QpCap, RecvWr, SendFlags, SendOp, SendWr, Transport, WcStatus,
};
use heap_support::live;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;
use support::process::{Peer, parent};
use support::{LOOPBACKS, MAX_WAIT, V4, number, until, watched};

/// Bytes of the heap that a connection holds while it is idle, before and after it was used: id, queue pair, stream.
const MOST: usize = 12 * 1024;

/// Lowers the soft limit of descriptors.
fn set_soft_limit(soft: usize) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(soft as u64), maximum }).unwrap();
}

struct End {
    nic: Nic,
    channel: CmChannel,
    pd: Arc<Pd>,
    cq: Cq,
    connections: Vec<(Arc<CmId>, Qp)>,
    /// Events that came early: the next request may overtake the first message of a connection.
    early: VecDeque<CmEvent>,
}

impl End {
    fn new(connections: usize) -> End {
        let config = Config::default().with(|config| {
            (config.addresses, config.wire) = (Some(LOOPBACKS.to_vec()), Wire::Iwarp);
        });
        let nic = Nic::open(config).unwrap();
        let channel = nic.create_cm_channel().unwrap();
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(4 * connections as u32, None, 0).unwrap());
        End { nic, channel, pd, cq, connections: Vec::new(), early: VecDeque::new() }
    }

    fn qp(&self) -> Qp {
        let cap =
            QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (&self.cq, &self.cq);
        let init = QpInit { transport: Transport::Rc, send_cq, recv_cq, srq: None, cap, signal_all: true };
        let qp = self.pd.create_qp(&init).unwrap();
        qp.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
        qp
    }

    fn listen(&self, backlog: u32) -> Arc<CmId> {
        let listener = self.nic.create_cm_id(&self.channel, PortSpace::Tcp, 0).unwrap();
        listener.bind(SocketAddr::new(V4, 0)).unwrap();
        listener.listen(backlog).unwrap();
        listener
    }

    fn event(&mut self, kind: CmEventKind) -> CmEvent {
        if let Some(at) = self.early.iter().position(|event| event.kind == kind) {
            return self.early.remove(at).unwrap();
        }
        let start = Instant::now();
        loop {
            match self.channel.try_next() {
                Some(event) if event.kind == kind => return event,
                Some(event) => {
                    assert_eq!(event.status, 0, "{:?} instead of {kind:?}", event.kind);
                    self.early.push_back(event);
                }
                None => assert!(start.elapsed() < MAX_WAIT, "waited in vain for {kind:?}"),
            }
            std::thread::yield_now();
        }
    }

    fn connect(&mut self, to: SocketAddr) {
        let id = self.nic.create_cm_id(&self.channel, PortSpace::Tcp, 0).unwrap();
        id.resolve_addr(None, to).unwrap();
        self.event(CmEventKind::AddrResolved);
        id.resolve_route().unwrap();
        self.event(CmEventKind::RouteResolved);
        let qp = self.qp();
        id.connect(CmTransport::Rc, &param(&qp)).unwrap();
        self.event(CmEventKind::Established);
        self.connections.push((id, qp));
    }

    fn accept(&mut self) {
        let request = self.event(CmEventKind::ConnectRequest);
        let qp = self.qp();
        request.id.accept(&param(&qp)).unwrap();
        self.event(CmEventKind::Established);
        self.connections.push((request.id.clone(), qp));
    }

    /// One message on each connection in both directions.
    fn use_all(&self) {
        let flags = SendFlags::SIGNALED;
        let send =
            SendWr { wr_id: 2, op: SendOp::Send, flags, payload: Payload::Sges(&[]), ud: None, srq: None };
        self.connections.iter().for_each(|(_, qp)| qp.post_send(&[send]).unwrap());
        let (start, mut left, mut found) =
            (Instant::now(), 2 * self.connections.len(), [Completion::default(); 16]);
        while left > 0 {
            let count = self.cq.poll(&mut found).unwrap();
            assert!(found[..count].iter().all(|done| done.status == WcStatus::Success));
            assert!(start.elapsed() < MAX_WAIT, "{left} completions are missing");
            left -= count;
        }
    }
}

fn param(qp: &Qp) -> ConnParam {
    ConnParam { responder_resources: 1, initiator_depth: 1, qpn: qp.qpn(), ..ConnParam::default() }
}

fn talk(mut socket: TcpStream, listens: bool) {
    let count = number("FERROCE_TEST_STREAMS").unwrap_or(500) as usize;
    let mut barrier = {
        let mut socket = socket.try_clone().unwrap();
        move || {
            socket.write_all(b".").unwrap();
            socket.read_exact(&mut [0]).unwrap();
        }
    };
    let (mut end, start) = (End::new(count), Instant::now());
    let before = live();
    let heap = || live().checked_sub(before).expect("the heap shrank") / count;
    if listens {
        let listener = end.listen(16);
        socket.write_all(&listener.local_addr().unwrap().port().to_be_bytes()).unwrap();
        (0..count).for_each(|_| end.accept());
    } else {
        let mut port = [0; 2];
        socket.read_exact(&mut port).unwrap();
        let to = SocketAddr::new(V4, u16::from_be_bytes(port));
        (0..count).for_each(|_| end.connect(to));
    }
    let (unused_heap, set_up) = (heap(), start.elapsed());
    barrier();
    end.use_all();
    let used = start.elapsed();
    barrier();
    let used_heap = heap();
    if listens {
        end.connections.iter().for_each(|(id, _)| id.disconnect().unwrap());
    }
    for _ in 0..count {
        end.event(CmEventKind::Disconnected);
    }
    println!(
        "{count} connections: {unused_heap} bytes of the heap each, {used_heap} after use; set up after {set_up:?}, used {used:?}, closed {:?}",
        start.elapsed()
    );
    assert!(
        unused_heap <= MOST,
        "a connection takes {unused_heap} bytes of the heap before its first message"
    );
    assert!(used_heap <= MOST, "a connection takes {used_heap} bytes of the heap after its first message");
    barrier();
}

/// The child accepts all connections, with a soft limit that has to be raised.
#[test]
fn many_streams_are_set_up_used_and_closed() {
    if let Some(socket) = parent() {
        set_soft_limit(64);
        return talk(socket, true);
    }
    watched(|| {
        let peer = Peer::start("many_streams_are_set_up_used_and_closed", V4);
        talk(peer.socket.try_clone().unwrap(), false);
        peer.finish();
    });
}

/// The child lowers its limits. Each bound id has a descriptor.
#[test]
fn descriptors_suffice_up_to_the_hard_limit_and_the_refusal_names_it() {
    const TEST: &str = "descriptors_suffice_up_to_the_hard_limit_and_the_refusal_names_it";
    const SOFT: usize = 64;
    const HARD: usize = 200;
    if parent().is_none() {
        return watched(|| Peer::start(TEST, V4).finish());
    }
    setrlimit(Resource::Nofile, Rlimit { current: Some(SOFT as u64), maximum: Some(HARD as u64) }).unwrap();
    let (end, mut ids) = (End::new(1), Vec::new());
    let refusal = loop {
        let id = end.nic.create_cm_id(&end.channel, PortSpace::Tcp, 0).unwrap();
        match id.bind(SocketAddr::new(V4, 0)) {
            Ok(()) => ids.push(id),
            Err(refusal) => break refusal.to_string(),
        }
        assert!(ids.len() <= HARD, "more descriptors than the hard limit allows");
    };
    assert!(ids.len() > HARD - SOFT, "only {} ids were bound: {refusal}", ids.len());
    assert!(refusal.contains("ulimit -Hn"), "{refusal}");
}

/// The child listens and has few descriptors left. The parent connects, and sends no request.
#[test]
fn connections_that_only_arrive_do_not_raise_the_limit() {
    const SOFT: usize = 512;
    const FREE: usize = 8;
    let Some(mut socket) = parent() else {
        return watched(|| {
            let mut peer = Peer::start("connections_that_only_arrive_do_not_raise_the_limit", V4);
            let mut port = [0; 2];
            peer.socket.read_exact(&mut port).unwrap();
            let to = SocketAddr::new(V4, u16::from_be_bytes(port));
            let _silent: Vec<TcpStream> = (0..4 * FREE).map(|_| TcpStream::connect(to).unwrap()).collect();
            peer.socket.write_all(b".").unwrap();
            peer.finish();
        });
    };
    set_soft_limit(SOFT);
    let end = End::new(1);
    let listener = end.listen(1024);
    let mut files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    files.truncate(files.len() - FREE);
    socket.write_all(&listener.local_addr().unwrap().port().to_be_bytes()).unwrap();
    socket.read_exact(&mut [0]).unwrap();
    let accepted = || end.nic.counters().cm["half_open_now"] as usize;
    until("all free descriptors are used", || accepted() >= FREE);
    // The next one proves that the listener tried again after EMFILE.
    files.pop();
    until("a descriptor that becomes free is used", || accepted() > FREE);
    assert_eq!(getrlimit(Resource::Nofile).current, Some(SOFT as u64));
}
