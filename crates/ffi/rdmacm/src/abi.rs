//! The structures of <rdma/rdma_cma.h>, byte for byte as rdma-core 44 lays them out, and its numbers.
//!
//! Compiled programs access these fields directly, as they do with those of the verbs.
#![allow(non_camel_case_types, dead_code, reason = "the names are the header's, and all of them are there")]

pub(crate) use ferroce_bridge::verbs::*;

use libc::{sockaddr, sockaddr_storage, socklen_t};
use std::ffi::{c_char, c_int, c_void};

pub(crate) const RDMA_CM_EVENT_ADDR_RESOLVED: u32 = 0;
pub(crate) const RDMA_CM_EVENT_ADDR_ERROR: u32 = 1;
pub(crate) const RDMA_CM_EVENT_ROUTE_RESOLVED: u32 = 2;
pub(crate) const RDMA_CM_EVENT_ROUTE_ERROR: u32 = 3;
pub(crate) const RDMA_CM_EVENT_CONNECT_REQUEST: u32 = 4;
pub(crate) const RDMA_CM_EVENT_CONNECT_RESPONSE: u32 = 5;
pub(crate) const RDMA_CM_EVENT_CONNECT_ERROR: u32 = 6;
pub(crate) const RDMA_CM_EVENT_UNREACHABLE: u32 = 7;
pub(crate) const RDMA_CM_EVENT_REJECTED: u32 = 8;
pub(crate) const RDMA_CM_EVENT_ESTABLISHED: u32 = 9;
pub(crate) const RDMA_CM_EVENT_DISCONNECTED: u32 = 10;
pub(crate) const RDMA_CM_EVENT_DEVICE_REMOVAL: u32 = 11;
pub(crate) const RDMA_CM_EVENT_MULTICAST_JOIN: u32 = 12;
pub(crate) const RDMA_CM_EVENT_MULTICAST_ERROR: u32 = 13;
pub(crate) const RDMA_CM_EVENT_ADDR_CHANGE: u32 = 14;

pub(crate) const RDMA_PS_IPOIB: u32 = 0x0002;
pub(crate) const RDMA_PS_TCP: u32 = 0x0106;
pub(crate) const RDMA_PS_UDP: u32 = 0x0111;
pub(crate) const RDMA_PS_IB: u32 = 0x013f;

/// Depths that request the maximum of the device.
pub(crate) const RDMA_MAX_RESP_RES: u8 = 0xff;
pub(crate) const RDMA_MAX_INIT_DEPTH: u8 = 0xff;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_ib_addr {
    pub sgid: ibv_gid,
    pub dgid: ibv_gid,
    pub pkey: u16,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_addr {
    pub src: sockaddr_storage,
    pub dst: sockaddr_storage,
    pub ibaddr: rdma_ib_addr,
}
layout!(rdma_addr, 296, dst = 128, ibaddr = 256);

#[repr(C)]
pub(crate) struct rdma_route {
    pub addr: rdma_addr,
    pub path_rec: *mut ibv_sa_path_rec,
    pub num_paths: c_int,
}
layout!(rdma_route, 312, path_rec = 296, num_paths = 304);

#[repr(C)]
pub(crate) struct rdma_event_channel {
    pub fd: c_int,
}
layout!(rdma_event_channel, 4);

#[repr(C)]
pub(crate) struct rdma_cm_id {
    pub verbs: *mut ibv_context,
    pub channel: *mut rdma_event_channel,
    pub context: *mut c_void,
    pub qp: *mut ibv_qp,
    pub route: rdma_route,
    pub ps: u32,
    pub port_num: u8,
    pub event: *mut rdma_cm_event,
    pub send_cq_channel: *mut ibv_comp_channel,
    pub send_cq: *mut ibv_cq,
    pub recv_cq_channel: *mut ibv_comp_channel,
    pub recv_cq: *mut ibv_cq,
    pub srq: *mut ibv_srq,
    pub pd: *mut ibv_pd,
    pub qp_type: u32,
}
layout!(
    rdma_cm_id,
    416,
    channel = 8,
    context = 16,
    qp = 24,
    route = 32,
    ps = 344,
    port_num = 348,
    event = 352,
    send_cq_channel = 360,
    send_cq = 368,
    recv_cq_channel = 376,
    recv_cq = 384,
    srq = 392,
    pd = 400,
    qp_type = 408
);
zeroed!(rdma_cm_id);

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_conn_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub responder_resources: u8,
    pub initiator_depth: u8,
    pub flow_control: u8,
    pub retry_count: u8,
    pub rnr_retry_count: u8,
    pub srq: u8,
    pub qp_num: u32,
}
layout!(rdma_conn_param, 24, private_data_len = 8, srq = 14, qp_num = 16);
zeroed!(rdma_conn_param);

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct rdma_ud_param {
    pub private_data: *const c_void,
    pub private_data_len: u8,
    pub ah_attr: ibv_ah_attr,
    pub qp_num: u32,
    pub qkey: u32,
}
layout!(rdma_ud_param, 56, ah_attr = 16, qp_num = 48, qkey = 52);

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) union rdma_event_param {
    pub conn: rdma_conn_param,
    pub ud: rdma_ud_param,
}

