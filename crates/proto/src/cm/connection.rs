//! What is known of one connection.

use super::pacing::Pace;
use super::proof::{Binding, MAC_LEN, Secret};
use super::timing::Resend;
use super::{CmTransport, CommId, Kind, ListenerId, Path, ServiceId};
use crate::ids::{Gid, Psn, Qpn};
use crate::time::Time;
use crate::wire::MAD_LEN;
use alloc::boxed::Box;

/// How far a connection has come (IBA 12.9.5 and 12.9.6, with fewer names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// We offered.
    ReqSent,
    /// Our offer was taken; the program has not yet established it.
    RepReceived,
    /// An offer waits for the program.
    ReqReceived,
    /// We took the offer.
    RepSent,
    /// Both ends know.
    Established,
    /// We want to end it.
    DreqSent,
    /// Ended, or refused; repeated messages are still answered.
    Timewait,
    /// We asked about a datagram service.
    SidrReqSent,
    /// A question about a datagram service waits for the program.
    SidrReqReceived,
    /// We answered it.
    SidrRepSent,
}

impl State {
    /// Waits for the program to decide: counts against the backlog.
    pub(super) fn is_undecided(self) -> bool {
        matches!(self, State::ReqReceived | State::SidrReqReceived)
    }
}

/// One connection, or one question about a datagram service.
pub(super) struct Connection {
    pub(super) kind: Kind,
    pub(super) state: State,
    /// We made the offer.
    pub(super) is_active: bool,
    /// An offer of a peer that has not become an established connection.
    pub(super) is_half_open: bool,
    /// A program wants to hear of it.
    pub(super) is_held: bool,
    /// We were told that nobody listens, and asked again.
    pub(super) asks_again: bool,
    pub(super) local: CommId,
    pub(super) remote: CommId,
    pub(super) tid: u64,
    pub(super) listener: Option<ListenerId>,
    pub(super) service: ServiceId,
    pub(super) path: Path,
    pub(super) transport: CmTransport,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    /// What our message calls the starting PSN: the first number that the peer sends.
    pub(super) local_psn: Psn,
    /// What the peer's message calls it: the first number that we send.
    pub(super) remote_psn: Psn,
    /// READs and atomics that we answer at a time.
    pub(super) responder_resources: u8,
    /// READs and atomics that we have outstanding.
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    /// How long the peer may take to answer, and how often that is waited for.
    pub(super) response_ns: u64,
    pub(super) max_retries: u8,
    /// The key that the peer must prove to have.
    pub(super) secret: Option<Secret>,
    pub(super) binding: Binding,
    /// What is repeated: on time-out, or when the peer repeats itself.
    pub(super) last: Option<Box<[u8; MAD_LEN]>>,
    pub(super) pace: Pace,
    /// When its message began to wait its turn.
    pub(super) asked: Time,
    pub(super) resend: Option<Resend>,
    pub(super) deadline: Option<Time>,
}

impl Connection {
    /// A connection of which nothing is agreed yet.
    pub(super) fn new(kind: Kind, state: State, local: CommId, path: Path) -> Connection {
        Connection {
            kind,
            state,
            is_active: false,
            is_half_open: false,
            is_held: true,
            asks_again: false,
            local,
            remote: CommId::NONE,
            tid: 0,
            listener: None,
            service: ServiceId::default(),
            path,
            transport: CmTransport::Rc,
            local_qpn: Qpn::new(0),
            remote_qpn: Qpn::new(0),
            local_psn: Psn::new(0),
            remote_psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry: 0,
            response_ns: 0,
            max_retries: 0,
            secret: None,
            binding: Binding::default(),
            last: None,
            pace: Pace::Free,
            asked: Time(0),
            resend: None,
            deadline: None,
        }
    }

    /// Nobody listens there. The first time that is not believed, and the question is repeated in its time: programs agree by
    /// other means on who listens, and then the offer can be faster than the listener.
    pub(super) fn doubts_absence(&mut self) -> bool {
        !core::mem::replace(&mut self.asks_again, true)
    }

    /// Bytes of private data that an answer's proof takes.
    pub(super) fn proof_len(&self) -> usize {
        if self.secret.is_some() { MAC_LEN } else { 0 }
    }

    pub(super) fn peer_key(&self) -> (Gid, Kind, CommId) {
        (self.path.dgid, self.kind, self.remote)
    }

    /// Whether the peer's queue pair is in this connection alone. Questions about datagrams name no queue pair, and on an
    /// extended connection many senders may share the target.
    pub(super) fn has_own_peer_qpn(&self) -> bool {
        self.kind == Kind::Connection && self.transport != CmTransport::Xrc
    }
}
