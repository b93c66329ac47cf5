//! Rings with arbitrary contents, as a hostile local peer may write them.

use super::{ALIGN, AS_BEFORE, Found, META_LEN, Piece, RING_LEN, Reader, RxMeta, SKIP, Writer};
use crate::mapping::{MappedBytes, Mapping};
use ferroce_os::sync::{AtomicU64, Ordering};
use ferroce_proto::Gid;

/// Longer packets end a ring.
const MAX_PACKET_LEN: usize = 40_000;

/// Checks that the reader stays inside the ring, only moves forward, and ends a ring at an invalid record, and that the writer ignores
/// impossible positions of a reader.
pub(crate) fn rings(bytes: &[u8]) {
    let mut input = bytes.iter().copied();
    let mut byte = move || input.next();
    let Some(start) = byte() else { return };
    let start = match start {
        0..128 => RING_LEN as u64 * u64::from(start) + 1000,
        _ => u64::MAX - u64::from(start & 0x7f) * 32,
    };
    let Ok(memory) = Mapping::private(RING_LEN) else { return };
    let mut reader = Reader::new(memory, start);
    let mut writer = Mapping::private(RING_LEN).map(Writer::new).ok();
    while let (Some(kind), Some(at), Some(value)) = (byte(), byte(), byte()) {
        match kind % 5 {
            0 => write_word(&reader, at, value),
            1 => {
                let at = (reader.position as usize + usize::from(at) * 4) % RING_LEN;
                let at = at.min(RING_LEN - META_LEN);
                reader.memory.write(at, &[value; META_LEN]);
            }
            2 | 3 => read(&mut reader),
            _ => write(writer.as_mut(), at, value),
        }
    }
}

/// Writes a length or a mark at the reader's position, or up to three lines behind it.
fn write_word(reader: &Reader, at: u8, value: u8) {
    let position = reader.position + u64::from(at % 4) * ALIGN as u64;
    let flag = if at & 0x80 == 0 { 0 } else { AS_BEFORE };
    let word = match at >> 4 & 7 {
        0..=3 => u32::from(value),
        4 => u32::from(value) << 8,
        5 => SKIP,
        6 => MAX_PACKET_LEN as u32 - 3 + u32::from(value),
        _ => u32::from(value) << 23,
    };
    reader.memory.word(super::offset_of(position)).store(word | flag, Ordering::Relaxed);
}

fn read(reader: &mut Reader) {
    let before = reader.position;
    match reader.look(MAX_PACKET_LEN) {
        Found::Nothing | Found::Nonsense => {}
        Found::Packet { len, head_len } => {
            let ring = reader.memory.start() as usize;
            let (start, _) = reader.take(len, head_len);
            let offset = start.as_ptr() as usize - ring;
            assert!(len <= MAX_PACKET_LEN && offset + len <= RING_LEN, "{len} bytes at {offset}");
        }
    }
    assert!(reader.position >= before && reader.position - before <= RING_LEN as u64);
    assert!(reader.position.is_multiple_of(ALIGN as u64));
}

/// A genuine writer whose reader reports any position.
fn write(writer: Option<&mut Writer>, at: u8, value: u8) {
    let Some(writer) = writer else { return };
    let consumed = match at {
        0..64 => writer.position.wrapping_sub(u64::from(at) * 64),
        64..128 => writer.position.wrapping_add(u64::from(at)),
        _ => u64::from(at) << (at % 57),
    };
    let meta = RxMeta { sgid: Gid([at & 1; 16]), dgid: Gid([2; 16]), sport: 3, tos: 4, ttl: 5 };
    let bytes = vec![value; usize::from(value) * 150];
    // SAFETY: the piece is a slice that outlives the call.
    let pushed = unsafe {
        writer.push(&meta, bytes.len(), [Piece::of(&bytes)].into_iter(), &AtomicU64::new(consumed))
    };
    assert!(writer.position - writer.consumed <= RING_LEN as u64, "written over what was not read: {pushed}");
    let _ = (writer.is_settled(&AtomicU64::new(consumed)), writer.is_read(&AtomicU64::new(consumed)));
}
