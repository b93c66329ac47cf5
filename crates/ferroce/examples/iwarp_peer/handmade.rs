//! Hand-made frames for a peer that runs `rping -s -P`: MPA revisions, RTR messages and errors, each on a connection of its own.
//!
//! Prints what happened, and every frame of the peer in hexadecimal. A peer that refuses something sends a Terminate and closes; its close may
//! be a reset that destroys the Terminate, so a close without one is accepted.

use super::{Fallible, MAX_WAIT, Options};
use ferroce_proto::RKey;
use ferroce_proto::iwarp::reader::{Body, Item, Reader};
use ferroce_proto::iwarp::wire::{
    Crc32c, DdpBuffer, DdpHeader, Enhanced, FrameKind, MpaFrame, RdmapOpcode, ReadRequest, RtrKinds,
    TerminateCode, frame_len, pad_len,
};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Key under which the peer reads and writes our memory.
const STAG: RKey = RKey(0x7700);
const TO: u64 = 0x1234_5678_9abc;
const TEXT: [u8; 64] = *b"rdma-ping-0: bytes that the server reads and writes back, 64 it\0";

pub(crate) fn run(words: &[String]) -> Fallible<()> {
    let (options, _) = Options::parse(words, "ap")?;
    let to = options.address('a', options.number('p', 7174)?)?;
    let mut failed = Vec::new();
    let mut note = |name: &str, result: Fallible<String>| match result {
        Ok(text) => println!("{name}: {text}"),
        Err(error) => {
            println!("{name}: FAILED: {error}");
            failed.push(name.to_owned());
        }
    };
    for (name, revision, crc, rtr) in [
        ("revision-1", 1, false, None),
        ("revision-1-crc", 1, true, None),
        ("revision-2", 2, false, None),
        ("rtr-write-crc", 2, true, Some(RdmapOpcode::Write)),
        ("rtr-read", 2, false, Some(RdmapOpcode::ReadRequest)),
    ] {
        note(name, ping(name, to, revision, crc, rtr));
    }
    note("markers", refused_markers(to));
    for (name, frames, expected) in errors() {
        note(name, provoke(name, to, &frames, expected));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("failed: {}", failed.join(" ")).into()),
    }
}

fn request(revision: u8, crc: bool, rtr: Option<RdmapOpcode>) -> MpaFrame {
    let kinds = RtrKinds {
        send: false,
        write: rtr == Some(RdmapOpcode::Write),
        read: rtr == Some(RdmapOpcode::ReadRequest),
    };
    let enhanced = Enhanced { ird: 4, ord: 4, peer_to_peer: rtr.is_some(), rtr: kinds };
    MpaFrame {
        kind: FrameKind::Request,
        revision,
        markers: false,
        crc,
        reject: false,
        is_ferroce: false,
        enhanced: (revision == 2).then_some(enhanced),
        private_data: Vec::new(),
    }
}

/// A connection, and the name that its frames are printed with.
struct Stream<'a> {
    name: &'a str,
    socket: TcpStream,
    crc: bool,
    frames: u32,
}

