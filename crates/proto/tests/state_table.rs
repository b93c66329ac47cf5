//! The whole state table: every transport, every pair of states, every attribute.

use ferroce_proto::qp::state::{
    ModifyError, check, check_current, may_post_recv, may_post_send, relevant, transitions,
};
use ferroce_proto::verbs::{AttrMask, QpAttr, QpState, Transport};

const TRANSPORTS: [Transport; 5] = Transport::ALL;

/// Every (transport, from, to) with its entry in the table.
fn cases() -> impl Iterator<Item = (Transport, QpState, QpState, Option<(AttrMask, AttrMask)>)> {
    let pairs = || QpState::ALL.into_iter().flat_map(|f| QpState::ALL.map(|t| (f, t)));
    TRANSPORTS.into_iter().flat_map(move |transport| {
        pairs().map(move |(from, to)| {
            let line = transitions().find(|t| t.from == from && t.to == to);
            let attrs = line.and_then(|t| t.attrs(transport)).map(|a| (a.required, a.optional));
            (transport, from, to, attrs)
        })
    })
}

fn with_state(from: QpState, to: QpState, mask: AttrMask) -> AttrMask {
    if from == to { mask } else { mask | AttrMask::STATE }
}

#[test]
fn no_line_appears_twice() {
    let all: Vec<_> = transitions().map(|t| (t.from, t.to)).collect();
    for (i, pair) in all.iter().enumerate() {
        assert!(!all[..i].contains(pair), "{pair:?} has two lines");
    }
}

#[test]
fn exactly_the_transitions_of_the_specification_exist() {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let forward = [
        (Reset, Init),
        (Init, Init),
        (Init, Rtr),
        (Rtr, Rts),
        (Rts, Rts),
        (Rts, Sqd),
        (Sqd, Sqd),
        (Sqd, Rts),
        (Sqe, Rts),
    ];
    for (transport, from, to, attrs) in cases() {
        let reliable = transport == Transport::Rc || transport.is_xrc();
        let rc_has_no_sqe = reliable && (from, to) == (Sqe, Rts);
        let expected = (to == Reset || to == Err || forward.contains(&(from, to))) && !rc_has_no_sqe;
        assert_eq!(attrs.is_some(), expected, "{transport:?} {from:?} -> {to:?}");
    }
}

/// The required attributes as the manual page of `ibv_modify_qp` lists them.
#[test]
fn the_steps_to_rts_require_what_the_manual_page_says() {
    use AttrMask as A;
    let peer = A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
    let init = A::STATE | A::PKEY_INDEX | A::PORT;
    let rts = A::STATE | A::SQ_PSN;
    let reliable = A::MAX_QP_RD_ATOMIC | A::RETRY_CNT | A::RNR_RETRY | A::TIMEOUT;
    let page = [
        (Transport::Ud, init | A::QKEY, A::STATE, rts),
        (Transport::Uc, init | A::ACCESS_FLAGS, A::STATE | peer, rts),
        (
            Transport::Rc,
            init | A::ACCESS_FLAGS,
            A::STATE | peer | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER,
            rts | reliable,
        ),
        (Transport::XrcIni, init | A::ACCESS_FLAGS, A::STATE | peer, rts | reliable),
        (
            Transport::XrcTgt,
            init | A::ACCESS_FLAGS,
            A::STATE | peer | A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER,
            rts | A::TIMEOUT,
        ),
    ];
    for (transport, to_init, to_rtr, to_rts) in page {
        let steps = [
            (QpState::Reset, QpState::Init, to_init),
            (QpState::Init, QpState::Rtr, to_rtr),
            (QpState::Rtr, QpState::Rts, to_rts),
        ];
        for (from, to, minimum) in steps {
            assert_eq!(check(transport, from, to, minimum), Ok(()), "{transport:?} {from:?} -> {to:?}");
            for bit in minimum.iter() {
                let short = check(transport, from, to, minimum - bit);
                assert_eq!(short, Err(ModifyError::Missing(bit)), "{transport:?} {from:?} -> {to:?}");
            }
        }
    }
}

#[test]
fn no_transition_means_no_transition_whatever_the_mask() {
    for (transport, from, to, attrs) in cases() {
        if attrs.is_none() {
            for mask in [AttrMask::empty(), AttrMask::STATE, AttrMask::all()] {
                let answer = check(transport, from, to, mask);
                assert_eq!(answer, Err(ModifyError::NoSuchTransition { from, to }));
            }
        }
    }
}

