//! The fuzz targets of iWARP over a fixed number of inputs: valid streams, some of them damaged.

#[path = "../../../fuzz/src/iwarp.rs"]
#[expect(unreachable_pub, reason = "it is a module of the fuzz crate")]
mod iwarp;

use ferroce_proto::RKey;
use ferroce_proto::iwarp::negotiation::{Initiator, Offer};
use ferroce_proto::iwarp::wire::{DdpBuffer, DdpHeader, MAX_BODY, RdmapOpcode, pad_len};
use proptest::prelude::*;

/// Bytes of an FPDU whose numbers are mostly those that a queue pair expects.
fn fpdu(opcode: u8, last: bool, number: u32, small: u8, body: &[u8]) -> Vec<u8> {
    let opcode = RdmapOpcode::ALL[usize::from(opcode) % 12];
    let buffer = if opcode.is_tagged() {
        DdpBuffer::Tagged { stag: RKey(number), to: small.into() }
    } else {
        DdpBuffer::Untagged { invalidate: RKey(number), queue: opcode.queue(), msn: 1, offset: 0 }
    };
    let mut head = [0; DdpHeader::UNTAGGED_LEN];
    let head_len = DdpHeader { opcode, last: last || !opcode.has_payload(), buffer }.write(&mut head);
    let body_len = (0..=body.len()).rev().find(|len| opcode.takes_body(*len)).unwrap_or(0);
    let len = head_len + body_len;
    let pad = vec![0; pad_len(len) + 4];
    [&(len as u16).to_be_bytes()[..], &head[..head_len], &body[..body_len], &pad].concat()
}

fn input() -> impl Strategy<Value = Vec<u8>> {
    let key = prop_oneof![Just(0x11), Just(0x8000_0000), Just(1), any::<u32>()];
    let segment =
        (any::<u8>(), any::<bool>(), key, any::<u8>(), prop::collection::vec(any::<u8>(), MAX_BODY));
    let damage = prop::option::weighted(0.5, (any::<prop::sample::Index>(), any::<u8>()));
    (any::<[u8; 3]>(), prop::collection::vec(segment, 0..6), damage).prop_map(
        |(choices, segments, damage)| {
            let stream =
                segments.iter().flat_map(|(op, last, key, to, body)| fpdu(*op, *last, *key, *to, body));
            let mut bytes: Vec<u8> = choices.into_iter().chain(stream).collect();
            if let Some((at, value)) = damage {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            bytes
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn any_stream_is_read_or_refused(bytes in input()) {
        iwarp::stream(&bytes[1..]);
        iwarp::machine(&bytes);
    }

    #[test]
    fn any_frame_is_read_or_refused(private: [u8; 7], at: prop::sample::Index, value: u8) {
        let (_, request) = Initiator::new(Offer::default(), &private);
        let mut bytes = [&[0, 3][..], &request].concat();
        let at = at.index(bytes.len());
        bytes[at] = value;
        iwarp::stream(&bytes);
    }
}
