//! Posting sends. The NIC reads the list in the program's memory: no copy, no allocation, one doorbell.

use crate::abi::*;
use crate::ah::AhObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard::{self, post_with};
use crate::handle::Handle;
use crate::mw;
use crate::qp::QpObject;
use ferroce_nic::{MAX_INLINE, Pd, Posting};
use ferroce_proto::qp::PostError;
use ferroce_proto::verbs::{AtomicOp, Payload, SendFlags, SendOp, SendWr, Sge, UdTarget};
use ferroce_proto::{Qkey, Qpn, RKey, Srqn};
use std::ffi::c_int;
use std::slice::from_ref;

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: what the verb demands of the program.
    unsafe { post_with("ibv_post_send", list, bad, |at| post_list(qp, at)) }
}

/// Posts the list from `at` on, up to the first refused request.
///
/// # Safety
/// A queue pair of ours or NULL, and the program's list.
#[inline(always)]
unsafe fn post_list(qp: *mut ibv_qp, at: &mut *mut ibv_send_wr) -> Result<(), Box<Refused>> {
    // SAFETY: as the caller promises.
    let object = unsafe { QpObject::of(qp)? };
    // SAFETY: as above.
    let qp_type = unsafe { (*qp).qp_type };
    let posted = object.qp.post_send_each(|posting| {
        guard::provoke("ibv_post_send, locked");
        // SAFETY: the program's list; the end is NULL.
        while let Some(wr) = unsafe { at.as_ref() } {
            posting.is_last(wr.next.is_null());
            // SAFETY: as above.
            unsafe { post_next(wr, qp_type, object.qp.pd(), posting)? };
            *at = wr.next;
        }
        Ok(())
    })?;
    posted.map_err(|refused: Box<Refused>| Box::new(refused.by_qp(object.qp.qpn())))
}

/// Posts one request. Common requests name no further object, and the NIC checks all their fields, so they skip [`post_one`].
#[inline(always)]
unsafe fn post_next(
    wr: &ibv_send_wr,
    qp_type: u32,
    pd: &Pd,
    posting: &mut Posting<'_>,
) -> Result<(), Box<Refused>> {
    let is_plain = qp_type == IBV_QPT_RC && wr.send_flags & !SendFlags::all().bits() == 0 && wr.num_sge == 1;
    // SAFETY: the program's entry, if it names one.
    let Some(sge) = (unsafe { wr.sg_list.as_ref() }).filter(|_| is_plain) else {
        // SAFETY: as the caller promises.
        return unsafe { post_one(wr, qp_type, pd, posting) }.map_err(Box::from);
    };
    let flags = SendFlags::from_bits_truncate(wr.send_flags);
    let is_inline = flags.contains(SendFlags::INLINE);
    // SAFETY: the program's bytes; inline data is read before the verb returns.
    let (entry, inline) = (Payload::Sges(from_ref(sge)), || Payload::Inline(unsafe { bytes(sge) }));
    // SAFETY: the opcode determines which member is valid; each is plain numbers.
    let rdma = unsafe { wr.wr.rdma };
    let (addr, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
    let request = |op, payload| SendWr { wr_id: wr.wr_id, op, flags, payload, ud: None, srq: None };
    // One case per operation, so that each is compiled without the checks of the others.
    match (wr.opcode, is_inline) {
        (IBV_WR_SEND, false) => posting.post(|| request(SendOp::Send, entry))?,
        (IBV_WR_SEND, true) => posting.post(|| request(SendOp::Send, inline()))?,
        (IBV_WR_RDMA_WRITE, false) => posting.post(|| request(SendOp::Write { addr, rkey }, entry))?,
        (IBV_WR_RDMA_WRITE, true) => posting.post(|| request(SendOp::Write { addr, rkey }, inline()))?,
        (IBV_WR_RDMA_READ, false) => posting.post(|| request(SendOp::Read { addr, rkey }, entry))?,
        // SAFETY: as the caller promises.
        _ => unsafe { post_one(wr, qp_type, pd, posting)? },
    }
    Ok(())
}

/// Any request.
#[inline(never)] // keeps the fast path small
unsafe fn post_one(
    wr: &ibv_send_wr,
    qp_type: u32,
    pd: &Pd,
    posting: &mut Posting<'_>,
) -> Result<(), Refused> {
    let flags =
        SendFlags::from_bits(wr.send_flags).ok_or(invalid("send_flags that the device does not know"))?;
    // SAFETY: the member that the opcode and the type of the queue pair name.
    let (op, ud) = unsafe { (operation(wr)?, if qp_type == IBV_QPT_UD { Some(target(wr)?) } else { None }) };
    let srq = (qp_type == IBV_QPT_XRC_SEND).then(|| Srqn::new(wr.remote_srqn));
    // SAFETY: the program's list.
    let sges = unsafe { entries(wr.sg_list, wr.num_sge)? };
    // Changed in place: moving it costs more than the rest of this function.
    let mut request = SendWr { wr_id: wr.wr_id, op, flags, payload: Payload::Sges(sges), ud, srq };
    // For requests whose entries are read before the NIC checks their number.
    let check_count = |posting: &Posting<'_>| match (sges.len(), posting.cap().max_send_sge as usize) {
        (given, max) if given > max => Err(PostError::TooManySges { given, max }),
        _ => Ok(()),
    };
    if let SendOp::AtomicWrite { value, .. } = &mut request.op {
        check_count(posting)?;
        // SAFETY: as above.
        *value = unsafe { atomic_write_value(sges, flags, pd)? };
        request.flags -= SendFlags::INLINE;
        request.payload = Payload::Sges(&[]);
    } else if flags.contains(SendFlags::INLINE) {
        request.payload = match sges {
            [] => Payload::Inline(&[]),
            // SAFETY: the program's bytes; inline data is read before the verb returns.
            [one] => Payload::Inline(unsafe { bytes(one) }),
            many => {
                check_count(posting)?;
                let hand_over = |data: &[u8]| {
                    Ok(posting.post_seldom(&SendWr { payload: Payload::Inline(data), ..request })?)
                };
                // SAFETY: as above.
                return unsafe { with_gathered(many, hand_over) };
            }
        };
    }
    Ok(posting.post_seldom(&request)?)
}

