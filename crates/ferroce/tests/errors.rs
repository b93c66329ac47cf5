//! Every error results in the documented status, with its reason.

mod support;

use ferroce::{Access, LKey, Outcome, PostError, QpState, RKey, Reason, RemoteRegion, Sge, WcStatus, wr};
use support::{Pair, V4, join, next, pattern, post_error, success, until, watched};

/// One access by the peer that must be refused, whatever it is.
fn refused(target: impl Fn(&support::Side<ferroce::Rc>) -> RemoteRegion) {
    for read in [false, true] {
        let Pair { a, b } = Pair::rc(V4);
        let local = a.open_region(64);
        let target = target(&b);
        let sge = [local.sge(..16).unwrap()];
        match read {
            true => a.qp.read(1, &sge, target).unwrap(),
            false => a.qp.write(1, &sge, target).unwrap(),
        }
        let failed = a.status(WcStatus::RemAccessErr);
        let error = failed.ok().unwrap_err();
        assert_eq!((error.wr_id, error.reason), (1, Some(Reason::PeerRefusesAccess)));
        assert!(error.to_string().contains("wrong rkey"), "{error}");
        assert_eq!(a.qp.state(), QpState::Err);
    }
}

#[test]
fn a_key_that_was_made_up() {
    watched(|| {
        refused(|b| {
            let region = b.open_region(64);
            RemoteRegion { rkey: RKey(!region.rkey().0), ..region.remote() }
        });
    });
}

#[test]
fn a_local_key_is_no_remote_key() {
    watched(|| {
        refused(|b| {
            let region = b.open_region(64);
            assert_ne!(region.lkey().0, region.rkey().0);
            RemoteRegion { rkey: RKey(region.lkey().0), ..region.remote() }
        });
    });
}

#[test]
fn a_region_that_is_gone() {
    watched(|| refused(|b| b.open_region(64).remote()));
}

#[test]
fn out_of_range_at_both_ends_and_around_the_address_space() {
    watched(|| {
        for offset in [-1i64, 49, 64, i64::MIN, i64::MAX, -16] {
            refused(move |b| {
                // Kept until the process ends: the key must be valid, only the address is wrong.
                let region = Box::leak(Box::new(b.open_region(64))).remote();
                RemoteRegion { addr: region.addr.wrapping_add_signed(offset), ..region }
            });
        }
        refused(|b| {
            let region =
                Box::leak(Box::new(b.pd.region(64).access(Access::all()).register().unwrap())).remote();
            RemoteRegion { addr: u64::MAX - 7, ..region }
        });
    });
}

#[test]
fn another_protection_domain() {
    watched(|| {
        refused(|b| {
            let stranger = b.device.alloc_pd().unwrap();
            let region = stranger.region(64).remote_read().remote_write().register().unwrap();
            Box::leak(Box::new(region)).remote()
        });
    });
}

#[test]
fn a_right_that_the_region_does_not_grant() {
    watched(|| refused(|b| Box::leak(Box::new(b.pd.region(64).register().unwrap())).remote()));
}

#[test]
fn a_right_that_the_queue_pair_does_not_grant() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.access(Access::REMOTE_READ));
        let (local, remote) = (a.open_region(64), b.open_region(64));
        let sge = [local.sge(..).unwrap()];
        a.qp.read(1, &sge, remote.remote()).unwrap();
        a.success();
        a.qp.write(2, &sge, remote.remote()).unwrap();
        a.status(WcStatus::RemAccessErr);
    });
}

#[test]
fn refused_writes_touch_nothing() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (local, remote) = (a.open_region(20_000), b.open_region(10_000));
        local.fill(0xff);
        a.qp.write(1, &[local.sge(..10_001).unwrap()], remote.remote()).unwrap();
        a.status(WcStatus::RemAccessErr);
        assert!(remote.to_vec().iter().all(|b| *b == 0), "the first packets of a refused WRITE were placed");
    });
}

