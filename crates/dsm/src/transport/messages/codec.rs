//! The format of requests and replies.
//!
//! Both begin with a kind (one byte) and a number (eight bytes, little endian). A request continues with operations,
//! each with a kind, an offset, and a length or a value. A reply continues with the results of reads and atomics, one
//! after another.

use super::LARGEST;
use crate::map::Mapping;
use crate::transport::Op;
use std::sync::atomic::Ordering;

const REQUEST: u8 = 1;
const REPLY: u8 = 2;
const HEAD: usize = 9;

const READ: u8 = 1;
const WRITE: u8 = 2;
const WRITE_WORD: u8 = 3;
const FETCH_ADD: u8 = 4;
/// Kind, offset, and length or value.
const OP: usize = 17;

/// Why a message is malformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// It is too short.
    Short,
    /// The kind is unknown.
    Kind(u8),
    /// The offset is outside the mapping.
    Outside,
    /// A word is not aligned.
    Misaligned,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'a> {
    Request { id: u64, ops: &'a [u8] },
    Reply { id: u64, bytes: &'a [u8] },
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl<'a> Message<'a> {
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or(Malformed::Short)?;
        let id = number(&head[1..]);
        match head[0] {
            REQUEST => Ok(Message::Request { id, ops: rest }),
            REPLY => Ok(Message::Reply { id, bytes: rest }),
            kind => Err(Malformed::Kind(kind)),
        }
    }
}

fn head(kind: u8, id: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(64);
    bytes.push(kind);
    bytes.extend(id.to_le_bytes());
    bytes
}

/// A request without its number, and where the bytes of its reply go.
pub(super) struct Request {
    pub(super) bytes: Vec<u8>,
    pub(super) destinations: Vec<(usize, usize)>,
    /// Bytes of its reply.
    reply: usize,
}

impl Request {
    fn new() -> Self {
        Self { bytes: head(REQUEST, 0), destinations: Vec::new(), reply: HEAD }
    }

    fn push(&mut self, kind: u8, place: usize, value: u64) {
        self.bytes.push(kind);
        self.bytes.extend((place as u64).to_le_bytes());
        self.bytes.extend(value.to_le_bytes());
    }

    fn expect(&mut self, at: usize, len: usize) {
        self.destinations.push((at, len));
        self.reply += len;
    }

    /// Bytes that one more operation may carry, in either direction.
    fn space(&self) -> usize {
        LARGEST.saturating_sub(self.bytes.len().max(self.reply) + OP)
    }
}

pub(super) fn with_id(mut request: Vec<u8>, id: u64) -> Vec<u8> {
    request[1..HEAD].copy_from_slice(&id.to_le_bytes());
    request
}

/// Packs operations into requests of limited length; splits long reads and writes.
pub(super) fn requests(ops: &[Op], mapping: &Mapping) -> Vec<Request> {
    let mut done = Vec::new();
    let mut request = Request::new();
    for &op in ops {
        let mut rest = Some(op);
        while let Some(op) = rest {
            if request.space() < 8 {
                done.push(std::mem::replace(&mut request, Request::new()));
            }
            rest = add(&mut request, op, mapping);
        }
    }
    done.push(request);
    done
}

/// Adds as much of an operation as fits, and returns the rest.
fn add(request: &mut Request, op: Op, mapping: &Mapping) -> Option<Op> {
    match op {
        Op::Read { remote, local, len } => {
            let piece = len.min(request.space());
            request.push(READ, remote, piece as u64);
            request.expect(local, piece);
            let rest = Op::Read { remote: remote + piece, local: local + piece, len: len - piece };
            (len > piece).then_some(rest)
        }
        Op::Write { remote, local, len } => {
            let piece = len.min(request.space());
            request.push(WRITE, remote, piece as u64);
            let start = request.bytes.len();
            request.bytes.resize(start + piece, 0);
            mapping.read(local, &mut request.bytes[start..]);
            let rest = Op::Write { remote: remote + piece, local: local + piece, len: len - piece };
            (len > piece).then_some(rest)
        }
        Op::WriteWord { remote, value } | Op::WriteAndWake { remote, value } => {
            request.push(WRITE_WORD, remote, value);
            None
        }
        Op::FetchAdd { remote, add, old } => {
            request.push(FETCH_ADD, remote, add);
            request.expect(old, 8);
            None
        }
    }
}

/// Executes a request, and returns its reply.
pub(super) fn serve(mapping: &Mapping, id: u64, mut ops: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut reply = head(REPLY, id);
    while !ops.is_empty() {
        let (op, rest) = ops.split_at_checked(OP).ok_or(Malformed::Short)?;
        ops = rest;
        let (place, value) = (number(&op[1..9]), number(&op[9..]));
        let len = if matches!(op[0], READ | WRITE) { value } else { 8 };
        let place = inside(mapping, place, len)?;
        if matches!(op[0], WRITE_WORD | FETCH_ADD) && !place.is_multiple_of(8) {
            return Err(Malformed::Misaligned);
        }
        match op[0] {
            READ => {
                let start = reply.len();
                if len as usize > LARGEST - start.min(LARGEST) {
                    return Err(Malformed::Outside);
                }
                reply.resize(start + len as usize, 0);
                mapping.read(place, &mut reply[start..]);
            }
            WRITE => {
                let (bytes, rest) = ops.split_at_checked(len as usize).ok_or(Malformed::Short)?;
                mapping.write(place, bytes);
                ops = rest;
            }
            WRITE_WORD => mapping.long(place).store(value, Ordering::Release),
            FETCH_ADD => {
                let old = mapping.long(place).fetch_add(value, Ordering::SeqCst);
                reply.extend(old.to_ne_bytes());
            }
            kind => return Err(Malformed::Kind(kind)),
        }
    }
    Ok(reply)
}

fn inside(mapping: &Mapping, place: u64, len: u64) -> Result<usize, Malformed> {
    let end = place.checked_add(len).ok_or(Malformed::Outside)?;
    if end <= mapping.len() as u64 { Ok(place as usize) } else { Err(Malformed::Outside) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::anonymous_file;

    fn mapping() -> Mapping {
        let file = anonymous_file(c"test", 1 << 16).unwrap();
        Mapping::anywhere(&file, 0, 1 << 16).unwrap()
    }

    #[test]
    fn long_operations_are_cut_and_arrive_whole() {
        let (ours, theirs) = (mapping(), mapping());
        let pattern: Vec<u8> = (0..20_000u32).map(|at| at as u8 ^ (at >> 8) as u8).collect();
        ours.write(100, &pattern);
        let ops = [
            Op::Write { remote: 200, local: 100, len: 20_000 },
            Op::WriteWord { remote: 64, value: 5 },
            Op::FetchAdd { remote: 64, add: 7, old: 0 },
            Op::Read { remote: 200, local: 30_000, len: 20_000 },
        ];
        let requests = requests(&ops, &ours);
        assert!(requests.len() >= 5, "{}", requests.len());
        for request in requests {
            let bytes = with_id(request.bytes, 77);
            assert!(bytes.len() <= LARGEST);
            let Ok(Message::Request { id: 77, ops }) = Message::parse(&bytes) else { panic!("a request") };
            let reply = serve(&theirs, 77, ops).unwrap();
            assert!(reply.len() <= LARGEST);
            let Ok(Message::Reply { id: 77, mut bytes }) = Message::parse(&reply) else { panic!("a reply") };
            for (at, len) in request.destinations {
                ours.write(at, &bytes[..len]);
                bytes = &bytes[len..];
            }
        }
        let mut back = vec![0; 20_000];
        ours.read(30_000, &mut back);
        assert!(back == pattern);
        assert_eq!(ours.long(0).load(Ordering::Relaxed), 5);
        assert_eq!(theirs.long(64).load(Ordering::Relaxed), 12);
    }

    #[test]
    fn malformed_requests_are_refused() {
        let mapping = mapping();
        assert_eq!(Message::parse(&[1; 8]), Err(Malformed::Short));
        assert_eq!(Message::parse(&[9; 9]), Err(Malformed::Kind(9)));
        let execute = |kind: u8, place: u64, value: u64| {
            let mut request = Request::new();
            request.push(kind, place as usize, value);
            serve(&mapping, 0, &request.bytes[HEAD..])
        };
        assert_eq!(execute(READ, u64::MAX, 8), Err(Malformed::Outside));
        assert_eq!(execute(READ, 0, 1 << 15), Err(Malformed::Outside));
        assert_eq!(execute(WRITE, 0, 8), Err(Malformed::Short));
        assert_eq!(execute(FETCH_ADD, 4, 1), Err(Malformed::Misaligned));
        assert_eq!(execute(WRITE_WORD, 1 << 16, 1), Err(Malformed::Outside));
        assert_eq!(execute(99, 0, 1), Err(Malformed::Kind(99)));
        assert_eq!(serve(&mapping, 0, &[1, 2, 3]), Err(Malformed::Short));
    }
}
