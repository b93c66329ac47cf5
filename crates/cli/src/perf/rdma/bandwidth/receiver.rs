//! Counts arrived messages, and reposts receives.

use super::super::context::{TestContext, repost_batch};
use super::super::test_qp::TestQp;
use crate::failure::Failure;
use ferroce::{Completion, RecvWr, WcFlags};
use std::time::{Duration, Instant};

/// The receiving half of one side, over all of its queue pairs.
pub(super) struct Receiver<'a> {
    qps: &'a [TestQp],
    to_repost: Vec<u32>,
    /// Queue pairs on which an uncounted message arrived whole since the last drain.
    pub(super) last_arrived: Vec<bool>,
    repost_batch: u32,
    batch: Vec<RecvWr<'a>>,
    /// Counted messages.
    pub(super) received: u64,
    span: Option<(Instant, Instant)>,
}

impl<'a> Receiver<'a> {
    /// Receives are posted already.
    pub(super) fn new(context: &'a TestContext) -> Receiver<'a> {
        let repost_batch = repost_batch(&context.params);
        Receiver {
            qps: &context.qps,
            to_repost: vec![0; context.qps.len()],
            last_arrived: vec![false; context.qps.len()],
            repost_batch,
            batch: Vec::with_capacity(repost_batch as usize),
            received: 0,
            span: None,
        }
    }

    /// Handles an arrived message. Receives are reposted a quarter of the queue at a time; returns how many were.
    #[inline]
    pub(super) fn on_completion(&mut self, completion: &Completion) -> Result<u32, Failure> {
        let n = (completion.wr_id >> 32) as usize;
        let counts = !completion.flags.contains(WcFlags::WITH_IMM);
        self.received += u64::from(counts);
        self.last_arrived[n] |= !counts;
        self.to_repost[n] += 1;
        if self.to_repost[n] < self.repost_batch {
            return Ok(0);
        }
        self.to_repost[n] = 0;
        let qp = &self.qps[n];
        self.batch.clear();
        let wr = RecvWr { wr_id: completion.wr_id, sges: &qp.receive };
        self.batch.resize(self.repost_batch as usize, wr);
        qp.queue_pair.post_recv(&self.batch)?;
        Ok(self.repost_batch)
    }

    /// Handles an arrived credit, whose receive is reposted immediately.
    pub(super) fn on_credit(&mut self, completion: &Completion) -> Result<(), Failure> {
        let qp = &self.qps[(completion.wr_id >> 32) as usize];
        qp.queue_pair.post_recv(&[RecvWr { wr_id: completion.wr_id, sges: &qp.receive }])
    }

    /// All messages sent so far have arrived. Of the uncounted messages, only those of the final check follow the last drain.
    pub(super) fn on_drain(&mut self) {
        self.last_arrived.fill(false);
    }

    /// Counted messages have just arrived.
    pub(super) fn note_time(&mut self) {
        let now = Instant::now();
        self.span = Some(self.span.map_or((now, now), |(first, _)| (first, now)));
    }

    /// From the first to the last counted message.
    pub(super) fn span(&self) -> Duration {
        self.span.map_or(Duration::ZERO, |(first, last)| last - first)
    }
}
