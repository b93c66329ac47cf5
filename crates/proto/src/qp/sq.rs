//! The send queue: a ring of work queue entries. `post_send` adds entries; completions remove them.

use super::post::signals;
use crate::ids::{PdId, RKey, Srqn};
use crate::qp::TxPayload;
use crate::verbs::{Payload, QpCap, SendFlags, SendOp, SendWr, Sge, Transport, UdTarget, WcOpcode};
use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

/// A posted send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendWqe {
    pub(crate) wr_id: u64,
    pub(crate) op: SendOp,
    /// Message length in bytes.
    pub(crate) len: u32,
    /// Number of PSNs; 0 until the first packet is due.
    pub(crate) packets: u32,
    /// Payload bytes of each packet except the last.
    pub(crate) segment: u32,
    /// Its packets are jumbo packets and carry the jumbo bit.
    pub(crate) jumbo: bool,
    pub(crate) sge_count: u8,
    pub(crate) inline: bool,
    pub(crate) signaled: bool,
    pub(crate) fence: bool,
    pub(crate) solicited: bool,
}

/// Shows the request in the terms of the posted work request.
impl fmt::Display for SendWqe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, remote) = match self.op {
            SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => ("SEND", None),
            SendOp::Write { addr, rkey } | SendOp::WriteImm { addr, rkey, .. } => {
                ("WRITE", Some((addr, rkey)))
            }
            SendOp::Read { addr, rkey } => ("READ", Some((addr, rkey))),
            SendOp::Atomic { addr, rkey, .. } => ("atomic", Some((addr, rkey))),
            SendOp::AtomicWrite { addr, rkey, .. } => ("atomic WRITE", Some((addr, rkey))),
            SendOp::Flush { addr, rkey, .. } => ("FLUSH", Some((addr, rkey))),
            SendOp::LocalInv(_) | SendOp::BindMw(_) => ("local request", None),
        };
        write!(f, "{name} wr_id {:#x} of {} bytes", self.wr_id, self.len)?;
        let Some((addr, RKey(rkey))) = remote else { return Ok(()) };
        write!(f, " at {addr:#x} with rkey {rkey:#x}")
    }
}

impl SendWqe {
    const EMPTY: SendWqe = SendWqe {
        wr_id: 0,
        op: SendOp::Send,
        len: 0,
        packets: 0,
        segment: 0,
        jumbo: false,
        sge_count: 0,
        inline: false,
        signaled: false,
        fence: false,
        solicited: false,
    };

    pub(crate) fn wc_opcode(&self) -> WcOpcode {
        wc_opcode(&self.op)
    }

    /// Whether it executes locally, without packets.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.op, SendOp::LocalInv(_) | SendOp::BindMw(_))
    }

    /// Whether it needs a response; an ACK does not complete it.
    pub(crate) fn awaits_response(&self) -> bool {
        awaits_response(&self.op)
    }

    /// Number of PSNs of a message of this length. A READ uses one per response, at least one.
    pub(crate) fn packets_at(&self, mtu: u32) -> u32 {
        match self.op {
            SendOp::LocalInv(_) | SendOp::BindMw(_) => 0,
            SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. } => 1,
            _ if self.len <= mtu => 1,
            _ => self.len.div_ceil(mtu),
        }
    }
}

/// The completion opcode of this operation.
#[inline]
pub(super) fn wc_opcode(op: &SendOp) -> WcOpcode {
    use crate::verbs::AtomicOp;
    match op {
        SendOp::Send | SendOp::SendImm(_) | SendOp::SendInv(_) => WcOpcode::Send,
        SendOp::Write { .. } | SendOp::WriteImm { .. } => WcOpcode::RdmaWrite,
        SendOp::Read { .. } => WcOpcode::RdmaRead,
        SendOp::Atomic { op: AtomicOp::CompareSwap { .. }, .. } => WcOpcode::CompSwap,
        SendOp::Atomic { op: AtomicOp::FetchAdd { .. }, .. } => WcOpcode::FetchAdd,
        SendOp::AtomicWrite { .. } => WcOpcode::AtomicWrite,
        SendOp::Flush { .. } => WcOpcode::Flush,
        SendOp::LocalInv(_) => WcOpcode::LocalInv,
        SendOp::BindMw(_) => WcOpcode::BindMw,
    }
}

/// Whether this operation needs a response; an ACK does not complete it.
#[inline]
pub(super) fn awaits_response(op: &SendOp) -> bool {
    matches!(
        op,
        SendOp::Read { .. } | SendOp::Atomic { .. } | SendOp::AtomicWrite { .. } | SendOp::Flush { .. }
    )
}

/// The ring. Entries are identified by an increasing index; `head` is the oldest not yet completed.
#[derive(Debug)]
pub(crate) struct SendQueue {
    ring: Box<[SendWqe]>,
    sges: Box<[Sge]>,
    sge_stride: usize,
    inline: Box<[u8]>,
    inline_stride: usize,
    /// Destinations; allocated only for UD queue pairs.
    targets: Vec<UdTarget>,
    /// The peer's shared receive queues; allocated only for XRC initiators.
    srqs: Vec<Srqn>,
    head: u64,
    tail: u64,
}

impl SendQueue {
    pub(crate) fn new(cap: &QpCap, transport: Transport) -> Self {
        let depth = cap.max_send_wr as usize;
        let (sge_stride, inline_stride) = (cap.max_send_sge as usize, cap.max_inline_data as usize);
        SendQueue {
            ring: vec![SendWqe::EMPTY; depth].into(),
            sges: vec![Sge::default(); depth * sge_stride].into(),
            sge_stride,
            inline: vec![0; depth * inline_stride].into(),
            inline_stride,
            targets: if transport == Transport::Ud { vec![UdTarget::default(); depth] } else { Vec::new() },
            srqs: if transport == Transport::XrcIni { vec![Srqn::default(); depth] } else { Vec::new() },
            head: 0,
            tail: 0,
        }
    }

