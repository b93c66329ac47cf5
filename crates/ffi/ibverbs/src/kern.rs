//! Conversions between structures of the kernel and of programs, which have the same fields in another order. Some programs
//! link with them.

use crate::abi::*;
use crate::guard;

/// The attributes as the kernel's connection manager returns them.
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
    /// Has the layout of the program's structure.
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

/// The kernel's path record.
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

/// Copies the fields that both structures have.
macro_rules! copy {
    ($to:ident, $from:ident; $($field:ident)+) => {
        $($to.$field = $from.$field;)+
    };
}

/// Copies the fields of a path that have the same type in both structures.
macro_rules! copy_path {
    ($to:ident, $from:ident) => {
        copy!($to, $from; dlid slid flow_label hop_limit traffic_class numb_path pkey sl mtu_selector rate_selector rate
            packet_life_time_selector packet_life_time preference)
    };
}

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

/// Copies all attributes except `qp_state`, as rdma-core does.
pub(crate) unsafe extern "C" fn copy_qp_attr_from_kern(
    user: *mut ibv_qp_attr,
    kern: *const ib_uverbs_qp_attr,
) {
    let work = |kern: &ib_uverbs_qp_attr, user: &mut ibv_qp_attr| {
        copy!(user, kern; cur_qp_state path_mtu path_mig_state qkey rq_psn sq_psn dest_qp_num qp_access_flags cap ah_attr
            alt_ah_attr pkey_index alt_pkey_index en_sqd_async_notify sq_draining max_rd_atomic max_dest_rd_atomic
            min_rnr_timer port_num timeout retry_cnt rnr_retry alt_port_num alt_timeout);
    };
    // SAFETY: the program's structures.
    unsafe { translate("ibv_copy_qp_attr_from_kern", kern, user, work) }
}

pub(crate) unsafe extern "C" fn copy_path_rec_from_kern(
    user: *mut ibv_sa_path_rec,
    kern: *const ib_user_path_rec,
) {
    let work = |kern: &ib_user_path_rec, user: &mut ibv_sa_path_rec| {
        (user.dgid.raw, user.sgid.raw) = (kern.dgid, kern.sgid);
        (user.raw_traffic, user.reversible) = (kern.raw_traffic as i32, kern.reversible as i32);
        user.mtu = kern.mtu as u8;
        copy_path!(user, kern);
    };
    // SAFETY: the program's structures.
    unsafe { translate("ibv_copy_path_rec_from_kern", kern, user, work) }
}

pub(crate) unsafe extern "C" fn copy_path_rec_to_kern(
    kern: *mut ib_user_path_rec,
    user: *const ibv_sa_path_rec,
) {
    let work = |user: &ibv_sa_path_rec, kern: &mut ib_user_path_rec| {
        (kern.dgid, kern.sgid) = (user.dgid.raw, user.sgid.raw);
        (kern.raw_traffic, kern.reversible) = (user.raw_traffic as u32, user.reversible as u32);
        kern.mtu = user.mtu.into();
        copy_path!(kern, user);
    };
    // SAFETY: the program's structures.
    unsafe { translate("ibv_copy_path_rec_to_kern", user, kern, work) }
}
