//! The side that serves one client's tests, one after the other.

use super::affinity::Pinned;
use super::baseline::{tcp, udp, udp_stream};
use super::control::{Control, STEP_TIMEOUT};
use super::handshake::{self, Reply, Report, Request};
use super::params::Params;
use super::rdma;
use super::test::{Operation, Test};
use crate::failure::Failure;
use std::time::Duration;

/// Serves a client after the greeting, until it leaves. `accept` decides on each test; `idle` limits the wait between
/// two.
pub(crate) fn serve(
    control: &mut Control,
    local: &rdma::Local,
    idle: Option<Duration>,
    mut accept: impl FnMut(&Params) -> Result<(), String>,
) -> Result<(), Failure> {
    let mut refusal: Option<String> = None;
    // The context of the last test. It lives until the client has received the report.
    let mut context = None;
    loop {
        // If the client closes the channel after a refusal, the refusal is the reason.
        let request = control.receive(idle).map_err(|failure| match refusal.take() {
            Some(reason) => Failure::new(format!("refused the client: {reason}")),
            None => failure,
        })?;
        drop(std::mem::take(&mut context));
        match request {
            Request::Run { params } => match params.check().and_then(|()| accept(&params)) {
                Err(reason) => {
                    refusal = Some(reason.clone());
                    control.send(&Reply::Refused { reason })?;
                }
                Ok(()) => {
                    // The client gets the failure as well. If it cannot be sent, the failure of the test is still returned.
                    let (report, served) = serve_test(control, &params, local).inspect_err(|failure| {
                        let _ = control.send(&Reply::Failed { reason: failure.what().to_owned() });
                    })?;
                    context = served;
                    control.send(&Reply::Report(report))?;
                }
            },
            Request::Bye => return Ok(()),
            other => return Err(handshake::out_of_order("client", &other)),
        }
    }
}

/// Idle time that a server of a single test allows its client between two sizes.
pub(crate) const IDLE: Option<Duration> = Some(STEP_TIMEOUT);

fn serve_test(
    control: &mut Control,
    params: &Params,
    local: &rdma::Local,
) -> Result<(Report, Option<rdma::TestContext>), Failure> {
    local.prepare(params)?;
    let _pinned = local.pin.filter(|_| params.test.polls()).map(Pinned::to_core_of);
    let report = match params.test.operation() {
        Operation::Tcp => tcp::serve(control, params, local.single_core),
        Operation::Udp if params.test == Test::UdpBw => udp_stream::serve(control, params, local.single_core),
        Operation::Udp => udp::serve(control, params, local.single_core),
        _ => return rdma::serve(control, params, local).map(|(report, context)| (report, Some(context))),
    }?;
    Ok((report, None))
}