    pub(crate) fn depth(&self) -> usize {
        self.ring.len()
    }
    pub(crate) fn is_full(&self) -> bool {
        (self.tail - self.head) as usize >= self.ring.len()
    }
    pub(crate) fn is_empty(&self) -> bool {
        self.head == self.tail
    }
    /// Whether the queue is empty and its depth is not zero.
    pub(crate) fn is_idle(&self) -> bool {
        self.is_empty() && !self.ring.is_empty()
    }
    pub(crate) fn head(&self) -> u64 {
        self.head
    }
    pub(crate) fn tail(&self) -> u64 {
        self.tail
    }
    /// Entries posted and not completed.
    pub(crate) fn outstanding(&self) -> usize {
        (self.tail - self.head) as usize
    }
    pub(crate) fn clear(&mut self) {
        (self.head, self.tail) = (0, 0);
    }

    /// Avoids a division when the depth is a power of two; a message needs this about ten times.
    #[inline]
    fn slot(&self, number: u64) -> usize {
        let (depth, mask) = (self.ring.len() as u64, (self.ring.len() as u64).wrapping_sub(1));
        (if depth & mask == 0 { number & mask } else { number % depth }) as usize
    }

    #[inline]
    pub(crate) fn get(&self, number: u64) -> Option<&SendWqe> {
        (self.head..self.tail).contains(&number).then(|| &self.ring[self.slot(number)])
    }
    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut SendWqe> {
        let slot = self.slot(number);
        (self.head..self.tail).contains(&number).then(|| &mut self.ring[slot])
    }

    /// Entries posted and not completed, oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &SendWqe> {
        (self.head..self.tail).map(|number| &self.ring[self.slot(number)])
    }

    /// Adds an entry and returns it. The caller has checked that it fits.
    #[inline(always)] // a request that was just sent is in registers
    pub(crate) fn push(&mut self, wr: &SendWr<'_>, len: u32, signal_all: bool) -> &mut SendWqe {
        let slot = self.slot(self.tail);
        let (sge_count, inline) = match wr.payload {
            Payload::Sges([only]) => {
                self.sges[slot * self.sge_stride] = *only;
                (1, false)
            }
            Payload::Sges(sges) => {
                let start = slot * self.sge_stride;
                self.sges[start..start + sges.len()].copy_from_slice(sges);
                (sges.len() as u8, false)
            }
            Payload::Inline(bytes) => {
                let start = slot * self.inline_stride;
                self.inline[start..start + bytes.len()].copy_from_slice(bytes);
                (0, true)
            }
        };
        if let (Some(target), Some(entry)) = (wr.ud, self.targets.get_mut(slot)) {
            *entry = target;
        }
        if let (Some(srq), Some(entry)) = (wr.srq, self.srqs.get_mut(slot)) {
            *entry = srq;
        }
        self.ring[slot] = SendWqe {
            wr_id: wr.wr_id,
            op: wr.op,
            len,
            packets: 0,
            segment: 0,
            jumbo: false,
            sge_count,
            inline,
            signaled: signals(wr.flags, signal_all),
            fence: wr.flags.contains(SendFlags::FENCE),
            solicited: wr.flags.contains(SendFlags::SOLICITED),
        };
        self.tail += 1;
        &mut self.ring[slot]
    }

    /// The oldest entry.
    #[inline]
    pub(crate) fn oldest(&self) -> Option<&SendWqe> {
        if self.is_empty() { None } else { Some(&self.ring[self.slot(self.head)]) }
    }

    /// Removes the oldest entry, which the caller has read.
    #[inline]
    pub(crate) fn forget_oldest(&mut self) {
        debug_assert!(!self.is_empty());
        self.head += 1;
    }

    /// Removes the oldest entry.
    pub(crate) fn pop(&mut self) -> Option<SendWqe> {
        if self.is_empty() {
            return None;
        }
        let wqe = self.ring[self.slot(self.head)];
        self.head += 1;
        Some(wqe)
    }

    /// The scatter/gather list of an entry.
    pub(crate) fn sges(&self, number: u64) -> &[Sge] {
        let slot = self.slot(number);
        let start = slot * self.sge_stride;
        &self.sges[start..start + self.ring[slot].sge_count as usize]
    }

    /// Part of an entry's message, as the payload of a packet.
    #[inline]
    pub(crate) fn payload(&self, number: u64, pd: PdId, offset: u64, len: u32) -> TxPayload<'_> {
        let slot = self.slot(number);
        if len == 0 {
            TxPayload::None
        } else if self.ring[slot].inline {
            let start = slot * self.inline_stride + offset as usize;
            TxPayload::Bytes(&self.inline[start..start + len as usize])
        } else {
            TxPayload::Local { pd, sges: self.sges(number), offset, len }
        }
    }

    pub(crate) fn memory_footprint(&self) -> usize {
        size_of_val(&*self.ring)
            + size_of_val(&*self.sges)
            + self.inline.len()
            + self.targets.capacity() * size_of::<UdTarget>()
            + self.srqs.capacity() * size_of::<Srqn>()
    }

    /// The shared receive queue of an XRC request.
    pub(crate) fn srq(&self, number: u64) -> Option<Srqn> {
        if self.srqs.is_empty() { None } else { self.srqs.get(self.slot(number)).copied() }
    }

    /// The destination of a datagram.
    pub(crate) fn target(&self, number: u64) -> UdTarget {
        self.targets.get(self.slot(number)).copied().unwrap_or_default()
    }
}
