//! Conversions between the kernel's structures and the program's: same fields, other order. Some programs link with
//! them.

use crate::abi::*;
use crate::guard;

/// As the kernel's connection manager hands it over.
#[repr(C)]
pub(crate) struct ib_uverbs_qp_attr {
    qp_attr_mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    /// Laid out as the program's.
    ah_attr: ibv_ah_attr,
    alt_ah_attr: ibv_ah_attr,
    cap: ibv_qp_cap,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}
layout!(ib_uverbs_qp_attr, 144, ah_attr = 40, cap = 104, pkey_index = 124, alt_timeout = 138);

/// A path, as the kernel has it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ib_user_path_rec {
    dgid: [u8; 16],
    sgid: [u8; 16],
    dlid: u16,
    slid: u16,
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}
layout!(ib_user_path_rec, 64, mtu = 48, pkey = 52, numb_path = 56);

/// Runs a translation unless a pointer is NULL.
unsafe fn translate<K, U>(verb: &'static str, kern: *const K, user: *mut U, work: impl FnOnce(&K, &mut U)) {
    guard::quiet(verb, || {
        // SAFETY: as the caller promises.
        if let (Some(kern), Some(user)) = unsafe { (kern.as_ref(), user.as_mut()) } {
            work(kern, user);
        }
        Ok(())
    });
}

pub(crate) unsafe extern "C" fn copy_ah_attr_from_kern(user: *mut ibv_ah_attr, kern: *const ibv_ah_attr) {
    // SAFETY: the program's structures.
    unsafe { translate("ibv_copy_ah_attr_from_kern", kern, user, |kern, user| *user = *kern) }
}

/// Copies all attributes except `qp_state`, as the real library does.
pub(crate) unsafe extern "C" fn copy_qp_attr_from_kern(
    user: *mut ibv_qp_attr,
    kern: *const ib_uverbs_qp_attr,
) {
    let work = |kern: &ib_uverbs_qp_attr, user: &mut ibv_qp_attr| {
        *user = ibv_qp_attr {
            qp_state: user.qp_state,
            cur_qp_state: kern.cur_qp_state,
            path_mtu: kern.path_mtu,
            path_mig_state: kern.path_mig_state,
            qkey: kern.qkey,
            rq_psn: kern.rq_psn,
            sq_psn: kern.sq_psn,
            dest_qp_num: kern.dest_qp_num,
            qp_access_flags: kern.qp_access_flags,
            cap: kern.cap,
            ah_attr: kern.ah_attr,
            alt_ah_attr: kern.alt_ah_attr,
            pkey_index: kern.pkey_index,
            alt_pkey_index: kern.alt_pkey_index,
            en_sqd_async_notify: kern.en_sqd_async_notify,
            sq_draining: kern.sq_draining,
            max_rd_atomic: kern.max_rd_atomic,
            max_dest_rd_atomic: kern.max_dest_rd_atomic,
            min_rnr_timer: kern.min_rnr_timer,
            port_num: kern.port_num,
            timeout: kern.timeout,
            retry_cnt: kern.retry_cnt,
            rnr_retry: kern.rnr_retry,
            alt_port_num: kern.alt_port_num,
            alt_timeout: kern.alt_timeout,
            rate_limit: user.rate_limit,
        };
    };
    // SAFETY: the program's structures.
    unsafe { translate("ibv_copy_qp_attr_from_kern", kern, user, work) }
}

pub(crate) unsafe extern "C" fn copy_path_rec_from_kern(
    user: *mut ibv_sa_path_rec,
    kern: *const ib_user_path_rec,
) {
    let work = |kern: &ib_user_path_rec, user: &mut ibv_sa_path_rec| {
        *user = ibv_sa_path_rec {
            dgid: ibv_gid { raw: kern.dgid },
            sgid: ibv_gid { raw: kern.sgid },
            dlid: kern.dlid,
            slid: kern.slid,
            raw_traffic: kern.raw_traffic as i32,
            flow_label: kern.flow_label,
            hop_limit: kern.hop_limit,
            traffic_class: kern.traffic_class,
            reversible: kern.reversible as i32,
            numb_path: kern.numb_path,
            pkey: kern.pkey,
            sl: kern.sl,
            mtu_selector: kern.mtu_selector,
            mtu: kern.mtu as u8,
            rate_selector: kern.rate_selector,
            rate: kern.rate,
            packet_life_time_selector: kern.packet_life_time_selector,
            packet_life_time: kern.packet_life_time,
            preference: kern.preference,
        };
    };
    // SAFETY: the program's structures.
    unsafe { translate("ibv_copy_path_rec_from_kern", kern, user, work) }
}

pub(crate) unsafe extern "C" fn copy_path_rec_to_kern(
    kern: *mut ib_user_path_rec,
    user: *const ibv_sa_path_rec,
) {
    let work = |user: &ibv_sa_path_rec, kern: &mut ib_user_path_rec| {
        *kern = ib_user_path_rec {
            dgid: user.dgid.raw,
            sgid: user.sgid.raw,
            dlid: user.dlid,
            slid: user.slid,
            raw_traffic: user.raw_traffic as u32,
            flow_label: user.flow_label,
            reversible: user.reversible as u32,
            mtu: user.mtu.into(),
            pkey: user.pkey,
            hop_limit: user.hop_limit,
            traffic_class: user.traffic_class,
            numb_path: user.numb_path,
            sl: user.sl,
            mtu_selector: user.mtu_selector,
            rate_selector: user.rate_selector,
            rate: user.rate,
            packet_life_time_selector: user.packet_life_time_selector,
            packet_life_time: user.packet_life_time,
            preference: user.preference,
        };
    };
    // SAFETY: the program's structures.
    unsafe { translate("ibv_copy_path_rec_to_kern", user, kern, work) }
}
