//! Protection domains.

use crate::address::AddressHandle;
use crate::cq::Cq;
use crate::device::Device;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::macros::debug;
use crate::memory::{Buffer, RegionBuilder};
use crate::qp::{QpBuilder, Rc, Uc, Ud};
use crate::srq::Srq;
use ferroce_nic::Prefetch;
use ferroce_proto::PdId;
use ferroce_proto::verbs::{AddressVector, Sge};
use std::sync::Arc;

/// A protection domain. Regions, windows, queue pairs, shared receive queues and address handles work together only within one
/// domain. Cheap to clone.
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

    /// Its number within the device. Error messages contain it.
    pub fn id(&self) -> PdId {
        self.nic.id()
    }

    /// A memory region of `len` bytes, for one-sided operations.
    pub fn region(&self, len: usize) -> RegionBuilder {
        RegionBuilder::new(self, len)
    }

    /// A buffer for one message of up to `capacity` bytes.
    pub fn buffer(&self, capacity: usize) -> Result<Buffer, Error> {
        Buffer::new(self, capacity)
    }

    /// Brings pages of on-demand regions in before the NIC accesses them. Fails if a page cannot be brought in.
    pub fn prefetch(&self, sges: &[Sge], how: Prefetch) -> Result<(), Error> {
        self.nic.prefetch(sges, how, true).map_err(Error::in_call("advise_mr"))
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

    /// A shared receive queue of up to `depth` receives with up to `sges` scatter/gather entries each.
    pub fn srq(&self, depth: u32, sges: u32) -> Result<Srq, Error> {
        Srq::create(self, depth, sges)
    }

    /// The address of a datagram queue pair (or of a multicast group, see [`Endpoint::multicast`]). `gid_index` selects the
    /// local address.
    pub fn address_handle(&self, to: &Endpoint, gid_index: u8) -> Result<AddressHandle, Error> {
        let vector =
            AddressVector { dgid: to.gid, sgid_index: gid_index, port: 1, ..AddressVector::default() };
        AddressHandle::create(self, &vector, to.qpn, to.qkey)
    }
}

debug!(Pd, |this| "Pd({})", this.id().0);
