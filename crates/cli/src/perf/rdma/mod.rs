//! The RDMA tests.

use super::affinity::{Lonely, Side};
use super::control::Control;
use super::handshake::{self, Report};
use super::measure::{Budget, Measurement};
use super::params::Params;
use crate::failure::Failure;
use serde::{Deserialize, Serialize};

/// What one side decides for itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Local {
    /// Set where both sides share this machine: keep to the side's core while polling.
    pub(crate) pin: Option<Side>,
    /// Entry of the GID table to send from.
    pub(crate) gid_index: Option<u8>,
    /// Whether polling must give way.
    pub(crate) lonely: Lonely,
}

impl Local {
    /// Looks at the machine; call it before anything is pinned.
    pub(crate) fn new(pin: Option<Side>, gid_index: Option<u8>) -> Local {
        Local { pin, gid_index, lonely: Lonely::new() }
    }
}

/// Queue pairs and memory of one side.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Offer {}

const MISSING: &str = "this build of ferroce has no RDMA tests yet";

/// Whether this build can run the test at all.
pub(crate) fn can_run(params: &Params) -> Result<(), String> {
    if params.test.is_baseline() { Ok(()) } else { Err(MISSING.into()) }
}

/// Client of all RDMA tests.
pub(crate) fn run(
    _control: &mut Control,
    _params: &Params,
    _budget: Budget,
    _offer: &handshake::Offer,
    local: &Local,
) -> Result<Measurement, Failure> {
    Err(Failure::new(format!("{MISSING} (GID index {:?})", local.gid_index)))
}

/// Server of all RDMA tests.
pub(crate) fn serve(_control: &mut Control, _params: &Params, _local: &Local) -> Result<Report, Failure> {
    Err(Failure::new(MISSING))
}
