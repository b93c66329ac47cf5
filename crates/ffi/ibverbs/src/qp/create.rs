//! Making a queue pair.

use super::builder::{self, Builder};
use super::{Held, QpObject};
use crate::abi::*;
use crate::acks::Acks;
use crate::context::{Context, Target};
use crate::cq::CqObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::{Handle, Uses};
use crate::pd::PdObject;
use crate::srq::SrqObject;
use ferroce_nic::{EventSource, QpInit};
use ferroce_proto::verbs::{QpCap, Transport};

pub(crate) unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    guard::pointer("ibv_create_qp", || {
        // SAFETY: the program's attributes, into which the real sizes go.
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
        let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        if attr.comp_mask & !known != 0 {
            return Err(unsupported("comp_mask asks for something that the device does not have"));
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0 && attr.create_flags != 0 {
            return Err(unsupported("create_flags that the device does not have"));
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(invalid("a queue pair needs a protection domain"));
        }
        // SAFETY: a domain of ours.
        if unsafe { PdObject::of(attr.pd)? }.1 != context {
            return Err(invalid("the protection domain belongs to another context"));
        }
        let has_ops = attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let ops = has_ops.then_some(attr.send_ops_flags);
        // SAFETY: what the verb demands of the program; the long form starts with the short one.
        unsafe { create(attr.pd, &mut *init.cast::<ibv_qp_init_attr>(), ops) }
    })
}

fn transport(qp_type: u32) -> Result<Transport, Refused> {
    match qp_type {
        IBV_QPT_RC => Ok(Transport::Rc),
        IBV_QPT_UC => Ok(Transport::Uc),
        IBV_QPT_UD => Ok(Transport::Ud),
        _ => Err(unsupported("the device has no queue pairs of this type")),
    }
}

unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Result<*mut ibv_qp, Refused> {
    // SAFETY: objects of ours, as the verb demands.
    let (domain, context) = unsafe { PdObject::of(pd)? };
    // SAFETY: as above.
    let owner = unsafe { Context::of(context)? };
    // SAFETY: as above.
    let (send_cq, recv_cq) = unsafe { (CqObject::of(init.send_cq)?, CqObject::of(init.recv_cq)?) };
    let srq = match init.srq.is_null() {
        true => None,
        // SAFETY: as above.
        false => Some(unsafe { Handle::<SrqObject>::of(init.srq)? }),
    };
    let transport = transport(init.qp_type)?;
    let qp = domain.pd.create_qp(&QpInit {
        transport,
        send_cq: &send_cq.cq,
        recv_cq: &recv_cq.cq,
        srq: srq.map(|srq| &srq.srq),
        cap: cap_in(&init.cap),
        signal_all: init.sq_sig_all != 0,
    })?;
    let cap = qp.query().cap;
    let builder = ops.map(|wanted| Builder::new(transport, wanted, cap)).transpose()?;
    init.cap = cap_out(&cap);
    let qpn = qp.qpn();
    let mut abi = ibv_qp_ex::zeroed();
    abi.base.context = context;
    abi.base.qp_context = init.qp_context;
    abi.base.pd = pd;
    (abi.base.send_cq, abi.base.recv_cq, abi.base.srq) = (init.send_cq, init.recv_cq, init.srq);
    (abi.base.handle, abi.base.qp_num) = (qpn.value(), qpn.value());
    abi.base.qp_type = init.qp_type;
    abi.base.mutex = libc::PTHREAD_MUTEX_INITIALIZER;
    abi.base.cond = libc::PTHREAD_COND_INITIALIZER;
    if builder.is_some() {
        builder::fill(&mut abi);
    }
    let object = QpObject {
        qp,
        acks: Acks::default(),
        uses: Uses::default(),
        signal_all: init.sq_sig_all != 0,
        builder,
        _held: Held {
            _context: owner.uses.hold(),
            _pd: domain.uses.hold(),
            _send_cq: send_cq.uses.hold(),
            _recv_cq: recv_cq.uses.hold(),
            _srq: srq.map(|srq| srq.uses.hold()),
        },
    };
    // SAFETY: a domain of ours.
    let made: *mut ibv_qp = Handle::publish_in(unsafe { PdObject::lender(pd) }, abi, object)?.cast();
    owner.targets.lock().insert(EventSource::Qp(qpn), Target::Qp(made));
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

/// Sizes as a program reads them.
pub(super) fn cap_out(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}
