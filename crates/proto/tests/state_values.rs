//! Attribute values against the limits of a device, and the timer codes.

use ferroce_proto::qp::state::{AttrLimits, ModifyError, check_values, rnr_timer_ns, timeout_ns};
use ferroce_proto::verbs::{Access, AddressVector, AttrMask, Mtu, QpAttr};
use ferroce_proto::{Gid, Qkey};

const LIMITS: AttrLimits =
    AttrLimits { max_rd_atomic: 16, max_dest_rd_atomic: 8, pkeys: 1, gids: 4, active_mtu: Mtu::B1024 };

fn good() -> QpAttr {
    let av = AddressVector { dgid: Gid([1; 16]), sgid_index: 3, port: 1, ..AddressVector::default() };
    QpAttr {
        av,
        port: 1,
        path_mtu: Mtu::B1024,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 8,
        ..QpAttr::default()
    }
}

fn refused(mask: AttrMask, change: impl FnOnce(&mut QpAttr)) -> (&'static str, u64, u64) {
    let mut attr = good();
    change(&mut attr);
    assert_eq!(check_values(&attr, AttrMask::all() - mask - AttrMask::ALT_PATH, &LIMITS), Ok(()));
    match check_values(&attr, mask, &LIMITS) {
        Err(ModifyError::OutOfRange { attribute, value, limit }) => (attribute, value, limit),
        other => panic!("{mask:?}: {other:?}"),
    }
}

#[test]
fn every_bound_is_met_and_not_passed() {
    use AttrMask as A;
    let at_the_bound = QpAttr {
        timeout: 31,
        retry_cnt: 7,
        rnr_retry: 7,
        min_rnr_timer: 31,
        qkey: Qkey(u32::MAX),
        access: Access::all(),
        ..good()
    };
    assert_eq!(check_values(&at_the_bound, A::all() - A::ALT_PATH, &LIMITS), Ok(()));

    assert_eq!(refused(A::TIMEOUT, |a| a.timeout = 32), ("timeout", 32, 31));
    assert_eq!(refused(A::RETRY_CNT, |a| a.retry_cnt = 8), ("retry_cnt", 8, 7));
    assert_eq!(refused(A::RNR_RETRY, |a| a.rnr_retry = 8), ("rnr_retry", 8, 7));
    assert_eq!(refused(A::MIN_RNR_TIMER, |a| a.min_rnr_timer = 32), ("min_rnr_timer", 32, 31));
    assert_eq!(refused(A::MAX_QP_RD_ATOMIC, |a| a.max_rd_atomic = 17), ("max_rd_atomic", 17, 16));
    assert_eq!(refused(A::MAX_DEST_RD_ATOMIC, |a| a.max_dest_rd_atomic = 9), ("max_dest_rd_atomic", 9, 8));
    assert_eq!(refused(A::PKEY_INDEX, |a| a.pkey_index = 1), ("pkey_index", 1, 0));
    assert_eq!(refused(A::PORT, |a| a.port = 2), ("port", 2, 1));
    assert_eq!(refused(A::PATH_MTU, |a| a.path_mtu = Mtu::B2048), ("path_mtu", 2048, 1024));
    assert_eq!(refused(A::AV, |a| a.av.sgid_index = 4), ("av.sgid_index", 4, 3));
    assert_eq!(refused(A::AV, |a| a.av.flow_label = 1 << 20), ("av.flow_label", 1 << 20, 0xf_ffff));
    assert_eq!(refused(A::AV, |a| a.av.port = 2), ("av.port", 2, 1));
    assert_eq!(refused(A::AV, |a| a.av.sl = 16), ("av.sl", 16, 15));
    let unknown = 1 << 15;
    let (attribute, value, _) = refused(A::ACCESS_FLAGS, |a| a.access = Access::from_bits_retain(unknown));
    assert_eq!((attribute, value), ("access", unknown.into()));
}

#[test]
fn unknown_optional_access_bits_are_accepted() {
    let attr = QpAttr { access: Access::from_bits_retain(1 << 27), ..good() };
    assert_eq!(check_values(&attr, AttrMask::ACCESS_FLAGS, &LIMITS), Ok(()));
}

#[test]
fn required_numbers_are_not_zero() {
    let mut attr = good();
    attr.av.dgid = Gid::ZERO;
    let zero = check_values(&attr, AttrMask::AV, &LIMITS).unwrap_err();
    assert_eq!(zero, ModifyError::Zero { attribute: "av.dgid" });
    assert_eq!(zero.to_string(), "av.dgid must not be zero");
    let attr = QpAttr { port: 0, ..good() };
    assert_eq!(check_values(&attr, AttrMask::PORT, &LIMITS), Err(ModifyError::Zero { attribute: "port" }));
}

#[test]
fn roce_has_no_alternate_path() {
    let answer = check_values(&good(), AttrMask::ALT_PATH, &LIMITS);
    assert_eq!(answer, Err(ModifyError::NotAllowed(AttrMask::ALT_PATH)));
}

#[test]
fn a_refusal_is_one_sentence_with_the_numbers() {
    let attr = QpAttr { retry_cnt: 9, ..good() };
    let sentence = check_values(&attr, AttrMask::RETRY_CNT, &LIMITS).unwrap_err().to_string();
    assert_eq!(sentence, "retry_cnt is 9 (0x9), the limit is 7 (0x7)");
}

#[test]
fn rnr_codes_grow_by_steps_of_at_most_two_except_the_first() {
    assert_eq!(rnr_timer_ns(0), 655_360_000);
    assert_eq!(rnr_timer_ns(1), 10_000);
    assert_eq!(rnr_timer_ns(2), 20_000);
    assert_eq!(rnr_timer_ns(12), 640_000);
    assert_eq!(rnr_timer_ns(26), 81_920_000);
    assert_eq!(rnr_timer_ns(31), 491_520_000);
    for code in 1..31 {
        let (short, long) = (rnr_timer_ns(code), rnr_timer_ns(code + 1));
        assert!(short < long && long <= 2 * short, "code {code}");
    }
    assert_eq!(rnr_timer_ns(32), rnr_timer_ns(0), "only five bits exist on the wire");
}

#[test]
fn timeout_zero_is_never() {
    assert_eq!(timeout_ns(0), None);
    assert_eq!(timeout_ns(1), Some(8192));
    assert_eq!(timeout_ns(14), Some(67_108_864));
    assert_eq!(timeout_ns(31), Some(4096 << 31));
}
