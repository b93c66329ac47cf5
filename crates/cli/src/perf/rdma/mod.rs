//! The RDMA tests.
//!
//! | file | question |
//! |---|---|
//! | `local` | which device and settings does one side use? |
//! | `offer`, `queue_pair`, `streams`, `test_qp`, `buffers`, `context` | how is a test set up, and what do the sides exchange? |
//! | `wait` | how does a side wait for completions, with a timeout? |
//! | `ping`, `send_lat`, `write_lat`, `one_sided_lat` | how is one operation at a time measured? |
//! | `bandwidth` | how are many messages in flight measured? |
//! | `like_perftest` | what do perftest's programs call, and when? |
//! | `many` | what do very many queue pairs cost? |
//! | `pattern` | did the bytes arrive? |

mod bandwidth;
mod buffers;
mod context;
mod like_perftest;
mod local;
mod many;
mod offer;
mod one_sided_lat;
mod pattern;
mod ping;
mod queue_pair;
mod send_lat;
mod streams;
mod test_qp;
mod wait;
mod write_lat;

pub(crate) use local::{Local, Network, try_device};
pub(crate) use many::Connections;
pub(crate) use many::run as connect_many;
pub(crate) use offer::Offer;
pub(crate) use streams::most_connections;

use super::control::Control;
use super::handshake::{self, Reply, Report};
use super::measure::{Budget, Measurement};
use super::params::Params;
use super::test::Test;
use crate::failure::Failure;
pub(crate) use context::TestContext;

/// Client of all RDMA tests except that of very many queue pairs.
pub(crate) fn run(
    control: &mut Control,
    params: &Params,
    budget: Budget,
    offer: &handshake::Offer,
    local: &Local,
) -> Result<Measurement, Failure> {
    let mut context = TestContext::make(control, params, local)?;
    context.post_receives()?;
    context.connect_to_server(control, offer)?;
    let latency = match params.test {
        Test::SendLat if params.like_perftest => like_perftest::run_send_lat(&context, control, budget),
        Test::SendLat => send_lat::run(&context, control, budget),
        Test::WriteLat => write_lat::run(&context, control, budget),
        Test::ReadLat | Test::AtomicLat => one_sided_lat::run(&context, control, budget),
        _ => return bandwidth::run(&context, control, budget).map(Measurement::Bandwidth),
    };
    latency.map(Measurement::Latency)
}

/// Server of all RDMA tests. The caller keeps the returned context until the client has received the report: dropping it ends the
/// client's iWARP connections.
pub(crate) fn serve(
    control: &mut Control,
    params: &Params,
    local: &Local,
) -> Result<(Report, TestContext), Failure> {
    if params.test == Test::Qps {
        return many::serve(control, params, local);
    }
    let mut context = TestContext::make(control, params, local)?;
    context.post_receives()?;
    context.accept_client(control, local)?;
    control.send(&Reply::Started)?;
    let report = match params.test {
        Test::SendLat if params.like_perftest => like_perftest::serve_send_lat(&context, control),
        Test::SendLat => send_lat::serve(&context, control),
        Test::WriteLat => write_lat::serve(&context, control),
        Test::ReadLat | Test::AtomicLat => one_sided_lat::serve(&context, control),
        _ => bandwidth::serve(&context, control),
    }?;
    Ok((report, context))
}

/// A verb was refused.
fn refused(error: ferroce::Error) -> Failure {
    match error.completion() {
        Some(failed) => broken(*failed),
        None => Failure::new(error.to_string()),
    }
}

/// A work request failed.
fn broken(error: ferroce::CompletionError) -> Failure {
    Failure::new(format!("an operation on QP {} ended in {:?}: {}", error.qpn, error.status, error.explain()))
        .advise("Set FERROCE_LOG=1 on both sides for more details")
}
