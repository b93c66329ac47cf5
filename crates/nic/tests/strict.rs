//! Strict mode does not refuse what hardware allows.

mod objects_support;

use ferroce_nic::{Config, Cq, Error, Nic, Pd, Qp, QpInit, Strict};
use ferroce_proto::LKey;
use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::{
    AttrMask, Completion, Payload, QpAttr, QpCap, QpState, RecvWr, SendFlags, SendOp, SendWr, Sge, Transport,
    WcStatus,
};
use objects_support::{completions, connect};
use std::sync::Arc;

fn open(strict: Strict) -> Nic {
    let addresses = Some(vec!["127.91.61.2".parse().unwrap()]);
    Nic::open(Config::default().with(|config| (config.addresses, config.strict) = (addresses, Some(strict))))
        .unwrap()
}

/// Queues of eight requests.
const CAP: QpCap =
    QpCap { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 8 };

fn create(pd: &Arc<Pd>, cq: &Cq, transport: Transport) -> Qp {
    let init = QpInit { transport, send_cq: cq, recv_cq: cq, srq: None, cap: CAP, signal_all: false };
    pd.create_qp(&init).unwrap()
}

#[test]
fn a_program_that_signals_and_polls_never_meets_a_full_queue() {
    let nic = open(Strict::ConnectX6);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let [a, b] = [(); 2].map(|()| create(&pd, &cq, Transport::Rc));
    connect(&nic, &a, b.qpn());
    connect(&nic, &b, a.qpn());
    // Every eighth is signalled and polled, and so is every receive.
    for round in 0..100u64 {
        for n in 0..8 {
            b.post_recv(&[RecvWr { wr_id: 1, sges: &[] }])
                .unwrap_or_else(|(_, why)| panic!("{round}/{n}: {why}"));
            let flags = if n == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
            a.post_send(&[SendWr { flags, ..EMPTY_SEND }])
                .unwrap_or_else(|(_, why)| panic!("{round}/{n}: {why}"));
        }
        let mut polled = 0;
        while polled < 9 {
            let mut out = [Completion::default(); 16];
            polled += cq.poll(&mut out).unwrap();
        }
    }
    // A ninth in a row would be refused.
    let refused = (0..9).find_map(|n| a.post_send(&[EMPTY_SEND]).err().map(|(_, why)| (n, why.to_string())));
    assert!(refused.as_ref().is_some_and(|(n, why)| *n == 8 && why.contains("max_send_wr 8")), "{refused:?}");
}

const EMPTY_SEND: SendWr<'_> = SendWr {
    wr_id: 3,
    op: SendOp::Send,
    payload: Payload::Inline(&[]),
    flags: SendFlags::empty(),
    ud: None,
    srq: None,
};

#[test]
fn a_send_queue_that_starts_again_after_an_error_is_empty() {
    let nic = open(Strict::AnyNic);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let qp = create(&pd, &cq, Transport::Uc);
    connect(&nic, &qp, qp.qpn());
    for _ in 0..7 {
        qp.post_send(&[EMPTY_SEND]).unwrap();
    }
    let payload = Payload::Sges(&[Sge { addr: 0, len: 1, lkey: LKey(0) }]);
    qp.post_send(&[SendWr { payload, ..EMPTY_SEND }]).unwrap();
    assert_eq!(completions(&cq, 1)[0].status, WcStatus::LocProtErr);
    assert_eq!(qp.query().state, QpState::Sqe);
    qp.modify(&QpAttr { state: QpState::Rts, ..QpAttr::default() }, AttrMask::STATE).unwrap();
    for n in 0..8 {
        qp.post_send(&[EMPTY_SEND]).unwrap_or_else(|(_, why)| panic!("{n}: {why}"));
    }
    assert!(qp.post_send(&[EMPTY_SEND]).is_err());
}

#[test]
fn a_receive_that_belongs_into_a_shared_queue_is_refused_as_such() {
    let nic = open(Strict::AnyNic);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let send_cq = nic.create_cq(64, None, 0).unwrap();
    let srq = pd.create_srq(8, 1).unwrap();
    let own = QpInit {
        transport: Transport::Rc,
        send_cq: &send_cq,
        recv_cq: &cq,
        srq: None,
        cap: QpCap { max_recv_wr: 1, ..CAP },
        signal_all: true,
    };
    let qps = [Some(&srq), None].map(|srq| pd.create_qp(&QpInit { srq, ..own }).unwrap());
    qps.iter().for_each(|qp| connect(&nic, qp, qp.qpn()));
    let recv = RecvWr { wr_id: 1, sges: &[] };
    srq.post_recv(&[recv]).unwrap();
    qps[1].post_recv(&[recv]).unwrap();
    for qp in &qps {
        qp.post_send(&[EMPTY_SEND]).unwrap();
        // The completion of the receive waits too.
        assert_eq!(completions(&send_cq, 1)[0].status, WcStatus::Success);
    }
    let refusal = |n: usize, wr| match qps[n].post_recv(&[wr]) {
        Err((0, Error::Post(why))) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(refusal(0, recv), PostError::HasSharedQueue);
    assert!(matches!(refusal(1, recv), PostError::RecvNotPolled { depth: 1, posted: 0, unpolled: 1 }));
    let none = Sge { addr: 0, len: 0, lkey: LKey(0) };
    let too_many = RecvWr { wr_id: 1, sges: &[none; 2] };
    assert!(matches!(refusal(1, too_many), PostError::TooManySges { given: 2, max: 1 }));
}

#[test]
fn the_attributes_are_those_of_the_device() {
    let attr = open(Strict::ConnectX6).attributes();
    assert_eq!(
        (attr.max_qp_wr, attr.max_sge, attr.max_rd_atomic, attr.max_inline_data),
        (32_768, 30, 16, 828)
    );
}

#[test]
fn a_shared_receive_is_free_when_its_completion_is_polled_or_its_queue_pair_is_gone() {
    let nic = open(Strict::AnyNic);
    let (pd, cq) = (nic.alloc_pd().unwrap(), nic.create_cq(64, None, 0).unwrap());
    let (srq, sent) = (pd.create_srq(2, 1).unwrap(), nic.create_cq(64, None, 0).unwrap());
    let init = QpInit {
        transport: Transport::Rc,
        send_cq: &sent,
        recv_cq: &cq,
        srq: Some(&srq),
        cap: CAP,
        signal_all: true,
    };
    let [a, b] = [(); 2].map(|()| pd.create_qp(&init).unwrap());
    connect(&nic, &a, b.qpn());
    connect(&nic, &b, a.qpn());
    let post = || srq.post_recv(&[RecvWr { wr_id: 1, sges: &[] }]).map_err(|(_, why)| why);
    let send = || {
        a.post_send(&[EMPTY_SEND]).unwrap();
        completions(&sent, 1);
    };
    for _ in 0..10 {
        post().unwrap();
        send();
        completions(&cq, 1);
    }
    for _ in 0..2 {
        post().unwrap();
        send();
    }
    assert!(matches!(post(), Err(Error::Post(PostError::SrqNotPolled { depth: 2, posted: 0, unpolled: 2 }))));
    drop(b);
    post().unwrap();
    post().unwrap();
}
