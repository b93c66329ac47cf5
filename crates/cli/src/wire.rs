//! The option `--wire`: the wire protocol of the device.

use crate::devices::settings;
use crate::failure::Failure;
use clap::ValueEnum;
use ferroce_nic::{Config, Wire};
use serde::{Deserialize, Serialize};

/// The variable that chooses the wire.
const VARIABLE: &str = "FERROCE_WIRE";

/// The wire of a command line. Without the option, `FERROCE_WIRE` decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct WireArg {
    /// Protocol of the device: RoCEv2 over UDP, or iWARP over TCP. Both ends of a connection need the same [default: roce].
    #[arg(long, value_name = "WIRE")]
    wire: Option<WireChoice>,
}

/// A wire that can be chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum WireChoice {
    /// RoCEv2: UDP port 4791.
    #[default]
    Roce,
    /// iWARP: TCP, connections by rdma_cm only.
    Iwarp,
}

impl From<WireChoice> for Wire {
    fn from(choice: WireChoice) -> Wire {
        match choice {
            WireChoice::Roce => Wire::Roce,
            WireChoice::Iwarp => Wire::Iwarp,
        }
    }
}

impl WireArg {
    /// The settings with this wire.
    pub(crate) fn apply_to(self, config: Config) -> Config {
        config.with(|config| config.wire = self.wire.map_or(config.wire, Wire::from))
    }

    /// The wire of the option, or of the variable if there is no option. `None` without either.
    pub(crate) fn given(self) -> Result<Option<WireChoice>, Failure> {
        if self.wire.is_some() || std::env::var_os(VARIABLE).is_none() {
            return Ok(self.wire);
        }
        let is_iwarp = settings()?.wire == Wire::Iwarp;
        Ok(Some(if is_iwarp { WireChoice::Iwarp } else { WireChoice::Roce }))
    }

    /// The wire to use.
    pub(crate) fn choice(self) -> Result<WireChoice, Failure> {
        Ok(self.given()?.unwrap_or_default())
    }

    /// The variable for a program, if the option was given.
    pub(crate) fn variable(self) -> Option<(&'static str, String)> {
        self.wire.map(|wire| (VARIABLE, crate::name_of(wire)))
    }
}

/// The protocol of a device, for people.
pub(crate) fn describe(wire: Wire) -> &'static str {
    match wire {
        Wire::Iwarp => "iWARP (TCP), in software",
        _ => "RoCEv2 (UDP port 4791), in software",
    }
}
