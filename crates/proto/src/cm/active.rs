//! The active side: REQ and RTU.

use super::connection::{Connection, State};
use super::params::put_private_before;
use super::proof::REQ_PROOF_LEN;
use super::timing::response_ns;
use super::{Cm, CmError, CommId, Connect, Ece, Event, Kind, MadAddressing, Response};
use crate::ids::{PKey, Psn};
use crate::time::Time;
use crate::wire::cm::{CmMad, CmMessage, CmPath, IpHeader, Mra, RejectedMessage, Rep, Req, Rtu};

/// Packet rate in REQs, in verbs encoding: 10 Gb/s. It is not enforced.
const PACKET_RATE: u8 = 3;
/// LID of a network without LIDs.
const NO_LID: u16 = 0xffff;

impl Cm {
    /// Sends a REQ. The result is an event.
    pub fn connect(&mut self, offer: &Connect<'_>, now: Time) -> Result<CommId, CmError> {
        if self.connections.len() >= self.config.max_connections {
            return Err(CmError::TooMany);
        }
        let secret = offer.secret.or(self.secret.as_ref()).cloned();
        self.uses_secrets |= secret.is_some();
        let proof_len = if secret.is_some() { REQ_PROOF_LEN } else { 0 };
        let mut private_data = [0; Req::PRIVATE_LEN];
        match offer.ip {
            Some(ip) => {
                private_data[..IpHeader::LEN].copy_from_slice(&ip.to_bytes());
                put_private_before(&mut private_data[IpHeader::LEN..], offer.private_data, proof_len)?;
            }
            None => put_private_before(&mut private_data, offer.private_data, proof_len)?,
        }
        let (response_timeout, max_retries) =
            self.timeout_and_retries(offer.response_timeout, offer.max_retries);
        let (id, tid, psn) = (self.fresh_id(), (self.random)(), Psn::new((self.random)() as u32));
        let path = offer.path;
        let mut req = Req {
            local_comm_id: id,
            vendor_id: offer.ece.vendor_id,
            service_id: offer.service.0,
            local_ca_guid: self.config.ca_guid,
            local_qpn: offer.qpn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            remote_cm_response_timeout: response_timeout,
            flow_control: offer.flow_control,
            starting_psn: psn,
            local_cm_response_timeout: response_timeout,
            retry_count: offer.retry_count.min(7),
            pkey: PKey::DEFAULT,
            path_mtu: path.mtu as u8,
            rnr_retry_count: offer.rnr_retry.min(7),
            max_cm_retries: max_retries,
            srq: offer.srq,
            primary: CmPath {
                local_lid: NO_LID,
                remote_lid: NO_LID,
                local_gid: path.sgid,
                remote_gid: path.dgid,
                flow_label: path.flow_label,
                packet_rate: PACKET_RATE,
                traffic_class: path.traffic_class,
                hop_limit: path.hop_limit,
                sl: path.sl,
                subnet_local: path.hop_limit <= 1,
                local_ack_timeout: path.ack_timeout,
            },
            private_data,
            ..Req::default()
        };
        req.set_transport(offer.transport);
        self.insert(Connection {
            is_active: true,
            tid,
            service: offer.service,
            transport: offer.transport,
            local_qpn: offer.qpn,
            local_psn: psn,
            responder_resources: offer.responder_resources,
            initiator_depth: offer.initiator_depth,
            retry_count: req.retry_count,
            rnr_retry: req.rnr_retry_count,
            response_ns: response_ns(response_timeout),
            max_retries,
            secret,
            ..Connection::new(Kind::Connection, State::ReqSent, id, path)
        });
        self.at(now);
        self.ask(id, offer.ece.attr_mod, CmMessage::Req(req));
        Ok(id)
    }

    pub(super) fn timeout_and_retries(
        &self,
        response_timeout: Option<u8>,
        max_retries: Option<u8>,
    ) -> (u8, u8) {
        let response_timeout = response_timeout.unwrap_or(self.config.response_timeout).min(31);
        (response_timeout, max_retries.unwrap_or(self.config.max_retries).min(15))
    }

    pub(super) fn handle_rep(&mut self, inbound: &MadAddressing, mad: &CmMad, rep: &Rep, now: Time) {
        let (tid, ece) = (mad.tid, Ece { vendor_id: rep.vendor_id, attr_mod: mad.attr_mod });
        let id = rep.remote_comm_id;
        let Some(connection) = self.own(inbound, id) else { return self.refuse_stray_rep(inbound, tid, rep) };
        match connection.state {
            State::ReqSent => match self.is_proven(id, inbound, mad) {
                true => self.take_rep(id, ece, rep),
                false => self.refuse_unproven_rep(id, rep, now),
            },
            State::RepReceived | State::Established if connection.remote != rep.local_comm_id => {
                self.counters.unexpected += 1;
            }
            State::RepReceived => {
                self.counters.duplicates += 1;
                self.ask_for_patience(id, RejectedMessage::Rep);
            }
            State::Established if connection.is_active => {
                // The RTU was lost.
                self.counters.duplicates += 1;
                self.send_again(id);
            }
            _ => self.counters.unexpected += 1,
        }
    }

    fn take_rep(&mut self, id: CommId, ece: Ece, rep: &Rep) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let private_len = rep.private_data.len() - connection.proof_len();
        connection.remote = rep.local_comm_id;
        connection.remote_qpn = rep.local_qpn;
        connection.remote_psn = rep.starting_psn;
        // The peer's initiator depth is our responder resources, and vice versa.
        connection.responder_resources = rep.initiator_depth;
        connection.initiator_depth = rep.responder_resources;
        connection.rnr_retry = rep.rnr_retry_count;
        let key = connection.peer_key();
        self.by_peer.insert(key, id);
        self.note_qpn(id);
        self.answered(id);
        self.set_state(id, State::RepReceived);
        let response = Response {
            id,
            remote_qpn: rep.local_qpn,
            responder_resources: rep.initiator_depth,
            initiator_depth: rep.responder_resources,
            rnr_retry: rep.rnr_retry_count,
            flow_control: rep.flow_control,
            srq: rep.srq,
            ece,
            private_data: rep.private_data[..private_len].to_vec(),
        };
        self.raise(id, Event::Response(response));
    }

    /// Sends the RTU once the queue pair is set up.
    pub fn establish(&mut self, id: CommId, private_data: &[u8]) -> Result<(), CmError> {
        let connection = self.in_state(id, &[State::RepReceived])?;
        let mut rtu =
            Rtu { local_comm_id: id, remote_comm_id: connection.remote, private_data: [0; Rtu::PRIVATE_LEN] };
        put_private_before(&mut rtu.private_data, private_data, connection.proof_len())?;
        self.set_state(id, State::Established);
        self.counters.established += 1;
        self.send(id, 0, CmMessage::Rtu(rtu));
        Ok(())
    }

    /// Sends an MRA: the peer's message arrived, and the application needs more time. The MRA is not retransmitted.
    pub(super) fn ask_for_patience(&mut self, id: CommId, received: RejectedMessage) {
        let service_timeout = self.config.service_timeout;
        let Some(connection) = self.connections.get(&id) else { return };
        let mra = Mra {
            local_comm_id: id,
            remote_comm_id: connection.remote,
            received,
            service_timeout,
            ..Mra::default()
        };
        let (tid, route) = (connection.tid, connection.path.route());
        let mad = crate::wire::cm::CmMad { tid, attr_mod: 0, message: CmMessage::Mra(mra) };
        let mad = alloc::boxed::Box::new(mad.to_bytes());
        self.transmit(super::Transmit { route, mad, is_repeat: true });
    }
}
