//! Attributes of a queue pair, from the program's form to the NIC's and back.

use super::create::cap_out;
use crate::abi::*;
use crate::errno::{Refused, invalid};
use crate::mr::access;
use ferroce_nic::Nic;
use ferroce_proto::verbs::{AddressVector, AttrMask, MigState, Mtu, QpAttr, QpState};
use ferroce_proto::{Gid, Psn, Qkey, Qpn};

/// The address vector of `modify_qp` and `create_ah`. On RoCE it has a GRH; without one, the GID is derived from the LID if
/// possible.
pub(crate) fn vector(ah: &ibv_ah_attr, nic: &Nic) -> Result<AddressVector, Refused> {
    if ah.port_num != 1 {
        return Err(invalid("the device has one port, number 1"));
    }
    if ah.is_global == 0 && nic.is_strict() {
        return Err(invalid(
            "ah_attr.is_global is 0: RoCE routes by GID, so a NIC needs the GRH; set is_global to 1 and grh.dgid to the peer's GID",
        ));
    }
    if ah.is_global == 0 {
        let dgid = nic.gid(0).and_then(|entry| entry.gid_of_lid(ah.dlid));
        let dgid = dgid.ok_or(invalid("a RoCE address needs is_global and a GRH"))?;
        return Ok(AddressVector {
            dgid,
            hop_limit: u8::MAX,
            sl: ah.sl,
            port: ah.port_num,
            ..AddressVector::default()
        });
    }
    Ok(AddressVector {
        dgid: Gid(ah.grh.dgid.raw),
        sgid_index: ah.grh.sgid_index,
        flow_label: ah.grh.flow_label & 0xf_ffff,
        hop_limit: ah.grh.hop_limit,
        traffic_class: ah.grh.traffic_class,
        sl: ah.sl,
        port: ah.port_num,
    })
}

/// The reverse conversion, for results.
pub(crate) fn ah_attr(vector: &AddressVector) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: vector.dgid.0 },
            flow_label: vector.flow_label,
            sgid_index: vector.sgid_index,
            hop_limit: vector.hop_limit,
            traffic_class: vector.traffic_class,
        },
        sl: vector.sl,
        is_global: u8::from(!vector.dgid.is_zero()),
        port_num: vector.port,
        ..ibv_ah_attr::default()
    }
}

/// The state with this number.
pub(crate) fn state(code: u32) -> Result<QpState, Refused> {
    QpState::ALL.get(code as usize).copied().ok_or(invalid("no such state of a queue pair"))
}

fn mig_state(code: u32) -> Result<MigState, Refused> {
    match code {
        0 => Ok(MigState::Migrated),
        1 => Ok(MigState::Rearm),
        2 => Ok(MigState::Armed),
        _ => Err(invalid("no such path migration state")),
    }
}

/// The attributes that `modify_qp` sets. Fields outside the mask are not read.
pub(super) fn wanted(attr: &ibv_qp_attr, mask: AttrMask, nic: &Nic) -> Result<QpAttr, Refused> {
    let has = |bit| mask.contains(bit);
    let mut out = QpAttr {
        qkey: Qkey(attr.qkey),
        rq_psn: Psn::new(attr.rq_psn),
        sq_psn: Psn::new(attr.sq_psn),
        dest_qpn: Qpn::new(attr.dest_qp_num),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify != 0,
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
        ..QpAttr::default()
    };
    if has(AttrMask::STATE) {
        out.state = state(attr.qp_state)?;
    }
    if has(AttrMask::CUR_STATE) {
        out.cur_state = state(attr.cur_qp_state)?;
    }
    if has(AttrMask::PATH_MTU) {
        out.path_mtu = Mtu::from_code(attr.path_mtu)
            .ok_or(invalid("path_mtu is no value of enum ibv_mtu: 1 (256 bytes) to 5 (4096 bytes)"))?;
    }
    if has(AttrMask::PATH_MIG_STATE) {
        out.path_mig_state = mig_state(attr.path_mig_state)?;
    }
    if has(AttrMask::ACCESS_FLAGS) {
        out.access = access(attr.qp_access_flags)?;
    }
    if has(AttrMask::AV) {
        out.av = vector(&attr.ah_attr, nic)?;
    }
    if has(AttrMask::ALT_PATH) {
        out.alt_av = vector(&attr.alt_ah_attr, nic)?;
    }
    Ok(out)
}

/// The attributes that `query_qp` returns.
pub(crate) fn reported(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.state as u32,
        path_mtu: attr.path_mtu as u32,
        path_mig_state: attr.path_mig_state as u32,
        qkey: attr.qkey.0,
        rq_psn: attr.rq_psn.value(),
        sq_psn: attr.sq_psn.value(),
        dest_qp_num: attr.dest_qpn.value(),
        qp_access_flags: attr.access.bits(),
        cap: cap_out(&attr.cap),
        ah_attr: ah_attr(&attr.av),
        alt_ah_attr: ah_attr(&attr.alt_av),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}
