//! Queue pairs that spread raw packets over a table of work queues.

use super::create::{Made, publish};
use crate::abi::*;
use crate::context::Context;
use crate::cq::CqObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::handle::Handle;
use crate::pd::PdObject;
use crate::wq::TableObject;
use ferroce_nic::{EventSource, HashFields, QpInit, RxHash};
use ferroce_proto::verbs::{QpCap, Transport};

/// # Safety
/// What `ibv_create_qp_ex` demands of the program.
pub(super) unsafe fn create_spread(
    context: *mut ibv_context,
    attr: &ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Refused> {
    let needed = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    if attr.comp_mask & needed != needed || attr.qp_type != IBV_QPT_RAW_PACKET || !attr.srq.is_null() {
        return Err(invalid(
            "spreading needs raw packets, a domain, a table and a hash, and no shared queue",
        ));
    }
    if attr.cap.max_send_wr != 0 || attr.cap.max_recv_wr != 0 {
        return Err(invalid("a queue pair that spreads has no queues of its own"));
    }
    let table: *mut ibv_rwq_ind_table = attr.rwq_ind_tbl.cast();
    // SAFETY: objects of ours, as the verb demands.
    let ((domain, made_in), table) = unsafe { (PdObject::of(attr.pd)?, Handle::<TableObject>::of(table)?) };
    // SAFETY: as above; the table holds the work queues, and these hold their completion queues.
    let (owner, cq) = unsafe { (Context::of(context)?, CqObject::of(table.cq)?) };
    if made_in != context {
        return Err(invalid("the protection domain belongs to another context"));
    }
    let init = QpInit {
        transport: Transport::Ud,
        send_cq: &cq.cq,
        recv_cq: &cq.cq,
        srq: None,
        cap: QpCap::default(),
        signal_all: false,
    };
    let qp = domain.pd.create_spread_qp(&init, &table.queues, hash(&attr.rx_hash_conf)?)?;
    let held = vec![owner.uses.hold(), domain.uses.hold(), table.uses.hold()];
    let source = EventSource::Qp(qp.qpn());
    let mut abi = ibv_qp_ex::zeroed();
    abi.base.pd = attr.pd;
    (abi.base.qp_context, abi.base.qp_type) = (attr.qp_context, attr.qp_type);
    // SAFETY: a context of ours.
    unsafe { publish(context, abi, qp, Made { source, signal_all: false, builder: None, held }) }
}

fn hash(conf: &ibv_rx_hash_conf) -> Result<RxHash, Refused> {
    if conf.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ || conf.rx_hash_key.is_null() {
        return Err(invalid("the hash is Toeplitz, with a key"));
    }
    let fields = HashFields::from_bits(conf.rx_hash_fields_mask);
    let fields = fields.ok_or(unsupported("fields that the device cannot hash"))?;
    // SAFETY: the program's key has `rx_hash_key_len` bytes.
    let key = unsafe { std::slice::from_raw_parts(conf.rx_hash_key, conf.rx_hash_key_len.into()) };
    Ok(RxHash::new(key, fields)?)
}