#[test]
fn each_required_attribute_is_missed_when_it_is_missing() {
    for (transport, from, to, attrs) in cases() {
        let Some((required, optional)) = attrs else { continue };
        let minimum = with_state(from, to, required);
        assert_eq!(check(transport, from, to, minimum), Ok(()), "{transport:?} {from:?} -> {to:?}");
        for bit in minimum.iter() {
            for others in [minimum - bit, (minimum | optional) - bit] {
                let answer = check(transport, from, to, others);
                assert_eq!(answer, Err(ModifyError::Missing(bit)), "{transport:?} {from:?} -> {to:?}");
            }
        }
    }
}

#[test]
fn each_attribute_is_required_or_optional_or_refused() {
    for (transport, from, to, attrs) in cases() {
        let Some((required, optional)) = attrs else { continue };
        assert!((required & optional).is_empty());
        let minimum = with_state(from, to, required);
        for bit in AttrMask::all().iter() {
            let answer = check(transport, from, to, minimum | bit);
            let welcome = (required | optional | AttrMask::STATE).contains(bit);
            let expected = if welcome { Ok(()) } else { Err(ModifyError::NotAllowed(bit)) };
            assert_eq!(answer, expected, "{transport:?} {from:?} -> {to:?} with {bit:?}");
        }
        assert_eq!(check(transport, from, to, minimum | optional), Ok(()));
    }
}

/// Programs set both ends of an extended reliable connection up like a reliable one.
#[test]
fn attributes_of_the_other_end_are_ignored() {
    use AttrMask as A;
    let mask = A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER | A::MAX_QP_RD_ATOMIC | A::RETRY_CNT | A::RNR_RETRY;
    assert_eq!(relevant(Transport::XrcIni, mask), A::MAX_QP_RD_ATOMIC | A::RETRY_CNT | A::RNR_RETRY);
    assert_eq!(relevant(Transport::XrcTgt, mask), A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER);
    assert_eq!(relevant(Transport::Rc, mask), mask);
}

#[test]
fn unknown_mask_bits_are_refused_and_named() {
    let stranger = AttrMask::from_bits_retain(1 << 30);
    let answer = check(Transport::Rc, QpState::Rts, QpState::Rts, stranger);
    assert_eq!(answer, Err(ModifyError::NotAllowed(stranger)));
    assert_eq!(
        answer.unwrap_err().to_string(),
        "the transition does not take unknown bits 0x40000000; remove it from the attribute mask"
    );
}

#[test]
fn a_wrong_claim_about_the_current_state_is_caught() {
    let attr = QpAttr { cur_state: QpState::Rtr, ..QpAttr::default() };
    assert_eq!(check_current(&attr, AttrMask::empty(), QpState::Rts), Ok(()));
    assert_eq!(check_current(&attr, AttrMask::CUR_STATE, QpState::Rtr), Ok(()));
    let wrong = check_current(&attr, AttrMask::CUR_STATE, QpState::Rts).unwrap_err();
    assert_eq!(wrong, ModifyError::WrongCurrentState { claimed: QpState::Rtr, actual: QpState::Rts });
    assert_eq!(wrong.to_string(), "cur_state is RTR, but the queue pair is in RTS");
}

#[test]
fn errors_name_the_states_and_attributes() {
    let nowhere = check(Transport::Rc, QpState::Reset, QpState::Rts, AttrMask::STATE).unwrap_err();
    assert_eq!(
        nowhere.to_string(),
        "a queue pair cannot go from RESET to RTS; the order is RESET, INIT, RTR, RTS"
    );
    let missing = check(Transport::Ud, QpState::Reset, QpState::Init, AttrMask::STATE).unwrap_err();
    assert_eq!(missing.to_string(), "the transition also needs PKEY_INDEX, PORT, QKEY in the attribute mask");
}

#[test]
fn posting_follows_the_manual_pages() {
    use QpState::{Err, Init, Rtr, Rts, Sqd, Sqe};
    for state in QpState::ALL {
        assert_eq!(may_post_recv(state), [Init, Rtr, Rts, Sqd, Sqe, Err].contains(&state), "{state:?}");
        assert_eq!(may_post_send(state), [Rts, Sqd, Sqe, Err].contains(&state), "{state:?}");
    }
}
