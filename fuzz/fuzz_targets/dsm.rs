//! Messages of the distributed shared memory, as any process of the network may send them.
//!
//! The target includes source files of the library: they do no I/O, while other parts of the library need a NIC.
#![no_main]

use ferroce_fuzz::choices::Choices;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| transport::messages::target(&mut Choices(bytes)));

#[allow(dead_code, reason = "the sender's side")]
mod map {
    use std::cell::RefCell;
    use std::sync::atomic::AtomicU64;

    /// Memory that panics on an access out of bounds.
    pub(crate) struct Mapping {
        bytes: RefCell<Vec<u8>>,
        words: Vec<AtomicU64>,
    }

    impl Mapping {
        pub(crate) fn new(len: usize) -> Mapping {
            Mapping {
                bytes: RefCell::new(vec![0; len]),
                words: (0..len / 8).map(|_| AtomicU64::new(0)).collect(),
            }
        }
        pub(crate) fn len(&self) -> usize {
            self.bytes.borrow().len()
        }
        pub(crate) fn read(&self, at: usize, into: &mut [u8]) {
            into.copy_from_slice(&self.bytes.borrow()[at..at + into.len()]);
        }
        pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
            self.bytes.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        }
        pub(crate) fn long(&self, at: usize) -> &AtomicU64 {
            assert_eq!(at % 8, 0);
            &self.words[at / 8]
        }
    }
}

#[path = "."]
mod transport {
    #[allow(dead_code, reason = "as in the library")]
    #[derive(Clone, Copy)]
    pub(crate) enum Op {
        Read { remote: usize, local: usize, len: usize },
        Write { remote: usize, local: usize, len: usize },
        WriteWord { remote: usize, value: u64 },
        WriteAndWake { remote: usize, value: u64 },
        FetchAdd { remote: usize, add: u64, old: usize },
    }

    #[path = "."]
    pub(crate) mod messages {
        #[allow(dead_code, reason = "the sender's side")]
        #[path = "../../crates/dsm/src/transport/messages/codec.rs"]
        mod codec;
        #[allow(dead_code, reason = "the sender's side")]
        #[path = "../../crates/dsm/src/transport/messages/reliability.rs"]
        mod reliability;

        use crate::map::Mapping;
        use codec::{Message, serve};
        use ferroce_fuzz::choices::Choices;
        use reliability::{Arrived, Incoming, Outgoing};
        use std::collections::BTreeSet;
        use std::time::{Duration, Instant};

        /// Two pages and their headers, as in the library.
        pub(crate) const LARGEST: usize = 2 * 4096 + 256;

        /// A request is refused or served inside the mapping, with a bounded reply. A datagram is delivered once and in order.
        pub(crate) fn target(choices: &mut Choices<'_>) {
            let mapping = Mapping::new(1 << 14);
            // Any datagram, and one whose operations the input chooses field by field.
            for message in [choices.0.to_vec(), request(choices.0)] {
                if let Ok(Message::Request { id, ops }) = Message::parse(&message)
                    && let Ok(reply) = serve(&mapping, id, ops)
                {
                    assert!(reply.len() <= LARGEST + 8 * ops.len());
                    assert!(
                        matches!(Message::parse(&reply), Ok(Message::Reply { id: same, .. }) if same == id)
                    );
                }
            }
            sequence(choices);
        }

        fn request(mut bytes: &[u8]) -> Vec<u8> {
            let mut message = vec![1; 9];
            while let [kind, offset, len, rest @ ..] = bytes {
                bytes = rest;
                let value = u64::from(*len) << (kind >> 3 & 7);
                message.push(kind & 7);
                message.extend((u64::from(*offset) << (kind >> 6) << 5).to_le_bytes());
                message.extend(value.to_le_bytes());
                if kind & 7 == 2 {
                    message.resize(message.len() + value as usize, *len);
                }
            }
            message
        }

        /// Datagrams and acknowledgements with any numbers.
        fn sequence(choices: &mut Choices<'_>) {
            let mut now = Instant::now();
            let (mut outgoing, mut incoming, arrived) =
                (Outgoing::new(now), Incoming::default(), Arrived::default());
            let (mut next, mut sent, mut seen) = (0, 0_u64, BTreeSet::new());
            while let [kind, value, ..] = *choices.take(2) {
                let near = |middle: u64| match value {
                    0..250 => middle.wrapping_add(u64::from(value % 40)).wrapping_sub(u64::from(value / 40)),
                    _ => u64::MAX << (value - 250),
                };
                match kind % 5 {
                    0 => {
                        incoming.take(&arrived, near(next), &[0], |_| {
                            next += 1;
                        });
                        assert!(arrived.acknowledge() == next);
                    }
                    1 => outgoing.push(vec![value]),
                    2 => {
                        while let Some((number, _)) = outgoing.poll(now) {
                            assert!(seen.insert(number), "datagram {number} is new twice");
                            sent = sent.max(number + 1);
                        }
                    }
                    3 => {
                        let again =
                            outgoing.acknowledge(near(sent), kind & 8 != 0, now).map(|(number, _)| number);
                        assert!(again.is_none_or(|number| number < sent));
                    }
                    _ => {
                        now += Duration::from_millis(value.into());
                        let again = outgoing.expire(now).map(|(number, _)| number);
                        assert!(again.is_none_or(|number| number < sent));
                    }
                }
            }
        }
    }
}
