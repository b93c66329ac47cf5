//! Settings of one side.

use super::super::affinity::{Side, SingleCore};
use super::super::control::Control;
use super::super::params::{Params, Transport};
use crate::failure::Failure;
use crate::faults::FAULTS_VARIABLE;
use crate::wire::WireChoice;
use ferroce::{Config, Device, LinkChoice, Mtu};
use std::cell::OnceCell;
use std::net::IpAddr;

/// The variable that selects the link of a device.
pub(crate) const LINK_VARIABLE: &str = "FERROCE_LINK";

/// The variable that sets the largest path MTU of a device.
const MTU_VARIABLE: &str = "FERROCE_MTU";

/// This side's device and where it runs.
pub(crate) struct Local {
    /// Set if both sides share this machine: pin to the side's core while polling.
    pub(crate) pin: Option<Side>,
    /// Whether polling must yield.
    pub(crate) single_core: SingleCore,
    gid_index: Option<u8>,
    network: Network,
    device: OnceCell<Device>,
}

/// The network that the packets of both sides see.
#[derive(Clone, Default)]
pub(crate) enum Network {
    /// That of the environment; mostly loopback, whose packets may be longer than a path MTU.
    #[default]
    AsFound,
    /// Packets as between two hosts: none is longer than the largest path MTU, or the one that the user has set.
    PathMtu,
    /// The same, with these faults instead of those of the environment.
    Faults(String),
}

impl Network {
    /// The variable that selects it for another process.
    pub(crate) fn variable(&self) -> Option<(&'static str, &str)> {
        match self {
            Network::AsFound => None,
            Network::PathMtu => std::env::var_os(MTU_VARIABLE).is_none().then_some((MTU_VARIABLE, "4096")),
            Network::Faults(faults) => Some((FAULTS_VARIABLE, faults)),
        }
    }

    fn apply(&self, config: &mut Config) -> Result<(), Failure> {
        match self {
            Network::AsFound => {}
            Network::PathMtu => _ = config.mtu.get_or_insert(Mtu::B4096),
            // The type of the error is private to the NIC, so only its text is used.
            Network::Faults(faults) => {
                config.faults = Some(faults.parse().map_err(|error| cannot(format!("{error}")))?);
            }
        }
        Ok(())
    }
}

impl Local {
    /// Reads the machine's settings; call it before a thread is pinned.
    pub(crate) fn new(pin: Option<Side>, gid_index: Option<u8>) -> Local {
        Local {
            pin,
            gid_index,
            single_core: SingleCore::new(),
            network: Network::AsFound,
            device: OnceCell::new(),
        }
    }

    /// The settings of another thread of this side, with the same device.
    pub(crate) fn for_thread(&self) -> Result<Local, Failure> {
        let device = OnceCell::from(self.device()?.clone());
        Ok(Local { device, network: self.network.clone(), single_core: SingleCore::new(), ..*self })
    }

    /// With a device on this network.
    pub(crate) fn on(self, network: Network) -> Local {
        Local { network, ..self }
    }

    /// Opens the device if the test needs it. Must be called before this thread is pinned: the device's thread
    /// inherits our cores, and would have to share a single one with us.
    pub(crate) fn prepare(&self, params: &Params) -> Result<(), Failure> {
        if params.test.is_baseline() {
            return Ok(());
        }
        if self.device.get().is_none() {
            let device = open(params.wire, &self.network, self.pin.is_some())?;
            let _ = self.device.set(device);
        }
        match self.device()?.wire() == params.wire.into() {
            true => Ok(()),
            false => Err(Failure::new("this side has opened its device with the other wire")
                .advise("Start the server again for another wire")),
        }
    }

    /// The device. [`Local::prepare`] has opened it.
    pub(super) fn device(&self) -> Result<&Device, Failure> {
        self.device.get().ok_or_else(|| Failure::new("the RDMA device is not open yet"))
    }

    /// The address of this side's device on the path to the other side.
    pub(super) fn address(&self, control: &Control) -> Result<IpAddr, Failure> {
        let (gids, index) = (self.device()?.gids(), self.gid_index(control)?);
        let gone = || Failure::new("the addresses of the device have changed").advise("Run the test again");
        gids.get(usize::from(index)).map(|entry| entry.address).ok_or_else(gone)
    }

    /// The entry of the GID table to send from.
    pub(super) fn gid_index(&self, control: &Control) -> Result<u8, Failure> {
        let gids = self.device()?.gids();
        if let Some(index) = self.gid_index {
            let there = usize::from(index) < gids.len();
            return there.then_some(index).ok_or_else(|| {
                Failure::new(format!(
                    "GID index {index} (-x) does not exist: the table has {} entries",
                    gids.len()
                ))
                .advise("`ferroce gids` lists it")
            });
        }
        let met_on = control.local_address(0).ip();
        let alike = |ip: IpAddr| ip.is_loopback() && met_on.is_loopback() && ip.is_ipv4() == met_on.is_ipv4();
        let at = gids
            .iter()
            .position(|entry| entry.address == met_on)
            .or_else(|| gids.iter().position(|entry| alike(entry.address)))
            // Both processes of the suite have the same table, so any entry works.
            .or_else(|| (control.is_pair && !gids.is_empty()).then_some(0));
        at.and_then(|at| u8::try_from(at).ok()).ok_or_else(|| {
            Failure::new(format!(
                "the device does not use {met_on}, the address that leads to the other side"
            ))
            .advise("Choose a GID with -x, or change FERROCE_ADDR")
        })
    }

    /// The largest path MTU on the path to the other side. A datagram has at most the active MTU of the port.
    pub(crate) fn path_mtu(&self, control: &Control, transport: Transport) -> Result<Mtu, Failure> {
        let (device, index, attributes) =
            (self.device()?, self.gid_index(control)?, self.device()?.attributes());
        let is_datagram = transport == Transport::Ud;
        let largest = if is_datagram { attributes.active_mtu } else { attributes.largest_mtu };
        let largest = Mtu::from_bytes(largest).unwrap_or_default();
        Ok(device.gids().get(usize::from(index)).map_or(largest, |entry| entry.path_mtu().min(largest)))
    }
}

/// Checks that the suite's device opens and is reachable.
pub(crate) fn try_device(wire: WireChoice) -> Result<(), Failure> {
    // Only packets of the measuring device belong into a capture.
    let config = config(wire, &Network::AsFound, true)?.with(|c| c.capture = None);
    let device = Device::open_with(config).map_err(|error| cannot(error.to_string()))?;
    match device.gids().is_empty() {
        false => Ok(()),
        true => Err(Failure::new("this machine has no address that RDMA could use")
            .advise("Loopback is enough: ip link set lo up")),
    }
}

fn open(wire: WireChoice, network: &Network, for_suite: bool) -> Result<Device, Failure> {
    Device::open_with(config(wire, network, for_suite)?).map_err(|error| cannot(error.to_string()))
}

fn config(wire: WireChoice, network: &Network, for_suite: bool) -> Result<Config, Failure> {
    let mut config = Config::from_env().map_err(|error| cannot(error.to_string()))?;
    config.wire = wire.into();
    if for_suite && std::env::var_os(LINK_VARIABLE).is_none() {
        // The suite compares the UDP link with sockets, unless the user requests shared memory.
        config.link = LinkChoice::Udp;
    }
    network.apply(&mut config)?;
    Ok(config)
}

fn cannot(why: String) -> Failure {
    Failure::new(format!("cannot open the RDMA device: {why}"))
}
