//! The id's own queue pair: its creation, and its state transitions during a connection.

use crate::abi::*;
use crate::guard::{self, Refused, check, invalid, made};
use crate::id::{Id, ask};
use crate::verbs::*;
use std::ffi::c_int;

const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const ERROR: u32 = 6;
const IBV_QP_STATE: c_int = 1;
/// Inline bytes per scatter/gather entry that every queue pair supports.
const INLINE_PER_SGE: u32 = 16;

/// The NIC's attributes for a state.
pub(crate) fn attributes(id: &Id, state: u32) -> Result<(ibv_qp_attr, c_int), Refused> {
    let (mut attr, mut mask) = (ibv_qp_attr { qp_state: state, ..ibv_qp_attr::default() }, 0);
    check(ask!(id, qp_attributes(&mut attr, &mut mask)))?;
    Ok((attr, mask))
}

fn modify(qp: *mut ibv_qp, mut attr: ibv_qp_attr, mask: c_int) -> Result<(), Refused> {
    // SAFETY: a queue pair that the program keeps, and attributes.
    check(unsafe { ibv_modify_qp(qp, &mut attr, mask) })
}

/// Moves the queue pair, if there is one, to RTR and RTS; on iWARP the connection does that. Without given depths, the negotiated
/// ones apply.
pub(crate) fn to_ready(id: &Id, responds: Option<u8>, depth: Option<u8>) -> Result<(), Refused> {
    let qp = id.qp();
    if qp.is_null() || id.device.is_iwarp {
        return Ok(());
    }
    // INIT again: the access rights depend on the connection.
    let (attr, mask) = attributes(id, INIT)?;
    modify(qp, attr, mask)?;
    let (mut attr, mask) = attributes(id, RTR)?;
    attr.max_dest_rd_atomic = responds.unwrap_or(attr.max_dest_rd_atomic);
    modify(qp, attr, mask)?;
    let (mut attr, mask) = attributes(id, RTS)?;
    attr.max_rd_atomic = depth.unwrap_or(attr.max_rd_atomic);
    modify(qp, attr, mask)
}

/// Handles the acceptance of our request: sets up the queue pair, and confirms that to the peer.
pub(crate) fn establish(id: &Id) -> Result<(), Refused> {
    to_ready(id, None, None).and_then(|()| check(ask!(id, establish()))).inspect_err(|_| to_error(id))
}

/// Moves the queue pair, if there is one, to ERROR, which flushes its requests.
pub(crate) fn to_error(id: &Id) {
    if !id.qp().is_null() {
        // It may be in that state already.
        let _ = modify(id.qp(), ibv_qp_attr { qp_state: ERROR, ..ibv_qp_attr::default() }, IBV_QP_STATE);
    }
}

/// Moves a new queue pair as far as possible without a peer: datagrams to RTS, connections to INIT.
fn initialise(id: &Id, qp: *mut ibv_qp) -> Result<(), Refused> {
    let states: &[u32] = if id.is_datagram() { &[INIT, RTR, RTS] } else { &[INIT] };
    states.iter().try_for_each(|state| {
        let (attr, mask) = attributes(id, *state)?;
        modify(qp, attr, mask)
    })
}

/// Completion queues for the directions with a size, each with its own channel.
pub(crate) fn create_cqs(id: &Id, sends: u32, receives: u32) -> Result<(), Refused> {
    // SAFETY: the id's own structure and device.
    unsafe {
        let abi = &mut *id.abi();
        let pair = |size: u32, channel: &mut *mut ibv_comp_channel, cq: &mut *mut ibv_cq| {
            if size != 0 {
                *channel = made(ibv_create_comp_channel(abi.verbs))?;
                *cq = made(ibv_create_cq(abi.verbs, size as c_int, id.abi().cast(), *channel, 0))?;
            }
            Ok(())
        };
        let made = pair(receives, &mut abi.recv_cq_channel, &mut abi.recv_cq)
            .and_then(|()| pair(sends, &mut abi.send_cq_channel, &mut abi.send_cq));
        made.inspect_err(|_| destroy_cqs(id))
    }
}

/// Destroys them, unless an XRC shared receive queue still uses them.
pub(crate) fn destroy_cqs(id: &Id) {
    // SAFETY: the id's own structure, and objects made by `create_cqs`.
    unsafe {
        let abi = &mut *id.abi();
        if abi.qp_type == IBV_QPT_XRC_RECV && !abi.srq.is_null() {
            return;
        }
        for cq in [&mut abi.recv_cq, &mut abi.send_cq] {
            if !cq.is_null() {
                ibv_destroy_cq(std::mem::replace(cq, std::ptr::null_mut()));
            }
        }
        for channel in [&mut abi.recv_cq_channel, &mut abi.send_cq_channel] {
            if !channel.is_null() {
                ibv_destroy_comp_channel(std::mem::replace(channel, std::ptr::null_mut()));
            }
        }
    }
}

/// The extended form of attributes.
pub(crate) fn extended(attr: &ibv_qp_init_attr) -> ibv_qp_init_attr_ex {
    ibv_qp_init_attr_ex {
        qp_context: attr.qp_context,
        send_cq: attr.send_cq,
        recv_cq: attr.recv_cq,
        srq: attr.srq,
        cap: attr.cap,
        qp_type: attr.qp_type,
        sq_sig_all: attr.sq_sig_all,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        ..ibv_qp_init_attr_ex::zeroed()
    }
}

