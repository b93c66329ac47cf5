//! Posting sends.

use super::{Connected, Core, Rc, Service, Ud, check_ids};
use crate::address::AddressHandle;
use crate::error::Error;
use crate::in_flight::{OutcomeCell, Queue};
use crate::macros::debug;
use crate::memory::{Buffer, MemoryWindow, Region, RemoteRegion, Type1, Type2, WindowKind};
use crate::pending::{Pending, Refused};
use crate::wr;
use ferroce_proto::verbs::{Access, Payload, SendFlags, SendOp, SendWr, Sge, UdTarget};
use ferroce_proto::{RKey, Srqn};
use std::marker::PhantomData;
use std::ops::RangeBounds;
use std::sync::Arc;

/// The sending half of a queue pair.
///
/// Operations with a `wr_id` work on regions; their completion carries that number, whose highest bit must be zero.
/// They produce a completion if the queue pair signals all ([the default](crate::QpBuilder::signal_all)) or
/// [`SendFlags::SIGNALED`] is set. Operations with a [`Buffer`] own it until they complete.
///
/// A transport has only the methods of its operations:
/// ```
/// fn read(qp: ferroce::RcQp, sge: ferroce::Sge, from: ferroce::RemoteRegion) {
///     let _ = qp.read(1, &[sge], from);
/// }
/// ```
/// ```compile_fail
/// fn read(qp: ferroce::UcQp, sge: ferroce::Sge, from: ferroce::RemoteRegion) {
///     let _ = qp.read(1, &[sge], from); // unreliable connections have no READ
/// }
/// ```
#[derive(Clone)]
pub struct SendHalf<T: Service> {
    pub(super) core: Arc<Core>,
    pub(super) transport: PhantomData<T>,
}

/// The destination of an owned operation.
pub(crate) enum Target {
    /// The connected queue pair.
    Peer,
    /// A datagram queue pair or a multicast group.
    Datagram(UdTarget),
    /// A shared receive queue behind an XRC target.
    Srq(Srqn),
}

debug!(SendHalf<T> where T: Service, |this| "SendHalf({:?} {})", T::TRANSPORT, this.core.nic.qpn());

impl<T: Service> SendHalf<T> {
    /// Posts work requests in order, with one doorbell for all of them. The functions of [`wr`] make them.
    pub fn post_send(&self, wrs: &[SendWr<'_>]) -> Result<(), Error> {
        check_ids("post_send", wrs.iter().map(|wr| wr.wr_id))?;
        self.core.nic.post_send(wrs).map_err(Error::in_post("post_send"))
    }

    pub(crate) fn send_owned(&self, buffer: Buffer, op: SendOp, target: Target) -> Result<Pending, Refused> {
        let sges = [buffer.outgoing()];
        let (ud, srq) = match target {
            Target::Peer => (None, None),
            Target::Datagram(target) => (Some(target), None),
            Target::Srq(number) => (None, Some(number)),
        };
        let (queue, outcome) = (Queue::Qp(self.core.nic.qpn()), Arc::<OutcomeCell>::default());
        self.core.pd.device.post_owned("post_send", buffer, queue, Some(outcome.clone()), |wr_id| {
            let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&sges));
            self.core.nic.post_send(&[SendWr { wr_id, op, flags, payload, ud, srq }])
        })?;
        Ok(Pending { outcome, cq: self.core.send_cq.clone() })
    }
}

