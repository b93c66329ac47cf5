//! The state of one connection.

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
    /// REQ sent.
    ReqSent,
    /// REP received; the application has not established it.
    RepReceived,
    /// REQ received; the application decides.
    ReqReceived,
    /// REP sent.
    RepSent,
    /// Established.
    Established,
    /// DREQ sent.
    DreqSent,
    /// Ended or rejected; duplicates are still answered.
    Timewait,
    /// SIDR_REQ sent.
    SidrReqSent,
    /// SIDR_REQ received; the application decides.
    SidrReqReceived,
    /// SIDR_REP sent.
    SidrRepSent,
}

impl State {
    /// Whether the application must decide: counts against the backlog.
    pub(super) fn is_undecided(self) -> bool {
        matches!(self, State::ReqReceived | State::SidrReqReceived)
    }
}

/// One connection or SIDR request.
pub(super) struct Connection {
    pub(super) kind: Kind,
    pub(super) state: State,
    /// This is the active side.
    pub(super) is_active: bool,
    /// A half-open connection of a peer.
    pub(super) is_half_open: bool,
    /// The application receives its events.
    pub(super) is_held: bool,
    /// The peer reported no listener once, and the REQ is being retried.
    pub(super) was_retried: bool,
    pub(super) local: CommId,
    pub(super) remote: CommId,
    pub(super) tid: u64,
    pub(super) listener: Option<ListenerId>,
    pub(super) service: ServiceId,
    pub(super) path: Path,
    pub(super) transport: CmTransport,
    pub(super) local_qpn: Qpn,
    pub(super) remote_qpn: Qpn,
    /// The starting PSN in our message: the first PSN that the peer sends.
    pub(super) local_psn: Psn,
    /// The starting PSN in the peer's message: the first PSN that we send.
    pub(super) remote_psn: Psn,
    /// Responder resources: READs and atomics that we accept concurrently.
    pub(super) responder_resources: u8,
    /// Initiator depth: READs and atomics that we have outstanding.
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry: u8,
    /// Response timeout of the peer, and the number of retries.
    pub(super) response_ns: u64,
    pub(super) max_retries: u8,
    /// The key that the peer must prove.
    pub(super) secret: Option<Secret>,
    pub(super) binding: Binding,
    /// The message that is retransmitted on a timeout or a duplicate.
    pub(super) last: Option<Box<[u8; MAD_LEN]>>,
    pub(super) pace: Pace,
    /// When its message was queued.
    pub(super) asked: Time,
    pub(super) resend: Option<Resend>,
    pub(super) deadline: Option<Time>,
}

impl Connection {
    /// A new connection.
    pub(super) fn new(kind: Kind, state: State, local: CommId, path: Path) -> Connection {
        Connection {
            kind,
            state,
            is_active: false,
            is_half_open: false,
            is_held: true,
            was_retried: false,
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

    /// Whether to ignore a reject for lack of a listener. The first one is ignored and the REQ retransmitted: applications
    /// agree out of band on who listens, so the REQ may arrive before the peer's listener starts.
    pub(super) fn retries_no_listener(&mut self) -> bool {
        !core::mem::replace(&mut self.was_retried, true)
    }

    /// Bytes of private data that the proof of a reply uses.
    pub(super) fn proof_len(&self) -> usize {
        if self.secret.is_some() { MAC_LEN } else { 0 }
    }

    pub(super) fn peer_key(&self) -> (Gid, Kind, CommId) {
        (self.path.dgid, self.kind, self.remote)
    }

    /// Whether the peer's queue pair belongs to this connection alone. SIDR requests have no queue pair, and several
    /// XRC initiators may share a target.
    pub(super) fn has_own_peer_qpn(&self) -> bool {
        self.kind == Kind::Connection && self.transport != CmTransport::Xrc
    }
}
