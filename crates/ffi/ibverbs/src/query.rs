//! Capabilities of the device and its port.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::{guard, identity};
use ferroce_nic::{DeviceAttr, DeviceLimits, HashFields, MAX_DM, MAX_MW, MAX_OBJECTS, MAX_SPREAD};
use ferroce_proto::PKey;
use ferroce_proto::verbs::Mtu;
use std::ffi::c_int;

/// The only partition.
const PKEY: u16 = PKey::DEFAULT.0;

/// Attributes of the device; for iWARP without the features that [`without_roce`] removes.
fn device_attr(context: &Context) -> ibv_device_attr {
    let all = roce_attr(&context.nic.attributes(), context.nic.limits());
    if context.is_iwarp() { without_roce(all) } else { all }
}

/// Removes the features that iWARP lacks. Atomics work between two ferroce ends, but programs take `atomic_cap` as valid for
/// every peer.
fn without_roce(all: ibv_device_attr) -> ibv_device_attr {
    let missing = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_XRC | IBV_DEVICE_MANAGED_FLOW_STEERING;
    ibv_device_attr {
        device_cap_flags: all.device_cap_flags & !missing,
        atomic_cap: IBV_ATOMIC_NONE,
        max_raw_ethy_qp: 0,
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: 0,
        max_pkeys: 0,
        local_ca_ack_delay: 0,
        ..all
    }
}

fn roce_attr(attr: &DeviceAttr, limits: &DeviceLimits) -> ibv_device_attr {
    let mut out = ibv_device_attr::zeroed();
    identity::copy_text(&mut out.fw_ver, identity::FW_VER);
    out.node_guid = identity::node_guid();
    out.sys_image_guid = identity::node_guid();
    out.max_mr_size = u64::MAX;
    out.page_size_cap = u64::MAX << 12;
    out.vendor_id = identity::VENDOR_ID;
    out.vendor_part_id = identity::VENDOR_PART_ID;
    out.max_qp = clamp(attr.max_qp);
    out.max_qp_wr = clamp(attr.max_qp_wr.into());
    out.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD
        | IBV_DEVICE_PORT_ACTIVE_EVENT
        | IBV_DEVICE_SYS_IMAGE_GUID
        | IBV_DEVICE_RC_RNR_NAK_GEN
        | IBV_DEVICE_SRQ_RESIZE
        | IBV_DEVICE_MEM_WINDOW
        | IBV_DEVICE_XRC
        | IBV_DEVICE_MEM_MGT_EXTENSIONS
        | IBV_DEVICE_MEM_WINDOW_TYPE_2B
        | IBV_DEVICE_MANAGED_FLOW_STEERING;
    out.max_sge = clamp(attr.max_sge.into());
    out.max_sge_rd = out.max_sge;
    out.max_cq = clamp(limits.max_cq.into());
    out.max_cqe = clamp(attr.max_cqe.into());
    out.max_mr = clamp(attr.max_mr.into());
    out.max_mw = clamp(MAX_MW as u64);
    out.max_pd = clamp(limits.max_pd.into());
    out.max_qp_rd_atom = attr.max_rd_atomic.into();
    out.max_qp_init_rd_atom = attr.max_rd_atomic.into();
    out.max_res_rd_atom = clamp(attr.max_qp * u64::from(attr.max_rd_atomic));
    out.atomic_cap = IBV_ATOMIC_HCA;
    out.max_raw_ethy_qp = out.max_qp;
    out.max_mcast_grp = MAX_OBJECTS as i32;
    out.max_mcast_qp_attach = MAX_OBJECTS as i32;
    out.max_total_mcast_qp_attach = MAX_OBJECTS as i32;
    out.max_ah = clamp(limits.max_ah.into());
    out.max_srq = clamp(limits.max_srq.into());
    out.max_srq_wr = clamp(limits.max_srq_wr.into());
    out.max_srq_sge = clamp(limits.max_srq_sge.into());
    out.max_pkeys = 1;
    out.local_ca_ack_delay = 15;
    out.phys_port_cnt = 1;
    out
}

