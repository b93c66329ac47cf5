//! Opening an existing queue pair: an XRC target queue pair can have several handles.

use super::create::publish_xrc_recv;
use crate::abi::*;
use crate::context::Context;
use crate::errno::{invalid, unsupported};
use crate::guard;
use crate::xrcd::XrcdObject;
use ferroce_proto::Qpn;

pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    guard::pointer("ibv_open_qp", || {
        // SAFETY: a context of ours, and the program's attributes.
        let (owner, attr) =
            unsafe { (Context::of(context)?, attr.as_ref().ok_or(invalid("qp_open_attr is NULL"))?) };
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & !(needed | IBV_QP_OPEN_ATTR_CONTEXT) != 0 {
            return Err(unsupported("comp_mask asks for something that the device does not have"));
        }
        if attr.comp_mask & needed != needed || attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(invalid("what can be opened is a receiving end of XRC, by domain and number"));
        }
        let has_cookie = attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT != 0;
        let cookie = if has_cookie { attr.qp_context } else { std::ptr::null_mut() };
        // SAFETY: a domain of ours.
        let xrcd = unsafe { XrcdObject::of(attr.xrcd, context)? };
        let qp = xrcd.domain.open_qp(&owner.nic, Qpn::new(attr.qp_num))?;
        // SAFETY: a context of ours.
        unsafe { publish_xrc_recv(context, owner, xrcd, qp, cookie) }
    })
}
