//! The protocol of a case, and the kernel's device for it.

use std::time::Duration;

use super::Failure;
use super::guest::Guest;
use super::siw;

const LIMIT: Duration = Duration::from_secs(60);

/// The protocol of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// RoCEv2: the kernel's Soft-RoCE.
    Roce,
    /// RDMA over TCP: the kernel's SoftiWARP.
    Iwarp,
}

impl Wire {
    /// The kernel's device.
    pub(crate) fn device(self) -> &'static str {
        match self {
            Self::Roce => "rxe0",
            Self::Iwarp => "siw0",
        }
    }

    /// `FERROCE_WIRE`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Roce => "roce",
            Self::Iwarp => "iwarp",
        }
    }

    /// The transport protocol below it, as the number in the IP header.
    pub(crate) fn ip_protocol(self) -> u8 {
        match self {
            Self::Roce => 17,
            Self::Iwarp => 6,
        }
    }

    /// Makes its device the only one of the guest, because rdma_cm uses whichever has the address.
    pub(crate) fn enter(self, guest: &Guest) -> Result<(), Failure> {
        let script = match self {
            Self::Roce => "rdma link delete siw0; rdma link add rxe0 type rxe netdev eth0".to_owned(),
            Self::Iwarp => format!(
                "rdma link delete rxe0; grep -q '^siw ' /proc/modules || insmod /{}; \
                 [ -e /sys/class/infiniband/siw0 ] || rdma link add siw0 type siw netdev eth0",
                siw::PLACE
            ),
        };
        let answer = guest.run(0, &script, LIMIT)?;
        match answer.status {
            0 => Ok(()),
            _ => Err(Failure::Broken(format!("making {} in the guest: {}", self.device(), answer.text))),
        }
    }

    /// A command that prints the kernel's counters of retransmissions.
    pub(crate) fn retry_counters(self) -> &'static str {
        match self {
            Self::Roce => {
                "cd /sys/class/infiniband/rxe0/ports/1; cat hw_counters/completer_retry_err cm_tx_retries/*"
            }
            Self::Iwarp => "awk '/^Tcp: [0-9]/ { print $13 }' /proc/net/snmp",
        }
    }
}
