//! MPA negotiation: terms, refusals, every cut of the frames, and bytes behind them.

use core::net::Ipv4Addr;
use ferroce_proto::Time;
use ferroce_proto::cm::{Replays, Secret};
use ferroce_proto::iwarp::negotiation::{
    Initiator, Negotiated, NegotiationError, Offer, REQUEST_TIMEOUT_NS, Reply, Request, RequestKey,
    Responder, Role, Rtr, StreamAddrs,
};
use ferroce_proto::iwarp::wire::{BadFrame, Enhanced, FrameKind, MpaFrame, RtrKinds, TerminateCode};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

const OFFER: Offer = Offer { revision: 2, crc: false, ird: 4, ord: 6, rtr: true };

fn request_of(bytes: &[u8]) -> Request {
    let (used, request) = Responder::new(Time(0)).receive(bytes).unwrap();
    assert_eq!(used, bytes.len());
    request.unwrap()
}

/// Both ends of a negotiation in which the program of the responder accepts.
fn negotiate(initiator: Offer, responder: Offer) -> (Result<Negotiated, NegotiationError>, Negotiated) {
    let (mut active, request) = Initiator::new(initiator, b"hello");
    let request = request_of(&request);
    assert_eq!(request.private_data(), b"hello");
    let (terms, reply) = request.accept(&responder, b"welcome").unwrap();
    let outcome = active.receive(&reply).map(|(used, reply_read)| {
        let read = reply_read.unwrap();
        assert_eq!((used, &read.private_data[..]), (reply.len(), &b"welcome"[..]));
        read.accepted.unwrap()
    });
    (outcome, terms)
}

#[test]
fn each_end_asks_for_no_more_than_the_other_answers() {
    let (active, passive) = negotiate(OFFER, Offer { ird: 2, ord: 9, ..OFFER });
    let active = active.unwrap();
    let terms = Negotiated {
        role: Role::Initiator,
        crc: false,
        ird: 4,
        ord: 2,
        rtr: Some(Rtr::Write),
        is_ferroce: true,
        confirmation: None,
    };
    assert_eq!(active, terms);
    assert_eq!(passive, Negotiated { role: Role::Responder, ird: 2, ord: 4, ..terms });
}

#[test]
fn either_end_switches_crc_on() {
    for (mine, yours) in [(false, false), (true, false), (false, true), (true, true)] {
        let (active, passive) = negotiate(Offer { crc: mine, ..OFFER }, Offer { crc: yours, ..OFFER });
        assert_eq!((active.unwrap().crc, passive.crc), (mine || yours, mine || yours));
    }
}

#[test]
fn revision_1_negotiates_neither_depths_nor_rtr() {
    let (active, passive) = negotiate(Offer { revision: 1, ..OFFER }, Offer { ird: 1, ord: 9, ..OFFER });
    let active = active.unwrap();
    assert_eq!((active.ird, active.ord, active.rtr), (4, 6, None));
    assert_eq!((passive.ird, passive.ord, passive.rtr), (1, 9, None));
}

#[test]
fn an_older_responder_makes_the_initiator_connect_again() {
    let (active, _) = negotiate(OFFER, Offer { revision: 1, ..OFFER });
    assert_eq!(active, Err(NegotiationError::OlderRevision(1)));
}

#[test]
fn a_refusal_carries_private_data() {
    let (mut active, request) = Initiator::new(OFFER, b"");
    let reply = request_of(&request).reject(b"no");
    let refused = Reply { accepted: None, private_data: b"no".to_vec() };
    assert_eq!(active.receive(&reply), Ok((reply.len(), Some(refused))));
}

#[test]
fn every_cut_gives_the_same_and_later_bytes_stay() {
    let (_, bytes) = Initiator::new(OFFER, b"hello");
    let stream = [&bytes[..], b"the first FPDU"].concat();
    for cut in 0..stream.len() {
        let (first, second) = stream.split_at(cut);
        let mut responder = Responder::new(Time(0));
        let (used, request) = responder.receive(first).unwrap();
        let (used, request) = match request {
            Some(_) => (used, request),
            None => {
                assert_eq!(used, cut);
                let (more, request) = responder.receive(second).unwrap();
                (used + more, request)
            }
        };
        assert_eq!((used, request.unwrap().private_data()), (bytes.len(), &b"hello"[..]), "cut at {cut}");
    }
}

/// A frame of a foreign end.
fn foreign(kind: FrameKind, enhanced: Option<Enhanced>) -> MpaFrame {
    let revision = if enhanced.is_some() { 2 } else { 1 };
    MpaFrame {
        kind,
        revision,
        markers: false,
        crc: false,
        reject: false,
        is_ferroce: false,
        enhanced,
        private_data: Vec::new(),
    }
}

