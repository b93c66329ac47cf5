//! Shared receive queues.

use crate::error::Error;
use crate::in_flight::Queue;
use crate::memory::Buffer;
use crate::pd::Pd;
use crate::pending::Refused;
use crate::qp::check_ids;
use ferroce_nic::SrqAttr;
use ferroce_proto::verbs::RecvWr;
use std::fmt;
use std::sync::Arc;

/// A queue of receives that many queue pairs take from. Cheap to clone.
#[derive(Clone)]
pub struct Srq {
    inner: Arc<Inner>,
}

struct Inner {
    nic: ferroce_nic::Srq,
    pd: Pd,
}

impl Srq {
    pub(crate) fn create(pd: &Pd, depth: u32, sges: u32) -> Result<Srq, Error> {
        let nic = pd.nic.create_srq(depth, sges).map_err(Error::in_call("create_srq"))?;
        Ok(Srq { inner: Arc::new(Inner { nic, pd: pd.clone() }) })
    }

    /// Its number within the device: what events name it by.
    pub fn id(&self) -> u32 {
        self.inner.nic.id()
    }

    /// Its protection domain.
    pub fn pd(&self) -> &Pd {
        &self.inner.pd
    }

    /// What it is made of.
    pub fn query(&self) -> SrqAttr {
        self.inner.nic.query()
    }

    /// Posts receives into regions.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), Error> {
        check_ids("post_srq_recv", wrs.iter().map(|wr| wr.wr_id))?;
        self.inner.nic.post_recv(wrs).map_err(Error::in_post("post_srq_recv"))
    }

    /// Gives a buffer for the next message of any queue pair. It comes out of [`Cq::wait_shared`](crate::Cq), at the
    /// receive queue of whichever queue pair got the message.
    pub fn recv(&self, buffer: Buffer) -> Result<(), Refused> {
        self.post_owned(buffer, false)
    }

    /// As [`Srq::recv`], for datagram queue pairs.
    pub fn recv_datagram(&self, buffer: Buffer) -> Result<(), Refused> {
        self.post_owned(buffer, true)
    }

    fn post_owned(&self, buffer: Buffer, datagram: bool) -> Result<(), Refused> {
        let device = &self.inner.pd.device;
        if let Err(error) = device.check_ours("post_srq_recv") {
            return Err(Refused { error: error.into(), buffer });
        }
        let sges = [buffer.incoming(datagram)];
        let wr_id = device.in_flight().add(buffer, Queue::Srq(self.id()), None);
        let posted = self.inner.nic.post_recv(&[RecvWr { wr_id, sges: &sges }]);
        posted
            .or_else(|refused| device.in_flight().take_back(wr_id, Error::in_post("post_srq_recv")(refused)))
    }

    /// Arms the limit event: raised once, when fewer than `limit` receives wait.
    pub fn arm_limit(&self, limit: u32) -> Result<(), Error> {
        self.inner.nic.arm_limit(limit).map_err(Error::in_call("modify_srq"))
    }

    /// Changes how many receives may wait.
    pub fn resize(&self, depth: u32) -> Result<(), Error> {
        self.inner.nic.resize(depth).map_err(Error::in_call("modify_srq"))
    }

    pub(crate) fn nic(&self) -> &ferroce_nic::Srq {
        &self.inner.nic
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.pd.device.is_ours() {
            // Queue pairs hold their shared queue, so nobody can take a receive from it any more.
            self.pd.device.in_flight().discard(Queue::Srq(self.nic.id()));
        }
    }
}

impl fmt::Debug for Srq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Srq({}, {:?})", self.id(), self.query())
    }
}