#[test]
fn a_misaligned_atomic_is_invalid() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (old, word) = (a.open_region(8), b.open_region(64));
        let at = word.remote().slice(4..).unwrap();
        a.qp.fetch_add(1, old.sge(..).unwrap(), at, 1).unwrap();
        assert_eq!(a.status(WcStatus::RemInvReqErr).ok().unwrap_err().reason, Some(Reason::PeerSaysInvalid));
        assert!(word.to_vec().iter().all(|b| *b == 0));
    });
}

#[test]
fn an_atomic_needs_eight_bytes() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (old, word) = (a.open_region(64), b.open_region(64));
        a.qp.fetch_add(1, old.sge(..9).unwrap(), word.remote(), 1).unwrap();
        assert_eq!(a.status(WcStatus::LocLenErr).ok().unwrap_err().reason, Some(Reason::AtomicLength));
    });
}

#[test]
fn reads_need_resources() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.rd_atomic(0));
        let (local, remote) = (a.open_region(64), b.open_region(64));
        a.qp.read(1, &[local.sge(..).unwrap()], remote.remote()).unwrap();
        assert_eq!(a.status(WcStatus::LocQpOpErr).ok().unwrap_err().reason, Some(Reason::NoReadResources));
    });
}

#[test]
fn a_missing_receive_uses_up_the_rnr_retries() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.rnr_retries(2));
        a.qp.send_inline(1, b"no recv!").unwrap();
        let error = a.status(WcStatus::RnrRetryExcErr).ok().unwrap_err();
        assert_eq!(error.reason, Some(Reason::RnrRetriesUsedUp));
        assert_eq!(a.qp.counters().rnr_received, 3, "the first try and two more");
        assert_eq!(b.qp.state(), QpState::Rts, "the receiver has done nothing wrong");
    });
}

#[test]
fn a_late_receive_is_waited_for() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let to = b.open_region(64);
        a.qp.send_inline(1, b"no recv!").unwrap();
        until("the sender gets an RNR NAK", || {
            let _ = (a.cq.try_next(), b.cq.try_next());
            a.qp.counters().rnr_received > 2
        });
        b.qp.post_recv(&[wr::recv(1, &[to.sge(..).unwrap()])]).unwrap();
        assert_eq!((a.success().wr_id, b.success().byte_len), (1, 8));
    });
}

#[test]
fn a_receive_too_small() {
    watched(|| {
        for len in [65u64, 5000, 100_000] {
            let Pair { a, b } = Pair::rc(V4);
            let (from, to) = (a.open_region(100_000), b.open_region(8192));
            from.fill(0xff);
            b.qp.post_recv(&[wr::recv(7, &[to.sge(..64).unwrap()])]).unwrap();
            a.qp.send_from(1, &[from.sge(..len).unwrap()]).unwrap();
            let failed = b.status(WcStatus::LocLenErr);
            assert_eq!((failed.wr_id, failed.ok().unwrap_err().reason), (7, Some(Reason::ReceiveTooSmall)));
            a.status(WcStatus::RemInvReqErr);
            assert!(to.to_vec()[64..].iter().all(|b| *b == 0), "something was written behind the receive");
        }
    });
}

#[test]
fn a_dead_peer_uses_up_the_retries() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.timeout(10).retries(3));
        drop(b);
        let local = a.open_region(64);
        a.qp.send_from(1, &[local.sge(..).unwrap()]).unwrap();
        a.qp.send_from(2, &[local.sge(..).unwrap()]).unwrap();
        let error = a.status(WcStatus::RetryExcErr).ok().unwrap_err();
        assert_eq!((error.wr_id, error.reason), (1, Some(Reason::RetriesUsedUp)));
        assert_eq!(a.status(WcStatus::WrFlushErr).wr_id, 2);
        assert!(a.qp.counters().timeouts >= 3);
    });
}

#[test]
fn local_memory_that_is_not_registered() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        b.qp.post_recv(&[wr::recv(1, &[])]).unwrap();
        let nowhere = Sge { addr: 0x1000, len: 8, lkey: LKey(0x1234_5678) };
        a.qp.send_from(1, &[nowhere]).unwrap();
        let error = a.status(WcStatus::LocProtErr).ok().unwrap_err();
        assert_eq!(error.reason, Some(Reason::LocalMemory));
    });
}

