//! Service ID resolution for datagrams (SIDR).

use super::connection::{Connection, State};
use super::params::put_private_before;
use super::proof::{Binding, REQ_PROOF_LEN, ReqProof};
use super::timing::response_ns;
use super::{Answer, Cm, CmError, CommId, Ece, Event, Kind, MadAddressing, Path, Query, Request, SidrStatus};
use crate::ids::{PKey, Qpn};
use crate::time::Time;
use crate::wire::cm::{CmMad, CmMessage, IpHeader, ServiceId, SidrRep, SidrReq};

/// How long a reply is kept for duplicate requests, as a transport timer exponent.
const REMEMBERED: u8 = 18;

impl Cm {
    /// Resolves a service to its queue pair. The result is an event.
    pub fn query(&mut self, query: &Query<'_>, now: Time) -> Result<CommId, CmError> {
        if self.connections.len() >= self.config.max_connections {
            return Err(CmError::TooMany);
        }
        let mut req = SidrReq { pkey: PKey::DEFAULT, service_id: query.service.0, ..SidrReq::default() };
        let secret = query.secret.or(self.secret.as_ref()).cloned();
        self.uses_secrets |= secret.is_some();
        let proof_len = if secret.is_some() { REQ_PROOF_LEN } else { 0 };
        match query.ip {
            Some(ip) => {
                req.private_data[..IpHeader::LEN].copy_from_slice(&ip.to_bytes());
                put_private_before(&mut req.private_data[IpHeader::LEN..], query.private_data, proof_len)?;
            }
            None => put_private_before(&mut req.private_data, query.private_data, proof_len)?,
        }
        let (response_timeout, max_retries) =
            self.timeout_and_retries(query.response_timeout, query.max_retries);
        let (id, tid) = (self.fresh_id(), (self.random)());
        req.request_id = id;
        self.insert(Connection {
            is_active: true,
            tid,
            service: query.service,
            response_ns: response_ns(response_timeout),
            max_retries,
            secret,
            ..Connection::new(Kind::Datagram, State::SidrReqSent, id, query.path)
        });
        self.at(now);
        self.ask(id, 0, CmMessage::SidrReq(req));
        Ok(id)
    }

    pub(super) fn handle_sidr_req(&mut self, inbound: &MadAddressing, mad: &CmMad, req: &SidrReq) {
        let tid = mad.tid;
        let key = (inbound.sgid, Kind::Datagram, req.request_id);
        if let Some(&id) = self.by_peer.get(&key) {
            self.counters.duplicates += 1;
            return self.send_again(id);
        }
        let service = ServiceId(req.service_id);
        let listener = self.listeners.find(service, inbound.dgid);
        let options = listener.map(|listener| self.listeners.options(listener));
        let has_header =
            service.has_ip_header() && !options.is_some_and(|options| options.whole_private_data);
        let ip = IpHeader::parse(&req.private_data).filter(|_| has_header);
        let (secret, binding) = match self.check_req_proof(listener, inbound, mad) {
            ReqProof::Open => (None, Binding::default()),
            ReqProof::Proven(secret, mac) => (Some(secret), mac),
            ReqProof::Unproven => return self.refuse_sidr_req(inbound, tid, req, SidrStatus::REJECT),
            ReqProof::ListFull => return self.counters.overload += 1,
        };
        let Some(listener) = listener.filter(|_| ip.is_some() || !has_header) else {
            self.counters.no_listener += 1;
            return self.refuse_sidr_req(inbound, tid, req, SidrStatus::UNSUPPORTED);
        };
        if options.is_some_and(|options| !options.datagrams) {
            return self.refuse_sidr_req(inbound, tid, req, SidrStatus::REJECT);
        }
        if !self.admits(listener, inbound.sgid) {
            return;
        }
        let end = req.private_data.len() - if secret.is_some() { REQ_PROOF_LEN } else { 0 };
        if secret.is_some() {
            self.record_req_proof(binding);
        }
        let id = self.fresh_id();
        let path = Path {
            sgid: inbound.dgid,
            dgid: inbound.sgid,
            sgid_index: inbound.sgid_index,
            hop_limit: 64,
            mtu: inbound.mtu,
            ack_timeout: REMEMBERED,
            ..Path::default()
        };
        self.insert(Connection {
            is_half_open: true,
            remote: req.request_id,
            tid,
            listener: Some(listener),
            service,
            secret,
            binding,
            ..Connection::new(Kind::Datagram, State::SidrReqReceived, id, path)
        });
        let skip = if ip.is_some() { IpHeader::LEN } else { 0 };
        self.events.push_back(Event::Request(Request {
            listener,
            id,
            service,
            ip,
            path,
            transport: None,
            remote_qpn: Qpn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry: 0,
            flow_control: false,
            srq: false,
            ece: Ece::default(),
            private_data: req.private_data[skip..end].to_vec(),
        }));
    }

    /// Refuses a request without storing state.
    fn refuse_sidr_req(&mut self, inbound: &MadAddressing, tid: u64, req: &SidrReq, status: SidrStatus) {
        self.counters.refused += 1;
        let rep =
            SidrRep { request_id: req.request_id, status, service_id: req.service_id, ..SidrRep::default() };
        self.send_back(inbound, tid, CmMessage::SidrRep(rep));
    }

    /// Answers a SIDR request; any status but success refuses it.
    pub fn answer(&mut self, id: CommId, answer: &Answer<'_>) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::SidrReqReceived])?;
        let mut rep = SidrRep {
            request_id: connection.remote,
            status: answer.status,
            qpn: answer.qpn,
            service_id: connection.service.0,
            qkey: answer.qkey,
            ..SidrRep::default()
        };
        put_private_before(&mut rep.private_data, answer.private_data, connection.proof_len())?;
        self.set_state(id, State::SidrRepSent);
        self.send(id, 0, CmMessage::SidrRep(rep));
        Ok(())
    }

    pub(super) fn handle_sidr_rep(&mut self, inbound: &MadAddressing, mad: &CmMad, rep: &SidrRep) {
        let id = rep.request_id;
        let Some(connection) = self.known(inbound, id) else { return };
        if connection.state != State::SidrReqSent {
            self.counters.unexpected += 1;
            return;
        }
        if rep.status == SidrStatus::UNSUPPORTED && self.retries_no_listener(id) {
            return;
        }
        let Ok(connection) = self.get(id) else { return };
        let private_len = rep.private_data.len() - connection.proof_len();
        let (path, private_data) = (connection.path, rep.private_data[..private_len].to_vec());
        let SidrRep { mut status, qpn, qkey, .. } = *rep;
        // A refusal needs no proof; a success does.
        if status == SidrStatus::SUCCESS && !self.is_proven(id, inbound, mad) {
            status = SidrStatus::REJECT;
        }
        self.raise(id, Event::Answered { id, path, status, qpn, qkey, private_data });
        self.remove(id);
    }
}
