//! Posting receives.

use super::{Core, Qp, Receives, check_ids};
use crate::error::Error;
use crate::in_flight::{OutcomeCell, Queue};
use crate::macros::debug;
use crate::memory::Buffer;
use crate::pending::{Pending, Refused};
use ferroce_proto::verbs::{RecvWr, Transport};
use std::marker::PhantomData;
use std::sync::Arc;

/// The receiving half of a queue pair.
#[derive(Clone)]
pub struct RecvHalf<T: Receives> {
    pub(super) core: Arc<Core>,
    pub(super) transport: PhantomData<T>,
}

debug!(RecvHalf<T> where T: Receives, |this| "RecvHalf({:?} {})", T::TRANSPORT, this.core.nic.qpn());

impl Core {
    fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), Error> {
        check_ids("post_recv", wrs.iter().map(|wr| wr.wr_id))?;
        self.nic.post_recv(wrs).map_err(Error::in_post("post_recv"))
    }

    fn recv(&self, buffer: Buffer) -> Result<Pending, Refused> {
        let sges = [buffer.incoming(self.nic.transport() == Transport::Ud)];
        let (queue, outcome) = (Queue::Qp(self.nic.qpn()), Arc::<OutcomeCell>::default());
        self.pd.device.post_owned("post_recv", buffer, queue, Some(outcome.clone()), |wr_id| {
            self.nic.post_recv(&[RecvWr { wr_id, sges: &sges }])
        })?;
        Ok(Pending { outcome, cq: self.recv_cq.clone() })
    }
}

impl<T: Receives> RecvHalf<T> {
    /// Posts receives into regions, in order.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), Error> {
        self.core.post_recv(wrs)
    }

    /// Posts a buffer for the next message.
    pub fn recv(&self, buffer: Buffer) -> Result<Pending, Refused> {
        self.core.recv(buffer)
    }
}

impl<T: Receives> Qp<T> {
    /// Posts receives into regions, in order.
    pub fn post_recv(&self, wrs: &[RecvWr<'_>]) -> Result<(), Error> {
        self.core().post_recv(wrs)
    }

    /// Posts a buffer for the next message.
    pub fn recv(&self, buffer: Buffer) -> Result<Pending, Refused> {
        self.core().recv(buffer)
    }
}
