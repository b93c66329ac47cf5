//! How many connections a second: measured on demand, not asserted.
//!
//! `cargo test --release -p ferroce-nic --test cm_rate -- --ignored --nocapture`

use ferroce_nic::{
    CmChannel, CmEventKind, CmId, CmTransport, Config, ConnParam, Cq, Nic, Pd, PortSpace, Qp, QpInit,
};
use ferroce_proto::verbs::{QpCap, QpState, Transport};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

const CONNECTIONS: usize = 10_000;

struct End {
    nic: Nic,
    channel: CmChannel,
    pd: Arc<Pd>,
    cq: Cq,
}

impl End {
    fn new() -> End {
        let addresses = Some(vec!["127.0.0.41".parse().unwrap()]);
        let nic = Nic::open(Config { addresses, ..Config::default() }).expect("the device opens");
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

/// Takes every offer, and counts ends until all connections had theirs.
fn serve(end: &End) {
    let (mut kept, mut ended) = (Vec::new(), 0);
    while ended < CONNECTIONS {
        let event = end.channel.wait().unwrap();
        match event.kind {
            CmEventKind::ConnectRequest => {
                let qp = end.qp();
                advance(&event.id, &qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
                event.id.accept(&param(&qp)).unwrap();
                kept.push((event.id, qp));
            }
            CmEventKind::Disconnected => ended += 1,
            _ => {}
        }
    }
}

fn wait_for(end: &End, kind: CmEventKind, mut each: impl FnMut(Arc<CmId>)) {
    let mut count = 0;
    while count < CONNECTIONS {
        let event = end.channel.wait().unwrap();
        if event.kind == kind {
            count += 1;
            each(event.id);
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn connections_per_second() {
    let (client, server) = (End::new(), End::new());
    let listener = server.nic.create_cm_id(&server.channel, PortSpace::Tcp, 0).unwrap();
    listener.bind("127.0.0.41:0".parse().unwrap()).unwrap();
    listener.listen(4096).unwrap();
    let to: SocketAddr = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| serve(&server));
        let start = Instant::now();
        let connections: Vec<(Arc<CmId>, Qp)> = (0..CONNECTIONS)
            .map(|n| {
                let id = client.nic.create_cm_id(&client.channel, PortSpace::Tcp, n as u64).unwrap();
                id.resolve_addr(None, to).unwrap();
                id.resolve_route().unwrap();
                (id, client.qp())
            })
            .collect();
        println!("{CONNECTIONS} resolved: {:.2} s", start.elapsed().as_secs_f64());
        for (id, qp) in &connections {
            advance(id, qp, &[QpState::Init]);
            id.connect(CmTransport::Rc, &param(qp)).unwrap();
        }
        wait_for(&client, CmEventKind::ConnectResponse, |id| {
            advance(&id, &connections[id.cookie() as usize].1, &[QpState::Rtr, QpState::Rts]);
            id.establish().unwrap();
        });
        println!("connected: {:.2} s", start.elapsed().as_secs_f64());
        connections.iter().for_each(|(id, _)| id.disconnect().unwrap());
        wait_for(&client, CmEventKind::Disconnected, |_| {});
        let took = start.elapsed().as_secs_f64();
        println!("disconnected: {took:.2} s, {:.0} connections a second", CONNECTIONS as f64 / took);
    });
    println!("client: {:?}\nserver: {:?}", client.nic.cm_counters(), server.nic.cm_counters());
}
