//! The passive side: REP.

use super::connection::{Connection, State};
use super::params::put_private_before;
use super::proof::{REQ_PROOF_LEN, ReqProof, Secret};
use super::timing::response_ns;
use super::{
    Accept, Cm, CmError, CommId, Ece, Event, Kind, ListenerId, MadAddressing, Path, RejectReason, Request,
};
use crate::ids::{Gid, Psn};
use crate::time::Time;
use crate::verbs::Mtu;
use crate::wire::cm::{CmMad, CmMessage, IpHeader, RejectedMessage, Rep, Req, Rtu, ServiceId};

impl Cm {
    pub(super) fn handle_req(&mut self, inbound: &MadAddressing, mad: &CmMad, req: &Req, now: Time) {
        let (tid, ece) = (mad.tid, Ece { vendor_id: req.vendor_id, attr_mod: mad.attr_mod });
        let known = self.by_peer.get(&(inbound.sgid, Kind::Connection, req.local_comm_id)).copied();
        if let Some(id) = known.filter(|id| self.is_repeated(*id, tid)) {
            return self.on_repeated_req(id);
        }
        // The proof is checked first, because a REQ can end an older connection.
        let listener = self.listeners.find(ServiceId(req.service_id), inbound.dgid);
        let proof = match self.check_req_proof(listener, inbound, mad) {
            ReqProof::Open => None,
            ReqProof::Proven(secret, mac) => Some((secret, mac)),
            ReqProof::Unproven => return self.refuse_unproven_req(inbound, tid, req),
            ReqProof::ListFull => return self.counters.overload += 1,
        };
        let old = known.or_else(|| self.by_qpn.get(&(inbound.sgid, req.local_qpn)).copied());
        if let Some(old) = old {
            // Otherwise a replay would be accepted once the old connection has ended.
            if let Some((_, mac)) = proof {
                self.record_req_proof(mac);
            }
            return self.on_stale(old, inbound, tid, req, proof.map(|(secret, _)| secret), now);
        }
        match self.check_req(inbound, req, now) {
            Ok(Some((listener, mtu))) => {
                let id = self.take_req((listener, mtu), inbound, tid, ece, req, proof.is_some());
                if let (Some((secret, mac)), Some(connection)) = (proof, self.connections.get_mut(&id)) {
                    (connection.secret, connection.binding) = (Some(secret), mac);
                    self.record_req_proof(mac);
                }
            }
            Ok(None) => {}
            Err(reason) => self.refuse_req(inbound, tid, req, reason),
        }
    }

    /// Whether a REQ with this transaction id created connection `id`.
    fn is_repeated(&self, id: CommId, tid: u64) -> bool {
        self.connections.get(&id).is_some_and(|c| !c.is_active && c.tid == tid)
    }

    /// Returns the listener and the MTU for a REQ, the reason of a reject, or `None` to drop it so that the peer
    /// retransmits.
    fn check_req(
        &mut self,
        inbound: &MadAddressing,
        req: &Req,
        now: Time,
    ) -> Result<Option<(ListenerId, Mtu)>, RejectReason> {
        let service = ServiceId(req.service_id);
        let Some(listener) = self.listeners.find(service, inbound.dgid) else {
            self.counters.no_listener += 1;
            let may_reopen = self.listeners.may_reopen(service, now);
            return if may_reopen { Ok(None) } else { Err(RejectReason::INVALID_SERVICE_ID) };
        };
        let options = self.listeners.options(listener);
        if options.datagrams {
            // As on Linux, the reason is that of a reject by the application.
            return Err(RejectReason::CONSUMER);
        }
        req.transport().ok_or(RejectReason::INVALID_TRANSPORT)?;
        let mtu = Mtu::from_code(req.path_mtu.into()).filter(|mtu| *mtu <= inbound.mtu);
        let mtu = mtu.ok_or(RejectReason::INVALID_MTU)?;
        if service.has_ip_header()
            && !options.whole_private_data
            && IpHeader::parse(&req.private_data).is_none()
        {
            return Err(RejectReason::UNSUPPORTED);
        }
        Ok(self.admits(listener, inbound.sgid).then_some((listener, mtu)))
    }

    /// Whether another undecided REQ is accepted. Dropping lets the peer retry; a reject would make it fail.
    pub(super) fn admits(&mut self, listener: ListenerId, from: Gid) -> bool {
        if !self.listeners.is_below_backlog(listener) {
            self.counters.backlog_full += 1;
            return false;
        }
        let full = self.pending >= self.config.max_pending
            || self.connections.len() >= self.config.max_connections
            || self.half_open.total() >= self.config.max_half_open
            || self.half_open.of(from) >= self.config.max_half_open_per_peer;
        self.counters.overload += u64::from(full);
        !full
    }

