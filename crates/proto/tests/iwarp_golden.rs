//! One of every iWARP message, judged by tshark: its dissector reads what we wrote, and finds the CRC good.

#[allow(dead_code, unused_imports, reason = "other tests use the rest")]
mod golden;

use ferroce_crc::Crc32c;
use ferroce_proto::RKey;
use ferroce_proto::Time;
use ferroce_proto::iwarp::negotiation::{Initiator, Offer, Responder};
use ferroce_proto::iwarp::wire::{
    AtomicRequest, AtomicResponse, DdpBuffer, DdpHeader, Fpdu, MAX_BODY, Quoted, RdmapOpcode, ReadRequest,
    Terminate, TerminateCode,
};
use ferroce_proto::qp::TxPayload;
use ferroce_proto::verbs::AtomicOp;
use golden::{Sender, TempFile, output, tcp_frames, tshark, write_pcap};

fn fpdu(header: &DdpHeader, rest: &[u8]) -> Vec<u8> {
    let mut bytes = [0; DdpHeader::UNTAGGED_LEN];
    let header_len = header.write(&mut bytes);
    let len = (header_len + rest.len()) as u16;
    let head = [&len.to_be_bytes()[..], &bytes[..header_len]].concat();
    let fpdu = Fpdu { header: &head, payload: TxPayload::Bytes(rest), has_crc: true, ends_message: true };
    let crc = Crc32c::new();
    let (trailer, trailer_len) = fpdu.trailer(crc, |sum| crc.update(sum, rest));
    [&head, rest, &trailer[..trailer_len]].concat()
}

fn untagged(opcode: RdmapOpcode, msn: u32) -> DdpHeader {
    let buffer = DdpBuffer::Untagged { invalidate: RKey(0x55aa), queue: opcode.queue(), msn, offset: 0 };
    DdpHeader { opcode, last: true, buffer }
}

fn tagged(opcode: RdmapOpcode) -> DdpHeader {
    DdpHeader { opcode, last: true, buffer: DdpBuffer::Tagged { stag: RKey(0xabcd), to: 0x1122_3344_5566 } }
}

/// The frames of a connection, one per TCP segment, and the opcode that tshark must find in each.
fn connection() -> Vec<(Sender, Vec<u8>, Option<RdmapOpcode>)> {
    let offer = Offer { crc: true, ..Offer::default() };
    let (_, request) = Initiator::new(offer, b"private");
    let (_, read) = Responder::new(Time(0)).receive(&request).expect("our own frame");
    let (_, reply) = read.expect("whole").accept(&offer, b"data").expect("acceptable");
    let mut frames = vec![(Sender::Initiator, request, None), (Sender::Responder, reply, None)];
    let mut add = |from, header: DdpHeader, rest: &[u8]| {
        frames.push((from, fpdu(&header, rest), Some(header.opcode)));
    };
    add(Sender::Initiator, tagged(RdmapOpcode::Write), b"");
    add(Sender::Initiator, tagged(RdmapOpcode::Write), b"five!");
    let sends = [RdmapOpcode::Send, RdmapOpcode::SendInv, RdmapOpcode::SendSe, RdmapOpcode::SendSeInv];
    for (msn, opcode) in (1..).zip(sends) {
        add(Sender::Initiator, untagged(opcode, msn), &b"payload"[..msn as usize]);
    }
    let read = ReadRequest {
        sink_stag: RKey(0x77),
        sink_to: 0x88,
        len: 6,
        source_stag: RKey(0x99),
        source_to: 0x1010,
    };
    let read_header = untagged(RdmapOpcode::ReadRequest, 1);
    add(Sender::Initiator, read_header, &read.to_bytes());
    add(Sender::Responder, tagged(RdmapOpcode::ReadResponse), b"answer");
    let atomic = AtomicRequest::new(5, RKey(9), 64, AtomicOp::FetchAdd { add: 3 });
    add(Sender::Initiator, untagged(RdmapOpcode::AtomicRequest, 2), &atomic.to_bytes());
    let response = AtomicResponse { id: 5, original: 40 };
    add(Sender::Responder, untagged(RdmapOpcode::AtomicResponse, 1), &response.to_bytes());
    let quoted = Some(Quoted { segment_len: 46, header: read_header, read: Some(read) });
    let mut body = [0; MAX_BODY];
    let len = Terminate { code: TerminateCode::RDMAP_BOUNDS, quoted }.write(&mut body);
    add(Sender::Responder, untagged(RdmapOpcode::Terminate, 1), &body[..len]);
    frames
}

#[test]
fn tshark_reads_every_message_and_finds_the_crc_good() {
    let Some(mut tshark) = tshark() else { return };
    let connection = connection();
    let frames = tcp_frames(1, connection.iter().map(|(from, bytes, _)| (*from, &bytes[..])));
    let file = TempFile::new("iwarp.pcap", &write_pcap(frames.iter().map(Vec::as_slice)));
    // Its heuristics take a SEND of few bytes for RPC over RDMA.
    tshark.args(["--disable-protocol", "rpcordma"]);
    let text = output(tshark.arg("-r").arg(file.path()).args(["-V", "-O", "iwarp_mpa,iwarp_ddp_rdmap"]));
    let fpdus = connection.iter().filter(|(_, _, opcode)| opcode.is_some()).count();
    assert_eq!(text.matches("Good CRC32").count(), fpdus, "{text}");
    assert_eq!(text.matches("Malformed").count(), 0, "{text}");
    for (_, _, opcode) in &connection {
        let Some(opcode) = opcode else { continue };
        assert!(text.contains(&format!("(0x{:x})", *opcode as u8)), "{opcode:?}: {text}");
    }
    for line in EXPECTED {
        assert!(text.contains(line), "{line}: {text}");
    }
}

/// Fields as the dissector names them.
const EXPECTED: [&str; 12] = [
    "Private data length: 11",
    "(Data Sink) Steering Tag: 0x0000abcd",
    "(Data Sink) Tagged offset: 0x0000112233445566",
    "Invalidate STag: 21930",
    "Data Sink STag: 0x00000077",
    "RDMA Read Message Size: 6",
    "Data Source Tagged Offset: 0x0000000000001010",
    "Remote STag: 9",
    "Add Data: 3",
    "Layer: RDMA (0x0)",
    "Error Types for RDMA layer: Remote Protection Error (0x1)",
    "DDP Segment Length: 002e",
];
