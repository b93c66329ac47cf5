//! The transition table: allowed transitions, and the attributes that each requires and allows.

use super::error::ModifyError;
use crate::verbs::{AttrMask, QpAttr, QpState, Transport};

/// Attributes of a transition. `STATE` itself is in neither set: see [`check`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs {
    /// Required attributes.
    pub required: AttrMask,
    /// Optional attributes.
    pub optional: AttrMask,
}

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// State before.
    pub from: QpState,
    /// State after.
    pub to: QpState,
    rc: Option<Attrs>,
    uc: Option<Attrs>,
    ud: Option<Attrs>,
    ini: Option<Attrs>,
    tgt: Option<Attrs>,
}

impl Transition {
    /// The attributes for one transport; `None` if that transport lacks the transition.
    pub const fn attrs(&self, transport: Transport) -> Option<Attrs> {
        match transport {
            Transport::Rc => self.rc,
            Transport::Uc => self.uc,
            Transport::Ud => self.ud,
            Transport::XrcIni => self.ini,
            Transport::XrcTgt => self.tgt,
        }
    }
}

const NONE: AttrMask = AttrMask::empty();
const CUR: AttrMask = AttrMask::CUR_STATE;
const PKEY: AttrMask = AttrMask::PKEY_INDEX;
const PORT: AttrMask = AttrMask::PORT;
const QKEY: AttrMask = AttrMask::QKEY;
const ACCESS: AttrMask = AttrMask::ACCESS_FLAGS;
const AV: AttrMask = AttrMask::AV;
const ALT: AttrMask = AttrMask::ALT_PATH;
const MIG: AttrMask = AttrMask::PATH_MIG_STATE;
const RNR_TIMER: AttrMask = AttrMask::MIN_RNR_TIMER;
const RD_ATOMIC: AttrMask = AttrMask::MAX_QP_RD_ATOMIC;
const DEST_RD_ATOMIC: AttrMask = AttrMask::MAX_DEST_RD_ATOMIC;
const TIMEOUT: AttrMask = AttrMask::TIMEOUT;
const RETRY: AttrMask = AttrMask::RETRY_CNT;
const RNR_RETRY: AttrMask = AttrMask::RNR_RETRY;
const SQ_PSN: AttrMask = AttrMask::SQ_PSN;
const NOTIFY: AttrMask = AttrMask::EN_SQD_ASYNC_NOTIFY;
const PEER: AttrMask = all(&[AV, AttrMask::PATH_MTU, AttrMask::DEST_QPN, AttrMask::RQ_PSN]);

const fn all(masks: &[AttrMask]) -> AttrMask {
    let (mut sum, mut i) = (NONE, 0);
    while i < masks.len() {
        sum = sum.union(masks[i]);
        i += 1;
    }
    sum
}

const fn attrs(required: &[AttrMask], optional: &[AttrMask]) -> Option<Attrs> {
    Some(Attrs { required: all(required), optional: all(optional) })
}

/// RESET and ERR are reachable from every state and need no attributes.
const fn always(from: QpState, to: QpState) -> Transition {
    let bare = attrs(&[], &[]);
    Transition { from, to, rc: bare, uc: bare, ud: bare, ini: bare, tgt: bare }
}

use QpState::{Err as Error, Init, Reset, Rtr, Rts, Sqd, Sqe};

