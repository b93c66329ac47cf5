//! Shared receive queues.

use crate::device::Device;
use crate::error::Error;
use crate::in_flight::Queue;
use crate::macros::debug;
use crate::memory::Buffer;
use crate::pd::Pd;
use crate::pending::Refused;
use crate::qp::check_ids;
use ferroce_nic::SrqAttr;
use ferroce_proto::verbs::RecvWr;
use std::sync::Arc;

/// A shared receive queue: several queue pairs take their receives from it. Cheap to clone.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<Inner>,
}

struct Inner {
    nic: ferroce_nic::Srq,
    // Dropped after the queue, which uses the buffers.
    _discard: Discard,
    pd: Pd,
}

/// Drops the buffers that were posted to a queue.
struct Discard {
    id: u32,
    device: Device,
}

impl Srq {
    pub(crate) fn create(pd: &Pd, depth: u32, sges: u32) -> Result<Srq, Error> {
        Ok(Srq::new(pd.nic.create_srq(depth, sges).map_err(Error::in_call("create_srq"))?, pd))
    }

    pub(crate) fn new(nic: ferroce_nic::Srq, pd: &Pd) -> Srq {
        let discard = Discard { id: nic.id(), device: pd.device.clone() };
        Srq { inner: Arc::new(Inner { nic, _discard: discard, pd: pd.clone() }) }
    }

    /// Its number within the device. Events refer to it by this number.
    pub fn id(&self) -> u32 {
        self.inner.nic.id()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// Its attributes.
    pub fn query(&self) -> SrqAttr {
        self.inner.nic.query()
    }

    /// Posts receives into regions.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), Error> {
        check_ids("post_srq_recv", wrs.iter().map(|wr| wr.wr_id))?;
        self.inner.nic.post_recv(wrs).map_err(Error::in_post("post_srq_recv"))
    }

    /// Posts a buffer for the next message of any queue pair. [`Cq::wait_shared`](crate::Cq::wait_shared) returns the buffer, on
    /// the completion queue of the queue pair that received the message.
    pub fn recv(&self, buffer: Buffer) -> Result<(), Refused> {
        self.post_owned(buffer, false)
    }

    /// As [`Srq::recv`], for datagram queue pairs.
    pub fn recv_datagram(&self, buffer: Buffer) -> Result<(), Refused> {
        self.post_owned(buffer, true)
    }

    fn post_owned(&self, buffer: Buffer, datagram: bool) -> Result<(), Refused> {
        let sges = [buffer.incoming(datagram)];
        self.inner.pd.device.post_owned("post_srq_recv", buffer, Queue::Srq(self.id()), None, |wr_id| {
            self.inner.nic.post_recv(&[RecvWr { wr_id, sges: &sges }])
        })
    }

    /// Arms the limit event. It is raised once, when fewer than `limit` receives are left.
    pub fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        self.inner.nic.arm_limit(limit).map_err(Error::in_call("modify_srq"))
    }

    /// Changes the depth.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        self.inner.nic.resize(depth).map_err(Error::in_call("modify_srq"))
    }

    pub(crate) fn nic(&self) -> &ferroce_nic::Srq {
        &self.inner.nic
    }
}

impl Drop for Discard {
    fn drop(&mut self) {
        if self.device.is_ours() {
            self.device.in_flight().discard(Queue::Srq(self.id));
        }
    }
}

debug!(Srq, |this| "Srq({}, {:?})", this.id(), this.query());
