//! `ferroce devices`: what `ibv_devinfo -v` shows of a device, as far as it applies here.

use crate::failure::Failure;
use crate::sizes::format_size;
use crate::table::{Align, Table};
use crate::wire::{self, WireArg};
use ferroce_nic::{Config, DeviceAttr, GidEntry, Nic, Wire, port_gids};
use serde::Serialize;

/// Name of the device; it is the same in every process.
pub(crate) const DEVICE: &str = ferroce_nic::DEVICE_NAME;
/// Its only port.
pub(crate) const PORT: u8 = 1;
/// The protocol's largest path MTU.
const MAX_MTU_BYTES: u32 = 4096;

const EXAMPLES: &str = "\
Examples:
  ferroce devices                             what a program finds: limits, port, MTU
  FERROCE_STRICT=connectx-6 ferroce devices   the same with the limits of that NIC
  ferroce devices --json                      for programs";

/// Options of `ferroce devices`.
#[derive(clap::Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wire: WireArg,
}

/// A device, as both forms show it.
#[derive(Debug, Serialize)]
struct Device {
    #[serde(skip)]
    wire: Wire,
    device: &'static str,
    version: &'static str,
    transport: &'static str,
    attributes: DeviceAttr,
    ports: [Port; 1],
}

#[derive(Debug, Serialize)]
struct Port {
    port: u8,
    state: &'static str,
    link_layer: &'static str,
    max_mtu_bytes: u32,
    active_mtu_bytes: u32,
    gids: usize,
    interfaces: Vec<String>,
}

/// Lists the devices.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let config = args.wire.apply_to(settings()?);
    let nic = Nic::open(config).map_err(|error| Failure::new(error.to_string()))?;
    let device = Device::new(nic.wire(), nic.attributes(), &nic.gids());
    if args.json { crate::print_json(&[device]) } else { crate::print_text(&device.to_text()) }
}

/// The device's settings, from the environment.
pub(crate) fn settings() -> Result<Config, Failure> {
    let advice = "docs/reference/environment.md lists the variables and their values";
    Config::from_env().map_err(|error| Failure::new(error.to_string()).advise(advice))
}

impl Device {
    fn new(wire: Wire, attributes: DeviceAttr, addresses: &[GidEntry]) -> Device {
        let mut interfaces: Vec<String> = addresses.iter().map(|gid| gid.interface.clone()).collect();
        interfaces.sort();
        interfaces.dedup();
        let port = Port {
            port: PORT,
            state: if addresses.iter().any(|gid| gid.up) { "ACTIVE" } else { "DOWN" },
            link_layer: "Ethernet",
            max_mtu_bytes: MAX_MTU_BYTES,
            active_mtu_bytes: attributes.active_mtu,
            gids: port_gids(wire, addresses.to_vec()).len(),
            interfaces,
        };
        Device {
            wire,
            device: DEVICE,
            version: env!("CARGO_PKG_VERSION"),
            transport: wire::describe(wire),
            attributes,
            ports: [port],
        }
    }

    fn to_text(&self) -> String {
        let attr = &self.attributes;
        let [port] = &self.ports;
        let mut table = Table::new(&[("device", Align::Left), (self.device, Align::Left)]);
        let mut line = |name: &str, value: String| table.line([name.to_owned(), value]);
        line("transport", self.transport.to_owned());
        line("version", self.version.to_owned());
        line("max_qp", attr.max_qp.to_string());
        line("max_qp_wr", attr.max_qp_wr.to_string());
        line("max_sge", attr.max_sge.to_string());
        line("max_inline_data", format_size(attr.max_inline_data.into()));
        line("max_cqe", attr.max_cqe.to_string());
        line("max_mr", attr.max_mr.to_string());
        line("max_qp_rd_atom", attr.max_rd_atomic.to_string());
        line("max_msg_sz", format_size(attr.max_msg_sz.into()));
        if self.wire == Wire::Roce {
            line("window per QP", format_size(attr.window_bytes.into()));
        }
        table.gap();
        let mut line = |name: &str, value: String| table.line([name.to_owned(), value]);
        line("port", port.port.to_string());
        line("state", port.state.to_owned());
        line("link layer", port.link_layer.to_owned());
        line("max_mtu", format!("{} B", port.max_mtu_bytes));
        line("active_mtu", format!("{} B", port.active_mtu_bytes));
        line("GIDs", format!("{} of at most {}; `ferroce gids` lists them", port.gids, attr.gid_tbl_len));
        line("interfaces", port.interfaces.join(", "));
        table.render()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(up: bool) -> Device {
        let mut gids = ferroce_nic::gid_table(&Config::default()).expect("every machine has loopback");
        gids.iter_mut().for_each(|gid| gid.up = up);
        let attributes = serde_json::json!({
            "max_qp": 49152, "max_qp_wr": 1 << 16, "max_sge": 32, "max_inline_data": 1024, "max_cqe": 1 << 22,
            "max_mr": 1 << 20, "max_rd_atomic": 128, "max_msg_sz": 1u32 << 31, "gid_tbl_len": 256, "active_mtu": 1024,
            "largest_mtu": 4096, "window_bytes": 512 << 10,
        });
        let attributes: DeviceAttr = serde_json::from_value(attributes).expect("all fields");
        Device::new(Wire::Roce, attributes, &gids)
    }

    #[test]
    fn text_has_units_and_the_state() {
        let text = device(true).to_text();
        for expected in ["ferroce0", "max_msg_sz       2 GiB", "active_mtu       1024 B", "ACTIVE"] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!(device(false).to_text().contains("DOWN"));
    }

    #[test]
    fn json_names_its_units() {
        let value = serde_json::to_value(device(true)).expect("JSON");
        assert_eq!(value["ports"][0]["active_mtu_bytes"], 1024);
        assert_eq!(value["attributes"]["max_qp"], 49152);
    }
}
