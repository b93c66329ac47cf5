//! Two ends of connections, for the tests of the connection manager.
#![allow(dead_code, reason = "each test uses its part")]

use ferroce_nic::{
    CmChannel, CmEvent, CmEventKind, CmId, CmTransport, Config, ConnParam, Cq, Nic, Pd, PortSpace, Qp,
    QpInit, Secret,
};
use ferroce_proto::verbs::{
    Completion, Payload, QpCap, QpState, RecvWr, SendFlags, SendOp, SendWr, Transport, WcStatus,
};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far longer than anything here takes; reached only by a failure.
pub(crate) const MAX_WAIT: Duration = Duration::from_secs(30);

pub(crate) struct End {
    pub(crate) nic: Nic,
    pub(crate) channel: CmChannel,
    pub(crate) pd: Arc<Pd>,
    pub(crate) cq: Cq,
    /// Requests from this network are refused by [`End::next`].
    pub(crate) refused: Option<[u8; 3]>,
}

impl End {
    pub(crate) fn new(addresses: &[&str]) -> End {
        End::with_secret(addresses, None)
    }

    /// One whose connections are all under a key.
    pub(crate) fn with_secret(addresses: &[&str], cm_secret: Option<Secret>) -> End {
        let addresses = Some(addresses.iter().map(|a| a.parse().unwrap()).collect());
        End::with_config(
            Config::from_env().unwrap().with(|c| (c.addresses, c.cm_secret) = (addresses, cm_secret)),
        )
    }

    pub(crate) fn with_config(config: Config) -> End {
        let nic = Nic::open(config).expect("the device opens");
        let channel = nic.create_cm_channel().unwrap();
        let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
        End { nic, channel, pd, cq, refused: None }
    }

    pub(crate) fn id(&self, space: PortSpace) -> Arc<CmId> {
        self.nic.create_cm_id(&self.channel, space, 7).unwrap()
    }

    pub(crate) fn listener(&self, address: &str, backlog: u32) -> Arc<CmId> {
        let id = self.id(PortSpace::Tcp);
        id.bind(address.parse().unwrap()).unwrap();
        id.listen(backlog).unwrap();
        id
    }

    pub(crate) fn qp(&self) -> Qp {
        let cap =
            QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
        let (send_cq, recv_cq) = (&self.cq, &self.cq);
        let init = QpInit { transport: Transport::Rc, send_cq, recv_cq, srq: None, cap, signal_all: true };
        self.pd.create_qp(&init).unwrap()
    }

    #[track_caller]
    pub(crate) fn next(&self, kind: CmEventKind) -> CmEvent {
        let start = Instant::now();
        loop {
            if let Some(event) = self.channel.try_next() {
                if event.kind == CmEventKind::ConnectRequest && self.refuses(&event.id) {
                    event.id.close();
                    continue;
                }
                assert_eq!(event.kind, kind, "status {}", event.status);
                return event;
            }
            assert!(start.elapsed() < MAX_WAIT, "waited in vain for {kind:?}");
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn refuses(&self, id: &CmId) -> bool {
        match (self.refused, id.peer_addr().map(|peer| peer.ip())) {
            (Some(network), Some(IpAddr::V4(ip))) => ip.octets()[..3] == network,
            _ => false,
        }
    }

    /// An id whose route to `to` is resolved.
    pub(crate) fn routed(&self, space: PortSpace, to: SocketAddr) -> Arc<CmId> {
        let id = self.id(space);
        id.resolve_addr(None, to).unwrap();
        assert_eq!(self.next(CmEventKind::AddrResolved).status, 0);
        id.resolve_route().unwrap();
        self.next(CmEventKind::RouteResolved);
        id
    }
}

pub(crate) fn advance(id: &CmId, qp: &Qp, states: &[QpState]) {
    for state in states {
        let (attr, mask) = id.qp_attributes(*state).unwrap();
        qp.modify(&attr, mask).unwrap();
    }
}

pub(crate) fn param(qp: &Qp, private_data: &[u8]) -> ConnParam {
    ConnParam {
        private_data: private_data.to_vec(),
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry: 7,
        qpn: qp.qpn(),
        ..ConnParam::default()
    }
}

#[track_caller]
pub(crate) fn completion(cq: &Cq) -> Completion {
    let (start, mut found) = (Instant::now(), [Completion::default()]);
    while cq.poll(&mut found).unwrap() == 0 {
        assert!(start.elapsed() < MAX_WAIT, "no completion");
    }
    assert_eq!(found[0].status, WcStatus::Success);
    found[0]
}

/// A connection from `a` to the listener of `b`: ids and queue pairs of both.
pub(crate) fn connected(a: &End, b: &End, to: SocketAddr) -> [(Arc<CmId>, Qp); 2] {
    let (id, qp) = (a.routed(PortSpace::Tcp, to), a.qp());
    advance(&id, &qp, &[QpState::Init]);
    id.connect(CmTransport::Rc, &param(&qp, b"hello")).unwrap();

    let request = b.next(CmEventKind::ConnectRequest);
    assert_eq!(&request.conn.private_data[..6], b"hello\0");
    assert_eq!((request.conn.qpn, request.conn.responder_resources), (qp.qpn(), 4));
    assert_eq!(request.id.peer_addr(), id.local_addr());
    assert_eq!(request.id.local_addr(), id.peer_addr());
    let their_qp = b.qp();
    advance(&request.id, &their_qp, &[QpState::Init, QpState::Rtr, QpState::Rts]);
    request.id.accept(&param(&their_qp, b"welcome")).unwrap();

    let response = a.next(CmEventKind::ConnectResponse);
    assert_eq!(&response.conn.private_data[..8], b"welcome\0");
    advance(&id, &qp, &[QpState::Rtr, QpState::Rts]);
    id.establish().unwrap();
    b.next(CmEventKind::Established);
    [(id, qp), (request.id, their_qp)]
}

/// Sends an empty message.
pub(crate) fn post(qp: &Qp) {
    let wr = SendWr {
        wr_id: 2,
        op: SendOp::Send,
        payload: Payload::Inline(&[]),
        flags: SendFlags::SIGNALED,
        ud: None,
        srq: None,
    };
    qp.post_send(&[wr]).unwrap();
}

pub(crate) fn send(from: (&End, &Qp), to: (&End, &Qp)) {
    to.1.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).unwrap();
    post(from.1);
    assert_eq!(completion(&to.0.cq).wr_id, 1);
    assert_eq!(completion(&from.0.cq).wr_id, 2);
}

/// Waits for something that is bound to happen.
#[track_caller]
pub(crate) fn wait_until(mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < MAX_WAIT, "waited in vain");
        std::thread::sleep(Duration::from_micros(200));
    }
}
