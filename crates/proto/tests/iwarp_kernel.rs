//! Streams of the Linux kernel's SoftiWARP (`cargo xtask interop --golden` took them), read in every cut: MPA replies, FPDUs, CRCs and operations.

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
mod golden;

use ferroce_proto::iwarp::negotiation::{Initiator, Offer};
use ferroce_proto::iwarp::reader::{Body, Item, Reader};
use ferroce_proto::iwarp::wire::{
    DdpBuffer, DdpHeader, RdmapOpcode, ReadRequest, StreamError, TerminateCode,
};
use golden::{Sender, TempFile, output, tcp_frames, tshark, unhex, write_pcap};

/// The bytes that the kernel sent on one connection.
struct Connection {
    name: &'static str,
    has_crc: bool,
    /// The MPA reply, then FPDUs.
    frames: Vec<Vec<u8>>,
}

impl Connection {
    /// The offer whose reply it is.
    fn offer(&self) -> Offer {
        let revision = if self.name.starts_with("revision-1") { 1 } else { 2 };
        Offer { revision, crc: self.has_crc, ird: 4, ord: 4, rtr: self.name.starts_with("rtr-") }
    }

    fn stream(&self) -> Vec<u8> {
        self.frames.concat()
    }
}

fn connections() -> Vec<Connection> {
    let mut all: Vec<Connection> = Vec::new();
    for line in include_str!("data/siw.hex").lines().filter(|line| !line.starts_with('#')) {
        let (label, hex) = line.split_once(' ').expect("label and bytes");
        let [name, crc, number] = label.split('.').collect::<Vec<_>>()[..] else { panic!("{label}") };
        if number == "0" {
            all.push(Connection { name, has_crc: crc == "crc", frames: Vec::new() });
        }
        let connection = all.last_mut().expect("the reply comes first");
        assert_eq!((connection.name, connection.frames.len().to_string().as_str()), (name, number));
        connection.frames.push(unhex(hex));
    }
    all
}

/// A message as the peer's queue pair would see it, its payload collected.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    Payload(DdpHeader, Vec<u8>),
    Whole(DdpHeader, Body),
}

/// Reads a stream that arrives in these pieces: negotiation, then FPDUs. Returns whether it was accepted, and the messages.
fn read<'a>(
    connection: &Connection,
    pieces: impl Iterator<Item = &'a [u8]>,
) -> Result<(bool, Vec<Message>), StreamError> {
    let (mut initiator, _) = Initiator::new(connection.offer(), &[]);
    let (mut accepted, mut reader, mut messages, mut payload) = (None, None, Vec::new(), Vec::new());
    for mut piece in pieces {
        if accepted.is_none() {
            let (used, reply) = initiator.receive(piece).expect(connection.name);
            piece = &piece[used..];
            let Some(reply) = reply else { continue };
            if let Some(terms) = reply.accepted {
                assert_eq!((terms.crc, terms.is_ferroce), (connection.has_crc, false), "{}", connection.name);
                assert_eq!(terms.rtr.is_some(), connection.offer().rtr, "{}", connection.name);
            }
            accepted = Some(reply.accepted.is_some());
        }
        let reader = reader.get_or_insert_with(|| Reader::new(connection.has_crc));
        while let Some(item) = reader.next(&mut piece)? {
            match item {
                Item::Payload(piece) => {
                    assert_eq!(piece.offset as usize, payload.len(), "{}", connection.name);
                    payload.extend_from_slice(piece.data);
                    if piece.is_end {
                        assert_eq!(piece.segment_len as usize, payload.len(), "{}", connection.name);
                        messages.push(Message::Payload(piece.header, std::mem::take(&mut payload)));
                    }
                }
                Item::Message(header, body) => messages.push(Message::Whole(header, body)),
            }
        }
    }
    assert!(reader.is_none_or(|reader| reader.is_between()), "{}: a frame is incomplete", connection.name);
    Ok((accepted.expect("the whole reply"), messages))
}

fn read_whole(connection: &Connection) -> (bool, Vec<Message>) {
    read(connection, std::iter::once(&connection.stream()[..])).expect(connection.name)
}

fn tagged(opcode: RdmapOpcode, stag: u32, to: u64) -> DdpHeader {
    DdpHeader { opcode, last: true, buffer: DdpBuffer::Tagged { stag: ferroce_proto::RKey(stag), to } }
}

fn untagged(opcode: RdmapOpcode, msn: u32) -> DdpHeader {
    let (invalidate, queue) = (ferroce_proto::RKey(0), opcode.queue());
    DdpHeader { opcode, last: true, buffer: DdpBuffer::Untagged { invalidate, queue, msn, offset: 0 } }
}

/// One round of rping's server: it reads 64 bytes, sends, writes them back, sends.
fn check_rping(name: &str, messages: &[Message]) {
    let [Message::Whole(read, Body::Read(request)), first, write, second] = messages else {
        panic!("{name}: {messages:?}")
    };
    assert_eq!(*read, untagged(RdmapOpcode::ReadRequest, 1), "{name}");
    let ReadRequest { len, source_stag, source_to, .. } = *request;
    assert_eq!((len, source_stag.0, source_to), (64, 0x7700, 0x1234_5678_9abc), "{name}");
    for (msn, send) in [(1, first), (2, second)] {
        assert_eq!(*send, Message::Payload(untagged(RdmapOpcode::Send, msn), vec![0; 16]), "{name}");
    }
    let mut text = b"rdma-ping-0: bytes that the server reads and writes back, 64 it".to_vec();
    text.push(0);
    let header = tagged(RdmapOpcode::Write, source_stag.0, source_to);
    assert_eq!(*write, Message::Payload(header, text), "{name}");
}

