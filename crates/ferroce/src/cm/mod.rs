//! Connections by address and port: who listens, who connects, what they tell each other.
//!
//! | file | question |
//! |---|---|
//! | `listener` | how offers are received, taken and refused |
//! | `connector` | how a connection is offered |
//! | `connection` | what can be done with it, and how one hears of its end |
//! | `asynchronous` | the same for tasks |

#[cfg(feature = "tokio")]
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
use std::time::Instant;

/// The next event of a channel.
fn next_event(channel: &CmChannel, deadline: Option<Instant>) -> Result<CmEvent, Error> {
    loop {
        if let Some(event) = channel.try_next() {
            return Ok(event);
        }
        sleep::until_readable(&[channel.as_fd()], deadline)?;
    }
}

/// The next event that decides something: that an address has left does not.
fn next_answer(channel: &CmChannel) -> Result<CmEvent, Error> {
    loop {
        let event = next_event(channel, None)?;
        if event.kind != CmEventKind::AddrChange {
            return Ok(event);
        }
    }
}

/// Why there is no connection, from the event that says so.
fn failure(event: &CmEvent) -> Error {
    let status = event.status;
    match event.kind {
        CmEventKind::Rejected => {
            let reason = RejectReason(u16::try_from(status).unwrap_or_default());
            ConnectError::Rejected { reason, private_data: event.conn.private_data.clone() }.into()
        }
        CmEventKind::AddrError => ConnectError::Socket(std::io::Error::from_raw_os_error(-status)).into(),
        _ => ConnectError::Unreachable.into(),
    }
}
