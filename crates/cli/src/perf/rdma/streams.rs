//! How queue pairs are connected over iWARP: the server listens, and the client connects them one after the other with the
//! connection manager.

use super::super::control::{Control, STEP_TIMEOUT};
use super::super::handshake;
use super::queue_pair::QueuePair;
use super::refused;
use super::test_qp::TestQp;
use crate::failure::Failure;
use ferroce::{Connection, Connector, Device, Listener, Rc};
use serde::{Deserialize, Serialize};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

/// Descriptors of a connection: its socket, and an event channel with its counter.
const DESCRIPTORS_EACH: u64 = 3;
/// Other descriptors that a side needs.
const OTHER_DESCRIPTORS: u64 = 256;

/// The address at which a server listens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Address {
    at: SocketAddr,
    /// First private data of each connection, to recognise foreign ones.
    nonce: u64,
}

/// The private data of the connection of a queue pair.
fn greeting(nonce: u64, qp: usize) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&nonce.to_be_bytes());
    bytes[8..].copy_from_slice(&(qp as u64).to_be_bytes());
    bytes
}

/// A server's listener.
pub(super) struct Streams {
    listener: Listener,
    nonce: u64,
}

impl Streams {
    /// Listens on a free port of this address.
    pub(super) fn listen(device: &Device, address: IpAddr, control: &Control) -> Result<Streams, Failure> {
        // Keeps the scope of a link-local address.
        let met_on = control.local_address(0);
        let at = if met_on.ip() == address { met_on } else { SocketAddr::new(address, 0) };
        let listener = Listener::bind(device, at).map_err(refused)?;
        let nonce = RandomState::new().hash_one(listener.local_addr().port());
        Ok(Streams { listener, nonce })
    }

    pub(super) fn address(&self) -> Address {
        Address { at: self.listener.local_addr(), nonce: self.nonce }
    }

    /// Accepts the connection of each queue pair, in order; refuses those of others.
    pub(super) fn accept(&self, qps: &[TestQp]) -> Result<Vec<Connection<Rc>>, Failure> {
        let accept = |(n, qp): (usize, &TestQp)| {
            let end = Instant::now() + STEP_TIMEOUT;
            loop {
                let left = end.saturating_duration_since(Instant::now());
                let request = self.listener.accept_timeout(left).map_err(|error| {
                    Failure::new(format!("the connection of queue pair {n} did not arrive: {error}"))
                })?;
                if request.private_data() == greeting(self.nonce, n) {
                    return request.accept(reliable(&qp.queue_pair)?, &[]).map_err(refused);
                }
            }
        };
        qps.iter().enumerate().map(accept).collect()
    }
}

/// Client: connects each queue pair to the server's listener.
pub(super) fn connect(
    device: &Device,
    qps: &[TestQp],
    server: Address,
    control: &mut Control,
) -> Result<Vec<Connection<Rc>>, Failure> {
    // The scope of a link-local address is valid on this host only.
    let known = control.peer_address(server.at.port());
    let to = if known.ip() == server.at.ip() { known } else { server.at };
    let connect = |(n, qp): (usize, &TestQp)| {
        let connector = Connector::new(device, to).private_data(&greeting(server.nonce, n));
        connector.connect(reliable(&qp.queue_pair)?).map_err(|error| {
            // If the server has sent a reason, it is more precise.
            let ours = || Failure::new(format!("queue pair {n} cannot be connected to {to}: {error}"));
            if control.is_readable() { handshake::interrupted(control) } else { ours() }
        })
    };
    qps.iter().enumerate().map(connect).collect()
}

fn reliable(qp: &QueuePair) -> Result<&ferroce::RcQp, Failure> {
    match qp {
        QueuePair::Rc(qp) => Ok(qp),
        _ => Err(Failure::new("iWARP has reliable connections only")),
    }
}

/// Connections that a side may have, by its limit of descriptors (`ulimit -Hn`), and this limit.
pub(crate) fn most_connections() -> (u64, u64) {
    let hard = rustix::process::getrlimit(rustix::process::Resource::Nofile).maximum.unwrap_or(u64::MAX);
    (hard.saturating_sub(OTHER_DESCRIPTORS) / DESCRIPTORS_EACH, hard)
}
