//! Queue pairs that the connection manager connects.

use super::{Connected, Qp};
use crate::error::Error;
use ferroce_nic::{CmId, CmTransport, ConnParam};
use ferroce_proto::verbs::{QpState, Transport};

impl<T: Connected> Qp<T> {
    /// The parameters of a connection request or an acceptance.
    pub(crate) fn conn_param(&self, private_data: &[u8]) -> ConnParam {
        let settings = &self.core().settings;
        ConnParam {
            private_data: private_data.to_vec(),
            responder_resources: settings.rd_atomic,
            initiator_depth: settings.rd_atomic,
            retry_count: settings.retry_cnt,
            rnr_retry: settings.rnr_retry,
            qpn: self.qpn(),
            ..ConnParam::default()
        }
    }

    pub(crate) fn cm_transport(&self) -> CmTransport {
        if T::TRANSPORT == Transport::Uc { CmTransport::Uc } else { CmTransport::Rc }
    }

    /// Copies the settings of the queue pair to the id.
    pub(crate) fn prepare(&self, id: &CmId) {
        let settings = &self.core().settings;
        id.set_options(|options| {
            options.tos = settings.traffic_class;
            options.ack_timeout = Some(settings.timeout);
            options.min_rnr_timer = Some(settings.min_rnr_timer);
        });
    }

    /// Moves the queue pair to RTR and RTS with the negotiated attributes. READ depths are at most those of `param`.
    pub(crate) fn follow(&self, id: &CmId, param: &ConnParam) -> Result<(), Error> {
        for state in [QpState::Rtr, QpState::Rts] {
            let (mut attr, mask) = id.qp_attributes(state).map_err(Error::in_call("connect"))?;
            attr.max_dest_rd_atomic = attr.max_dest_rd_atomic.min(param.responder_resources);
            attr.max_rd_atomic = attr.max_rd_atomic.min(param.initiator_depth);
            self.modify(&attr, mask)?;
        }
        Ok(())
    }
}
