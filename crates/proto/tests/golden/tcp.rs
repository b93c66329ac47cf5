//! iWARP in Ethernet frames, one FPDU per TCP segment: that is what Wireshark's dissector expects.

/// The two directions of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Initiator,
    Responder,
}

/// The frames of the connection with this number.
pub(crate) fn tcp_frames<'a>(
    number: u16,
    segments: impl IntoIterator<Item = (Sender, &'a [u8])>,
) -> Vec<Vec<u8>> {
    let mut sent = [1_u32; 2];
    let frame = |(from, bytes): (Sender, &[u8])| {
        let (mine, other) = if from == Sender::Initiator { (0, 1) } else { (1, 0) };
        let frame = ethernet(from, number, sent[mine], sent[other], bytes);
        sent[mine] += bytes.len() as u32;
        frame
    };
    segments.into_iter().map(frame).collect()
}

/// Ethernet, IPv4 and TCP in front of the bytes of one segment.
fn ethernet(from: Sender, number: u16, seq: u32, ack: u32, payload: &[u8]) -> Vec<u8> {
    let (source, destination) = if from == Sender::Initiator { (1, 2) } else { (2, 1) };
    let port = |end: u8| if end == 1 { 40_000 + number } else { 7174 };
    let mut out = vec![2, 0, 0, 0, 0, destination, 2, 0, 0, 0, 0, source, 8, 0];
    let total = (40 + payload.len()) as u16;
    out.extend([0x45, 0]);
    out.extend(total.to_be_bytes());
    out.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, source, 10, 0, 0, destination]);
    out.extend(port(source).to_be_bytes());
    out.extend(port(destination).to_be_bytes());
    out.extend(seq.to_be_bytes());
    out.extend(ack.to_be_bytes());
    out.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    out.extend(payload);
    out
}
