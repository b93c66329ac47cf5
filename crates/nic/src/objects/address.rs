//! Address handles: the resolved destination of datagrams.

use super::pd::Pd;
use crate::error::Error;
use crate::quota::Permit;
use ferroce_proto::verbs::{AddressVector, Route};
use std::sync::Arc;

/// An address handle.
pub struct AddressHandle {
    _pd: Arc<Pd>,
    _permit: Permit,
    vector: AddressVector,
    route: Route,
}

impl Pd {
    /// Resolves an address.
    pub fn create_address_handle(self: &Arc<Self>, vector: &AddressVector) -> Result<AddressHandle, Error> {
        self.nic.only_on_roce("address handles: it has no datagrams")?;
        if vector.dgid.is_zero() {
            return Err(Error::Invalid { attribute: "dgid", why: "a RoCE address needs a destination GID" });
        }
        let (_permit, route) = (self.nic.quotas.address_handles.take()?, self.nic.resolve(vector, 0)?);
        Ok(AddressHandle { _pd: self.clone(), _permit, vector: *vector, route })
    }
}

impl AddressHandle {
    /// The address vector it was created from.
    pub fn vector(&self) -> &AddressVector {
        &self.vector
    }
    /// The route it resolved to.
    pub fn route(&self) -> &Route {
        &self.route
    }
}
