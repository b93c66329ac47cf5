//! Service resolution for datagrams: a question, an answer, no connection.

use super::connection::{Connection, State};
use super::params::put_private;
use super::timing::response_ns;
use super::{Answer, Cm, CmError, CommId, Ece, Event, Inbound, Kind, Path, Query, Request, SidrStatus};
use crate::ids::{PKey, Qpn};
use crate::time::Time;
use crate::wire::cm::{CmMessage, IpHeader, ServiceId, SidrRep, SidrReq};

/// How long an answer is remembered for repeated questions, as the exponent of a transport timer.
const REMEMBERED: u8 = 18;

impl Cm {
    /// Asks which queue pair serves a service. The outcome comes as an event.
    pub fn query(&mut self, query: &Query<'_>, now: Time) -> Result<CommId, CmError> {
        if self.connections.len() >= self.config.max_connections {
            return Err(CmError::TooMany);
        }
        let mut req = SidrReq { pkey: PKey::DEFAULT, service_id: query.service.0, ..SidrReq::default() };
        match query.ip {
            Some(ip) => {
                req.private_data[..IpHeader::LEN].copy_from_slice(&ip.to_bytes());
                put_private(&mut req.private_data[IpHeader::LEN..], query.private_data)?;
            }
            None => put_private(&mut req.private_data, query.private_data)?,
        }
        let (response_timeout, max_retries) = self.patience(query.response_timeout, query.max_retries);
        let (id, tid) = (self.fresh_id(), (self.random)());
        req.request_id = id;
        self.insert(Connection {
            is_active: true,
            tid,
            service: query.service,
            response_ns: response_ns(response_timeout),
            max_retries,
            ..Connection::new(Kind::Datagram, State::SidrReqSent, id, query.path)
        });
        self.at(now);
        self.ask(id, 0, CmMessage::SidrReq(req));
        Ok(id)
    }

    pub(super) fn handle_sidr_req(&mut self, inbound: &Inbound, tid: u64, req: &SidrReq) {
        let key = (inbound.sgid, Kind::Datagram, req.request_id);
        if let Some(&id) = self.by_peer.get(&key) {
            self.counters.duplicates += 1;
            return self.send_again(id);
        }
        let service = ServiceId(req.service_id);
        let ip = IpHeader::parse(&req.private_data).filter(|_| service.has_ip_header());
        let listener = self.listeners.find(service, inbound.dgid);
        let Some(listener) = listener.filter(|_| ip.is_some() || !service.has_ip_header()) else {
            self.counters.no_listener += 1;
            self.counters.refused += 1;
            let status = SidrStatus::UNSUPPORTED;
            let rep = SidrRep {
                request_id: req.request_id,
                status,
                service_id: req.service_id,
                ..SidrRep::default()
            };
            return self.send_back(inbound, tid, CmMessage::SidrRep(rep));
        };
        if !self.has_room_for(listener, inbound.sgid) {
            return;
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
            private_data: req.private_data[skip..].to_vec(),
        }));
    }

    /// Answers a question about a datagram service; with any status but success, refuses it.
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
        put_private(&mut rep.private_data, answer.private_data)?;
        self.set_state(id, State::SidrRepSent);
        self.send(id, 0, CmMessage::SidrRep(rep));
        Ok(())
    }

    pub(super) fn handle_sidr_rep(&mut self, inbound: &Inbound, rep: &SidrRep) {
        let id = rep.request_id;
        let Some(connection) = self.known(inbound, id) else { return };
        if connection.state != State::SidrReqSent {
            self.counters.unexpected += 1;
            return;
        }
        let (path, private_data) = (connection.path, rep.private_data.to_vec());
        let SidrRep { status, qpn, qkey, .. } = *rep;
        self.raise(id, Event::Answered { id, path, status, qpn, qkey, private_data });
        self.remove(id);
    }
}
