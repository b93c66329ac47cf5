//! Asynchronous events: each is raised once, at the right time, and contains its object.

mod support;

use ferroce::{
    AddressVector, AttrMask, EventKind, EventSource, Mtu, QpAttr, QpState, RKey, RemoteRegion, WcStatus, wr,
};
use support::{Pair, Side, V4, event, join, next, success, watched};

#[test]
fn a_refused_access_raises_an_event_at_the_responder() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        a.qp.write_inline(1, b"x", RemoteRegion { addr: 0, len: 1, rkey: RKey(1) }).unwrap();
        a.status(WcStatus::RemAccessErr);
        assert_eq!(event(&b.device, EventKind::QpAccessErr).source, EventSource::Qp(b.qp.qpn()));
        assert_eq!(b.qp.state(), QpState::Err);
    });
}

#[test]
fn an_invalid_request_raises_an_event_at_the_responder() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (old, word) = (a.open_region(8), b.open_region(16));
        let at = word.remote().slice(1..).unwrap();
        a.qp.fetch_add(1, old.sge(..).unwrap(), at, 1).unwrap();
        a.status(WcStatus::RemInvReqErr);
        assert_eq!(event(&b.device, EventKind::QpReqErr).source, EventSource::Qp(b.qp.qpn()));
    });
}

#[test]
fn the_first_message_in_rtr_establishes_communication() {
    watched(|| {
        let side = || Side::new(|pd, cq| pd.rc(cq).address(V4), |qp| qp);
        let (a, b) = (side(), side());
        b.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
        let (ours, theirs) = (b.endpoint(), a.endpoint());
        // Only as far as RTR, by hand.
        let rtr = QpAttr {
            state: QpState::Rtr,
            path_mtu: Mtu::B1024,
            dest_qpn: theirs.qpn,
            rq_psn: theirs.psn,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            av: AddressVector { dgid: theirs.gid, sgid_index: 0, port: 1, ..AddressVector::default() },
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        b.qp.modify(&rtr, mask).unwrap();
        let mut smaller = ours;
        smaller.mtu = Mtu::B1024;
        a.qp.connect(&smaller).unwrap();
        a.qp.send_from(1, &[]).unwrap();
        a.success();
        assert_eq!(event(&b.device, EventKind::CommEst).source, EventSource::Qp(b.qp.qpn()));
        b.success();
    });
}

#[test]
fn a_drained_send_queue_is_announced_if_asked_for() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (local, remote) = (a.open_region(1 << 20), b.open_region(1 << 20));
        for n in 0..8 {
            a.qp.write(n, &[local.sge(..).unwrap()], remote.remote()).unwrap();
        }
        let sqd = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
        a.qp.modify(&sqd, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
        assert_eq!(event(&a.device, EventKind::SqDrained).source, EventSource::Qp(a.qp.qpn()));
        assert_eq!(a.qp.state(), QpState::Sqd);
        // Back in RTS: requests that had not begun are sent.
        let rts = QpAttr { state: QpState::Rts, ..QpAttr::default() };
        a.qp.modify(&rts, AttrMask::STATE).unwrap();
        for n in 0..8 {
            assert_eq!(a.success().wr_id, n);
        }
    });
}

#[test]
fn a_shared_queue_that_runs_low_and_a_queue_pair_that_takes_no_more() {
    watched(|| {
        let device = support::device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let srq = pd.srq(16, 1).unwrap();
        let server = pd.rc(&cq).address(V4).srq(&srq).create().unwrap();
        let client = pd.rc(&cq).address(V4).create().unwrap();
        join(&server, &client);
        let receives: Vec<_> = (10..14).map(|n| wr::recv(n, &[])).collect();
        srq.post_recv(&receives).unwrap();
        srq.arm_limit(3).unwrap();
        let send = || {
            client.send_from(1, &[]).unwrap();
            success(&cq);
            success(&cq);
        };
        send();
        assert!(device.try_event().is_none(), "three are left, which is the limit");
        send();
        assert_eq!(event(&device, EventKind::SrqLimitReached).source, EventSource::Srq(srq.id()));
        assert_eq!(srq.query().limit, 0, "once");
        send();
        assert!(device.try_event().is_none());
        server.close().unwrap();
        assert_eq!(event(&device, EventKind::QpLastWqeReached).source, EventSource::Qp(server.qpn()));
    });
}

#[test]
fn an_overrun_completion_queue_is_announced_and_ends_its_queue_pair() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let small = a.device.create_cq(2).unwrap();
        let (from, to) = (a.pd.rc(&small).create().unwrap(), b.pd.rc(&b.cq).create().unwrap());
        join(&from, &to);
        let remote = b.open_region(8);
        for n in 0..5 {
            // No thread polls the small queue.
            let _ = from.write_inline(n, b"overflow", remote.remote());
        }
        assert_eq!(event(&a.device, EventKind::CqErr).source, EventSource::Cq(small.id()));
        assert_eq!(event(&a.device, EventKind::QpFatal).source, EventSource::Qp(from.qpn()));
        assert_eq!(from.state(), QpState::Err);
        // Completions in the queue can still be polled. After them, the poll reports the overrun.
        next(&small);
        next(&small);
        let error = small.try_next().unwrap_err();
        assert!(matches!(error.refusal(), Some(ferroce::Refusal::CqOverrun { depth: 2 })), "{error}");
    });
}
