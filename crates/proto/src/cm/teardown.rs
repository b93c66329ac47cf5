//! Disconnect: DREQ, DREP, TIMEWAIT.

use super::connection::State;
use super::pacing::Pace;
use super::params::put_private_before;
use super::{Answer, Cm, CmError, CommId, Event, Kind, MadAddressing, RejectReason, SidrStatus};
use crate::ids::Gid;
use crate::time::Time;
use crate::wire::cm::{CmMad, CmMessage, Drep, Dreq, RejectedMessage};
use alloc::vec::Vec;

/// The lowest id that a process with this slot may assign.
const fn first_of(slot: u8) -> CommId {
    CommId((slot as u32) << 24)
}

impl Cm {
    /// Disconnects. [`Event::Disconnected`] follows, and later [`Event::TimewaitExit`]. Succeeds without effect if the
    /// peer has already disconnected.
    pub fn disconnect(&mut self, id: CommId, private_data: &[u8], now: Time) -> Result<(), CmError> {
        let connection = self.connections.get_mut(&id).ok_or(CmError::NoSuchConnection)?;
        match connection.state {
            State::Established | State::RepSent | State::RepReceived => {}
            State::DreqSent | State::Timewait => return Ok(()),
            _ => return Err(CmError::WrongState),
        }
        let mut dreq = Dreq {
            local_comm_id: id,
            remote_comm_id: connection.remote,
            remote_qpn: connection.remote_qpn,
            ..Dreq::default()
        };
        put_private_before(&mut dreq.private_data, private_data, connection.proof_len())?;
        self.set_state(id, State::DreqSent);
        self.at(now);
        self.ask(id, 0, CmMessage::Dreq(dreq));
        Ok(())
    }

    /// Releases the connection. The peer receives the necessary messages; no further events are raised.
    pub fn release(&mut self, id: CommId, now: Time) {
        self.at(now);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.is_held = false;
        match connection.state {
            State::ReqSent if connection.pace == Pace::Waiting => self.remove(id),
            State::ReqSent => {
                self.send_rej(id, RejectedMessage::Other, RejectReason::TIMEOUT, &[], &[]);
                self.remove(id);
            }
            State::ReqReceived | State::RepReceived | State::RepSent => {
                let _ = self.reject(id, RejectReason::CONSUMER, &[], &[], now);
            }
            State::Established => {
                let _ = self.disconnect(id, &[], now);
            }
            State::DreqSent | State::Timewait => {}
            State::SidrReqSent => self.remove(id),
            State::SidrReqReceived => {
                let _ = self.answer(id, &Answer { status: SidrStatus::REJECT, ..Answer::default() });
                self.enter_timewait(id, now);
            }
            State::SidrRepSent => self.enter_timewait(id, now),
        }
    }

    pub(super) fn handle_dreq(&mut self, inbound: &MadAddressing, mad: &CmMad, dreq: &Dreq, now: Time) {
        let (id, tid) = (dreq.remote_comm_id, mad.tid);
        let Some(connection) = self.own(inbound, id).filter(|c| c.remote == dreq.local_comm_id) else {
            // This end has no such connection, so it confirms the end.
            let drep = Drep {
                local_comm_id: dreq.remote_comm_id,
                remote_comm_id: dreq.local_comm_id,
                ..Drep::default()
            };
            self.counters.strays += 1;
            return self.send_back(inbound, tid, CmMessage::Drep(drep));
        };
        if dreq.remote_qpn != connection.local_qpn {
            // It identifies another connection (12.6.10).
            self.counters.unexpected += 1;
            return;
        }
        let state = connection.state;
        match state {
            State::Established | State::RepSent | State::RepReceived | State::DreqSent => {
                if !self.is_proven(id, inbound, mad) {
                    return;
                }
                if state == State::RepSent {
                    // Only an established connection ends this way; the RTU was lost.
                    self.on_established(id);
                }
                self.confirm_end(id, tid);
                self.end(id, false, now);
            }
            State::Timewait => {
                self.counters.duplicates += 1;
                self.confirm_end(id, tid);
            }
            _ => self.counters.unexpected += 1,
        }
    }

    fn confirm_end(&mut self, id: CommId, tid: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.tid = tid;
        let drep = Drep { local_comm_id: id, remote_comm_id: connection.remote, ..Drep::default() };
        self.send(id, 0, CmMessage::Drep(drep));
    }

    pub(super) fn handle_drep(&mut self, inbound: &MadAddressing, drep: &Drep, now: Time) {
        let id = drep.remote_comm_id;
        let Some(connection) = self.known(inbound, id) else { return };
        match connection.state {
            State::DreqSent => self.end(id, false, now),
            State::Timewait => self.counters.duplicates += 1,
            _ => self.counters.unexpected += 1,
        }
    }

    /// Returns the peers of all connections, by address and by the slot in the high bits of the peer's id. Each slot of a ferroce host is a
    /// process.
    pub fn peers(&self) -> Vec<(Gid, u8)> {
        let mut peers = Vec::new();
        let mut from = (Gid::ZERO, Kind::Connection, CommId::NONE);
        // One lookup per process, not per connection.
        while let Some((&(address, kind, id), _)) = self.by_peer.range(from..).next() {
            let slot = id.slot();
            if kind == Kind::Connection {
                peers.push((address, slot));
            }
            from = match slot.checked_add(1) {
                Some(next) => (address, kind, first_of(next)),
                None if kind == Kind::Connection => (address, Kind::Datagram, CommId::NONE),
                None => match u128::from_be_bytes(address.0).checked_add(1) {
                    Some(next) => (Gid(next.to_be_bytes()), Kind::Connection, CommId::NONE),
                    None => break,
                },
            };
        }
        peers
    }

    /// Ends the connections of a dead process, identified by its slot and address. Pending REQs and replies time out
    /// normally.
    pub fn handle_death(&mut self, address: Gid, slot: u8, now: Time) {
        self.at(now);
        let (first, last) = (first_of(slot), CommId(first_of(slot).0 | 0x00ff_ffff));
        let its = (address, Kind::Connection, first)..=(address, Kind::Connection, last);
        let ids: Vec<CommId> = self.by_peer.range(its).map(|(_, id)| *id).collect();
        for id in ids {
            if self.in_state(id, &[State::Established, State::DreqSent]).is_ok() {
                self.counters.peer_died += 1;
                self.end(id, false, now);
            }
        }
    }

    /// Handles the end on both sides, or a peer that does not answer.
    pub(super) fn end(&mut self, id: CommId, timed_out: bool, now: Time) {
        self.raise(id, Event::Disconnected { id, timed_out });
        self.enter_timewait(id, now);
    }
}
