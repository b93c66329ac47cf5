//! The tables of operations that the inline verbs of <infiniband/verbs.h> call.
//!
//! A slot that stays NULL makes the inline verb answer EOPNOTSUPP. What is filled in here must also be reported by
//! `query_device_ex`, and the other way round.

use crate::abi::verbs_context;
use crate::{clock, cq, cq_ex, domain, query, recv, send};

/// Fills in what there is.
pub(crate) fn fill(context: &mut verbs_context) {
    context.query_port = Some(query::query_port_len);
    context.query_device_ex = Some(query::query_device_ex);
    context.create_cq_ex = Some(cq_ex::create_cq_ex);
    context.create_qp_ex = Some(crate::qp::create_qp_ex);
    context.alloc_td = Some(domain::alloc_td);
    context.dealloc_td = Some(domain::dealloc_td);
    context.alloc_parent_domain = Some(domain::alloc_parent_domain);
    context.query_rt_values = Some(clock::query_rt_values);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(send::post_send);
    ops.post_recv = Some(recv::post_recv);
    ops.post_srq_recv = Some(recv::post_srq_recv);
}
