//! A capture that Wireshark opens.

mod link_support;

use ferroce_nic::link::{Capture, Link, TxBatch, UdpConfig, UdpLink};
use link_support::*;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

#[test]
fn tshark_dissects_what_was_captured() {
    if !tool_is_there("tshark") {
        return;
    }
    let path = std::env::temp_dir().join(format!("ferroce-link-{}.pcapng", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let capture = Arc::new(Capture::create(&path).unwrap());
    for (from, to) in [("127.44.0.1", "127.44.0.2"), ("::1", "::1")] {
        let _lock = lock_address(to);
        let capturing = |addr| UdpConfig { capture: Some(Arc::clone(&capture)), ..config(&[addr]) };
        let (sender, receiver) =
            (UdpLink::open(&capturing(from)).unwrap(), UdpLink::open(&capturing(to)).unwrap());
        let mut batch = TxBatch::new();
        for number in 0..4 {
            add(&mut batch, &route(from, to, 0), &packet(receiver.slot(), number, 64));
        }
        sender.send(&mut batch);
        receive(&receiver, 4);
        assert_eq!((sender.counters().capture_errors, receiver.counters().capture_errors), (0, 0));
    }
    drop(capture);
    let rows = tshark(&path);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(rows.len(), 16, "four packets, sent and received, over two families: {rows:#?}");
    for row in &rows {
        // Opcode, destination QPN, UDP length, expert messages, UDP checksum status (1 is good), direction.
        let [opcode, qpn, len, expert, checksum, direction, ident] = row.as_slice() else {
            panic!("{row:?}")
        };
        assert_eq!((opcode.as_str(), len.as_str(), checksum.as_str()), ("100", "76", "1"), "{row:?}");
        assert!(qpn.ends_with("1234"), "{row:?}");
        assert!(expert.is_empty(), "{row:?}");
        assert!(direction.ends_with('1') || direction.ends_with('2'), "{row:?}");
        // Segments of one batch count up.
        assert!(ident.is_empty() || ["0x0000", "0x0001", "0x0002", "0x0003"].contains(&ident.as_str()));
    }
}

/// The fields of every packet, as tshark sees them.
fn tshark(path: &Path) -> Vec<Vec<String>> {
    let fields = [
        "infiniband.bth.opcode",
        "infiniband.bth.destqp",
        "udp.length",
        "_ws.expert.message",
        "udp.checksum.status",
        "frame.packet_flags_direction",
        "ip.id",
    ];
    let mut command = Command::new("tshark");
    command.args(["-o", "udp.check_checksum:TRUE", "-Tfields", "-r"]).arg(path);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}
