//! Offering a connection.

use super::{Connection, failure, next_answer};
use crate::device::Device;
use crate::error::Error;
use crate::qp::{Connected, Qp};
use ferroce_nic::{CmChannel, CmEvent, CmEventKind, CmId, ConnParam, PortSpace, Secret};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// A connection to be. Nothing happens before [`Connector::connect`].
#[must_use = "nothing happens before `connect`"]
#[derive(Clone)]
pub struct Connector {
    device: Device,
    to: SocketAddr,
    from: Option<SocketAddr>,
    private_data: Vec<u8>,
    timeout: Option<Duration>,
    secret: Option<Secret>,
}

/// An offer that is under way.
pub(super) struct Offer<T: Connected> {
    // Before the channel, whose end drops what waits there.
    id: OwnedId,
    pub(super) channel: CmChannel,
    qp: Qp<T>,
    param: ConnParam,
}

/// An id that is closed with its owner.
pub(super) struct OwnedId(pub(super) Arc<CmId>);

impl Drop for OwnedId {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Connector {
    /// Will connect to this address and port.
    pub fn new(device: &Device, to: SocketAddr) -> Self {
        let (device, private_data) = (device.clone(), Vec::new());
        Connector { device, to, from: None, private_data, timeout: None, secret: None }
    }

    /// From this local address, and port if it is not 0; else from wherever the system would.
    pub fn from(mut self, local: SocketAddr) -> Self {
        self.from = Some(local);
        self
    }

    /// Both ends must prove to have this key: whoever listens without it is refused, and refuses. Else with the key of
    /// `FERROCE_CM_KEY`, if that is set.
    pub fn secret(mut self, key: Secret) -> Self {
        self.secret = Some(key);
        self
    }

    /// Bytes for the program that listens: at most 56, and 36 where a key is in use.
    pub fn private_data(mut self, data: &[u8]) -> Self {
        self.private_data = data.to_vec();
        self
    }

    /// How long to wait for an answer, roughly; else 69 seconds. At least 0.3 and at most 275.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Offers the connection and waits until it is made or refused. `qp` is in INIT, as it was created: receives can be,
    /// and should be, posted before.
    pub fn connect<T: Connected>(&self, qp: &Qp<T>) -> Result<Connection<T>, Error> {
        let offer = self.offer(qp)?;
        let event = next_answer(&offer.channel)?;
        offer.finish(event)
    }

    pub(super) fn offer<T: Connected>(&self, qp: &Qp<T>) -> Result<Offer<T>, Error> {
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
        Ok(Offer { id, channel, qp: qp.clone(), param })
    }
}

impl<T: Connected> Offer<T> {
    /// The answer has come.
    pub(super) fn finish(self, event: CmEvent) -> Result<Connection<T>, Error> {
        if event.kind != CmEventKind::ConnectResponse {
            return Err(failure(&event));
        }
        let Offer { id, channel, qp, param } = self;
        qp.follow(&id.0, &param)?;
        id.0.establish().map_err(Error::in_call("connect"))?;
        Ok(Connection::new(id, channel, qp, event.conn.private_data.clone()))
    }
}

/// Events of resolution are there when the call returns.
fn expect(channel: &CmChannel, kind: CmEventKind) -> Result<(), Error> {
    let event = next_answer(channel)?;
    if event.kind == kind { Ok(()) } else { Err(failure(&event)) }
}

/// Sixteen times 4.096 us * 2^n is about this.
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
