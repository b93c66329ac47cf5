//! Requesting, accepting, rejecting and ending connections.

use super::event::{ConnParam, UDP_QKEY};
use super::service::Managed;
use super::stream::StreamCm;
use super::{CmId, CmTransport};
use crate::error::{CmRefusal, Error};
use crate::link::now;
use ferroce_proto::cm::{
    Accept, Answer, CmError, CommId, Connect, IpHeader, Query, RejectReason, ServiceId, SidrStatus,
};
use std::sync::Arc;

impl CmId {
    /// Requests a connection, or queries the datagram service, at the resolved destination. The outcome is an event:
    /// `ConnectResponse`, `Established` (datagrams), `Rejected` or `Unreachable`.
    pub fn connect(self: &Arc<Self>, transport: CmTransport, param: &ConnParam) -> Result<(), Error> {
        self.usable()?;
        let mut state = self.state.lock();
        let (Some(mut path), true) = (state.path, state.is_routed) else {
            return Err(CmRefusal::WrongState { why: "the route is not resolved" }.into());
        };
        // After the resolution, the source address may have moved in the GID table, or been removed.
        let still = self.service.addresses.find(path.sgid);
        let gone = || CmRefusal::AddressNotAvailable { address: path.sgid.to_ip() };
        path.sgid_index = still.ok_or_else(gone)?.0;
        state.path = Some(path);
        if let Some(streams) = &self.service.streams {
            return self.connect_stream(streams, state, param);
        }
        let (Some(local), Some(peer), None) = (state.local, self.peer_addr(), state.comm) else {
            return Err(CmRefusal::WrongState { why: "it is connected already" }.into());
        };
        let service = ServiceId::of_port(self.space, peer.port());
        let ip = IpHeader { sport: local.port(), src: local.ip(), dst: peer.ip() };
        let ip = service.has_ip_header().then_some(ip);
        let (response_timeout, max_retries) = (state.options.response_timeout, state.options.max_retries);
        let weak = Arc::downgrade(self);
        let secret = state.secret.as_ref();
        let qp = self.service.engine.device.find_qp(param.qpn).map(|(_, qp)| qp);
        let comm = self.service.manage(|managed| {
            let private_data = &param.private_data[..];
            let comm = if self.is_datagram() {
                let query = Query { service, path, ip, private_data, response_timeout, max_retries, secret };
                managed.cm.query(&query, now())?
            } else {
                let request = Connect {
                    service,
                    path,
                    ip,
                    transport,
                    qpn: param.qpn,
                    responder_resources: param.responder_resources,
                    initiator_depth: param.initiator_depth,
                    retry_count: param.retry_count,
                    rnr_retry: param.rnr_retry,
                    flow_control: param.flow_control,
                    srq: param.srq,
                    ece: param.ece,
                    private_data,
                    response_timeout,
                    max_retries,
                    secret,
                };
                managed.connect(&request, qp.as_ref())?
            };
            managed.ids.insert(comm, weak);
            Ok::<_, CmRefusal>(comm)
        })?;
        state.comm = Some(comm);
        Ok(())
    }

    /// Accepts the connection request of this id, or answers the query for a datagram service. The queue pair of a connection
    /// should be in RTR or RTS: the peer may send immediately.
    pub fn accept(&self, param: &ConnParam) -> Result<(), Error> {
        if let Some(streams) = self.streams()? {
            return self.accept_stream(streams, param);
        }
        let private_data = &param.private_data[..];
        if self.is_datagram() {
            let (qkey, status) = (param.qkey.unwrap_or(UDP_QKEY), SidrStatus::SUCCESS);
            let answer = Answer { status, qpn: param.qpn, qkey, private_data };
            return self.with_comm(|managed, comm| managed.cm.answer(comm, &answer));
        }
        let found = self.service.engine.device.find_qp(param.qpn);
        self.with_comm(|managed, comm| {
            let accept = Accept {
                qpn: param.qpn,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                rnr_retry: param.rnr_retry,
                flow_control: param.flow_control,
                srq: param.srq,
                ece: param.ece,
                private_data,
            };
            let accepted = managed.accept(comm, &accept, found.as_ref().map(|(_, qp)| qp.clone()));
            // Before the answer leaves: otherwise a peer on this host could write directly to memory while its packets are still dropped.
            found.inspect(|(engine, qp)| engine.withdraw_if_shut(qp));
            accepted
        })
    }

    /// Rejects a connection request, or the reply to our own.
    pub fn reject(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), Error> {
        if let Some(streams) = self.streams()? {
            return self.reject_stream(streams, private_data);
        }
        self.with_comm(|managed, comm| {
            if self.is_datagram() {
                let status = SidrStatus::REJECT;
                return managed.cm.answer(comm, &Answer { status, private_data, ..Answer::default() });
            }
            managed.cm.reject(comm, reason, &[], private_data, now())
        })
    }

    /// Sends the RTU after `ConnectResponse`: the queue pair is ready.
    pub fn establish(&self) -> Result<(), Error> {
        if self.streams()?.is_some() {
            return Err(CmRefusal::WrongState { why: "iWARP has no `ConnectResponse`" }.into());
        }
        self.with_comm(|managed, comm| managed.cm.establish(comm, &[]))
    }

    /// Reports that data arrived before the peer's RTU: `Established` follows. Not an error if the RTU has arrived meanwhile.
    pub fn notify_established(&self) -> Result<(), Error> {
        // iWARP reports `Established` with the first FPDU.
        if self.streams()?.is_some() {
            return Ok(());
        }
        self.with_comm(|managed, comm| match managed.cm.notify_established(comm) {
            Err(CmError::WrongState) => Ok(()),
            other => other,
        })
    }

    /// Ends the connection: `Disconnected` follows, unless the peer was first; later `TimewaitExit`.
    pub fn disconnect(&self) -> Result<(), Error> {
        if let Some(streams) = self.streams()? {
            return self.disconnect_stream(streams);
        }
        if self.is_datagram() {
            return Err(CmRefusal::WrongState { why: "datagram services are not connected" }.into());
        }
        self.with_comm(|managed, comm| match managed.cm.disconnect(comm, &[], now()) {
            // TIMEWAIT is over: the connection has ended, as the caller wants.
            Err(CmError::NoSuchConnection) => Ok(()),
            other => other,
        })
    }

    /// The connections of iWARP, if that is the wire.
    fn streams(&self) -> Result<Option<&StreamCm>, Error> {
        self.usable()?;
        Ok(self.service.streams.as_ref())
    }

    fn with_comm<E>(&self, work: impl FnOnce(&mut Managed, CommId) -> Result<(), E>) -> Result<(), Error>
    where
        CmRefusal: From<E>,
    {
        self.usable()?;
        let comm = self.state.lock().comm.ok_or(CmRefusal::WrongState { why: "it has no connection" })?;
        self.service.manage(|managed| work(managed, comm)).map_err(CmRefusal::from)?;
        Ok(())
    }
}