/// Fills in the defaults of the id, and refuses attributes that contradict it.
fn complete(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Refused> {
    // SAFETY: the id's own structure, and a domain that the program gave.
    let (abi, foreign) = unsafe {
        let abi = &*id.abi();
        let given = attr.comp_mask & IBV_QP_INIT_ATTR_PD != 0 && !attr.pd.is_null();
        (abi, given && (*attr.pd).context != abi.verbs)
    };
    if !abi.qp.is_null() {
        return Err(invalid("the id has a queue pair"));
    }
    if abi.verbs.is_null() {
        return Err(invalid("the id has no device yet; bind it or resolve an address"));
    }
    if foreign {
        return Err(invalid("the domain belongs to another context than the id"));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= IBV_QP_INIT_ATTR_PD;
        attr.pd = abi.pd;
    }
    let differ = |own: *mut ibv_cq, given: *mut ibv_cq| !own.is_null() && !given.is_null() && own != given;
    if differ(abi.recv_cq, attr.recv_cq) || differ(abi.send_cq, attr.send_cq) {
        return Err(invalid("the id has other completion queues"));
    }
    let no_domain = attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 || attr.xrcd.is_null();
    if abi.qp_type == IBV_QPT_XRC_RECV && no_domain {
        attr.xrcd = id.device.xrcd()?;
        attr.comp_mask |= IBV_QP_INIT_ATTR_XRCD;
    }
    Ok(())
}

/// Makes the id's queue pair.
pub(crate) fn create(id: &Id, attr: &mut ibv_qp_init_attr_ex) -> Result<(), Refused> {
    complete(id, attr)?;
    // SAFETY: the id's own structure.
    let abi = unsafe { &mut *id.abi() };
    let size = |own: *mut ibv_cq, given: *mut ibv_cq, size: u32| {
        if own.is_null() && given.is_null() { size } else { 0 }
    };
    create_cqs(
        id,
        size(abi.send_cq, attr.send_cq, attr.cap.max_send_wr),
        size(abi.recv_cq, attr.recv_cq, attr.cap.max_recv_wr),
    )?;
    if attr.send_cq.is_null() {
        attr.send_cq = abi.send_cq;
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = abi.recv_cq;
    }
    if attr.srq.is_null() {
        attr.srq = abi.srq;
    }
    // Every NIC supports a few inline bytes, requested or not; rdma_xclient relies on it.
    attr.cap.max_inline_data = attr.cap.max_inline_data.max(attr.cap.max_send_sge.min(16) * INLINE_PER_SGE);
    // SAFETY: an open context, and attributes.
    let qp = made(unsafe { create_qp_of(abi.verbs, attr) }).inspect_err(|_| destroy_cqs(id))?;
    if let Err(refused) = initialise(id, qp) {
        // SAFETY: just made and not published.
        unsafe { ibv_destroy_qp(qp) };
        destroy_cqs(id);
        return Err(refused);
    }
    // SAFETY: just made. An XRC target queue pair has no protection domain.
    let pd = unsafe { (*qp).pd };
    if !pd.is_null() {
        abi.pd = pd;
    }
    abi.qp = qp;
    Ok(())
}

pub(crate) unsafe extern "C" fn create_qp_ex(id: *mut rdma_cm_id, attr: *mut ibv_qp_init_attr_ex) -> c_int {
    guard::minus_one("rdma_create_qp_ex", || {
        // SAFETY: an id of ours, and the program's attributes.
        let (id, attr) = unsafe { (Id::of(id)?, attr.as_mut().ok_or(invalid("attr is NULL"))?) };
        create(id, attr)
    })
}

pub(crate) unsafe extern "C" fn create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> c_int {
    guard::minus_one("rdma_create_qp", || {
        // SAFETY: an id of ours, and the program's attributes.
        let (id, attr) = unsafe { (Id::of(id)?, attr.as_mut().ok_or(invalid("attr is NULL"))?) };
        create_plain(id, pd, attr)
    })
}

/// The same with plain attributes, which the call updates with the actual sizes.
pub(crate) fn create_plain(id: &Id, pd: *mut ibv_pd, attr: &mut ibv_qp_init_attr) -> Result<(), Refused> {
    let mut wanted = extended(attr);
    wanted.pd = pd;
    let made = create(id, &mut wanted);
    (attr.send_cq, attr.recv_cq, attr.srq) = (wanted.send_cq, wanted.recv_cq, wanted.srq);
    attr.cap = wanted.cap;
    made
}

/// Destroys the id's queue pair and its completion queues.
pub(crate) fn destroy(id: &Id) {
    // SAFETY: the id's own structure, and its queue pair.
    unsafe {
        let qp = std::mem::replace(&mut (*id.abi()).qp, std::ptr::null_mut());
        if !qp.is_null() {
            ibv_destroy_qp(qp);
        }
    }
    destroy_cqs(id);
}

pub(crate) unsafe extern "C" fn destroy_qp(id: *mut rdma_cm_id) {
    guard::quiet("rdma_destroy_qp", || {
        // SAFETY: an id of ours.
        destroy(unsafe { Id::of(id)? });
        Ok(())
    });
}

pub(crate) unsafe extern "C" fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    guard::minus_one("rdma_init_qp_attr", || {
        // SAFETY: an id of ours; the others are NULL, or memory for the results.
        let (id, attr, mask) = unsafe { (Id::of(id)?, attr.as_mut(), mask.as_mut()) };
        let (Some(attr), Some(mask)) = (attr, mask) else { return Err(invalid("qp_attr or mask is NULL")) };
        (*attr, *mask) = attributes(id, attr.qp_state)?;
        Ok(())
    })
}
