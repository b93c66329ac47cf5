//! The attributes of an id's queue pair, state by state.

use super::CmId;
use super::event::UDP_QKEY;
use crate::error::{CmRefusal, Error};
use ferroce_proto::verbs::{Access, AttrMask, QpAttr, QpState};

impl CmId {
    /// Attributes that move the id's queue pair to INIT, RTR or RTS. Those for INIT are available at any time.
    pub fn qp_attributes(&self, state: QpState) -> Result<(QpAttr, AttrMask), Error> {
        self.usable()?;
        if self.is_datagram() {
            return datagram_attributes(state);
        }
        if self.service.streams.is_some() {
            return stream_attributes(state, self.state.lock().stream.is_some());
        }
        let (comm, options, path) = {
            let own = self.state.lock();
            (own.comm, own.options, own.path)
        };
        let Some(comm) = comm else {
            let attr = QpAttr { state, port: 1, ..QpAttr::default() };
            let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
            return match state {
                QpState::Init => Ok((attr, mask)),
                _ => Err(CmRefusal::WrongState { why: "it has no connection" }.into()),
            };
        };
        let managed = self.service.managed.lock();
        let (mut attr, mask) = managed.cm.qp_attributes(comm, state).map_err(CmRefusal::from)?;
        attr.min_rnr_timer = options.min_rnr_timer.unwrap_or(attr.min_rnr_timer);
        // Also at the accepting end, whose path the peer chose.
        attr.timeout = options.ack_timeout.unwrap_or(attr.timeout);
        drop(managed);
        if let Some(path) = path.filter(|_| mask.contains(AttrMask::AV)) {
            // Added or removed addresses may have moved the source address in the GID table.
            let found = self.service.addresses.find(path.sgid);
            let gone = || CmRefusal::AddressNotAvailable { address: path.sgid.to_ip() };
            attr.av.sgid_index = found.ok_or_else(gone)?.0;
        }
        Ok((attr, mask))
    }
}

/// iWARP: connecting moves the queue pair to RTS. A program may still set up its queue pair state by state: except for INIT before the
/// connection, the attributes contain only the access rights.
fn stream_attributes(state: QpState, is_connected: bool) -> Result<(QpAttr, AttrMask), Error> {
    let rights = AttrMask::ACCESS_FLAGS;
    let mask = match state {
        QpState::Init if !is_connected => rights | AttrMask::STATE | AttrMask::PORT,
        QpState::Init | QpState::Rtr | QpState::Rts => rights,
        _ => return Err(NO_ATTRIBUTES.into()),
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    Ok((QpAttr { state, port: 1, access, ..QpAttr::default() }, mask))
}

const NO_ATTRIBUTES: CmRefusal = CmRefusal::WrongState { why: "only INIT, RTR and RTS have attributes" };

fn datagram_attributes(state: QpState) -> Result<(QpAttr, AttrMask), Error> {
    let mask = match state {
        QpState::Init => AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
        QpState::Rtr => AttrMask::STATE,
        QpState::Rts => AttrMask::STATE | AttrMask::SQ_PSN,
        _ => return Err(NO_ATTRIBUTES.into()),
    };
    Ok((QpAttr { state, port: 1, qkey: UDP_QKEY, ..QpAttr::default() }, mask))
}
