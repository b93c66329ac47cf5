//! GIDs, routes, address handles.

use super::*;

#[derive(Clone, Copy, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct ibv_gid {
    pub raw: [u8; 16],
}
layout!(ibv_gid, 16);

pub const IBV_GID_TYPE_IB: u32 = 0;
pub const IBV_GID_TYPE_ROCE_V2: u32 = 2;

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_gid_entry {
    pub gid: ibv_gid,
    pub gid_index: u32,
    pub port_num: u32,
    pub gid_type: u32,
    pub ndev_ifindex: u32,
}
layout!(ibv_gid_entry, 32, gid_index = 16, ndev_ifindex = 28);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_global_route {
    pub dgid: ibv_gid,
    pub flow_label: u32,
    pub sgid_index: u8,
    pub hop_limit: u8,
    pub traffic_class: u8,
}
layout!(ibv_global_route, 24, flow_label = 16, traffic_class = 22);

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct ibv_ah_attr {
    pub grh: ibv_global_route,
    pub dlid: u16,
    pub sl: u8,
    pub src_path_bits: u8,
    pub static_rate: u8,
    pub is_global: u8,
    pub port_num: u8,
}
layout!(ibv_ah_attr, 32, dlid = 24, is_global = 29, port_num = 30);

#[repr(C)]
pub struct ibv_ah {
    pub context: *mut ibv_context,
    pub pd: *mut ibv_pd,
    pub handle: u32,
}
layout!(ibv_ah, 24, pd = 8, handle = 16);
