//! Protection domains.

use crate::address::AddressHandle;
use crate::cq::Cq;
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::memory::{Buffer, RegionBuilder};
use crate::qp::{QpBuilder, Rc, Uc, Ud};
use crate::srq::Srq;
use ferroce_proto::PdId;
use ferroce_proto::verbs::AddressVector;
use std::fmt;
use std::sync::Arc;

/// A protection domain: regions, queue pairs, shared receive queues and address handles of one domain work together,
/// and not with those of another.
#[derive(Clone)]
pub struct Pd {
    pub(crate) nic: Arc<ferroce_nic::Pd>,
    pub(crate) device: Device,
}

impl Pd {
    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its number within the device: what error messages name it by.
    pub fn id(&self) -> PdId {
        self.nic.id()
    }

    /// Memory that peers may touch, if the rights say so.
    pub fn region(&self, len: usize) -> RegionBuilder {
        RegionBuilder::new(self, len)
    }

    /// Memory for a message of up to `capacity` bytes.
    pub fn buffer(&self, capacity: usize) -> Result<Buffer, Error> {
        Buffer::new(self, capacity)
    }

    /// A reliable connection, whose completions go to `cq`.
    pub fn rc(&self, cq: &Cq) -> QpBuilder<Rc> {
        QpBuilder::new(self, cq)
    }

    /// An unreliable connection.
    pub fn uc(&self, cq: &Cq) -> QpBuilder<Uc> {
        QpBuilder::new(self, cq)
    }

    /// A datagram queue pair.
    pub fn ud(&self, cq: &Cq) -> QpBuilder<Ud> {
        QpBuilder::new(self, cq)
    }

    /// A queue of up to `depth` receives, each with up to `sges` entries, that many queue pairs take from.
    pub fn srq(&self, depth: u32, sges: u32) -> Result<Srq, Error> {
        Srq::create(self, depth, sges)
    }

    /// How to reach a datagram queue pair (or a group, see [`Endpoint::multicast`]) from entry `gid_index` of the GID
    /// table.
    pub fn address_handle(&self, to: &Endpoint, gid_index: u8) -> Result<AddressHandle, Error> {
        let vector =
            AddressVector { dgid: to.gid, sgid_index: gid_index, port: 1, ..AddressVector::default() };
        AddressHandle::create(self, &vector, to.qpn, to.qkey)
    }
}

impl fmt::Debug for Pd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pd({})", self.id().0)
    }
}
