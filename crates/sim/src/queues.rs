//! Completion queues and shared receive queues of a simulated NIC.

use ferroce_proto::PdId;
use ferroce_proto::qp::{RecvQueue, RecvWqe};
use ferroce_proto::verbs::{Completion, RecvWr};
use std::collections::VecDeque;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    depth: usize,
    entries: VecDeque<Completion>,
    overrun: bool,
    /// Completions that would have raised a solicited event.
    pub(crate) solicited: u64,
}

impl CompletionQueue {
    pub(crate) fn new(depth: usize) -> Self {
        CompletionQueue { depth, entries: VecDeque::new(), overrun: false, solicited: 0 }
    }

    /// Adds a completion. Returns `false` for the first one that overruns the queue; further ones are dropped.
    pub(crate) fn push(&mut self, completion: Completion) -> bool {
        if self.entries.len() == self.depth {
            return std::mem::replace(&mut self.overrun, true);
        }
        self.solicited += u64::from(completion.solicited);
        self.entries.push_back(completion);
        true
    }

    pub(crate) fn poll(&mut self) -> Option<Completion> {
        self.entries.pop_front()
    }
}

/// The XRC properties of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Xrc {
    pub(crate) domain: u32,
    pub(crate) pd: PdId,
    pub(crate) cq: usize,
}

/// A shared receive queue with its limit.
#[derive(Debug)]
pub(crate) struct SharedReceiveQueue {
    pub(crate) xrc: Option<Xrc>,
    queue: RecvQueue,
    /// Armed when not zero; an event disarms it.
    limit: usize,
}

impl SharedReceiveQueue {
    pub(crate) fn new(depth: u32, max_sge: u32, xrc: Option<Xrc>) -> Self {
        SharedReceiveQueue { xrc, queue: RecvQueue::new(depth, max_sge), limit: 0 }
    }

    pub(crate) fn push(&mut self, wr: &RecvWr<'_>) -> bool {
        self.queue.push(wr)
    }

    pub(crate) fn arm(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes a request. Returns whether there was one, and whether the queue fell below its limit.
    pub(crate) fn take(&mut self, into: &mut RecvWqe) -> (bool, bool) {
        let taken = self.queue.pop(into);
        let reached = taken && self.queue.len() < self.limit;
        if reached {
            self.limit = 0;
        }
        (taken, reached)
    }
}