#[test]
fn markers_and_unknown_rtr_are_refused() {
    let wants_markers = MpaFrame { markers: true, ..foreign(FrameKind::Request, None) };
    let request = request_of(&wants_markers.to_bytes());
    assert_eq!(request.accept(&OFFER, b"").unwrap_err(), NegotiationError::Markers);

    let words =
        Enhanced { peer_to_peer: true, rtr: RtrKinds { send: true, ..RtrKinds::default() }, ird: 1, ord: 1 };
    let request = request_of(&foreign(FrameKind::Request, Some(words)).to_bytes());
    let error = request.accept(&OFFER, b"").unwrap_err();
    assert_eq!((error, error.code()), (NegotiationError::Rtr, Some(TerminateCode::LLP_RTR)));

    let (mut active, _) = Initiator::new(OFFER, b"");
    let reply = MpaFrame { markers: true, ..foreign(FrameKind::Reply, Some(Enhanced::default())) };
    assert_eq!(active.receive(&reply.to_bytes()), Err(NegotiationError::Markers));
}

/// siw answers with READ if the initiator does not offer WRITE, and repeats the request's reserved bits.
#[test]
fn a_foreign_reply_selects_read_and_is_no_ferroce() {
    let (mut active, request) = Initiator::new(OFFER, b"");
    let words = Enhanced {
        peer_to_peer: true,
        rtr: RtrKinds { read: true, ..RtrKinds::default() },
        ird: 128,
        ord: 4,
    };
    let mut reply = foreign(FrameKind::Reply, Some(words)).to_bytes();
    reply[16] |= request[16] & 0x07;
    let terms = active.receive(&reply).unwrap().1.unwrap().accepted.unwrap();
    assert_eq!((terms.rtr, terms.is_ferroce, terms.ord), (Some(Rtr::Read), false, 6));
}

#[test]
fn a_reply_with_too_many_reads_is_refused_with_a_terminate() {
    let (mut active, _) = Initiator::new(OFFER, b"");
    let reply = foreign(FrameKind::Reply, Some(Enhanced { ord: 5, ird: 1, ..Enhanced::default() }));
    let error = active.receive(&reply.to_bytes()).unwrap_err();
    assert_eq!(
        (error, error.code()),
        (NegotiationError::Ird { ord: 5, ird: 4 }, Some(TerminateCode::LLP_IRD))
    );
    let (mut active, _) = Initiator::new(OFFER, b"");
    let open =
        Enhanced { ird: Enhanced::NOT_NEGOTIATED, ord: Enhanced::NOT_NEGOTIATED, ..Enhanced::default() };
    let terms = active
        .receive(&foreign(FrameKind::Reply, Some(open)).to_bytes())
        .unwrap()
        .1
        .unwrap()
        .accepted
        .unwrap();
    assert_eq!((terms.ird, terms.ord), (4, 6), "not negotiated");
}

#[test]
fn foreign_bytes_end_the_negotiation_and_a_request_has_a_deadline() {
    let (mut active, _) = Initiator::new(OFFER, b"");
    assert_eq!(active.receive(b"HTTP/1.1"), Err(NegotiationError::Frame(BadFrame::Key)));
    let passive = Responder::new(Time(7));
    assert_eq!(passive.deadline(), Time(7 + REQUEST_TIMEOUT_NS));
}

const NOW_S: u64 = 1_800_000_000;
/// Of the responder.
const NONCE: u128 = 88;

fn key(byte: u8) -> RequestKey {
    let addrs = StreamAddrs {
        initiator: "10.0.0.1:40000".parse().unwrap(),
        responder: "10.0.0.2:7174".parse().unwrap(),
    };
    RequestKey { secret: Secret::new(&[byte; 32]).unwrap(), addrs, nonce: 77, unix_s: NOW_S }
}

/// Checks a request as a responder with this key.
fn check(
    bytes: &[u8],
    key: &RequestKey,
    now_s: u64,
    replays: &mut Replays,
) -> Result<Request, NegotiationError> {
    let mut request = request_of(bytes);
    request.check_key(&key.secret, key.addrs, (now_s, NONCE), replays)?;
    Ok(request)
}

#[test]
fn both_frames_prove_the_key() {
    let (mut active, request) = Initiator::with_key(OFFER, b"hello", Some(&key(1)));
    let request = check(&request, &key(1), NOW_S, &mut Replays::default()).unwrap();
    assert_eq!(request.private_data(), b"hello");
    let (terms, reply) = request.accept(&OFFER, b"welcome").unwrap();
    let (_, read) = active.receive(&reply).unwrap();
    let read = read.unwrap();
    assert_eq!(read.private_data, b"welcome");
    assert!(terms.confirmation.is_some());
    assert_eq!(read.accepted.unwrap().confirmation, terms.confirmation);
}