impl<T: Connected> SendHalf<T> {
    /// Sends the message in `buffer`.
    pub fn send(&self, buffer: Buffer) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::Send, Target::Peer)
    }

    /// Sends the message in `buffer` with immediate data.
    pub fn send_with_imm(&self, buffer: Buffer, imm: u32) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::SendImm(imm), Target::Peer)
    }

    /// Writes the message in `buffer` into the peer's region.
    pub fn write_from(&self, buffer: Buffer, to: RemoteRegion) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::Write { addr: to.addr, rkey: to.rkey }, Target::Peer)
    }

    /// Sends bytes of regions as one message.
    pub fn send_from(&self, wr_id: u64, from: &[Sge]) -> Result<(), Error> {
        self.post_send(&[wr::send(wr_id, from)])
    }

    /// Sends a few bytes, which are copied during the call.
    pub fn send_inline(&self, wr_id: u64, data: &[u8]) -> Result<(), Error> {
        self.post_send(&[wr::send_inline(wr_id, data)])
    }

    /// Writes bytes of our regions into the peer's.
    pub fn write(&self, wr_id: u64, from: &[Sge], to: RemoteRegion) -> Result<(), Error> {
        self.post_send(&[wr::write(wr_id, from, to)])
    }

    /// Writes a few bytes, which are copied during the call.
    pub fn write_inline(&self, wr_id: u64, data: &[u8], to: RemoteRegion) -> Result<(), Error> {
        self.post_send(&[wr::write_inline(wr_id, data, to)])
    }

    /// Binds a memory window to `range` of `region`, which must allow [window binds](crate::RegionBuilder::bind_windows).
    /// Returns the description of the window for the peer. The peer may use it after the completion of the bind.
    ///
    /// `access` contains the remote rights, and [`Access::ZERO_BASED`] if the peer counts from the first byte of the range.
    pub fn bind_window<K: WindowKind>(
        &self,
        wr_id: u64,
        window: &MemoryWindow<K>,
        region: &Region,
        range: impl RangeBounds<u64>,
        access: Access,
    ) -> Result<RemoteRegion, Error> {
        check_ids("bind_mw", [wr_id].into_iter())?;
        let target = MemoryWindow::<K>::target(region, range)?;
        window.post_bind(&self.core.nic, wr_id, Some(target), access)
    }

    /// Closes a window of type 1. Its key is invalid after the completion.
    pub fn unbind_window(&self, wr_id: u64, window: &MemoryWindow<Type1>) -> Result<(), Error> {
        check_ids("bind_mw", [wr_id].into_iter())?;
        window.post_bind(&self.core.nic, wr_id, None, Access::empty()).map(drop)
    }

    /// Closes a window of type 2 that this queue pair bound. Its key is invalid after the completion. The peer can do the same
    /// with [`send_with_inv`](SendHalf::send_with_inv).
    pub fn invalidate_window(&self, wr_id: u64, window: &MemoryWindow<Type2>) -> Result<(), Error> {
        self.post_send(&[wr::local_inv(wr_id, window.posted_rkey())])
    }

    /// Writes, and completes a receive of the peer with `imm`.
    pub fn write_imm(&self, wr_id: u64, from: &[Sge], to: RemoteRegion, imm: u32) -> Result<(), Error> {
        self.post_send(&[wr::write_imm(wr_id, from, to, imm)])
    }
}

impl SendHalf<Rc> {
    /// Reads as many bytes of the peer's region as `buffer` is long.
    pub fn read_into(&self, buffer: Buffer, from: RemoteRegion) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::Read { addr: from.addr, rkey: from.rkey }, Target::Peer)
    }

    /// Reads bytes of the peer's region into ours.
    pub fn read(&self, wr_id: u64, into: &[Sge], from: RemoteRegion) -> Result<(), Error> {
        self.post_send(&[wr::read(wr_id, into, from)])
    }

    /// Adds to eight bytes of the peer; `old` receives the previous value.
    pub fn fetch_add(&self, wr_id: u64, old: Sge, at: RemoteRegion, add: u64) -> Result<(), Error> {
        self.post_send(&[wr::fetch_add(wr_id, &[old], at, add)])
    }

    /// Replaces eight bytes of the peer by `swap` if they equal `compare`; `old` receives the previous value.
    pub fn compare_swap(
        &self,
        wr_id: u64,
        old: Sge,
        at: RemoteRegion,
        compare: u64,
        swap: u64,
    ) -> Result<(), Error> {
        self.post_send(&[wr::compare_swap(wr_id, &[old], at, compare, swap)])
    }

    /// Sends the message in `buffer` and invalidates a key of the peer.
    pub fn send_with_inv(&self, buffer: Buffer, rkey: RKey) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::SendInv(rkey), Target::Peer)
    }
}

impl SendHalf<Ud> {
    /// Sends the message in `buffer`: at most one MTU.
    pub fn send(&self, buffer: Buffer, to: &AddressHandle) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::Send, Target::Datagram(to.target()))
    }

    /// Sends the message in `buffer` with immediate data.
    pub fn send_with_imm(&self, buffer: Buffer, imm: u32, to: &AddressHandle) -> Result<Pending, Refused> {
        self.send_owned(buffer, SendOp::SendImm(imm), Target::Datagram(to.target()))
    }

    /// Sends bytes of regions as one message.
    pub fn send_from(&self, wr_id: u64, from: &[Sge], to: &AddressHandle) -> Result<(), Error> {
        self.post_send(&[SendWr { ud: Some(to.target()), ..wr::send(wr_id, from) }])
    }

    /// Sends a few bytes, which are copied during the call.
    pub fn send_inline(&self, wr_id: u64, data: &[u8], to: &AddressHandle) -> Result<(), Error> {
        self.post_send(&[SendWr { ud: Some(to.target()), ..wr::send_inline(wr_id, data) }])
    }
}