#[repr(C)]
pub(crate) struct rdma_cm_event {
    pub id: *mut rdma_cm_id,
    pub listen_id: *mut rdma_cm_id,
    pub event: u32,
    pub status: c_int,
    pub param: rdma_event_param,
}
layout!(rdma_cm_event, 80, event = 16, status = 20, param = 24);
zeroed!(rdma_cm_event);

pub(crate) const RAI_PASSIVE: c_int = 1;
pub(crate) const RAI_NUMERICHOST: c_int = 1 << 1;
pub(crate) const RAI_NOROUTE: c_int = 1 << 2;
pub(crate) const RAI_FAMILY: c_int = 1 << 3;

#[repr(C)]
pub(crate) struct rdma_addrinfo {
    pub ai_flags: c_int,
    pub ai_family: c_int,
    pub ai_qp_type: c_int,
    pub ai_port_space: c_int,
    pub ai_src_len: socklen_t,
    pub ai_dst_len: socklen_t,
    pub ai_src_addr: *mut sockaddr,
    pub ai_dst_addr: *mut sockaddr,
    pub ai_src_canonname: *mut c_char,
    pub ai_dst_canonname: *mut c_char,
    pub ai_route_len: usize,
    pub ai_route: *mut c_void,
    pub ai_connect_len: usize,
    pub ai_connect: *mut c_void,
    pub ai_next: *mut rdma_addrinfo,
}
layout!(rdma_addrinfo, 96, ai_src_addr = 24, ai_route_len = 56, ai_next = 88);
zeroed!(rdma_addrinfo);

pub(crate) const RDMA_CM_JOIN_MC_ATTR_ADDRESS: u32 = 1;
pub(crate) const RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS: u32 = 1 << 1;
pub(crate) const RDMA_MC_JOIN_FLAG_FULLMEMBER: u32 = 0;
pub(crate) const RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER: u32 = 1;

#[repr(C)]
pub(crate) struct rdma_cm_join_mc_attr_ex {
    pub comp_mask: u32,
    pub join_flags: u32,
    pub addr: *mut sockaddr,
}
layout!(rdma_cm_join_mc_attr_ex, 16, addr = 8);

pub(crate) const RDMA_OPTION_ID: c_int = 0;
pub(crate) const RDMA_OPTION_IB: c_int = 1;
pub(crate) const RDMA_OPTION_ID_TOS: c_int = 0;
pub(crate) const RDMA_OPTION_ID_REUSEADDR: c_int = 1;
pub(crate) const RDMA_OPTION_ID_AFONLY: c_int = 2;
pub(crate) const RDMA_OPTION_ID_ACK_TIMEOUT: c_int = 3;
pub(crate) const RDMA_OPTION_IB_PATH: c_int = 1;