    fn take_req(
        &mut self,
        (listener, mtu): (ListenerId, Mtu),
        inbound: &MadAddressing,
        tid: u64,
        ece: Ece,
        req: &Req,
        is_proven: bool,
    ) -> CommId {
        let (id, psn) = (self.fresh_id(), Psn::new((self.random)() as u32));
        let transport = req.transport().unwrap_or_default();
        let service = ServiceId(req.service_id);
        let path = Path {
            sgid: inbound.dgid,
            dgid: inbound.sgid,
            sgid_index: inbound.sgid_index,
            flow_label: req.primary.flow_label,
            hop_limit: if req.primary.hop_limit == 0 { 64 } else { req.primary.hop_limit },
            traffic_class: req.primary.traffic_class,
            sl: req.primary.sl,
            mtu,
            ack_timeout: req.primary.local_ack_timeout,
        };
        self.insert(Connection {
            is_half_open: true,
            remote: req.local_comm_id,
            tid,
            listener: Some(listener),
            service,
            transport,
            remote_qpn: req.local_qpn,
            local_psn: psn,
            remote_psn: req.starting_psn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            response_ns: response_ns(req.local_cm_response_timeout),
            max_retries: req.max_cm_retries,
            ..Connection::new(Kind::Connection, State::ReqReceived, id, path)
        });
        let is_whole = self.listeners.options(listener).whole_private_data;
        let ip = IpHeader::parse(&req.private_data).filter(|_| service.has_ip_header() && !is_whole);
        let skip = if ip.is_some() { IpHeader::LEN } else { 0 };
        let end = if is_proven { Req::PRIVATE_LEN - REQ_PROOF_LEN } else { Req::PRIVATE_LEN };
        self.events.push_back(Event::Request(Request {
            listener,
            id,
            service,
            ip,
            path,
            transport: Some(transport),
            remote_qpn: req.local_qpn,
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            flow_control: req.flow_control,
            srq: req.srq,
            ece,
            private_data: req.private_data[skip..end].to_vec(),
        }));
        id
    }

    /// Handles a duplicate REQ.
    fn on_repeated_req(&mut self, id: CommId) {
        let Some(connection) = self.connections.get(&id) else { return };
        self.counters.duplicates += 1;
        match connection.state {
            State::ReqReceived => self.ask_for_patience(id, RejectedMessage::Req),
            State::RepSent | State::Timewait => self.send_again(id),
            _ => {}
        }
    }

    /// Handles a REQ whose queue pair or id belongs to an older connection, which is probably stale (IBA 12.9.8.3.1). The
    /// peer must retry. A forged REQ looks the same. So a connection with a key ends only for a REQ that proves the same
    /// key. One without ends only if its peer does not answer a probe, or by its own timers if it is not established.
    fn on_stale(
        &mut self,
        old: CommId,
        inbound: &MadAddressing,
        tid: u64,
        req: &Req,
        proven: Option<Secret>,
        now: Time,
    ) {
        self.counters.stale += 1;
        self.refuse_req(inbound, tid, req, RejectReason::STALE_CONNECTION);
        let secret = self.connections.get(&old).and_then(|connection| connection.secret.clone());
        if secret.is_some() {
            if secret == proven {
                // Ending it is enough; a connection in TIMEWAIT has already ended.
                let _ = self.disconnect(old, &[], now);
            }
        } else if self.in_state(old, &[State::Established]).is_ok() {
            self.probe_peer(old, now);
        }
    }

    /// Accepts the connection. The queue pair should be in RTR: the peer may send immediately.
    pub fn accept(&mut self, id: CommId, accept: &Accept<'_>, now: Time) -> Result<(), CmError> {
        let ca_guid = self.config.ca_guid;
        let connection = self.in_state(id, &[State::ReqReceived])?;
        let mut rep = Rep {
            local_comm_id: id,
            remote_comm_id: connection.remote,
            local_qpn: accept.qpn,
            vendor_id: accept.ece.vendor_id,
            starting_psn: connection.local_psn,
            responder_resources: accept.responder_resources,
            initiator_depth: accept.initiator_depth,
            flow_control: accept.flow_control,
            rnr_retry_count: accept.rnr_retry.min(7),
            srq: accept.srq,
            local_ca_guid: ca_guid,
            ..Rep::default()
        };
        put_private_before(&mut rep.private_data, accept.private_data, connection.proof_len())?;
        connection.local_qpn = accept.qpn;
        connection.responder_resources = accept.responder_resources;
        connection.initiator_depth = accept.initiator_depth;
        self.set_state(id, State::RepSent);
        self.send(id, accept.ece.attr_mod, CmMessage::Rep(rep));
        self.expect_answer(id, now);
        Ok(())
    }

    pub(super) fn handle_rtu(&mut self, inbound: &MadAddressing, mad: &CmMad, rtu: &Rtu) {
        let id = rtu.remote_comm_id;
        let Some(connection) = self.known(inbound, id) else { return };
        match connection.state {
            State::RepSent if connection.remote == rtu.local_comm_id => {
                if self.is_proven(id, inbound, mad) {
                    self.on_established(id);
                }
            }
            State::Established => {
                let is_peer = connection.remote == rtu.local_comm_id;
                self.counters.duplicates += 1;
                if is_peer {
                    self.answered(id);
                }
            }
            _ => self.counters.unexpected += 1,
        }
    }

    /// Handles data on the queue pair before the RTU: the peer has received the REP. With a key, only the RTU proves
    /// that.
    pub fn notify_established(&mut self, id: CommId) -> Result<(), CmError> {
        if self.in_state(id, &[State::RepSent])?.secret.is_some() {
            return Err(CmError::WrongState);
        }
        self.on_established(id);
        Ok(())
    }

    pub(super) fn on_established(&mut self, id: CommId) {
        self.answered(id);
        self.no_longer_half_open(id);
        self.set_state(id, State::Established);
        self.counters.established += 1;
        self.raise(id, Event::Established { id });
    }
}
