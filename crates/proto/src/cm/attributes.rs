//! The attributes of a connection's queue pair on its way to RTS.

use super::connection::Connection;
use super::{Cm, CmError, CmTransport, CommId};
use crate::verbs::{Access, AttrMask, QpAttr, QpState};

impl Cm {
    /// Attributes that take the connection's queue pair to `state`: INIT, RTR or RTS.
    ///
    /// READ depths are those of the REQ until it is accepted, then those of the REP; an application may use less.
    pub fn qp_attributes(&self, id: CommId, state: QpState) -> Result<(QpAttr, AttrMask), CmError> {
        let connection = self.get(id)?;
        match state {
            QpState::Init => Ok(init(connection)),
            QpState::Rtr => Ok(ready_to_receive(connection)),
            QpState::Rts => Ok(ready_to_send(connection)),
            _ => Err(CmError::WrongState),
        }
    }
}

fn is_reliable(connection: &Connection) -> bool {
    connection.transport != CmTransport::Uc
}

fn init(connection: &Connection) -> (QpAttr, AttrMask) {
    let reads = is_reliable(connection) && connection.responder_resources > 0;
    let access = if reads { Access::REMOTE } else { Access::REMOTE_WRITE };
    let attr = QpAttr { state: QpState::Init, port: 1, access, ..QpAttr::default() };
    (attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS)
}

fn ready_to_receive(connection: &Connection) -> (QpAttr, AttrMask) {
    let attr = QpAttr {
        state: QpState::Rtr,
        av: connection.path.vector(),
        path_mtu: connection.path.mtu,
        dest_qpn: connection.remote_qpn,
        // Each end's starting PSN is the first one it receives; the other end starts sending with it (12.7.31, as in
        // Linux). Two ends that both swap the two PSNs can connect only to each other.
        rq_psn: connection.local_psn,
        max_dest_rd_atomic: connection.responder_resources,
        ..QpAttr::default()
    };
    let mut mask =
        AttrMask::STATE | AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    if is_reliable(connection) {
        mask |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    }
    (attr, mask)
}

fn ready_to_send(connection: &Connection) -> (QpAttr, AttrMask) {
    let attr = QpAttr {
        state: QpState::Rts,
        sq_psn: connection.remote_psn,
        timeout: connection.path.ack_timeout,
        retry_cnt: connection.retry_count,
        rnr_retry: connection.rnr_retry,
        max_rd_atomic: connection.initiator_depth,
        ..QpAttr::default()
    };
    let mut mask = AttrMask::STATE | AttrMask::SQ_PSN;
    if is_reliable(connection) {
        mask |= AttrMask::TIMEOUT | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::MAX_QP_RD_ATOMIC;
    }
    (attr, mask)
}
