//! Destinations of datagrams.

use crate::error::Error;
use crate::macros::debug;
use crate::pd::Pd;
use ferroce_proto::verbs::{AddressVector, UdTarget};
use ferroce_proto::{Qkey, Qpn};
use std::sync::Arc;

/// The address of a datagram queue pair or a multicast group. Cheap to clone.
#[derive(Clone)]
pub struct AddressHandle {
    nic: Arc<ferroce_nic::AddressHandle>,
    qpn: Qpn,
    qkey: Qkey,
}

impl AddressHandle {
    /// Resolves an address vector. Use it for attributes that [`Pd::address_handle`] does not set.
    pub fn create(pd: &Pd, vector: &AddressVector, qpn: Qpn, qkey: Qkey) -> Result<Self, Error> {
        let nic = pd.nic.create_address_handle(vector).map_err(Error::in_call("create_ah"))?;
        Ok(AddressHandle { nic: Arc::new(nic), qpn, qkey })
    }

    /// The address vector.
    pub fn vector(&self) -> &AddressVector {
        self.nic.vector()
    }

    /// The destination for a work request.
    pub fn target(&self) -> UdTarget {
        UdTarget { route: *self.nic.route(), qpn: self.qpn, qkey: self.qkey }
    }
}

debug!(AddressHandle, |this| "AddressHandle(QP {} at {})", this.qpn, this.vector().dgid.to_ip());
