//! The bytes of iWARP: golden headers by the tables of the RFCs, round trips, and every cut of a stream.

use ferroce_crc::Crc32c;
use ferroce_proto::RKey;
use ferroce_proto::iwarp::reader::{Body, Item, Reader};
use ferroce_proto::iwarp::wire::{
    AtomicRequest, AtomicResponse, BadFrame, DdpBuffer, DdpHeader, Enhanced, Fpdu, FrameKind, ImmediateData,
    MAX_BODY, MpaFrame, Quoted, RdmapOpcode, ReadRequest, RtrKinds, StreamError, Terminate, TerminateCode,
};
use ferroce_proto::qp::TxPayload;
use ferroce_proto::verbs::AtomicOp;
use proptest::prelude::*;

fn untagged(opcode: RdmapOpcode, last: bool, msn: u32, offset: u32) -> DdpHeader {
    let buffer = DdpBuffer::Untagged { invalidate: RKey(0), queue: opcode.queue(), msn, offset };
    DdpHeader { opcode, last, buffer }
}

fn tagged(opcode: RdmapOpcode, last: bool, stag: u32, to: u64) -> DdpHeader {
    DdpHeader { opcode, last, buffer: DdpBuffer::Tagged { stag: RKey(stag), to } }
}

fn bytes_of(header: &DdpHeader) -> Vec<u8> {
    let mut out = [0; DdpHeader::UNTAGGED_LEN];
    let len = header.write(&mut out);
    out[..len].to_vec()
}

/// An FPDU as a peer sends it.
fn fpdu(header: &DdpHeader, rest: &[u8], has_crc: bool) -> Vec<u8> {
    let header = bytes_of(header);
    let len = (header.len() + rest.len()) as u16;
    let head = [&len.to_be_bytes()[..], &header].concat();
    let payload = TxPayload::Bytes(rest);
    let fpdu = Fpdu { header: &head, payload, has_crc, ends_message: true };
    let crc = Crc32c::new();
    let (trailer, trailer_len) = fpdu.trailer(crc, |sum| crc.update(sum, rest));
    let bytes = [&head, rest, &trailer[..trailer_len]].concat();
    assert_eq!(bytes.len(), fpdu.encoded_len());
    assert_eq!(bytes.len() % 4, 0);
    bytes
}

#[test]
fn headers_have_the_bytes_of_the_rfcs() {
    let write = tagged(RdmapOpcode::Write, true, 0x1122_3344, 0x0102_0304_0506_0708);
    let golden = [0xc1, 0x40, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(bytes_of(&write), golden);
    assert_eq!(DdpHeader::parse(&golden), Ok(write));

    let buffer = DdpBuffer::Untagged { invalidate: RKey(0xabcd), queue: 0, msn: 7, offset: 0x100 };
    let send = DdpHeader { opcode: RdmapOpcode::SendSeInv, last: false, buffer };
    let golden = [0x01, 0x46, 0, 0, 0xab, 0xcd, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 1, 0];
    assert_eq!(bytes_of(&send), golden);
    assert_eq!(DdpHeader::parse(&golden), Ok(send));

    let read = ReadRequest { sink_stag: RKey(1), sink_to: 2, len: 3, source_stag: RKey(4), source_to: 5 };
    let golden = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5];
    assert_eq!(read.to_bytes(), golden);

    assert_eq!(ImmediateData(0x0102_0304).to_bytes(), [1, 2, 3, 4, 0, 0, 0, 0]);

    let mut body = [0xff; MAX_BODY];
    let len = Terminate { code: TerminateCode::LLP_CRC, quoted: None }.write(&mut body);
    assert_eq!(body[..len], [0x20, 2, 0, 0]);
}

