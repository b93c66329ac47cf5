//! The device, its attributes and its port.

use super::*;

pub const IBV_NODE_CA: i32 = 1;
pub const IBV_NODE_RNIC: i32 = 4;
pub const IBV_TRANSPORT_IB: i32 = 0;
pub const IBV_TRANSPORT_IWARP: i32 = 1;

/// The rate of the port in units of 100 Mb/s. 25 Gb/s is typical for ferroce between two hosts, and programs have a name for it. The rate
/// in the device tree of `ferroce run` must be the same.
pub const PORT_SPEED: u64 = 250;
/// The same as `active_width` and `active_speed`: one lane of EDR.
pub const PORT_WIDTH: u8 = 1;
pub const PORT_LANE_SPEED: u8 = 32;
/// The same as a code of `enum ibv_rate`, for path records.
pub const PORT_RATE: u8 = 15;

#[repr(C)]
pub struct ibv_device {
    pub _ops: [*const (); 2],
    pub node_type: i32,
    pub transport_type: i32,
    pub name: [u8; 64],
    pub dev_name: [u8; 64],
    pub dev_path: [u8; 256],
    pub ibdev_path: [u8; 256],
}
layout!(
    ibv_device,
    664,
    node_type = 16,
    transport_type = 20,
    name = 24,
    dev_name = 88,
    dev_path = 152,
    ibdev_path = 408
);

/// libmlx5 and libefa read `ops` to recognise their own devices, so it stays NULL.
#[repr(C)]
pub struct verbs_device {
    pub device: ibv_device,
    pub ops: *const (),
    pub rest: [usize; 5],
}
layout!(verbs_device, 712, ops = 664);
zeroed!(verbs_device);

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_device_attr {
    pub fw_ver: [u8; 64],
    pub node_guid: [u8; 8],
    pub sys_image_guid: [u8; 8],
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: i32,
    pub max_qp_wr: i32,
    pub device_cap_flags: u32,
    pub max_sge: i32,
    pub max_sge_rd: i32,
    pub max_cq: i32,
    pub max_cqe: i32,
    pub max_mr: i32,
    pub max_pd: i32,
    pub max_qp_rd_atom: i32,
    pub max_ee_rd_atom: i32,
    pub max_res_rd_atom: i32,
    pub max_qp_init_rd_atom: i32,
    pub max_ee_init_rd_atom: i32,
    pub atomic_cap: u32,
    pub max_ee: i32,
    pub max_rdd: i32,
    pub max_mw: i32,
    pub max_raw_ipv6_qp: i32,
    pub max_raw_ethy_qp: i32,
    pub max_mcast_grp: i32,
    pub max_mcast_qp_attach: i32,
    pub max_total_mcast_qp_attach: i32,
    pub max_ah: i32,
    pub max_fmr: i32,
    pub max_map_per_fmr: i32,
    pub max_srq: i32,
    pub max_srq_wr: i32,
    pub max_srq_sge: i32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
}
layout!(ibv_device_attr, 232, node_guid = 64, vendor_id = 96, max_qp = 108, phys_port_cnt = 227);
zeroed!(ibv_device_attr);

pub const IBV_ATOMIC_NONE: u32 = 0;
pub const IBV_ATOMIC_HCA: u32 = 1;
pub const IBV_DEVICE_CURR_QP_STATE_MOD: u32 = 1 << 7;
pub const IBV_DEVICE_PORT_ACTIVE_EVENT: u32 = 1 << 10;
pub const IBV_DEVICE_SYS_IMAGE_GUID: u32 = 1 << 11;
pub const IBV_DEVICE_RC_RNR_NAK_GEN: u32 = 1 << 12;
pub const IBV_DEVICE_SRQ_RESIZE: u32 = 1 << 13;
pub const IBV_DEVICE_MEM_WINDOW: u32 = 1 << 17;
pub const IBV_DEVICE_XRC: u32 = 1 << 20;
pub const IBV_DEVICE_MEM_MGT_EXTENSIONS: u32 = 1 << 21;
pub const IBV_DEVICE_MEM_WINDOW_TYPE_2B: u32 = 1 << 24;
pub const IBV_DEVICE_MANAGED_FLOW_STEERING: u32 = 1 << 29;
/// Flags of the extended attributes only, with the names of later headers.
pub const IBV_DEVICE_FLUSH_GLOBAL: u64 = 1 << 38;
pub const IBV_DEVICE_ATOMIC_WRITE: u64 = 1 << 40;

