// Without an argument: a SEND, a WRITE and a READ. With the name of a capture: the packets in it that arrived.

use ferroce::{Device, Outcome, Psn, wr};
use std::error::Error;

/// A big-endian number of up to eight bytes.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The base transport header (BTH), the extended header that follows from the opcode, the payload.
fn print_packet(bth: &[u8]) {
    let padding = usize::from(bth[1] >> 4 & 3);
    let name = match bth[0] {
        0x04 => "SEND_ONLY",
        0x0a => "WRITE_ONLY",
        0x0c => "READ_REQUEST",
        0x10 => "READ_RESPONSE_ONLY",
        0x11 => "ACKNOWLEDGE",
        _ => "another opcode",
    };
    let ack = if bth[8] & 0x80 != 0 { ", ACK requested" } else { "" };
    let (header, extended) = match bth[0] {
        0x0a | 0x0c => {
            let (address, rkey, length) = (number(&bth[12..20]), number(&bth[20..24]), number(&bth[24..28]));
            (28, format!(", RETH: address {address:#x}, rkey {rkey:#x}, length {length}"))
        }
        0x10 | 0x11 => (16, format!(", AETH: syndrome {:#x}, MSN {}", bth[12], number(&bth[13..16]))),
        _ => (12, String::new()),
    };
    let payload = bth.len() - header - padding - 4; // 4: the ICRC
    println!("{name:18} PSN {}{ack}{extended}, payload {payload} + {padding}", number(&bth[9..12]));
}

/// pcapng: blocks of type, length, body, length. Type 6 is a packet, and its option 2 the direction.
fn print_capture(file: &[u8]) {
    let word = |at: usize| u32::from_le_bytes([file[at], file[at + 1], file[at + 2], file[at + 3]]) as usize;
    let mut at = 0;
    while at + 12 <= file.len() {
        if word(at) == 6 {
            let captured = word(at + 20);
            let frame = &file[at + 28..at + 28 + captured];
            let flags = word(at + 28 + captured.next_multiple_of(4) + 4);
            let is_ipv6 = number(&frame[12..14]) == 0x86dd;
            let before = 14 + if is_ipv6 { 40 } else { 20 } + 8; // Ethernet, IP, UDP
            if flags & 3 == 1 {
                print_packet(&frame[before..]);
            }
        }
        at += word(at + 4);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(name) = std::env::args().find(|word| word.ends_with(".pcapng")) {
        print_capture(&std::fs::read(name)?);
        return Ok(());
    }
    let device = Device::open()?;
    let pd = device.alloc_pd()?;
    let (client_cq, server_cq) = (device.create_cq(64)?, device.create_cq(64)?);
    let client = pd.rc(&client_cq).psn(Psn::new(1000)).timeout(20).create()?;
    let server = pd.rc(&server_cq).create()?;
    client.connect(&server.endpoint()?)?;
    server.connect(&client.endpoint()?)?;
    let (ours, theirs) =
        (pd.region(4096).register()?, pd.region(4096).remote_read().remote_write().register()?);
    ours.write(0, b"hello")?;
    server.post_recv(&[wr::recv(1, &[theirs.sge(..64)?])])?;
    let remote = theirs.remote().slice(..5)?;
    for opcode in ["SEND", "WRITE", "READ"] {
        match opcode {
            "SEND" => client.send_from(1, &[ours.sge(..5)?])?,
            "WRITE" => client.write(2, &[ours.sge(..5)?], remote)?,
            _ => client.read(3, &[ours.sge(..5)?], remote)?,
        }
        client_cq.wait()?.ok()?;
        println!("client: request: success");
    }
    Ok(())
}
