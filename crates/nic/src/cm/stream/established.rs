//! From the first FPDU to the end of a connection. The queue pair has the stream; here is the id that gets the events.

use super::{Connections, Entry};
use crate::cm::event::{CmEventKind, ConnParam};
use crate::cm::{CmId, CmService};
use crate::engine::StreamEvent;
use ferroce_proto::{Qpn, Time};
use std::sync::Weak;

/// A connection whose stream its queue pair has.
pub(super) struct Established {
    id: Weak<CmId>,
    pub(super) qpn: Qpn,
    /// By when the peer's first FPDU must arrive, or by when the stream must end.
    pub(super) deadline: Option<Time>,
    /// Whether the program got `Established`.
    is_reported: bool,
}

impl Established {
    /// A connection that its program is told of when the first FPDU arrives, before `first_by` if that is given.
    pub(super) fn new(id: Weak<CmId>, qpn: Qpn, first_by: Option<Time>) -> Established {
        Established { id, qpn, deadline: first_by, is_reported: first_by.is_none() }
    }
}

/// The engine reports something about a connection.
pub(super) fn on_event(connections: &mut Connections, number: u64, event: StreamEvent) {
    let established = match connections.take(number) {
        Some(Entry::Established(established)) => established,
        other => return other.into_iter().for_each(|entry| connections.put(number, entry)),
    };
    let id = established.id.upgrade();
    let none = ConnParam::default();
    match (event, established.is_reported) {
        (StreamEvent::Ready, false) => {
            let established = Established { deadline: None, is_reported: true, ..established };
            connections.put(number, Entry::Established(established));
            connections.raise(id, CmEventKind::Established, 0, none);
        }
        (StreamEvent::Ready, true) => {
            connections.keep(&id);
            connections.put(number, Entry::Established(established));
        }
        (StreamEvent::Ended, true) => connections.raise(id, CmEventKind::Disconnected, 0, none),
        (StreamEvent::Ended, false) => {
            connections.raise(id, CmEventKind::ConnectError, -libc::ECONNRESET, none);
        }
    }
}

impl CmService {
    /// The peer did not do its part in time: the stream ends now.
    pub(super) fn on_late(&self, connections: &mut Connections, number: u64, mut established: Established) {
        established.deadline = None;
        let (qpn, is_reported, id) = (established.qpn, established.is_reported, established.id.upgrade());
        if is_reported {
            // The end of the stream will be reported.
            connections.keep(&id);
            connections.put(number, Entry::Established(established));
        } else {
            connections.raise(id, CmEventKind::Unreachable, -libc::ETIMEDOUT, ConnParam::default());
        }
        if let Some((engine, qp)) = self.engine.device.find_qp(qpn)
            && let Some(stream) = qp.stream()
        {
            engine.abort_stream(&qp, stream);
        }
    }
}