#[test]
fn an_fpdu_ends_with_pad_and_a_little_endian_crc() {
    let bytes = fpdu(&tagged(RdmapOpcode::Write, true, 1, 0), &[9, 9, 9], true);
    assert_eq!(bytes[..2], [0, 17]);
    assert_eq!(bytes[19], 0, "one byte of pad");
    assert_eq!(bytes[20..], Crc32c::new().update(0, &bytes[..20]).to_le_bytes());
    assert_eq!(fpdu(&tagged(RdmapOpcode::Write, true, 1, 0), &[9, 9, 9], false)[19..], [0; 5]);
}

#[test]
fn mpa_frames_have_the_bytes_of_the_rfcs() {
    let request = MpaFrame {
        kind: FrameKind::Request,
        revision: 2,
        markers: false,
        crc: true,
        reject: false,
        is_ferroce: false,
        enhanced: Some(Enhanced {
            ird: 8,
            ord: 16,
            peer_to_peer: true,
            rtr: RtrKinds { send: false, write: true, read: true },
        }),
        private_data: b"ab".to_vec(),
    };
    let golden = [b"MPA ID Req Frame".as_slice(), &[0x50, 2, 0, 6, 0x80, 8, 0xc0, 16], b"ab"].concat();
    assert_eq!(request.to_bytes(), golden);
    for len in 0..golden.len() {
        assert_eq!(MpaFrame::parse(FrameKind::Request, &golden[..len]), Ok(None), "cut after {len}");
    }
    let longer = [&golden[..], b"FPDU"].concat();
    assert_eq!(MpaFrame::parse(FrameKind::Request, &longer), Ok(Some((request, golden.len()))));
    assert_eq!(MpaFrame::parse(FrameKind::Reply, &golden), Err(BadFrame::Key));
    assert_eq!(MpaFrame::parse(FrameKind::Request, b"GET"), Err(BadFrame::Key));
    let refused = |at: usize, value: u8| {
        let mut bytes = golden.clone();
        bytes[at] = value;
        MpaFrame::parse(FrameKind::Request, &bytes).unwrap_err()
    };
    assert_eq!(refused(17, 3), BadFrame::Revision(3));
    assert_eq!(refused(18, 0x80), BadFrame::TooLong(0x8006));
    assert_eq!(refused(19, 3), BadFrame::NoEnhancedWords(3));
}

#[test]
fn wrong_headers_are_refused_with_their_code() {
    let send = bytes_of(&untagged(RdmapOpcode::Send, true, 1, 0));
    let write = bytes_of(&tagged(RdmapOpcode::Write, true, 1, 0));
    let with = |bytes: &[u8], at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        DdpHeader::parse(&bytes).unwrap_err().code()
    };
    assert_eq!(with(&send, 0, 0x42), TerminateCode::UNTAGGED_VERSION);
    assert_eq!(with(&write, 0, 0xc0), TerminateCode::TAGGED_VERSION);
    assert_eq!(with(&send, 1, 0x83), TerminateCode::RDMAP_VERSION);
    assert_eq!(with(&send, 1, 0x4c), TerminateCode::RDMAP_OPCODE);
    assert_eq!(with(&send, 1, 0x40), TerminateCode::RDMAP_OPCODE, "an untagged WRITE");
    assert_eq!(with(&write, 1, 0x43), TerminateCode::RDMAP_OPCODE, "a tagged SEND");
    assert_eq!(with(&send, 9, 1), TerminateCode::UNTAGGED_QUEUE);
    for len in 0..send.len() {
        let code = DdpHeader::parse(&send[..len]).unwrap_err().code();
        assert_eq!(code, TerminateCode::LLP_LENGTH, "cut after {len}");
    }
    assert!(TerminateCode::ALL.iter().all(|code| code.text().is_some()));
    assert_eq!(
        TerminateCode::UNTAGGED_NO_BUFFER.to_string(),
        "DDP, untagged buffer error: no buffer available for the message (1/2/2)"
    );
}

/// What a reader makes of a stream, with the pieces of a segment put together.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Segment(DdpHeader, Vec<u8>),
    Message(DdpHeader, Body),
}

