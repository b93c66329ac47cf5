//! Extended polling: one completion at a time, field by field.

use crate::abi::*;
use crate::cq::{CqInit, CqObject, imm_or_key};
use crate::errno::{invalid, unsupported};
use crate::guard;
use crate::watched::refuse_destroyed;
use ferroce_nic::Stamp;
use ferroce_proto::verbs::{Completion, WcFlags};
use std::ffi::c_int;

/// The supported fields of a completion.
const KNOWN_WC_FLAGS: u64 = IBV_WC_STANDARD_FLAGS
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP
    | IBV_WC_EX_WITH_FLOW_TAG
    | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
/// Flags that request timestamps.
const TIMES: u64 = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;

pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    guard::pointer("ibv_create_cq_ex", || {
        // SAFETY: the program's attributes.
        let attr = unsafe { init.as_ref() }.ok_or(invalid("cq_attr is NULL"))?;
        if attr.comp_mask & !(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) != 0 {
            return Err(unsupported("comp_mask has unknown bits"));
        }
        let has_flags = attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0;
        let flags = if has_flags { attr.flags } else { 0 };
        if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(unsupported("flags that the device does not have"));
        }
        if attr.wc_flags & !KNOWN_WC_FLAGS != 0 {
            return Err(unsupported("wc_flags that the device does not report"));
        }
        let init = CqInit {
            cqe: attr.cqe,
            cookie: attr.cq_context,
            channel: attr.channel,
            comp_vector: attr.comp_vector,
            domain: if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
                attr.parent_domain
            } else {
                std::ptr::null_mut()
            },
            is_stamped: attr.wc_flags & TIMES != 0,
            ignores_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
        };
        // SAFETY: what the verb demands of the program.
        unsafe { CqObject::create(context, &init, |cq| fill(cq, attr.wc_flags)) }
    })
}

fn fill(cq: &mut ibv_cq_ex, wc_flags: u64) {
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    fill_readers(cq);
    if wc_flags & TIMES == 0 {
        (cq.read_completion_ts, cq.read_completion_wallclock_ns) = (None, None);
    }
}

/// Prepares the destruction of an extended queue: replaces its functions by ones that report the misuse, or return 0.
pub(crate) fn refuse(cq: &mut ibv_cq_ex) {
    unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
        refuse_destroyed::<CqObject>("ibv_start_poll", cq.addr())
    }
    unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
        refuse_destroyed::<CqObject>("ibv_next_poll", cq.addr())
    }
    if cq.start_poll.is_some() {
        cq.start_poll = Some(start_poll);
        cq.next_poll = Some(next_poll);
        refuse_readers(cq);
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: NULL or the program's attributes.
    if unsafe { attr.as_ref() }.is_some_and(|attr| attr.comp_mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: a queue of ours.
    unsafe { next_poll(cq) }
}

/// Takes the next completion; ENOENT means that the queue is empty, and is not logged.
unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    let polled = guard::run("ibv_next_poll", || {
        // SAFETY: a queue of ours.
        let object = unsafe { CqObject::of(cq.cast())? };
        let (mut one, mut stamp) = ([Completion::default()], [Stamp::default()]);
        if object.cq.poll_stamped(&mut one, &mut stamp)? == 0 {
            return Ok(libc::ENOENT);
        }
        *object.current.lock() = (one[0], stamp[0]);
        // SAFETY: the queue's own structure.
        unsafe { ((*cq).wr_id, (*cq).status) = (one[0].wr_id, one[0].status as u32) };
        Ok(0)
    });
    polled.unwrap_or_else(|errno| errno)
}

unsafe extern "C" fn end_poll(_cq: *mut ibv_cq_ex) {}

/// The current completion, and when it was added.
unsafe fn current(cq: *mut ibv_cq_ex) -> (Completion, Stamp) {
    // SAFETY: as the caller promises, a queue of ours.
    unsafe { CqObject::of(cq.cast()) }.map_or_else(|_| Default::default(), |object| *object.current.lock())
}

macro_rules! readers {
    ($($name:ident -> $answer:ty = |$c:pat_param| $value:expr;)*) => {
        $(unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $answer {
            // SAFETY: programs read between start and end of polling a queue of ours.
            let $c = unsafe { current(cq) };
            $value
        })*

        fn fill_readers(cq: &mut ibv_cq_ex) {
            $(cq.$name = Some($name);)*
        }

        fn refuse_readers(cq: &mut ibv_cq_ex) {
            $(cq.$name = {
                unsafe extern "C" fn nothing(_: *mut ibv_cq_ex) -> $answer {
                    0
                }
                Some(nothing)
            };)*
        }
    };
}

readers! {
    read_opcode -> u32 = |(c, _)| c.opcode as u32;
    read_vendor_err -> u32 = |(c, _)| c.vendor_err;
    read_byte_len -> u32 = |(c, _)| c.byte_len;
    read_imm_data -> u32 = |(c, _)| imm_or_key(&c);
    read_qp_num -> u32 = |(c, _)| c.qpn.value();
    read_src_qp -> u32 = |(c, _)| c.src_qpn.value();
    read_wc_flags -> u32 = |(c, _)| c.flags.bits();
    read_slid -> u32 = |_| 0;
    read_sl -> u8 = |(c, _)| c.sl;
    read_dlid_path_bits -> u8 = |_| 0;
    // Raw packets have no immediate data, so the NIC stores the tag of their flow there.
    read_flow_tag -> u32 = |(c, _)| if c.flags.contains(WcFlags::WITH_IMM) { 0 } else { c.imm };
    read_completion_ts -> u64 = |(_, stamp)| stamp.raw_ns;
    read_completion_wallclock_ns -> u64 = |(_, stamp)| stamp.wall_ns;
}
