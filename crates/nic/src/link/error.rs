//! Why a link could not be opened.

use ferroce_shm::registry::RegistryError;
use std::io;
use std::net::SocketAddr;

/// Why a link could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Another program has the port.
    #[error(
        "{addr} is taken by {owner}: end that program, or have it name its addresses (FERROCE_ADDR=127.0.0.1), since \
         one that names none has all of them; then any other is yours (FERROCE_ADDR=127.0.0.2)"
    )]
    PortTaken {
        /// The requested address.
        addr: SocketAddr,
        /// Description of the process that has it.
        owner: String,
    },
    /// The machine does not have this address.
    #[error("{addr} is not an address of this machine (FERROCE_ADDR must name local addresses)")]
    NoSuchAddress {
        /// The requested address.
        addr: SocketAddr,
    },
    /// A socket call failed.
    #[error("{what}: {source}")]
    Socket {
        /// The failed operation.
        what: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The registry of this user's processes is unusable.
    #[error(transparent)]
    Registry(#[from] RegistryError),
}
