//! Connections by address and port, through the connection manager.
//!
//! | file | contents |
//! |---|---|
//! | `listener` | receiving, accepting and rejecting connection requests |
//! | `connector` | sending a connection request |
//! | `connection` | an established connection and its events |
//! | `asynchronous` | the same operations for tasks |

mod asynchronous;
mod connection;
mod connector;
mod listener;

pub use connection::{Connection, ConnectionEvent};
pub use connector::Connector;
pub use listener::{Listener, ListenerBuilder, Request};

use crate::error::Error;
use crate::qp::connect::ConnectError;
use crate::sleep;
use ferroce_nic::{CmChannel, CmEvent, CmEventKind, RejectReason};
use std::os::fd::AsFd;

/// Error numbers of Linux, which events of iWARP report.
const ECONNRESET: i32 = 104;
const ECONNREFUSED: i32 = 111;

/// The next event that decides the outcome of a connection request. Address changes are skipped.
fn try_answer(channel: &CmChannel) -> Option<CmEvent> {
    std::iter::from_fn(|| channel.try_next()).find(|event| event.kind != CmEventKind::AddrChange)
}

fn next_answer(channel: &CmChannel) -> Result<CmEvent, Error> {
    sleep::next(channel.as_fd(), None, || Ok(try_answer(channel)))
}

/// The error that an event reports.
fn failure(event: &CmEvent) -> Error {
    let status = event.status;
    match event.kind {
        CmEventKind::Rejected => {
            let reason = match -status {
                // iWARP has no reasons: TCP refuses, or the peer's program does.
                ECONNREFUSED => RejectReason::INVALID_SERVICE_ID,
                ECONNRESET => RejectReason::CONSUMER,
                _ => RejectReason(u16::try_from(status).unwrap_or_default()),
            };
            ConnectError::Rejected { reason, private_data: event.conn.private_data.clone() }.into()
        }
        CmEventKind::AddrError | CmEventKind::ConnectError => {
            ConnectError::Socket(std::io::Error::from_raw_os_error(-status)).into()
        }
        _ => ConnectError::Unreachable.into(),
    }
}
