//! Address handles: where a datagram goes, looked up once.

use super::pd::Pd;
use crate::error::Error;
use ferroce_proto::verbs::{AddressVector, Route};
use std::sync::Arc;

/// An address handle.
pub struct AddressHandle {
    _pd: Arc<Pd>,
    vector: AddressVector,
    route: Route,
}

impl Pd {
    /// Resolves an address.
    pub fn create_address_handle(self: &Arc<Self>, vector: &AddressVector) -> Result<AddressHandle, Error> {
        self.nic.alive()?;
        if vector.dgid.is_zero() {
            return Err(Error::Invalid { attribute: "dgid", why: "a RoCE address needs a destination GID" });
        }
        let route = self.nic.resolve(vector, 0)?;
        Ok(AddressHandle { _pd: self.clone(), vector: *vector, route })
    }
}

impl AddressHandle {
    /// What it was made from.
    pub fn vector(&self) -> &AddressVector {
        &self.vector
    }
    /// What it resolved to.
    pub fn route(&self) -> &Route {
        &self.route
    }
}