/// The eight bytes of an atomic write. The request carries them, so they are read now.
unsafe fn atomic_write_value(sges: &[Sge], flags: SendFlags, pd: &Pd) -> Result<[u8; 8], Refused> {
    if sges.iter().map(|sge| u64::from(sge.len)).sum::<u64>() != 8 {
        return Err(invalid("an atomic write has eight bytes"));
    }
    let mut value = [0; 8];
    if !flags.contains(SendFlags::INLINE) {
        pd.gather(sges, &mut value)?;
        return Ok(value);
    }
    let mut rest = &mut value[..];
    for sge in sges {
        let (now, later) = rest.split_at_mut(sge.len as usize);
        // SAFETY: as the caller promises, the program's own bytes.
        now.copy_from_slice(unsafe { bytes(sge) });
        rest = later;
    }
    Ok(value)
}

#[inline]
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, Refused> {
    let imm = u32::from_be(wr.imm_or_key);
    let key = RKey(wr.imm_or_key);
    // SAFETY: the opcode determines which member is valid.
    unsafe {
        let (rdma, atomic) = (wr.wr.rdma, wr.wr.atomic);
        let (addr, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
        let (swap, add) = (atomic.swap, atomic.compare_add);
        let on = |op| SendOp::Atomic { addr: atomic.remote_addr, rkey: RKey(atomic.rkey), op };
        Ok(match wr.opcode {
            IBV_WR_SEND => SendOp::Send,
            IBV_WR_SEND_WITH_IMM => SendOp::SendImm(imm),
            IBV_WR_SEND_WITH_INV => SendOp::SendInv(key),
            IBV_WR_RDMA_WRITE => SendOp::Write { addr, rkey },
            IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteImm { addr, rkey, imm },
            IBV_WR_RDMA_READ => SendOp::Read { addr, rkey },
            IBV_WR_ATOMIC_CMP_AND_SWP => on(AtomicOp::CompareSwap { compare: add, swap }),
            IBV_WR_ATOMIC_FETCH_AND_ADD => on(AtomicOp::FetchAdd { add }),
            IBV_WR_LOCAL_INV => SendOp::LocalInv(key),
            IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { addr, rkey, value: [0; 8] },
            IBV_WR_BIND_MW => {
                let bind = wr.extra.bind_mw;
                SendOp::BindMw(mw::bind(bind.mw, bind.rkey, &bind.bind_info)?)
            }
            _ => return Err(unsupported("an opcode that the device does not have")),
        })
    }
}

unsafe fn target(wr: &ibv_send_wr) -> Result<UdTarget, Refused> {
    // SAFETY: on a datagram queue pair this member is valid; its handle is one of ours.
    unsafe {
        let ud = wr.wr.ud;
        if ud.ah.is_null() {
            return Err(PostError::NoDestination.into());
        }
        let ah = Handle::<AhObject>::of(ud.ah)?;
        Ok(UdTarget { route: *ah.ah.route(), qpn: Qpn::new(ud.remote_qpn), qkey: Qkey(ud.remote_qkey) })
    }
}

/// The program's scatter/gather list, in place.
///
/// # Safety
/// `count` entries lie at `list`.
pub(crate) unsafe fn entries<'a>(list: *mut Sge, count: c_int) -> Result<&'a [Sge], Refused> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        Ok(count) if !list.is_null() => {
            // SAFETY: as the caller promises.
            Ok(unsafe { std::slice::from_raw_parts(list, count) })
        }
        _ => Err(invalid("num_sge and sg_list contradict each other")),
    }
}

/// The bytes of an entry of an inline request. Its key is ignored.
unsafe fn bytes<'a>(sge: &Sge) -> &'a [u8] {
    if sge.len == 0 {
        return &[];
    }
    // SAFETY: as the caller promises, the program's own bytes.
    unsafe { std::slice::from_raw_parts(sge.addr as *const u8, sge.len as usize) }
}

/// Gathers several pieces of inline data into one.
#[inline(never)] // keeps the array out of the frames of other callers
unsafe fn with_gathered(
    sges: &[Sge],
    work: impl FnOnce(&[u8]) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let mut all = [0u8; MAX_INLINE as usize];
    let mut len = 0;
    for sge in sges {
        // SAFETY: as the caller promises.
        let piece = unsafe { bytes(sge) };
        let free =
            all.get_mut(len..len + piece.len()).ok_or(invalid("more inline data than the device takes"))?;
        free.copy_from_slice(piece);
        len += piece.len();
    }
    work(&all[..len])
}
