//! Terminate in both directions: what each refusal sends, and what both programs see. Then hostile bytes.

use ferroce_proto::iwarp::negotiation::{Offer, Rtr};
use ferroce_proto::iwarp::reader::{Body, Item};
use ferroce_proto::iwarp::wire::{
    AtomicRequest, DdpBuffer, DdpHeader, Quoted, RdmapOpcode, ReadRequest, Terminate, TerminateCode, pad_len,
};
use ferroce_proto::qp::PostError;
use ferroce_proto::qp::state::ModifyError;
use ferroce_proto::verbs::{Access, AtomicOp, AttrMask, EventKind, QpAttr, QpState, SendOp, WcStatus};
use ferroce_proto::{PdId, RKey};
use ferroce_sim::{StreamPair, StreamSetup, Wr};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// The end that refuses, and its peer.
const REFUSER: usize = 1;
const PEER: usize = 0;

fn pair() -> StreamPair {
    pair_with(&StreamSetup::default())
}

/// A pair whose RTR message has arrived, so that both ends may send.
fn pair_with(setup: &StreamSetup) -> StreamPair {
    let mut pair = StreamPair::new(7, setup);
    pair.run();
    pair
}

/// The only Terminate that an end sent.
fn terminate_of(pair: &StreamPair, end: usize) -> Terminate {
    let sent = pair.sent(end);
    let all: Vec<_> = sent
        .iter()
        .filter_map(|item| match item {
            Item::Message(_, Body::Terminate(terminate)) => Some(*terminate),
            _ => None,
        })
        .collect();
    let [terminate] = all[..] else { panic!("one Terminate expected: {all:?}") };
    terminate
}

fn fpdu(header: &DdpHeader, rest: &[u8]) -> Vec<u8> {
    let mut head = [0; DdpHeader::UNTAGGED_LEN];
    let head_len = header.write(&mut head);
    let len = head_len + rest.len();
    let pad = vec![0; pad_len(len) + 4];
    [&(len as u16).to_be_bytes()[..], &head[..head_len], rest, &pad].concat()
}

fn untagged(opcode: RdmapOpcode, msn: u32, offset: u32) -> DdpHeader {
    let buffer = DdpBuffer::Untagged { invalidate: RKey(0), queue: opcode.queue(), msn, offset };
    DdpHeader { opcode, last: true, buffer }
}

fn tagged(opcode: RdmapOpcode, stag: RKey, to: u64) -> DdpHeader {
    DdpHeader { opcode, last: true, buffer: DdpBuffer::Tagged { stag, to } }
}

/// Injects bytes at the refuser. Returns the Terminate that it sends and its events. Both ends are in ERR afterwards.
fn refused(pair: &mut StreamPair, bytes: &[u8]) -> (TerminateCode, Vec<EventKind>) {
    pair.inject(REFUSER, bytes);
    pair.run();
    let states = [0, 1].map(|end| pair.ends[end].qp.state());
    assert_eq!(states, [QpState::Err; 2]);
    (terminate_of(pair, REFUSER).code, pair.ends[REFUSER].events())
}

