//! The RDMA tests.
//!
//! | file | question |
//! |---|---|
//! | `local` | what does one side decide for itself? |
//! | `offer`, `queue_pair`, `streams`, `lane`, `buffers`, `station` | how is a test set up, and what do the sides exchange? |
//! | `wait` | how does a side wait without hanging? |
//! | `ping`, `send_lat`, `write_lat`, `one_sided_lat` | what is timed one by one? |
//! | `bandwidth` | what is streamed? |
//! | `like_perftest` | what do perftest's programs call, and when? |
//! | `many` | what do very many queue pairs cost? |
//! | `pattern` | did the bytes arrive? |

mod bandwidth;
mod buffers;
mod lane;
mod like_perftest;
mod local;
mod many;
mod offer;
mod one_sided_lat;
mod pattern;
mod ping;
mod queue_pair;
mod send_lat;
mod station;
mod streams;
mod wait;
mod write_lat;

pub(crate) use local::{Local, try_device};
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
pub(crate) use station::Station;

/// Client of all RDMA tests except that of very many queue pairs.
pub(crate) fn run(
    control: &mut Control,
    params: &Params,
    budget: Budget,
    offer: &handshake::Offer,
    local: &Local,
) -> Result<Measurement, Failure> {
    let mut station = Station::make(control, params, local)?;
    station.post_receives()?;
    station.meet_server(control, offer)?;
    let latency = match params.test {
        Test::SendLat if params.like_perftest => like_perftest::run_send_lat(&station, control, budget),
        Test::SendLat => send_lat::run(&station, control, budget),
        Test::WriteLat => write_lat::run(&station, control, budget),
        Test::ReadLat | Test::AtomicLat => one_sided_lat::run(&station, control, budget),
        _ => return bandwidth::run(&station, control, budget).map(Measurement::Bandwidth),
    };
    latency.map(Measurement::Latency)
}

/// Server of all RDMA tests. The station must live until the client has taken the report: its end would end the client's iWARP
/// connections.
pub(crate) fn serve(
    control: &mut Control,
    params: &Params,
    local: &Local,
) -> Result<(Report, Station), Failure> {
    if params.test == Test::Qps {
        return many::serve(control, params, local);
    }
    let mut station = Station::make(control, params, local)?;
    station.post_receives()?;
    station.meet_client(control, local)?;
    control.send(&Reply::Started)?;
    let report = match params.test {
        Test::SendLat if params.like_perftest => like_perftest::serve_send_lat(&station, control),
        Test::SendLat => send_lat::serve(&station, control),
        Test::WriteLat => write_lat::serve(&station, control),
        Test::ReadLat | Test::AtomicLat => one_sided_lat::serve(&station, control),
        _ => bandwidth::serve(&station, control),
    }?;
    Ok((report, station))
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
