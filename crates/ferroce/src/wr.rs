//! Constructors of work requests, for [`post_send`](crate::SendHalf::post_send) and
//! [`post_recv`](crate::RecvHalf::post_recv).
//!
//! They set no flags. Struct update syntax adds flags, destinations and XRC shared receive queues:
//!
//! ```
//! use ferroce::{SendFlags, SendWr, Sge, wr};
//! # let (sge, remote) = (Sge::default(), ferroce::RemoteRegion { addr: 0, len: 0, rkey: ferroce::RKey(0) });
//! let fenced = SendWr { flags: SendFlags::FENCE | SendFlags::SIGNALED, ..wr::write(7, &[sge], remote) };
//! ```

use crate::memory::RemoteRegion;
use ferroce_proto::RKey;
use ferroce_proto::verbs::{AtomicOp, Payload, RecvWr, SendFlags, SendOp, SendWr, Sge};

fn of<'a>(wr_id: u64, op: SendOp, payload: Payload<'a>) -> SendWr<'a> {
    SendWr { wr_id, op, flags: SendFlags::empty(), payload, ud: None, srq: None }
}

/// SEND.
pub fn send(wr_id: u64, from: &[Sge]) -> SendWr<'_> {
    of(wr_id, SendOp::Send, Payload::Sges(from))
}

/// SEND of bytes that are copied when posted.
pub fn send_inline(wr_id: u64, data: &[u8]) -> SendWr<'_> {
    SendWr { flags: SendFlags::INLINE, ..of(wr_id, SendOp::Send, Payload::Inline(data)) }
}

/// SEND with immediate data.
pub fn send_imm(wr_id: u64, from: &[Sge], imm: u32) -> SendWr<'_> {
    of(wr_id, SendOp::SendImm(imm), Payload::Sges(from))
}

/// SEND that invalidates a key of the receiver.
pub fn send_inv(wr_id: u64, from: &[Sge], rkey: RKey) -> SendWr<'_> {
    of(wr_id, SendOp::SendInv(rkey), Payload::Sges(from))
}

/// WRITE to the beginning of `to`.
pub fn write(wr_id: u64, from: &[Sge], to: RemoteRegion) -> SendWr<'_> {
    of(wr_id, SendOp::Write { addr: to.addr, rkey: to.rkey }, Payload::Sges(from))
}

/// WRITE of bytes that are copied when posted.
pub fn write_inline(wr_id: u64, data: &[u8], to: RemoteRegion) -> SendWr<'_> {
    let op = SendOp::Write { addr: to.addr, rkey: to.rkey };
    SendWr { flags: SendFlags::INLINE, ..of(wr_id, op, Payload::Inline(data)) }
}

/// WRITE that also completes a receive of the peer, with immediate data.
pub fn write_imm(wr_id: u64, from: &[Sge], to: RemoteRegion, imm: u32) -> SendWr<'_> {
    of(wr_id, SendOp::WriteImm { addr: to.addr, rkey: to.rkey, imm }, Payload::Sges(from))
}

/// READ from the beginning of `from`.
pub fn read(wr_id: u64, into: &[Sge], from: RemoteRegion) -> SendWr<'_> {
    of(wr_id, SendOp::Read { addr: from.addr, rkey: from.rkey }, Payload::Sges(into))
}

/// Adds to the first eight bytes of `at`; `old` receives the previous value.
pub fn fetch_add(wr_id: u64, old: &[Sge], at: RemoteRegion, add: u64) -> SendWr<'_> {
    let op = AtomicOp::FetchAdd { add };
    of(wr_id, SendOp::Atomic { addr: at.addr, rkey: at.rkey, op }, Payload::Sges(old))
}

/// Stores `swap` in the first eight bytes of `at` if they hold `compare`; `old` receives the previous value.
pub fn compare_swap(wr_id: u64, old: &[Sge], at: RemoteRegion, compare: u64, swap: u64) -> SendWr<'_> {
    let op = AtomicOp::CompareSwap { compare, swap };
    of(wr_id, SendOp::Atomic { addr: at.addr, rkey: at.rkey, op }, Payload::Sges(old))
}

/// Invalidates a local key.
pub fn local_inv(wr_id: u64, rkey: RKey) -> SendWr<'static> {
    of(wr_id, SendOp::LocalInv(rkey), Payload::Sges(&[]))
}

/// A receive.
pub fn recv(wr_id: u64, into: &[Sge]) -> RecvWr<'_> {
    RecvWr { wr_id, sges: into }
}
