//! What the oldest request of a queue pair waits for: the explanation of a hang.

use super::sq::SendWqe;
use super::{Machine, Qp};
use crate::ids::{Gid, Psn, Qpn};
use crate::verbs::QpState;
use core::fmt;

/// A request that was posted and that the peer has not answered.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    qpn: Qpn,
    request: SendWqe,
    oldest: Psn,
    peer: Qpn,
    dgid: Gid,
    rnr_received: u64,
    has_timeout: bool,
    /// What to check if the peer does not answer at all.
    advice: &'static str,
}

impl Qp {
    /// The oldest request, if it was sent and the peer must answer it.
    pub fn waiting(&self) -> Option<Waiting> {
        let Machine::Rc(rc) = &self.machine else { return None };
        let request = *self.sq.oldest()?;
        let awaits = matches!(self.attr.state, QpState::Rts | QpState::Sqd) && rc.0.has_outstanding();
        awaits.then_some(Waiting {
            qpn: self.id.qpn,
            request,
            oldest: rc.0.oldest_psn(),
            peer: self.attr.dest_qpn,
            dgid: self.route.dgid,
            rnr_received: self.counters.rnr_received,
            has_timeout: self.attr.timeout != 0,
            advice: rc.0.advice(&self.attr),
        })
    }
}

impl Waiting {
    /// Whether the peer has acknowledged nothing since `earlier`.
    pub fn is_stalled_since(&self, earlier: &Waiting) -> bool {
        (self.oldest, self.request.wr_id) == (earlier.oldest, earlier.request.wr_id)
    }

    /// Why nothing has happened since `earlier`.
    pub fn why<'a>(&'a self, earlier: &'a Waiting) -> impl fmt::Display + 'a {
        Why { now: self, rnr_naks: self.rnr_received.saturating_sub(earlier.rnr_received) }
    }
}

struct Why<'a> {
    now: &'a Waiting,
    rnr_naks: u64,
}

impl fmt::Display for Why<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Waiting { qpn, request, oldest, peer, dgid, has_timeout, advice, .. } = self.now;
        write!(f, "QP {qpn}: {request} waits for QP {peer} at {}, which ", dgid.to_ip())?;
        if self.rnr_naks > 0 {
            return write!(
                f,
                "has no receive posted for it: {} RNR NAKs meanwhile; post receives there before this end sends",
                self.rnr_naks
            );
        }
        write!(f, "does not acknowledge PSN {oldest}; {advice}")?;
        if *has_timeout { Ok(()) } else { f.write_str("; timeout is 0, so it waits for ever") }
    }
}
