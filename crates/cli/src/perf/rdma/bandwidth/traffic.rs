//! Sender and receiver over one completion queue.

use super::super::super::control::{Control, STEP_TIMEOUT};
use super::super::super::handshake::{self, Pause, Reply, Report, Request};
use super::super::super::measure::{Limit, MIN_MESSAGES};
use super::super::super::test::Operation;
use super::super::context::TestContext;
use super::super::send_lat::unresponsive;
use super::super::wait::{WaitOutcome, Waiter};
use super::super::{broken, refused};
use super::Phase;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::failure::Failure;
use ferroce::{Completion, Outcome, WcOpcode};
use std::time::{Duration, Instant};

/// No further unreliable message is in flight if none arrives for this time.
const QUIET: Duration = Duration::from_millis(50);
/// Maximum duration of a drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// How often an unreliable queue is polled before more is sent.
const POLLS_PER_STEP: u32 = 8;

/// Whether the client's traffic is over.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Running,
    Finished,
}

/// All traffic of one side.
pub(super) struct Traffic<'a> {
    pub(super) context: &'a TestContext,
    pub(super) sender: Sender<'a>,
    pub(super) receiver: Receiver<'a>,
    waiter: Waiter,
    completions: [Completion; 64],
}

impl<'a> Traffic<'a> {
    /// `context` is connected.
    pub(super) fn new(context: &'a TestContext) -> Traffic<'a> {
        Traffic {
            context,
            sender: Sender::new(context),
            receiver: Receiver::new(context),
            waiter: Waiter::for_stalls(context),
            completions: [Completion::default(); 64],
        }
    }

    /// Client: sends until the limit and waits for all completions; returns the number of messages.
    pub(super) fn stream(
        &mut self,
        limit: Limit,
        phase: Phase,
        control: &mut Control,
    ) -> Result<u64, Failure> {
        let (messages, mut end) = match limit {
            Limit::Messages(count) => (Some(count), None),
            Limit::Time(time) => (None, Some(Instant::now() + time)),
        };
        self.sender.start(messages, phase);
        while self.step(control)? == Step::Running {
            let over = |end: Instant| self.sender.posted >= MIN_MESSAGES && Instant::now() >= end;
            if end.is_some_and(over) {
                end = None;
                self.sender.finish();
            }
        }
        self.confirm(control)?;
        Ok(self.sender.posted)
    }

    /// Client: waits until the server has placed all messages. An iWARP completion does not mean that.
    pub(super) fn confirm(&mut self, control: &mut Control) -> Result<(), Failure> {
        if !self.must_probe() {
            return Ok(());
        }
        self.sender.probe()?;
        while !self.sender.is_confirmed() {
            let found = self.poll()?;
            self.wait(found, control)?;
        }
        Ok(())
    }

    fn must_probe(&self) -> bool {
        let carries = matches!(self.context.params.test.operation(), Operation::Send | Operation::Write);
        self.context.is_iwarp() && carries
    }

    /// Client: posts and polls once.
    pub(super) fn step(&mut self, control: &mut Control) -> Result<Step, Failure> {
        self.sender.post()?;
        let found = self.poll()?;
        if self.sender.is_finished() {
            return Ok(Step::Finished);
        }
        self.wait(found, control).map(|()| Step::Running)
    }

    /// Client: waits after a poll that found this many completions.
    pub(super) fn wait(&mut self, found: usize, control: &mut Control) -> Result<(), Failure> {
        match self.waiter.after_poll(found, self.progress(), &self.context.cq, control)? {
            WaitOutcome::PollAgain => Ok(()),
            WaitOutcome::ControlReady => Err(handshake::interrupted(control)),
            WaitOutcome::TimedOut => Err(unresponsive()),
        }
    }

    /// Client: reports that it is done, and continues to receive until the server is done.
    pub(super) fn stop(&mut self, control: &mut Control) -> Result<Report, Failure> {
        control.send(&Request::Stop)?;
        self.receive_until_readable(control)?;
        handshake::await_report(control)
    }

    /// Client: pauses the traffic until both sides have received what is in flight. Only unreliable messages need it: they have no flow
    /// control, and a side that also sends falls behind with receiving. Its full receive buffer would drop the first measured messages,
    /// and the last ones.
    pub(super) fn drain_in_flight(&mut self, control: &mut Control) -> Result<(), Failure> {
        if self.context.is_reliable() {
            return Ok(());
        }
        control.send(&Request::Drain)?;
        self.receive_until_readable(control)?;
        handshake::await_drained(control)
    }

    fn receive_until_readable(&mut self, control: &Control) -> Result<(), Failure> {
        let end = Instant::now() + STEP_TIMEOUT;
        loop {
            let found = self.poll()?;
            let outcome = self.waiter.after_poll(found, self.progress(), &self.context.cq, control)?;
            if outcome == WaitOutcome::ControlReady || Instant::now() > end {
                return Ok(());
            }
        }
    }

    /// Server: runs until the client stops. It sends unreliable messages only from the first drain to the second,
    /// while those of the client count.
    pub(super) fn serve(&mut self, control: &mut Control) -> Result<Report, Failure> {
        let bidirectional = self.context.params.bidirectional;
        let (mut start, mut elapsed_ns, mut drains) = (Instant::now(), 0, 0);
        let mut sends = bidirectional && self.context.is_reliable();
        if sends {
            self.sender.start(None, Phase::Measured);
        }
        loop {
            self.sender.post()?;
            let found = self.poll()?;
            if self.waiter.after_poll(found, self.progress(), &self.context.cq, control)?
                != WaitOutcome::ControlReady
            {
                continue;
            }
            let pause = handshake::await_pause(control)?;
            if std::mem::take(&mut sends) {
                self.end_sending()?;
                elapsed_ns = start.elapsed().as_nanos() as u64;
            }
            self.drain()?;
            if pause == Pause::End {
                break;
            }
            self.receiver.on_drain();
            control.send(&Reply::Drained)?;
            drains += 1;
            if bidirectional && drains == 1 {
                (sends, start) = (true, Instant::now());
                self.sender.start(None, Phase::Measured);
            }
        }
        Ok(Report {
            received: self.arrived()?,
            sent: self.sender.done,
            elapsed_ns,
            receiving_ns: self.receiver.span().as_nanos() as u64,
            ..Report::default()
        })
    }

    /// Messages that the server received. WRITEs are counted by their bytes, atomics by the value in memory.
    fn arrived(&self) -> Result<u64, Failure> {
        let TestContext { region, layout, qps, params, .. } = self.context;
        match params.test.operation() {
            Operation::Atomic => {
                let word = |n: usize| region.host().load_u64(layout.incoming(n) as usize).map_err(refused);
                (0..qps.len()).map(word).sum()
            }
            Operation::Write => {
                let bytes: u64 = qps.iter().map(|qp| qp.queue_pair.counters().rx_bytes).sum();
                Ok(bytes / params.size)
            }
            _ => Ok(self.receiver.received),
        }
    }

    fn end_sending(&mut self) -> Result<(), Failure> {
        self.sender.finish();
        let end = Instant::now() + DRAIN_TIMEOUT;
        let mut probes = self.must_probe();
        while probes || !self.sender.is_finished() || !self.sender.is_confirmed() {
            self.sender.post()?;
            if probes && self.sender.is_finished() {
                probes = false;
                self.sender.probe()?;
            }
            self.poll()?;
            if Instant::now() > end {
                return Err(unresponsive());
            }
        }
        Ok(())
    }

    /// Takes completions of arrived messages that were not polled yet. Acknowledged messages have arrived; others may
    /// be in flight.
    fn drain(&mut self) -> Result<(), Failure> {
        let quiet = if self.context.is_reliable() { Duration::ZERO } else { QUIET };
        let end = Instant::now() + DRAIN_TIMEOUT;
        let mut last = Instant::now();
        loop {
            let now = Instant::now();
            if self.poll()? > 0 {
                last = now;
            } else if now - last >= quiet || now > end {
                return Ok(());
            }
        }
    }

    /// Takes completions. Unreliable sends complete immediately, and polling a queue that is never empty never drives
    /// the NIC. So the queue is emptied, or nothing would be received while we send.
    #[inline]
    pub(super) fn poll(&mut self) -> Result<usize, Failure> {
        let mut found = self.poll_once()?;
        if found > 0 && !self.context.is_reliable() {
            for _ in 0..POLLS_PER_STEP {
                match self.poll_once()? {
                    0 => break,
                    more => found += more,
                }
            }
        }
        Ok(found)
    }

    #[inline]
    fn poll_once(&mut self) -> Result<usize, Failure> {
        let found = self.context.cq.poll(&mut self.completions).map_err(refused)?;
        let before = self.receiver.received;
        for completion in &self.completions[..found] {
            let done = completion.ok().map_err(broken)?;
            if done.opcode != WcOpcode::Recv {
                self.sender.on_completion(&done);
                continue;
            }
            let n = (done.wr_id >> 32) as usize;
            // A message has at least one byte.
            if done.byte_len == 0 && self.context.has_credits() {
                self.receiver.on_credit(&done)?;
                self.sender.on_credit(n);
            } else if self.receiver.on_completion(&done)? > 0 && self.context.has_credits() {
                self.sender.send_credit(n)?;
            }
        }
        if self.receiver.received != before {
            self.receiver.note_time();
        }
        Ok(found)
    }

    fn progress(&self) -> u64 {
        self.sender.done.wrapping_add(self.receiver.received)
    }
}