fn clamp(value: u64) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

pub(crate) unsafe extern "C" fn query_device(context: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    guard::number("ibv_query_device", || {
        // SAFETY: a context of ours.
        let context = unsafe { Context::of(context)? };
        // SAFETY: the program provides memory for the answer.
        let out = unsafe { attr.as_mut() }.ok_or(invalid("device_attr is NULL"))?;
        *out = device_attr(context);
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_len: usize,
) -> c_int {
    guard::number("ibv_query_device_ex", || {
        // SAFETY: a context of ours; the input is NULL or the program's.
        let (context, input) = unsafe { (Context::of(context)?, input.as_ref()) };
        if input.is_some_and(|input| input.comp_mask != 0) {
            return Err(invalid("the input's comp_mask has unknown bits"));
        }
        if attr.is_null() || attr_len < size_of::<ibv_device_attr>() {
            return Err(invalid("no room for the attributes"));
        }
        let mut out = ibv_device_attr_ex::zeroed();
        out.orig_attr = device_attr(context);
        out.device_cap_flags_ex = out.orig_attr.device_cap_flags.into();
        out.max_dm_size = MAX_DM as u64;
        out.phys_port_cnt_ex = 1;
        on_demand(&mut out, context.is_iwarp());
        if !context.is_iwarp() {
            roce_extensions(&mut out);
        }
        (out.max_cq_count, out.max_cq_period) = (u16::MAX, u16::MAX);
        out.completion_timestamp_mask = u64::MAX;
        out.hca_core_clock = crate::clock::CORE_CLOCK_KHZ;
        // SAFETY: the program provides memory for `attr_len` bytes; at most the size of the structure is read.
        unsafe { copy_head(&out, attr, attr_len) };
        Ok(())
    })
}

/// Operations and queues that exist on RoCE only.
fn roce_extensions(out: &mut ibv_device_attr_ex) {
    out.device_cap_flags_ex |= IBV_DEVICE_FLUSH_GLOBAL | IBV_DEVICE_ATOMIC_WRITE;
    out.rss_caps = ibv_rss_caps {
        supported_qpts: 1 << IBV_QPT_RAW_PACKET,
        max_rwq_indirection_tables: MAX_OBJECTS,
        max_rwq_indirection_table_size: MAX_SPREAD as u32,
        rx_hash_fields_mask: HashFields::all().bits(),
        rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ,
    };
    out.max_wq_type_rq = MAX_OBJECTS;
}

/// Software takes page faults like any program, so every operation of every transport supports on-demand paging.
fn on_demand(out: &mut ibv_device_attr_ex, is_iwarp: bool) {
    let datagram = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let reliable = datagram | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    let general_caps = IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT;
    if is_iwarp {
        let rc_odp_caps = reliable & !IBV_ODP_SUPPORT_ATOMIC;
        out.odp_caps = ibv_odp_caps { general_caps, rc_odp_caps, uc_odp_caps: 0, ud_odp_caps: 0 };
        return;
    }
    out.odp_caps = ibv_odp_caps {
        general_caps,
        rc_odp_caps: reliable,
        uc_odp_caps: datagram | IBV_ODP_SUPPORT_WRITE,
        ud_odp_caps: datagram,
    };
    out.xrc_odp_caps = reliable;
}

/// Copies as much of a structure as fits into the `capacity` bytes of the program's structure, and zeroes the rest. A newer
/// program reads zeros as "unsupported".
unsafe fn copy_head<T>(from: &T, to: *mut T, capacity: usize) {
    let known = capacity.min(size_of::<T>());
    // SAFETY: the program provides `capacity` bytes to fill, and `known` bytes of ours can be read.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const *from).cast::<u8>(), to.cast::<u8>(), known);
        std::ptr::write_bytes(to.cast::<u8>().add(known), 0, capacity - known);
    }
}

pub(crate) unsafe extern "C" fn query_port_speed(
    context: *mut ibv_context,
    port: u32,
    port_speed: *mut u64,
) -> c_int {
    guard::number("ibv_query_port_speed", || {
        // SAFETY: a context of ours.
        port_attr(unsafe { Context::of(context)? }, u8::try_from(port).unwrap_or(0))?;
        // SAFETY: the program provides memory for the answer.
        *unsafe { port_speed.as_mut() }.ok_or(invalid("port_speed is NULL"))? = PORT_SPEED;
        Ok(())
    })
}

fn port_attr(context: &Context, port: u8) -> Result<ibv_port_attr, Refused> {
    if port != 1 {
        return Err(invalid("the device has one port, number 1"));
    }
    let nic = context.nic.attributes();
    let up = context.nic.gids().iter().any(|entry| entry.up);
    let mut out = ibv_port_attr::zeroed();
    out.state = if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN };
    out.max_mtu = Mtu::B4096 as u32;
    out.active_mtu = Mtu::from_bytes(nic.active_mtu).unwrap_or_default() as u32;
    out.gid_tbl_len = nic.gid_tbl_len as i32;
    out.max_msg_sz = nic.max_msg_sz;
    out.max_vl_num = 1;
    out.active_width = PORT_WIDTH;
    out.active_speed = PORT_LANE_SPEED;
    // "LinkUp" and "Disabled".
    out.phys_state = if up { 5 } else { 3 };
    out.link_layer = IBV_LINK_LAYER_ETHERNET;
    out.port_cap_flags = IBV_PORT_CM_SUP;
    if context.is_iwarp() {
        // As siw: no partitions, no LID, and no GRH that a program could fill in.
        out.port_cap_flags |= IBV_PORT_DEVICE_MGMT_SUP;
        return Ok(out);
    }
    out.port_cap_flags |= IBV_PORT_IP_BASED_GIDS;
    out.lid = context.nic.gid(0).map_or(0, |entry| entry.lid());
    out.pkey_tbl_len = 1;
    out.subnet_timeout = 18;
    out.flags = IBV_QPF_GRH_REQUIRED;
    Ok(out)
}

