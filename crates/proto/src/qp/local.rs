//! Local work requests: LOCAL INVALIDATE and memory window binds.

use super::HostServices;
use super::io::Io;
use super::{Reason, RefusalReason};
use crate::verbs::{SendOp, WcStatus};

/// Result of a local request, with the completion status on failure.
pub(crate) type Outcome = Result<(), (WcStatus, Reason)>;

/// Executes a local request. Returns `None` for a request that goes to the peer. The caller ensures that every earlier
/// request is complete.
pub(crate) fn execute<H: HostServices>(op: &SendOp, wr_id: u64, io: &mut Io<'_, H>) -> Option<Outcome> {
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
