//! The tables of operations that the inline verbs of <infiniband/verbs.h> call.
//!
//! A NULL slot makes the inline verb return EOPNOTSUPP. Slots and `query_device_ex` must report the same operations.

use crate::abi::verbs_context;
use crate::handle::destroy;
use crate::{
    advise, clock, counters, cq, cq_ex, dm, domain, flow, mr, mw, query, recorded, recv, send, srq, watched,
    wq, xrcd,
};

/// Fills in all supported operations.
pub(crate) fn fill(context: &mut verbs_context, is_watched: bool) {
    context.query_port = Some(query::query_port_len);
    context.query_device_ex = Some(query::query_device_ex);
    context.create_cq_ex = Some(cq_ex::create_cq_ex);
    context.create_qp_ex = Some(crate::qp::create_qp_ex);
    context.open_qp = Some(crate::qp::open_qp);
    context.open_xrcd = Some(xrcd::open_xrcd);
    context.close_xrcd = Some(destroy::<xrcd::XrcdObject>);
    context.create_srq_ex = Some(srq::create_srq_ex);
    context.get_srq_num = Some(srq::get_srq_num);
    context.alloc_null_mr = Some(mr::alloc_null_mr);
    context.advise_mr = Some(advise::advise_mr);
    context.alloc_dm = Some(dm::alloc_dm);
    context.free_dm = Some(destroy::<dm::DmObject>);
    context.reg_dm_mr = Some(dm::reg_dm_mr);
    context.alloc_td = Some(domain::alloc_td);
    context.dealloc_td = Some(destroy::<domain::TdObject>);
    context.alloc_parent_domain = Some(domain::alloc_parent_domain);
    context.query_rt_values = Some(clock::query_rt_values);
    context.ibv_create_flow = Some(flow::create_flow);
    context.ibv_destroy_flow = Some(destroy::<flow::FlowObject>);
    context.create_counters = Some(counters::create_counters);
    context.destroy_counters = Some(destroy::<counters::CountersObject>);
    context.attach_counters_point_flow = Some(counters::attach_counters_point_flow);
    context.read_counters = Some(counters::read_counters);
    context.create_wq = Some(wq::create_wq);
    context.modify_wq = Some(wq::modify_wq);
    context.destroy_wq = Some(destroy::<wq::WqObject>);
    context.create_rwq_ind_table = Some(wq::create_rwq_ind_table);
    context.destroy_rwq_ind_table = Some(destroy::<wq::TableObject>);
    context.modify_cq = Some(cq::modify_cq);
    let ops = &mut context.context.ops;
    ops.poll_cq = Some(cq::poll_cq);
    ops.req_notify_cq = Some(cq::req_notify_cq);
    ops.post_send = Some(send::post_send);
    ops.post_recv = Some(recv::post_recv);
    ops.post_srq_recv = Some(recv::post_srq_recv);
    ops.alloc_mw = Some(mw::alloc_mw);
    ops.bind_mw = Some(mw::bind_mw);
    ops.dealloc_mw = Some(destroy::<mw::MwObject>);
    recorded::fill(ops);
    watched::fill(ops, is_watched);
}
