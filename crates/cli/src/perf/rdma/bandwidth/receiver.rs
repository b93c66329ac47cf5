//! Counts arrived messages, and reposts receives.

use super::super::lane::Lane;
use super::super::station::{Station, give_back};
use crate::failure::Failure;
use ferroce::{Completion, RecvWr, WcFlags};
use std::time::{Duration, Instant};

/// The receiving half of one side, over all of its lanes.
pub(super) struct Receiver<'a> {
    lanes: &'a [Lane],
    owed: Vec<u32>,
    /// Lanes on which an uncounted message arrived whole since the last break.
    pub(super) proved: Vec<bool>,
    give_back: u32,
    batch: Vec<RecvWr<'a>>,
    /// Counted messages.
    pub(super) received: u64,
    span: Option<(Instant, Instant)>,
}

impl<'a> Receiver<'a> {
    /// Receives are posted already.
    pub(super) fn new(station: &'a Station) -> Receiver<'a> {
        let give_back = give_back(&station.params);
        Receiver {
            lanes: &station.lanes,
            owed: vec![0; station.lanes.len()],
            proved: vec![false; station.lanes.len()],
            give_back,
            batch: Vec::with_capacity(give_back as usize),
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
        self.proved[n] |= !counts;
        self.owed[n] += 1;
        if self.owed[n] < self.give_back {
            return Ok(0);
        }
        self.owed[n] = 0;
        let lane = &self.lanes[n];
        self.batch.clear();
        let wr = RecvWr { wr_id: completion.wr_id, sges: &lane.receive };
        self.batch.resize(self.give_back as usize, wr);
        lane.qp.post_recv(&self.batch)?;
        Ok(self.give_back)
    }

    /// Handles an arrived credit, whose receive is reposted immediately.
    pub(super) fn on_credit(&mut self, completion: &Completion) -> Result<(), Failure> {
        let lane = &self.lanes[(completion.wr_id >> 32) as usize];
        lane.qp.post_recv(&[RecvWr { wr_id: completion.wr_id, sges: &lane.receive }])
    }

    /// Handles a break. Of the uncounted messages, only the last ones follow the last break.
    pub(super) fn note_break(&mut self) {
        self.proved.fill(false);
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
