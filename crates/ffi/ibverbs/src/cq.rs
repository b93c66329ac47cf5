//! Completion queues.

use crate::abi::*;
use crate::acks::Acks;
use crate::channel::ChannelObject;
use crate::context::{Context, Target};
use crate::errno::{Refused, invalid};
use crate::guard;
use crate::handle::{Handle, Use, Uses, object, store_word};
use crate::pd::PdObject;
use crate::watched::{self, LiveObject};
use ferroce_nic::lock::Mutex;
use ferroce_nic::{Cq, EventSource, Moderation, Stamp};
use ferroce_proto::verbs::{Completion, WcFlags};
use std::ffi::{c_int, c_void};

/// A completion queue.
pub(crate) struct CqObject {
    pub(crate) cq: Cq,
    pub(crate) uses: Uses,
    pub(crate) comp_acks: Acks,
    pub(crate) async_acks: Acks,
    /// The current completion of extended polling, and when it was added, if the program requests timestamps.
    pub(crate) current: Mutex<(Completion, Stamp)>,
    _held: (Use, Option<Use>, Option<Use>),
}

object!(CqObject, ibv_cq_ex, "ibv_destroy_cq", "queue pairs still use the completion queue" => settle);

/// The parameters of a queue.
pub(crate) struct CqInit {
    pub(crate) cqe: u32,
    pub(crate) cookie: *mut c_void,
    pub(crate) channel: *mut ibv_comp_channel,
    pub(crate) comp_vector: u32,
    /// The parent domain that provides its memory, or NULL.
    pub(crate) domain: *mut ibv_pd,
    /// Whether completions have timestamps.
    pub(crate) is_stamped: bool,
    pub(crate) ignores_overrun: bool,
}

impl CqObject {
    /// The queue behind a pointer.
    ///
    /// # Safety
    /// NULL, or a queue of ours.
    pub(crate) unsafe fn of<'a>(cq: *mut ibv_cq) -> Result<&'a CqObject, Refused> {
        // SAFETY: as the caller promises; the plain structure is the head of the extended one.
        unsafe { Handle::of(cq.cast()) }
    }

    unsafe fn settle(&self, cq: *mut ibv_cq_ex) -> Result<(), Refused> {
        if watched::is_on() {
            // SAFETY: the queue's own structure.
            crate::cq_ex::refuse(unsafe { &mut *cq });
        }
        // SAFETY: a queue of ours, and its context.
        let context = unsafe { Context::of((*cq).base.context)? };
        context.targets.lock().remove(&EventSource::Cq(self.cq.id()));
        self.comp_acks.wait_settled("ibv_destroy_cq", "ibv_ack_cq_events");
        self.async_acks.wait_settled("ibv_destroy_cq", "ibv_ack_async_event");
        Ok(())
    }

    /// Creates a queue. `shape` fills in the rest of its structure.
    ///
    /// # Safety
    /// Context and channel are of ours, or NULL where that is allowed.
    pub(crate) unsafe fn create(
        context: *mut ibv_context,
        init: &CqInit,
        shape: impl FnOnce(&mut ibv_cq_ex),
    ) -> Result<*mut ibv_cq_ex, Refused> {
        // SAFETY: as the caller promises.
        let owner = unsafe { Context::of(context)? };
        // SAFETY: the context is open.
        if i64::from(init.comp_vector) >= i64::from(unsafe { (*context).num_comp_vectors }) {
            return Err(invalid("comp_vector is beyond num_comp_vectors"));
        }
        // SAFETY: as the caller promises.
        let channel = unsafe { Handle::<ChannelObject>::of(init.channel) }.ok();
        // SAFETY: a channel of ours, if it is one.
        if channel.is_some() && unsafe { (*init.channel).context } != context {
            return Err(invalid("the channel belongs to another context"));
        }
        // SAFETY: as the caller promises.
        let domain = unsafe { PdObject::of(init.domain) }.ok();
        if domain.is_some_and(|(domain, made_in)| made_in != context || !domain.is_parent()) {
            return Err(invalid("no parent domain of this context"));
        }
        let cq = owner.nic.create_cq(init.cqe, channel.map(|c| &c.channel), 0)?;
        if init.is_stamped {
            cq.stamp_completions();
        }
        if init.ignores_overrun {
            cq.ignore_overrun();
        }
        let id = cq.id();
        let mut abi = ibv_cq_ex::zeroed();
        abi.base.context = context;
        abi.base.channel = init.channel;
        abi.base.cq_context = init.cookie;
        abi.base.handle = id;
        abi.base.cqe = cq.depth() as c_int;
        shape(&mut abi);
        let object = CqObject {
            cq,
            uses: Uses::default(),
            comp_acks: Acks::default(),
            async_acks: Acks::default(),
            current: Mutex::default(),
            _held: (owner.uses.hold(), channel.map(|c| c.uses.hold()), domain.map(|(d, _)| d.uses.hold())),
        };
        // SAFETY: as the caller promises.
        let made = Handle::publish_in(unsafe { PdObject::lender(init.domain) }, abi, object)?;
        owner.targets.lock().insert(EventSource::Cq(id), Target::Cq(made.cast()));
        Ok(made)
    }
}

