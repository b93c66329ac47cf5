//! Work requests as a test writes them.

use crate::node::Mr;
use ferroce_proto::verbs::{AtomicOp, FlushWhat, Payload, SendFlags, SendOp, SendWr, Sge, UdTarget};
use ferroce_proto::{RKey, Srqn};

/// A send work request that owns its parts. Signalled unless [`Wr::unsignaled`] is called.
#[derive(Clone, Debug)]
pub struct Wr {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    sges: Vec<Sge>,
    inline: Option<Vec<u8>>,
    ud: Option<UdTarget>,
    srq: Option<Srqn>,
}

impl Wr {
    /// Any operation.
    pub fn new(wr_id: u64, op: SendOp) -> Wr {
        Wr { wr_id, op, flags: SendFlags::SIGNALED, sges: Vec::new(), inline: None, ud: None, srq: None }
    }
    /// SEND.
    pub fn send(wr_id: u64) -> Wr {
        Wr::new(wr_id, SendOp::Send)
    }
    /// SEND with immediate data.
    pub fn send_imm(wr_id: u64, imm: u32) -> Wr {
        Wr::new(wr_id, SendOp::SendImm(imm))
    }
    /// SEND with invalidate.
    pub fn send_inv(wr_id: u64, rkey: RKey) -> Wr {
        Wr::new(wr_id, SendOp::SendInv(rkey))
    }
    /// WRITE to the peer's region, from `offset` on.
    pub fn write(wr_id: u64, to: &Mr, offset: u64) -> Wr {
        Wr::new(wr_id, SendOp::Write { addr: to.addr(offset), rkey: to.rkey })
    }
    /// WRITE with immediate data.
    pub fn write_imm(wr_id: u64, to: &Mr, offset: u64, imm: u32) -> Wr {
        Wr::new(wr_id, SendOp::WriteImm { addr: to.addr(offset), rkey: to.rkey, imm })
    }
    /// READ.
    pub fn read(wr_id: u64, from: &Mr, offset: u64) -> Wr {
        Wr::new(wr_id, SendOp::Read { addr: from.addr(offset), rkey: from.rkey })
    }
    /// Fetch and add.
    pub fn fetch_add(wr_id: u64, at: &Mr, offset: u64, add: u64) -> Wr {
        let op = AtomicOp::FetchAdd { add };
        Wr::new(wr_id, SendOp::Atomic { addr: at.addr(offset), rkey: at.rkey, op })
    }
    /// Compare and swap.
    pub fn compare_swap(wr_id: u64, at: &Mr, offset: u64, compare: u64, swap: u64) -> Wr {
        let op = AtomicOp::CompareSwap { compare, swap };
        Wr::new(wr_id, SendOp::Atomic { addr: at.addr(offset), rkey: at.rkey, op })
    }
    /// Atomic write.
    pub fn atomic_write(wr_id: u64, at: &Mr, offset: u64, value: u64) -> Wr {
        let value = value.to_ne_bytes();
        Wr::new(wr_id, SendOp::AtomicWrite { addr: at.addr(offset), rkey: at.rkey, value })
    }
    /// Flush of `len` bytes.
    pub fn flush(wr_id: u64, at: &Mr, offset: u64, len: u32, what: FlushWhat) -> Wr {
        Wr::new(wr_id, SendOp::Flush { addr: at.addr(offset), rkey: at.rkey, len, what })
    }
    /// Local invalidate.
    pub fn local_inv(wr_id: u64, rkey: RKey) -> Wr {
        Wr::new(wr_id, SendOp::LocalInv(rkey))
    }

    /// Adds a scatter/gather entry.
    pub fn sge(mut self, sge: Sge) -> Wr {
        self.sges.push(sge);
        self
    }
    /// Adds several.
    pub fn sges(mut self, sges: impl IntoIterator<Item = Sge>) -> Wr {
        self.sges.extend(sges);
        self
    }
    /// Carries these bytes inline.
    pub fn inline(mut self, bytes: &[u8]) -> Wr {
        self.inline = Some(bytes.to_vec());
        self.with(SendFlags::INLINE)
    }
    /// Without completion, unless it fails.
    pub fn unsignaled(mut self) -> Wr {
        self.flags.remove(SendFlags::SIGNALED);
        self
    }
    /// Adds a flag.
    pub fn with(mut self, flag: SendFlags) -> Wr {
        self.flags |= flag;
        self
    }
    /// After earlier READs and atomics.
    pub fn fenced(self) -> Wr {
        self.with(SendFlags::FENCE)
    }
    /// Wakes the receiver.
    pub fn solicited(self) -> Wr {
        self.with(SendFlags::SOLICITED)
    }
    /// Goes to this datagram queue pair.
    pub fn to(mut self, target: UdTarget) -> Wr {
        self.ud = Some(target);
        self
    }
    /// Goes to this XRC shared receive queue.
    pub fn for_srq(mut self, srq: Srqn) -> Wr {
        self.srq = Some(srq);
        self
    }
    /// Its number.
    pub fn wr_id(&self) -> u64 {
        self.wr_id
    }

    pub(crate) fn borrow(&self) -> SendWr<'_> {
        let payload = match &self.inline {
            Some(bytes) => Payload::Inline(bytes),
            None => Payload::Sges(&self.sges),
        };
        SendWr { wr_id: self.wr_id, op: self.op, flags: self.flags, payload, ud: self.ud, srq: self.srq }
    }
}
