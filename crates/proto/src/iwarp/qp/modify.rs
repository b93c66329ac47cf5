//! `modify`. The connection manager brings an iWARP queue pair up, so few transitions are left to the program.

use super::StreamQp;
use crate::Time;
use crate::qp::HostServices;
use crate::qp::state::{ModifyError, check_current};
use crate::verbs::{AttrMask, QpAttr, QpState};

/// Attributes that a program may set at any time without an effect, as with siw. The port and the partition are always the first, and TCP has
/// timers of its own.
const INERT: AttrMask = AttrMask::STATE
    .union(AttrMask::CUR_STATE)
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::PORT)
    .union(AttrMask::MIN_RNR_TIMER)
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY);

impl StreamQp {
    /// Changes attributes and state. Allowed are the rights of the peer, INIT again, SQD (disconnect) and ERR. A refused call has
    /// no effect. The caller then calls [`StreamQp::poll_transmit`].
    pub fn modify<H: HostServices>(
        &mut self,
        attr: &QpAttr,
        mask: AttrMask,
        now: Time,
        host: &mut H,
    ) -> Result<(), ModifyError> {
        let from = self.attr.state;
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { from };
        check_current(attr, mask, from)?;
        match (from, to) {
            (_, QpState::Rtr | QpState::Rts) if from != to => {
                return Err(ModifyError::OnlyByConnection { to });
            }
            (_, QpState::Err) | (QpState::Rts, QpState::Sqd) => {}
            _ if from == to => {}
            _ => return Err(ModifyError::NoSuchTransition { from, to }),
        }
        let refused = mask - (INERT | AttrMask::ACCESS_FLAGS);
        if !refused.is_empty() {
            return Err(ModifyError::NotAllowed(refused));
        }
        if mask.contains(AttrMask::ACCESS_FLAGS) {
            self.attr.access = attr.access;
        }
        match to {
            QpState::Err => self.enter_error(now, host),
            QpState::Sqd => self.disconnect(now, host),
            _ => {}
        }
        Ok(())
    }
}
