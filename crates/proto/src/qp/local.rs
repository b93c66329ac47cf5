//! Work requests that never leave the NIC: LOCAL INVALIDATE and the binding of memory windows.

use super::Host;
use super::io::Io;
use super::{Reason, RefusalReason};
use crate::verbs::{SendOp, WcStatus};

/// What became of a local request: how its completion shall end, if it failed.
pub(super) type Outcome = Result<(), (WcStatus, Reason)>;

/// Executes a local request; `None` for one that goes to the peer. The caller has seen to it that every earlier
/// request is done.
pub(super) fn execute<H: Host>(op: &SendOp, wr_id: u64, io: &mut Io<'_, H>) -> Option<Outcome> {
    let (what, done, status, why) = match op {
        SendOp::LocalInv(rkey) => {
            let done = io.host.invalidate(io.pd, *rkey);
            ("local invalidate", done, WcStatus::LocQpOpErr, Reason::InvalidateRefused)
        }
        SendOp::BindMw(bind) => {
            let done = io.host.bind_window(io.pd, bind);
            ("window bind", done, WcStatus::MwBindErr, Reason::BindRefused)
        }
        _ => return None,
    };
    Some(done.map_err(|fault| {
        let sentence = format_args!("QP {}: {what} wr_id {wr_id:#x} refused: {fault}", io.id.qpn);
        io.host.refused(RefusalReason::from(&fault), sentence);
        (status, why)
    }))
}