/// The operation in the table of the context. The program passes the length of its structure.
pub(crate) unsafe extern "C" fn query_port_len(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    attr_len: usize,
) -> c_int {
    guard::number("ibv_query_port", || {
        // SAFETY: a context of ours.
        let out = port_attr(unsafe { Context::of(context)? }, port)?;
        if attr.is_null() || attr_len < COMPAT_PORT_ATTR_LEN {
            return Err(invalid("no room for the attributes"));
        }
        // SAFETY: the program provides memory for `attr_len` bytes.
        unsafe { copy_head(&out, attr, attr_len) };
        Ok(())
    })
}

/// The exported symbol, which takes the older, shorter structure.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: as the operation demands; every program provides memory for the short form.
    unsafe { query_port_len(context, port, attr, COMPAT_PORT_ATTR_LEN) }
}

/// Refuses iWARP, which has no partitions and no P_Key table.
fn has_partitions(context: &Context) -> Result<(), Refused> {
    if context.is_iwarp() { Err(invalid("iWARP has no P_Keys")) } else { Ok(()) }
}

pub(crate) unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    guard::minus_one("ibv_query_pkey", || {
        // SAFETY: a context of ours, and NULL or memory for the result.
        let (context, out) =
            unsafe { (Context::of(context)?, pkey.as_mut().ok_or(invalid("pkey is NULL"))?) };
        has_partitions(context)?;
        if port != 1 || index != 0 {
            return Err(invalid("the P_Key table of port 1 has one entry"));
        }
        *out = PKEY.to_be();
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn get_pkey_index(context: *mut ibv_context, port: u8, pkey: u16) -> c_int {
    guard::minus_one("ibv_get_pkey_index", || {
        // SAFETY: a context of ours.
        has_partitions(unsafe { Context::of(context)? })?;
        if port == 1 && u16::from_be(pkey) == PKEY { Ok(()) } else { Err(invalid("no such P_Key")) }
    })
}
