//! The posting and polling verbs with a record of what they did, for `ferroce run --timeline`.
//!
//! If the process has an [`OperationLog`], they replace the usual verbs in the tables. Without one, the data path executes no
//! instruction of this file.

use crate::abi::*;
use crate::qp::QpObject;
use crate::{cq, recv, send};
use ferroce_nic::{LoggedCall, Nic, OperationLog};
use ferroce_proto::verbs::{AttrMask, SendFlags, SendOp, Sge};
use ferroce_proto::{Gid, Qpn};
use std::ffi::c_int;

/// Puts the recording verbs into a context's table.
pub(crate) fn fill(ops: &mut ibv_context_ops) {
    if OperationLog::of_process().is_some() {
        ops.poll_cq = Some(poll_cq);
        ops.post_send = Some(post_send);
        ops.post_recv = Some(post_recv);
    }
}

unsafe extern "C" fn post_send(qp: *mut ibv_qp, list: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    let began_ns = OperationLog::now_ns();
    let mut refused = std::ptr::null_mut();
    // SAFETY: what the verb demands of the program.
    let result = unsafe { send::post_send(qp, list, &raw mut refused) };
    if result != 0 && !bad.is_null() {
        // SAFETY: not NULL, so the program provides memory for the pointer.
        unsafe { bad.write(refused) };
    }
    // SAFETY: NULL, or a queue pair of ours.
    let signal_all = unsafe { QpObject::of(qp) }.is_ok_and(|object| object.signal_all);
    let end = end_of(result, list, refused);
    // SAFETY: the program's list, which it may not free before the verb returns.
    let posted = walk(list, end, |wr| unsafe { (*wr).next }).map(|wr| unsafe {
        let is_signaled = signal_all || (*wr).send_flags & SendFlags::SIGNALED.bits() != 0;
        let (name, wr_id) = (name_of_opcode((*wr).opcode), (*wr).wr_id);
        LoggedCall::Post { name, wr_id, bytes: length((*wr).sg_list, (*wr).num_sge), is_signaled }
    });
    record(qp, began_ns, posted);
    result
}

unsafe extern "C" fn post_recv(qp: *mut ibv_qp, list: *mut ibv_recv_wr, bad: *mut *mut ibv_recv_wr) -> c_int {
    let began_ns = OperationLog::now_ns();
    let mut refused = std::ptr::null_mut();
    // SAFETY: what the verb demands of the program.
    let result = unsafe { recv::post_recv(qp, list, &raw mut refused) };
    if result != 0 && !bad.is_null() {
        // SAFETY: not NULL, so the program provides memory for the pointer.
        unsafe { bad.write(refused) };
    }
    let end = end_of(result, list, refused);
    // SAFETY: the program's list, which it may not free before the verb returns.
    let posted = walk(list, end, |wr| unsafe { (*wr).next }).map(|wr| unsafe {
        let bytes = length((*wr).sg_list, (*wr).num_sge);
        LoggedCall::Post { name: "RECV", wr_id: (*wr).wr_id, bytes, is_signaled: true }
    });
    record(qp, began_ns, posted);
    result
}

/// The first request of a list that was not posted. A call that failed without naming a request has posted none.
fn end_of<T>(result: c_int, list: *mut T, refused: *mut T) -> *mut T {
    match result {
        0 => std::ptr::null_mut(),
        _ if refused.is_null() => list,
        _ => refused,
    }
}

/// The requests of a list up to `end`.
fn walk<T>(first: *mut T, end: *mut T, next: impl Fn(*mut T) -> *mut T) -> impl Iterator<Item = *mut T> {
    let some = |at: *mut T| Some(at).filter(|at| !at.is_null());
    std::iter::successors(some(first), move |&at| some(next(at))).take_while(move |&at| at != end)
}

/// # Safety
/// `count` entries lie at `list`.
unsafe fn length(list: *mut Sge, count: c_int) -> u64 {
    // SAFETY: as the caller promises.
    let sges = unsafe { send::entries(list, count) }.unwrap_or(&[]);
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

fn record(qp: *mut ibv_qp, time_ns: u64, operations: impl Iterator<Item = LoggedCall>) {
    // SAFETY: NULL, or a queue pair of ours.
    let Ok(object) = (unsafe { QpObject::of(qp) }) else { return };
    let qpn = object.qp.qpn();
    if let Some(log) = OperationLog::of_process() {
        log.record(time_ns, operations.map(|operation| (qpn, operation)));
    }
}

unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: what the verb demands of the program.
    let polled = unsafe { cq::poll_cq(queue, num_entries, wc) };
    if let (Ok(count @ 1..), Some(log)) = (usize::try_from(polled), OperationLog::of_process()) {
        // SAFETY: the verb has just written `count` completions.
        let found = unsafe { std::slice::from_raw_parts(wc, count) };
        let operations = found.iter().map(|wc| {
            let (name, wr_id, status) = (name_of_completion(wc.opcode), wc.wr_id, wc.status);
            // The opcode of a failed completion has no meaning.
            let name = if status == 0 { name } else { "" };
            (Qpn::new(wc.qp_num), LoggedCall::Completion { name, wr_id, bytes: wc.byte_len.into(), status })
        });
        log.record(OperationLog::now_ns(), operations);
    }
    polled
}

/// Records the peer of a queue pair, if `ibv_modify_qp` set one.
pub(crate) fn modified(object: &QpObject, nic: &Nic, mask: AttrMask) {
    if let Some(log) = OperationLog::of_process().filter(|_| mask.contains(AttrMask::DEST_QPN)) {
        let attr = object.qp.query();
        let sgid = nic.gid(attr.av.sgid_index.into()).map_or(Gid::ZERO, |entry| entry.gid);
        let connect = LoggedCall::Connect { dest_qpn: attr.dest_qpn, sgid, dgid: attr.av.dgid };
        log.record(OperationLog::now_ns(), std::iter::once((object.qp.qpn(), connect)));
    }
}

/// Requests that `ibv_wr_complete` has posted.
pub(crate) fn built(object: &QpObject, began_ns: u64, posts: impl Iterator<Item = LoggedCall>) {
    if let Some(log) = OperationLog::of_process() {
        log.record(began_ns, posts.map(|post| (object.qp.qpn(), post)));
    }
}

fn name_of_opcode(opcode: u32) -> &'static str {
    match opcode {
        IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => "SEND",
        IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => "RDMA WRITE",
        IBV_WR_RDMA_READ => "RDMA READ",
        IBV_WR_ATOMIC_CMP_AND_SWP => "compare and swap",
        IBV_WR_ATOMIC_FETCH_AND_ADD => "fetch and add",
        _ => "request",
    }
}

/// The name of a request of `ibv_wr_*`.
pub(crate) fn name_of(op: &SendOp) -> &'static str {
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => "SEND",
        SendOp::Write { .. } | SendOp::WriteImm { .. } => "RDMA WRITE",
        SendOp::Read { .. } => "RDMA READ",
        SendOp::Atomic { .. } => "atomic",
        _ => "request",
    }
}

fn name_of_completion(opcode: u32) -> &'static str {
    match opcode {
        0 => "SEND",
        1 => "RDMA WRITE",
        2 => "RDMA READ",
        3 => "compare and swap",
        4 => "fetch and add",
        128 | 129 => "RECV",
        _ => "request",
    }
}