pub const IBV_ODP_SUPPORT: u64 = 1;
pub const IBV_ODP_SUPPORT_IMPLICIT: u64 = 1 << 1;
pub const IBV_ODP_SUPPORT_SEND: u32 = 1;
pub const IBV_ODP_SUPPORT_RECV: u32 = 1 << 1;
pub const IBV_ODP_SUPPORT_WRITE: u32 = 1 << 2;
pub const IBV_ODP_SUPPORT_READ: u32 = 1 << 3;
pub const IBV_ODP_SUPPORT_ATOMIC: u32 = 1 << 4;
pub const IBV_ODP_SUPPORT_SRQ_RECV: u32 = 1 << 5;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_odp_caps {
    pub general_caps: u64,
    pub rc_odp_caps: u32,
    pub uc_odp_caps: u32,
    pub ud_odp_caps: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_rss_caps {
    pub supported_qpts: u32,
    pub max_rwq_indirection_tables: u32,
    pub max_rwq_indirection_table_size: u32,
    pub rx_hash_fields_mask: u64,
    pub rx_hash_function: u8,
}

/// The head is `ibv_device_attr`; a program compiled against an older header passes a shorter one.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_device_attr_ex {
    pub orig_attr: ibv_device_attr,
    pub comp_mask: u32,
    pub odp_caps: ibv_odp_caps,
    pub completion_timestamp_mask: u64,
    pub hca_core_clock: u64,
    pub device_cap_flags_ex: u64,
    pub max_tso: u32,
    pub tso_supported_qpts: u32,
    pub rss_caps: ibv_rss_caps,
    pub max_wq_type_rq: u32,
    pub qp_rate_limit_min: u32,
    pub qp_rate_limit_max: u32,
    pub pacing_supported_qpts: u32,
    pub raw_packet_caps: u32,
    pub tm_max_rndv_hdr_size: u32,
    pub tm_max_num_tags: u32,
    pub tm_flags: u32,
    pub tm_max_ops: u32,
    pub tm_max_sge: u32,
    pub max_cq_count: u16,
    pub max_cq_period: u16,
    pub max_dm_size: u64,
    pub pci_fetch_add: u16,
    pub pci_swap: u16,
    pub pci_compare_swap: u16,
    pub xrc_odp_caps: u32,
    pub phys_port_cnt_ex: u32,
}
layout!(
    ibv_device_attr_ex,
    400,
    comp_mask = 232,
    completion_timestamp_mask = 264,
    rss_caps = 296,
    tm_max_rndv_hdr_size = 348,
    max_dm_size = 376,
    phys_port_cnt_ex = 396
);
zeroed!(ibv_device_attr_ex);

#[repr(C)]
pub struct ibv_values_ex {
    pub comp_mask: u32,
    pub raw_clock: libc::timespec,
}
layout!(ibv_values_ex, 24, raw_clock = 8);

pub const IBV_VALUES_MASK_RAW_CLOCK: u32 = 1;

#[repr(C)]
pub struct ibv_query_device_ex_input {
    pub comp_mask: u32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ibv_port_attr {
    pub state: u32,
    pub max_mtu: u32,
    pub active_mtu: u32,
    pub gid_tbl_len: i32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    pub active_width: u8,
    pub active_speed: u8,
    pub phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    pub port_cap_flags2: u16,
}
layout!(ibv_port_attr, 52, pkey_tbl_len = 32, link_layer = 46, flags = 47, port_cap_flags2 = 48);
zeroed!(ibv_port_attr);

/// The number of bytes that the exported symbol may write: the structure of older programs ends before `port_cap_flags2`.
pub const COMPAT_PORT_ATTR_LEN: usize = 48;

pub const IBV_PORT_DOWN: u32 = 1;
pub const IBV_PORT_ACTIVE: u32 = 4;
pub const IBV_PORT_CM_SUP: u32 = 1 << 16;
pub const IBV_PORT_DEVICE_MGMT_SUP: u32 = 1 << 19;
pub const IBV_PORT_IP_BASED_GIDS: u32 = 1 << 26;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;
/// Address handles need a GRH, as always on RoCE.
pub const IBV_QPF_GRH_REQUIRED: u8 = 1;
