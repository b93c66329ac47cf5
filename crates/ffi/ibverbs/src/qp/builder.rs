//! `ibv_wr_*`: requests built call by call, then posted together with one doorbell.

use super::QpObject;
use crate::abi::*;
use crate::ah::AhObject;
use crate::errno::{Refused, invalid, unsupported};
use crate::guard;
use crate::handle::Handle;
use crate::mw;
use crate::recorded;
use crate::watched::refuse_destroyed;
use ferroce_nic::{LoggedCall, OperationLog, Posting};
use ferroce_proto::verbs::{
    AtomicOp, FlushWhat, Payload, QpCap, SendFlags, SendOp, SendWr, Sge, Transport, UdTarget,
};
use ferroce_proto::{LKey, Qkey, Qpn, RKey, Srqn};
use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::{Deref, DerefMut, Range};

/// One request of a batch.
struct Request {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    ud: Option<UdTarget>,
    srq: Option<Srqn>,
    data: Data,
}

/// The position of its data in the storage of the batch.
enum Data {
    Sges(Range<usize>),
    Inline(Range<usize>),
}

/// The batch between `wr_start` and `wr_complete`. The vectors keep their capacity, so a steady state does not allocate.
#[derive(Default)]
struct Draft {
    requests: Vec<Request>,
    sges: Vec<Sge>,
    bytes: Vec<u8>,
    failed: Option<Refused>,
}

/// A draft with a lock. A thread holds the lock from `wr_start` until `wr_complete` or `wr_abort`.
pub(super) struct Builder {
    lock: RawMutex,
    draft: UnsafeCell<Draft>,
    cap: QpCap,
}

// SAFETY: only the thread that holds the lock accesses the draft.
unsafe impl Send for Builder {}
// SAFETY: as above.
unsafe impl Sync for Builder {}

/// The operations of each transport, as bits of `send_ops_flags`.
const fn operations(transport: Transport) -> u64 {
    const DATAGRAM: u64 = 1 << 2 | 1 << 3;
    const CONNECTED: u64 = DATAGRAM | 1 | 1 << 1 | 1 << 7 | 1 << 8;
    const RELIABLE: u64 = CONNECTED | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 9 | 1 << 11 | 1 << 12;
    match transport {
        Transport::Rc | Transport::XrcIni => RELIABLE,
        Transport::Uc => CONNECTED,
        Transport::Ud => DATAGRAM,
        Transport::XrcTgt => 0,
    }
}

impl Builder {
    /// For a queue pair with these requested operations.
    pub(super) fn new(transport: Transport, wanted: u64, cap: QpCap) -> Result<Builder, Refused> {
        if wanted & !operations(transport) != 0 {
            return Err(unsupported("send_ops_flags names operations that this transport does not have"));
        }
        Ok(Builder { lock: RawMutex::INIT, draft: UnsafeCell::default(), cap })
    }

    /// Takes over the lock from `wr_start`.
    ///
    /// # Safety
    /// This thread holds the lock.
    unsafe fn finish(&self) -> Finishing<'_> {
        Finishing(self)
    }
}

/// The draft of a batch that ends. Releases the lock when it is dropped, also by a panic.
struct Finishing<'a>(&'a Builder);

impl Deref for Finishing<'_> {
    type Target = Draft;

    fn deref(&self) -> &Draft {
        // SAFETY: this thread holds the lock, and `self` is borrowed.
        unsafe { &*self.0.draft.get() }
    }
}

impl DerefMut for Finishing<'_> {
    fn deref_mut(&mut self) -> &mut Draft {
        // SAFETY: this thread holds the lock, and `self` is borrowed mutably.
        unsafe { &mut *self.0.draft.get() }
    }
}

impl Drop for Finishing<'_> {
    fn drop(&mut self) {
        // SAFETY: this thread holds the lock.
        unsafe { self.0.lock.unlock() };
    }
}

/// Fills in the operations.
pub(super) fn fill(qp: &mut ibv_qp_ex) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(if OperationLog::of_process().is_some() { complete_recorded } else { complete });
    qp.wr_abort = Some(abort);
    fill_beginners(qp);
    fill_setters(qp);
}

/// Prepares the destruction of a queue pair: replaces its operations by ones that do nothing. `wr_complete` and `wr_abort` report the
/// misuse.
pub(super) fn refuse(qp: &mut ibv_qp_ex) {
    unsafe extern "C" fn nothing(_: *mut ibv_qp_ex) {}
    unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
        refuse_destroyed::<QpObject>("ibv_wr_abort", qp.addr());
    }
    unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
        refuse_destroyed::<QpObject>("ibv_wr_complete", qp.addr())
    }
    qp.wr_start = Some(nothing);
    qp.wr_abort = Some(abort);
    qp.wr_complete = Some(complete);
    refuse_beginners(qp);
    refuse_setters(qp);
}

