//! The option `--wire`: which protocol the device speaks.

use clap::ValueEnum;
use ferroce_nic::{Config, Wire};

/// The variable that chooses the wire.
const VARIABLE: &str = "FERROCE_WIRE";

/// The wire of a command line. Without the option, `FERROCE_WIRE` decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct WireArg {
    /// Protocol of the device: RoCEv2 over UDP, or iWARP over TCP. Both ends of a connection need the same [default: roce].
    #[arg(long, value_name = "WIRE")]
    wire: Option<WireChoice>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WireChoice {
    /// RoCEv2: UDP port 4791.
    Roce,
    /// iWARP: TCP, connections by rdma_cm only.
    Iwarp,
}

impl WireArg {
    /// The settings with this wire.
    pub(crate) fn apply_to(self, config: Config) -> Config {
        config.with(|config| match self.wire {
            Some(WireChoice::Roce) => config.wire = Wire::Roce,
            Some(WireChoice::Iwarp) => config.wire = Wire::Iwarp,
            None => {}
        })
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
