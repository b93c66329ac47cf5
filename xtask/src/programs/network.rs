//! The network of the programs: a namespace with loopback and one interface.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::process::succeed;
use crate::step::is_root;

/// The interface of the test network.
pub(crate) const INTERFACE: &str = "fe0";
/// An address that is added to raise an event. All addresses are from ranges reserved for tests and private use.
pub(crate) const SPARE: &str = "198.18.0.77/24";

/// Creates the network, then executes the command that follows. sysfs is mounted again, because the old mount shows the interfaces
/// of the old namespace.
const SETUP: &str = "set -e
mount -t sysfs sysfs /sys
ip link set lo up
ip link add fe0 type veth peer name fe1
ip link set fe1 mtu 9000 up
ip link set fe0 mtu 9000 up
ip addr add 198.18.0.1/24 dev fe0
ip -6 addr add fd18::1/64 dev fe0 nodad
exec \"$@\"";

/// A command that runs `program` in a private network.
pub fn inside(program: &Path) -> Command {
    let mut command = Command::new("unshare");
    // Without privilege, a user namespace makes the process root of its own network namespace.
    command.args(if is_root() { &["-n", "-m"][..] } else { &["-r", "-n", "-m"][..] });
    command.args(["--", "sh", "-c", SETUP, "sh"]).arg(program);
    command
}

/// Checks that such a network can be created. The error is the reason.
pub fn check() -> Result<(), String> {
    succeed(&mut inside(Path::new("true")))
        .map_err(|why| format!("no network namespace can be made here: {why}"))
}

/// Indices of the interface's GIDs in the GID table.
pub struct GidIndices {
    /// The IPv4 address of the interface.
    pub v4: u64,
    /// The IPv6 address of the interface.
    pub v6: u64,
}

/// Gets the indices of the interface's addresses from the command under test.
pub fn gid_indices(ferroce: &Path) -> Result<GidIndices, String> {
    let output = Command::new(ferroce)
        .args(["gids", "--json", "--wire", "roce"])
        .output()
        .map_err(|error| error.to_string())?;
    let rows: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("ferroce gids --json: {error}"))?;
    let index = |address: &str| {
        let row = rows.as_array().into_iter().flatten().find(|row| row["address"] == address);
        row.and_then(|row| row["index"].as_u64()).ok_or_else(|| format!("no GID for {address}: {rows}"))
    };
    Ok(GidIndices { v4: index("198.18.0.1")?, v6: index("fd18::1")? })
}
