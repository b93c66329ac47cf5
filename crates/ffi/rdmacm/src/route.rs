//! The route to the peer, as path records.

use crate::abi::*;
use crate::event;
use crate::guard::{self, Refused, check};
use crate::ib;
use crate::id::{Id, ask};
use ferroce_bridge::cm::Standing;
use std::ffi::c_int;

/// The selector "exactly"; the others are "more than" and "less than".
const EXACTLY: u8 = 2;

/// The path record of a route. There are no LIDs on RoCE, and both directions are the same.
pub(crate) fn path_record(standing: &Standing) -> ibv_sa_path_rec {
    ibv_sa_path_rec {
        dgid: ibv_gid { raw: standing.dgid },
        sgid: ibv_gid { raw: standing.sgid },
        flow_label: standing.flow_label.to_be(),
        hop_limit: standing.hop_limit,
        traffic_class: standing.traffic_class,
        reversible: 1,
        numb_path: 1,
        pkey: 0xffff,
        sl: standing.sl,
        mtu_selector: EXACTLY,
        mtu: standing.mtu,
        rate_selector: EXACTLY,
        rate: PORT_RATE,
        packet_life_time_selector: EXACTLY,
        // The transport timer is twice the packet lifetime, plus the peer's delay.
        packet_life_time: standing.ack_timeout.saturating_sub(1),
        ..ibv_sa_path_rec::zeroed()
    }
}

/// Resolves the route.
pub(crate) fn resolve(id: &Id) -> Result<(), Refused> {
    ib::check_route(id)?;
    check(ask!(id, resolve_route()))?;
    event::complete(id)
}

pub(crate) unsafe extern "C" fn resolve_route(id: *mut rdma_cm_id, _timeout_ms: c_int) -> c_int {
    // SAFETY: an id of ours.
    guard::minus_one("rdma_resolve_route", || resolve(unsafe { Id::of(id)? }))
}
