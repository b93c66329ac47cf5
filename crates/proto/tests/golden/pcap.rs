//! The classic capture file format: the least that every dissector reads.

const MAGIC_MICROSECONDS: u32 = 0xa1b2_c3d4;
const LINKTYPE_ETHERNET: u32 = 1;
const SNAP_LEN: u32 = 65_535;

/// A capture file with these Ethernet frames, one second apart.
pub(crate) fn write_pcap<'a>(frames: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    let word = |out: &mut Vec<u8>, value: u32| out.extend(value.to_le_bytes());
    word(&mut out, MAGIC_MICROSECONDS);
    out.extend([2, 0, 4, 0]); // format version 2.4
    for value in [0, 0, SNAP_LEN, LINKTYPE_ETHERNET] {
        word(&mut out, value);
    }
    for (i, frame) in frames.enumerate() {
        for value in [1 + i as u32, 0, frame.len() as u32, frame.len() as u32] {
            word(&mut out, value);
        }
        out.extend(frame);
    }
    out
}
