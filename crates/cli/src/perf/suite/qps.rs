//! Very many queue pairs between two processes of this machine.

use super::super::options::QpsArgs;
use super::super::params::Params;
use super::super::rdma::{Connections, most_connections};
use super::super::test::Test;
use super::peer::Peer;
use crate::failure::Failure;
use crate::wire::WireChoice;

/// Runs `ferroce perf qps`.
pub(crate) fn run(args: &QpsArgs) -> Result<(), Failure> {
    let wire = args.wire.choice()?;
    let (most, descriptors) = most_connections();
    if wire == WireChoice::Iwarp && u64::from(args.count) > most {
        return Err(Failure::new(format!(
            "{} iWARP connections take three descriptors each, and a process may have {descriptors}",
            args.count
        ))
        .advise(format!("Raise the hard limit (`ulimit -Hn`), or use --count {most}")));
    }
    let found = measure(wire, args.count)?;
    if args.json { crate::print_json(&found) } else { crate::print_text(&render(&found)) }
}

/// Connects them, and sends a message each way on every one. The second process is new: in a used one they would
/// reuse memory of earlier tests, and seem to cost nothing.
pub(super) fn measure(wire: WireChoice, count: u32) -> Result<Connections, Failure> {
    let mut peer = Peer::default();
    let found = peer.connect_many(&Params { wire, queue_pairs: count, ..Params::defaults(Test::Qps) })?;
    peer.leave();
    Ok(found)
}

fn render(found: &Connections) -> String {
    let count = found.queue_pairs;
    let kib = |bytes: f64| format!("{:.2} KiB", bytes / 1024.0);
    [
        format!(
            "{count} RC queue pairs connected in {:.2} s ({:.1} µs each, both sides)",
            found.connect_s,
            found.connect_s * 1e6 / f64::from(count)
        ),
        format!("a message each way on every one of them in {:.2} s", found.traffic_s),
        format!(
            "memory of one, 16 deep: {} by its own count; resident memory grew by {} here and {} at the server",
            kib(found.footprint_bytes),
            kib(found.resident_bytes),
            kib(found.server_resident_bytes)
        ),
    ]
    .join("\n")
}
