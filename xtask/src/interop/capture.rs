//! Counts packets in a capture that ferroce wrote.
//!
//! The capture records both directions in the same form, and it remains after the process has ended.

use std::collections::HashSet;
use std::path::Path;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::{Block, PcapNgParser};

/// BTH opcodes of RC responses and acknowledgements. All other RC opcodes are requests.
const RC_ANSWERS: std::ops::RangeInclusive<u8> = 0x0d..=0x12;

/// Protocol number in the IP header.
const UDP: u8 = 17;

/// Packets on the wire, from ferroce's point of view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// RC requests that ferroce sent again.
    pub(crate) resent: u64,
    /// RC requests that ferroce received again.
    pub(crate) received_again: u64,
}

/// Counts the packets of a capture. A missing file has none.
pub(crate) fn count(path: &Path) -> Traffic {
    let mut traffic = Traffic::default();
    let mut seen = HashSet::new();
    let bytes = std::fs::read(path).unwrap_or_default();
    for (frame, sent) in packets(&bytes) {
        let again = request(&frame).is_some_and(|key| !seen.insert((sent, key)));
        let (count, repeated) = if sent {
            (&mut traffic.sent, &mut traffic.resent)
        } else {
            (&mut traffic.received, &mut traffic.received_again)
        };
        *count += 1;
        *repeated += u64::from(again);
    }
    traffic
}

/// Every frame of a pcapng file, and whether it was sent. The last block is ignored if a killed process left it incomplete.
pub(crate) fn packets(bytes: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let Ok((mut rest, mut parser)) = PcapNgParser::new(bytes) else { return Vec::new() };
    let mut found = Vec::new();
    while let Ok((behind, block)) = parser.next_block(rest) {
        rest = behind;
        let Block::EnhancedPacket(packet) = block else { continue };
        let sent = |option: &EnhancedPacketOption| matches!(option, EnhancedPacketOption::Flags(flags) if flags & 3 == 2);
        found.push((packet.data.to_vec(), packet.options.iter().any(sent)));
    }
    found
}

/// What identifies an RC request: destination, sequence number and opcode.
fn request(frame: &[u8]) -> Option<(u32, u32, u8)> {
    let (ip, protocol) = if frame.get(12..14)? == [0x08, 0x00] { (20, 9) } else { (40, 6) };
    if frame.get(14 + protocol) != Some(&UDP) {
        return None;
    }
    let bth = frame.get(14 + ip + 8..)?.first_chunk::<12>()?;
    let number = |at: usize| u32::from_be_bytes([0, bth[at], bth[at + 1], bth[at + 2]]);
    let is_request = bth[0] < 0x20 && !RC_ANSWERS.contains(&bth[0]);
    is_request.then(|| (number(5), number(9), bth[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENHANCED_PACKET: u32 = 6;
    const OPTION_FLAGS: u32 = 2;
    /// A section header: type, length, byte order, version 1.0, and a section whose length is not known.
    const SECTION: [u32; 7] = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];

    /// A packet block around an Ethernet frame with IPv4, UDP and a BTH.
    fn block(opcode: u8, psn: u8, sent: bool) -> Vec<u8> {
        let mut frame = vec![0; 14 + 20 + 8 + 12];
        (frame[12], frame[23]) = (8, UDP);
        frame[42] = opcode;
        frame[53] = psn;
        let size = frame.len() as u32;
        frame.resize(frame.len().next_multiple_of(4), 0);
        let len = 28 + frame.len() as u32 + 12 + 4;
        let mut block = Vec::new();
        [ENHANCED_PACKET, len, 0, 0, 0, size, size].iter().for_each(|w| block.extend(w.to_ne_bytes()));
        block.extend(frame);
        let flags = if sent { 2 } else { 1u32 };
        [4 << 16 | OPTION_FLAGS, flags, 0, len].iter().for_each(|w| block.extend(w.to_ne_bytes()));
        block
    }

    #[test]
    fn requests_that_come_twice_are_counted() {
        let section: Vec<u8> = SECTION.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let blocks =
            [section, block(4, 1, true), block(4, 1, true), block(0x11, 1, false), block(0x11, 1, false)];
        let file = std::env::temp_dir().join(format!("ferroce-count-{}.pcapng", std::process::id()));
        std::fs::write(&file, blocks.concat()).unwrap();
        let traffic = count(&file);
        let _ = std::fs::remove_file(&file);
        assert_eq!(traffic, Traffic { sent: 2, received: 2, resent: 1, received_again: 0 });
    }
}