/// The recorded RTR message of an earlier connection does not fit the next reply to the same request.
#[test]
fn each_reply_asks_for_another_confirmation() {
    let (_, bytes) = Initiator::with_key(OFFER, b"hello", Some(&key(1)));
    let [first, second] = [1, 2].map(|nonce| {
        let mut request = request_of(&bytes);
        request.check_key(&key(1).secret, key(1).addrs, (NOW_S, nonce), &mut Replays::default()).unwrap();
        request.accept(&OFFER, b"welcome").unwrap().0.confirmation
    });
    assert_ne!(first, second);
}

/// Without an empty WRITE as the RTR message nothing could answer the reply.
#[test]
fn a_key_needs_an_rtr_message() {
    let (_, bytes) = Initiator::with_key(Offer { rtr: false, ..OFFER }, b"hello", Some(&key(1)));
    let request = check(&bytes, &key(1), NOW_S, &mut Replays::default()).unwrap();
    assert_eq!(request.accept(&OFFER, b"welcome"), Err(NegotiationError::Rtr));
}

#[test]
fn a_request_is_accepted_once_within_its_time_and_from_its_port_only() {
    let (_, request) = Initiator::with_key(OFFER, b"hello", Some(&key(1)));
    let mut replays = Replays::default();
    let mut other_port = key(1);
    other_port.addrs.initiator.set_port(40_001);
    assert_eq!(check(&request, &other_port, NOW_S, &mut replays), Err(NegotiationError::Unproven));
    assert_eq!(check(&request, &key(2), NOW_S, &mut replays), Err(NegotiationError::Unproven));
    for now_s in [NOW_S - 76, NOW_S + 76] {
        assert_eq!(check(&request, &key(1), now_s, &mut replays), Err(NegotiationError::Replayed));
    }
    assert!(check(&request, &key(1), NOW_S + 75, &mut replays).is_ok());
    assert_eq!(check(&request, &key(1), NOW_S + 75, &mut replays), Err(NegotiationError::Replayed));
    let (_, without_key) = Initiator::new(OFFER, b"hello");
    assert_eq!(check(&without_key, &key(1), NOW_S, &mut replays), Err(NegotiationError::Unproven));
}

/// The format of the MAC, without the code under test.
#[test]
fn the_mac_covers_a_label_addresses_ports_and_the_frame() {
    let hmac = |key: &[u8], parts: &[&[u8]]| {
        let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
        parts.iter().for_each(|part| mac.update(part));
        <[u8; 32]>::from(mac.finalize().into_bytes())
    };
    let (_, request) = Initiator::with_key(OFFER, b"hello", Some(&key(1)));
    let (frame, mac) = request.split_last_chunk::<16>().unwrap();
    let secret = hmac(b"ferroce connection set-up 1", &[&[1; 32]]);
    let [from, to] = [1, 2].map(|host| Ipv4Addr::new(10, 0, 0, host).to_ipv6_mapped().octets());
    let ports = [40_000_u16, 7174].map(u16::to_be_bytes);
    let expected = hmac(&secret, &[&from, &to, &[0; 16], b"ferroce MPA 1", ports.as_flattened(), frame]);
    assert_eq!(mac[..], expected[..16]);
}

#[test]
fn a_refusal_names_its_reason() {
    let reasons = [NegotiationError::Unproven, NegotiationError::Replayed, NegotiationError::TooManyRequests];
    let texts = reasons.map(|reason| std::str::from_utf8(reason.reject_text()).unwrap());
    let expected = ["not proven with the key", "used before", "too many requests"];
    for (text, expected) in texts.into_iter().zip(expected) {
        assert!(text.starts_with("ferroce: ") && text.contains(expected), "{text}");
    }
}

/// The MAC covers every bit that arrives, reserved ones too: flags and words, private data, nonce, time and MAC.
#[test]
fn changed_frames_are_not_proven() {
    let (_, request) = Initiator::with_key(OFFER, b"hello", Some(&key(1)));
    let proven = check(&request, &key(1), NOW_S, &mut Replays::default()).unwrap();
    let (_, reply) = proven.accept(&OFFER, b"welcome").unwrap();
    // Behind the key of the frame and in front of the length.
    let bits = |len: usize| (16 * 8..18 * 8).chain(20 * 8..len * 8);
    for bit in bits(request.len()) {
        let mut changed = request.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let read = Responder::new(Time(0)).receive(&changed);
        let Ok((_, Some(mut read))) = read else { continue };
        let checked = read.check_key(&key(1).secret, key(1).addrs, (NOW_S, NONCE), &mut Replays::default());
        assert_eq!(checked, Err(NegotiationError::Unproven), "bit {bit}");
    }
    for bit in bits(reply.len()) {
        let (mut active, again) = Initiator::with_key(OFFER, b"hello", Some(&key(1)));
        assert_eq!(again, request);
        let mut changed = reply.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        match active.receive(&changed) {
            Ok((_, Some(read))) => assert!(read.accepted.is_none(), "bit {bit}"),
            other => assert!(other.is_err(), "bit {bit}: {other:?}"),
        }
    }
}
