//! Completion queues, shared receive queues and registrations.

mod support;

use ferroce::{Access, AttrMask, Error, Outcome, QpAttr, QpState, WcStatus, wr};
use support::{Pair, V4, join, pattern, success, watched};

#[test]
fn a_completion_queue_can_be_resized_while_it_holds_completions() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let cq = a.device.create_cq(4).unwrap();
        let (from, to) = (a.pd.rc(&cq).create().unwrap(), b.pd.rc(&b.cq).create().unwrap());
        join(&from, &to);
        let remote = b.open_region(8);
        let post = |range: std::ops::Range<u64>| {
            for n in range {
                from.write_inline(n, b"resizing", remote.remote()).unwrap();
            }
        };
        post(0..4);
        let outstanding = || {
            let reports = a.device.counters().queue_pairs;
            reports.iter().find(|r| r.qpn == from.qpn().value()).map(|r| r.sends_outstanding)
        };
        support::until("all four are done", || outstanding() == Some(0));
        assert!(cq.resize(3).is_err(), "four completions do not fit");
        cq.resize(64).unwrap();
        post(4..40);
        for n in 0..40 {
            assert_eq!(success(&cq).wr_id, n);
        }
        cq.resize(1).unwrap();
        assert_eq!(cq.depth(), 1);
        post(40..41);
        assert_eq!(success(&cq).wr_id, 40);
    });
}

#[test]
fn two_queues_keep_sends_and_receives_apart() {
    watched(|| {
        let device = support::device();
        let pd = device.alloc_pd().unwrap();
        let (sends, recvs) = (device.create_cq(16).unwrap(), device.create_cq(16).unwrap());
        let make = || pd.rc(&sends).recv_cq(&recvs).create().unwrap();
        let (a, b) = (make(), make());
        join(&a, &b);
        b.post_recv(&[wr::recv(1, &[])]).unwrap();
        a.send_from(2, &[]).unwrap();
        assert_eq!((success(&sends).wr_id, success(&recvs).wr_id), (2, 1));
    });
}

#[test]
fn a_shared_receive_queue_serves_many_in_the_order_of_posting() {
    watched(|| {
        let device = support::device();
        let pd = device.alloc_pd().unwrap();
        let (cq, clients_cq) = (device.create_cq(256).unwrap(), device.create_cq(256).unwrap());
        let srq = pd.srq(64, 1).unwrap();
        let pairs: Vec<_> = (0..8)
            .map(|_| {
                let server = pd.rc(&cq).srq(&srq).create().unwrap();
                let client = pd.rc(&clients_cq).create().unwrap();
                join(&server, &client);
                (server, client)
            })
            .collect();
        let region = pd.region(64 * 64).register().unwrap();
        for n in 0..64 {
            srq.post_recv(&[wr::recv(n, &[region.sge(n * 64..(n + 1) * 64).unwrap()])]).unwrap();
        }
        let error = srq.post_recv(&[wr::recv(99, &[])]).unwrap_err();
        assert_eq!(support::post_error(&error), Some(ferroce::PostError::QueueFull { depth: 64 }));
        for round in 0..8u8 {
            for (i, (server, client)) in pairs.iter().enumerate() {
                client.send_inline(0, &[round, i as u8]).unwrap();
                success(&clients_cq);
                let got = success(&cq);
                assert_eq!((got.qpn, got.wr_id), (server.qpn(), u64::from(round) * 8 + i as u64));
                assert_eq!(region.to_vec()[got.wr_id as usize * 64..][..2], [round, i as u8]);
            }
        }
        let refused = pairs[0].0.post_recv(&[wr::recv(1, &[])]).unwrap_err();
        assert_eq!(support::post_error(&refused), Some(ferroce::PostError::HasSharedQueue));
        srq.resize(4).unwrap();
        assert_eq!(srq.query().max_wr, 4);
    });
}

#[test]
fn owned_receives_of_a_shared_queue_come_back_from_flushing_too() {
    watched(|| {
        let device = support::device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(64).unwrap());
        let srq = pd.srq(4, 1).unwrap();
        let (server, client) = (pd.rc(&cq).srq(&srq).create().unwrap(), pd.rc(&cq).create().unwrap());
        join(&server, &client);
        srq.recv(pd.buffer(8).unwrap()).unwrap();
        srq.recv(pd.buffer(100).unwrap()).unwrap();
        let mut long = pd.buffer(50).unwrap();
        long.fill(7);
        let sent = client.send(long).unwrap();
        // The first one is too small. It is returned with that error.
        let done = cq.wait_shared_timeout(support::MAX_WAIT).unwrap();
        assert_eq!(done.completion.status, WcStatus::LocLenErr);
        assert_eq!(done.buffer.capacity(), 8);
        assert_eq!(sent.settle().unwrap().completion.status, WcStatus::RemInvReqErr);
    });
}

