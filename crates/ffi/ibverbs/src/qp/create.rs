//! Creating a queue pair.

use super::QpObject;
use super::builder::{self, Builder};
use super::spread::create_spread;
use crate::abi::*;
use crate::acks::Acks;
use crate::context::{Context, Target};
use crate::cq::CqObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Use, Uses};
use crate::pd::PdObject;
use crate::srq::SrqObject;
use crate::watched::LiveObject;
use crate::xrcd::XrcdObject;
use ferroce_nic::lock::Mutex;
use ferroce_nic::{EventSource, Qp, QpInit};
use ferroce_proto::verbs::{Access, AttrMask, QpAttr, QpCap, Transport};
use std::ffi::c_void;

pub(crate) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    guard::pointer("ibv_create_qp", || {
        // SAFETY: the program's attributes, which the call updates with the actual sizes.
        let init = unsafe { init.as_mut() }.ok_or(invalid("qp_init_attr is NULL"))?;
        // SAFETY: what the verb demands of the program.
        unsafe { create(pd, init, None) }
    })
}

pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    guard::pointer("ibv_create_qp_ex", || {
        // SAFETY: the program's attributes.
        let attr = unsafe { init.as_ref() }.ok_or(invalid("qp_init_attr_ex is NULL"))?;
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_IND_TABLE
            | IBV_QP_INIT_ATTR_RX_HASH
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let has = |bit| attr.comp_mask & bit != 0;
        if attr.comp_mask & !known != 0 {
            return Err(unsupported("comp_mask asks for something that the device does not have"));
        }
        if has(IBV_QP_INIT_ATTR_CREATE_FLAGS) && attr.create_flags != 0 {
            return Err(unsupported("create_flags that the device does not have"));
        }
        if has(IBV_QP_INIT_ATTR_IND_TABLE) || has(IBV_QP_INIT_ATTR_RX_HASH) {
            // SAFETY: what the verb demands of the program.
            return unsafe { create_spread(context, attr) };
        }
        if attr.qp_type == IBV_QPT_XRC_RECV {
            // SAFETY: what the verb demands of the program.
            return unsafe { create_xrc_recv(context, attr) };
        }
        if !has(IBV_QP_INIT_ATTR_PD) {
            return Err(invalid("a queue pair needs a protection domain"));
        }
        // SAFETY: a domain of ours.
        if unsafe { PdObject::of(attr.pd)? }.1 != context {
            return Err(invalid("the protection domain belongs to another context"));
        }
        let ops = has(IBV_QP_INIT_ATTR_SEND_OPS_FLAGS).then_some(attr.send_ops_flags);
        // SAFETY: what the verb demands of the program; the long form starts with the short one.
        unsafe { create(attr.pd, &mut *init.cast::<ibv_qp_init_attr>(), ops) }
    })
}

fn transport(qp_type: u32) -> Result<Transport, Refused> {
    match qp_type {
        IBV_QPT_RC => Ok(Transport::Rc),
        IBV_QPT_UC => Ok(Transport::Uc),
        // For posting, raw packets are datagrams without an address.
        IBV_QPT_UD | IBV_QPT_RAW_PACKET => Ok(Transport::Ud),
        IBV_QPT_XRC_SEND => Ok(Transport::XrcIni),
        IBV_QPT_XRC_RECV => Err(invalid("a receiving end of XRC is made with an XRC domain")),
        _ => Err(unsupported("the device has no queue pairs of this type")),
    }
}

unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, Refused> {
    let verb = "ibv_create_qp";
    // SAFETY: objects of ours, as the verb demands.
    let (domain, context) = unsafe { PdObject::of(pd)? };
    // SAFETY: as above.
    let owner = unsafe { Context::of(context)? };
    let transport = transport(init.qp_type)?;
    // SAFETY: as above.
    let send_cq = unsafe { LiveObject::<CqObject>::of(verb, init.send_cq.cast())? };
    if transport == Transport::XrcIni {
        // It never receives, so the program need not set the field.
        init.recv_cq = init.send_cq;
    }
    // SAFETY: as above.
    let recv_cq = unsafe { LiveObject::<CqObject>::of(verb, init.recv_cq.cast())? };
    let srq = match init.srq.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { LiveObject::<SrqObject>::of(verb, init.srq)? }),
    };
    let wanted = QpInit {
        transport,
        send_cq: &send_cq.cq,
        recv_cq: &recv_cq.cq,
        srq: srq.as_ref().map(|srq| &srq.srq),
        cap: cap_in(&init.cap),
        signal_all: init.sq_sig_all != 0,
    };
    let qp = match init.qp_type {
        IBV_QPT_RAW_PACKET => domain.pd.create_raw_qp(&wanted)?,
        _ => domain.pd.create_qp(&wanted)?,
    };
    if owner.is_iwarp() {
        // `rdma_init_qp_attr` sets no access rights on a queue pair that the program creates itself and passes by number. As with siw,
        // the rights of the regions decide.
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        qp.modify(&QpAttr { access, ..QpAttr::default() }, AttrMask::ACCESS_FLAGS)?;
    }
    let cap = qp.query().cap;
    let builder = ops.map(|wanted| Builder::new(transport, wanted, cap)).transpose()?;
    init.cap = cap_out(&cap);
    let mut held = vec![owner.uses.hold(), domain.uses.hold(), send_cq.uses.hold(), recv_cq.uses.hold()];
    held.extend(srq.as_ref().map(|srq| srq.uses.hold()));
    let source = EventSource::Qp(qp.qpn());
    let mut abi = ibv_qp_ex::zeroed();
    abi.base.pd = pd;
    (abi.base.send_cq, abi.base.recv_cq, abi.base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (abi.base.qp_context, abi.base.qp_type) = (init.qp_context, init.qp_type);
    if builder.is_some() {
        builder::fill(&mut abi);
    }
    // SAFETY: the context of the domain.
    unsafe { publish(context, abi, qp, Made { source, signal_all: init.sq_sig_all != 0, builder, held }) }
}

unsafe fn create_xrc_recv(
    context: *mut ibv_context,
    attr: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Refused> {
    if attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        return Err(invalid("a receiving end of XRC needs an XRC domain"));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 && attr.send_ops_flags != 0 {
        return Err(unsupported("a receiving end of XRC sends nothing"));
    }
    // SAFETY: objects of ours, as the verb demands.
    let (owner, xrcd) = unsafe { (Context::of(context)?, XrcdObject::of(attr.xrcd, context)?) };
    let qp = xrcd.domain.create_target(&owner.nic)?;
    // SAFETY: as above.
    unsafe { publish_xrc_recv(context, owner, xrcd, qp, attr.qp_context) }
}

/// Publishes an XRC target queue pair to the program, or another handle of an existing one.
///
/// # Safety
/// A context of ours.
pub(super) unsafe fn publish_xrc_recv(
    context: *mut ibv_context,
    owner: &Context,
    xrcd: &XrcdObject,
    qp: Qp,
    cookie: *mut c_void,
) -> Result<*mut ibv_qp, Refused> {
    let held = vec![owner.uses.hold(), xrcd.uses.hold()];
    let source = EventSource::QpHandle(qp.qpn(), qp.handle());
    let mut abi = ibv_qp_ex::zeroed();
    (abi.base.qp_context, abi.base.qp_type) = (cookie, IBV_QPT_XRC_RECV);
    // SAFETY: as the caller promises.
    unsafe { publish(context, abi, qp, Made { source, signal_all: false, builder: None, held }) }
}

/// The fields of a queue pair's object besides the NIC's queue pair.
pub(super) struct Made {
    pub(super) source: EventSource,
    pub(super) signal_all: bool,
    pub(super) builder: Option<Builder>,
    pub(super) held: Vec<Use>,
}

/// Publishes a queue pair to the program.
///
/// # Safety
/// A context of ours.
pub(super) unsafe fn publish(
    context: *mut ibv_context,
    mut abi: ibv_qp_ex,
    qp: Qp,
    made: Made,
) -> Result<*mut ibv_qp, Refused> {
    // SAFETY: as the caller promises, a context of ours.
    let owner = unsafe { Context::of(context)? };
    let (number, state) = (qp.qpn().value(), qp.query().state as u32);
    abi.base.context = context;
    (abi.base.handle, abi.base.qp_num, abi.base.state) = (number, number, state);
    let Made { source, signal_all, builder, held } = made;
    let (acks, uses) = (Acks::default(), Uses::default());
    let object =
        QpObject { qp, acks, uses, groups: Mutex::default(), source, signal_all, builder, _held: held };
    // SAFETY: the domain is one of ours, or NULL.
    let lender = unsafe { PdObject::lender(abi.base.pd) };
    let made: *mut ibv_qp = Handle::publish_in(lender, abi, object)?.cast();
    owner.targets.lock().insert(source, Target::Qp(made));
    Ok(made)
}

fn cap_in(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

/// Converts the sizes for a program.
pub(super) fn cap_out(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}