/// The table. A pair of states that is missing is not a transition.
#[rustfmt::skip]
const TABLE: [Transition; 23] = [
    Transition { from: Reset, to: Init,
        rc: attrs(&[PKEY, PORT, ACCESS], &[]),
        uc: attrs(&[PKEY, PORT, ACCESS], &[]),
        ud: attrs(&[PKEY, PORT, QKEY], &[]),
        ini: attrs(&[PKEY, PORT, ACCESS], &[]),
        tgt: attrs(&[PKEY, PORT, ACCESS], &[]) },
    Transition { from: Init, to: Init,
        rc: attrs(&[], &[PKEY, PORT, ACCESS]),
        uc: attrs(&[], &[PKEY, PORT, ACCESS]),
        ud: attrs(&[], &[PKEY, PORT, QKEY]),
        ini: attrs(&[], &[PKEY, PORT, ACCESS]),
        tgt: attrs(&[], &[PKEY, PORT, ACCESS]) },
    Transition { from: Init, to: Rtr,
        rc: attrs(&[PEER, DEST_RD_ATOMIC, RNR_TIMER], &[ALT, ACCESS, PKEY]),
        uc: attrs(&[PEER], &[ALT, ACCESS, PKEY]),
        ud: attrs(&[], &[PKEY, QKEY]),
        ini: attrs(&[PEER], &[ALT, ACCESS, PKEY]),
        tgt: attrs(&[PEER, DEST_RD_ATOMIC, RNR_TIMER], &[ALT, ACCESS, PKEY]) },
    Transition { from: Rtr, to: Rts,
        rc: attrs(&[SQ_PSN, TIMEOUT, RETRY, RNR_RETRY, RD_ATOMIC], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]),
        uc: attrs(&[SQ_PSN], &[CUR, ALT, ACCESS, MIG]),
        ud: attrs(&[SQ_PSN], &[CUR, QKEY]),
        ini: attrs(&[SQ_PSN, TIMEOUT, RETRY, RNR_RETRY, RD_ATOMIC], &[CUR, ALT, ACCESS, MIG]),
        tgt: attrs(&[SQ_PSN, TIMEOUT], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]) },
    Transition { from: Rts, to: Rts,
        rc: attrs(&[], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]),
        uc: attrs(&[], &[CUR, ALT, ACCESS, MIG]),
        ud: attrs(&[], &[CUR, QKEY]),
        ini: attrs(&[], &[CUR, ALT, ACCESS, MIG]),
        tgt: attrs(&[], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]) },
    Transition { from: Rts, to: Sqd,
        rc: attrs(&[], &[NOTIFY]),
        uc: attrs(&[], &[NOTIFY]),
        ud: attrs(&[], &[NOTIFY]),
        ini: attrs(&[], &[NOTIFY]),
        tgt: attrs(&[], &[NOTIFY]) },
    Transition { from: Sqd, to: Sqd,
        rc: attrs(&[], &[PORT, AV, TIMEOUT, RETRY, RNR_RETRY, RD_ATOMIC, DEST_RD_ATOMIC, ALT, ACCESS, PKEY, RNR_TIMER, MIG]),
        uc: attrs(&[], &[AV, ALT, ACCESS, PKEY, MIG]),
        ud: attrs(&[], &[PKEY, QKEY]),
        ini: attrs(&[], &[PORT, AV, TIMEOUT, RETRY, RNR_RETRY, RD_ATOMIC, ALT, ACCESS, PKEY, MIG]),
        tgt: attrs(&[], &[PORT, AV, TIMEOUT, DEST_RD_ATOMIC, ALT, ACCESS, PKEY, RNR_TIMER, MIG]) },
    Transition { from: Sqd, to: Rts,
        rc: attrs(&[], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]),
        uc: attrs(&[], &[CUR, ALT, ACCESS, MIG]),
        ud: attrs(&[], &[CUR, QKEY]),
        ini: attrs(&[], &[CUR, ALT, ACCESS, MIG]),
        tgt: attrs(&[], &[CUR, ALT, ACCESS, RNR_TIMER, MIG]) },
    // A reliable connection never enters SQE (IBA 10.3.1.6), so it cannot leave it for RTS.
    Transition { from: Sqe, to: Rts,
        rc: None,
        uc: attrs(&[], &[CUR, ACCESS]),
        ud: attrs(&[], &[CUR, QKEY]),
        ini: None,
        tgt: None },
    always(Reset, Reset), always(Init, Reset), always(Rtr, Reset), always(Rts, Reset),
    always(Sqd, Reset), always(Sqe, Reset), always(Error, Reset),
    always(Reset, Error), always(Init, Error), always(Rtr, Error), always(Rts, Error),
    always(Sqd, Error), always(Sqe, Error), always(Error, Error),
];

/// The whole table, in source order.
pub fn transitions() -> impl Iterator<Item = &'static Transition> {
    TABLE.iter()
}

/// The row for these states, if the transport has the transition.
fn find(transport: Transport, from: QpState, to: QpState) -> Option<Attrs> {
    TABLE.iter().find(|t| t.from == from && t.to == to)?.attrs(transport)
}

/// Reduces the mask of an XRC `modify` to the attributes of that end. Each end uses half of the RC attributes. The
/// others are ignored, as the Linux verbs do, because applications set both ends alike.
pub const fn relevant(transport: Transport, mask: AttrMask) -> AttrMask {
    match transport {
        Transport::XrcIni => mask.difference(DEST_RD_ATOMIC.union(RNR_TIMER)),
        Transport::XrcTgt => mask.difference(all(&[RD_ATOMIC, RETRY, RNR_RETRY])),
        _ => mask,
    }
}

/// Checks that a `modify` with these attributes may move the queue pair from `from` to `to`. If the mask lacks `STATE`,
/// `to` equals `from` and only attributes change.
pub fn check(transport: Transport, from: QpState, to: QpState, mask: AttrMask) -> Result<(), ModifyError> {
    let line = find(transport, from, to).ok_or(ModifyError::NoSuchTransition { from, to })?;
    let required = if from == to { line.required } else { line.required | AttrMask::STATE };
    let missing = required - mask;
    if !missing.is_empty() {
        return Err(ModifyError::Missing(missing));
    }
    let surplus = mask - (line.required | line.optional | AttrMask::STATE);
    if !surplus.is_empty() {
        return Err(ModifyError::NotAllowed(surplus));
    }
    Ok(())
}

/// Checks `CUR_STATE`, if given, against the actual state.
pub fn check_current(attr: &QpAttr, mask: AttrMask, actual: QpState) -> Result<(), ModifyError> {
    if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != actual {
        return Err(ModifyError::WrongCurrentState { claimed: attr.cur_state, actual });
    }
    Ok(())
}

/// Whether receives may be posted. In ERR they may, and are flushed (IBA 10.8.3.2).
pub const fn may_post_recv(state: QpState) -> bool {
    !matches!(state, Reset)
}

/// Whether sends may be posted. In SQD they wait; in SQE and ERR they are flushed (IBA 10.8.3.1).
pub const fn may_post_send(state: QpState) -> bool {
    !matches!(state, Reset | Init | Rtr)
}

/// The state as the specification writes it.
pub const fn state_name(state: QpState) -> &'static str {
    match state {
        Reset => "RESET",
        Init => "INIT",
        Rtr => "RTR",
        Rts => "RTS",
        Sqd => "SQD",
        Sqe => "SQE",
        Error => "ERR",
    }
}