#[test]
fn reregistration_changes_rights_and_keys() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (local, mut remote) = (a.open_region(64), b.open_region(64));
        local.write(0, &pattern(1, 64)).unwrap();
        let sge = [local.sge(..).unwrap()];
        let before = remote.remote();
        remote.reregister(Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
        let after = remote.remote();
        assert_ne!(before.rkey, after.rkey);
        a.qp.write(1, &sge, after).unwrap();
        a.success();
        assert_eq!(remote.to_vec(), pattern(1, 64));
        a.qp.read(2, &sge, after).unwrap();
        a.status(WcStatus::RemAccessErr);

        // The old key is invalid although the memory is the same.
        let Pair { a, b } = Pair::rc(V4);
        let (local, mut remote) = (a.open_region(64), b.open_region(64));
        let before = remote.remote();
        remote.reregister(remote.access()).unwrap();
        a.qp.write(1, &[local.sge(..).unwrap()], before).unwrap();
        a.status(WcStatus::RemAccessErr);

        // And the domain can change.
        let other = b.device.alloc_pd().unwrap();
        remote.move_to(&other).unwrap();
        assert_eq!(remote.pd().id(), other.id());
        let clone = remote.clone();
        assert!(remote.move_to(&b.pd).is_err(), "clones would keep the old keys");
        drop(clone);
        remote.move_to(&b.pd).unwrap();
        assert!(remote.move_to(&a.pd).is_err(), "another device");
    });
}

#[test]
fn reset_fails_owned_operations() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let received = b.qp.recv(b.pd.buffer(64).unwrap()).unwrap();
        b.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
        b.qp.modify(&QpAttr { state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE).unwrap();
        assert!(matches!(received.wait(), Err(Error::Gone)));
        assert_eq!(b.cq.try_next().unwrap(), None);
        assert_eq!(b.qp.state(), QpState::Reset);
        drop(a);
    });
}

#[test]
fn closing_flushes_owned_operations_and_returns_their_buffers() {
    watched(|| {
        let Pair { a, .. } = Pair::rc(V4);
        let receives: Vec<_> = (0..4).map(|n| a.qp.recv(a.pd.buffer(10 + n).unwrap()).unwrap()).collect();
        a.qp.close().unwrap();
        for (n, received) in receives.into_iter().enumerate() {
            let done = received.settle().unwrap();
            assert_eq!((done.completion.status, done.buffer.capacity()), (WcStatus::WrFlushErr, 10 + n));
            assert!(done.completion.ok().unwrap_err().to_string().contains("error state"));
        }
    });
}

#[test]
fn a_refused_post_leaves_the_buffer_with_the_caller() {
    watched(|| {
        let device = support::device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(4).unwrap());
        let qp = pd.rc(&cq).depth(1, 1).create().unwrap();
        let mut buffer = pd.buffer(8).unwrap();
        buffer.set(b"precious").unwrap();
        // Without a connection, sends are refused.
        let refused = qp.send(buffer).err().unwrap();
        assert_eq!(&*refused.buffer, b"precious");
        let _first = qp.recv(refused.buffer).unwrap();
        let refused = qp.recv(pd.buffer(9).unwrap()).err().unwrap();
        assert_eq!(refused.buffer.capacity(), 9);
        assert!(refused.to_string().contains("the queue is full"), "{refused}");
    });
}

#[test]
fn attributes_are_what_was_set() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| {
            qp.timeout(9)
                .retries(3)
                .rnr_retries(5)
                .min_rnr_timer(12)
                .rd_atomic(4)
                .mtu(ferroce::Mtu::B512)
                .depth(7, 9)
        });
        let attr = a.qp.query();
        assert_eq!(attr.state, QpState::Rts);
        assert_eq!((attr.timeout, attr.retry_cnt, attr.rnr_retry, attr.min_rnr_timer), (9, 3, 5, 12));
        assert_eq!((attr.max_rd_atomic, attr.max_dest_rd_atomic), (4, 4));
        assert_eq!((attr.path_mtu, attr.dest_qpn), (ferroce::Mtu::B512, b.qp.qpn()));
        assert_eq!((attr.sq_psn, attr.rq_psn), (a.endpoint().psn, b.endpoint().psn));
        assert!(attr.cap.max_send_wr >= 7 && attr.cap.max_recv_wr >= 9);
        assert_eq!(attr.av.dgid, b.endpoint().gid);
    });
}