#[test]
fn each_malformed_or_invalid_segment_has_its_code() {
    use TerminateCode as T;
    let send = untagged(RdmapOpcode::Send, 1, 0);
    let changed = |at: usize, value: u8| {
        let mut bytes = fpdu(&send, b"data");
        bytes[at] = value;
        bytes
    };
    let read =
        ReadRequest { sink_stag: RKey(1), sink_to: 0, len: 8, source_stag: RKey(5), source_to: u64::MAX };
    let masked =
        AtomicRequest { data_mask: 1, ..AtomicRequest::new(1, RKey(5), 8, AtomicOp::FetchAdd { add: 1 }) };
    let rows: [(Vec<u8>, T, EventKind); 14] = [
        (changed(2, 0x42), T::UNTAGGED_VERSION, EventKind::QpReqErr),
        (changed(2, 0xc2), T::TAGGED_VERSION, EventKind::QpReqErr),
        (changed(3, 0x83), T::RDMAP_VERSION, EventKind::QpReqErr),
        (changed(3, 0x4f), T::RDMAP_OPCODE, EventKind::QpReqErr),
        (changed(11, 3), T::UNTAGGED_QUEUE, EventKind::QpReqErr),
        (changed(1, 3), T::LLP_LENGTH, EventKind::QpFatal),
        (fpdu(&untagged(RdmapOpcode::Send, 2, 0), b""), T::UNTAGGED_MSN, EventKind::QpReqErr),
        (fpdu(&untagged(RdmapOpcode::Send, 1, 4), b""), T::UNTAGGED_OFFSET, EventKind::QpReqErr),
        (fpdu(&send, b"data"), T::UNTAGGED_NO_BUFFER, EventKind::QpReqErr),
        (fpdu(&tagged(RdmapOpcode::Write, RKey(9), u64::MAX), b"12"), T::TAGGED_WRAP, EventKind::QpReqErr),
        (fpdu(&tagged(RdmapOpcode::ReadResponse, RKey(9), 0), b""), T::TAGGED_STAG, EventKind::QpReqErr),
        (
            fpdu(&untagged(RdmapOpcode::ReadRequest, 1, 0), &read.to_bytes()),
            T::RDMAP_WRAP,
            EventKind::QpReqErr,
        ),
        (
            fpdu(&untagged(RdmapOpcode::AtomicRequest, 1, 0), &masked.to_bytes()),
            T::RDMAP_OPERATION,
            EventKind::QpReqErr,
        ),
        (fpdu(&untagged(RdmapOpcode::AtomicResponse, 1, 0), &[0; 12]), T::RDMAP_OPCODE, EventKind::QpReqErr),
    ];
    for (bytes, code, event) in rows {
        assert_eq!(refused(&mut pair(), &bytes), (code, vec![event]));
    }
}

#[test]
fn extensions_without_agreement_are_unexpected_opcodes() {
    let mut pair = pair_with(&StreamSetup { extended: false, ..StreamSetup::default() });
    let imm = fpdu(&untagged(RdmapOpcode::Immediate, 1, 0), &[0; 8]);
    assert_eq!(refused(&mut pair, &imm), (TerminateCode::RDMAP_OPCODE, vec![EventKind::QpReqErr]));

    let mut pair = pair_with(&StreamSetup { extended: false, ..StreamSetup::default() });
    let mr = pair.ends[1].mr.clone();
    let refusals = [
        (Wr::write_imm(1, &mr, 0, 1), "immediate data with this peer"),
        (Wr::fetch_add(1, &mr, 0, 1), "atomics with this peer"),
        (Wr::send_imm(1, 1), "SEND with immediate data"),
        (Wr::atomic_write(1, &mr, 0, 1), "atomic write"),
    ];
    for (wr, what) in refusals {
        assert_eq!(pair.try_post(0, &wr), Err(PostError::NotOnThisWire(what)));
    }
    assert_eq!(PostError::NotOnThisWire("flush").to_string(), "iWARP has no flush");
}

