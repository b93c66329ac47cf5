//! The identity of the device.

use ferroce_nic::{Config, Wire};
use std::sync::OnceLock;

/// Name of the device, as `ibv_devices` prints it.
pub(crate) const NAME: &str = ferroce_nic::DEVICE_NAME;
/// Name of its character device.
pub(crate) const DEV_NAME: &str = "uverbs0";
/// Path of its attributes in sysfs; `ferroce run` provides the files.
pub(crate) const IBDEV_PATH: &str = "/sys/class/infiniband/ferroce0";
/// Path of its character device in sysfs.
pub(crate) const DEV_PATH: &str = "/sys/class/infiniband_verbs/uverbs0";
/// A locally administered number, so it is the OUI of no vendor. Programs enable special cases for known vendors.
pub(crate) const VENDOR_ID: u32 = 0x00fe_70ce;
/// The only kind of device.
pub(crate) const VENDOR_PART_ID: u32 = 1;
/// The firmware version.
pub(crate) const FW_VER: &str = env!("CARGO_PKG_VERSION");
/// The board ID.
pub(crate) const BOARD_ID: &str = "FERROCE0000000001";

/// The wire that the device uses. Invalid settings are reported when it is opened.
pub(crate) fn wire() -> Wire {
    static WIRE: OnceLock<Wire> = OnceLock::new();
    *WIRE.get_or_init(|| Config::from_env().map(|config| config.wire).unwrap_or_default())
}

/// GUID of the node. It depends on the user and the host, and is the same at every start.
pub(crate) fn node_guid() -> [u8; 8] {
    static GUID: OnceLock<[u8; 8]> = OnceLock::new();
    *GUID.get_or_init(|| {
        let machine = std::fs::read("/etc/machine-id")
            .or_else(|_| std::fs::read("/proc/sys/kernel/hostname"))
            .unwrap_or_default();
        // SAFETY: cannot fail.
        let user = unsafe { libc::getuid() };
        let mut guid = fnv1a(machine.iter().copied().chain(user.to_le_bytes())).to_be_bytes();
        // A locally administered, individual EUI-64.
        guid[0] = (guid[0] & 0xfc) | 0x02;
        guid
    })
}

/// FNV-1a. The standard library's hash may change between versions of Rust.
fn fnv1a(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// Copies a text into a C array, and fills the rest with zeros.
pub(crate) fn copy_text<const N: usize>(into: &mut [u8; N], text: &str) {
    let len = text.len().min(N - 1);
    into[..len].copy_from_slice(&text.as_bytes()[..len]);
    into[len..].fill(0);
}
