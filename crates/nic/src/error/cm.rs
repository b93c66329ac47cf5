//! Why a call of the connection manager was refused.

use ferroce_proto::cm::CmError;
use ferroce_shm::registry::{Holder, PortError, RegistryError};
use std::io;

/// Why a call of the connection manager was refused. What goes wrong later comes as an event.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmRefusal {
    /// Somebody has the port.
    #[error("{0}")]
    AddressInUse(Holder),
    /// The address is not in the GID table.
    #[error("{address} is not an address of this device; `ferroce gids` lists them")]
    AddressNotAvailable {
        /// The address.
        address: std::net::IpAddr,
    },
    /// Every port of the space is taken.
    #[error("all ports that can be given out are taken")]
    PortsExhausted,
    /// There is no way to the destination.
    #[error("no way to {destination}: {source}")]
    Unreachable {
        /// The destination.
        destination: std::net::IpAddr,
        /// The error of the system.
        source: io::Error,
    },
    /// The id has not come so far, or has come too far.
    #[error("the id is not in a state for this: {why}")]
    WrongState {
        /// What is missing.
        why: &'static str,
    },
    /// The device that the id had is gone.
    #[error("the device of the id is gone; only its end is left")]
    DeviceRemoved,
    /// The protocol refused.
    #[error(transparent)]
    Protocol(#[from] CmError),
    /// The table of ports cannot be used.
    #[error("the table of ports: {0}")]
    Registry(#[from] RegistryError),
    /// There is no table of ports, since the registry could not be opened when the device was.
    #[error("the registry of this user cannot be used, so there are no ports")]
    NoRegistry,
}

impl From<PortError> for CmRefusal {
    fn from(error: PortError) -> Self {
        match error {
            PortError::InUse(holder) => CmRefusal::AddressInUse(holder),
            PortError::Exhausted => CmRefusal::PortsExhausted,
            PortError::Registry(e) => CmRefusal::Registry(e),
        }
    }
}