#[test]
fn local_memory_of_another_protection_domain_or_out_of_range() {
    watched(|| {
        let broken: [fn(&support::Side<ferroce::Rc>) -> Sge; 3] = [
            |a| {
                let stranger = a.device.alloc_pd().unwrap();
                Box::leak(Box::new(stranger.region(64).register().unwrap())).sge(..).unwrap()
            },
            |a| {
                let good = Box::leak(Box::new(a.open_region(64))).sge(..).unwrap();
                Sge { len: 65, ..good }
            },
            |a| {
                let good = Box::leak(Box::new(a.open_region(64))).sge(..).unwrap();
                Sge { addr: good.addr.wrapping_sub(1), ..good }
            },
        ];
        for sge in broken {
            let Pair { a, b } = Pair::rc(V4);
            let remote = b.open_region(128);
            a.qp.write(1, &[sge(&a)], remote.remote()).unwrap();
            a.status(WcStatus::LocProtErr);
        }
    });
}

#[test]
fn a_receive_into_memory_that_may_not_be_written() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let sealed = b.pd.region(64).access(Access::empty()).register().unwrap();
        b.qp.post_recv(&[wr::recv(9, &[sealed.sge(..).unwrap()])]).unwrap();
        a.qp.send_inline(1, b"no entry").unwrap();
        assert_eq!(b.status(WcStatus::LocProtErr).wr_id, 9);
        a.status(WcStatus::RemOpErr);
        assert!(sealed.to_vec().iter().all(|b| *b == 0));
    });
}

#[test]
fn a_read_into_memory_that_may_not_be_written() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let sealed = a.pd.region(64).access(Access::empty()).register().unwrap();
        let remote = b.open_region(64);
        remote.fill(1);
        a.qp.read(1, &[sealed.sge(..).unwrap()], remote.remote()).unwrap();
        a.status(WcStatus::LocProtErr);
        assert!(sealed.to_vec().iter().all(|b| *b == 0));
    });
}

#[test]
fn a_full_queue_refuses_and_says_so() {
    watched(|| {
        let Pair { a, b } = Pair::rc_with(V4, |qp| qp.depth(4, 3));
        let receives: Vec<_> = (0..5).map(|n| wr::recv(n, &[])).collect();
        let error = b.qp.post_recv(&receives).unwrap_err();
        assert_eq!(post_error(&error), Some(PostError::QueueFull { depth: 3 }));
        assert!(matches!(error, ferroce::Error::Post { taken: 3, .. }), "{error}");
        // The peer has three receives, so the fourth send does not complete. The send queue has four entries.
        let sends: Vec<_> = (0..8).map(|n| wr::send(n, &[])).collect();
        let error = a.qp.post_send(&sends).unwrap_err();
        assert_eq!(post_error(&error), Some(PostError::QueueFull { depth: 4 }));
        assert!(matches!(error, ferroce::Error::Post { taken: 4, .. }), "{error}");
        for n in 0..3 {
            assert_eq!((a.success().wr_id, b.success().wr_id), (n, n));
        }
    });
}

