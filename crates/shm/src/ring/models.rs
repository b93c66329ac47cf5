//! Loom models of the ring: a writer and a reader, with a ring of four lines that becomes full repeatedly. Every packet arrives once, complete
//! and in order, with its outer headers. Neither end accesses bytes that the other one is using (loom would report the race).

use super::*;
use ferroce_os::sync::loom::model::Builder;
use ferroce_os::sync::loom::thread;
use ferroce_os::sync::yield_now;
use std::fs::File;
use std::sync::Arc;

/// A packet: its number fills it. The outer headers are those of flow `sport`.
#[derive(Clone, Copy)]
struct Packet {
    len: usize,
    sport: u16,
}

impl Packet {
    fn meta(self) -> RxMeta {
        RxMeta { sgid: Gid([1; 16]), dgid: Gid([2; 16]), sport: self.sport, tos: 4, ttl: 5 }
    }
}

/// Both ends of a fresh ring, at the beginning of a lap.
fn ring(file: &File) -> (Writer, Reader) {
    let map = |writable| Mapping::new(file, 0, RING_LEN, writable).expect("memory");
    let ours = map(true);
    for at in (0..RING_LEN).step_by(ALIGN) {
        ours.word(at).store(0, Ordering::Relaxed);
        ours.write(at, &[0; 1]);
    }
    let theirs = map(false).with_shadow_of(&ours);
    let mut writer = Writer::new(ours);
    let reader = Reader::new(theirs, writer.restart());
    (writer, reader)
}

/// Sends a packet as a local peer does: with `push_short` if possible.
fn send(writer: &mut Writer, number: usize, packet: Packet, consumed: &AtomicU64) {
    let bytes = vec![number as u8; packet.len];
    let (head, payload) = bytes.split_at(8);
    let meta = packet.meta();
    // SAFETY: the pieces are parts of the packet.
    while !unsafe {
        writer.push_short(&meta, head, Piece::of(payload))
            || writer.push(&meta, packet.len, [head, payload].map(Piece::of).into_iter(), consumed)
    } {
        yield_now();
    }
}

fn receive(reader: &mut Reader, number: usize, packet: Packet) {
    let (len, head_len) = loop {
        match reader.look(RING_LEN) {
            Found::Nothing => yield_now(),
            Found::Packet { len, head_len } => break (len, head_len),
            Found::Nonsense => panic!("packet {number} is nonsense"),
        }
    };
    let (start, meta) = reader.take(len, head_len);
    assert_eq!((len, *meta), (packet.len, packet.meta()), "packet {number}");
    let mut bytes = vec![0; len];
    reader.memory.read(start.as_ptr().addr() - reader.memory.start().addr(), &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == number as u8), "packet {number}: {bytes:?}");
}

/// Sends the packets from one thread to another, which releases their bytes after every `release_every` of them.
fn check(packets: &'static [Packet], release_every: usize, preemptions: usize) {
    let path = std::env::temp_dir().join(format!("ferroce-model-{:x}", ferroce_os::random::number::<u64>()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    file.set_len(RING_LEN as u64).unwrap();
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let (mut writer, mut reader) = ring(&file);
        let consumed = Arc::new(AtomicU64::new(0));
        let told = consumed.clone();
        let sender = thread::spawn(move || {
            packets.iter().enumerate().for_each(|(number, packet)| send(&mut writer, number, *packet, &told));
            writer
        });
        for (number, packet) in packets.iter().enumerate() {
            receive(&mut reader, number, *packet);
            if (number + 1).is_multiple_of(release_every) {
                consumed.store(reader.position(), Ordering::Release);
            }
        }
        consumed.store(reader.position(), Ordering::Release);
        let writer = sender.join().unwrap();
        assert_eq!(reader.look(RING_LEN), Found::Nothing, "nothing comes twice");
        assert!(writer.is_read(&consumed) && writer.is_settled(&consumed));
    });
}

#[test]
fn short_packets_of_one_flow() {
    const PACKET: Packet = Packet { len: 12, sport: 1 };
    check(&[PACKET; 5], 1, 3);
}

#[test]
fn packets_that_are_released_together() {
    const PACKET: Packet = Packet { len: 16, sport: 1 };
    check(&[PACKET; 6], 2, 3);
}

#[test]
fn packets_of_two_lines_that_skip_the_end_of_the_ring() {
    static PACKETS: [Packet; 5] = [
        Packet { len: 16, sport: 1 },
        Packet { len: 100, sport: 1 },
        Packet { len: 100, sport: 1 },
        Packet { len: 20, sport: 1 },
        Packet { len: 100, sport: 1 },
    ];
    check(&PACKETS, 1, 3);
}

#[test]
fn packets_of_flows_that_alternate() {
    static PACKETS: [Packet; 5] = [
        Packet { len: 12, sport: 1 },
        Packet { len: 12, sport: 2 },
        Packet { len: 12, sport: 2 },
        Packet { len: 24, sport: 1 },
        Packet { len: 12, sport: 1 },
    ];
    check(&PACKETS, 1, 3);
}
