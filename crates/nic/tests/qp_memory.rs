//! What an idle queue pair costs, counted by the allocator itself.

mod heap_support;

use ferroce_nic::{Config, Cq, Nic, Pd, Qp, QpInit};
use ferroce_proto::verbs::{Access, AddressVector, AttrMask, Mtu, QpAttr, QpCap, QpState, Transport};
use heap_support::live;
use std::sync::Arc;

const COUNT: usize = 2_000;
const LIMIT: usize = 8 * 1024;

fn create(pd: &Arc<Pd>, cq: &Cq) -> Qp {
    let cap =
        QpCap { max_send_wr: 16, max_recv_wr: 16, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 64 };
    pd.create_qp(&QpInit {
        transport: Transport::Rc,
        send_cq: cq,
        recv_cq: cq,
        srq: None,
        cap,
        signal_all: false,
    })
    .unwrap()
}

fn connect(qp: &Qp, to: &Qp, av: AddressVector) {
    use AttrMask as M;
    let attr = QpAttr {
        state: QpState::Init,
        port: 1,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        path_mtu: Mtu::B4096,
        dest_qpn: to.qpn(),
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 12,
        timeout: 14,
        retry_cnt: 7,
        rnr_retry: 7,
        av,
        ..QpAttr::default()
    };
    let rtr = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER;
    let rts = M::SQ_PSN | M::TIMEOUT | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC;
    qp.modify(&attr, M::STATE | M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS).unwrap();
    qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, M::STATE | rtr).unwrap();
    qp.modify(&QpAttr { state: QpState::Rts, ..attr }, M::STATE | rts).unwrap();
}

#[test]
fn an_idle_connected_queue_pair_costs_at_most_8_kib() {
    let address = "127.91.0.1".parse().unwrap();
    let config = Config::from_env().unwrap().with(|c| c.addresses = Some(vec![address]));
    let nic = Nic::open(config).unwrap();
    let pd = nic.alloc_pd().unwrap();
    let cq = nic.create_cq(16, None, 0).unwrap();
    let av = AddressVector { dgid: nic.gids()[0].gid, port: 1, ..AddressVector::default() };
    let mut qps = Vec::with_capacity(COUNT);
    let before = live();
    for _ in 0..COUNT / 2 {
        let (a, b) = (create(&pd, &cq), create(&pd, &cq));
        connect(&a, &b, av);
        connect(&b, &a, av);
        qps.extend([a, b]);
    }
    let each = (live() - before) / COUNT;
    println!("{each} bytes per idle connected RC queue pair with 16-deep queues");
    assert!(each <= LIMIT, "{each} bytes per queue pair, at most {LIMIT} are allowed");
    assert!(qps[0].memory_footprint() <= each, "the footprint a queue pair states is part of what it costs");
}
