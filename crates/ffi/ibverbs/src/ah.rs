//! Address handles.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::handle::{Handle, Use, object};
use crate::pd::PdObject;
use crate::qp::vector;
use ferroce_nic::AddressHandle;
use ferroce_proto::Gid;
use ferroce_proto::verbs::WcFlags;
use ferroce_proto::wire::{Grh, Ipv4Header};
use std::ffi::c_int;
use std::net::IpAddr;

/// An address handle.
pub(crate) struct AhObject {
    pub(crate) ah: AddressHandle,
    _pd: Use,
}

object!(AhObject, ibv_ah, "ibv_destroy_ah");

unsafe fn create(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, Refused> {
    // SAFETY: a domain of ours.
    let (domain, context) = unsafe { PdObject::of(pd)? };
    // SAFETY: the domain's own context.
    let nic = unsafe { &Context::of(context)?.nic };
    let ah = domain.pd.create_address_handle(&vector(attr, nic)?)?;
    Ok(Handle::publish(ibv_ah { context, pd, handle: 0 }, AhObject { ah, _pd: domain.uses.hold() }))
}

pub(crate) unsafe extern "C" fn create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    guard::pointer("ibv_create_ah", || {
        // SAFETY: the program's attributes, and what the verb demands.
        unsafe { create(pd, attr.as_ref().ok_or(invalid("attr is NULL"))?) }
    })
}

/// The path back to the sender of a datagram, from its completion and the 40 bytes in front of its payload.
unsafe fn answer_to(
    context: *mut ibv_context,
    port: u8,
    wc: *const ibv_wc,
    grh: *const [u8; Grh::LEN],
) -> Result<ibv_ah_attr, Refused> {
    // SAFETY: a context of ours; completion and header are the program's.
    let (context, wc, grh) = unsafe { (Context::of(context)?, wc.as_ref(), grh.as_ref()) };
    let (Some(wc), Some(grh)) = (wc, grh) else { return Err(invalid("wc or grh is NULL")) };
    if wc.wc_flags & WcFlags::GRH.bits() == 0 || port != 1 {
        return Err(invalid("the completion has no GRH, or the port is not 1"));
    }
    let (here, there, flow_label, traffic_class) = outer(grh)?;
    let table = context.gids();
    // A reply to a multicast datagram leaves from any address of the same family.
    let same_kind = |gid: Gid| gid.to_ipv4().is_some() == here.to_ipv4().is_some();
    let exact = table.iter().position(|entry| entry.gid == here);
    let index = exact.or_else(|| table.iter().position(|entry| same_kind(entry.gid)));
    let sgid_index =
        index.ok_or(invalid("the destination of the datagram is not an address of this device"))?;
    Ok(ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: there.0 },
            flow_label,
            sgid_index: sgid_index as u8,
            hop_limit: 0xff,
            traffic_class,
        },
        dlid: wc.slid,
        is_global: 1,
        port_num: port,
        ..ibv_ah_attr::default()
    })
}

/// Destination, source, flow label and traffic class in the 40 bytes: an IPv6 header, or 20 unused bytes and an IPv4
/// header.
fn outer(grh: &[u8; Grh::LEN]) -> Result<(Gid, Gid, u32, u8), Refused> {
    if let Ok(v4) = Ipv4Header::parse(&grh[Grh::LEN - Ipv4Header::LEN..]) {
        let gid = |address| Gid::from_ip(IpAddr::V4(address));
        return Ok((gid(v4.dst), gid(v4.src), 0, v4.tos));
    }
    let v6 = Grh::parse(grh).map_err(|_| invalid("the 40 bytes are neither an IPv6 nor an IPv4 header"))?;
    Ok((v6.dgid, v6.sgid, v6.flow_label, v6.tclass))
}

pub(crate) unsafe extern "C" fn init_ah_from_wc(
    context: *mut ibv_context,
    port: u8,
    wc: *mut ibv_wc,
    grh: *mut [u8; Grh::LEN],
    attr: *mut ibv_ah_attr,
) -> c_int {
    guard::minus_one("ibv_init_ah_from_wc", || {
        // SAFETY: what the verb demands of the program.
        let (found, out) = unsafe { (answer_to(context, port, wc, grh)?, attr.as_mut()) };
        *out.ok_or(invalid("ah_attr is NULL"))? = found;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn create_ah_from_wc(
    pd: *mut ibv_pd,
    wc: *mut ibv_wc,
    grh: *mut [u8; Grh::LEN],
    port: u8,
) -> *mut ibv_ah {
    guard::pointer("ibv_create_ah_from_wc", || {
        // SAFETY: what the verb demands of the program.
        unsafe {
            let (_, context) = PdObject::of(pd)?;
            create(pd, &answer_to(context, port, wc, grh)?)
        }
    })
}
