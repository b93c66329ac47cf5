//! Valid values of `modify` attributes.

use super::error::ModifyError;
use crate::verbs::{Access, AttrMask, Mtu, QpAttr};

/// Device limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttrLimits {
    /// READs and atomics a queue pair may have outstanding.
    pub max_rd_atomic: u8,
    /// READs and atomics a peer may have outstanding at a queue pair.
    pub max_dest_rd_atomic: u8,
    /// Entries of the P_Key table.
    pub pkeys: u16,
    /// Entries of the GID table.
    pub gids: u16,
    /// Largest path MTU the port carries.
    pub active_mtu: Mtu,
}

impl Default for AttrLimits {
    fn default() -> Self {
        AttrLimits { max_rd_atomic: 16, max_dest_rd_atomic: 16, pkeys: 1, gids: 256, active_mtu: Mtu::B4096 }
    }
}

/// Checks the attributes in the mask against the device limits.
pub fn check_values(attr: &QpAttr, mask: AttrMask, limits: &AttrLimits) -> Result<(), ModifyError> {
    let has = |bit| mask.contains(bit);
    // Automatic path migration is an InfiniBand feature; RoCE ports have no alternate path.
    if has(AttrMask::ALT_PATH) {
        return Err(ModifyError::NotAllowed(AttrMask::ALT_PATH));
    }
    if has(AttrMask::ACCESS_FLAGS) {
        known_bits(attr.access)?;
    }
    if has(AttrMask::PKEY_INDEX) {
        at_most("pkey_index", attr.pkey_index, u64::from(limits.pkeys).saturating_sub(1))?;
    }
    if has(AttrMask::PORT) {
        not_zero("port", attr.port != 0)?;
        at_most("port", attr.port, 1)?;
    }
    if has(AttrMask::AV) {
        check_path(attr, limits)?;
    }
    if has(AttrMask::PATH_MTU) {
        at_most("path_mtu", attr.path_mtu.bytes(), limits.active_mtu.bytes().into())?;
    }
    let bounded = [
        (AttrMask::TIMEOUT, "timeout", attr.timeout, 31),
        (AttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt, 7),
        (AttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry, 7),
        (AttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer, 31),
        (AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic, limits.max_rd_atomic),
        (
            AttrMask::MAX_DEST_RD_ATOMIC,
            "max_dest_rd_atomic",
            attr.max_dest_rd_atomic,
            limits.max_dest_rd_atomic,
        ),
    ];
    for (bit, attribute, value, limit) in bounded {
        if has(bit) {
            at_most(attribute, value, limit.into())?;
        }
    }
    Ok(())
}

fn check_path(attr: &QpAttr, limits: &AttrLimits) -> Result<(), ModifyError> {
    not_zero("av.dgid", !attr.av.dgid.is_zero())?;
    at_most("av.sgid_index", attr.av.sgid_index, u64::from(limits.gids).saturating_sub(1))?;
    at_most("av.flow_label", attr.av.flow_label, 0xf_ffff)?;
    at_most("av.sl", attr.av.sl, 15)?;
    // Many applications leave it zero, because the port was set in the transition to INIT.
    at_most("av.port", attr.av.port, 1)
}

fn known_bits(access: Access) -> Result<(), ModifyError> {
    let known = Access::all().bits() | Access::OPTIONAL;
    let unknown = access.bits() & !known;
    if unknown == 0 {
        return Ok(());
    }
    Err(ModifyError::OutOfRange { attribute: "access", value: access.bits().into(), limit: known.into() })
}

fn not_zero(attribute: &'static str, holds: bool) -> Result<(), ModifyError> {
    if holds { Ok(()) } else { Err(ModifyError::Zero { attribute }) }
}

fn at_most(attribute: &'static str, value: impl Into<u64>, limit: u64) -> Result<(), ModifyError> {
    let value = value.into();
    if value > limit { Err(ModifyError::OutOfRange { attribute, value, limit }) } else { Ok(()) }
}
