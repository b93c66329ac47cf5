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
use crate::handle::{Handle, Use, Uses, object};
use crate::watched::{self, LiveObject};
use builder::Builder;
use ferroce_nic::lock::Mutex;
use ferroce_nic::{EventSource, Qp};
use ferroce_proto::Gid;

/// A queue pair.
pub(crate) struct QpObject {
    pub(crate) qp: Qp,
    pub(crate) acks: Acks,
    /// The flows and multicast groups of the queue pair.
    pub(crate) uses: Uses,
    /// One entry for each attachment to a multicast group.
    pub(crate) groups: Mutex<Vec<(Gid, Use)>>,
    /// The source that its events carry.
    source: EventSource,
    pub(crate) signal_all: bool,
    /// Set if it was created with operations for `ibv_wr_*`.
    builder: Option<Builder>,
    /// Objects that must outlive the queue pair.
    _held: Vec<Use>,
}

object!(QpObject, ibv_qp_ex, "ibv_destroy_qp", "flows or multicast groups still have the queue pair" => settle);

impl QpObject {
    /// The queue pair behind a pointer.
    ///
    /// # Safety
    /// NULL, or a queue pair of ours.
    pub(crate) unsafe fn of<'a>(qp: *mut ibv_qp) -> Result<&'a QpObject, Refused> {
        // SAFETY: as the caller promises; the plain structure is the head of the extended one.
        unsafe { Handle::of(qp.cast()) }
    }

    /// The same for a verb off the data path.
    ///
    /// # Safety
    /// As for [`QpObject::of`].
    pub(crate) unsafe fn live<'a>(
        verb: &'static str,
        qp: *mut ibv_qp,
    ) -> Result<LiveObject<'a, QpObject>, Refused> {
        // SAFETY: as the caller promises.
        unsafe { LiveObject::of(verb, qp.cast()) }
    }

    unsafe fn settle(&self, qp: *mut ibv_qp_ex) -> Result<(), Refused> {
        if watched::is_on() && self.builder.is_some() {
            // SAFETY: the queue pair's own structure.
            builder::refuse(unsafe { &mut *qp });
        }
        // SAFETY: a queue pair of ours, and its context.
        unsafe { Context::of((*qp).base.context)? }.targets.lock().remove(&self.source);
        self.acks.wait_settled("ibv_destroy_qp", "ibv_ack_async_event");
        Ok(())
    }
}

/// Returns NULL unless the queue pair was created with send operations, as for hardware.
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a queue pair of ours.
    match unsafe { QpObject::of(qp) } {
        Ok(object) if object.builder.is_some() => qp.cast(),
        _ => std::ptr::null_mut(),
    }
}
