//! Cutting a message into packets: what RC and UC have in common.

use super::sq::SendWqe;
use crate::verbs::SendOp;
use crate::wire::{Headers, Operation, Reth};

/// The opcode of a packet by its place in the message.
pub(super) fn operation_of(op: &SendOp, first: bool, last: bool) -> Operation {
    use Operation as O;
    let write = matches!(op, SendOp::Write { .. } | SendOp::WriteImm { .. });
    match (first, last, op) {
        (true, false, _) => {
            if write {
                O::WriteFirst
            } else {
                O::SendFirst
            }
        }
        (false, false, _) => {
            if write {
                O::WriteMiddle
            } else {
                O::SendMiddle
            }
        }
        (true, true, SendOp::SendImm(_)) => O::SendOnlyImm,
        (true, true, SendOp::SendInv(_)) => O::SendOnlyInv,
        (true, true, SendOp::WriteImm { .. }) => O::WriteOnlyImm,
        (true, true, _) => {
            if write {
                O::WriteOnly
            } else {
                O::SendOnly
            }
        }
        (false, true, SendOp::SendImm(_)) => O::SendLastImm,
        (false, true, SendOp::SendInv(_)) => O::SendLastInv,
        (false, true, SendOp::WriteImm { .. }) => O::WriteLastImm,
        (false, true, _) => {
            if write {
                O::WriteLast
            } else {
                O::SendLast
            }
        }
    }
}

/// Where a WRITE goes.
pub(super) fn reth_of(wqe: &SendWqe) -> Option<Reth> {
    match wqe.op {
        SendOp::Write { addr, rkey } | SendOp::WriteImm { addr, rkey, .. } => {
            Some(Reth { addr, rkey, len: wqe.len })
        }
        _ => None,
    }
}

/// The extension headers of a packet by its place in the message.
pub(super) fn add_extensions(headers: &mut Headers, wqe: &SendWqe, first: bool, last: bool) {
    if first {
        headers.reth = reth_of(wqe);
    }
    match wqe.op {
        SendOp::SendImm(imm) | SendOp::WriteImm { imm, .. } if last => headers.imm = Some(imm),
        SendOp::SendInv(rkey) if last => headers.ieth = Some(rkey),
        _ => {}
    }
}
