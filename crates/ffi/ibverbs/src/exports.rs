//! The names that programs link with.

use crate::handle::destroy;
use crate::{
    ah, buf, channel, cq, device, ece, event, fork, gid, import, kern, mcast, mr, names, neighbour, pd,
    private, qp, query, rates, srq, sysfs,
};
use ferroce_bridge::export;

export! {
    "ibv_create_ah" => ah::create_ah,
    "ibv_create_ah_from_wc" => ah::create_ah_from_wc,
    "ibv_destroy_ah" => destroy::<ah::AhObject>,
    "ibv_init_ah_from_wc" => ah::init_ah_from_wc,
    "ibv_alloc_buf" => buf::alloc_buf,
    "ibv_export_buf_dmabuf_fd" => buf::export_buf_dmabuf_fd,
    "ibv_free_buf" => buf::free_buf,
    "ibv_ack_cq_events" => channel::ack_cq_events,
    "ibv_create_comp_channel" => channel::create_comp_channel,
    "ibv_destroy_comp_channel" => destroy::<channel::ChannelObject>,
    "ibv_get_cq_event" => channel::get_cq_event,
    "ibv_create_cq" => cq::create_cq,
    "ibv_destroy_cq" => destroy::<cq::CqObject>,
    "ibv_resize_cq" => cq::resize_cq,
    "ibv_close_device" => device::close_device,
    "ibv_free_device_list" => device::free_device_list,
    "ibv_get_device_guid" => device::get_device_guid,
    "ibv_get_device_index" => device::get_device_index,
    "ibv_get_device_list" => device::get_device_list,
    "ibv_get_device_name" => device::get_device_name,
    "ibv_open_device" => device::open_device,
    "ibv_query_ece" => ece::query_ece,
    "ibv_query_qp_data_in_order" => ece::query_qp_data_in_order,
    "ibv_set_ece" => ece::set_ece,
    "ibv_ack_async_event" => event::ack_async_event,
    "ibv_get_async_event" => event::get_async_event,
    "ibv_dofork_range" => fork::fork_range,
    "ibv_dontfork_range" => fork::fork_range,
    "ibv_fork_init" => fork::fork_init,
    "ibv_is_fork_initialized" => fork::is_fork_initialized,
    "_ibv_query_gid_ex" => gid::query_gid_ex,
    "_ibv_query_gid_table" => gid::query_gid_table,
    "ibv_query_gid" => gid::query_gid,
    "ibv_import_device" => import::import_device,
    "ibv_import_dm" => import::import_dm,
    "ibv_import_mr" => import::import_mr,
    "ibv_import_pd" => import::import_pd,
    "ibv_unimport_dm" => import::unimport_dm,
    "ibv_unimport_mr" => import::unimport_mr,
    "ibv_unimport_pd" => import::unimport_pd,
    "ibv_attach_mcast" => mcast::attach_mcast,
    "ibv_detach_mcast" => mcast::detach_mcast,
    "ibv_dereg_mr" => destroy::<mr::MrObject>,
    "ibv_reg_buf_mr" => mr::reg_buf_mr,
    "ibv_reg_dmabuf_mr" => mr::reg_dmabuf_mr,
    "ibv_reg_mr" => mr::reg_mr,
    "ibv_reg_mr_ex" => mr::reg_mr_ex,
    "ibv_reg_mr_iova" => mr::reg_mr_iova2,
    "ibv_reg_mr_iova2" => mr::reg_mr_iova2,
    "ibv_rereg_mr" => mr::rereg_mr,
    "ibv_event_type_str" => names::event_type_str,
    "ibv_node_type_str" => names::node_type_str,
    "ibv_port_state_str" => names::port_state_str,
    "ibv_wc_status_str" => names::wc_status_str,
    "ibv_alloc_pd" => pd::alloc_pd,
    "ibv_dealloc_pd" => destroy::<pd::PdObject>,
    "ibv_copy_ah_attr_from_kern" => kern::copy_ah_attr_from_kern,
    "ibv_copy_path_rec_from_kern" => kern::copy_path_rec_from_kern,
    "ibv_copy_path_rec_to_kern" => kern::copy_path_rec_to_kern,
    "ibv_copy_qp_attr_from_kern" => kern::copy_qp_attr_from_kern,
    "ibv_resolve_eth_l2_from_gid" => neighbour::resolve_eth_l2_from_gid,
    "ibv_create_qp" => qp::create_qp,
    "ibv_destroy_qp" => destroy::<qp::QpObject>,
    "ibv_modify_qp" => qp::modify_qp,
    "ibv_qp_to_qp_ex" => qp::qp_to_qp_ex,
    "ibv_query_qp" => qp::query_qp,
    "ibv_get_pkey_index" => query::get_pkey_index,
    "ibv_query_device" => query::query_device,
    "ibv_query_pkey" => query::query_pkey,
    "ibv_query_port" => query::query_port,
    "ibv_query_port_speed" => query::query_port_speed,
    "ibv_rate_to_mbps" => rates::rate_to_mbps,
    "ibv_rate_to_mult" => rates::rate_to_mult,
    "mbps_to_ibv_rate" => rates::mbps_to_rate,
    "mult_to_ibv_rate" => rates::mult_to_rate,
    "ibv_create_srq" => srq::create_srq,
    "ibv_destroy_srq" => destroy::<srq::SrqObject>,
    "ibv_modify_srq" => srq::modify_srq,
    "ibv_query_srq" => srq::query_srq,
    "ibv_get_sysfs_path" => sysfs::get_sysfs_path,
    "ibv_read_sysfs_file" => sysfs::read_sysfs_file,
}