#[test]
fn a_write_that_memory_refuses_is_an_event_at_both_ends() {
    let base = StreamSetup::default();
    let cases: [(&str, StreamSetup, TerminateCode); 5] = [
        ("key", base, TerminateCode::TAGGED_STAG),
        ("range", base, TerminateCode::TAGGED_BOUNDS),
        ("domain", base, TerminateCode::TAGGED_STREAM),
        ("right", base, TerminateCode::RDMAP_RIGHTS),
        ("queue pair", StreamSetup { access: Access::REMOTE_READ, ..base }, TerminateCode::RDMAP_RIGHTS),
    ];
    for (case, setup, code) in cases {
        let mut pair = pair_with(&setup);
        let end = &pair.ends[REFUSER];
        let (addr, rkey) = match case {
            "key" => (end.mr.addr(0), RKey(end.mr.rkey.0 ^ 1)),
            "range" => (end.mr.addr(256 * 1024 - 3), end.mr.rkey),
            "domain" => {
                let mr = end.node.mr(PdId(99), 64, Access::LOCAL_WRITE | Access::REMOTE);
                (mr.addr(0), mr.rkey)
            }
            "right" => {
                let mr = end.node.mr(end.pd, 64, Access::LOCAL_WRITE | Access::REMOTE_READ);
                (mr.addr(0), mr.rkey)
            }
            _ => (end.mr.addr(0), end.mr.rkey),
        };
        let sge = pair.ends[PEER].mr.sge(0, 4);
        pair.post(PEER, &Wr::new(1, SendOp::Write { addr, rkey }).sge(sge));
        pair.run();
        let terminate = terminate_of(&pair, REFUSER);
        assert_eq!(terminate.code, code, "{case}");
        let header = tagged(RdmapOpcode::Write, rkey, addr);
        assert_eq!(terminate.quoted, Some(Quoted { segment_len: 18, header, read: None }));
        assert_eq!(
            pair.ends[PEER].send_cq.only().status,
            WcStatus::Success,
            "a WRITE completes when it is sent"
        );
        for end in [PEER, REFUSER] {
            assert_eq!(pair.ends[end].events(), [EventKind::QpAccessErr], "{case}");
        }
    }
}

#[test]
fn a_read_or_atomic_that_memory_refuses_fails_alone() {
    let rows = [
        ("READ", Access::REMOTE_WRITE, TerminateCode::RDMAP_RIGHTS),
        ("atomic", Access::REMOTE_READ, TerminateCode::RDMAP_RIGHTS),
        ("misaligned", Access::REMOTE, TerminateCode::RDMAP_PROTECTION),
        ("freed", Access::REMOTE, TerminateCode::RDMAP_STAG),
    ];
    for (case, access, code) in rows {
        let mut pair = pair();
        let end = &pair.ends[REFUSER];
        let (good, bad) = (end.mr.clone(), end.node.mr(end.pd, 64, access | Access::LOCAL_WRITE));
        let wr = match case {
            "READ" => Wr::read(2, &bad, 0),
            "atomic" => Wr::fetch_add(2, &bad, 0, 1),
            "misaligned" => Wr::fetch_add(2, &bad, 4, 1),
            _ => {
                bad.deregister();
                Wr::read(2, &bad, 0)
            }
        };
        let sges = [0, 8, 16].map(|at| pair.ends[PEER].mr.sge(at, 8));
        pair.post(PEER, &Wr::read(1, &good, 0).sge(sges[0]));
        pair.run();
        pair.post(PEER, &wr.sge(sges[1]));
        pair.post(PEER, &Wr::read(3, &good, 0).sge(sges[2]));
        pair.run();
        assert_eq!(terminate_of(&pair, REFUSER).code, code, "{case}");
        let statuses = [(1, WcStatus::Success), (2, WcStatus::RemAccessErr), (3, WcStatus::WrFlushErr)];
        assert_eq!(pair.ends[PEER].send_cq.statuses(), statuses, "{case}");
        assert_eq!(pair.ends[PEER].events(), []);
        assert_eq!(pair.ends[REFUSER].events(), [EventKind::QpAccessErr]);
    }
}

#[test]
fn a_send_that_does_not_fit_fails_its_receive() {
    let mut pair = pair();
    pair.post_recv(REFUSER, 5, 0, 10);
    pair.post_recv(REFUSER, 6, 0, 10);
    let sge = pair.ends[PEER].mr.sge(0, 11);
    pair.post(PEER, &Wr::send(1).sge(sge));
    pair.run();
    assert_eq!(terminate_of(&pair, REFUSER).code, TerminateCode::UNTAGGED_TOO_LONG);
    let statuses = [(5, WcStatus::LocLenErr), (6, WcStatus::WrFlushErr)];
    assert_eq!(pair.ends[REFUSER].recv_cq.statuses(), statuses);
    assert_eq!(pair.ends[PEER].events(), [EventKind::QpReqErr]);
}

