//! One whole Ethernet frame per opcode and IP version, built from our own types.
//!
//! The fields differ from packet to packet and from each other, so that a reader who swaps two of them is caught.

mod build;
mod pcap;
mod tcp;
mod tools;

pub(crate) use build::{Golden, all, frame_of};
pub(crate) use pcap::write_pcap;
pub(crate) use tcp::{Sender, tcp_frames};
pub(crate) use tools::{TempFile, output, python_with_scapy, tshark};

/// Lower-case hexadecimal, without separators.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The bytes behind [`hex`].
pub(crate) fn unhex(text: &str) -> Vec<u8> {
    assert!(text.is_ascii() && text.len().is_multiple_of(2), "not hexadecimal: {text}");
    (0..text.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hexadecimal"))
        .collect()
}
