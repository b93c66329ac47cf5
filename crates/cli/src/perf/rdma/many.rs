//! Very many queue pairs: how long they take to connect, what each costs, and whether all work.

use super::super::control::Control;
use super::super::handshake::{self, Reply, Report};
use super::super::params::Params;
use super::context::TestContext;
use super::local::Local;
use super::send_lat::unresponsive;
use super::wait::{WaitOutcome, Waiter};
use super::{broken, refused};
use crate::failure::Failure;
use ferroce::{Completion, Outcome, WcOpcode};
use serde::Serialize;
use std::time::Instant;

/// Queue pairs with a message in flight at a time; more would overflow the receive buffer of the socket.
const AT_A_TIME: usize = 64;

/// The result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Connections {
    /// Queue pairs of each side, all of which carried a message in both directions.
    pub(crate) queue_pairs: u32,
    /// From the first queue pair made until both sides were connected.
    pub(crate) connect_s: f64,
    /// For one message there and one back on every queue pair.
    pub(crate) traffic_s: f64,
    /// Bytes that a queue pair of the client owns, as the NIC counts them.
    pub(crate) footprint_bytes: f64,
    /// Growth of the client's resident memory, per queue pair.
    pub(crate) resident_bytes: f64,
    /// Growth of the server's resident memory, per queue pair.
    pub(crate) server_resident_bytes: f64,
}

/// Client.
pub(crate) fn run(control: &mut Control, params: &Params, local: &Local) -> Result<Connections, Failure> {
    let before = resident_bytes();
    let start = Instant::now();
    let server = handshake::request_test(control, params)?;
    let mut context = TestContext::make(control, params, local)?;
    context.qps.iter().enumerate().try_for_each(|(n, qp)| qp.post_receives(n as u64, 1))?;
    context.connect_to_server(control, &server)?;
    drop(server);
    let connect_s = start.elapsed().as_secs_f64();
    let grown = resident_bytes().saturating_sub(before);
    let start = Instant::now();
    let answered = exchange(&context, control)?;
    let traffic_s = start.elapsed().as_secs_f64();
    let report = handshake::stop(control)?;
    if (answered, report.received) != (params.queue_pairs.into(), params.queue_pairs.into()) {
        return Err(Failure::new(format!(
            "of {} queue pairs {} carried a message to the server and {answered} one back",
            params.queue_pairs, report.received
        )));
    }
    let each = |bytes: u64| bytes as f64 / f64::from(params.queue_pairs);
    let footprint = context.qps.iter().map(|qp| qp.queue_pair.memory_footprint() as u64).sum();
    Ok(Connections {
        queue_pairs: params.queue_pairs,
        connect_s,
        traffic_s,
        footprint_bytes: each(footprint),
        resident_bytes: each(grown),
        server_resident_bytes: each(report.memory_bytes),
    })
}

/// Sends one message on every queue pair and waits for its answer; returns the number of answers.
fn exchange(context: &TestContext, control: &mut Control) -> Result<u64, Failure> {
    let mut waiter = Waiter::new(context);
    let mut answered = vec![false; context.qps.len()];
    let (mut next, mut under_way) = (0, 0);
    let mut completions = [Completion::default(); 64];
    while next < context.qps.len() || under_way > 0 {
        while under_way < AT_A_TIME && next < context.qps.len() {
            let qp = &context.qps[next];
            qp.queue_pair.post_send(&[qp.request(next as u64, false)])?;
            (next, under_way) = (next + 1, under_way + 1);
        }
        let n = context.cq.poll(&mut completions).map_err(refused)?;
        for completion in &completions[..n] {
            let done = completion.ok().map_err(broken)?;
            if done.opcode == WcOpcode::Recv {
                answered[done.wr_id as usize] = true;
                under_way -= 1;
            }
        }
        match waiter.after_poll(n, (next - under_way) as u64, &context.cq, control)? {
            WaitOutcome::PollAgain => {}
            WaitOutcome::ControlReady => return Err(handshake::interrupted(control)),
            WaitOutcome::TimedOut => return Err(unresponsive()),
        }
    }
    Ok(answered.iter().filter(|answered| **answered).count() as u64)
}

/// Server: answers every message on its own queue pair.
pub(super) fn serve(
    control: &mut Control,
    params: &Params,
    local: &Local,
) -> Result<(Report, TestContext), Failure> {
    let before = resident_bytes();
    let mut context = TestContext::make(control, params, local)?;
    context.qps.iter().enumerate().try_for_each(|(n, qp)| qp.post_receives(n as u64, 1))?;
    context.accept_client(control, local)?;
    let memory_bytes = resident_bytes().saturating_sub(before);
    control.send(&Reply::Started)?;
    let mut waiter = Waiter::new(&context);
    let mut completions = [Completion::default(); 64];
    let mut received = 0;
    loop {
        let n = context.cq.poll(&mut completions).map_err(refused)?;
        for completion in &completions[..n] {
            let done = completion.ok().map_err(broken)?;
            if done.opcode == WcOpcode::Recv {
                received += 1;
                let qp = &context.qps[done.wr_id as usize];
                qp.queue_pair.post_send(&[qp.request(done.wr_id, false)])?;
            }
        }
        if waiter.after_poll(n, received, &context.cq, control)? == WaitOutcome::ControlReady {
            break;
        }
    }
    handshake::await_stop(control)?;
    Ok((Report { received, memory_bytes, ..Report::default() }, context))
}

/// Resident memory of this process.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