#[test]
fn a_key_that_cannot_be_invalidated_fails_the_receive() {
    let mut pair = pair();
    pair.post_recv(REFUSER, 5, 0, 10);
    pair.post(PEER, &Wr::send_inv(1, RKey(0xdead)));
    pair.run();
    assert_eq!(terminate_of(&pair, REFUSER).code, TerminateCode::RDMAP_INVALIDATE_OPERATION);
    assert_eq!(pair.ends[REFUSER].recv_cq.statuses(), [(5, WcStatus::LocProtErr)]);
}

#[test]
fn a_receive_without_usable_memory_is_a_local_error() {
    let mut pair = pair();
    let end = &pair.ends[REFUSER];
    end.mr.deregister();
    pair.post_recv(REFUSER, 5, 0, 10);
    let sge = pair.ends[PEER].mr.sge(0, 10);
    pair.post(PEER, &Wr::send(1).sge(sge));
    pair.run();
    assert_eq!(terminate_of(&pair, REFUSER).code, TerminateCode::DDP_LOCAL);
    assert_eq!(pair.ends[REFUSER].recv_cq.statuses(), [(5, WcStatus::LocProtErr)]);
    assert_eq!(pair.ends[PEER].events(), [EventKind::QpFatal]);
}

/// The request before it completes first; the peer receives a Terminate with the failure of this end.
#[test]
fn a_send_without_usable_memory_fails_in_its_turn() {
    let mut pair = pair();
    let (mr, peer_mr) = (pair.ends[PEER].mr.clone(), pair.ends[REFUSER].mr.clone());
    let bad = pair.ends[PEER].node.mr(pair.ends[PEER].pd, 64, Access::LOCAL_WRITE);
    let sge = bad.sge(0, 8);
    bad.deregister();
    pair.post(PEER, &Wr::read(1, &peer_mr, 0).sge(mr.sge(0, 3000)));
    pair.post(PEER, &Wr::send(2).sge(sge));
    pair.post(PEER, &Wr::send(3));
    pair.run();
    let statuses = [(1, WcStatus::Success), (2, WcStatus::LocProtErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(pair.ends[PEER].send_cq.statuses(), statuses);
    assert_eq!(terminate_of(&pair, PEER).code, TerminateCode::RDMAP_LOCAL);
    assert_eq!(pair.ends[REFUSER].events(), [EventKind::QpFatal]);
}

#[test]
fn more_reads_than_ird_end_the_stream() {
    let mut pair = pair_with(&StreamSetup { room: 0, ..StreamSetup::default() });
    let source_stag = pair.ends[REFUSER].mr.rkey;
    let read = ReadRequest { sink_stag: RKey(1), sink_to: 0, len: 0, source_stag, source_to: 0 };
    for msn in 1..=4 {
        pair.inject(REFUSER, &fpdu(&untagged(RdmapOpcode::ReadRequest, msn, 0), &read.to_bytes()));
        assert_eq!(pair.ends[REFUSER].qp.state(), QpState::Rts, "READ {msn} of 4");
    }
    pair.inject(REFUSER, &fpdu(&untagged(RdmapOpcode::ReadRequest, 5, 0), &read.to_bytes()));
    assert_eq!(pair.ends[REFUSER].qp.state(), QpState::Err);
    assert_eq!(pair.ends[REFUSER].events(), [EventKind::QpReqErr]);
}

/// An end that negotiated no READs executes none. An empty one reads nothing: as RTR it needs no IRD.
#[test]
fn with_ird_0_only_an_empty_read_is_answered() {
    for (len, state) in [(0, QpState::Rts), (8, QpState::Err)] {
        let offer = Offer { ird: 0, ord: 4, ..Offer::default() };
        let mut pair = pair_with(&StreamSetup { room: 0, offer, ..StreamSetup::default() });
        let (source_stag, source_to) = (pair.ends[REFUSER].mr.rkey, pair.ends[REFUSER].mr.start);
        let read = ReadRequest { sink_stag: RKey(1), sink_to: 0, len, source_stag, source_to };
        pair.inject(REFUSER, &fpdu(&untagged(RdmapOpcode::ReadRequest, 1, 0), &read.to_bytes()));
        assert_eq!(pair.ends[REFUSER].qp.state(), state, "a READ of {len} bytes");
    }
}

#[test]
fn immediate_data_reports_the_length_of_the_write_before_it_only() {
    let mut pair = pair();
    let (mr, sge) = (pair.ends[REFUSER].mr.clone(), pair.ends[PEER].mr.sge(0, 10));
    for wr_id in 1..=4 {
        pair.post_recv(REFUSER, wr_id, 0, 10);
    }
    pair.post(PEER, &Wr::write_imm(1, &mr, 0, 7).sge(sge));
    pair.run();
    pair.inject(REFUSER, &fpdu(&untagged(RdmapOpcode::Immediate, 2, 0), &[0; 8]));
    pair.inject(REFUSER, &fpdu(&tagged(RdmapOpcode::Write, mr.rkey, mr.start), b"123"));
    pair.inject(REFUSER, &fpdu(&untagged(RdmapOpcode::Send, 3, 0), b"data"));
    pair.inject(REFUSER, &fpdu(&untagged(RdmapOpcode::Immediate, 4, 0), &[0; 8]));
    let lengths: Vec<_> =
        pair.ends[REFUSER].recv_cq.drain().iter().map(|done| (done.wr_id, done.byte_len)).collect();
    assert_eq!(lengths, [(1, 10), (2, 0), (3, 4), (4, 0)]);
}

/// A response that is too long, too short, elsewhere, or for another READ.
#[test]
fn a_read_response_that_does_not_fit_fails_the_read() {
    let cases = [(0, 0, 9), (0, 0, 7), (0, 1, 8), (1, 0, 8)];
    for (other_stag, to, len) in cases {
        let mut pair = pair_with(&StreamSetup { room: 64, ..StreamSetup::default() });
        let (sge, mr) = (pair.ends[REFUSER].mr.sge(0, 8), pair.ends[PEER].mr.clone());
        pair.post(REFUSER, &Wr::read(1, &mr, 0).sge(sge));
        // The request leaves; nothing is delivered yet.
        pair.stall = 1.0;
        pair.step();
        pair.stall = 0.0;
        let stag = match pair.sent(REFUSER)[..] {
            [Item::Message(_, Body::Read(read))] => RKey(read.sink_stag.0 ^ other_stag),
            ref sent => panic!("a READ request expected: {sent:?}"),
        };
        pair.inject(REFUSER, &fpdu(&tagged(RdmapOpcode::ReadResponse, stag, to), &[1; 9][..len]));
        assert_eq!(pair.ends[REFUSER].send_cq.statuses(), [(1, WcStatus::BadRespErr)]);
        assert_eq!(pair.ends[REFUSER].mr.read(0, 8), [0; 8], "nothing was placed");
    }
}

/// siw ends a connection with a Terminate, and quotes a wrong sequence number for a READ.
#[test]
fn a_terminate_of_a_foreign_peer_names_the_read() {
    let mut pair = pair();
    let (mr, sges) = (pair.ends[1].mr.clone(), [0, 8].map(|at| pair.ends[0].mr.sge(at, 8)));
    for (wr_id, sge) in [1, 2].into_iter().zip(sges) {
        pair.post(0, &Wr::read(wr_id, &mr, 0).sge(sge));
    }
    pair.stall = 1.0;
    pair.step();
    let reads: Vec<_> = pair
        .sent(0)
        .iter()
        .filter_map(|item| match item {
            Item::Message(header, Body::Read(read)) => Some((*header, *read)),
            _ => None,
        })
        .collect();
    let (mut header, read) = reads[1];
    if let DdpBuffer::Untagged { msn, .. } = &mut header.buffer {
        *msn = 8;
    }
    let quoted = Some(Quoted { segment_len: 8, header, read: Some(read) });
    let mut body = [0; 52];
    let len = Terminate { code: TerminateCode::RDMAP_BOUNDS, quoted }.write(&mut body);
    pair.inject(0, &fpdu(&untagged(RdmapOpcode::Terminate, 1, 0), &body[..len]));
    let statuses = [(1, WcStatus::WrFlushErr), (2, WcStatus::RemAccessErr)];
    assert_eq!(pair.ends[0].send_cq.statuses(), statuses);
}

#[test]
fn the_responder_is_silent_until_the_first_fpdu() {
    let offer = Offer { rtr: false, ..StreamSetup::default().offer };
    let mut pair = StreamPair::new(3, &StreamSetup { offer, ..StreamSetup::default() });
    pair.post_recv(0, 1, 0, 8);
    pair.post(1, &Wr::send(2).inline(b"first"));
    pair.run();
    assert_eq!(pair.sent_bytes(1), 0);
    let mr = pair.ends[1].mr.clone();
    pair.post(0, &Wr::write(3, &mr, 0));
    pair.run();
    assert_eq!(pair.ends[0].recv_cq.only().byte_len, 5);
}

#[test]
fn an_rtr_message_makes_the_responder_ready() {
    for rtr in [Rtr::Write, Rtr::Read] {
        let mut pair = StreamPair::new_with_rtr(3, &StreamSetup::default(), rtr);
        pair.post_recv(0, 1, 0, 8);
        pair.post(1, &Wr::send(2).inline(b"first"));
        let (mr, sge) = (pair.ends[1].mr.clone(), pair.ends[0].mr.sge(64, 100));
        pair.post(0, &Wr::read(4, &mr, 0).sge(sge));
        pair.run();
        assert_eq!(pair.ends[0].recv_cq.only().byte_len, 5, "{rtr:?}");
        assert_eq!(pair.ends[0].send_cq.only().status, WcStatus::Success, "{rtr:?}");
    }
}

/// Both ends answer long READs through streams of small capacity.
#[test]
fn reads_in_both_directions_do_not_block_each_other() {
    for crc in [false, true] {
        let offer = Offer { crc, ..StreamSetup::default().offer };
        let mut pair = pair_with(&StreamSetup { offer, room: 1, mulpdu: 200, ..StreamSetup::default() });
        for end in 0..2 {
            let mr = pair.ends[1 - end].mr.clone();
            mr.fill(end as u64);
            for wr_id in 0..8 {
                let sge = pair.ends[end].mr.sge(128 * 1024 + wr_id * 2000, 2000);
                pair.post(end, &Wr::read(wr_id, &mr, wr_id * 2000).sge(sge));
            }
        }
        let sources = [0, 1].map(|end| pair.ends[end].mr.read(0, 16_000));
        pair.run();
        for end in 0..2 {
            let done = pair.ends[end].send_cq.statuses();
            assert_eq!(done, (0..8).map(|id| (id, WcStatus::Success)).collect::<Vec<_>>());
            assert!(pair.ends[end].mr.read(128 * 1024, 16_000) == sources[1 - end]);
        }
    }
}

/// A message that is partially sent is finished; everything else is flushed.
#[test]
fn a_disconnect_finishes_the_message_in_progress() {
    let mut pair = pair_with(&StreamSetup { room: 100, mulpdu: 500, ..StreamSetup::default() });
    pair.post_recv(1, 9, 0, 5000);
    let sge = pair.ends[0].mr.sge(0, 5000);
    pair.post(0, &Wr::send(1).sge(sge));
    pair.post(0, &Wr::send(2));
    pair.stall = 1.0;
    pair.step();
    pair.stall = 0.0;
    pair.disconnect(0);
    assert_eq!(pair.ends[0].qp.state(), QpState::Sqd);
    pair.run();
    assert_eq!(pair.ends[0].send_cq.statuses(), [(1, WcStatus::Success), (2, WcStatus::WrFlushErr)]);
    assert_eq!(pair.ends[1].recv_cq.statuses(), [(9, WcStatus::Success)]);
    assert_eq!(pair.ends[1].qp.state(), QpState::Err);
    assert_eq!((pair.ends[0].events(), pair.ends[1].events()), (vec![], vec![]));
}

/// Anything may arrive: nothing panics, and nothing outside the rights of the connection is written.
#[test]
fn hostile_bytes_change_nothing() {
    let mut rng = StdRng::seed_from_u64(5);
    for seed in 0..400 {
        let mut pair =
            StreamPair::new(seed, &StreamSetup { access: Access::REMOTE_READ, ..StreamSetup::default() });
        let before = pair.ends[1].mr.read(0, 4096);
        for _ in 0..8 {
            let opcode = RdmapOpcode::ALL[rng.random_range(0..12)];
            let key = if rng.random() { pair.ends[1].mr.rkey } else { RKey(rng.random()) };
            let at = pair.ends[1].mr.addr(rng.random_range(0..64));
            let mut header = if opcode.is_tagged() {
                tagged(opcode, key, at)
            } else {
                untagged(opcode, rng.random_range(0..3), rng.random_range(0..2))
            };
            header.last = rng.random();
            let body: Vec<u8> = (0..rng.random_range(0..60)).map(|_| rng.random()).collect();
            let mut bytes = fpdu(&header, &body);
            if rng.random() {
                let at = rng.random_range(0..bytes.len());
                bytes[at] = rng.random();
            }
            let cut = rng.random_range(0..bytes.len());
            pair.inject(1, &bytes[..cut]);
            pair.inject(1, &bytes[cut..]);
        }
        pair.run();
        assert!(pair.ends[1].mr.read(0, 4096) == before, "seed {seed}");
    }
}

#[test]
fn only_a_connection_leads_to_rts() {
    let mut pair = pair();
    let to = |state| QpAttr { state, ..QpAttr::default() };
    let (from, state) = (QpState::Rts, AttrMask::STATE);
    let by_hand = ModifyError::OnlyByConnection { to: QpState::Rtr };
    assert_eq!(pair.modify(REFUSER, &to(QpState::Rtr), state), Err(by_hand));
    let no_reset = ModifyError::NoSuchTransition { from, to: QpState::Reset };
    assert_eq!(pair.modify(REFUSER, &to(QpState::Reset), state), Err(no_reset));
    let mtu = AttrMask::PATH_MTU;
    assert_eq!(pair.modify(REFUSER, &to(from), state | mtu), Err(ModifyError::NotAllowed(mtu)));
    assert_eq!(pair.ends[REFUSER].qp.state(), from);
    // The rights of the peer can be changed at any time.
    let attr = QpAttr { access: Access::empty(), ..to(from) };
    assert_eq!(pair.modify(REFUSER, &attr, AttrMask::ACCESS_FLAGS), Ok(()));
    let (addr, rkey) = (pair.ends[REFUSER].mr.addr(0), pair.ends[REFUSER].mr.rkey);
    let sge = pair.ends[PEER].mr.sge(0, 4);
    pair.post(PEER, &Wr::new(1, SendOp::Write { addr, rkey }).sge(sge));
    pair.run();
    assert_eq!(terminate_of(&pair, REFUSER).code, TerminateCode::RDMAP_RIGHTS);
}

#[test]
fn the_error_state_flushes_and_closes() {
    let mut pair = pair();
    pair.post_recv(PEER, 1, 0, 8);
    pair.post_recv(REFUSER, 2, 0, 8);
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    assert_eq!(pair.modify(REFUSER, &attr, AttrMask::STATE), Ok(()));
    pair.run();
    for (end, wr_id) in [(PEER, 1), (REFUSER, 2)] {
        assert_eq!(pair.ends[end].recv_cq.statuses(), [(wr_id, WcStatus::WrFlushErr)]);
        assert_eq!((pair.ends[end].qp.state(), pair.ends[end].events()), (QpState::Err, Vec::new()));
    }
}