fn read_all(has_crc: bool, stream: &[u8], cuts: &[usize]) -> Result<Vec<Seen>, StreamError> {
    let (mut reader, mut seen, mut pending) = (Reader::new(has_crc), Vec::new(), Vec::new());
    let mut at = 0;
    for end in cuts.iter().copied().chain([stream.len()]) {
        let mut bytes = &stream[at..end];
        at = end;
        while let Some(item) = reader.next(&mut bytes)? {
            match item {
                Item::Payload(piece) => {
                    assert_eq!(piece.offset as usize, pending.len());
                    pending.extend_from_slice(piece.data);
                    assert!(pending.len() <= piece.segment_len as usize);
                    if piece.is_end {
                        assert_eq!(pending.len(), piece.segment_len as usize);
                        seen.push(Seen::Segment(piece.header, std::mem::take(&mut pending)));
                    }
                }
                Item::Message(header, body) => seen.push(Seen::Message(header, body)),
            }
        }
        assert!(bytes.is_empty(), "the reader left bytes behind");
    }
    assert_eq!(reader.is_between(), pending.is_empty() && at == stream.len());
    Ok(seen)
}

/// One of each message, with payloads of every pad.
fn sample() -> (Vec<(DdpHeader, Vec<u8>)>, Vec<Seen>) {
    let read = ReadRequest { sink_stag: RKey(9), sink_to: 0, len: 5, source_stag: RKey(8), source_to: 77 };
    let atomic = AtomicRequest::new(3, RKey(5), 64, AtomicOp::CompareSwap { compare: 1, swap: 2 });
    assert_eq!(atomic.op(), Some(AtomicOp::CompareSwap { compare: 1, swap: 2 }));
    let response = AtomicResponse { id: 3, original: 1 };
    let read_header = untagged(RdmapOpcode::ReadRequest, true, 1, 0);
    let quoted = Some(Quoted { segment_len: 46, header: read_header, read: Some(read) });
    let terminate = Terminate { code: TerminateCode::RDMAP_BOUNDS, quoted };
    let mut body = [0; MAX_BODY];
    let len = terminate.write(&mut body);
    let messages = [
        (read_header, read.to_bytes().to_vec(), Body::Read(read)),
        (
            untagged(RdmapOpcode::AtomicRequest, true, 2, 0),
            atomic.to_bytes().to_vec(),
            Body::AtomicRequest(atomic),
        ),
        (
            untagged(RdmapOpcode::AtomicResponse, true, 1, 0),
            response.to_bytes().to_vec(),
            Body::AtomicResponse(response),
        ),
        (
            untagged(RdmapOpcode::ImmediateSe, true, 9, 0),
            ImmediateData(4).to_bytes().to_vec(),
            Body::Immediate(ImmediateData(4)),
        ),
        (untagged(RdmapOpcode::Terminate, true, 1, 0), body[..len].to_vec(), Body::Terminate(terminate)),
    ];
    let segments = (0..5).map(|n| {
        let payload: Vec<u8> = (0..n * 7).collect();
        (untagged(RdmapOpcode::Send, n == 4, 1, u32::from(n)), payload)
    });
    let mut parts: Vec<_> = segments.chain([(tagged(RdmapOpcode::Write, true, 1, 0), vec![1; 33])]).collect();
    let mut seen: Vec<_> = parts.iter().map(|(header, data)| Seen::Segment(*header, data.clone())).collect();
    for (header, bytes, body) in messages {
        parts.push((header, bytes));
        seen.push(Seen::Message(header, body));
    }
    (parts, seen)
}

