//! Queue pairs: creating, modifying, querying and destroying them. Posting is in `send` and `recv`.

mod attr;
mod builder;
mod create;
mod modify;
mod open;
mod spread;

pub(crate) use attr::{ah_attr, reported, state, vector};
pub(crate) use create::{create_qp, create_qp_ex};
pub(crate) use modify::{modify_qp, query_qp};
pub(crate) use open::open_qp;

use crate::abi::*;
use crate::acks::Acks;
use crate::context::Context;
use crate::errno::Refused;
use crate::guard;
use crate::handle::{Handle, Use, Uses, object};
use builder::Builder;
use ferroce_nic::{EventSource, Qp};
use std::ffi::c_int;

/// A queue pair.
pub(crate) struct QpObject {
    pub(crate) qp: Qp,
    pub(crate) acks: Acks,
    /// Multicast groups it is attached to.
    pub(crate) uses: Uses,
    /// The source that its events carry.
    source: EventSource,
    signal_all: bool,
    /// Set if it was created with operations for `ibv_wr_*`.
    builder: Option<Builder>,
    _held: Held,
}

/// Objects that must outlive the queue pair.
struct Held {
    _context: Use,
    _pd: Option<Use>,
    _cqs: [Option<Use>; 2],
    _srq: Option<Use>,
    _xrcd: Option<Use>,
}

object!(QpObject, ibv_qp_ex, uses);

impl QpObject {
    /// The queue pair behind a pointer.
    ///
    /// # Safety
    /// NULL, or a queue pair of ours.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> Result<&'a QpObject, Refused> {
        // SAFETY: as the caller promises; the plain structure is the head of the extended one.
        unsafe { Handle::of(qp.cast()) }
    }
}

/// NULL unless the queue pair was made with send operations, as for hardware.
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a queue pair of ours.
    match unsafe { QpObject::of(qp) } {
        Ok(object) if object.builder.is_some() => qp.cast(),
        _ => std::ptr::null_mut(),
    }
}

pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    guard::number("ibv_destroy_qp", || {
        let settle = |object: &QpObject| {
            // SAFETY: a queue pair of ours, and its context.
            let context = unsafe { Context::of((*qp).context)? };
            context.targets.lock().remove(&object.source);
            object.acks.wait_settled();
            Ok(())
        };
        // SAFETY: NULL, or a queue pair of ours, which the program gives back.
        unsafe { Handle::take_settled(qp.cast(), "the queue pair is attached to a multicast group", settle) }
            .map(drop)
    })
}
