//! The tables of operations that the inline verbs of <infiniband/verbs.h> call.
//!
//! A slot that stays NULL makes the inline verb answer EOPNOTSUPP. What is filled in here must also be reported by
//! `query_device_ex`, and the other way round.

use crate::abi::verbs_context;
use crate::{advise, cq, cq_ex, dm, mr, mw, query, recv, send, srq, xrcd};

/// Fills in what there is.
pub(crate) fn fill(context: &mut verbs_context) {
    context.query_port = Some(query::query_port_len);
    context.query_device_ex = Some(query::query_device_ex);
    context.create_cq_ex = Some(cq_ex::create_cq_ex);
    context.create_qp_ex = Some(crate::qp::create_qp_ex);
    context.open_qp = Some(crate::qp::open_qp);
    context.open_xrcd = Some(xrcd::open_xrcd);
    context.close_xrcd = Some(xrcd::close_xrcd);
    context.create_srq_ex = Some(srq::create_srq_ex);
    context.get_srq_num = Some(srq::get_srq_num);
    context.alloc_null_mr = Some(mr::alloc_null_mr);
    context.advise_mr = Some(advise::advise_mr);
    context.alloc_dm = Some(dm::alloc_dm);
    context.free_dm = Some(dm::free_dm);
    context.reg_dm_mr = Some(dm::reg_dm_mr);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(send::post_send);
    ops.post_recv = Some(recv::post_recv);
    ops.post_srq_recv = Some(recv::post_srq_recv);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(mw::dealloc_mw);
}
