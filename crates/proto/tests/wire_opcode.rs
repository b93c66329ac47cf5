//! The opcode table, written down a second time from the specification (IBA 9.2.1, 9.3, annexes A14 and A17).

use ferroce_proto::wire::{Headers, Opcode, Operation, Service};
use std::collections::HashSet;

/// Low five bits, extension headers in the order of the wire, and whether a message starts and ends here.
const RC: [(u8, &str, &str); 25] = [
    (0x00, "", "first"),
    (0x01, "", "middle"),
    (0x02, "", "last"),
    (0x03, "imm", "last"),
    (0x04, "", "only"),
    (0x05, "imm", "only"),
    (0x06, "reth", "first"),
    (0x07, "", "middle"),
    (0x08, "", "last"),
    (0x09, "imm", "last"),
    (0x0a, "reth", "only"),
    (0x0b, "reth imm", "only"),
    (0x0c, "reth", "only"),
    (0x0d, "aeth", "first"),
    (0x0e, "", "middle"),
    (0x0f, "aeth", "last"),
    (0x10, "aeth", "only"),
    (0x11, "aeth", "only"),
    (0x12, "aeth atomic_ack", "only"),
    (0x13, "atomic", "only"),
    (0x14, "atomic", "only"),
    (0x16, "ieth", "last"),
    (0x17, "ieth", "only"),
    (0x1c, "feth reth", "only"),
    (0x1d, "reth", "only"),
];

fn expected(byte: u8) -> Option<(String, &'static str)> {
    let (_, extensions, part) = *RC.iter().find(|row| row.0 == byte & 0x1f)?;
    let response = (0x0d..=0x12).contains(&(byte & 0x1f));
    match byte >> 5 {
        0 => Some((extensions.into(), part)),
        1 if byte & 0x1f <= 0x0b => Some((extensions.into(), part)),
        3 if byte == 0x64 => Some(("deth".into(), part)),
        3 if byte == 0x65 => Some(("deth imm".into(), part)),
        4 if byte == 0x81 => Some((String::new(), "only")),
        // Ours, from the manufacturers' part.
        6 if byte == 0xd1 => Some((extensions.into(), part)),
        5 if byte & 0x1f > 0x17 => None,
        5 if response => Some((extensions.into(), part)),
        5 => Some((format!("xrceth {extensions}").trim().into(), part)),
        _ => None,
    }
}

fn extensions(opcode: Opcode) -> String {
    [
        ("xrceth", opcode.has_xrceth()),
        ("deth", opcode.has_deth()),
        ("feth", opcode.has_feth()),
        ("reth", opcode.has_reth()),
        ("atomic", opcode.has_atomic()),
        ("aeth", opcode.has_aeth()),
        ("atomic_ack", opcode.has_atomic_ack()),
        ("imm", opcode.has_imm()),
        ("ieth", opcode.has_ieth()),
    ]
    .iter()
    .filter(|(_, has)| *has)
    .map(|(name, _)| *name)
    .collect::<Vec<_>>()
    .join(" ")
}

fn part(op: Operation) -> &'static str {
    match (op.is_first(), op.is_middle(), op.is_last(), op.is_only()) {
        (true, false, false, false) => "first",
        (false, true, false, false) => "middle",
        (false, false, true, false) => "last",
        (false, false, false, true) => "only",
        other => panic!("{op:?} is {other:?}"),
    }
}

#[test]
fn every_byte_is_what_the_specification_says() {
    for byte in 0..=u8::MAX {
        let found = Opcode::from_byte(byte).map(|opcode| (extensions(opcode), part(opcode.operation)));
        assert_eq!(found, expected(byte), "{byte:#04x}");
        if let Some(opcode) = Opcode::from_byte(byte) {
            assert_eq!(opcode.to_byte(), byte);
        }
    }
}

#[test]
fn lengths_follow_from_the_extensions() {
    for opcode in (0..=u8::MAX).filter_map(Opcode::from_byte) {
        let len = |name: &str| match name {
            "xrceth" | "feth" | "imm" | "ieth" | "aeth" => 4,
            "deth" | "atomic_ack" => 8,
            "reth" => 16,
            "atomic" => 28,
            other => panic!("unknown header {other}"),
        };
        let expected: usize = 12 + extensions(opcode).split_whitespace().map(len).sum::<usize>();
        let bth = ferroce_proto::wire::Bth::new(opcode, Default::default(), Default::default());
        assert_eq!(Headers::new(bth).encoded_len(), expected, "{opcode:?}");
        assert!(expected <= Headers::MAX_LEN, "{opcode:?}");
    }
}

#[test]
fn every_operation_is_request_or_response() {
    let mut bits = HashSet::new();
    for op in Operation::ALL {
        assert!(bits.insert(op as u8), "{op:?} has the number of another");
        let notification = op == Operation::CongestionNotification;
        let sides = usize::from(op.is_request()) + usize::from(op.is_response());
        assert_eq!(sides, usize::from(!notification), "{op:?}");
        let families = [op.is_send(), op.is_write(), op.is_read_response(), op.is_atomic()]
            .iter()
            .filter(|f| **f)
            .count();
        assert!(families <= 1, "{op:?} is of two families");
        assert_eq!(op.starts_message(), op.is_first() || op.is_only());
        assert_eq!(op.ends_message(), op.is_last() || op.is_only());
    }
}

#[test]
fn opcodes_have_the_right_bytes() {
    let byte = |service, operation| Opcode::new(service, operation).to_byte();
    assert_eq!(byte(Service::Rc, Operation::SendOnly), 0x04);
    assert_eq!(byte(Service::Rc, Operation::WriteOnlyImm), 0x0b);
    assert_eq!(byte(Service::Rc, Operation::ReadRequest), 0x0c);
    assert_eq!(byte(Service::Rc, Operation::Acknowledge), 0x11);
    assert_eq!(byte(Service::Rc, Operation::FetchAdd), 0x14);
    assert_eq!(byte(Service::Rc, Operation::SendOnlyInv), 0x17);
    assert_eq!(byte(Service::Rc, Operation::Flush), 0x1c);
    assert_eq!(byte(Service::Rc, Operation::AtomicWrite), 0x1d);
    assert_eq!(byte(Service::Uc, Operation::WriteFirst), 0x26);
    assert_eq!(byte(Service::Ud, Operation::SendOnlyImm), 0x65);
    assert_eq!(byte(Service::Xrc, Operation::SendFirst), 0xa0);
    assert_eq!(Opcode::CNP.to_byte(), 0x81);
    assert_eq!(Opcode::UC_ACK.to_byte(), 0xd1);
}