pub(crate) unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cookie: *mut c_void,
    channel: *mut ibv_comp_channel,
    comp_vector: c_int,
) -> *mut ibv_cq {
    guard::pointer("ibv_create_cq", || {
        let cqe = u32::try_from(cqe).map_err(|_| invalid("cqe is negative"))?;
        let comp_vector = u32::try_from(comp_vector).map_err(|_| invalid("comp_vector is negative"))?;
        let init = CqInit {
            cqe,
            cookie,
            channel,
            comp_vector,
            domain: std::ptr::null_mut(),
            is_stamped: false,
            ignores_overrun: false,
        };
        // SAFETY: what the verb demands of the program.
        Ok(unsafe { CqObject::create(context, &init, |_| {})? }.cast())
    })
}

pub(crate) unsafe extern "C" fn resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    guard::number("ibv_resize_cq", || {
        // SAFETY: a queue of ours.
        let object = unsafe { LiveObject::<CqObject>::of("ibv_resize_cq", cq.cast())? };
        object.cq.resize(u32::try_from(cqe).map_err(|_| invalid("cqe is negative"))?)?;
        // SAFETY: the queue's own structure.
        unsafe { store_word((&raw mut (*cq).cqe).cast(), cqe as u32) };
        Ok(())
    })
}

/// Moderation of events is accepted as a hint. Events are never later than requested.
pub(crate) unsafe extern "C" fn modify_cq(cq: *mut ibv_cq, attr: *mut ibv_modify_cq_attr) -> c_int {
    guard::number("ibv_modify_cq", || {
        // SAFETY: a queue of ours, and the program's attributes.
        let (object, attr) = unsafe {
            (
                LiveObject::<CqObject>::of("ibv_modify_cq", cq.cast())?,
                attr.as_ref().ok_or(invalid("cq_attr is NULL"))?,
            )
        };
        if attr.attr_mask & !IBV_CQ_ATTR_MODERATE != 0 {
            return Err(invalid("attr_mask has unknown bits"));
        }
        if attr.attr_mask != 0 {
            object.cq.moderate(Moderation { count: attr.cq_count, period_us: attr.cq_period });
        }
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    guard::number("ibv_req_notify_cq", || {
        // SAFETY: a queue of ours.
        Ok(unsafe { CqObject::of(cq)? }.cq.request_notify(solicited_only != 0)?)
    })
}

/// Returns the number of completions written, or a negative number.
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    let verb = "ibv_poll_cq";
    let polled = guard::hot(verb, || {
        // SAFETY: what the verb demands of the program.
        match unsafe { poll(cq, num_entries, wc) } {
            Ok(written) => written,
            Err(refused) => -guard::refuse(verb, *refused),
        }
    });
    polled.unwrap_or_else(|number| -number)
}

/// # Safety
/// A queue of ours or NULL, and memory for `num_entries` completions.
#[inline(always)]
unsafe fn poll(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> Result<c_int, Box<Refused>> {
    // SAFETY: as the caller promises.
    let object = unsafe { CqObject::of(cq)? };
    let num_entries = usize::try_from(num_entries).map_err(|_| invalid("num_entries is negative"))?;
    let polled = object.cq.poll_each(num_entries, |n, completion| {
        // SAFETY: the program provides memory for `num_entries` completions.
        unsafe { wc.add(n).write(describe(&completion)) };
    });
    Ok(polled? as c_int)
}

/// Immediate data in network byte order, or the invalidated key, which share a field.
pub(crate) fn imm_or_key(completion: &Completion) -> u32 {
    if completion.flags.contains(WcFlags::WITH_INV) {
        completion.invalidated.0
    } else {
        completion.imm.to_be()
    }
}

fn describe(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as u32,
        opcode: completion.opcode as u32,
        vendor_err: completion.vendor_err,
        byte_len: completion.byte_len,
        imm_or_key: imm_or_key(completion),
        qp_num: completion.qpn.value(),
        src_qp: completion.src_qpn.value(),
        wc_flags: completion.flags.bits(),
        pkey_index: 0,
        slid: 0,
        sl: completion.sl,
        dlid_path_bits: 0,
    }
}
