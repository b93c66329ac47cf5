//! Posts messages, and selects those with a completion.

use super::super::context::{CREDITS_IN_FLIGHT, TestContext, receives, repost_batch};
use super::super::test_qp::{TestQp, credit};
use super::Phase;
use crate::failure::Failure;
use ferroce::{Completion, Payload, SendFlags, SendOp, SendWr};

/// The sending half of one side, over all of its queue pairs.
pub(super) struct Sender<'a> {
    qps: &'a [TestQp],
    counts: Vec<Count>,
    /// Queue pairs that may have free queue entries.
    ready: Vec<usize>,
    depth: u32,
    list: u32,
    signal_every: u32,
    /// Receives that a credit grants.
    grant: u32,
    /// SENDs that do not count have immediate data, which iWARP lacks.
    marks: bool,
    /// Credits and probes without a completion.
    extra: u32,
    phase: Phase,
    batch: Vec<SendWr<'a>>,
    /// Messages posted in this phase.
    pub(super) posted: u64,
    /// Messages completed in this phase.
    pub(super) done: u64,
}

/// One queue pair.
#[derive(Debug, Clone, Copy, Default)]
struct Count {
    outstanding: u32,
    since_signal: u32,
    left: u64,
    /// Receives of the other side that are left; `u64::MAX` if it grants none.
    credits: u64,
}

/// Number of messages that the completion of a credit or probe covers.
const NO_MESSAGE: u64 = 0;

impl<'a> Sender<'a> {
    /// Nothing is posted yet.
    pub(super) fn new(context: &'a TestContext) -> Sender<'a> {
        let params = &context.params;
        let credits = match context.has_credits() {
            true => u64::from(receives(params) - CREDITS_IN_FLIGHT),
            false => u64::MAX,
        };
        Sender {
            qps: &context.qps,
            counts: vec![Count { credits, ..Count::default() }; context.qps.len()],
            grant: repost_batch(params),
            marks: !context.is_iwarp(),
            extra: 0,
            ready: Vec::with_capacity(context.qps.len()),
            depth: params.tx_depth,
            list: params.post_list,
            // Often enough that the queue never runs empty, rarely enough that completions cost little.
            signal_every: params.cq_moderation.unwrap_or((params.tx_depth / 4).max(1)),
            phase: Phase::Unmeasured,
            batch: Vec::with_capacity(params.post_list as usize),
            posted: 0,
            done: 0,
        }
    }

    /// Starts a phase: this many messages over all queue pairs, or as many as time allows.
    pub(super) fn start(&mut self, messages: Option<u64>, phase: Phase) {
        let qps = self.counts.len() as u64;
        self.phase = phase;
        (self.posted, self.done) = (0, 0);
        for (n, count) in self.counts.iter_mut().enumerate() {
            count.left = match messages {
                Some(all) => all / qps + u64::from((n as u64) < all % qps),
                None => u64::MAX,
            };
        }
        self.all_ready();
    }

    /// Posts only what each queue pair needs to end with a signalled message.
    pub(super) fn finish(&mut self) {
        for count in &mut self.counts {
            let rest = if count.since_signal == 0 { 0 } else { self.signal_every - count.since_signal };
            count.left = count.left.min(rest.into());
        }
        self.all_ready();
    }

    fn all_ready(&mut self) {
        self.ready.clear();
        self.ready.extend((0..self.qps.len()).rev());
    }

    /// Posts as much as the queues hold.
    #[inline]
    pub(super) fn post(&mut self) -> Result<(), Failure> {
        while let Some(n) = self.ready.pop() {
            loop {
                let Count { outstanding, left, credits, .. } = self.counts[n];
                let wanted = left.min(self.list.into()) as u32;
                if wanted == 0 || outstanding + wanted > self.depth || credits < wanted.into() {
                    break;
                }
                self.post_list(n, wanted)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn post_list(&mut self, n: usize, length: u32) -> Result<(), Failure> {
        let (qp, count) = (&self.qps[n], &mut self.counts[n]);
        self.batch.clear();
        for _ in 0..length {
            count.left -= 1;
            count.since_signal += 1;
            let signalled = count.left == 0 || count.since_signal == self.signal_every;
            // The completion identifies the queue pair, and how many messages it covers.
            let mut request = qp.request((n as u64) << 32 | u64::from(count.since_signal), signalled);
            if self.phase == Phase::Unmeasured {
                request.op = marked(self.marks, request.op);
            }
            if signalled {
                count.since_signal = 0;
            }
            self.batch.push(request);
        }
        count.outstanding += length;
        count.credits -= u64::from(length);
        self.posted += u64::from(length);
        qp.queue_pair.post_send(&self.batch)
    }

    /// Whether [`Sender::post_one`] may post to this queue pair.
    pub(super) fn has_credit(&self, n: usize) -> bool {
        self.counts[n].credits > 0
    }

    /// Posts a single message to an idle queue pair; `message` is the inline data.
    pub(super) fn post_one(&mut self, n: usize, message: &[u8]) -> Result<(), Failure> {
        let mut request = self.qps[n].request((n as u64) << 32 | 1, true);
        request.op = marked(self.marks, request.op);
        if request.flags.contains(SendFlags::INLINE) {
            request.payload = Payload::Inline(message);
        }
        self.counts[n].outstanding += 1;
        self.counts[n].credits -= 1;
        self.posted += 1;
        self.qps[n].queue_pair.post_send(&[request])
    }

    /// Grants receives that were reposted on a queue pair.
    pub(super) fn send_credit(&mut self, n: usize) -> Result<(), Failure> {
        self.extra += 1;
        self.qps[n].queue_pair.post_send(&[credit((n as u64) << 32 | NO_MESSAGE)])
    }

    /// Handles a credit of the other side.
    pub(super) fn on_credit(&mut self, n: usize) {
        self.counts[n].credits = self.counts[n].credits.saturating_add(self.grant.into());
        self.ready.push(n);
    }

    /// Posts a READ behind the messages of each queue pair: it completes when the other side has placed them.
    pub(super) fn probe(&mut self) -> Result<(), Failure> {
        for (n, qp) in self.qps.iter().enumerate() {
            self.extra += 1;
            qp.queue_pair.post_send(&[qp.probe((n as u64) << 32 | NO_MESSAGE)])?;
        }
        Ok(())
    }

    /// Whether all credits and probes have completed.
    pub(super) fn is_confirmed(&self) -> bool {
        self.extra == 0
    }

    /// Handles a completion of a send.
    #[inline]
    pub(super) fn on_completion(&mut self, completion: &Completion) {
        let (qp, stands_for) = ((completion.wr_id >> 32) as usize, completion.wr_id as u32);
        self.extra -= u32::from(u64::from(stands_for) == NO_MESSAGE);
        self.counts[qp].outstanding -= stands_for;
        self.done += u64::from(stands_for);
        self.ready.push(qp);
    }

    /// Whether all messages of the phase are posted and completed.
    #[inline]
    pub(super) fn is_finished(&self) -> bool {
        self.done == self.posted && self.counts.iter().all(|count| count.left == 0)
    }
}

/// The operation of a message that does not count, with the mark if there is one.
fn marked(marks: bool, op: SendOp) -> SendOp {
    if marks && op == SendOp::Send { SendOp::SendImm(0) } else { op }
}
