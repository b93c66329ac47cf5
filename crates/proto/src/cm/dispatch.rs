//! Dispatches messages to handlers, and handles messages without a connection.

use super::connection::{Connection, State};
use super::{Cm, CommId, Kind, MadAddressing};
use crate::time::Time;
use crate::wire::BadMad;
use crate::wire::cm::{Apr, CmMad, CmMessage, Lap};

impl Cm {
    /// Handles a MAD received at QP1. Malformed ones are counted and have no effect.
    pub fn handle_mad(&mut self, inbound: &MadAddressing, bytes: &[u8], now: Time) -> Result<(), BadMad> {
        let mad = CmMad::parse(bytes).inspect_err(|bad| self.counters.on_bad(*bad))?;
        self.handle_message(inbound, &mad, now);
        Ok(())
    }

    /// Handles a parsed message.
    pub fn handle_message(&mut self, inbound: &MadAddressing, mad: &CmMad, now: Time) {
        self.counters.on_received(mad.message.attr_id());
        self.at(now);
        let tid = mad.tid;
        match &mad.message {
            CmMessage::Req(m) => self.handle_req(inbound, mad, m, now),
            CmMessage::Rep(m) => self.handle_rep(inbound, mad, m, now),
            CmMessage::Rtu(m) => self.handle_rtu(inbound, mad, m),
            CmMessage::Rej(m) => self.handle_rej(inbound, m, now),
            CmMessage::Mra(m) => self.handle_mra(inbound, m, now),
            CmMessage::Dreq(m) => self.handle_dreq(inbound, mad, m, now),
            CmMessage::Drep(m) => self.handle_drep(inbound, m, now),
            CmMessage::SidrReq(m) => self.handle_sidr_req(inbound, mad, m),
            CmMessage::SidrRep(m) => self.handle_sidr_rep(inbound, mad, m),
            CmMessage::Lap(m) => self.handle_lap(inbound, tid, m),
            CmMessage::Apr(m) => self.handle_apr(inbound, m),
        }
    }

    /// Counts a malformed message.
    pub fn count_bad(&mut self, bad: BadMad) {
        self.counters.on_bad(bad);
    }

    /// Returns connection `id` if the message came from its peer.
    pub(super) fn own(&mut self, inbound: &MadAddressing, id: CommId) -> Option<&Connection> {
        let connection = self.connections.get(&id)?;
        if connection.path.dgid != inbound.sgid {
            self.counters.wrong_address += 1;
            return None;
        }
        Some(connection)
    }

    /// The same for messages that need no answer: without a connection they are only counted.
    pub(super) fn known(&mut self, inbound: &MadAddressing, id: CommId) -> Option<&Connection> {
        if !self.connections.contains_key(&id) {
            self.counters.strays += 1;
            return None;
        }
        self.own(inbound, id)
    }

    /// A peer that cancels its REQ before the REP does not have our id; find the connection by the peer's id.
    pub(super) fn known_or_peer(
        &mut self,
        inbound: &MadAddressing,
        id: CommId,
        peer: CommId,
    ) -> Option<&Connection> {
        let by_peer = self.by_peer.get(&(inbound.sgid, Kind::Connection, peer)).copied();
        let id = if id == CommId::NONE { by_peer.unwrap_or(id) } else { id };
        self.known(inbound, id)
    }

    /// Handles the answer to a LAP, which ferroce sends only as a probe of the peer.
    fn handle_apr(&mut self, inbound: &MadAddressing, apr: &Apr) {
        let id = apr.remote_comm_id;
        let Some(connection) = self.known(inbound, id) else { return };
        let is_awaited = connection.state == State::Established && connection.resend.is_some();
        match is_awaited && connection.remote == apr.local_comm_id {
            true => self.answered(id),
            false => self.counters.unexpected += 1,
        }
    }

    /// RoCE has no alternate paths.
    fn handle_lap(&mut self, inbound: &MadAddressing, tid: u64, lap: &Lap) {
        let connection = self.known(inbound, lap.remote_comm_id);
        if connection.is_none_or(|connection| connection.remote != lap.local_comm_id) {
            return;
        }
        let apr = Apr {
            local_comm_id: lap.remote_comm_id,
            remote_comm_id: lap.local_comm_id,
            status: Apr::UNSUPPORTED,
            ..Apr::default()
        };
        self.send_back(inbound, tid, CmMessage::Apr(apr));
    }
}
