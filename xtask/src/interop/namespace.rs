//! A private network namespace with a tap device to the guest.

use std::path::Path;
use std::process::Command;

use super::Failure;
use crate::process::{Job, succeed};
use crate::step::{Context, is_root};
use crate::tools::which;

/// The device that QEMU reads and writes.
pub(crate) const TAP: &str = "ferroce0";
/// Addresses of the two ends; they exist in this namespace only.
pub(crate) const HOST_V4: &str = "10.77.0.1";
pub(crate) const HOST_V6: &str = "fd77::1";
pub(crate) const GUEST_V4: &str = "10.77.0.2";
pub(crate) const GUEST_V6: &str = "fd77::2";
/// Static ARP/NDP entries of both ends. On a busy machine, address resolution by the emulated guest takes longer than its kernel
/// waits for it when a queue pair is connected.
pub(crate) const HOST_MAC: &str = "52:54:00:77:00:01";
pub(crate) const GUEST_MAC: &str = "52:54:00:77:00:02";
/// Enough for a path MTU of 4096 with all headers.
pub(crate) const MTU: u32 = 4500;

/// Runs `program` in a new network namespace. Without root it also enters a new user namespace, if that is allowed.
pub(crate) fn enter(ctx: &Context, program: &Path) -> Result<Job, Failure> {
    if which("unshare").is_none() || which("ip").is_none() {
        return Err(Failure::Skip(
            "unshare or ip is missing: `apt-get install -y util-linux iproute2`".into(),
        ));
    }
    let flags: &[&str] = if is_root() { &["--net"] } else { &["--user", "--map-root-user", "--net"] };
    let probe = format!("ip tuntap add {TAP} mode tap");
    Job::new("unshare").args(flags).args(["sh", "-c", &probe]).answer(ctx).map_err(|error| {
        Failure::Skip(format!("no network namespace with a tap device here: {}", error.trim()))
    })?;
    // Only the network is new; files and processes stay visible.
    Ok(Job::new("unshare").args(flags).arg("--").args([program]))
}

/// Inside: the tap device with its addresses.
pub(crate) fn set_up() -> Result<(), Failure> {
    let script = format!(
        "set -e; ip link set lo up; ip tuntap add {TAP} mode tap; ip link set {TAP} address {HOST_MAC}; \
         ip link set {TAP} mtu {MTU} txqueuelen 20000 up; ip addr add {HOST_V4}/24 dev {TAP}; \
         ip -6 addr add {HOST_V6}/64 dev {TAP} nodad; \
         ip neigh replace {GUEST_V4} lladdr {GUEST_MAC} dev {TAP} nud permanent; \
         ip -6 neigh replace {GUEST_V6} lladdr {GUEST_MAC} dev {TAP} nud permanent"
    );
    succeed(Command::new("sh").args(["-c", &script]))
        .map_err(|why| Failure::Broken(format!("the tap device: {why}")))
}