#[test]
fn wrong_calls_name_the_attribute() {
    watched(|| {
        let device = support::device();
        let (pd, cq) = (device.alloc_pd().unwrap(), device.create_cq(16).unwrap());
        let text = |error: ferroce::Error| error.to_string();
        assert!(text(device.create_cq(0).err().unwrap()).starts_with("create_cq: cqe"));
        assert!(
            text(pd.rc(&cq).depth(1 << 20, 1).create().err().unwrap()).contains("max_send_wr is 1048576")
        );
        assert!(text(pd.rc(&cq).sges(33, 1).create().err().unwrap()).contains("max_send_sge is 33"));
        assert!(text(pd.rc(&cq).inline(1 << 20).create().err().unwrap()).contains("max_inline_data"));
        assert!(text(pd.region(0).register().err().unwrap()).starts_with("register: length"));
        let rights = Access::REMOTE_WRITE;
        assert!(text(pd.region(8).access(rights).register().err().unwrap()).starts_with("register: access"));
        assert!(
            text(pd.rc(&cq).gid_index(99).create().unwrap().endpoint().unwrap_err())
                .contains("sgid_index is 99")
        );
        let other = support::device();
        let foreign = other.create_cq(16).unwrap();
        assert!(text(pd.rc(&foreign).create().err().unwrap()).contains("send_cq: belongs to another device"));
        let region = pd.region(16).register().unwrap();
        assert!(matches!(
            region.read(10, &mut [0; 7]),
            Err(ferroce::Error::Range { start: 10, end: 17, len: 16 })
        ));
        assert!(matches!(region.load_u64(4), Err(ferroce::Error::Misaligned { offset: 4 })));
        assert!(region.sge(17..).is_err() && region.sge(0..=16).is_err());
        let qp = pd.rc(&cq).create().unwrap();
        let owned = wr::recv(1 << 63, &[]);
        assert!(text(qp.post_recv(&[owned]).unwrap_err()).contains("wr_id: the highest bit"));
        assert_eq!(
            post_error(&qp.send_from(1, &[]).unwrap_err()),
            Some(PostError::WrongState(QpState::Init))
        );
        let too_long = [0; 65];
        let Pair { a, .. } = Pair::rc(V4);
        let error = a.qp.send_inline(1, &too_long).unwrap_err();
        assert_eq!(post_error(&error), Some(PostError::InlineTooLong { given: 65, max: 64 }));
        let sges = vec![Sge::default(); 5];
        let error = a.qp.send_from(1, &sges).unwrap_err();
        assert_eq!(post_error(&error), Some(PostError::TooManySges { given: 5, max: 4 }));
    });
}

#[test]
fn everything_outstanding_is_flushed_in_order() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        let (local, remote) = (a.open_region(64), b.open_region(64));
        a.qp.post_recv(&[wr::recv(100, &[]), wr::recv(101, &[])]).unwrap();
        let wrong = RemoteRegion { rkey: RKey(!remote.rkey().0), ..remote.remote() };
        let sge = [local.sge(..8).unwrap()];
        let list = [
            wr::write(1, &sge, remote.remote()),
            wr::write(2, &sge, wrong),
            wr::write(3, &sge, remote.remote()),
            wr::read(4, &sge, remote.remote()),
        ];
        a.qp.post_send(&list).unwrap();
        let ends: Vec<_> = (0..6).map(|_| next(&a.cq)).map(|c| (c.wr_id, c.status)).collect();
        let flushed = WcStatus::WrFlushErr;
        let expected = [
            (1, WcStatus::Success),
            (2, WcStatus::RemAccessErr),
            (3, flushed),
            (4, flushed),
            (100, flushed),
            (101, flushed),
        ];
        assert_eq!(ends, expected);
        // Requests that are posted in this state are flushed immediately.
        a.qp.send_from(5, &[]).unwrap();
        a.qp.post_recv(&[wr::recv(102, &[])]).unwrap();
        assert_eq!(a.status(flushed).wr_id, 5);
        assert_eq!(a.status(flushed).wr_id, 102);
    });
}

#[test]
fn the_device_goes_on_after_a_failed_connection() {
    watched(|| {
        let Pair { a, b } = Pair::rc(V4);
        a.qp.write(1, &[], RemoteRegion { addr: 0, len: 0, rkey: RKey(0) }).unwrap();
        a.success(); // no bytes, no check (IBA 9.7.4.1.5)
        a.qp.write_inline(2, b"x", RemoteRegion { addr: 0, len: 1, rkey: RKey(0) }).unwrap();
        a.status(WcStatus::RemAccessErr);
        let (second, third) = (a.pd.rc(&a.cq).create().unwrap(), b.pd.rc(&b.cq).create().unwrap());
        join(&second, &third);
        let to = b.open_region(16);
        second.write_inline(3, &pattern(1, 16), to.remote()).unwrap();
        assert_eq!(success(&a.cq).wr_id, 3);
        assert_eq!(to.to_vec(), pattern(1, 16));
    });
}
