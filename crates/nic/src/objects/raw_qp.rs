//! Creation of queue pairs for raw packets.

use super::pd::Pd;
use super::qp::{Qp, QpInit};
use super::work_queue::WorkQueue;
use crate::engine::SlowPath;
use crate::error::Error;
use crate::raw::{Destination, QueueInit, RawInit, RawQp, RawQueue, RxHash, Spread};
use ferroce_proto::verbs::{QpCap, Transport};
use std::sync::Arc;

impl Pd {
    /// Creates a queue pair for raw packets, in RESET. Requires CAP_NET_RAW. It receives the frames that its flow rules match.
    pub fn create_raw_qp(self: &Arc<Self>, init: &QpInit<'_>) -> Result<Qp, Error> {
        let (raw, mut qp, cap) = self.raw_parts(init)?;
        let queue = RawQueue::new(QueueInit {
            memory: self.nic.engine.clone(),
            pd: self.id,
            cq: init.recv_cq.core.clone(),
            srq: init.srq.map(|srq| srq.core.clone()),
            number: qp.qpn(),
            max_wr: cap.max_recv_wr,
            max_sge: cap.max_recv_sge,
        });
        qp.slow_path = Some(SlowPath::Raw(Box::new(RawQp::new(raw, cap, Destination::Queue(queue)))));
        Ok(qp)
    }

    /// Creates a queue pair that receives raw packets into the queues of a table. It cannot send, and the completion queues of `init` get no
    /// completions.
    pub fn create_spread_qp(
        self: &Arc<Self>,
        init: &QpInit<'_>,
        table: &[Arc<WorkQueue>],
        hash: RxHash,
    ) -> Result<Qp, Error> {
        let queues = table.iter().map(|queue| queue.queue.clone()).collect();
        let spread = Spread::new(queues, hash)?;
        let (raw, mut qp, _) = self.raw_parts(init)?;
        let raw = RawQp::new(raw, QpCap::default(), Destination::Spread(Arc::new(spread)));
        qp.slow_path = Some(SlowPath::Raw(Box::new(raw)));
        Ok(qp)
    }

    /// Its parameters, a queue pair that reserves its number, and the checked sizes.
    fn raw_parts(self: &Arc<Self>, init: &QpInit<'_>) -> Result<(RawInit, Qp, QpCap), Error> {
        self.nic.alive()?;
        let port = self.nic.raw_port()?;
        let none = QpInit { transport: Transport::Ud, ..*init };
        // A datagram queue pair that never leaves RESET reserves the number. Its creation makes the common checks.
        let qp = self.create_qp(&none)?;
        let cap = qp.core.machine.lock().query().cap;
        let raw = RawInit {
            port,
            memory: self.nic.engine.clone(),
            pd: self.id,
            qpn: qp.qpn(),
            send_cq: init.send_cq.core.clone(),
            signal_all: init.signal_all,
        };
        Ok((raw, qp, cap))
    }
}
