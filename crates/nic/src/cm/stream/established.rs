//! From the first FPDU to the end of a connection. The queue pair owns the stream; this module raises the events of the id.

use super::{Connections, Entry};
use crate::cm::event::{CmEventKind, ConnParam};
use crate::cm::{CmId, CmService};
use crate::engine::{Engine, QpCore, StreamEnd, StreamEvent};
use crate::link::now;
use ferroce_proto::{Qpn, Time};
use std::sync::Weak;

/// Intervals between the repetitions of the RTR message. A foreign responder may start late to receive it. A peer that never sends gets only
/// these repetitions.
const RTR_REPEATS_NS: [u64; 4] = [10_000_000, 50_000_000, 250_000_000, 1_250_000_000];

/// How long a responder without RTR waits for the initiator's first FPDU before it sends one itself. RFC 5044 has no such limit, but programs
/// whose server sends first work with siw. siw as initiator fails if an FPDU arrives together with the reply.
const SEND_FIRST_NS: u64 = 50_000_000;

/// A connection whose stream is owned by its queue pair.
pub(super) struct Established {
    id: Weak<CmId>,
    pub(super) qpn: Qpn,
    /// The next step and its time.
    due: Option<(Time, Due)>,
    /// Whether the program got `Established`.
    is_reported: bool,
}

/// The next step of a connection.
#[derive(Clone, Copy)]
enum Due {
    /// The peer's first FPDU, or the end of the stream, must have arrived.
    Peer,
    /// The next repetition of the RTR message, by its index in [`RTR_REPEATS_NS`].
    Rtr(usize),
    /// Start to send, although the initiator has sent nothing.
    Send,
}

impl Established {
    /// A new connection. With `first_by`, it is reported to its program when the first FPDU arrives, which must be before that time. Without
    /// it, the connection was already reported.
    pub(super) fn new(id: Weak<CmId>, qpn: Qpn, first_by: Option<Time>) -> Established {
        let due = first_by.map(|at| (at, Due::Peer));
        Established { id, qpn, due, is_reported: first_by.is_none() }
    }

    /// The same for the end that has just sent an RTR message. It is reported to its program immediately.
    pub(super) fn after_rtr(id: Weak<CmId>, qpn: Qpn, now: Time) -> Established {
        Established { due: Some((now + RTR_REPEATS_NS[0], Due::Rtr(0))), ..Established::new(id, qpn, None) }
    }

    /// The same for a responder that expects no RTR message.
    pub(super) fn without_rtr(id: Weak<CmId>, qpn: Qpn, now: Time) -> Established {
        Established { due: Some((now + SEND_FIRST_NS, Due::Send)), ..Established::new(id, qpn, None) }
    }

    /// The stream must end by this time.
    pub(super) fn ends_by(&mut self, at: Time) {
        self.due = Some((at, Due::Peer));
    }

    /// When the next step is due.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.due.map(|(at, _)| at)
    }
}

/// Handles an event of the engine for a connection.
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
    /// Runs the step that is due. The time of the next one counts from now, so a process that was stopped for long skips missed repetitions.
    pub(super) fn on_due(&self, connections: &mut Connections, number: u64, mut established: Established) {
        let Some((_, due)) = established.due.take() else { return };
        let found = self.engine.device.find_qp(established.qpn);
        let on_stream = |work: fn(&Engine, &QpCore, &StreamEnd) -> bool| {
            found.as_ref().is_some_and(|(engine, qp)| qp.stream().is_some_and(|end| work(engine, qp, end)))
        };
        established.due = match due {
            Due::Peer => return self.on_late(connections, number, established),
            Due::Rtr(index) => {
                let is_silent = on_stream(Engine::repeat_rtr);
                let next = RTR_REPEATS_NS.get(index + 1).filter(|_| is_silent);
                next.map(|after| (now() + *after, Due::Rtr(index + 1)))
            }
            Due::Send => on_stream(Engine::send_first).then(|| (now() + SEND_FIRST_NS, Due::Send)),
        };
        connections.keep(&established.id.upgrade());
        connections.put(number, Entry::Established(established));
    }

    /// The peer missed its deadline: aborts the stream.
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