unsafe fn builder<'a>(qp: *mut ibv_qp_ex) -> Result<(&'a QpObject, &'a Builder), Refused> {
    // SAFETY: as the caller promises, a queue pair of ours.
    let object = unsafe { QpObject::of(qp.cast())? };
    Ok((object, object.builder.as_ref().ok_or(invalid("the queue pair was made without send operations"))?))
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    guard::quiet("ibv_wr_start", || {
        // SAFETY: a queue pair of ours.
        let (_, builder) = unsafe { builder(qp)? };
        builder.lock.lock();
        // SAFETY: this thread holds the lock.
        let draft = unsafe { &mut *builder.draft.get() };
        draft.requests.clear();
        draft.sges.clear();
        draft.bytes.clear();
        draft.failed = None;
        Ok(())
    });
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    guard::quiet("ibv_wr_abort", || {
        // SAFETY: a queue pair of ours, whose lock this thread took in `wr_start`.
        drop(unsafe { builder(qp)?.1.finish() });
        Ok(())
    });
}

/// As [`complete`], with a record of the requests.
unsafe extern "C" fn complete_recorded(qp: *mut ibv_qp_ex) -> c_int {
    let began_ns = OperationLog::now_ns();
    // SAFETY: a queue pair of ours, whose lock this thread took in `wr_start`.
    let requests: Vec<_> = unsafe { builder(qp) }.map_or_else(
        |_| Vec::new(),
        |(object, builder)| {
            // SAFETY: this thread holds the lock.
            let draft = unsafe { &*builder.draft.get() };
            let len = |data: &Data| match data {
                Data::Sges(at) => draft.sges[at.clone()].iter().map(|sge| u64::from(sge.len)).sum::<u64>(),
                Data::Inline(at) => at.len() as u64,
            };
            let post = |r: &Request| LoggedCall::Post {
                name: recorded::name_of(&r.op),
                wr_id: r.wr_id,
                bytes: len(&r.data),
                is_signaled: object.signal_all || r.flags.contains(SendFlags::SIGNALED),
            };
            draft.requests.iter().map(post).collect()
        },
    );
    // SAFETY: as above.
    let result = unsafe { complete(qp) };
    // SAFETY: a queue pair of ours.
    if let Ok(object) = unsafe { QpObject::of(qp.cast()) }
        && result == 0
    {
        recorded::built(object, began_ns, requests.into_iter());
    }
    result
}

/// Posts all requests, or none if the draft has an error or the send queue is too full.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    guard::number("ibv_wr_complete", || {
        // SAFETY: a queue pair of ours, whose lock this thread took in `wr_start`.
        let (object, builder) = unsafe { builder(qp)? };
        // SAFETY: as above.
        let mut draft = unsafe { builder.finish() };
        match draft.failed.take() {
            Some(refused) => Err(refused),
            None => draft.post(object),
        }
    })
}

impl Draft {
    fn post(&self, object: &QpObject) -> Result<(), Refused> {
        object.qp.post_send_each(|posting| {
            guard::provoke("ibv_wr_complete, locked");
            // The first request that is posted may be transmitted immediately, so all of them are checked before. `post` itself refuses a
            // batch of one.
            if self.requests.len() > 1 {
                self.check(posting)?;
            }
            for (n, request) in self.requests.iter().enumerate() {
                posting.is_last(n + 1 == self.requests.len());
                let wr = self.wr(request);
                posting.post(|| wr)?;
            }
            Ok(())
        })?
    }

    /// Checks that all requests can be posted.
    fn check(&self, posting: &Posting<'_>) -> Result<(), Refused> {
        if self.requests.len() > posting.room() {
            return Err(Refused::Errno(libc::ENOMEM, "the send queue has no room for all of them"));
        }
        let mut requests = self.requests.iter().enumerate();
        Ok(requests.try_for_each(|(n, request)| posting.check(n, &self.wr(request)))?)
    }

    fn wr(&self, request: &Request) -> SendWr<'_> {
        let payload = match &request.data {
            Data::Sges(at) => Payload::Sges(&self.sges[at.clone()]),
            Data::Inline(at) => Payload::Inline(&self.bytes[at.clone()]),
        };
        let Request { wr_id, op, flags, ud, srq, .. } = *request;
        SendWr { wr_id, op, flags, payload, ud, srq }
    }
}

