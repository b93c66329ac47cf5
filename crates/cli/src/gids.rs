//! `ferroce gids`: the table that `show_gids` prints. It opens no device, so it works while another process has the
//! port.

use crate::devices::{DEVICE, PORT, settings};
use crate::failure::Failure;
use crate::table::{self, Align, Column};
use crate::wire::WireArg;
use ferroce_nic::{GidEntry, Wire, port_gids};
use serde::Serialize;

/// The type of a GID: RoCEv2.
const ROCE: &str = "v2";
/// The type of a GID of an iWARP device, as `show_gids` prints it.
const IWARP: &str = "v1";

const EXAMPLES: &str = "\
Examples:
  ferroce gids                     which addresses RDMA programs can use, and the index of each
  ferroce gids --wire iwarp        the same for iWARP
  ferroce gids --json              for programs";

/// Options of `ferroce gids`.
#[derive(clap::Parser)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Print as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    wire: WireArg,
}

/// A line of the table.
#[derive(Debug, Serialize)]
struct Row<'a> {
    device: &'static str,
    port: u8,
    index: usize,
    version: &'static str,
    #[serde(flatten)]
    entry: &'a GidEntry,
}

/// Lists the GIDs.
pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let config = args.wire.apply_to(settings()?);
    let addresses = ferroce_nic::gid_table(&config).map_err(|error| Failure::new(error.to_string()))?;
    let entries = port_gids(config.wire, addresses);
    if args.json {
        return crate::print_json(&rows(config.wire, &entries));
    }
    if entries.is_empty() {
        return crate::print_text("This machine has no address, not even on loopback.");
    }
    crate::print_text(&to_text(&rows(config.wire, &entries)))
}

fn rows(wire: Wire, entries: &[GidEntry]) -> Vec<Row<'_>> {
    let version = if wire == Wire::Iwarp { IWARP } else { ROCE };
    let row = |(index, entry)| Row { device: DEVICE, port: PORT, index, version, entry };
    entries.iter().enumerate().map(row).collect()
}

fn to_text(rows: &[Row<'_>]) -> String {
    let columns: [Column<Row<'_>>; 7] = [
        ("DEV", Align::Left, |row| row.device.to_owned()),
        ("PORT", Align::Right, |row| row.port.to_string()),
        ("INDEX", Align::Right, |row| row.index.to_string()),
        ("GID", Align::Left, |row| row.entry.gid.to_string()),
        ("IPv4/IPv6", Align::Left, |row| row.entry.address.to_string()),
        ("VER", Align::Left, |row| row.version.to_owned()),
        ("DEV", Align::Left, |row| {
            let GidEntry { interface, up, .. } = row.entry;
            if *up { interface.clone() } else { format!("{interface} (down)") }
        }),
    ];
    table::of(&columns, rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroce_nic::Config;

    fn entries() -> Vec<GidEntry> {
        let addresses = Some(vec!["127.0.0.5".parse().expect("an address")]);
        ferroce_nic::gid_table(&Config::default().with(|c| c.addresses = addresses))
            .expect("all of 127/8 is local")
    }

    #[test]
    fn the_table_reads_like_show_gids() {
        let text = to_text(&rows(Wire::Roce, &entries()));
        let line: Vec<&str> = text.lines().nth(2).expect("one entry").split_whitespace().collect();
        let expected =
            ["ferroce0", "1", "0", "0000:0000:0000:0000:0000:ffff:7f00:0005", "127.0.0.5", "v2", "lo"];
        assert_eq!(line, expected, "{text}");
    }

    #[test]
    fn an_interface_that_is_down_is_marked() {
        let mut entries = entries();
        entries[0].up = false;
        assert!(to_text(&rows(Wire::Roce, &entries)).ends_with("lo (down)"));
    }

    #[test]
    fn json_has_the_same_and_more() {
        let value = serde_json::to_value(rows(Wire::Roce, &entries())).expect("JSON");
        let row = &value[0];
        assert_eq!(
            (&row["index"], &row["version"], &row["interface"]),
            (&0.into(), &"v2".into(), &"lo".into())
        );
        assert_eq!(row["gid"], "0000:0000:0000:0000:0000:ffff:7f00:0005");
        assert_eq!(row["address"], "127.0.0.5");
    }
}