impl<'a> Stream<'a> {
    /// Connects. Returns the reply, too.
    fn open(name: &'a str, to: SocketAddr, request: &MpaFrame) -> Fallible<(Stream<'a>, MpaFrame)> {
        let mut socket = TcpStream::connect(to)?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(MAX_WAIT / 4))?;
        socket.write_all(&request.to_bytes())?;
        let mut stream = Stream { name, socket, crc: request.crc, frames: 0 };
        let bytes = stream.frame(false)?.ok_or("closed instead of a reply")?;
        let (reply, _) = MpaFrame::parse(FrameKind::Reply, &bytes)?.ok_or("half a reply")?;
        // siw misses an FPDU that arrives before siw reads the stream.
        std::thread::sleep(Duration::from_millis(200));
        Ok((stream, reply))
    }

    /// The next frame of the peer; `None` if it closed the stream.
    fn frame(&mut self, is_negotiated: bool) -> Fallible<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        while frame_len(&bytes, is_negotiated).is_none_or(|len| bytes.len() < len) {
            let mut byte = [0];
            match self.socket.read(&mut byte) {
                Ok(1) => bytes.push(byte[0]),
                Ok(_) => return Ok(None),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        println!("golden {}.{}.{} {hex}", self.name, if self.crc { "crc" } else { "plain" }, self.frames);
        self.frames += 1;
        Ok(Some(bytes))
    }

    /// The next FPDU, given to `check` as the reader reads it.
    fn expect<R>(&mut self, check: impl FnOnce(Item<'_>) -> Option<R>) -> Fallible<R> {
        let bytes = self.frame(true)?.ok_or("the stream was closed")?;
        let item = Reader::new(self.crc).next(&mut &bytes[..]).map_err(|error| format!("{error}"))?;
        let item = item.ok_or("half an FPDU")?;
        let text = format!("unexpected {item:?}");
        Ok(check(item).ok_or(text)?)
    }

    fn send(&mut self, ulpdu: &[u8]) -> Fallible<()> {
        Ok(self.socket.write_all(&fpdu(ulpdu, self.crc))?)
    }
}

/// Length, ULPDU, pad and CRC.
fn fpdu(ulpdu: &[u8], crc: bool) -> Vec<u8> {
    let mut bytes = (ulpdu.len() as u16).to_be_bytes().to_vec();
    bytes.extend_from_slice(ulpdu);
    bytes.resize(bytes.len() + pad_len(ulpdu.len()), 0);
    let sum = if crc { Crc32c::new().update(0, &bytes) } else { 0 };
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

fn segment(opcode: RdmapOpcode, buffer: DdpBuffer, rest: &[u8]) -> Vec<u8> {
    let mut bytes = [0; DdpHeader::UNTAGGED_LEN];
    let len = DdpHeader { opcode, last: true, buffer }.write(&mut bytes);
    [&bytes[..len], rest].concat()
}

fn untagged(opcode: RdmapOpcode, msn: u32, rest: &[u8]) -> Vec<u8> {
    let queue = opcode.queue();
    segment(opcode, DdpBuffer::Untagged { invalidate: RKey(0), queue, msn, offset: 0 }, rest)
}

fn tagged(opcode: RdmapOpcode, stag: RKey, to: u64, rest: &[u8]) -> Vec<u8> {
    segment(opcode, DdpBuffer::Tagged { stag, to }, rest)
}

/// An offer of rping: address, key and size.
fn offer() -> Vec<u8> {
    [&TO.to_be_bytes()[..], &STAG.0.to_be_bytes(), &(TEXT.len() as u32).to_be_bytes()].concat()
}

/// One round of rping by hand.
fn ping(name: &str, to: SocketAddr, revision: u8, crc: bool, rtr: Option<RdmapOpcode>) -> Fallible<String> {
    let (mut stream, reply) = Stream::open(name, to, &request(revision, crc, rtr))?;
    if (reply.revision, reply.crc, reply.reject) != (revision, crc, false) {
        return Err(format!("{reply:?}").into());
    }
    if revision == 1 {
        // siw closes the stream later; cause unknown.
        return Ok("accepted".into());
    }
    let empty = ReadRequest { sink_stag: RKey(1), sink_to: 0, len: 0, source_stag: RKey(1), source_to: 0 };
    match rtr {
        Some(RdmapOpcode::Write) => stream.send(&tagged(RdmapOpcode::Write, RKey(1), 0, &[]))?,
        Some(_) => stream.send(&untagged(RdmapOpcode::ReadRequest, 1, &empty.to_bytes()))?,
        None => {}
    }
    // It also wakes a peer that has missed the RTR message.
    stream.send(&untagged(RdmapOpcode::Send, 1, &offer()))?;
    let is_empty =
        |item: Item<'_>| matches!(item, Item::Payload(piece) if piece.segment_len == 0).then_some(());
    if rtr == Some(RdmapOpcode::ReadRequest) {
        stream.expect(is_empty)?;
    }
    let read = stream.expect(|item| match item {
        Item::Message(_, Body::Read(read)) => Some(read),
        _ => None,
    })?;
    if (read.source_stag, read.source_to, read.len) != (STAG, TO, TEXT.len() as u32) {
        return Err(format!("{read:?}").into());
    }
    stream.send(&tagged(RdmapOpcode::ReadResponse, read.sink_stag, read.sink_to, &TEXT))?;
    let message = |item: Item<'_>| match item {
        Item::Payload(piece) if piece.header.opcode == RdmapOpcode::Send => Some(piece.segment_len),
        _ => None,
    };
    stream.expect(message)?;
    stream.send(&untagged(RdmapOpcode::Send, 2, &offer()))?;
    let written = stream.expect(|item| match item {
        Item::Payload(piece) => match piece.header.buffer {
            DdpBuffer::Tagged { stag: STAG, to: TO } => Some(piece.data.to_vec()),
            _ => None,
        },
        Item::Message(..) => None,
    })?;
    if written != TEXT {
        return Err("other bytes were written than read".into());
    }
    stream.expect(message)?;
    Ok(format!("one round, reply {:?}", reply.enhanced))
}

fn refused_markers(to: SocketAddr) -> Fallible<String> {
    let (_, reply) = Stream::open("markers", to, &MpaFrame { markers: true, ..request(2, false, None) })?;
    if reply.reject { Ok("refused".into()) } else { Err(format!("{reply:?}").into()) }
}

/// Names, ULPDUs, and the Terminate that siw sends for the last of them.
fn errors() -> Vec<(&'static str, Vec<Vec<u8>>, TerminateCode)> {
    let send = |msn| untagged(RdmapOpcode::Send, msn, &offer());
    let changed = |mut ulpdu: Vec<u8>, at: usize, value: u8| {
        ulpdu[at] = value;
        ulpdu
    };
    let read =
        ReadRequest { sink_stag: RKey(5), sink_to: 0, len: 8, source_stag: RKey(0x5a5a), source_to: 0 };
    let invalidate = DdpBuffer::Untagged { invalidate: RKey(0x5a_5a00), queue: 0, msn: 1, offset: 0 };
    let write = tagged(RdmapOpcode::Write, RKey(0x5a_5a00), 0, b"bytes");
    let no_stag = TerminateCode::RDMAP_STAG;
    vec![
        ("send-too-long", vec![untagged(RdmapOpcode::Send, 1, &[7; 400])], TerminateCode::UNTAGGED_NO_BUFFER),
        ("write-stag", vec![write.clone()], TerminateCode::TAGGED_STAG),
        ("read-stag", vec![untagged(RdmapOpcode::ReadRequest, 1, &read.to_bytes())], no_stag),
        (
            "invalidate-stag",
            vec![segment(RdmapOpcode::SendInv, invalidate, &offer())],
            TerminateCode::RDMAP_INVALIDATE_OPERATION,
        ),
        ("opcode", vec![changed(send(1), 1, 0x4f)], TerminateCode::RDMAP_OPCODE),
        ("rdmap-version", vec![changed(send(1), 1, 0x83)], TerminateCode::RDMAP_VERSION),
        ("ddp-version-tagged", vec![changed(write, 0, 0xc2)], TerminateCode::TAGGED_VERSION),
        ("ddp-version-untagged", vec![changed(send(1), 0, 0x42)], TerminateCode::UNTAGGED_VERSION),
        ("queue", vec![changed(send(1), 9, 5)], TerminateCode::UNTAGGED_QUEUE),
        ("msn", vec![send(7)], TerminateCode::UNTAGGED_MSN),
        ("offset", vec![changed(send(1), 17, 4)], TerminateCode::UNTAGGED_OFFSET),
        ("crc", Vec::new(), TerminateCode::LLP_CRC),
    ]
}

/// Sends frames of which the peer must refuse the last, and reads until it closes the stream.
fn provoke(name: &str, to: SocketAddr, ulpdus: &[Vec<u8>], expected: TerminateCode) -> Fallible<String> {
    let (mut stream, _) = Stream::open(name, to, &request(2, true, None))?;
    ulpdus.iter().try_for_each(|ulpdu| stream.send(ulpdu))?;
    if ulpdus.is_empty() {
        let mut bytes = fpdu(&untagged(RdmapOpcode::Send, 1, &offer()), true);
        bytes[25] ^= 1;
        stream.socket.write_all(&bytes)?;
    }
    let mut found = None;
    while let Some(bytes) = stream.frame(true)? {
        let item = Reader::new(true).next(&mut &bytes[..]).map_err(|error| format!("{error}"))?;
        if let Some(Item::Message(_, Body::Terminate(terminate))) = item {
            found = Some(terminate.code);
        }
    }
    match found {
        Some(code) if code == expected => Ok(format!("Terminate: {code}")),
        // siw on a little-endian machine exchanges layer and type.
        Some(code)
            if (code.layer, code.kind, code.code) == (expected.kind, expected.layer, expected.code) =>
        {
            Ok(format!("Terminate: {expected}, layer and type exchanged"))
        }
        Some(code) => Err(format!("Terminate: {code} instead of {expected}").into()),
        None => Ok("closed without a Terminate".into()),
    }
}