/// Runs `change` on the draft, and stores a refusal for `wr_complete`.
unsafe fn draw(
    qp: *mut ibv_qp_ex,
    verb: &'static str,
    change: impl FnOnce(&mut Draft, &QpCap) -> Result<(), Refused>,
) {
    guard::quiet(verb, || {
        // SAFETY: a queue pair of ours, whose lock this thread took in `wr_start`.
        let (_, builder) = unsafe { builder(qp)? };
        // SAFETY: as above.
        let draft = unsafe { &mut *builder.draft.get() };
        if let Err(refused) = change(draft, &builder.cap) {
            draft.failed.get_or_insert(refused);
        }
        Ok(())
    });
}

unsafe fn begin(qp: *mut ibv_qp_ex, verb: &'static str, op: impl FnOnce() -> Result<SendOp, Refused>) {
    // SAFETY: the program set these two before the call.
    let (wr_id, flags) = unsafe { ((*qp).wr_id, (*qp).wr_flags) };
    // SAFETY: as `draw` demands.
    unsafe {
        draw(qp, verb, |draft, _| {
            let flags =
                SendFlags::from_bits(flags).ok_or(invalid("wr_flags that the device does not know"))?;
            let (op, end) = (op()?, draft.sges.len());
            draft.requests.push(Request {
                wr_id,
                op,
                flags,
                ud: None,
                srq: None,
                data: Data::Sges(end..end),
            });
            Ok(())
        });
    }
}

/// Declares the calls that begin a request, and the functions that set their pointers. `$op` may return a refusal with `?`.
macro_rules! beginners {
    ($($name:ident($($arg:ident: $kind:ty),*) = $verb:literal, $op:expr;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $kind)*) {
            // SAFETY: programs call this between start and complete, on a queue pair of ours. Their pointers are NULL,
            // or lead to objects of ours and to the data that the manual defines.
            unsafe { begin(qp, $verb, || Ok($op)) }
        })*

        fn fill_beginners(qp: &mut ibv_qp_ex) {
            $(qp.$name = Some($name);)*
        }

        fn refuse_beginners(qp: &mut ibv_qp_ex) {
            $(qp.$name = {
                unsafe extern "C" fn nothing(_: *mut ibv_qp_ex $(, _: $kind)*) {}
                Some(nothing)
            };)*
        }
    };
}

beginners! {
    wr_send() = "ibv_wr_send", SendOp::Send;
    wr_send_imm(imm: u32) = "ibv_wr_send_imm", SendOp::SendImm(u32::from_be(imm));
    wr_send_inv(key: u32) = "ibv_wr_send_inv", SendOp::SendInv(RKey(key));
    wr_rdma_write(rkey: u32, addr: u64) = "ibv_wr_rdma_write", SendOp::Write { addr, rkey: RKey(rkey) };
    wr_rdma_write_imm(rkey: u32, addr: u64, imm: u32) = "ibv_wr_rdma_write_imm",
        SendOp::WriteImm { addr, rkey: RKey(rkey), imm: u32::from_be(imm) };
    wr_rdma_read(rkey: u32, addr: u64) = "ibv_wr_rdma_read", SendOp::Read { addr, rkey: RKey(rkey) };
    wr_atomic_cmp_swp(rkey: u32, addr: u64, compare: u64, swap: u64) = "ibv_wr_atomic_cmp_swp",
        SendOp::Atomic { addr, rkey: RKey(rkey), op: AtomicOp::CompareSwap { compare, swap } };
    wr_atomic_fetch_add(rkey: u32, addr: u64, add: u64) = "ibv_wr_atomic_fetch_add",
        SendOp::Atomic { addr, rkey: RKey(rkey), op: AtomicOp::FetchAdd { add } };
    wr_local_inv(key: u32) = "ibv_wr_local_inv", SendOp::LocalInv(RKey(key));
    wr_bind_mw(mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) = "ibv_wr_bind_mw",
        SendOp::BindMw(mw::bind(mw, rkey, info.as_ref().ok_or(invalid("bind_info is NULL"))?)?);
    wr_atomic_write(rkey: u32, addr: u64, value: *const c_void) = "ibv_wr_atomic_write", SendOp::AtomicWrite {
        addr, rkey: RKey(rkey), value: *value.cast::<[u8; 8]>().as_ref().ok_or(invalid("atomic_wr is NULL"))?,
    };
    wr_flush(rkey: u32, addr: u64, len: usize, places: u8, level: u8) = "ibv_wr_flush",
        flush_op(rkey, addr, len, places, level)?;
}

