//! From the first FPDU to the end of a connection. The queue pair has the stream; here is the id that gets the events.

use super::{Connections, Entry};
use crate::cm::event::{CmEventKind, ConnParam};
use crate::cm::{CmId, CmService};
use crate::engine::{Engine, QpCore, StreamEnd, StreamEvent};
use crate::link::now;
use ferroce_proto::{Qpn, Time};
use std::sync::Weak;

/// Times after which the RTR message is repeated, each from the one before. A foreign responder may need long to start listening for it, and
/// a peer that never sends gets no more of them.
const RTR_REPEATS_NS: [u64; 4] = [10_000_000, 50_000_000, 250_000_000, 1_250_000_000];

/// How long a responder without RTR waits for the initiator's first FPDU before it sends one itself. RFC 5044 makes it wait for ever, but programs whose
/// server speaks first work with siw. siw as initiator fails if an FPDU arrives together with the reply.
const SEND_FIRST_NS: u64 = 50_000_000;

/// A connection whose stream its queue pair has.
pub(super) struct Established {
    id: Weak<CmId>,
    pub(super) qpn: Qpn,
    /// When something is due.
    due: Option<(Time, Due)>,
    /// Whether the program got `Established`.
    is_reported: bool,
}

/// What is due.
#[derive(Clone, Copy)]
enum Due {
    /// The peer's first FPDU, or the end of the stream.
    Peer,
    /// The next repetition of the RTR message, by its place in [`RTR_REPEATS_NS`].
    Rtr(usize),
    /// Sending, although the initiator has sent nothing.
    Send,
}

impl Established {
    /// A connection that is reported to its program when the first FPDU arrives, before `first_by` if that is given; otherwise it was reported.
    pub(super) fn new(id: Weak<CmId>, qpn: Qpn, first_by: Option<Time>) -> Established {
        let due = first_by.map(|at| (at, Due::Peer));
        Established { id, qpn, due, is_reported: first_by.is_none() }
    }

    /// The same for the end that has sent an RTR message now. It is reported to its program immediately.
    pub(super) fn after_rtr(id: Weak<CmId>, qpn: Qpn, now: Time) -> Established {
        Established { due: Some((now + RTR_REPEATS_NS[0], Due::Rtr(0))), ..Established::new(id, qpn, None) }
    }

    /// The same for a responder that expects no RTR message.
    pub(super) fn without_rtr(id: Weak<CmId>, qpn: Qpn, now: Time) -> Established {
        Established { due: Some((now + SEND_FIRST_NS, Due::Send)), ..Established::new(id, qpn, None) }
    }

    /// The stream must end by then.
    pub(super) fn ends_by(&mut self, at: Time) {
        self.due = Some((at, Due::Peer));
    }

    /// When something is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.due.map(|(at, _)| at)
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
            let established = Established { due: None, is_reported: true, ..established };
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
    /// What is due happens. The next time counts from now: after a long stop of the process nothing is made up for.
    pub(super) fn on_due(&self, connections: &mut Connections, number: u64, mut established: Established) {
        let Some((_, due)) = established.due.take() else { return };
        let found = self.engine.device.find_qp(established.qpn);
        let on_stream = |work: fn(&Engine, &QpCore, &StreamEnd) -> bool| {
            found.as_ref().is_some_and(|(engine, qp)| qp.stream().is_some_and(|end| work(engine, qp, end)))
        };
        established.due = match due {
            Due::Peer => return self.on_late(connections, number, established),
            Due::Rtr(place) => {
                let is_silent = on_stream(Engine::repeat_rtr);
                let next = RTR_REPEATS_NS.get(place + 1).filter(|_| is_silent);
                next.map(|after| (now() + *after, Due::Rtr(place + 1)))
            }
            Due::Send => on_stream(Engine::send_first).then(|| (now() + SEND_FIRST_NS, Due::Send)),
        };
        connections.keep(&established.id.upgrade());
        connections.put(number, Entry::Established(established));
    }

    /// The peer did not do its part in time: the stream ends now.
    fn on_late(&self, connections: &mut Connections, number: u64, established: Established) {
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