// Verbs for hardware that is absent: DMA handles, counters of completions, device memory as a dma-buf.
export! {
    "ibv_alloc_dmah" | "ibv_create_comp_cntr" => private::no_object,
    "ibv_dm_export_dmabuf_fd" => private::no_descriptor,
    "_ibv_query_comp_cntr_caps" | "ibv_dealloc_dmah" | "ibv_destroy_comp_cntr" | "ibv_inc_comp_cntr" |
    "ibv_inc_err_comp_cntr" | "ibv_qp_attach_comp_cntr" | "ibv_read_comp_cntr" | "ibv_read_err_comp_cntr" |
    "ibv_set_comp_cntr" | "ibv_set_err_comp_cntr" => private::no_driver,
}

// Private functions of the real library, for the libraries of vendors.
export! {
    "ibv_query_gid_type" => gid::query_gid_type,
    "__ioctl_final_num_attrs" | "execute_ioctl" | "ibv_cmd_advise_mr" | "ibv_cmd_alloc_dm" |
    "ibv_cmd_alloc_mw" | "ibv_cmd_alloc_pd" | "ibv_cmd_attach_mcast" | "ibv_cmd_close_xrcd" |
    "ibv_cmd_create_ah" | "ibv_cmd_create_counters" | "ibv_cmd_create_cq" | "ibv_cmd_create_cq_ex" |
    "ibv_cmd_create_flow" | "ibv_cmd_create_flow_action_esp" | "ibv_cmd_create_qp" | "ibv_cmd_create_qp_ex" |
    "ibv_cmd_create_qp_ex2" | "ibv_cmd_create_rwq_ind_table" | "ibv_cmd_create_srq" |
    "ibv_cmd_create_srq_ex" | "ibv_cmd_create_wq" | "ibv_cmd_dealloc_mw" | "ibv_cmd_dealloc_pd" |
    "ibv_cmd_dereg_mr" | "ibv_cmd_destroy_ah" | "ibv_cmd_destroy_counters" | "ibv_cmd_destroy_cq" |
    "ibv_cmd_destroy_flow" | "ibv_cmd_destroy_flow_action" | "ibv_cmd_destroy_qp" |
    "ibv_cmd_destroy_rwq_ind_table" | "ibv_cmd_destroy_srq" | "ibv_cmd_destroy_wq" | "ibv_cmd_detach_mcast" |
    "ibv_cmd_free_dm" | "ibv_cmd_get_context" | "ibv_cmd_modify_cq" | "ibv_cmd_modify_flow_action_esp" |
    "ibv_cmd_modify_qp" | "ibv_cmd_modify_qp_ex" | "ibv_cmd_modify_srq" | "ibv_cmd_modify_wq" |
    "ibv_cmd_open_qp" | "ibv_cmd_open_xrcd" | "ibv_cmd_poll_cq" | "ibv_cmd_post_recv" | "ibv_cmd_post_send" |
    "ibv_cmd_post_srq_recv" | "ibv_cmd_query_context" | "ibv_cmd_query_device_any" | "ibv_cmd_query_mr" |
    "ibv_cmd_query_port" | "ibv_cmd_query_qp" | "ibv_cmd_query_srq" | "ibv_cmd_read_counters" |
    "ibv_cmd_reg_dm_mr" | "ibv_cmd_reg_dmabuf_mr" | "ibv_cmd_reg_mr" | "ibv_cmd_req_notify_cq" |
    "ibv_cmd_rereg_mr" | "ibv_cmd_resize_cq" => private::no_driver,
    "__verbs_log" | "verbs_init_cq" | "verbs_register_driver_34" | "verbs_set_ops" |
    "verbs_uninit_context" => private::nothing,
    "_verbs_init_and_alloc_context" | "verbs_open_device" => private::no_object,
    "ibv_read_ibdev_sysfs_file" => private::no_file,
}

// A flag that those libraries read: one byte, false.
core::arch::global_asm!(
    ".pushsection .data.exports,\"aw\",@progbits",
    ".globl verbs_allow_disassociate_destroy",
    ".type verbs_allow_disassociate_destroy,@object",
    "verbs_allow_disassociate_destroy:",
    ".byte 0",
    ".size verbs_allow_disassociate_destroy, 1",
    ".popsection",
);