/// The codes of the Terminates, by connection. siw exchanges layer and type (docs/use/interop.md).
const TERMINATES: [(&str, TerminateCode); 12] = [
    ("send-too-long", TerminateCode { code: 2, ..TerminateCode::UNTAGGED_TOO_LONG }),
    ("write-stag", TerminateCode::TAGGED_STAG),
    ("read-stag", TerminateCode::RDMAP_STAG),
    ("invalidate-stag", TerminateCode::RDMAP_INVALIDATE_OPERATION),
    ("opcode", TerminateCode::RDMAP_OPCODE),
    ("rdmap-version", TerminateCode::RDMAP_VERSION),
    ("ddp-version-tagged", TerminateCode::TAGGED_VERSION),
    ("ddp-version-untagged", TerminateCode::UNTAGGED_VERSION),
    ("queue", TerminateCode::UNTAGGED_QUEUE),
    ("msn", TerminateCode::UNTAGGED_MSN),
    ("offset", TerminateCode::UNTAGGED_OFFSET),
    ("crc", TerminateCode::LLP_CRC),
];

#[test]
fn the_operations_are_those_of_the_kernel() {
    let mut terminates = Vec::new();
    for connection in &connections() {
        let (name, (accepted, messages)) = (connection.name, read_whole(connection));
        assert_eq!(accepted, name != "markers", "{name}");
        match &messages[..] {
            [] => assert!(name.starts_with("revision-1") || name == "markers", "{name}: no message"),
            [Message::Whole(header, Body::Terminate(terminate))] => {
                assert_eq!(*header, untagged(RdmapOpcode::Terminate, 1), "{name}");
                let TerminateCode { layer, kind, code } = terminate.code;
                terminates.push((name, TerminateCode { layer: kind, kind: layer, code }));
            }
            [Message::Payload(response, data), rest @ ..] if name == "rtr-read" => {
                // The answer to the RTR message, an empty READ with STag 1.
                assert_eq!((response, data.len()), (&tagged(RdmapOpcode::ReadResponse, 1, 0), 0));
                check_rping(name, rest);
            }
            messages => check_rping(name, messages),
        }
    }
    assert_eq!(terminates, TERMINATES);
}

#[test]
fn any_cut_of_a_stream_gives_the_same_messages() {
    for connection in &connections() {
        let (stream, whole) = (connection.stream(), read_whole(connection));
        let check = |what: &str, pieces: &mut dyn Iterator<Item = &[u8]>| {
            assert_eq!(read(connection, pieces).as_ref(), Ok(&whole), "{}: {what}", connection.name);
        };
        for at in 1..stream.len() {
            let (front, back) = stream.split_at(at);
            check(&format!("cut at {at}"), &mut [front, back].into_iter());
        }
        for len in [1, 2, 3, 5, 7, 16] {
            check(&format!("pieces of {len}"), &mut stream.chunks(len));
        }
        for seed in 0..100_u64 {
            let (mut random, mut rest, mut pieces) = (seed, &stream[..], Vec::new());
            while !rest.is_empty() {
                // Knuth's linear congruential generator.
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (piece, behind) = rest.split_at(rest.len().min(1 + (random >> 32) as usize % 40));
                pieces.push(piece);
                rest = behind;
            }
            check(&format!("seed {seed}"), &mut pieces.into_iter());
        }
    }
}

/// The CRCs are right, and any bit of an FPDU that flips is found.
#[test]
fn a_damaged_fpdu_is_refused() {
    for connection in connections().iter().filter(|connection| connection.has_crc) {
        for fpdu in &connection.frames[1..] {
            for bit in 0..fpdu.len() * 8 {
                let mut damaged = fpdu.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let found = Reader::new(true).next(&mut &damaged[..]);
                // A length that grew makes the reader wait for bytes that do not come.
                let is_incomplete = match &found {
                    Ok(None) => true,
                    Ok(Some(Item::Payload(piece))) => !piece.is_end,
                    _ => false,
                };
                let name = connection.name;
                assert!(found.is_err() || bit < 16 && is_incomplete, "{name}: bit {bit} gives {found:?}");
            }
        }
    }
}

#[test]
fn tshark_finds_no_malformed_frame() {
    let Some(mut tshark) = tshark() else { return };
    let (mut frames, mut with_crc, mut fpdus) = (Vec::new(), 0, 0);
    for (number, connection) in (0..).zip(&connections()) {
        let (_, request) = Initiator::new(connection.offer(), &[]);
        let replies = connection.frames.iter().map(|frame| (Sender::Responder, &frame[..]));
        frames.extend(tcp_frames(number, std::iter::once((Sender::Initiator, &request[..])).chain(replies)));
        fpdus += connection.frames.len() - 1;
        with_crc += if connection.has_crc { connection.frames.len() - 1 } else { 0 };
    }
    let file = TempFile::new("siw.pcap", &write_pcap(frames.iter().map(Vec::as_slice)));
    // Its heuristics take a SEND of few bytes for RPC over RDMA.
    tshark.args(["--disable-protocol", "rpcordma"]);
    let text = output(tshark.arg("-r").arg(file.path()).args(["-V", "-O", "iwarp_mpa,iwarp_ddp_rdmap"]));
    assert_eq!(text.matches("Malformed").count(), 0, "{text}");
    assert_eq!(
        text.matches("iWARP Marker Protocol data unit Aligned framing").count(),
        frames.len(),
        "{text}"
    );
    assert_eq!(text.matches("ULPDU length").count(), fpdus, "{text}");
    assert_eq!(text.matches("Good CRC32").count(), with_crc, "{text}");
}
