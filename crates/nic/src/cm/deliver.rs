//! Delivery: turns events of the protocol into events of ids.

use super::event::{CmEvent, CmEventKind, ConnParam, UdParam};
use super::service::{Garbage, Managed};
use super::{CmId, UDP_QKEY};
use ferroce_os::log;
use ferroce_proto::cm::{CommId, Event, Request, Response, SidrStatus};
use std::fmt;
use std::sync::Arc;

impl Managed {
    /// Delivers all events of the state machine to the channels.
    pub(crate) fn deliver(&mut self) {
        while let Some(event) = self.cm.poll_event() {
            self.deliver_one(event);
        }
    }

    fn deliver_one(&mut self, event: Event) {
        match event {
            Event::Request(request) => self.deliver_request(request),
            Event::Response(response) => {
                let id = response.id;
                self.raise(id, CmEventKind::ConnectResponse, 0, |e| e.conn = response_param(response));
            }
            Event::Established { id } => {
                self.proven(id);
                self.raise(id, CmEventKind::Established, 0, |_| {});
            }
            Event::Rejected { id, reason, private_data } => {
                self.explain(id, format_args!("was rejected with reason {}: {}", reason.0, reason.text()));
                self.raise(id, CmEventKind::Rejected, reason.0.into(), |e| {
                    e.conn.private_data = private_data
                });
                self.forget(id);
            }
            Event::Unreachable { id } => {
                self.explain(
                    id,
                    format_args!(
                        "was not completed in time: nobody is at that address, or the program there does not accept or confirm it"
                    ),
                );
                self.raise(id, CmEventKind::Unreachable, -libc::ETIMEDOUT, |_| {});
                self.forget(id);
            }
            Event::Disconnected { id, timed_out } => {
                let status = if timed_out { -libc::ETIMEDOUT } else { 0 };
                self.raise(id, CmEventKind::Disconnected, status, |_| {});
            }
            Event::TimewaitExit { id } => {
                self.raise(id, CmEventKind::TimewaitExit, 0, |_| {});
                self.forget(id);
            }
            Event::Answered { id, path, status, qpn, qkey, private_data } => {
                let ud = UdParam { private_data, vector: path.vector(), qpn, qkey };
                match status {
                    SidrStatus::SUCCESS => {
                        self.raise(id, CmEventKind::Established, 0, |e| e.ud = Some(ud));
                    }
                    SidrStatus(code) => {
                        self.raise(id, CmEventKind::Unreachable, code.into(), |e| e.ud = Some(ud));
                    }
                }
                self.ids.remove(&id);
            }
        }
    }

    /// Reports why a connection was not made.
    fn explain(&mut self, comm: CommId, why: fmt::Arguments<'_>) {
        let Some(id) = self.upgrade(comm) else { return };
        let space = id.space();
        match id.peer_addr() {
            Some(peer) => log::completion(format_args!("connection to {peer} in port space {space:?} {why}")),
            None => log::completion(format_args!("connection in port space {space:?} {why}")),
        }
    }

    /// Removes a connection that has ended.
    fn forget(&mut self, id: CommId) {
        self.ids.remove(&id);
        self.forget_shut(id);
    }

    fn deliver_request(&mut self, request: Request) {
        let listener = self.listeners.get(&request.listener).and_then(std::sync::Weak::upgrade);
        let Some(listener) = listener else {
            return self.cm.release(request.id, crate::link::now());
        };
        let comm = request.id;
        let id = CmId::from_request(&listener, &request);
        self.ids.insert(comm, Arc::downgrade(&id));
        let mut event = CmEvent::new(CmEventKind::ConnectRequest, 0, id);
        event.listener = Some(Arc::downgrade(&listener));
        if request.transport.is_none() {
            event.ud = Some(UdParam {
                private_data: request.private_data.clone(),
                vector: request.path.vector(),
                qpn: request.remote_qpn,
                qkey: UDP_QKEY,
            });
        }
        event.conn = request_param(request);
        self.push(&listener, event);
        self.drop_later(Garbage::Id(listener));
    }

    fn upgrade(&mut self, comm: CommId) -> Option<Arc<CmId>> {
        let id = self.ids.get(&comm)?.upgrade()?;
        self.drop_later(Garbage::Id(id.clone()));
        Some(id)
    }

    fn raise(&mut self, comm: CommId, kind: CmEventKind, status: i32, fill: impl FnOnce(&mut CmEvent)) {
        let Some(id) = self.upgrade(comm).filter(|id| !id.is_removed()) else { return };
        let mut event = CmEvent::new(kind, status, id.clone());
        fill(&mut event);
        self.push(&id, event);
    }

    fn push(&mut self, to: &CmId, event: CmEvent) {
        if let Some(unwanted) = to.queue().push(event) {
            self.drop_later(Garbage::Event(Box::new(unwanted)));
        }
    }
}

fn request_param(request: Request) -> ConnParam {
    ConnParam {
        private_data: request.private_data,
        responder_resources: request.responder_resources,
        initiator_depth: request.initiator_depth,
        flow_control: request.flow_control,
        retry_count: request.retry_count,
        rnr_retry: request.rnr_retry,
        srq: request.srq,
        qpn: request.remote_qpn,
        qkey: None,
        ece: request.ece,
    }
}

fn response_param(response: Response) -> ConnParam {
    ConnParam {
        private_data: response.private_data,
        responder_resources: response.responder_resources,
        initiator_depth: response.initiator_depth,
        flow_control: response.flow_control,
        retry_count: 0,
        rnr_retry: response.rnr_retry,
        srq: response.srq,
        qpn: response.remote_qpn,
        qkey: None,
        ece: response.ece,
    }
}
