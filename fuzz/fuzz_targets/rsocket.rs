//! Stream and datagram sockets under any input from a peer.
//!
//! The target includes source files of librdmacm: they do no I/O, and the library exports only C functions.
#![no_main]

use ferroce_fuzz::choices::Choices;
use libfuzzer_sys::fuzz_target;
use rsocket::datagram::header::{ServiceHeader, SourceHeader};
use rsocket::settings::Sizing;
use rsocket::stream::{CONTROL_SLOTS, Control, Direction, Machine, TABLE_SLOTS, Work};
use rsocket::wire::{ConnectData, Message, Order, RemoteBuffer};
use std::collections::VecDeque;

#[allow(dead_code, unused_imports, reason = "a target uses a part of the library")]
#[path = "."]
mod rsocket {
    pub(crate) mod settings {
        /// As in the library, which reads the values from files and environment variables.
        pub(crate) struct Sizing {
            pub(crate) send_ring: u32,
            pub(crate) recv_ring: u32,
            pub(crate) send_queue: u16,
            pub(crate) recv_queue: u16,
            pub(crate) inline: u32,
        }
    }
    #[path = "../../crates/ffi/rdmacm/src/rsocket/stream/mod.rs"]
    pub(crate) mod stream;
    #[path = "../../crates/ffi/rdmacm/src/rsocket/wire.rs"]
    pub(crate) mod wire;
    #[path = "."]
    pub(crate) mod datagram {
        #[path = "../../crates/ffi/rdmacm/src/rsocket/datagram/header.rs"]
        pub(crate) mod header;
    }
}

const SIZES: Sizing = Sizing { send_ring: 8192, recv_ring: 4096, send_queue: 16, recv_queue: 16, inline: 16 };
/// Our receive ring, as the peer addresses it.
const RING: RemoteBuffer = RemoteBuffer { addr: 0x1000_0000, rkey: 1, length: SIZES.recv_ring };

fuzz_target!(|bytes: &[u8]| {
    headers(bytes);
    let mut choices = Choices(bytes);
    let Ok(peer) = connect_data(&mut choices) else { return };
    let mut stream =
        Stream { machine: Machine::new(&SIZES, RING, &peer), posted: VecDeque::new(), granted: 2048 };
    while !choices.0.is_empty() {
        stream.step(&mut choices);
    }
    stream.end();
});

/// Bytes are refused, or parsed and written back with the same meaning.
fn headers(bytes: &[u8]) {
    if let Ok(data) = ConnectData::parse(bytes) {
        assert_eq!(ConnectData::parse(&data.to_bytes()), Ok(data));
    }
    if let Ok((source, len)) = SourceHeader::parse(bytes) {
        let again = SourceHeader::new(source);
        assert_eq!(SourceHeader::parse(again.as_bytes()), Ok((source, len)));
        assert!(len <= bytes.len());
    }
    for source in ["192.0.2.1:7", "[2001:db8::1]:7"] {
        let source = source.parse().expect("an address");
        if let Ok((header, len)) = ServiceHeader::parse(bytes, &source) {
            assert_eq!(ServiceHeader::parse(&header.to_bytes(), &source), Ok((header, len)));
        }
    }
    if let Some(raw) = bytes.first_chunk() {
        let message = Message::from_u32(u32::from_be_bytes(*raw));
        assert_eq!(Message::from_u32(message.to_u32()), message);
    }
}

/// The connection data of the peer, with any values.
fn connect_data(choices: &mut Choices<'_>) -> Result<ConnectData, rsocket::wire::Malformed> {
    let [flags, credits, table, length] = [(); 4].map(|()| choices.byte());
    let sent = ConnectData {
        order: if flags & 1 == 0 { Order::Little } else { Order::Big },
        mappings_known: flags & 2 != 0,
        credits: u16::from(credits) << (flags >> 4 & 7),
        mappings: 0,
        table: RemoteBuffer {
            addr: if flags & 4 == 0 { 0x2000 } else { u64::MAX - 7 },
            rkey: 2,
            length: table.into(),
        },
        data: RemoteBuffer { addr: 0x3000, rkey: 3, length: u32::from(length) << (flags & 24) },
    };
    ConnectData::parse(&sent.to_bytes())
}

struct Stream {
    machine: Machine,
    /// Requests that have not completed.
    posted: VecDeque<Work>,
    /// Bytes of our ring that the peer was granted and has not announced.
    granted: u64,
}

impl Stream {
    fn step(&mut self, choices: &mut Choices<'_>) {
        match choices.byte() % 8 {
            0..=2 => self.message(choices),
            3 => self.send(choices.byte()),
            4 => self.read(choices.byte()),
            5 => {
                let success = choices.byte() != 0xff;
                if let Some(work) = self.posted.pop_front() {
                    self.machine.handle_sent(Work::from_id(work.to_id()), success);
                }
            }
            6 => self.machine.handle_keepalive_timer(),
            _ => self.machine.handle_shutdown(match choices.byte() % 3 {
                0 => Direction::Read,
                1 => Direction::Write,
                _ => Direction::Both,
            }),
        }
        self.post_control();
        assert!(self.machine.recv_ring.available() <= SIZES.recv_ring);
        assert!(self.machine.next_own_slot() < TABLE_SLOTS);
        assert!(self.posted.len() <= usize::from(SIZES.send_queue), "more requests than the queue has");
    }

    fn message(&mut self, choices: &mut Choices<'_>) {
        let [kind, high, low, entry] = [(); 4].map(|()| choices.byte());
        let message =
            Message::from_u32(u32::from(kind) << 29 | u32::from_be_bytes([0, kind >> 3, high, low]));
        let before = self.machine.recv_ring.available();
        let entry = RemoteBuffer { addr: 0x5000, rkey: 4, length: u32::from(entry) << (low % 24) };
        self.machine.handle_message(message, (kind & 0x80 != 0).then_some(entry));
        let announced = u64::from(self.machine.recv_ring.available() - before);
        assert!(announced <= self.granted, "{announced} bytes of {} granted", self.granted);
        self.granted -= announced;
    }

    fn send(&mut self, choice: u8) {
        if !self.machine.life.is_writable() {
            return;
        }
        let Some(piece) = self.machine.send_ring.plan(u32::from(choice) * 37) else { return };
        for span in piece.spans.iter().flatten() {
            assert!(u64::from(span.offset) + u64::from(span.length) <= SIZES.send_ring.into());
        }
        let target = self.machine.send_ring.commit(&piece);
        assert_eq!(target.length, piece.length);
        self.posted.push_back(Work::Sent(piece.ring_bytes()));
    }

    fn read(&mut self, choice: u8) {
        let spans = self.machine.recv_ring.next(usize::from(choice) * 41);
        let length = spans.iter().map(|span| span.length).sum();
        for span in spans {
            assert!(u64::from(span.offset) + u64::from(span.length) <= SIZES.recv_ring.into());
        }
        self.machine.recv_ring.on_read(length);
    }

    fn post_control(&mut self) {
        for count in 0.. {
            let Some((control, work)) = self.machine.poll_control() else { break };
            assert!(count < CONTROL_SLOTS);
            self.posted.push_back(work);
            if let Control::Entry { target, .. } = control {
                assert_eq!(target.length as usize, RemoteBuffer::LEN);
                self.granted += u64::from(SIZES.recv_ring / 2);
            }
        }
    }

    /// After every request has completed, a connected stream is flushed.
    fn end(mut self) {
        while let Some(work) = self.posted.pop_front() {
            self.machine.handle_sent(work, false);
        }
        assert!(!self.machine.life.is_connected() || self.machine.is_flushed());
    }
}
