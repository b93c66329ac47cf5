//! REJ and MRA.

use super::connection::State;
use super::params::put_private;
use super::{Cm, CmError, CommId, Event, MadAddressing, RejectReason};
use crate::time::Time;
use crate::wire::cm::{CmMessage, Mra, Rej, RejectedMessage, Rep, Req};

/// Text for a peer that did not prove the key, and for the local application.
pub const NOT_PROVEN: &[u8] = b"ferroce: not proven with the key of this side";

impl Cm {
    /// Rejects a REQ or a REP. `info` is the additional information that some reasons carry.
    pub fn reject(
        &mut self,
        id: CommId,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
        now: Time,
    ) -> Result<(), CmError> {
        let undone = [State::ReqReceived, State::RepReceived, State::RepSent, State::ReqSent];
        let connection = self.in_state(id, &undone)?;
        let rejected = match connection.state {
            State::ReqReceived => RejectedMessage::Req,
            State::RepReceived => RejectedMessage::Rep,
            _ => RejectedMessage::Other,
        };
        for (data, capacity) in [(info, Rej::ARI_LEN), (private_data, Rej::PRIVATE_LEN)] {
            if data.len() > capacity {
                return Err(CmError::PrivateDataTooLong { len: data.len(), capacity });
            }
        }
        self.send_rej(id, rejected, reason, info, private_data);
        // The application has released the connection. It stays to answer duplicates of the peer.
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_held = false;
            // It was never in use, so the peer may reuse the queue pair immediately.
            let qpn = (connection.path.dgid, connection.remote_qpn);
            if self.by_qpn.get(&qpn) == Some(&id) {
                self.by_qpn.remove(&qpn);
            }
        }
        self.enter_timewait(id, now);
        Ok(())
    }

    /// Sends a REJ of connection `id`. Excess data is truncated.
    pub(super) fn send_rej(
        &mut self,
        id: CommId,
        rejected: RejectedMessage,
        reason: RejectReason,
        info: &[u8],
        private_data: &[u8],
    ) {
        let Some(connection) = self.connections.get(&id) else { return };
        let mut rej =
            Rej { local_comm_id: id, remote_comm_id: connection.remote, rejected, reason, ..Rej::default() };
        rej.ari_len = info.len().min(Rej::ARI_LEN) as u8;
        let _ = put_private(&mut rej.ari, &info[..rej.ari_len.into()]);
        let _ = put_private(&mut rej.private_data, private_data);
        self.counters.on_refused(reason);
        self.send(id, 0, CmMessage::Rej(rej));
    }

    /// Rejects a REQ without storing state.
    pub(super) fn refuse_req(&mut self, inbound: &MadAddressing, tid: u64, req: &Req, reason: RejectReason) {
        let rej = Rej { remote_comm_id: req.local_comm_id, reason, ..Rej::default() };
        self.counters.on_refused(reason);
        self.send_back(inbound, tid, CmMessage::Rej(rej));
    }

    /// Rejects a REQ without a valid proof. Stores no state for it.
    pub(super) fn refuse_unproven_req(&mut self, inbound: &MadAddressing, tid: u64, req: &Req) {
        let reason = RejectReason::CONSUMER;
        let mut rej = Rej { remote_comm_id: req.local_comm_id, reason, ..Rej::default() };
        let _ = put_private(&mut rej.private_data, NOT_PROVEN);
        self.counters.on_refused(reason);
        self.send_back(inbound, tid, CmMessage::Rej(rej));
    }

    /// Rejects a REP without a valid proof.
    pub(super) fn refuse_unproven_rep(&mut self, id: CommId, rep: &Rep, now: Time) {
        self.at(now);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.remote = rep.local_comm_id;
        }
        let reason = RejectReason::CONSUMER;
        self.send_rej(id, RejectedMessage::Rep, reason, &[], NOT_PROVEN);
        self.raise(id, Event::Rejected { id, reason, private_data: NOT_PROVEN.to_vec() });
        self.remove(id);
    }

    /// Rejects a reply to an unknown REQ, so that its sender does not wait.
    pub(super) fn refuse_stray_rep(&mut self, inbound: &MadAddressing, tid: u64, rep: &Rep) {
        let rej = Rej {
            local_comm_id: rep.remote_comm_id,
            remote_comm_id: rep.local_comm_id,
            rejected: RejectedMessage::Rep,
            reason: RejectReason::INVALID_COMM_ID,
            ..Rej::default()
        };
        self.counters.on_refused(rej.reason);
        self.send_back(inbound, tid, CmMessage::Rej(rej));
    }

    pub(super) fn handle_rej(&mut self, inbound: &MadAddressing, rej: &Rej, now: Time) {
        let id = rej.remote_comm_id;
        let Some(connection) = self.known_or_peer(inbound, id, rej.local_comm_id) else { return };
        let (id, state) = (connection.local, connection.state);
        let names_both = (connection.local, connection.remote) == (rej.remote_comm_id, rej.local_comm_id);
        let was_probed = connection.resend.is_some() && names_both;
        self.counters.on_rejected(rej.reason);
        if state == State::ReqSent
            && rej.reason == RejectReason::INVALID_SERVICE_ID
            && self.retries_no_listener(id)
        {
            return;
        }
        match state {
            // The peer rejected the REQ and accepted its retransmission: the later decision counts, regardless of
            // arrival order.
            State::RepReceived if rej.rejected == RejectedMessage::Req => self.counters.unexpected += 1,
            State::ReqSent | State::RepSent | State::RepReceived | State::ReqReceived => {
                let (reason, private_data) = (rej.reason, rej.private_data.to_vec());
                self.raise(id, Event::Rejected { id, reason, private_data });
                self.remove(id);
            }
            // The peer has no such connection: this counts as the answer to the DREQ.
            State::DreqSent => self.end(id, false, now),
            State::Established if was_probed && rej.reason == RejectReason::INVALID_COMM_ID => {
                let _ = self.disconnect(id, &[], now);
            }
            // A delayed REJ must not end an established connection.
            _ => self.counters.unexpected += 1,
        }
    }

    pub(super) fn handle_mra(&mut self, inbound: &MadAddressing, mra: &Mra, now: Time) {
        let id = mra.remote_comm_id;
        let Some(connection) = self.known(inbound, id) else { return };
        match (connection.state, mra.received) {
            (State::ReqSent, RejectedMessage::Req) | (State::RepSent, RejectedMessage::Rep) => {
                self.wait_longer(id, mra.service_timeout, now);
            }
            _ => self.counters.unexpected += 1,
        }
    }
}
