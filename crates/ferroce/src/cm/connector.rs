//! Sending connection requests.

use super::{Connection, failure, next_answer};
use crate::device::Device;
use crate::error::Error;
use crate::macros::setters;
use crate::qp::{Connected, Qp};
use ferroce_nic::{CmChannel, CmEvent, CmEventKind, CmId, ConnParam, PortSpace, Secret};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Settings of a connection request. [`Connector::connect`] sends it.
#[must_use = "`connect` sends the request"]
#[derive(Clone)]
pub struct Connector {
    device: Device,
    to: SocketAddr,
    from: Option<SocketAddr>,
    private_data: Vec<u8>,
    timeout: Option<Duration>,
    secret: Option<Secret>,
}

/// A connection request without an answer yet.
pub(super) struct PendingConnect<T: Connected> {
    // Dropped before the channel: closing the channel drops its events.
    id: OwnedId,
    pub(super) channel: CmChannel,
    qp: Qp<T>,
    param: ConnParam,
}

/// Closes the id when dropped.
pub(super) struct OwnedId(pub(super) Arc<CmId>);

impl Drop for OwnedId {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Connector {
    /// A connection request to this address and port.
    pub fn new(device: &Device, to: SocketAddr) -> Self {
        let (device, private_data) = (device.clone(), Vec::new());
        Connector { device, to, from: None, private_data, timeout: None, secret: None }
    }

    setters! {
        /// Local address, and local port unless it is 0. The default is the system's choice.
        from(local: SocketAddr) |b| b.from = Some(local);
        /// Key for mutual authentication. A connection is established only if the listener has the same key. The default is the
        /// key of `FERROCE_CM_KEY`, if that is set.
        secret(key: Secret) |b| b.secret = Some(key);
        /// Private data for the listener: at most 56 bytes, 36 with a key, 508 on iWARP.
        private_data(data: &[u8]) |b| b.private_data = data.to_vec();
        /// Approximate time to wait for an answer, from 0.3 s to 275 s; the default is 69 s, on iWARP 10 s.
        timeout(timeout: Duration) |b| b.timeout = Some(timeout);
    }

    /// Sends the request and waits until the connection is established or rejected. `qp` is in INIT, as created. Post
    /// receives before the call.
    pub fn connect<T: Connected>(&self, qp: &Qp<T>) -> Result<Connection<T>, Error> {
        let pending = self.start(qp)?;
        let event = next_answer(&pending.channel)?;
        pending.finish(event)
    }

    pub(super) fn start<T: Connected>(&self, qp: &Qp<T>) -> Result<PendingConnect<T>, Error> {
        let call = Error::in_call("connect");
        let nic = self.device.nic();
        let channel = nic.create_cm_channel().map_err(&call)?;
        let id = OwnedId(nic.create_cm_id(&channel, PortSpace::Tcp, 0).map_err(&call)?);
        qp.prepare(&id.0);
        if let Some(timeout) = self.timeout {
            id.0.set_options(|options| options.response_timeout = Some(exponent_of(timeout)));
        }
        if let Some(key) = &self.secret {
            id.0.set_secret(key.clone());
        }
        id.0.resolve_addr(self.from, self.to).map_err(&call)?;
        expect(&channel, CmEventKind::AddrResolved)?;
        id.0.resolve_route().map_err(&call)?;
        expect(&channel, CmEventKind::RouteResolved)?;
        let param = qp.conn_param(&self.private_data);
        id.0.connect(qp.cm_transport(), &param).map_err(&call)?;
        Ok(PendingConnect { id, channel, qp: qp.clone(), param })
    }
}

impl<T: Connected> PendingConnect<T> {
    /// Evaluates the answer.
    pub(super) fn finish(self, event: CmEvent) -> Result<Connection<T>, Error> {
        let PendingConnect { id, channel, qp, param } = self;
        match event.kind {
            CmEventKind::ConnectResponse => {
                qp.follow(&id.0, &param)?;
                id.0.establish().map_err(Error::in_call("connect"))?;
            }
            // iWARP: the connection manager has connected the queue pair.
            CmEventKind::Established => {}
            _ => return Err(failure(&event)),
        }
        Ok(Connection::new(id, channel, qp, event.conn.private_data.clone()))
    }
}

/// The event of a resolution. It is available when the call returns.
fn expect(channel: &CmChannel, kind: CmEventKind) -> Result<(), Error> {
    let event = next_answer(channel)?;
    if event.kind == kind { Ok(()) } else { Err(failure(&event)) }
}

/// The exponent n for which 16 * 4.096 us * 2^n is about `timeout`.
fn exponent_of(timeout: Duration) -> u8 {
    let fits = |n: &u8| Duration::from_nanos((4096 << *n) * 16) >= timeout;
    (12..22).find(fits).unwrap_or(22)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_outs_become_exponents() {
        let of = |secs| exponent_of(Duration::from_secs(secs));
        assert_eq!([of(0), of(1), of(60), of(69), of(100_000)], [12, 14, 20, 21, 22]);
    }
}