fn flush_op(rkey: u32, addr: u64, len: usize, places: u8, level: u8) -> Result<SendOp, Refused> {
    if places & !(IBV_FLUSH_GLOBAL | IBV_FLUSH_PERSISTENT) != 0 || level > IBV_FLUSH_MR {
        return Err(invalid("a type or level of flush that the device does not know"));
    }
    let len = u32::try_from(len).map_err(|_| invalid("more bytes than a flush can name"))?;
    let what = FlushWhat {
        global: places & IBV_FLUSH_GLOBAL != 0,
        persistent: places & IBV_FLUSH_PERSISTENT != 0,
        whole_region: level == IBV_FLUSH_MR,
    };
    Ok(SendOp::Flush { addr, rkey: RKey(rkey), len, what })
}

impl Draft {
    /// The request that the setters change.
    fn last(&mut self) -> Result<&mut Request, Refused> {
        self.requests.last_mut().ok_or(invalid("a setter before any request"))
    }

    fn gather(&mut self, sges: &[Sge], cap: &QpCap) -> Result<(), Refused> {
        if sges.len() > cap.max_send_sge as usize {
            return Err(invalid("more scatter/gather entries than max_send_sge"));
        }
        let start = self.sges.len();
        self.sges.extend_from_slice(sges);
        let end = self.sges.len();
        self.last()?.data = Data::Sges(start..end);
        Ok(())
    }

    unsafe fn copy(&mut self, pieces: &[ibv_data_buf], cap: &QpCap) -> Result<(), Refused> {
        let total = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.length));
        if total > cap.max_inline_data as usize {
            return Err(Refused::Errno(libc::ENOMEM, "more inline data than max_inline_data"));
        }
        let start = self.bytes.len();
        for piece in pieces.iter().filter(|piece| piece.length > 0) {
            // SAFETY: as the caller promises, the program's own bytes.
            let bytes = unsafe { std::slice::from_raw_parts(piece.addr.cast::<u8>(), piece.length) };
            self.bytes.extend_from_slice(bytes);
        }
        let end = self.bytes.len();
        let last = self.last()?;
        last.data = Data::Inline(start..end);
        last.flags |= SendFlags::INLINE;
        Ok(())
    }
}

/// Declares the calls that change the last request, and the functions that set their pointers.
macro_rules! setters {
    ($($name:ident($($arg:ident: $kind:ty),*) = $verb:literal, |$draft:ident, $cap:pat_param| $change:expr;)*) => {
        $(unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $arg: $kind)*) {
            // SAFETY: as for the calls that begin a request.
            unsafe {
                draw(qp, $verb, |$draft, $cap| {
                    $change;
                    Ok(())
                });
            }
        })*

        fn fill_setters(qp: &mut ibv_qp_ex) {
            $(qp.$name = Some($name);)*
        }

        fn refuse_setters(qp: &mut ibv_qp_ex) {
            $(qp.$name = {
                unsafe extern "C" fn nothing(_: *mut ibv_qp_ex $(, _: $kind)*) {}
                Some(nothing)
            };)*
        }
    };
}

setters! {
    wr_set_xrc_srqn(number: u32) = "ibv_wr_set_xrc_srqn",
        |draft, _| draft.last()?.srq = Some(Srqn::new(number));
    wr_set_ud_addr(ah: *mut ibv_ah, qpn: u32, qkey: u32) = "ibv_wr_set_ud_addr", |draft, _| {
        let route = *Handle::<AhObject>::of(ah)?.ah.route();
        draft.last()?.ud = Some(UdTarget { route, qpn: Qpn::new(qpn), qkey: Qkey(qkey) });
    };
    wr_set_sge(lkey: u32, addr: u64, len: u32) = "ibv_wr_set_sge",
        |draft, cap| draft.gather(&[Sge { addr, len, lkey: LKey(lkey) }], cap)?;
    wr_set_sge_list(count: usize, list: *const Sge) = "ibv_wr_set_sge_list", |draft, cap| {
        let count = c_int::try_from(count).map_err(|_| invalid("num_sge is too large"))?;
        draft.gather(crate::send::entries(list.cast_mut(), count)?, cap)?;
    };
    wr_set_inline_data(addr: *mut c_void, length: usize) = "ibv_wr_set_inline_data",
        |draft, cap| draft.copy(&[ibv_data_buf { addr, length }], cap)?;
    wr_set_inline_data_list(count: usize, list: *const ibv_data_buf) = "ibv_wr_set_inline_data_list", |draft, cap| {
        if count > 0 && list.is_null() {
            return Err(invalid("buf_list is NULL"));
        }
        let list = if count == 0 { &[] } else { std::slice::from_raw_parts(list, count) };
        draft.copy(list, cap)?;
    };
}
