//! How many connections a second between two processes of one address: measured on demand, not asserted. TCP's connect and
//! accept between the same two processes stands beside it.
//!
//! `cargo test --release -p ferroce-nic --test cm_rate -- --ignored --nocapture`

use ferroce_nic::{
    CmChannel, CmEventKind, CmId, CmTransport, Config, ConnParam, Cq, Nic, Pd, PortSpace, Qp, QpInit,
};
use ferroce_proto::verbs::{QpCap, QpState, Transport};
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

const CONNECTIONS: usize = 10_000;
/// Made one after the other, so that the time of one shows.
const SINGLE: usize = 2_000;
const ADDRESS: &str = "127.0.0.41:0";
/// Set in the process that serves.
const ROLE: &str = "CM_RATE_SERVES";

struct End {
    nic: Nic,
    channel: CmChannel,
    pd: Arc<Pd>,
    cq: Cq,
}

impl End {
    fn new() -> End {
        let addresses = Some(vec!["127.0.0.41".parse().unwrap()]);
        let nic = Nic::open(Config::from_env().unwrap().with(|c| c.addresses = addresses))
            .expect("the device opens");
        let (channel, pd) = (nic.create_cm_channel().unwrap(), nic.alloc_pd().unwrap());
        let cq = nic.create_cq(64, None, 0).unwrap();
        End { nic, channel, pd, cq }
    }

    fn qp(&self) -> Qp {
        let cap =
            QpCap { max_send_wr: 2, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let (send_cq, recv_cq) = (&self.cq, &self.cq);
        let init = QpInit { transport: Transport::Rc, send_cq, recv_cq, srq: None, cap, signal_all: true };
        self.pd.create_qp(&init).unwrap()
    }

    fn routed(&self, to: SocketAddr, cookie: usize) -> Arc<CmId> {
        let id = self.nic.create_cm_id(&self.channel, PortSpace::Tcp, cookie as u64).unwrap();
        id.resolve_addr(None, to).unwrap();
        id.resolve_route().unwrap();
        id
    }

    fn wait_for(&self, kind: CmEventKind, count: usize, mut each: impl FnMut(Arc<CmId>)) {
        let mut seen = 0;
        while seen < count {
            let event = self.channel.wait().unwrap();
            assert!(event.status == 0, "{:?}: {}", event.kind, event.status);
            if event.kind == kind {
                seen += 1;
                each(event.id);
            }
        }
    }
}

fn advance(id: &CmId, qp: &Qp, states: &[QpState]) {
    for state in states {
        let (attr, mask) = id.qp_attributes(*state).unwrap();
        qp.modify(&attr, mask).unwrap();
    }
}

fn param(qp: &Qp) -> ConnParam {
    ConnParam { retry_count: 7, rnr_retry: 7, qpn: qp.qpn(), ..ConnParam::default() }
}

/// Accepts every request, until the parent is gone.
fn serve() {
    let end = End::new();
    let listener = end.nic.create_cm_id(&end.channel, PortSpace::Tcp, 0).unwrap();
    listener.bind(ADDRESS.parse().unwrap()).unwrap();
    listener.listen(4096).unwrap();
    let tcp = TcpListener::bind(ADDRESS).unwrap();
    println!("serves {} {}", listener.local_addr().unwrap(), tcp.local_addr().unwrap());
    std::thread::spawn(move || tcp.incoming().for_each(drop));
    std::thread::spawn(move || {
        let mut kept = std::collections::HashMap::new();
        while let Ok(event) = end.channel.wait() {
            let key = Arc::as_ptr(&event.id) as usize;
            match event.kind {
                CmEventKind::ConnectRequest => {
                    let qp = end.qp();
                    advance(&event.id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
                    event.id.accept(&param(&qp)).unwrap();
                    kept.insert(key, (event.id, qp));
                }
                CmEventKind::Disconnected => {
                    kept.remove(&key);
                }
                _ => {}
            }
        }
    });
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

/// The other process; it ends with its standard input.
fn start_server() -> (Child, SocketAddr, SocketAddr) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["connections_per_second", "--exact", "--ignored", "--nocapture"])
        .env(ROLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let found = lines.into_iter().find_map(|line| {
        let (_, rest) = line.split_once("serves ")?;
        let (cm, tcp) = rest.split_once(' ')?;
        Some((cm.parse().ok()?, tcp.trim().parse().ok()?))
    });
    let (cm, tcp) = found.expect("the other process serves");
    (child, cm, tcp)
}

/// All concurrently: requested, established, ended.
fn all_concurrently(client: &End, to: SocketAddr) {
    let start = Instant::now();
    let connections: Vec<_> = (0..CONNECTIONS).map(|n| (client.routed(to, n), client.qp())).collect();
    println!("  resolved: {:.2} s", start.elapsed().as_secs_f64());
    for (id, qp) in &connections {
        advance(id, qp, &[QpState::Init]);
        id.connect(CmTransport::Rc, &param(qp)).unwrap();
    }
    println!("  requested: {:.2} s", start.elapsed().as_secs_f64());
    client.wait_for(CmEventKind::ConnectResponse, CONNECTIONS, |id| {
        advance(&id, &connections[id.cookie() as usize].1, &[QpState::Rtr, QpState::Rts]);
        id.establish().unwrap();
    });
    println!("  connected: {:.2} s", start.elapsed().as_secs_f64());
    connections.iter().for_each(|(id, _)| id.disconnect().unwrap());
    client.wait_for(CmEventKind::Disconnected, CONNECTIONS, |_| {});
    report("all concurrently", CONNECTIONS, start);
    drop(connections);
    println!("  destroyed: {:.2} s", start.elapsed().as_secs_f64());
}

/// Each established and ended before the next is requested.
fn one_by_one(client: &End, to: SocketAddr) {
    let start = Instant::now();
    for n in 0..SINGLE {
        let (id, qp) = (client.routed(to, n), client.qp());
        advance(&id, &qp, &[QpState::Init]);
        id.connect(CmTransport::Rc, &param(&qp)).unwrap();
        client.wait_for(CmEventKind::ConnectResponse, 1, |id| {
            advance(&id, &qp, &[QpState::Rtr, QpState::Rts]);
            id.establish().unwrap();
        });
        id.disconnect().unwrap();
        client.wait_for(CmEventKind::Disconnected, 1, |_| {});
    }
    report("one by one", SINGLE, start);
}

fn tcp(to: SocketAddr) {
    let start = Instant::now();
    for _ in 0..SINGLE {
        // Reads the end: connected and ended by both, as above.
        TcpStream::connect(to).unwrap().read_to_end(&mut Vec::new()).unwrap();
    }
    report("TCP, one by one", SINGLE, start);
}

fn report(what: &str, connections: usize, start: Instant) {
    let took = start.elapsed().as_secs_f64();
    println!("{what}: {took:.2} s, {:.0} connections a second", connections as f64 / took);
}

#[test]
#[ignore = "a measurement"]
fn connections_per_second() {
    if std::env::var_os(ROLE).is_some() {
        return serve();
    }
    let (mut server, cm_at, tcp_at) = start_server();
    let client = End::new();
    all_concurrently(&client, cm_at);
    one_by_one(&client, cm_at);
    tcp(tcp_at);
    println!("{:?}\n{:?}", client.nic.cm_counters(), client.nic.counters().link);
    drop(server.stdin.take());
    server.wait().unwrap();
}
