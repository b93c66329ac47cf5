//! Memory windows: the accessible bytes, the permitted queue pair, and invalidation.

mod support;

use ferroce::{
    Access, Error, MemoryWindow, Rc, Refusal, Region, RemoteRegion, Type1, Type2, WcOpcode, WcStatus,
};
use support::{Pair, Side, V4, join, watched};

const REMOTE: Access = Access::REMOTE;

/// Two sides, a region of `b` that only windows open, and a region of `a` to write from.
fn setup() -> (Pair<Rc>, Region, Region) {
    let pair = Pair::rc(V4);
    let target = pair.b.pd.region(4096).bind_windows().register().unwrap();
    let source = pair.a.pd.region(4096).register().unwrap();
    source.fill(9);
    (pair, source, target)
}

/// The status of a WRITE of `a` into the first bytes of `to`.
fn write(a: &Side<Rc>, source: &Region, to: RemoteRegion, len: u64) -> WcStatus {
    a.qp.write(1, &[source.sge(..len).unwrap()], to).unwrap();
    support::next(&a.cq).status
}

#[test]
fn a_window_of_type_1_opens_its_bytes_until_it_is_unbound() {
    watched(|| {
        let (Pair { a, b }, source, target) = setup();
        let window: MemoryWindow<Type1> = b.pd.alloc_window().unwrap();
        let first = window.rkey();
        let remote = b.qp.bind_window(7, &window, &target, 1000..2000, REMOTE).unwrap();
        let bound = b.success();
        assert_eq!((bound.wr_id, bound.opcode), (7, WcOpcode::BindMw));
        assert_eq!(
            (remote.len, remote.rkey, remote.addr),
            (1000, window.rkey(), target.remote().addr + 1000)
        );
        assert_ne!(window.rkey(), first);
        assert_eq!(write(&a, &source, remote, 1000), WcStatus::Success);
        let bytes = target.to_vec();
        assert!(bytes[1000..2000].iter().all(|b| *b == 9) && bytes[..1000].iter().all(|b| *b == 0));
        // A second bind replaces the first one. Two binds may be outstanding.
        b.qp.bind_window(8, &window, &target, ..8, REMOTE).unwrap();
        let zero_based = b.qp.bind_window(9, &window, &target, 8..16, REMOTE | Access::ZERO_BASED).unwrap();
        b.success();
        b.success();
        assert_eq!((zero_based.addr, zero_based.rkey), (0, window.rkey()));
        assert_eq!(write(&a, &source, zero_based, 8), WcStatus::Success);
        assert_eq!(target.load_u64(8).unwrap(), u64::from_ne_bytes([9; 8]));
        b.qp.unbind_window(10, &window).unwrap();
        assert_eq!(b.success().wr_id, 10);
        assert_eq!(write(&a, &source, zero_based, 8), WcStatus::RemAccessErr);
    });
}

#[test]
fn a_region_for_windows_stays_closed_itself() {
    watched(|| {
        let (Pair { a, b: _b }, source, target) = setup();
        assert_eq!(write(&a, &source, target.remote(), 8), WcStatus::RemAccessErr);
    });
}

#[test]
fn a_window_of_type_2_is_invalidated_by_either_side() {
    watched(|| {
        let (Pair { a, b }, source, target) = setup();
        let window: MemoryWindow<Type2> = b.pd.alloc_window().unwrap();
        let bind = |wr_id| {
            let remote = b.qp.bind_window(wr_id, &window, &target, ..64, REMOTE).unwrap();
            assert_eq!(b.success().wr_id, wr_id);
            remote
        };
        let first = bind(1);
        assert_eq!(write(&a, &source, first, 64), WcStatus::Success);
        b.qp.invalidate_window(2, &window).unwrap();
        assert_eq!(b.success().opcode, WcOpcode::LocalInv);
        let second = bind(3);
        assert_ne!(second.rkey, first.rkey);
        assert_eq!(write(&a, &source, second, 64), WcStatus::Success);
        let received = b.qp.recv(b.pd.buffer(8).unwrap()).unwrap();
        a.qp.send_with_inv(a.pd.buffer(8).unwrap(), second.rkey).unwrap().wait().unwrap();
        received.wait().unwrap();
        bind(4);
        b.qp.bind_window(5, &window, &target, ..64, REMOTE).unwrap();
        b.status(WcStatus::MwBindErr);
    });
}

#[test]
fn dropping_the_window_or_the_region_closes_it() {
    watched(|| {
        for drop_region in [false, true] {
            let (Pair { a, b }, source, target) = setup();
            let window: MemoryWindow<Type1> = b.pd.alloc_window().unwrap();
            let remote = b.qp.bind_window(1, &window, &target, .., REMOTE).unwrap();
            b.success();
            assert_eq!(write(&a, &source, remote, 8), WcStatus::Success);
            if drop_region {
                drop(target)
            } else {
                drop(window)
            }
            assert_eq!(write(&a, &source, remote, 8), WcStatus::RemAccessErr);
        }
    });
}

#[test]
fn refusals_name_the_argument() {
    watched(|| {
        let (Pair { b, .. }, _, target) = setup();
        let window: MemoryWindow<Type1> = b.pd.alloc_window().unwrap();
        let refused = |region: &Region, start: u64, end: u64, access| {
            b.qp.bind_window(1, &window, region, start..end, access).unwrap_err()
        };
        let attribute = |error: Error| match error.refusal() {
            Some(Refusal::Invalid { attribute, .. }) => *attribute,
            _ => panic!("{error}"),
        };
        assert!(matches!(refused(&target, 0, 4097, REMOTE), Error::Range { end: 4097, len: 4096, .. }));
        assert_eq!(attribute(refused(&target, 8, 8, REMOTE)), "length");
        assert_eq!(attribute(refused(&target, 0, 8, Access::MW_BIND)), "mw_access_flags");
        let elsewhere = b.device.alloc_pd().unwrap().region(64).bind_windows().register().unwrap();
        assert_eq!(attribute(refused(&elsewhere, 0, 8, REMOTE)), "pd");
        assert_eq!(attribute(b.qp.unbind_window(1 << 63, &window).unwrap_err()), "wr_id");
        // The work request finds out what only the NIC can check: the region does not allow binds.
        let closed = b.pd.region(64).register().unwrap();
        b.qp.bind_window(1, &window, &closed, .., REMOTE).unwrap();
        b.status(WcStatus::MwBindErr);
    });
}

#[test]
fn a_window_of_type_2_belongs_to_the_queue_pair_that_bound_it() {
    watched(|| {
        let (Pair { a, b }, source, target) = setup();
        let window: MemoryWindow<Type2> = b.pd.alloc_window().unwrap();
        let remote = b.qp.bind_window(1, &window, &target, .., REMOTE).unwrap();
        b.success();
        let (other_a, other_b) = (a.pd.rc(&a.cq).create().unwrap(), b.pd.rc(&b.cq).create().unwrap());
        join(&other_a, &other_b);
        other_a.write(2, &[source.sge(..8).unwrap()], remote).unwrap();
        a.status(WcStatus::RemAccessErr);
        assert_eq!(write(&a, &source, remote, 8), WcStatus::Success);
    });
}