#[test]
fn every_cut_of_a_stream_gives_the_same() {
    let (parts, expected) = sample();
    for has_crc in [false, true] {
        let stream: Vec<u8> = parts.iter().flat_map(|(header, rest)| fpdu(header, rest, has_crc)).collect();
        assert_eq!(read_all(has_crc, &stream, &[]).as_ref(), Ok(&expected));
        for cut in 0..=stream.len() {
            assert_eq!(read_all(has_crc, &stream, &[cut]).as_ref(), Ok(&expected), "cut at {cut}");
        }
        let every: Vec<usize> = (1..stream.len()).collect();
        assert_eq!(read_all(has_crc, &stream, &every).as_ref(), Ok(&expected), "byte by byte");
    }
}

#[test]
fn every_damaged_bit_is_found_by_the_crc() {
    let (parts, expected) = sample();
    let stream: Vec<u8> = parts.iter().flat_map(|(header, rest)| fpdu(header, rest, true)).collect();
    for bit in 0..stream.len() * 8 {
        let mut damaged = stream.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let mut bytes = &damaged[..];
        let mut reader = Reader::new(true);
        // A longer length field may make the reader wait for bytes that never come; it must not report a wrong message.
        let mut good = 0;
        let broken = loop {
            match reader.next(&mut bytes) {
                Ok(Some(Item::Message(header, body))) => {
                    assert_eq!(expected[good], Seen::Message(header, body));
                    good += 1;
                }
                Ok(Some(Item::Payload(piece))) => good += usize::from(piece.is_end),
                Ok(None) => break !reader.is_between(),
                Err(_) => break true,
            }
        };
        assert!(broken && good < parts.len(), "bit {bit} of the stream passed");
    }
}

#[test]
fn impossible_lengths_are_refused() {
    let read =
        |header: &DdpHeader, rest: &[u8]| read_all(false, &fpdu(header, rest, false), &[]).unwrap_err();
    let request = untagged(RdmapOpcode::ReadRequest, true, 1, 0);
    let opcode = RdmapOpcode::ReadRequest;
    assert_eq!(read(&request, &[0; 27]), StreamError::BodyLength { opcode, len: 27 });
    assert_eq!(read(&request, &[0; 29]), StreamError::BodyLength { opcode, len: 29 });
    let cut = untagged(RdmapOpcode::ReadRequest, false, 1, 0);
    assert_eq!(read(&cut, &[0; 28]), StreamError::NotWhole { opcode });
    let terminate = untagged(RdmapOpcode::Terminate, true, 1, 0);
    assert!(matches!(read(&terminate, &[0; 3]), StreamError::BodyLength { len: 3, .. }));
    assert!(matches!(read(&terminate, &[0; 60]), StreamError::BodyLength { len: 60, .. }));
    let short = read_all(false, &[0, 1, 0x41, 0x43, 0, 0, 0, 0], &[]).unwrap_err();
    assert_eq!(short, StreamError::TooShort { need: 18, have: 1 });
}

proptest! {
    #[test]
    fn what_is_written_is_read(op in 0..12_u8, last: bool, a: u32, b: u32, c: u32, to: u64) {
        let opcode = RdmapOpcode::from_bits(op).unwrap();
        let buffer = if opcode.is_tagged() {
            DdpBuffer::Tagged { stag: RKey(a), to }
        } else {
            DdpBuffer::Untagged { invalidate: RKey(a), queue: opcode.queue(), msn: b, offset: c }
        };
        let header = DdpHeader { opcode, last, buffer };
        prop_assert_eq!(DdpHeader::parse(&bytes_of(&header)), Ok(header));
        let read = ReadRequest { sink_stag: RKey(a), sink_to: to, len: b, source_stag: RKey(c), source_to: !to };
        prop_assert_eq!(ReadRequest::parse(&read.to_bytes()), Ok(read));
        let op = if last {
            AtomicOp::FetchAdd { add: to }
        } else {
            AtomicOp::CompareSwap { compare: to, swap: a.into() }
        };
        let atomic = AtomicRequest::new(a, RKey(b), to, op);
        prop_assert_eq!(AtomicRequest::parse(&atomic.to_bytes()).map(|read| (read, read.op())), Ok((atomic, Some(op))));
    }
}
